"""Measures how the cost of a round of CCFC grows with the size of the problem.

    python experiments/benchmarks/benchmark_growth.py clients-each rows-each
    python experiments/benchmarks/benchmark_growth.py runs --values 1 4 16 --rounds 9
    python experiments/benchmarks/benchmark_growth.py all --out runs/growth

Every measurement runs ccfc.py on random examples and times rounds of pre-training,
without compilation and scores. The table compares the times with ideal growth. A study
repeats all its sizes --repeats times, so that all sizes have the same background load.
With --out, each study also writes a figure and a CSV file.
"""

import dataclasses
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import tyro
from matplotlib.figure import Figure

from experiments.benchmarks.speed import commands
from experiments.benchmarks.speed.case import products
from fcjax.cli.errors import exit_with_error
from fcjax.methods.ccfc import network_of
from fcjax.results.figures import curves
from fcjax.results.tables import to_text
from fcjax.settings import shown

Name = Literal[
    "clients", "clients-each", "rows-each", "runs", "images", "batch", "latent"
]
IMAGE, SMALL, ROW = (28, 28, 1), (8, 8, 1), (16,)


class Study(NamedTuple):
    """A size that grows, and the ideal growth of the cost."""

    title: str
    label: str
    """Name of the size."""
    values: tuple[int, ...]
    """The sizes."""
    epochs: int
    """Local epochs per round."""
    examples: Callable[[int], tuple[int, ...]]
    """Function (size) -> shape of the array of all examples."""
    flags: Callable[[int], Sequence[str]]
    """Function (size) -> flags that depend on the size."""
    cost: Callable[[int], float] = lambda value: 1.0
    """Function (size) -> ideal cost of a round, up to a constant factor."""
    runs: Callable[[int], int] = lambda value: 1
    """Function (size) -> number of runs in one batch (vmapped)."""


def operations(latent_size: int) -> int:
    """Returns the operations of a gradient of CCFC's network on one small image."""
    network = network_of({"backbone": "conv", "latent_size": latent_size}, SMALL)
    image = jnp.zeros((1, *SMALL))
    variables = network.init(jax.random.key(0), image)

    def loss(params):
        (z, p), _ = network.apply({**variables, "params": params}, image, train=True)
        return (z * p).sum()

    return products(jax.make_jaxpr(jax.grad(loss))(variables["params"]).jaxpr)


def _texts(*flags: str | int | Path) -> list[str]:
    """Returns command-line arguments as text."""
    return [str(x) for x in flags]


STUDIES: dict[str, Study] = {
    "clients": Study(
        "10,000 images of 8x8, all clients",
        "clients",
        (10, 30, 100, 300, 1000),
        4,
        lambda count: (10_000, *SMALL),
        lambda count: _texts("--clients", count, "--batch-size", 10_000 // count),
    ),
    "clients-each": Study(
        "128 images of 28x28 per client",
        "clients",
        (10, 30, 100),
        1,
        lambda count: (128 * count, *IMAGE),
        lambda count: _texts("--clients", count, "--batch-size", 128),
        cost=lambda count: count,
    ),
    "rows-each": Study(
        "128 vectors of 16 numbers per client, MLP",
        "clients",
        (10, 30, 100, 300, 1000),
        4,
        lambda count: (128 * count, *ROW),
        lambda count: _texts("--clients", count, "--batch-size", 128),
        cost=lambda count: count,
    ),
    "runs": Study(
        "10 clients x 180 images of 8x8",
        "runs in one batch",
        (1, 4, 16, 64),
        4,
        lambda count: (1800, *SMALL),
        lambda count: _texts("--runs-per-call", count, "--seed", *range(count)),
        cost=lambda count: count,
        runs=lambda count: count,
    ),
    "images": Study(
        "10 clients, images of 28x28, batch 128",
        "images",
        (10_000, 20_000, 40_000, 70_000),
        1,
        lambda count: (count, *IMAGE),
        lambda count: _texts("--batch-size", 128),
        cost=lambda count: count,
    ),
    "batch": Study(
        "10 clients x 512 images of 28x28",
        "examples in a batch",
        (16, 32, 64, 128, 256, 512),
        1,
        lambda size: (5120, *IMAGE),
        lambda size: _texts("--batch-size", size),
    ),
    "latent": Study(
        "10 clients x 180 images of 8x8",
        "size of the embedding",
        (32, 64, 128, 256, 512, 1024),
        4,
        lambda size: (1800, *SMALL),
        lambda size: _texts("--latent-size", size),
        cost=operations,
    ),
}


@dataclasses.dataclass(frozen=True)
class Args:
    """Times rounds of growing size."""

    studies: tyro.conf.Positional[tuple[Name | Literal["all"], ...]]
    """The quantity that grows: clients of a fixed data set, clients with equally many
    images (clients-each) or vectors (rows-each), runs, images, the batch size or the
    embedding size (latent)."""
    values: Annotated[tuple[int, ...], shown("the sizes of the study")] = ()
    """Sizes to use."""
    rounds: int = 5
    """Number of timed rounds per measurement."""
    repeats: int = 1
    """Number of measurements per size."""
    out: Path | None = None
    """Folder for the figures and CSV files."""


class Point(NamedTuple):
    """The measurements at one size."""

    seconds: list[float]
    """Seconds per round, for all runs together."""
    compile_seconds: float
    peak_bytes: int


def check(args: Args) -> None:
    """Checks the command-line arguments.

    Args:
        args: the command-line arguments.

    Raises:
        ValueError: an argument is wrong. The message is one line that names the flag
            and the accepted values.
    """
    if not args.studies:
        raise ValueError(
            f"STUDIES is missing: name one or more of {', '.join(STUDIES)}, or all"
        )
    for name in ("rounds", "repeats"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(args, name)}")
    if args.values and min(args.values) < 1:
        raise ValueError(f"--values must be at least 1, got {min(args.values)}")


def measure(study: Study, value: int, *, rounds: int) -> Point:
    """Measures one size of a study.

    Args:
        study: the study.
        value: the size.
        rounds: number of timed rounds.

    Returns:
        The measurements.
    """
    with tempfile.TemporaryDirectory() as folder:
        shape = study.examples(value)
        random = np.random.default_rng(0)
        examples = random.integers(0, 256, shape, np.uint8)
        if len(shape) == 2:
            examples = random.random(shape, np.float32)
        labels = np.arange(len(examples)) % 10
        path = Path(folder, "random.npz")
        np.savez(path, x=examples, y=labels)
        flags = _texts("--dataset", path, "--p", 0, "--cluster-rounds", 0)
        flags += _texts("--local-epochs", study.epochs)
        # The first round compiles and the last round is scored, so neither is timed.
        flags += _texts("--pretrain-rounds", rounds + 2, *study.flags(value))
        rounds_of_run = commands.run("ccfc", flags)
    seconds = [study.runs(value) * each for each in rounds_of_run.seconds["pretrain"]]
    return Point(seconds, rounds_of_run.compile_seconds, rounds_of_run.peak_bytes)


def over(name: str, args: Args) -> dict[int, Point]:
    """Measures each size of a study, and prints every measurement.

    Args:
        name: name of the study.
        args: the command-line arguments.

    Returns:
        The measurements by size.
    """
    study, points = STUDIES[name], {}
    for _ in range(args.repeats):
        for value in args.values or study.values:
            new = measure(study, value, rounds=args.rounds)
            median = statistics.median(new.seconds)
            print(f"# {name} {value}: {median:.3f} s per round", flush=True)
            old = points.get(value, Point([], new.compile_seconds, 0))
            points[value] = Point(
                old.seconds + new.seconds,
                old.compile_seconds,
                max(old.peak_bytes, new.peak_bytes),
            )
    return points


def rows_of(study: Study, points: dict[int, Point]) -> list[dict[str, float | str]]:
    """Returns the rows of a table, one row per size.

    The ideal time grows with `Study.cost`, from the measured time of the first size.

    Args:
        study: the study.
        points: the measurements by size.

    Returns:
        The rows.
    """
    first = min(points)
    rate = statistics.median(points[first].seconds) / study.cost(first)
    rows = []
    for value, point in points.items():
        median, ideal = statistics.median(point.seconds), rate * study.cost(value)
        rows.append(
            {
                study.label: value,
                "s/round": round(median, 4),
                "min": round(min(point.seconds), 4),
                "max": round(max(point.seconds), 4),
                "ideal": round(ideal, 4),
                "ratio to ideal": round(median / ideal, 2),
                "compile s": round(point.compile_seconds, 1),
                "peak GiB": round(point.peak_bytes / 2**30, 2),
            }
        )
    return rows


def figure(study: Study, rows: Sequence[dict]) -> Figure:
    """Draws seconds per round against the size, with a line for the ideal growth.

    Args:
        study: the study.
        rows: the rows of its table.

    Returns:
        The figure.
    """
    chart = Figure(figsize=(4.2, 3.2), layout="constrained")
    axes = chart.add_subplot()
    x = [row[study.label] for row in rows]
    y = np.array([[row[name] for name in ("min", "s/round", "max")] for row in rows])
    bars = np.abs(y[:, [0, 2]] - y[:, [1]]).T
    axes.plot(x, [row["ideal"] for row in rows], color="0.85", lw=4, label="ideal")
    axes.errorbar(x, y[:, 1], bars, marker="o", capsize=3, label="measured")
    axes.set(xscale="log", yscale="log", xlabel=study.label, ylabel="seconds per round")
    axes.set_xticks(x, [str(value) for value in x], minor=False)
    axes.set_xticks([], minor=True)
    # A small range of times would otherwise fill the axis and look like growth.
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, y.min() / 3), max(high, 3 * y.max()))
    axes.set_title(f"CCFC, {study.title}", fontsize=10, color=curves.INK)
    axes.legend(frameon=False, fontsize=9)
    curves.plain_axes(axes)
    return chart


def main(args: Args) -> None:
    """Measures the studies, prints their tables and draws their figures.

    Args:
        args: the command-line arguments.

    Raises:
        ValueError: an argument is wrong. The message is one line that names the flag
            and the accepted values.
    """
    check(args)
    names = get_args(Name) if "all" in args.studies else args.studies
    for name in names:
        study = STUDIES[name]
        rows = rows_of(study, over(name, args))
        print(f"\n{name}: {study.title}\n\n{to_text(rows)}\n", flush=True)
        if args.out:
            curves.write(figure(study, rows), args.out / f"{name}.png")
            pd.DataFrame(rows).to_csv(args.out / f"{name}.csv", index=False)


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except (ValueError, RuntimeError) as error:
        exit_with_error(str(error))
