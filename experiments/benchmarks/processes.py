"""One run of many clients in several processes beside one process with as many devices:
what each takes of memory, and how long a round.

python experiments/benchmarks/processes.py
python experiments/benchmarks/processes.py --clients 8 --turns 1

CCFC with an MLP on vectors that are drawn here, through experiments/ccfc.py as a user
runs it. Nothing else should run on the machine; turn by turn the two alternate.
"""

import dataclasses
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import tyro

from experiments.benchmarks.speed.commands import EXPERIMENTS, NEVER, middle_rounds
from fcjax.cli.errors import exit_on_error
from fcjax.data.federation import readable
from fcjax.results.store import read_rows


@dataclasses.dataclass(frozen=True)
class Args:
    """Runs many clients in several processes and in one."""

    clients: int = 1000
    """Each has 128 vectors of 64 numbers."""
    processes: int = 4
    devices: int = 2
    """Of each process; the one process has as many as all of them."""
    rounds: int = 5
    """Of each stage; the first and the last are not timed."""
    turns: int = 5
    """Times that both are run."""


class Measured(NamedTuple):
    """A run, of one process or several."""

    peaks: list[int]
    """Bytes of each process."""
    seconds: dict[str, float]
    """The median round of each stage."""
    examples: str
    """What is printed of where they lie."""


def main(args: Args) -> None:
    sides = {
        f"{args.processes} processes of {args.devices} devices": (
            args.processes,
            args.devices,
        ),
        f"1 process of {args.processes * args.devices}": (
            1,
            args.processes * args.devices,
        ),
    }
    found: dict[str, list[Measured]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as folder:
        data = draw(Path(folder), args.clients)
        for turn in range(args.turns):
            for name, (processes, devices) in sides.items():
                one = measure(data, processes, devices, args)
                found[name].append(one)
                told = ", ".join(f"{k} {x:.2f} s" for k, x in one.seconds.items())
                peaks = " ".join(map(readable, one.peaks))
                print(f"turn {turn + 1}, {name}: {peaks}; a round of {told}")
                print(*([one.examples] if one.examples else []), sep="\n", flush=True)
    several, alone = found.values()
    for stage in alone[0].seconds:
        ours, theirs = (
            median(x.seconds[stage] for x in side) for side in (several, alone)
        )
        ratios = sorted(
            x.seconds[stage] / y.seconds[stage]
            for x, y in zip(several, alone, strict=True)
        )
        print(
            f"{stage}: {ours:.2f} s beside {theirs:.2f} s, ratio {median(ratios):.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


def draw(folder: Path, num_clients: int) -> Path:
    """Writes the vectors of ten blobs."""
    rng = np.random.default_rng(0)
    labels = np.arange(128 * num_clients) % 10
    x = rng.normal(size=(10, 64))[labels] + rng.normal(size=(len(labels), 64))
    np.savez(folder / "rows.npz", x=x.astype(np.float32), y=labels)
    return folder / "rows.npz"


def measure(data: Path, num_processes: int, num_devices: int, args: Args) -> Measured:
    """Runs it into a folder of its own.

    Raises:
        RuntimeError: it failed; what it printed.
    """
    with tempfile.TemporaryDirectory() as name, socket.socket() as listener:
        listener.bind(("localhost", 0))
        port = listener.getsockname()[1]
        listener.close()
        out = Path(name, "out")
        command = [sys.executable, EXPERIMENTS / "ccfc.py", f"--dataset={data}"]
        command += [f"--clients={args.clients}", "--p=0", "--local-epochs=1"]
        command += [f"--pretrain-rounds={args.rounds}", "--batch-size=128"]
        command += [f"--cluster-rounds={args.rounds}", f"--out={out}", "--no-plot"]
        command += [f"--evaluate-every={NEVER}", f"--checkpoint-interval={NEVER}"]
        joined = [f"--coordinator=localhost:{port}"] if num_processes > 1 else []
        started, printed = [], [Path(name, str(i)) for i in range(num_processes)]
        for index, path in enumerate(printed):
            share = [f"--process={index}/{num_processes}"] if joined else []
            with path.open("w") as file:
                process = subprocess.Popen(
                    [*command, *joined, *share],
                    stdout=file,
                    stderr=file,
                    env={**os.environ, "JAX_NUM_CPU_DEVICES": str(num_devices)},
                )
            started.append(process)
        ended = [os.wait4(process.pid, 0) for process in started]
        for process, (_, status, _) in zip(started, ended, strict=True):
            process.returncode = os.waitstatus_to_exitcode(status)
        told = [path.read_text() for path in printed]
        if any(process.returncode for process in started):
            raise RuntimeError("\n".join(told))
        seconds = {
            stage: median(each)
            for stage, each in middle_rounds(read_rows(out / "history.csv")).items()
        }
    # Linux counts memory in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    peaks = [unit * usage.ru_maxrss for _, _, usage in ended]
    lines = [x for x in told[0].splitlines() if "of the examples in each" in x]
    return Measured(peaks, seconds, "".join(lines))


if __name__ == "__main__":
    with exit_on_error():
        main(tyro.cli(Args))
