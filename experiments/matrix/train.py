"""Trains the cells of the table, one command after another, within a budget of time."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from experiments.matrix.groups import Group, Program, flags_of
from fcjax.results import store

GRACE = 60
"""Seconds that a stopped command has to finish its checkpoint."""
OUT_OF_MEMORY = re.compile(
    r"out of memory|RESOURCE_EXHAUSTED|MemoryError|fit the memory", re.IGNORECASE
)
BUSY = re.compile(r"(in use|changed) by another command")
"""A text of the error of a command whose folder is in use."""


def train(
    groups: Sequence[Group],
    programs: Mapping[str, Program],
    *,
    out: Path,
    files: Mapping[str, str],
    data_dir: Path | None,
    seconds: float,
    known: Collection[tuple] = (),
) -> None:
    """Trains all groups that are not finished, until the time is over.

    A command that is stopped goes on from its checkpoint the next time. A command that
    fails leaves a file with the reason, and is not tried again.

    Args:
        groups: the groups in the order of training.
        programs: the programs by method.
        out: the folder of the table.
        files: the files of the user by data set.
        data_dir: the folder of the prepared TFDS data sets.
        seconds: the budget of time.
        known: cells (preset, dataset, rule, level, method, seed) that need no training.
    """
    deadline = time.monotonic() + seconds
    pending = [x for x in groups if not is_finished(x, out, known)]
    print(f"{len(groups) - len(pending)} of {len(groups)} commands are finished")
    if not seconds:
        print("--hours 0: nothing is trained")
        return
    for number, group in enumerate(pending, 1):
        left = deadline - time.monotonic()
        if left <= 0:
            print(
                f"time limit reached: {len(pending) - number + 1} commands left; run "
                "the same command again to continue"
            )
            return
        program = programs[group.method]
        arguments = flags_of(group, program, files=files)
        if data_dir is not None:
            arguments += ["--data-dir", str(data_dir)]
        # A command of several methods makes a folder for each of them.
        folder = group.folder(out)
        folder = folder.parent if "--methods" in program.arguments else folder
        arguments += ["--out", str(folder)]
        print(f"{number} of {len(pending)}: python {' '.join(arguments)}", flush=True)
        log = group.folder(out).with_name(f"{group.method}.log")
        began = time.monotonic()
        code = execute(arguments, log, left)
        if code is None:
            print("stopped: time limit reached; run the same command again to continue")
            return
        text = log.read_text(errors="replace")
        if code and BUSY.search(text):
            print("skipped: another command writes to this folder")
            continue
        if code or not is_finished(group, out, known):
            reason = reason_of(code, text) if code else "no results"
            store.write_whole(
                group.failure(out),
                json.dumps({"reason": reason, "command": arguments}, indent=2) + "\n",
            )
            print(f"failed: {reason}")
        else:
            print(f"finished after {time.monotonic() - began:.0f} s", flush=True)


def is_finished(group: Group, out: Path, known: Collection[tuple]) -> bool:
    """Returns whether a group has failed, or all of its cells have results.

    Args:
        group: the group.
        out: the folder of the table.
        known: cells that need no training, see `train`.

    Returns:
        True or False.
    """
    if group.failure(out).exists():
        return True
    rows = store.read_rows(group.folder(out) / "results.csv")
    finished = {(float(row[group.rule]), row["seed"]) for row in rows}
    place = group.preset, group.dataset, group.rule
    return all(
        (level, seed) in finished or (*place, level, group.method, seed) in known
        for level, seed in group.cells
    )


def execute(arguments: Sequence[str], log: Path, seconds: float) -> int | None:
    """Runs a command, and stops it if it takes too long.

    Args:
        arguments: the arguments of the Python interpreter.
        log: the file of the output.
        seconds: the largest time.

    Returns:
        The exit status; None if the command was stopped.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            stop(process)


def stop(process: subprocess.Popen) -> None:
    """Asks a process to end, and kills it if it does not."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def reason_of(code: int, text: str) -> str:
    r"""Returns why a command has failed, in one line.

    Args:
        code: the exit status; negative if a signal ended the command.
        text: the output.

    Returns:
        The line.

    Examples:
        >>> reason_of(-9, "round 3")
        'out of memory'
        >>> reason_of(1, "round 3\nfcjax ccfc: error: no labels")
        'no labels'
    """
    lines = text.strip().splitlines() or [f"exit status {code}"]
    errors = [line for line in lines if "error:" in line]
    last = (errors or lines)[-1]
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL) or OUT_OF_MEMORY.search(last):
        return "out of memory"
    return last.partition("error: ")[2] or last


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM end this process like Ctrl-C, so that its command is stopped."""

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
