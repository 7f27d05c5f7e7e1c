"""Rounds of a command, timed as a user runs it."""

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fcjax.results.store import read_rows

EXPERIMENTS = Path(__file__).parents[2]
NEVER = "1000000"
SHARED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""A GPU is shared with the process that measures."""


class Rounds(NamedTuple):
    """What the rounds of a command took."""

    seconds: dict[str, list[float]]
    """By stage, a round and run: of each round but the first one, which waits for its
    compilation, and the last one, which is scored."""
    compile_seconds: float
    peak_bytes: int
    """Of the whole process."""


def run(script: str, flags: Sequence[str]) -> Rounds:
    """Runs a script into a folder of its own, without figures, scored at the ends of
    stages alone.

    Args:
        script: its name, without the ending.
        flags: with three rounds or more of every stage that is timed.

    Raises:
        RuntimeError: it failed; what it printed.
    """
    with tempfile.TemporaryDirectory() as name:
        out = Path(name, "out")
        command = [sys.executable, EXPERIMENTS / f"{script}.py", *flags]
        command += ["--out", out, "--no-plot", "--evaluate-every", NEVER]
        with Path(name, "printed").open("w+") as printed:
            process = subprocess.Popen(
                command, stdout=printed, stderr=printed, env={**os.environ, **SHARED}
            )
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            printed.seek(0)
            if process.returncode:
                told = printed.read().strip()
                raise RuntimeError(f"{script}.py {' '.join(flags)}: {told}")
        (folder,) = (path.parent for path in out.rglob("results.csv"))
        history, results = (
            read_rows(folder / f"{x}.csv") for x in ("history", "results")
        )
    # Linux counts memory in KiB, macOS in bytes.
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Rounds(middle_rounds(history), float(results[0]["compile_seconds"]), peak)


def middle_rounds(history: Sequence[dict[str, str]]) -> dict[str, list[float]]:
    """Returns by stage the seconds of its rounds without the first and the last."""
    rounds: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in history:
        rounds[row["stage"]].append((int(row["round"]), float(row["seconds"])))
    found = {}
    for stage, each in rounds.items():
        first, last = min(each)[0], max(each)[0]
        found[stage] = [seconds for number, seconds in each if first < number < last]
    return {stage: each for stage, each in found.items() if each}
