r"""Times CCFC's pre-training in fcjax, Flower's simulation and pfl-research.

    python experiments/benchmarks/simulators.py --data-dir DIR --out speed.csv \
        --flower-python flower/bin/python --pfl-python pfl/bin/python
    python experiments/benchmarks/simulators.py --clients 10 100 1000 \
        --images-per-client 64 --image-size 8 --out growth.csv

Every side runs in its own process, one after another, on the same images, clients and
initial network (conv, latent size 256). All sides take the same number of local steps
per round, with the same batch size and the same loss. FedAvg weighs all clients by
size. All cores are used: two devices of JAX, two workers of Ray, or two processes.

Not equal: fcjax keeps the Adam moments of up to 100 clients between rounds, as the
authors of CCFC do, and the other sides start new optimizers. Crops, angles and blurs
have the same ranges, but PyTorch interpolates once where fcjax interpolates twice.
The orders of the examples differ. fcjax also measures the spread of the embedding.

The CSV file has one row per round. A second command with the same file adds rows, and
the table is of all rows. Memory is the sum over all processes of a side (PSS, in which
shared pages count once). It is sampled, so short peaks can be missed. The processor
seconds of all processes of a side hardly depend on other programs on the machine.
"""

import contextlib
import dataclasses
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import psutil  # tensorflow-datasets needs it, so it is installed.
import tyro

from experiments.benchmarks.speed.pretraining import Problem
from fcjax import data, nn
from fcjax.cli.errors import exit_with_error
from fcjax.parallel.exact import num_cores
from fcjax.results.tables import to_text

Side = Literal["fcjax", "flower", "pfl"]
NEEDS = {"fcjax": "fcjax", "flower": "flwr, ray, torch", "pfl": "pfl, torch"}
"""Packages of each side."""
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""Environment variables that keep Flower and Ray from sending usage statistics."""
LOAD = 0.01
"""Share of a core that samples of the memory take. The kernel counts all pages."""


@dataclasses.dataclass(frozen=True)
class Args:
    """Times pre-training in simulators."""

    out: Path
    """CSV file of all rounds."""
    data_dir: Path | None = None
    """Folder with the prepared MNIST. Without it the images are random."""
    sides: tuple[Side, ...] = get_args(Side)
    """Simulators to time."""
    flower_python: str = sys.executable
    """Python of an environment with flwr[simulation] and torch."""
    pfl_python: str = sys.executable
    """Python of an environment with pfl and torch."""
    clients: tuple[int, ...] = (10,)
    """Numbers of clients. All clients take part in every round."""
    images_per_client: int = 1000
    """Number of images per client."""
    image_size: int = 28
    """Height and width of random images."""
    p: float = 0.25
    """Heterogeneity of the clients of MNIST."""
    batch_size: int = 32
    """Number of images per local step."""
    rounds: int = 5
    """Number of timed rounds, after a first round that is reported apart."""
    repeats: int = 1
    """Number of processes per side. The sides alternate."""
    limit: float = 600
    """Seconds after which a side is stopped. Its finished rounds are kept."""


def check(args: Args) -> None:
    """Checks the command-line arguments.

    Args:
        args: the command-line arguments.

    Raises:
        ValueError: an argument is wrong. The message is one line that names the flag
            and the accepted values.
    """
    for name in ("images_per_client", "image_size", "batch_size", "rounds", "repeats"):
        if getattr(args, name) < 1:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} must be at least 1, got {getattr(args, name)}")
    if not args.clients or min(args.clients) < 1:
        raise ValueError(f"--clients takes numbers from 1 on, got {args.clients}")
    if args.out.is_dir() or not args.out.parent.is_dir():
        raise ValueError(f"--out must be a file in an existing folder, got {args.out}")
    for side in args.sides:
        found = subprocess.run(
            [python_of(side, args), "-c", f"import {NEEDS[side]}"], capture_output=True
        )
        if found.returncode:
            raise ValueError(
                f"--{side}-python {python_of(side, args)} cannot import {NEEDS[side]}"
            )


def python_of(side: Side, args: Args) -> str:
    """Returns the Python interpreter of a side."""
    pythons = {"flower": args.flower_python, "pfl": args.pfl_python}
    return pythons.get(side, sys.executable)


def problem_of(num_clients: int, args: Args) -> Problem:
    """Makes the images, the clients and the initial network.

    Args:
        num_clients: number of clients.
        args: the command-line arguments.

    Returns:
        The problem.
    """
    count = num_clients * args.images_per_client
    if args.data_dir:
        mnist = data.load("mnist", data_dir=args.data_dir)
        _, images, labels, *_ = data.stratified_subset(mnist, count)
        assert labels is not None
        clients = data.heterogeneous(labels, num_clients, args.p, seed=0).clients
    else:
        shape = (count, args.image_size, args.image_size, 1)
        images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        clients = tuple(np.arange(count).reshape(num_clients, -1))
    network = nn.simsiam(nn.conv_encoder())
    variables = network.init(jax.random.key(0), jnp.zeros((1, *images.shape[1:])))
    return Problem(images, clients, jax.device_get(variables), args.batch_size)


def measure(side: Side, problem: Problem, args: Args) -> pd.DataFrame:
    """Runs a side once.

    Args:
        side: the simulator.
        problem: data, initial network and settings.
        args: the command-line arguments.

    Returns:
        One row per round, with its number, seconds, loss, the peak memory of the side
        in GiB, and a note if the side was stopped.

    Raises:
        RuntimeError: the side failed. The message is the end of its output.
    """
    command = [python_of(side, args)]
    if side == "pfl":
        command += ["-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={num_cores()}"]
    command.append(str(Path(__file__).with_name(f"ccfc_in_{side}.py")))
    environment = os.environ | QUIET | {"PYTHONPATH": str(Path(__file__).parents[2])}
    # PyTorch's clients have one thread each. torch.distributed.run would set it, too.
    environment |= {} if side == "fcjax" else {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name:
        path, out, log = (Path(name, x) for x in ("problem.pickle", "out.csv", "log"))
        path.write_bytes(pickle.dumps(problem))
        out.touch()
        command += [str(path), str(out), str(args.rounds + 1)]
        start, peak, note, next_sample, cpu = time.time(), 0, "", 0.0, [0.0]
        with log.open("w") as file:
            process = psutil.Popen(command, stdout=file, stderr=file, env=environment)
            while process.poll() is None:
                if out.read_text().count("\n") >= len(cpu):
                    cpu.append(total(process, lambda x: sum(x.cpu_times()[:4])))
                if time.time() > next_sample:
                    before = time.thread_time()
                    peak = max(peak, total(process, lambda x: x.memory_full_info().pss))
                    next_sample = time.time() + (time.thread_time() - before) / LOAD
                time.sleep(0.05)
                if process.poll() is None and time.time() - start > args.limit:
                    note = f"stopped after {args.limit:.0f} s"
                    for each in [*process.children(recursive=True), process]:
                        with contextlib.suppress(psutil.NoSuchProcess):
                            each.kill()
        if process.returncode and not note:
            raise RuntimeError(f"{side} failed: {log.read_text()[-1500:]}")
        rows = pd.read_csv(out, names=["end", "loss"])
    if rows.empty:
        rows.loc[0] = [np.nan, np.nan]
    cpu = np.diff(cpu)[: len(rows)]
    return pd.DataFrame(
        {
            "clients": len(problem.clients),
            "side": side,
            "round": np.arange(1, len(rows) + 1),
            "seconds": np.diff([start, *rows["end"]]),
            "cpu_seconds": np.pad(
                cpu, (0, len(rows) - len(cpu)), constant_values=np.nan
            ),
            "loss": rows["loss"],
            "peak_gib": peak / 2**30,
            "note": note,
        }
    )


def total(process: psutil.Process, quantity: Callable[[Any], float]) -> float:
    """Sums a quantity over a process and its descendants.

    Args:
        process: the process.
        quantity: function (process) -> number.

    Returns:
        The sum over all processes that have not ended.
    """
    values = [0.0]
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                values.append(quantity(each))
    return sum(values)


def table(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Makes one row per number of clients and side.

    Args:
        rows: one row per round.

    Returns:
        The rows of the table. The seconds of a round are the median over all rounds but
        the first of each process.
    """
    lines = []
    for num_clients, side in dict.fromkeys(
        zip(rows["clients"], rows["side"], strict=True)
    ):
        each = rows[(rows["clients"] == num_clients) & (rows["side"] == side)]
        first = np.array(each[each["round"] == 1]["seconds"])
        later = np.array(each[each["round"] > 1]["seconds"])
        line = {"clients": num_clients, "side": side}
        line["start and first round, s"] = f"{np.median(first):.1f}"
        line["s per round"], line["min to max"] = "none", [*each["note"]][-1]
        if len(later):
            line["s per round"] = f"{np.median(later):.2f}"
            line["min to max"] = f"{min(later):.2f} to {max(later):.2f}"
        busy = np.array(each[each["round"] > 1]["cpu_seconds"], float)
        busy = busy[~np.isnan(busy)]
        line["core s per round"] = f"{np.median(busy):.2f}" if len(busy) else "none"
        line["peak GiB"] = f"{each['peak_gib'].max():.2f}"
        lines.append(line)
    return lines


def main(args: Args) -> None:
    """Runs all sides in turn, and prints a table.

    Args:
        args: the command-line arguments.
    """
    check(args)
    rows = pd.read_csv(args.out) if args.out.exists() else pd.DataFrame()
    for num_clients in args.clients:
        problem = problem_of(num_clients, args)
        for side in args.sides * args.repeats:
            new = measure(side, problem, args)
            print(new.to_string(index=False), flush=True)
            rows = pd.concat([rows, new])
            rows.to_csv(args.out, index=False)
    print(f"\n{to_text(table(rows))}\n\nrounds: {args.out}")


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except (ValueError, RuntimeError) as error:
        exit_with_error(str(error))
