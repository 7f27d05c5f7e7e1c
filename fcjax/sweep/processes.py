"""Several processes, on one host or many, that run one program: `jax.distributed`.

Each process sees the devices of all processes. The first process alone writes and
prints.
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
"""Seconds without a heartbeat after which JAX ends the other processes."""


@dataclasses.dataclass(frozen=True)
class Processes:
    """For several processes, on one host or many, that run one program."""

    coordinator: Annotated[str | None, shown("a single process")] = None
    """HOST:PORT of the first of several processes that run one program, or auto on a
    cluster that JAX knows (docs/guides/clusters.md)."""
    process: Annotated[str | None, shown("what the cluster says")] = None
    """Which process this is, i/n, where --coordinator is HOST:PORT."""
    coordinator_timeout: float = 120.0
    """Seconds that a process waits for the others to come."""


def join(own: Processes, tasks: Sequence[Task]) -> None:
    """Joins the other processes, if there are several, before JAX is first used.

    Args:
        own: which process this is.
        tasks: what it is about to run.

    Raises:
        ValueError: a setting of the processes is missing or does not fit the others, or
            the processes differ in their settings, code or devices.
    """
    if not own.coordinator_timeout >= 0:
        raise ValueError("`coordinator_timeout` must be at least 0")
    if own.coordinator is None:
        if own.process is not None:
            raise ValueError("`process` goes with `coordinator` HOST:PORT")
        return
    options = tasks[0].options
    if options.shard is not None:
        raise ValueError(
            "`shard` goes without `coordinator`, which makes one program of all "
            "processes: give one of them"
        )
    if options.backend != "shard_map" or options.on is not None:
        raise ValueError(
            "`coordinator` goes with `backend` shard_map, and without `on`"
        )
    place: dict[str, str | int] = {}
    if own.coordinator != "auto":
        if not re.fullmatch(r".+:\d+", own.coordinator):
            raise ValueError(
                f"`coordinator` is auto or HOST:PORT, got {own.coordinator!r}"
            )
        if own.process is None:
            raise ValueError("`coordinator` HOST:PORT needs `process` i/n")
        index, count = share("process", own.process)
        place = {
            "coordinator_address": own.coordinator,
            "num_processes": count,
            "process_id": index,
        }
    # Its service would keep a SIGTERM to itself.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        **place,  # pyright: ignore[reportArgumentType]
        initialization_timeout=int(own.coordinator_timeout),
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
    )
    agree(tasks)


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
    its number; an empty string if no process has an error.
    """
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


def agree(tasks: Sequence[Task]) -> None:
    """Raises ValueError where processes differ in their settings, code or devices."""
    own = {
        "the version of fcjax": digest_of_code(),
        "the version of JAX": jax.__version__,
        "the number of devices": str(jax.local_device_count()),
        "`methods`": " ".join(task.method.full_name() for task in tasks),
    }
    for task in tasks:
        for part in (task.method, task.source, task.split, task.options):
            for field in dataclasses.fields(part):
                name = f"`{field.name}`"
                own[name] = f"{own.get(name, '')} {getattr(part, field.name)}".strip()
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
