"""The parts of benchmark_accelerator.py. Each part runs in a process of its own.

A TPU serves one process at a time, and a peak of memory belongs to a process. The
script prints the rows of a table, each row as soon as it is measured.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import math
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
from fcjax.methods import CCFC, SCRIPTS
from fcjax.metrics import accuracy
from fcjax.parallel.exact import take_cores
from fcjax.parallel.mesh import platform
from fcjax.results.store import read_rows
from fcjax.settings import as_tuple
from fcjax.sweep.experiment import Experiment, prepare
from fcjax.sweep.fit import Fitted, compile_for
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
    data_dir: Path | None = None
    """Folder with the prepared MNIST."""
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
VECTORS = Images("pendigits", (10_000, 16), (400, 16))


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
BATCHES = 12_800
"""Number of images for ten batches per client, for the reason given for COLOUR."""


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
    *("stage", "workload", "compile s", "predicted: arguments + temporaries + code"),
    *("peak after compilation", "peak after rounds", "first round s", "s/round"),
    *("min to max", "rounds/s"),
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
    end = None
    for fit in compile_for(jax.local_devices(), batch, experiment):
        if left.isdisjoint(same_program := fit.name.split(", ")):
            continue
        left -= set(same_program)
        row = [
            f"{method} {fit.name}",
            workload,
            f"{fit.seconds:.1f}",
            predicted_memory(fit),
        ]
        row.append(readable(peak_memory()))
        with jax.default_matmul_precision(experiment.task.options.precision):
            timed = time_stage(program, grid, end, seconds=args.seconds / 6)
        if timed is None:
            return
        end, later_rounds = timed.end, timed.seconds[1:]
        rate = f"{1 / statistics.median(later_rounds):.3f}" if later_rounds else ""
        yield [*row, readable(peak_memory()), *spread(timed.seconds), rate]
        if not left:
            return


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


BATCHED_RUNS = [
    *("runs", "first round s", "s/round, all runs", "min to max"),
    *("s/round/run", "runs/hour", "peak"),
]


def time_batch(count: int, args: Args) -> Rows:
    """Yields one row: the time of pre-training of `count` runs in one call."""
    limit = 160 if args.dry_run else BATCHES
    seeds = map(str, range(count))
    flags = [*flags_of("ccfc", args), "--cluster-rounds", "0", "--limit", str(limit)]
    experiment = experiment_of("ccfc", [*flags, "--seed", *seeds], args)
    (batch,) = experiment.batches
    program, grid = engine.Program(batch.build), batch.grid(experiment.pool)
    with jax.default_matmul_precision(experiment.task.options.precision):
        timed = time_stage(program, grid, None, seconds=args.seconds / 4)
    assert timed is not None
    each = statistics.median(timed.seconds[1:]) / count
    # The time is extrapolated to the paper's rounds and number of images.
    (num_rounds,) = as_tuple(CCFC().pretrain_rounds)
    hours = num_rounds * each * GREY.shape[0] / limit / 3600
    cells = [*spread(timed.seconds), f"{each:.4f}", f"{1 / hours:.2f}"]
    yield [str(count), *cells, readable(peak_memory())]


BACKENDS = [
    *("backend", "stage", "first round s", "s/round", "min to max"),
    *("assignments different from loop", "after matching clusters"),
]


def backends(args: Args) -> Rows:
    """Yields one row per backend and stage. The backend `loop` is the reference."""
    flags = ["--dataset", str(images(VECTORS, args)), "--own-init", "False"]
    flags += ["--p", "0", "--seed", "0", "1", "2", "3"]
    experiment = experiment_of("ccfc", flags, args)
    (batch,) = experiment.batches
    grid, expected = batch.grid(experiment.pool), None
    for backend in ("loop", "shard_map", "pmap"):
        program, end, rows = engine.Program(batch.build, backend=backend), None, []
        with jax.default_matmul_precision(experiment.task.options.precision):
            # The clusters are comparable only after all rounds.
            while timed := time_stage(program, grid, end, seconds=math.inf):
                end = timed.end
                rows.append([backend, timed.name, *spread(timed.seconds)])
            assert end is not None
            clusters = np.asarray(program.assign(grid, end[1]))
        expected = clusters if expected is None else expected
        yield from rows[:-1]
        yield [
            *rows[-1],
            *count_differences(expected, clusters, np.asarray(grid.federations.mask)),
        ]


def count_differences(
    expected: np.ndarray, clusters: np.ndarray, masks: np.ndarray
) -> list[str]:
    """Returns how many assignments differ, before and after matching clusters."""
    runs = [
        (a[mask], b[mask]) for a, b, mask in zip(expected, clusters, masks, strict=True)
    ]
    unmatched = sum((a != b).sum() for a, b in runs)
    matched = sum(round(len(a) * (1 - accuracy(a, b))) for a, b in runs)
    return [f"{unmatched} of {masks.sum()}", str(matched)]


MNIST = [
    *("stage", "rounds", "s/round", "min to max", "last scored round", "NMI", "ACC"),
]


def mnist(args: Args) -> Rows:
    """Trains CCFC on MNIST, and yields the times and scores after each stage.

    The last stage ends early when the time limit is reached.
    """
    if args.data_dir is None:
        yield ["left out, because --data-dir is missing"]
        return
    flags = ["--dataset", "mnist", "--data-dir", str(args.data_dir), "--p", "0"]
    small = ["--limit", "400", "--preset", "smoke"]
    flags += small if args.dry_run else ["--preset", "paper"]
    flags += ["--evaluate-every", "10", "--no-plot", "--out", str(args.folder / "out")]
    errors = args.folder / "errors-of-ccfc"
    with errors.open("w") as file, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, EXPERIMENTS / "ccfc.py", *flags],
            timeout=args.seconds - SPARE,
            stdout=subprocess.DEVNULL,
            stderr=file,
        )
    history = read_rows(args.folder / "out" / "history.csv")
    if not history:
        raise RuntimeError(last_line(errors) or "no round finished in the time")
    for stage in dict.fromkeys(row["stage"] for row in history):
        rounds_of_stage = [row for row in history if row["stage"] == stage]
        scored_rounds = [row for row in rounds_of_stage if row["nmi"] is not None]
        row = [
            stage,
            str(len(rounds_of_stage)),
            *spread([row["seconds"] for row in rounds_of_stage])[1:],
        ]
        if scored_rounds:
            last = scored_rounds[-1]
            row += [f"{last['round']}", f"{last['nmi']:.4f}", f"{last['acc']:.4f}"]
        yield row


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
    "ccfc-cluster": partial(stages, "ccfc", ["--pretrain-rounds", "0"]),
    "torch": compare_with_torch,
    **{f"runs-{n}": partial(time_batch, n) for n in (1, 4, 16, 64)},
    "backends": backends,
    **{name: partial(stages, name, []) for name in RUNS if name != "ccfc"},
    "ccfc-mnist": mnist,
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
