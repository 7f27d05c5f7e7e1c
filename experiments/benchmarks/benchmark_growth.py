"""Measures how seconds and memory of CCFC grow with the size of the problem.

    python experiments/benchmarks/benchmark_growth.py all --out runs/growth
    python experiments/benchmarks/benchmark_growth.py clients --values 10 100 --rounds 5

Every measurement runs ccfc.py on random vectors of 16 numbers, without compilation and
scores in the seconds. The table and the figure compare the growth with the ideal. With
--out, each study writes a CSV file and replaces the figure. Sizes of an earlier command
stay in the CSV file, so that several short commands can measure a long study.
"""

import dataclasses
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import pandas as pd
import tyro
from matplotlib.figure import Figure

from experiments.benchmarks.speed import commands
from fcjax.cli.errors import exit_with_error
from fcjax.results.figures import curves
from fcjax.results.tables import to_text
from fcjax.settings import shown

Name = Literal["clients", "examples", "runs", "clusters"]
NUM_FEATURES = 16
LLOYD_STEPS = 10
MEASURES = {"seconds": "seconds", "peak GiB": "peak memory, GiB"}
"""The measured columns of a table, and their axis labels."""


class Study(NamedTuple):
    """A size that grows."""

    title: str
    """The sizes that do not grow."""
    label: str
    """Name of the size, the first column of the table."""
    values: tuple[int, ...]
    """The sizes."""
    ideal: int
    """The ideal slope: the cost grows with this power of the size."""
    examples: Callable[[int], int]
    """Function (size) -> number of examples of all clients."""
    flags: Callable[[int], Sequence[str]]
    """Function (size) -> flags that depend on the size."""
    what: str = "a round of pre-training"
    """The timed part of a run."""


def _texts(*flags: str | int | Path) -> list[str]:
    """Returns command-line arguments as text."""
    return [str(x) for x in flags]


STUDIES: dict[str, Study] = {
    "clients": Study(
        "20,000 examples in all",
        "clients",
        (10, 30, 100, 300, 1000, 3000, 10_000),
        0,
        lambda count: 20_000,
        # A client has at least one example per cluster.
        lambda count: _texts("--clients", count, "--batch-size", 64, "--clusters", 2),
    ),
    "examples": Study(
        "10 clients",
        "examples",
        (1000, 10_000, 100_000, 1_000_000),
        1,
        lambda count: count,
        lambda count: _texts("--batch-size", 64),
    ),
    "runs": Study(
        "10 clients, 1000 examples",
        "runs in one batch",
        (1, 4, 16, 64, 256),
        1,
        lambda count: 1000,
        lambda count: _texts(
            *("--batch-size", 64, "--runs-per-call", count, "--seed", *range(count))
        ),
    ),
    "clusters": Study(
        "10 clients, 20,000 examples",
        "clusters",
        (10, 30, 100, 300, 1000),
        1,
        lambda count: 20_000,
        # The first run compiles the programs of the second one.
        lambda count: _texts(
            *("--batch-size", 64, "--clusters", count),
            *("--runs-per-call", 1, "--seed", 0, 1),
        ),
        f"seeding and {LLOYD_STEPS} Lloyd steps",
    ),
}


@dataclasses.dataclass(frozen=True)
class Args:
    """Measures seconds and memory of growing sizes."""

    studies: tyro.conf.Positional[tuple[Name | Literal["all"], ...]]
    """The quantity that grows."""
    values: Annotated[tuple[int, ...], shown("the sizes of the study")] = ()
    """Sizes to use."""
    rounds: int = 3
    """Number of timed rounds per measurement."""
    out: Path | None = None
    """Folder for the figure and the CSV files."""


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
    if args.rounds < 1:
        raise ValueError(f"--rounds must be at least 1, got {args.rounds}")
    if args.values and min(args.values) < 1:
        raise ValueError(f"--values must be at least 1, got {min(args.values)}")


def measure(name: str, value: int, *, rounds: int) -> dict[str, float]:
    """Measures one size of a study.

    Args:
        name: name of the study.
        value: the size.
        rounds: number of timed rounds.

    Returns:
        The row of the table: the size, the seconds, their minimum and maximum over the
        rounds, and the peak memory of the command.
    """
    study = STUDIES[name]
    with tempfile.TemporaryDirectory() as folder:
        random, count = np.random.default_rng(0), study.examples(value)
        examples = random.random((count, NUM_FEATURES), np.float32)
        path = Path(folder, "random.npz")
        np.savez(path, x=examples, y=np.arange(count) % 10)
        flags = _texts("--dataset", path, "--p", 0, "--cluster-rounds", 0)
        flags += _texts("--local-epochs", 1, "--latent-size", 16)
        # The first round compiles and the last round is scored, so neither is timed.
        flags += _texts("--pretrain-rounds", rounds + 2, *study.flags(value))
        run = commands.run("ccfc", flags)
    if name == "clusters":
        rows = [x for x in run.history if x["stage"] == "k-means" and x["seed"] == 1]
        first, *steps = (float(x["seconds"]) for x in rows)
        seconds = [first + (LLOYD_STEPS - 1) * statistics.median(steps)]
    else:
        runs = value if name == "runs" else 1
        seconds = [runs * each for each in run.seconds["pretrain"]]
    return {
        study.label: value,
        "seconds": round(statistics.median(seconds), 4),
        "min": round(min(seconds), 4),
        "max": round(max(seconds), 4),
        "peak GiB": round(run.peak_bytes / 2**30, 3),
    }


def slope(table: pd.DataFrame, column: str) -> float:
    """Returns the slope of a column against the size on logarithmic axes.

    Args:
        table: the table of a study. Its first column is the size.
        column: name of the column.

    Returns:
        The slope of the least-squares line; NaN for a single size.
    """
    if len(table) < 2:
        return float("nan")
    x, y = np.log(table.iloc[:, 0].astype(float)), np.log(table[column])
    return float(np.polyfit(x, y, 1)[0])


def summary(name: str, table: pd.DataFrame) -> list[dict[str, str | float]]:
    """Returns the smallest and the largest size of a study, and its slopes.

    Args:
        name: name of the study.
        table: its table.

    Returns:
        Two rows: one of the seconds, and one of the memory.
    """
    study = STUDIES[name]
    return [
        {
            "what grows": study.label,
            "measure": MEASURES[column],
            "from": f"{table[column].iloc[0]:.3g} at {table.iloc[0, 0]:,.0f}",
            "to": f"{table[column].iloc[-1]:.3g} at {table.iloc[-1, 0]:,.0f}",
            "slope": round(slope(table, column), 2),
            "ideal": study.ideal,
        }
        for column in MEASURES
    ]


def figure(tables: dict[str, pd.DataFrame]) -> Figure:
    """Draws seconds and memory of each study, with lines for the ideal growth.

    Args:
        tables: the table of each study by name.

    Returns:
        The figure: seconds above, memory below, one column per study.
    """
    chart = Figure(figsize=(3 * len(tables), 5.4), layout="constrained")
    grid = chart.subplots(2, len(tables), squeeze=False)
    for (name, table), column_axes in zip(tables.items(), grid.T, strict=True):
        study, x = STUDIES[name], table.iloc[:, 0].to_numpy(float)
        for (column, label), axes in zip(MEASURES.items(), column_axes, strict=True):
            y = table[column].to_numpy()
            ideal = y[0] * (x / x[0]) ** study.ideal
            text = f"ideal, slope {study.ideal}"
            axes.plot(x, ideal, color="0.8", lw=4, label=text)
            text = f"measured, slope {slope(table, column):.2f}"
            axes.plot(x, y, marker="o", label=text)
            axes.set(xscale="log", yscale="log", xlabel=study.label, ylabel=label)
            # A small range would otherwise fill the axis and look like growth.
            low, high = axes.get_ylim()
            axes.set_ylim(min(low, y.min() / 3), max(high, 6 * y.max()))
            axes.legend(frameon=False, fontsize=8, loc="upper left")
            curves.plain_axes(axes)
        title = f"{study.title}:\n{study.what}"
        column_axes[0].set_title(title, fontsize=9, color=curves.INK)
    return chart


def main(args: Args) -> None:
    """Measures the studies, prints their tables and draws the figure.

    Args:
        args: the command-line arguments.

    Raises:
        ValueError: an argument is wrong. The message is one line that names the flag
            and the accepted values.
    """
    check(args)
    tables: dict[str, pd.DataFrame] = {}
    for name in STUDIES:
        path = args.out / f"{name}.csv" if args.out else None
        table = pd.read_csv(path) if path and path.exists() else pd.DataFrame()
        if name in args.studies or "all" in args.studies:
            study = STUDIES[name]
            for value in args.values or study.values:
                row = measure(name, value, rounds=args.rounds)
                table = pd.concat([table, pd.DataFrame([row])])
                table = table.drop_duplicates(study.label, keep="last")
                table = table.sort_values(study.label)
                if path:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    table.to_csv(path, index=False)
            rows = table.to_dict("records")
            print(f"\n{study.title}: {study.what}\n\n{to_text(rows)}\n", flush=True)
        if len(table):
            tables[name] = table
    print(to_text([row for name, x in tables.items() for row in summary(name, x)]))
    if args.out:
        title = f"CCFC on random vectors of {NUM_FEATURES} numbers, seed 0"
        curves.write(figure(tables), args.out / "growth.png", title)
        print(f"open next: {args.out / 'growth.png'}")


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except (ValueError, RuntimeError) as error:
        exit_with_error(str(error))
