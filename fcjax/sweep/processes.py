"""Several processes, on one host or many: each runs its share of the grid."""

import dataclasses
import json
import re
import subprocess
import sys
from typing import TypeVar

import jax

from fcjax.sweep.flags import Common

Args = TypeVar("Args", bound=Common)

ROLL_CALL = """
import json, sys
import jax
jax.distributed.initialize(**json.loads(sys.argv[1]))
devices = jax.config.values.get("jax_cuda_visible_devices", "all")
print(json.dumps([jax.process_index(), jax.process_count(), devices]))
"""


def join(args: Args) -> Args:
    """Takes the roll of all processes, if there are several, before JAX is first used.

    Runs do not communicate, so that each process takes a shard of them to its own
    devices. A short-lived process beside each one joins JAX's distributed service and
    learns which one it is. The session itself stays out of it: there JAX stops all
    processes when one dies, and orbax saves nothing without the others.

    Returns:
        The flags, with the shard of this process.

    Raises:
        ValueError: a flag of the processes is missing or does not fit the others, or
            not all of them came.
    """
    if args.coordinator is None:
        if args.process is not None:
            raise ValueError("--process goes with --coordinator HOST:PORT")
        return args
    if args.shard is not None:
        raise ValueError("--shard is what --coordinator decides: give one of them")
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
    command = [sys.executable, "-c", ROLL_CALL, json.dumps(options)]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode != 0:
        lines = answer.stderr.strip().splitlines() or ["no answer"]
        raise ValueError(f"--coordinator {args.coordinator}: {lines[-1]}")
    index, count, devices = json.loads(answer.stdout.splitlines()[-1])
    if devices != "all":
        jax.config.update("jax_cuda_visible_devices", devices)
    return dataclasses.replace(args, shard=f"{index}/{count}")


def share(flag: str, text: str) -> tuple[int, int]:
    """Returns (i, n) of "i/n".

    Raises:
        ValueError: it is not of that form, or i is not one of 0 to n - 1.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or int(found[1]) >= int(found[2]):
        raise ValueError(f"{flag} is i/n with i from 0 to n - 1, got {text!r}")
    return int(found[1]), int(found[2])
