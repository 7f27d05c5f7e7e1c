"""Several processes, on one or more hosts, that run one program by `jax.distributed`.

Each process sees the devices of all processes. Only process 0 writes files and prints.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import filelock
import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from fcjax.settings import shown
from fcjax.sweep.options import share
from fcjax.sweep.plan import Task

HEARTBEAT_TIMEOUT = 20
"""Seconds without a heartbeat of a process after which JAX ends the others."""


@dataclasses.dataclass(frozen=True)
class Processes:
    """Options for several processes, on one or more hosts, that run one program."""

    coordinator: Annotated[str | None, shown("a single process")] = None
    """Address HOST:PORT of process 0 if several processes run one program. auto asks a
    cluster that JAX supports (docs/guides/clusters.md)."""
    process: Annotated[str | None, shown("read from the cluster")] = None
    """Number of this process, i/n with i from 0. Required if --coordinator is
    HOST:PORT."""
    coordinator_timeout: float = 120.0
    """Seconds that a process waits for the other processes to connect, at least 0."""


def join(settings: Processes, tasks: Sequence[Task]) -> None:
    """Connects this process to the others, if there are any, before JAX is first used.

    Args:
        settings: the coordinator and the number of this process.
        tasks: the tasks that this process is about to run.

    Raises:
        ValueError: a setting of the processes is missing or contradicts another, or the
            processes differ in their settings, code or devices.
    """
    if not settings.coordinator_timeout >= 0:
        raise ValueError(
            "`coordinator_timeout` must be at least 0, got "
            f"{settings.coordinator_timeout}"
        )
    if settings.coordinator is None:
        if settings.process is not None:
            raise ValueError("`process` needs `coordinator` HOST:PORT")
        return
    options = tasks[0].options
    if options.shard is not None:
        raise ValueError(
            "give `shard` or `coordinator`, not both: `shard` splits a grid over "
            "independent commands, `coordinator` runs one program in all processes"
        )
    if options.backend != "shard_map" or options.on is not None:
        raise ValueError(
            "`coordinator` needs `backend` shard_map and cannot be combined with `on`"
        )
    address: dict[str, str | int] = {}
    if settings.coordinator != "auto":
        if not re.fullmatch(r".+:\d+", settings.coordinator):
            raise ValueError(
                f"`coordinator` must be auto or HOST:PORT, got {settings.coordinator!r}"
            )
        if settings.process is None:
            raise ValueError(
                "`coordinator` HOST:PORT needs `process` i/n, for example 0/2 "
                "for the first of two processes"
            )
        index, count = share("process", settings.process)
        address = {
            "coordinator_address": settings.coordinator,
            "num_processes": count,
            "process_id": index,
        }
    # JAX's preemption service would swallow SIGTERM.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        **address,  # pyright: ignore[reportArgumentType]
        initialization_timeout=int(settings.coordinator_timeout),
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
    )
    check_agreement(tasks)


def is_primary() -> bool:
    """Returns whether this is process 0, which alone writes files and prints."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def allgather_text(text: str) -> list[str]:
    """Gathers a text from every process. All processes must call this function.

    Args:
        text: the text of this process.

    Returns:
        The texts of all processes, in the order of their numbers.
    """
    if not jax.distributed.is_initialized():
        return [text]
    data = np.frombuffer(text.encode(), np.uint8)
    length = process_allgather(np.int32(len(data))).max()
    rows = process_allgather(np.pad(data, (0, length - len(data))))
    return [bytes(row).rstrip(b"\0").decode() for row in rows]


def broadcast_text(text: str) -> str:
    """Returns the text of process 0 on all processes.

    All processes must call this function.

    Args:
        text: the text. Only the text of process 0 is used.

    Returns:
        The text of process 0.
    """
    return allgather_text(text if is_primary() else "")[0]


def first_error(error: str) -> str:
    """Shares error messages between the processes, which must all call this.

    Args:
        error: the error message of this process; an empty string without an error.

    Returns:
        The error of this process, otherwise the first error of another process with its
        number; an empty string if no process has an error.
    """
    errors = allgather_text(error)
    remote = [f"process {index}: {text}" for index, text in enumerate(errors) if text]
    return error or (remote or [""])[0]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks a folder against other commands until all processes leave the block.

    Args:
        path: the lock file.

    Yields:
        None: while the folder is locked.
    """
    with filelock.FileLock(path) if is_primary() else nullcontext():
        # A broadcast and a gather are barriers: no process enters before process 0 has
        # the lock, and process 0 releases it after all others have left.
        broadcast_text("locked")
        yield
        allgather_text("done")


def check_agreement(tasks: Sequence[Task]) -> None:
    """Checks that all processes have the same settings, code and number of devices.

    Args:
        tasks: the tasks of this process.

    Raises:
        ValueError: two processes differ. The line names the setting and both values.
    """
    local = {
        "the version of fcjax": digest_of_code(),
        "the version of JAX": jax.__version__,
        "the number of devices": str(jax.local_device_count()),
        "`methods`": " ".join(task.method.full_name() for task in tasks),
    }
    for task in tasks:
        for part in (task.method, task.source, task.split, task.options, task.privacy):
            for field in dataclasses.fields(part):
                name = f"`{field.name}`"
                value = f"{local.get(name, '')} {getattr(part, field.name)}"
                local[name] = value.strip()
    first, *rest = map(json.loads, allgather_text(json.dumps(local)))
    for index, other in enumerate(rest, 1):
        for name in first | other:
            one, two = first.get(name), other.get(name)
            if one != two:
                raise ValueError(
                    f"{name} is {one} in process 0 and {two} in process {index}; all "
                    "processes need the same"
                )


def digest_of_code() -> str:
    """Returns a digest of all Python files of fcjax, 8 hexadecimal digits."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()[:8]
