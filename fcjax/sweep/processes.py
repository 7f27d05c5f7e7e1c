"""Several processes, on one host or many, that run one program: `jax.distributed`.

Each process sees the devices of all processes. The first process alone writes and
prints.
"""

import dataclasses
import hashlib
import json
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

import filelock
import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from fcjax.parallel.mesh import are_several
from fcjax.sweep.ending import name_of_command, told
from fcjax.sweep.flags import Common, flag_of

Args = TypeVar("Args", bound=Common)

HEARTBEAT_TIMEOUT = 20
"""Seconds without a heartbeat after which JAX ends the other processes."""


def join(args: Args) -> Args:
    """Joins the other processes, if there are several, before JAX is first used.

    Returns:
        The flags.

    Raises:
        ValueError: a flag of the processes is missing or does not fit the others, or
            the processes differ in their flags, code or devices.
    """
    if args.coordinator is None:
        if args.process is not None:
            raise ValueError("--process goes with --coordinator HOST:PORT")
        return args
    if args.shard is not None:
        raise ValueError(
            "--shard goes without --coordinator, which makes one program of all "
            "processes: give one of them"
        )
    if args.backend != "shard_map" or args.on is not None:
        raise ValueError(
            "--coordinator goes with --backend shard_map, and without --on"
        )
    options: dict[str, str | int] = {}
    if args.coordinator != "auto":
        if not re.fullmatch(r".+:\d+", args.coordinator):
            raise ValueError(
                f"--coordinator is auto or HOST:PORT, got {args.coordinator!r}"
            )
        if args.process is None:
            raise ValueError("--coordinator HOST:PORT needs --process i/n")
        index, count = share("--process", args.process)
        options = {
            "coordinator_address": args.coordinator,
            "num_processes": count,
            "process_id": index,
        }
    # Its service would keep a SIGTERM to itself.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        **options,  # pyright: ignore[reportArgumentType]
        initialization_timeout=int(args.coordinator_timeout),
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
    )
    if not is_primary():
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    agree(args)
    return args


def share(flag: str, text: str) -> tuple[int, int]:
    """Returns (i, n) of "i/n".

    Raises:
        ValueError: it is not of that form, or i is not one of 0 to n - 1.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or int(found[1]) >= int(found[2]):
        raise ValueError(f"{flag} is i/n with i from 0 to n - 1, got {text!r}")
    return int(found[1]), int(found[2])


def is_primary() -> bool:
    """Returns whether this process writes and prints: the first one does."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def allgather_text(text: str) -> list[str]:
    """Returns the text of each process. All processes call this at once."""
    if not jax.distributed.is_initialized():
        return [text]
    data = np.frombuffer(text.encode(), np.uint8)
    length = process_allgather(np.int32(len(data))).max()
    rows = process_allgather(np.pad(data, (0, length - len(data))))
    return [bytes(row).rstrip(b"\0").decode() for row in rows]


def broadcast_text(text: str) -> str:
    """Returns the text of the first process."""
    return allgather_text(text if is_primary() else "")[0]


def first_error(error: str) -> str:
    """Returns the error of this process, else the first one of another process, with
    its number; an empty string if no process has an error."""
    errors = allgather_text(error)
    others = [f"process {index}: {text}" for index, text in enumerate(errors) if text]
    return error or (others or [""])[0]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps other commands out of a folder until all processes have left it."""
    with filelock.FileLock(path) if is_primary() else nullcontext():
        broadcast_text("locked")
        yield
        allgather_text("done")


def agree(args: Common) -> None:
    """Raises ValueError where the processes differ in their flags, code or devices."""
    flags = {f.name: repr(getattr(args, f.name)) for f in dataclasses.fields(args)}
    del flags["process"]
    own = {
        "the version of fcjax": digest_of_code(),
        "the version of JAX": jax.__version__,
        "the number of devices": str(jax.local_device_count()),
        **{flag_of(name): text for name, text in flags.items()},
    }
    first, *others = map(json.loads, allgather_text(json.dumps(own)))
    for index, other in enumerate(others, 1):
        for name in first | other:
            one, two = first.get(name), other.get(name)
            if one != two:
                raise ValueError(
                    f"{name} is {one} in process 0 and {two} in process {index}"
                )


def digest_of_code() -> str:
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()[:8]


@contextmanager
def ending_together() -> Iterator[None]:
    """Ends this process at once if it fails. The other processes wait for it in vain,
    and JAX ends them after `HEARTBEAT_TIMEOUT`."""
    try:
        yield
    except BaseException as error:
        if not are_several():
            raise
        if isinstance(error, OSError) and not isinstance(error, TimeoutError):
            print(f"{name_of_command()}: error: {told(error)}", file=sys.stderr)
        elif not isinstance(error, SystemExit):  # its message is printed
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)  # at a normal exit, orbax and JAX wait for the others
