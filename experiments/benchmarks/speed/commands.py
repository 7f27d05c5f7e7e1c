"""Times the rounds of a script as a user runs it."""

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
"""Environment variables that let the measuring process and a script share a GPU."""


class Rounds(NamedTuple):
    """Times and memory of a script."""

    seconds: dict[str, list[float]]
    """Seconds per round and run, by stage. The first round (compilation) and the last
    round (scores) are left out."""
    compile_seconds: float
    peak_bytes: int
    """Peak memory of the process."""
    history: Sequence[dict[str, str]]
    """The rows of history.csv."""


def run(script: str, flags: Sequence[str]) -> Rounds:
    """Runs a script into a temporary folder, with scores only at the end of each stage.

    Args:
        script: name of the script.
        flags: flags of the script, with at least three rounds per timed stage.

    Returns:
        Times and memory.

    Raises:
        RuntimeError: the script failed. The message is its output.
    """
    with tempfile.TemporaryDirectory() as name:
        out = Path(name, "out")
        command = [sys.executable, EXPERIMENTS / f"{script}.py", *flags]
        command += ["--out", out, "--no-plot", "--evaluate-every", NEVER]
        with Path(name, "printed").open("w+") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **SHARED}
            )
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            log.seek(0)
            if process.returncode:
                output = log.read().strip()
                raise RuntimeError(f"{script}.py {' '.join(flags)}: {output}")
        (folder,) = (path.parent for path in out.rglob("results.csv"))
        history, results = (
            read_rows(folder / f"{x}.csv") for x in ("history", "results")
        )
    # Linux counts memory in KiB, macOS in bytes.
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    compile_seconds = float(results[0]["compile_seconds"])
    return Rounds(middle_rounds(history), compile_seconds, peak, history)


def middle_rounds(history: Sequence[dict[str, str]]) -> dict[str, list[float]]:
    """Returns the seconds of each stage's rounds, without the first and the last."""
    rounds: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in history:
        rounds[row["stage"]].append((int(row["round"]), float(row["seconds"])))
    seconds_by_stage = {}
    for stage, each in rounds.items():
        first, last = min(each)[0], max(each)[0]
        seconds_by_stage[stage] = [
            seconds for number, seconds in each if first < number < last
        ]
    return {stage: each for stage, each in seconds_by_stage.items() if each}
