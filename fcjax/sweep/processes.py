"""Several processes, on one host or many, that run one program: `jax.distributed`.

Each sees the devices of all, and does what all do; the first alone writes and tells.
"""

import dataclasses
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import time
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
from fcjax.sweep import last_words
from fcjax.sweep.ending import name_of_command, told
from fcjax.sweep.flags import Common, flag_of

Args = TypeVar("Args", bound=Common)

PATIENCE = 20
"""Seconds without a sign of life after which a process counts as dead."""
HELLO = "fcjax: "


def join(args: Args) -> Args:
    """Joins the other processes, if there are several, before JAX is first used.

    Returns:
        The flags.

    Raises:
        ValueError: a flag of the processes is missing or does not fit the others, not
            all of them came, two came as one, or they differ in their flags, code or
            devices.
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
        call_roll(args.coordinator, index, count, timeout=args.coordinator_timeout)
        options = {
            "coordinator_address": args.coordinator,
            "num_processes": count,
            "process_id": index,
        }
    hush()
    # Its service would keep a SIGTERM to itself.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        **options,  # pyright: ignore[reportArgumentType]
        initialization_timeout=int(args.coordinator_timeout),
        heartbeat_timeout_seconds=PATIENCE,
    )
    if not leads():
        os.dup2(1, sys.stdout.fileno())
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


# Before JAX's service, which would wait without a word, and end who is one too many.


def call_roll(address: str, index: int, count: int, *, timeout: float) -> None:
    """Waits until all processes have come to the first.

    Args:
        address: HOST:PORT of the first.
        index, count: which process this is, of how many.
        timeout: seconds.

    Raises:
        ValueError: some did not come, two came as one, or with another number of them.
    """
    host, _, port = address.rpartition(":")
    if index == 0:
        problem = hear(int(port), count, timeout)
    else:
        problem = answer(host, int(port), index, count, timeout)
    if problem:
        raise ValueError(f"--coordinator {address}: {problem}")


def hear(port: int, count: int, timeout: float) -> str:
    """Hears all others out, and tells them what is wrong, nothing if all is well."""
    end, calls, problem = time.monotonic() + timeout, {}, ""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        listener = socket.create_server(
            ("", port), family=family, dualstack_ipv6=dual, backlog=count
        )
    except OSError as error:
        return os.strerror(error.errno or 0)
    with listener:
        while len(calls) < count - 1 and not problem:
            listener.settimeout(max(end - time.monotonic(), 0.01))
            try:
                call, _ = listener.accept()
                call.settimeout(5)
                said = call.makefile().readline().removeprefix(HELLO).strip()
                number, its_count = share("", said)
            except TimeoutError:
                missing = [str(i) for i in range(1, count) if i not in calls]
                problem = (
                    f"process {', '.join(missing)} of {count} did not come within "
                    f"{timeout:g} s"
                )
                break
            except (OSError, ValueError):  # a stranger
                continue
            if its_count != count:
                problem = f"process {said} came to process 0/{count}"
            elif number == 0 or number in calls:
                problem = f"two processes came as --process {said}"
                number = -1
            calls[number] = call
        for call in calls.values():
            with call:
                call.sendall(f"{HELLO}{problem}\n".encode())
    return problem


def answer(host: str, port: int, index: int, count: int, timeout: float) -> str:
    """Calls the first process, and returns what it says is wrong."""
    end = time.monotonic() + timeout
    while True:
        left = end - time.monotonic()
        if left <= 0:
            return f"process 0 did not come within {timeout:g} s"
        try:
            with socket.create_connection((host, port), timeout=left) as call:
                call.sendall(f"{HELLO}{index}/{count}\n".encode())
                call.settimeout(timeout + 5)  # the first may have begun to wait later
                said = call.makefile(errors="replace").readline()
            break
        except ConnectionResetError:
            said = ""
            break
        except OSError:  # it is not there yet
            time.sleep(0.2)
    if not said.startswith(HELLO):
        return f"another has come as {index}/{count}, or another program is there"
    return said.removeprefix(HELLO).strip()


def hush() -> None:
    """Leaves standard output to Python: gloo tells there whom it has met. And lets one
    line be all that the service says when it ends a process."""
    own_output, own_error = os.dup(1), os.dup(2)
    sys.stdout.flush()
    sys.stderr.flush()
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    sys.stdout = os.fdopen(own_output, "w", buffering=1)
    reader = subprocess.Popen(
        [sys.executable, "-S", last_words.__file__, name_of_command()],
        stdin=subprocess.PIPE,
        stdout=nothing,
        stderr=own_error,
        start_new_session=True,  # a Ctrl-C is not for it
    )
    assert reader.stdin is not None
    os.dup2(reader.stdin.fileno(), 2)
    reader.stdin.close()
    sys.stderr = os.fdopen(own_error, "w", buffering=1)


# What all say, and hear, once they have joined.


def leads() -> bool:
    """Returns whether this process writes and tells: the first one does."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def said_by_all(text: str) -> list[str]:
    """Returns what each process says, all of which ask at once."""
    if not jax.distributed.is_initialized():
        return [text]
    own = np.frombuffer(text.encode(), np.uint8)
    most = process_allgather(np.int32(len(own))).max()
    rows = process_allgather(np.pad(own, (0, most - len(own))))
    return [bytes(row).rstrip(b"\0").decode() for row in rows]


def said_by_first(text: str) -> str:
    """Returns what the first process says."""
    return said_by_all(text if leads() else "")[0]


def problem_of_any(problem: str) -> str:
    """Returns what is wrong in this process, or else in another: nothing if all is well
    in all of them."""
    said = said_by_all(problem)
    others = [f"process {index}: {text}" for index, text in enumerate(said) if text]
    return problem or (others or [""])[0]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps other commands out, while all processes of this one are in."""
    with filelock.FileLock(path) if leads() else nullcontext():
        said_by_first("in")
        yield
        said_by_all("done")


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
    first, *others = map(json.loads, said_by_all(json.dumps(own)))
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
    """Ends this process at once where it fails, so that the others need not wait for it
    long; one that fails because another did ends with the line that says so."""
    try:
        yield
    except BaseException as error:
        if not are_several():
            raise
        # JAX passes some errors of gloo on as another type; orbax waits for all.
        is_of_xla = isinstance(error, jax.errors.JaxRuntimeError | TimeoutError)
        if is_of_xla or "gloo" in str(error).lower():
            time.sleep(2 * PATIENCE)  # by then it has been ended
        if isinstance(error, OSError):
            print(f"{name_of_command()}: error: {told(error)}", file=sys.stderr)
        elif not isinstance(error, SystemExit):  # which has said its line
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)
