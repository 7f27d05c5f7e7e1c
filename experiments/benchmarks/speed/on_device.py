"""What benchmark_accelerator.py measures, a part of it in a process of its own.

A TPU serves one process at a time, and a peak of memory is a process's. Prints rows of
a table, each as soon as it is known.
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
"""Timed rounds of a stage, after a first one."""
SPARE = 15
"""Seconds of a part in which a program that it ran is ended, and read."""


@dataclasses.dataclass(frozen=True)
class Args:
    """Measures a part."""

    part: tyro.conf.Positional[str]
    """Which."""
    seconds: float
    """That it may take."""
    folder: Path
    """Where random images lie, or are to lie."""
    data_dir: Path | None = None
    """Where MNIST is prepared."""
    dry_run: bool = False
    """Take small sizes."""


Rows = Iterator[list[str]]


class Images(NamedTuple):
    """Random ones, of ten classes."""

    name: str
    """Of the data set whose size they have."""
    shape: tuple[int, ...]
    small: tuple[int, ...]
    """In a dry run."""


GREY = Images("mnist", (70_000, 28, 28, 1), (400, 8, 8, 1))
# An epoch of ResNet-18 on all of CIFAR-10 would be all that there is time for: ten
# batches a client, which a round's time is but proportional to.
COLOUR = Images("cifar10", (6400, 32, 32, 3), (60, 8, 8, 3))
VECTORS = Images("pendigits", (10_000, 16), (400, 16))


class Run(NamedTuple):
    """A run of a method, as its paper has it."""

    images: Images
    flags: str
    small: str
    """Further flags, in a dry run."""


RUNS = {
    "ccfc": Run(  # without a first round of its own, which compiles as pre-training
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
"""Images of ten clients: ten batches each, for the reason of COLOUR."""


def images(chosen: Images, args: Args) -> Path:
    """Returns the file of random images, classes of which have a pattern each, so that
    what looks for clusters finds some.
    """
    path = args.folder / f"{chosen.name}.npz"
    if not path.exists():
        count, *shape = chosen.small if args.dry_run else chosen.shape
        random = np.random.default_rng(0)
        labels = np.arange(count) % 10
        patterns = random.integers(0, 128, (10, *shape), np.uint8)
        noise = random.integers(0, 128, (count, *shape), np.uint8)
        np.savez(path, x=patterns[labels] + noise, y=labels)
    return path


def flags_of(method: str, args: Args) -> list[str]:
    """Returns the flags of a method's script, but for its rounds."""
    run = RUNS[method]
    found = ["--dataset", str(images(run.images, args)), *run.flags.split()]
    return found + (run.small.split() if args.dry_run else [])


def experiment_of(method: str, flags: list[str], args: Args) -> Experiment:
    """Prepares runs of a method, of more rounds than are timed, unless flags have
    fewer.
    """
    script, names = rounds.COMMANDS[method]
    given = [x for flag in names for x in (flag, str(REPEATS + 2))]
    given += ["--preset", "smoke" if args.dry_run else "paper"]
    # A folder that is not there: nothing is reused, and nothing written either.
    given += ["--out", str(args.folder / "out")]
    script = SCRIPTS[script.replace("_", "-")]
    (task, *_) = arguments.read(script, [*given, *flags]).tasks
    return prepare(task)


class Enough(Exception):
    """A stage has been timed."""


class Timed(NamedTuple):
    """A stage."""

    name: str
    seconds: list[float]
    """Of its rounds, the first of which waits for programs."""
    end: tuple[engine.Position, State]
    """Where the next one begins."""


def time_stage(
    program: engine.Program,
    grid: Grid,
    start: tuple[engine.Position, State] | None,
    *,
    seconds: float,
) -> Timed | None:
    """Runs rounds of the stage that begins there until enough are timed, or they have
    taken so many seconds. None where no stage is left.
    """
    timed, found, clock = None, [], time.perf_counter()

    def on_round(round: engine.Round) -> None:
        nonlocal timed, clock
        jax.block_until_ready(round.state)
        now = time.perf_counter()
        found.append(now - clock)
        clock = now
        if round.is_last or len(found) > REPEATS or sum(found[1:]) > seconds:
            then = engine.Position(round.position.stage + 1, 0)
            timed = Timed(round.stage.name, found, (then, round.state))
            raise Enough

    with contextlib.suppress(Enough):
        program.run(grid, start=lambda _: start, on_round=on_round)
    return timed


def spread(seconds: list[float]) -> list[str]:
    """Returns the first, the median of the others, and their range."""
    first, *others = seconds
    if not others:
        return [f"{first:.2f}", "", ""]
    middle = statistics.median(others)
    return [f"{first:.2f}", f"{middle:.4f}", f"{min(others):.4f} to {max(others):.4f}"]


STAGES = [
    *("stage", "of", "compile s", "fit: arguments + temporaries + code"),
    *("peak, compiled", "peak, run", "first round s", "s a round", "min to max"),
    "rounds a s",
]


def stages(method: str, flags: list[str], args: Args) -> Rows:
    """Compiles each stage as `fit` does, and then runs it from the cache."""
    flags = [*flags_of(method, args), *flags]
    experiment = experiment_of(method, flags, args)
    (batch,) = experiment.batches
    first = {name: values[0] for name, values in batch.traced.items()}
    every = batch.build(first).stages
    left = {stage.name for stage in every if stage.num_rounds}
    height, width = experiment.dataset.examples.shape[1:3]
    own = " ".join(flags[2:])  # behind those of the images
    of = f"{batch.padded_size} images of {height}x{width} a client, `{own}`"
    program, grid = engine.Program(batch.build), batch.grid(experiment.pool)
    end = None
    for fit in compile_for(jax.local_devices(), batch, experiment):
        if left.isdisjoint(alike := fit.name.split(", ")):
            continue
        left -= set(alike)  # those of one program
        row = [f"{method} {fit.name}", of, f"{fit.seconds:.1f}", said(fit)]
        row.append(readable(peak_memory()))
        with jax.default_matmul_precision(experiment.task.options.precision):
            timed = time_stage(program, grid, end, seconds=args.seconds / 6)
        if timed is None:
            return
        end, others = timed.end, timed.seconds[1:]
        rate = f"{1 / statistics.median(others):.3f}" if others else ""
        yield [*row, readable(peak_memory()), *spread(timed.seconds), rate]
        if not left:
            return


def said(fit: Fitted) -> str:
    """Returns what `fit` says that a device needs."""
    parts = [
        fit.memory.argument_size_in_bytes,
        fit.memory.temp_size_in_bytes,
        fit.memory.generated_code_size_in_bytes,
    ]
    return f"{' + '.join(map(readable, parts))} = {readable(sum(parts))}"


def beside_torch(args: Args) -> Rows:
    """Times local training on both sides, or on ours alone."""
    device, missing = torch_device()
    sizes = Sizes(2, 32, 16) if args.dry_run else ccfc.SIZES
    against = None if missing else "torch"
    asked = benchmark.Args("ccfc", against=against, repeats=REPEATS)
    for precision in ("highest", "default"):
        if not missing:
            allow_tf32(precision == "default")
        with jax.default_matmul_precision(precision):
            (case,) = ccfc.cases(sizes, torch_device=device)
            row = benchmark.measure(case._replace(name=precision), asked)
        yield row.strip("| ").split(" | ")
    if missing:
        yield ["PyTorch", f"left out: {missing}"]


def torch_device() -> tuple[str, str]:
    """Returns what PyTorch calls the device that JAX has, and what is missing."""
    device = {"gpu": "cuda"}.get(platform(), platform())
    if importlib.util.find_spec("torch") is None:
        return device, "it is not installed"
    import torch  # pyright: ignore[reportMissingImports]

    has_device = device == "cpu" or (device == "cuda" and torch.cuda.is_available())
    return device, "" if has_device else f"it sees no {device}"


def allow_tf32(allowed: bool) -> None:
    """Has PyTorch round on a GPU as JAX by its precision."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = allowed
    torch.backends.cuda.matmul.allow_tf32 = allowed


SIDE_BY_SIDE = [
    *("runs", "first round s", "s a round of all", "min to max"),
    *("s a round and run", "runs an hour", "peak"),
]


def side_by_side(count: int, args: Args) -> Rows:
    """Times pre-training of so many runs in one call."""
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
    # Of the paper's rounds, on as many images as it has.
    (num_rounds,) = as_tuple(CCFC().pretrain_rounds)
    hours = num_rounds * each * GREY.shape[0] / limit / 3600
    told = [*spread(timed.seconds), f"{each:.4f}", f"{1 / hours:.2f}"]
    yield [str(count), *told, readable(peak_memory())]


BACKENDS = [
    *("backend", "stage", "first round s", "s a round", "min to max"),
    *("assignments unlike those of loop", "clusters matched"),
]


def backends(args: Args) -> Rows:
    """Times a small grid through each backend, the oracle first."""
    flags = ["--dataset", str(images(VECTORS, args)), "--own-init", "False"]
    flags += ["--p", "0", "--seed", "0", "1", "2", "3"]
    experiment = experiment_of("ccfc", flags, args)
    (batch,) = experiment.batches
    grid, expected = batch.grid(experiment.pool), None
    for backend in ("loop", "shard_map", "pmap"):
        program, end, rows = engine.Program(batch.build, backend=backend), None, []
        with jax.default_matmul_precision(experiment.task.options.precision):
            # All rounds, or they would not end alike.
            while timed := time_stage(program, grid, end, seconds=math.inf):
                end = timed.end
                rows.append([backend, timed.name, *spread(timed.seconds)])
            assert end is not None
            found = np.asarray(program.assign(grid, end[1]))
        expected = found if expected is None else expected
        yield from rows[:-1]
        yield [*rows[-1], *unlike(expected, found, np.asarray(grid.federations.mask))]


def unlike(expected: np.ndarray, found: np.ndarray, own: np.ndarray) -> list[str]:
    """Returns how many assignments differ, as they are and with clusters matched."""
    runs = [(a[mask], b[mask]) for a, b, mask in zip(expected, found, own, strict=True)]
    as_they_are = sum((a != b).sum() for a, b in runs)
    matched = sum(round(len(a) * (1 - accuracy(a, b))) for a, b in runs)
    return [f"{as_they_are} of {own.sum()}", str(matched)]


MNIST = [
    *("stage", "rounds", "s a round", "min to max", "scored after", "NMI", "ACC"),
]


def mnist(args: Args) -> Rows:
    """Runs CCFC's script until the time is over; says how far it came."""
    if args.data_dir is None:
        yield ["left out: no --data-dir"]
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
        raise RuntimeError(last_line(errors) or "no round in that time")
    for stage in dict.fromkeys(row["stage"] for row in history):
        found = [row for row in history if row["stage"] == stage]
        scored = [row for row in found if row["nmi"] is not None]
        row = [stage, str(len(found)), *spread([row["seconds"] for row in found])[1:]]
        if scored:
            last = scored[-1]
            row += [f"{last['round']}", f"{last['nmi']:.4f}", f"{last['acc']:.4f}"]
        yield row


def last_line(path: Path) -> str:
    """Returns what a program that failed says last."""
    return path.read_text().strip().rpartition("\n")[2]


def device(args: Args) -> Rows:
    """Says which devices there are."""
    if platform() == "cpu" and not args.dry_run:
        raise ValueError("JAX has no accelerator here: --dry-run, for a CPU, is small")
    memory = device_memory()
    each = "" if memory is None else f", each with {readable(memory)} for JAX"
    yield [f"{jax.device_count()} x {jax.devices()[0].device_kind}{each}"]


PARTS: dict[str, Callable[[Args], Rows]] = {
    "device": device,
    "ccfc-pretrain": partial(stages, "ccfc", ["--cluster-rounds", "0"]),
    "ccfc-cluster": partial(stages, "ccfc", ["--pretrain-rounds", "0"]),
    "torch": beside_torch,
    **{f"runs-{n}": partial(side_by_side, n) for n in (1, 4, 16, 64)},
    "backends": backends,
    **{name: partial(stages, name, []) for name in RUNS if name != "ccfc"},
    "ccfc-mnist": mnist,
}

if __name__ == "__main__":
    take_cores()
    asked = tyro.cli(Args)
    try:
        for cells in PARTS[asked.part](asked):
            print(f"| {' | '.join(cells)} |", flush=True)
    except Exception as error:
        first = str(error).partition("\n")[0].replace("|", "/")  # a row has one line
        print(f"| {asked.part} | {type(error).__name__}: {first} |")
