"""The parts of device_day.py. Each part runs in a process of its own.

A TPU serves one process at a time, and a peak of memory belongs to a process. The
script prints the rows of a table, each row as soon as it is measured.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import tyro

from experiments.benchmarks import benchmark
from experiments.benchmarks.speed import ccfc, rounds
from experiments.benchmarks.speed.case import Sizes
from experiments.benchmarks.speed.commands import EXPERIMENTS
from fcjax import engine
from fcjax.cli import arguments
from fcjax.data.federation import device_memory, peak_memory, readable
from fcjax.methods import SCRIPTS
from fcjax.parallel.exact import take_cores
from fcjax.parallel.mesh import platform
from fcjax.results.store import read_rows
from fcjax.sweep.costs import GPUS, TPUS, Chip
from fcjax.sweep.experiment import Experiment, prepare
from fcjax.sweep.fit import Fitted, compile_for, least_seconds
from fcjax.types import Grid, State

REPEATS = 5
"""Number of timed rounds per stage, after a first round."""
SPARE = 15
"""Seconds at the end of a part for stopping its subprocess and reading the results."""


@dataclasses.dataclass(frozen=True)
class Args:
    """Measures one part."""

    part: tyro.conf.Positional[str]
    """Name of the part."""
    seconds: float
    """Time limit of the part, in seconds."""
    folder: Path
    """Folder of the random images. Missing images are written."""
    runs: Path
    """Folder of the runs of the papers' rows, which stays."""
    data_dir: Path | None = None
    """Folder with the prepared TFDS data sets."""
    dry_run: bool = False
    """Take small sizes."""


Rows = Iterator[list[str]]


class Images(NamedTuple):
    """Shape of random images of ten classes."""

    name: str
    """Name of the data set with the same size."""
    shape: tuple[int, ...]
    """Shape of all images."""
    small: tuple[int, ...]
    """Shape of all images in a dry run."""


GREY = Images("mnist", (70_000, 28, 28, 1), (400, 8, 8, 1))
# One epoch of ResNet-18 on all of CIFAR-10 would take all the time. A client has ten
# batches, and the time of a round is proportional to the number of batches.
COLOUR = Images("cifar10", (6400, 32, 32, 3), (60, 8, 8, 3))


class Run(NamedTuple):
    """Data and flags of a run, as in the paper of its method."""

    images: Images
    flags: str
    small: str
    """Further flags in a dry run."""


RUNS = {
    "ccfc": Run(  # A first round of each client's own would compile one more program.
        *(GREY, "--p 0 --clients 10 --own-init False"),
        "--clients 4 --batch-size 32",
    ),
    "fdsc": Run(
        *(GREY, "--p 0 --clients 20 --client-size 500"),
        "--clients 4 --client-size 20",
    ),
    "sda-fdc": Run(GREY, "--p 0 --clients 10", "--clients 4 --gan-batch-size 32"),
    "fedmcc": Run(
        *(COLOUR, "--p 0 --clients 5 --local-epochs 1"),
        "--clients 2 --batch-size 16 --backbone conv",
    ),
    "fedcref": Run(
        *(GREY, "--overlap 0 --clients 25"), "--clients 4 --samples-per-class 10"
    ),
}


def images(kind: Images, args: Args) -> Path:
    """Writes random images, unless they exist, and returns their file.

    Each class has a pattern, so that a clustering can find the classes.

    Args:
        kind: the shape of the images.
        args: the command-line arguments.

    Returns:
        The file.
    """
    path = args.folder / f"{kind.name}.npz"
    if not path.exists():
        count, *shape = kind.small if args.dry_run else kind.shape
        random = np.random.default_rng(0)
        labels = np.arange(count) % 10
        patterns = random.integers(0, 128, (10, *shape), np.uint8)
        noise = random.integers(0, 128, (count, *shape), np.uint8)
        np.savez(path, x=patterns[labels] + noise, y=labels)
    return path


def flags_of(method: str, args: Args) -> list[str]:
    """Returns the flags of a method's script, without numbers of rounds."""
    run = RUNS[method]
    flags = ["--dataset", str(images(run.images, args)), *run.flags.split()]
    return flags + (run.small.split() if args.dry_run else [])


def experiment_of(method: str, flags: list[str], args: Args) -> Experiment:
    """Prepares the runs of a method, with more rounds than are timed.

    Args:
        method: name of the method.
        flags: flags of the script, which can set fewer rounds.
        args: the command-line arguments.

    Returns:
        The experiment.
    """
    script, round_flags = rounds.COMMANDS[method]
    all_flags = [x for flag in round_flags for x in (flag, str(REPEATS + 2))]
    all_flags += ["--preset", "smoke" if args.dry_run else "paper"]
    # The folder does not exist, so no finished run is reused. Nothing is written to it.
    all_flags += ["--out", str(args.folder / "out")]
    script = SCRIPTS[script.replace("_", "-")]
    (task, *_) = arguments.read(script, [*all_flags, *flags]).tasks
    return prepare(task)


class Enough(Exception):  # noqa: N818 (a signal, no error)
    """Raised when enough rounds of a stage are timed."""


class Timed(NamedTuple):
    """The times of a stage."""

    name: str
    """Name of the stage."""
    seconds: list[float]
    """Seconds of each round. The first round waits for its programs."""
    end: tuple[engine.Position, State]
    """Position and state at the start of the next stage."""


def time_stage(
    program: engine.Program,
    grid: Grid,
    start: tuple[engine.Position, State] | None,
    *,
    seconds: float,
) -> Timed | None:
    """Times rounds of a stage.

    Args:
        program: the compiled program.
        grid: the runs.
        start: position and state at the start of the stage. None starts the first
            stage.
        seconds: the timed rounds stop after this time.

    Returns:
        The times, or None if no stage is left.
    """
    timed, round_seconds, clock = None, [], time.perf_counter()

    def on_round(round: engine.Round) -> None:
        nonlocal timed, clock
        jax.block_until_ready(round.state)
        now = time.perf_counter()
        round_seconds.append(now - clock)
        clock = now
        if (
            round.is_last
            or len(round_seconds) > REPEATS
            or sum(round_seconds[1:]) > seconds
        ):
            then = engine.Position(round.position.stage + 1, 0)
            timed = Timed(round.stage.name, round_seconds, (then, round.state))
            raise Enough

    with contextlib.suppress(Enough):
        program.run(grid, start=lambda _: start, on_round=on_round)
    return timed


def spread(seconds: list[float]) -> list[str]:
    """Returns the first time, and the median and range of the later times, as text."""
    first, *later = seconds
    if not later:
        return [f"{first:.2f}", "", ""]
    median = statistics.median(later)
    return [f"{first:.2f}", f"{median:.4f}", f"{min(later):.4f} to {max(later):.4f}"]


STAGES = [
    *("stage", "workload", "compile s", "kernels", "GB/step", "predicted memory"),
    *("peak after compilation", "peak after rounds", "first round s", "s/round"),
    *("min to max", "bound s/round", "share of the bound"),
]


def stages(method: str, flags: list[str], args: Args) -> Rows:
    """Yields one row per stage: compiled as in `fcjax fit`, then run from the cache."""
    flags = [*flags_of(method, args), *flags]
    experiment = experiment_of(method, flags, args)
    (batch,) = experiment.batches
    first = {name: values[0] for name, values in batch.traced.items()}
    every = batch.build(first).stages
    left = {stage.name for stage in every if stage.num_rounds}
    height, width = experiment.dataset.examples.shape[1:3]
    method_flags = " ".join(flags[2:])  # The first two flags name the random images.
    workload = (
        f"{batch.padded_size} images of {height}x{width} per client, `{method_flags}`"
    )
    program, grid = engine.Program(batch.build), batch.grid(experiment.pool)
    end, chip = None, chip_here()
    for fit in compile_for(jax.local_devices(), batch, experiment):
        if left.isdisjoint(same_program := fit.name.split(", ")):
            continue
        left -= set(same_program)
        row = [
            f"{method} {fit.name}",
            workload,
            f"{fit.seconds:.1f}",
            str(fit.body.kernels.total()),
            f"{fit.body.num_bytes / 1e9:.2f}",
            predicted_memory(fit),
        ]
        row.append(readable(peak_memory()))
        with jax.default_matmul_precision(experiment.task.options.precision):
            timed = time_stage(program, grid, end, seconds=args.seconds / 6)
        if timed is None:
            return
        end, later_rounds = timed.end, timed.seconds[1:]
        bound = ["", ""]
        if chip and later_rounds:
            least = least_seconds(fit, chip)
            share = least / statistics.median(later_rounds)
            bound = [f"{least:.4f}", f"{share:.2f}"]
        yield [*row, readable(peak_memory()), *spread(timed.seconds), *bound]
        if not left:
            return


def chip_here() -> Chip | None:
    """Returns the peak rates of the first device, or None for an unknown device."""
    kind = jax.devices()[0].device_kind.lower()
    names = {"tpu v5 lite": "v5e", "tpu v5": "v5p", "tpu v6 lite": "v6e"}
    if kind in names:
        return TPUS[names[kind]]
    return next((chip for name, chip in GPUS.items() if name in kind), None)


def predicted_memory(fit: Fitted) -> str:
    """Returns the memory per device that `fcjax fit` predicts, as text."""
    parts = [
        fit.memory.argument_size_in_bytes,
        fit.memory.temp_size_in_bytes,
        fit.memory.generated_code_size_in_bytes,
    ]
    return f"{' + '.join(map(readable, parts))} = {readable(sum(parts))}"


def compare_with_torch(args: Args) -> Rows:
    """Yields one row per precision: local training in JAX and in PyTorch."""
    device, missing = torch_device()
    sizes = Sizes(2, 32, 16) if args.dry_run else ccfc.SIZES
    against = None if missing else "torch"
    benchmark_args = benchmark.Args("ccfc", against=against, repeats=REPEATS)
    for precision in ("highest", "default"):
        if not missing:
            allow_tf32(precision == "default")
        with jax.default_matmul_precision(precision):
            (case,) = ccfc.cases(sizes, torch_device=device)
            row = benchmark.measure(case._replace(name=precision), benchmark_args)
        yield row.strip("| ").split(" | ")
    if missing:
        yield ["PyTorch", f"left out, because {missing}"]


def torch_device() -> tuple[str, str]:
    """Returns PyTorch's name of JAX's device, and the reason if it cannot be used."""
    device = {"gpu": "cuda"}.get(platform(), platform())
    if importlib.util.find_spec("torch") is None:
        return device, "PyTorch is not installed"
    import torch  # pyright: ignore[reportMissingImports]

    has_device = device == "cpu" or (device == "cuda" and torch.cuda.is_available())
    return device, "" if has_device else f"PyTorch finds no {device} device"


def allow_tf32(allowed: bool) -> None:
    """Sets PyTorch's rounding on a GPU as JAX has it for this precision."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = allowed
    torch.backends.cuda.matmul.allow_tf32 = allowed


GRID = [
    *("data", "runs", "wall s", "s/run", "compile s", "one PyTorch run s", "ratio"),
]
GRID_FLAGS = {
    "digits": ["--dataset", "digits"],
    "mnist": ["--dataset", "mnist", "--limit", "10000", "--preset", "paper"],
}


def grid(name: str, args: Args) -> Rows:
    """Yields one row: 40 runs of CCFC in one command, compared with PyTorch on MNIST.

    The grid has 8 seeds and 5 values of p. On MNIST its clients, network and batches
    are those of the PyTorch loop, which trains epochs of pre-training. An epoch stands
    for a round of either stage. The digits have another network, so they have no ratio.
    """
    if name == "mnist" and args.data_dir is None:
        yield [name, "left out, because --data-dir is missing"]
        return
    out = args.folder / f"grid-{name}"
    flags = [*GRID_FLAGS[name], "--p", "0", "0.25", "0.5", "0.75", "1"]
    flags += ["--seed", "0:8", "--evaluate-every", "1000", "--no-plot"]
    if args.dry_run:
        flags += ["--preset", "smoke", "--limit", "400", "--seed", "0", "1"]
    start = time.perf_counter()
    finish("ccfc", [*flags, *data_flags(args), "--out", str(out)], args)
    wall = time.perf_counter() - start
    rows = read_rows(out / "results.csv")
    if not rows:
        raise RuntimeError(reason_of(args))
    compile_seconds = sum(row["compile_seconds"] for row in rows)
    cells = [name, str(len(rows)), f"{wall:.1f}", f"{wall / len(rows):.2f}"]
    cells.append(f"{compile_seconds:.1f}")
    device, missing = torch_device()
    if name == "digits" or missing:
        yield [*cells, missing and f"left out, because {missing}", ""]
        return
    allow_tf32(True)
    sizes = Sizes(2, 32, 16) if args.dry_run else ccfc.SIZES
    (case,) = ccfc.cases(sizes, torch_device=device)
    epoch = case.loop(1)
    epoch()  # The first epoch starts the device.
    epochs = statistics.median(benchmark.seconds(epoch) for _ in range(REPEATS))
    each = epochs * (rows[0]["pretrain_rounds"] + rows[0]["cluster_rounds"])
    yield [*cells, f"{each:.1f}", f"{len(rows) * each / wall:.1f}"]


PAPERS = [
    *("table", "finished runs", "rounds", "wall s", "NMI", "ACC", "results folder"),
]
WAITING = {
    "ccfc-mnist": "ccfc --dataset mnist --p 0.5 0.75 1 --seed 0 --runs-per-call 1",
    "ccfc-mnist-seeds": "ccfc --dataset mnist --p 0 --seed 1 2 --runs-per-call 1",
    "sda-fdc-mnist": "sda_fdc --methods sda-fdc --dataset mnist --p 0 0.5 1 --seed 0",
    "fdsc-mnist": "fdsc --dataset mnist --split train --clients 20 "
    "--classes-per-client 5 10 --seed 0",
    "fedmcc-cifar10": "fedmcc --dataset cifar10 --class-share 1 0.2 --seed 0",
}
"""The commands of the papers' rows that wait for a device, by name of the part. All
have `--preset paper`."""


def paper(name: str, args: Args) -> Rows:
    """Yields one row: the runs of a waiting command, as many as finish in the time.

    The results folder stays, and the command continues there when it is given again.
    `experiments/keep.py` adds finished runs to the ledger.
    """
    if args.data_dir is None:
        yield [name, "left out, because --data-dir is missing"]
        return
    script, *flags = WAITING[name].split()
    out = args.runs / name
    flags += ["--preset", "paper", "--evaluate-every", "10", "--no-plot"]
    if args.dry_run:
        flags += ["--preset", "smoke", "--limit", "400", "--seed", "0"]
    flags += ["--checkpoint-interval", "20", *data_flags(args), "--out", str(out)]
    start = time.perf_counter()
    finish(script, flags, args)
    results = [
        row for path in sorted(out.rglob("results.csv")) for row in read_rows(path)
    ]
    rounds_done = [
        row for path in sorted(out.rglob("history.csv")) for row in read_rows(path)
    ]
    if not rounds_done and not results:
        raise RuntimeError(reason_of(args))
    scores = [[row[name] for row in results] for name in ("nmi", "acc")]
    yield [
        name,
        str(len(results)),
        str(len(rounds_done)),
        f"{time.perf_counter() - start:.0f}",
        *(" ".join(f"{value:.3f}" for value in values) for values in scores),
        f"`{out}`",
    ]


def data_flags(args: Args) -> list[str]:
    """Returns the flag of the folder with data sets, if there is one."""
    return [] if args.data_dir is None else ["--data-dir", str(args.data_dir)]


def finish(script: str, flags: list[str], args: Args) -> None:
    """Runs a script of `experiments` until it ends or the time of the part is over.

    Args:
        script: name of the file, without its ending.
        flags: the flags of the command.
        args: the arguments of the part.
    """
    errors = args.folder / "errors-of-command"
    with errors.open("w") as file, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, EXPERIMENTS / f"{script}.py", *flags],
            timeout=max(1, args.seconds - SPARE),
            stdout=subprocess.DEVNULL,
            stderr=file,
        )


def reason_of(args: Args) -> str:
    """Returns the reason why a command of `finish` left no result."""
    return last_line(args.folder / "errors-of-command") or "no result in the time"


def last_line(path: Path) -> str:
    """Returns the last line of a program's output."""
    return path.read_text().strip().rpartition("\n")[2]


def device(args: Args) -> Rows:
    """Yields one row: the number and kind of the devices."""
    if platform() == "cpu" and not args.dry_run:
        raise ValueError("JAX finds no accelerator; --dry-run runs a test on the CPU")
    memory = device_memory()
    each = "" if memory is None else f", each with {readable(memory)} for JAX"
    yield [f"{jax.device_count()} x {jax.devices()[0].device_kind}{each}"]


PARTS: dict[str, Callable[[Args], Rows]] = {
    "device": device,
    "ccfc-pretrain": partial(stages, "ccfc", ["--cluster-rounds", "0"]),
    **{
        f"ccfc-pretrain-{name}": partial(
            stages, "ccfc", ["--cluster-rounds", "0", *flags]
        )
        for name, flags in {
            "highest": ["--precision", "highest"],
            "bfloat16": ["--precision", "bfloat16"],
            "no-autotuning": [],
        }.items()
    },
    "ccfc-cluster": partial(stages, "ccfc", ["--pretrain-rounds", "0"]),
    "torch": compare_with_torch,
    **{f"grid-{name}": partial(grid, name) for name in GRID_FLAGS},
    **{name: partial(paper, name) for name in WAITING},
    **{name: partial(stages, name, []) for name in RUNS if name != "ccfc"},
}
"""Function (arguments) -> rows of the table, by part."""

if __name__ == "__main__":
    take_cores()
    part_args = tyro.cli(Args)
    try:
        for cells in PARTS[part_args.part](part_args):
            print(f"| {' | '.join(cells)} |", flush=True)
    except Exception as error:
        # A row of a Markdown table has one line and no "|" in its cells.
        message = str(error).partition("\n")[0].replace("|", "/")
        print(f"| {part_args.part} | {type(error).__name__}: {message} |")
