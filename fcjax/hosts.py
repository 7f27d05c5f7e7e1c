"""Several processes, on one host or many: each runs its share of the grid."""

import dataclasses
import re
from typing import TypeVar

import jax

from fcjax.flags import Common

Args = TypeVar("Args", bound=Common)

DAYS = 24 * 3600


def join(args: Args) -> Args:
    """Joins the other processes, if there are any, before JAX is first used.

    Runs do not communicate: every process takes a shard, and runs it on its own
    devices. JAX only says which process this is.

    Returns:
        The flags, with the shard of this process.

    Raises:
        ValueError: a flag of the processes is missing or does not fit the others.
    """
    if args.coordinator is None:
        if args.process is not None:
            raise ValueError("--process goes with --coordinator HOST:PORT")
        return args
    if args.shard is not None:
        raise ValueError("--shard is what --coordinator decides: give one of them")
    where: dict[str, str | int] = {}
    if args.coordinator != "auto":
        if not re.fullmatch(r".+:\d+", args.coordinator):
            raise ValueError(
                f"--coordinator is auto or HOST:PORT, got {args.coordinator!r}"
            )
        if args.process is None:
            raise ValueError("--coordinator HOST:PORT needs --process i/n")
        index, count = share("--process", args.process)
        where = {
            "coordinator_address": args.coordinator,
            "num_processes": count,
            "process_id": index,
        }
    try:
        # A process that is done waits for the others: without the first one, which
        # hosts the service, they would be stopped.
        jax.distributed.initialize(**where, shutdown_timeout_seconds=30 * DAYS)  # pyright: ignore[reportArgumentType]
    except (RuntimeError, ValueError) as error:
        message = str(error).partition("\n")[0]
        raise ValueError(f"--coordinator {args.coordinator}: {message}") from error
    shard = f"{jax.process_index()}/{jax.process_count()}"
    return dataclasses.replace(args, shard=shard)


def share(flag: str, text: str) -> tuple[int, int]:
    """Returns (i, n) of "i/n".

    Raises:
        ValueError: it is not of that form, or i is not one of 0 to n - 1.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or int(found[1]) >= int(found[2]):
        raise ValueError(f"{flag} is i/n with i from 0 to n - 1, got {text!r}")
    return int(found[1]), int(found[2])
