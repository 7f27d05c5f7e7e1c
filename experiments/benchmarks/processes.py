"""Compares a run in several processes with a run in one process: memory and time.

python experiments/benchmarks/processes.py
python experiments/benchmarks/processes.py --clients 8 --turns 1

Both runs have the same total number of devices. The run is CCFC with an MLP on random
vectors, by experiments/ccfc.py. Use an idle machine. The two runs alternate, so that
both have the same background load.
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
    """Runs many clients in several processes and in one process."""

    clients: int = 1000
    """Number of clients. Each client has 128 vectors of 64 numbers."""
    processes: int = 4
    """Number of processes."""
    devices: int = 2
    """Number of devices per process. The single process has all devices."""
    rounds: int = 5
    """Rounds per stage. The first and the last round are not timed."""
    turns: int = 5
    """Number of repetitions of both runs."""


class Measurement(NamedTuple):
    """Memory and time of a run."""

    peaks: list[int]
    """Peak memory of each process, in bytes."""
    seconds: dict[str, float]
    """Median seconds per round, by stage."""
    examples: str
    """Printed line about the place of the examples in memory."""


def main(args: Args) -> None:
    """Runs both settings in turn and prints memory, times and their ratio.

    Args:
        args: the command-line arguments.
    """
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
    measurements: dict[str, list[Measurement]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as folder:
        data = draw(Path(folder), args.clients)
        for turn in range(args.turns):
            for name, (processes, devices) in sides.items():
                measurement = measure(data, processes, devices, args)
                measurements[name].append(measurement)
                times = ", ".join(
                    f"{k} {x:.2f} s" for k, x in measurement.seconds.items()
                )
                peaks = " ".join(map(readable, measurement.peaks))
                print(
                    f"turn {turn + 1}, {name}: peak memory {peaks}; per round {times}"
                )
                print(
                    *([measurement.examples] if measurement.examples else []),
                    sep="\n",
                    flush=True,
                )
    several, single = measurements.values()
    for stage in single[0].seconds:
        several_seconds, single_seconds = (
            median(x.seconds[stage] for x in side) for side in (several, single)
        )
        ratios = sorted(
            x.seconds[stage] / y.seconds[stage]
            for x, y in zip(several, single, strict=True)
        )
        print(
            f"{stage}: several processes {several_seconds:.2f} s, one process "
            f"{single_seconds:.2f} s per round, ratio {median(ratios):.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


def draw(folder: Path, num_clients: int) -> Path:
    """Writes random vectors of ten Gaussian blobs and returns their file."""
    rng = np.random.default_rng(0)
    labels = np.arange(128 * num_clients) % 10
    x = rng.normal(size=(10, 64))[labels] + rng.normal(size=(len(labels), 64))
    np.savez(folder / "rows.npz", x=x.astype(np.float32), y=labels)
    return folder / "rows.npz"


def measure(
    data: Path, num_processes: int, num_devices: int, args: Args
) -> Measurement:
    """Runs CCFC into a temporary folder.

    Args:
        data: file of the vectors.
        num_processes: number of processes.
        num_devices: number of devices per process.
        args: the command-line arguments.

    Returns:
        Memory and time of the run.

    Raises:
        RuntimeError: a process failed. The message is its output.
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
        coordinator_flags = (
            [f"--coordinator=localhost:{port}"] if num_processes > 1 else []
        )
        started, logs = [], [Path(name, str(i)) for i in range(num_processes)]
        for index, path in enumerate(logs):
            process_flags = (
                [f"--process={index}/{num_processes}"] if coordinator_flags else []
            )
            with path.open("w") as file:
                process = subprocess.Popen(
                    [*command, *coordinator_flags, *process_flags],
                    stdout=file,
                    stderr=file,
                    env={**os.environ, "JAX_NUM_CPU_DEVICES": str(num_devices)},
                )
            started.append(process)
        statuses = [os.wait4(process.pid, 0) for process in started]
        for process, (_, status, _) in zip(started, statuses, strict=True):
            process.returncode = os.waitstatus_to_exitcode(status)
        outputs = [path.read_text() for path in logs]
        if any(process.returncode for process in started):
            raise RuntimeError("\n".join(outputs))
        seconds = {
            stage: median(each)
            for stage, each in middle_rounds(read_rows(out / "history.csv")).items()
        }
    # Linux counts memory in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    peaks = [unit * usage.ru_maxrss for _, _, usage in statuses]
    lines = [x for x in outputs[0].splitlines() if "of the examples in each" in x]
    return Measurement(peaks, seconds, "".join(lines))


if __name__ == "__main__":
    with exit_on_error():
        main(tyro.cli(Args))
