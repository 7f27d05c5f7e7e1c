"""How the cost of a round of CCFC grows, beside what it ideally would.

    python experiments/benchmarks/benchmark_growth.py clients-each rows-each
    python experiments/benchmarks/benchmark_growth.py runs --values 1 4 16 --rounds 9
    python experiments/benchmarks/benchmark_growth.py all --out runs/growth

Every point is a command of ccfc.py on random examples: rounds of pre-training, without
their compilation and without scores in between. A study goes over its points as often
as --repeats says, so that all of them meet the same noise. It ends in a table, and with
--out in a figure and a file of numbers.
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
    """A size that grows, and what then should happen to a cost."""

    title: str
    label: str
    """Of the size."""
    values: tuple[int, ...]
    epochs: int
    """Of a client in a round."""
    examples: Callable[[int], tuple[int, ...]]
    """(size) -> the shape of all examples."""
    flags: Callable[[int], Sequence[str]]
    """(size) -> those that differ from one size to the next."""
    cost: Callable[[int], float] = lambda value: 1.0
    """(size) -> what a round should take, but for a factor."""
    runs: Callable[[int], int] = lambda value: 1
    """(size) -> how many runs go side by side."""


def operations(latent_size: int) -> int:
    """Returns those of a gradient of CCFC's network, of an image of SMALL."""
    network = network_of({"backbone": "conv", "latent_size": latent_size}, SMALL)
    image = jnp.zeros((1, *SMALL))
    variables = network.init(jax.random.key(0), image)

    def loss(params):
        (z, p), _ = network.apply({**variables, "params": params}, image, train=True)
        return (z * p).sum()

    return products(jax.make_jaxpr(jax.grad(loss))(variables["params"]).jaxpr)


def _texts(*flags: str | int | Path) -> list[str]:
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
        "128 images of 28x28 a client",
        "clients",
        (10, 30, 100),
        1,
        lambda count: (128 * count, *IMAGE),
        lambda count: _texts("--clients", count, "--batch-size", 128),
        cost=lambda count: count,
    ),
    "rows-each": Study(
        "128 rows of 16 a client, MLP",
        "clients",
        (10, 30, 100, 300, 1000),
        4,
        lambda count: (128 * count, *ROW),
        lambda count: _texts("--clients", count, "--batch-size", 128),
        cost=lambda count: count,
    ),
    "runs": Study(
        "10 clients x 180 images of 8x8",
        "runs, side by side",
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
    """What grows: clients that share what there is, clients (of images or of rows) that
    bring as much each, runs, images, the batch or the embedding."""
    values: Annotated[tuple[int, ...], shown("those of the study")] = ()
    """Sizes to take instead."""
    rounds: int = 5
    """Timed rounds of a command."""
    repeats: int = 1
    """Times that a study goes over its sizes."""
    out: Path | None = None
    """Folder for figures and numbers."""


class Point(NamedTuple):
    """What was measured at one size."""

    seconds: list[float]
    """Of rounds, of all runs together."""
    compile_seconds: float
    peak_bytes: int


def check(args: Args) -> None:
    """Raises ValueError, one line, where a flag is wrong."""
    if not args.studies:
        raise ValueError(f"which study? one of {', '.join(STUDIES)}, or all")
    for name in ("rounds", "repeats"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(args, name)}")
    if args.values and min(args.values) < 1:
        raise ValueError(f"--values must be at least 1, got {min(args.values)}")


def measure(study: Study, value: int, *, rounds: int) -> Point:
    """Runs one size of a study."""
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
        # The first round is not timed, nor is the last one, after which scores come.
        flags += _texts("--pretrain-rounds", rounds + 2, *study.flags(value))
        found = commands.run("ccfc", flags)
    seconds = [study.runs(value) * each for each in found.seconds["pretrain"]]
    return Point(seconds, found.compile_seconds, found.peak_bytes)


def over(name: str, args: Args) -> dict[int, Point]:
    """Returns what each size of a study took; prints every measurement as it comes."""
    study, points = STUDIES[name], {}
    for _ in range(args.repeats):
        for value in args.values or study.values:
            new = measure(study, value, rounds=args.rounds)
            print(
                f"# {name} {value}: {statistics.median(new.seconds):.3f} s", flush=True
            )
            old = points.get(value, Point([], new.compile_seconds, 0))
            points[value] = Point(
                old.seconds + new.seconds,
                old.compile_seconds,
                max(old.peak_bytes, new.peak_bytes),
            )
    return points


def rows_of(study: Study, points: dict[int, Point]) -> list[dict[str, float | str]]:
    """Returns a row a size; what it should take is by the first size."""
    first = min(points)
    rate = statistics.median(points[first].seconds) / study.cost(first)
    rows = []
    for value, point in points.items():
        middle, ideal = statistics.median(point.seconds), rate * study.cost(value)
        rows.append(
            {
                study.label: value,
                "s a round": round(middle, 4),
                "min": round(min(point.seconds), 4),
                "max": round(max(point.seconds), 4),
                "ideal": round(ideal, 4),
                "of ideal": round(middle / ideal, 2),
                "compile s": round(point.compile_seconds, 1),
                "peak GiB": round(point.peak_bytes / 2**30, 2),
            }
        )
    return rows


def figure(study: Study, rows: Sequence[dict]) -> Figure:
    """Returns seconds a round against the size, and the ideal line."""
    drawn = Figure(figsize=(4.2, 3.2), layout="constrained")
    axes = drawn.add_subplot()
    x = [row[study.label] for row in rows]
    y = np.array([[row[name] for name in ("min", "s a round", "max")] for row in rows])
    bars = np.abs(y[:, [0, 2]] - y[:, [1]]).T
    axes.plot(x, [row["ideal"] for row in rows], color="0.85", lw=4, label="ideal")
    axes.errorbar(x, y[:, 1], bars, marker="o", capsize=3, label="measured")
    axes.set(xscale="log", yscale="log", xlabel=study.label, ylabel="seconds a round")
    axes.set_xticks(x, [str(value) for value in x], minor=False)
    axes.set_xticks([], minor=True)
    # Even a flat line is to look flat.
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, y.min() / 3), max(high, 3 * y.max()))
    axes.set_title(study.title, fontsize=10, color=curves.INK)
    axes.legend(frameon=False, fontsize=9)
    curves.plain_axes(axes)
    return drawn


def main(args: Args) -> None:
    """Measures, prints and draws what was asked for."""
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
