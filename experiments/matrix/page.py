"""The pages and figures of the table of all methods."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.ledger import METHODS
from experiments.matrix.groups import DATA, LEVELS
from experiments.matrix.ranks import (
    Ranks,
    advice_of,
    blocks_of,
    largest_complete,
    non_dominated,
    ranks_of,
)
from fcjax.results import store
from fcjax.results.figures import curves
from fcjax.results.figures.images import data_uri
from fcjax.results.tables import half_width

NEAR = 0.03
"""A method is near the best one if its score is at most this much lower."""
MOST_NAMES = 8
"""Largest number of methods that a figure or a cell names."""
TITLES = {
    "digits": "digits, 1,797",
    "orl": "ORL faces, 400",
    "mnist-2000-16px": "MNIST, 2,000, 16 px",
    "mnist-2000": "MNIST, 2,000",
    "mnist-10000-16px": "MNIST, 10,000, 16 px",
    "mnist-10000": "MNIST, 10,000",
    "fashion-2000-16px": "Fashion-MNIST, 2,000, 16 px",
    "cifar10-2000": "CIFAR-10, 2,000",
    "pendigits": "Pendigits, 10,992",
}
RULES = {"p": "p", "alpha": "alpha", "classes_per_client": "classes per client"}
SCORES = ("nmi", "acc", "ari")
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)


class Table(NamedTuple):
    """The frame of one preset, and what is computed from it."""

    frame: pd.DataFrame
    """One row per run."""
    ranks: Ranks | None
    """The ranks over the cells without holes; None without two such methods."""
    advice: pd.DataFrame
    """The best methods of each partition, see `ranks.advice_of`."""


def table_of(frame: pd.DataFrame) -> Table:
    """Computes ranks and advice of a frame of one preset."""
    blocks = blocks_of(frame)
    complete = largest_complete(blocks)
    ranks = ranks_of(complete) if complete.shape[1] > 1 else None
    return Table(frame, ranks, advice_of(blocks))


def write(frame: pd.DataFrame, out: Path) -> None:
    """Writes the frame as CSV and Parquet, the figures, and both pages.

    Args:
        frame: the frame, see `frame.COLUMNS`.
        out: the folder of matrix.csv, matrix.parquet, matrix.html, matrix.md and the
            figures.
    """
    out.mkdir(parents=True, exist_ok=True)
    store.write_whole(out / "matrix.csv", frame.to_csv(index=False))
    frame.to_parquet(out / "matrix.parquet", index=False)
    tables = {
        str(preset): table_of(part)
        for preset, part in frame.groupby("preset", sort=False)
    }
    default = tables.get("default") or next(iter(tables.values()))
    draw(default, out)
    store.write_whole(out / "matrix.md", markdown(default))
    store.write_whole(out / "matrix.html", html(frame, tables, default, out))


# --- Figures


def draw(table: Table, out: Path) -> None:
    """Draws the ranks, and the scores and costs of each data set.

    Args:
        table: the table.
        out: the folder of the figures.
    """
    if table.ranks is not None:
        draw_ranks(table.ranks, out / "ranks.png")
    for dataset in datasets_of(table.frame):
        advice = table.advice.xs(dataset, level="dataset", drop_level=False)
        draw_scores(advice, dataset, out / f"{dataset}.png")
        draw_costs(table, dataset, out / f"{dataset}-costs.png")


def draw_ranks(ranks: Ranks, path: Path) -> None:
    """Draws mean ranks, with a line over methods that cannot be told apart."""
    count = len(ranks.mean)
    figure = Figure((8, 1 + 0.22 * count), layout="constrained")
    axes = figure.subplots()
    curves.plain_axes(axes)
    axes.barh(range(count), ranks.mean, color="0.85", height=0.5)
    for method, (place, rank) in zip(
        ranks.mean.index, enumerate(ranks.mean), strict=True
    ):
        axes.text(rank + 0.1, place, f"{rank:.1f}", va="center", fontsize=8)
        del method
    axes.set_yticks(range(count), [title_of(x) for x in ranks.mean.index])
    right = ranks.mean.max() + 1.5
    for number, (first, last) in enumerate(ranks.ties):
        at = right + 0.4 * number
        axes.plot([at, at], [first - 0.2, last + 0.2], color=curves.INK, linewidth=2)
    axes.invert_yaxis()
    axes.set_xlabel("mean rank by NMI (1: best); bars at the right join ties")
    names = ", ".join(short(x) for x in ranks.datasets)
    curves.write(figure, path, f"Ranks over {ranks.num_blocks} partitions of {names}")


def draw_scores(advice: pd.DataFrame, dataset: str, path: Path) -> None:
    """Draws the mean NMI of all methods against p, and names the best ones."""
    scores = pd.DataFrame(
        {
            level: means
            for (_, rule, level), means in advice["means"].items()
            if rule == "p"
        }
    )
    if scores.empty:
        return
    figure = Figure((8, 4), layout="constrained")
    axes = figure.subplots()
    curves.plain_axes(axes)
    best = scores.mean(axis=1).sort_values(ascending=False).index[:MOST_NAMES]
    for method, line in scores.iterrows():
        axes.plot(scores.columns, line, color="0.85", linewidth=1, zorder=1)
        del method
    for method, color in zip(best, curves.color_cycle(len(best)), strict=True):
        axes.plot(
            *(scores.columns, scores.loc[method]),
            **dict(color=tuple(color), marker="o", label=title_of(method)),
        )
    if "km" in scores.index:
        axes.plot(
            *(scores.columns, scores.loc["km"]),
            **dict(color=curves.INK, linestyle=":", label="k-means, one place"),
        )
    axes.set_xlabel(curves.in_words("p"))
    axes.set_ylabel("NMI, mean over seeds")
    axes.set_ylim(0, 1)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    curves.write(figure, path, f"{short(dataset)}: the best methods (others in grey)")


def draw_costs(table: Table, dataset: str, path: Path) -> None:
    """Draws NMI against time and traffic, and names the methods that none beats."""
    costs = costs_of(table, dataset)
    figure = Figure((9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    names = {"seconds": "seconds per run, without compilation", "mib": "MiB per run"}
    for axes, (name, label) in zip(panels, names.items(), strict=True):
        curves.plain_axes(axes)
        part = costs.dropna(subset=[name, "nmi"])
        part = part[part[name] > 0]
        axes.scatter(part[name], part["nmi"], color="0.75", s=14)
        axes.set_xscale("log")
        axes.set_xlabel(label)
        axes.set_ylim(0, 1)
        front = non_dominated(part[name].tolist(), part["nmi"].tolist())
        axes.plot(
            *(part[name].iloc[front], part["nmi"].iloc[front]),
            **dict(color=curves.INK, drawstyle="steps-post", marker="o", markersize=4),
        )
        for i in front:
            axes.annotate(
                title_of(part.index[i]),
                (part[name].iloc[i], part["nmi"].iloc[i]),
                **dict(xytext=(3, 4), textcoords="offset points", fontsize=8),
            )
    panels[0].set_ylabel("NMI, mean over partitions")
    curves.write(figure, path, f"{short(dataset)}: NMI against time and traffic")


def costs_of(table: Table, dataset: str) -> pd.DataFrame:
    """Returns mean NMI, seconds and traffic of each method on a data set.

    Args:
        table: the table.
        dataset: the name of the data set.

    Returns:
        One row per method that has runs for all partitions of the data set.
    """
    advice = table.advice.xs(dataset, level="dataset")
    scores = pd.DataFrame(list(advice["means"])).dropna(axis=1).mean()
    runs = table.frame[table.frame["dataset"] == dataset]
    means = runs.groupby("method")[["seconds", "bytes_up", "bytes_down"]].mean()
    mib = (means["bytes_up"] + means["bytes_down"]) / 2**20
    costs = pd.DataFrame({"nmi": scores, "seconds": means["seconds"], "mib": mib})
    return costs.dropna(subset=["nmi"])


# --- Pages


def title_of(method: str) -> str:
    """Returns the name of a method for readers."""
    return METHODS.get(method, method)


def short(dataset: str) -> str:
    """Returns the name of a data set for readers."""
    return TITLES.get(dataset, dataset)


def place_of(rule: str, level: float) -> str:
    """Returns a partition as text, such as "p = 0.25"."""
    if rule == "natural":
        return "natural clients"
    return f"{RULES.get(rule, rule)} = {level:g}"


def datasets_of(frame: pd.DataFrame) -> list[str]:
    """Returns the data sets of a frame, in the order of `DATA`."""
    return [name for name in DATA if name in set(frame["dataset"])]


def listed(methods: Sequence[str]) -> str:
    """Returns the names of some methods, and the number of the others."""
    names = ", ".join(map(title_of, methods[:MOST_NAMES]))
    more = len(methods) - MOST_NAMES
    return f"{names} and {more} others" if more > 0 else names


def advice_rows(table: Table) -> list[dict[str, str]]:
    """Returns one row per partition: the best method, its ties, and the cheapest.

    Args:
        table: the table.

    Returns:
        The cells by the title of their column.
    """
    rows = []
    for (dataset, rule, level), line in table.advice.iterrows():
        means: Mapping[str, float] = line["means"]
        seconds = (
            table.frame[table.frame["dataset"] == dataset]
            .groupby("method")["seconds"]
            .mean()
        )
        near = [m for m, score in means.items() if score >= line["score"] - NEAR]
        cheap = min(near, key=lambda m: seconds.get(m, np.inf))
        rows.append(
            {
                "data": short(dataset),
                "partition": place_of(rule, level),
                "best method": title_of(line["best"]),
                "its NMI": f"{line['score']:.3f}",
                "ties with the best": listed(line["tied"]),
                f"fastest within {NEAR}": f"{title_of(cheap)} ({means[cheap]:.3f})",
            }
        )
    return rows


def cells_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Summarizes the runs of each cell for the table in the browser.

    Args:
        frame: the frame.

    Returns:
        One item per cell: mean and half of the 95 % interval of each score, the number
        of seeds, the problems, and the costs.
    """
    by = ["preset", "dataset", "rule", "level", "method"]
    cells = []
    for place, runs in frame.groupby(by, sort=False):
        scores = {}
        for name in SCORES:
            values = runs[name].dropna().to_numpy(float)
            if len(values):
                half = half_width(values) if len(values) > 2 else np.nan
                scores[name] = [
                    round(float(values.mean()), 4),
                    None if np.isnan(half) else round(float(half), 4),
                ]
        problems = runs.loc[runs["status"] != "ok", "status"].value_counts()
        cells.append(
            {
                **dict(zip(by, place, strict=True)),
                "title": title_of(place[-1]),
                "place": place_of(place[2], place[3]),
                "scores": scores,
                "seeds": int(runs["nmi"].notna().sum()),
                "problems": [f"{n} x {text}" for text, n in problems.items()],
                "scope": "" if set(runs["scope"]) & {"global"} else "per client",
                "central": bool(runs["is_central"].iloc[0]),
                "seconds": number(runs["seconds"].mean()),
                "mib": number(runs[["bytes_up", "bytes_down"]].sum(axis=1).mean(), 20),
                "command": runs["command"].iloc[0],
            }
        )
    return cells


def number(value: float, exponent: int = 0) -> float | None:
    """Returns a value / 2 ** exponent with three digits; None for NaN."""
    return None if np.isnan(value) else float(f"{value / 2**exponent:.3g}")


def html(
    frame: pd.DataFrame, tables: Mapping[str, Table], default: Table, out: Path
) -> str:
    """Returns the page for the browser, one file without a network.

    Args:
        frame: the frame of all presets.
        tables: the tables by preset.
        default: the table of the advice and the figures.
        out: the folder of the figures.

    Returns:
        The page.
    """
    paths = {path.stem: data_uri(path.read_bytes()) for path in out.glob("*.png")}
    return TEMPLATES.get_template("page.html").render(
        cells=json.dumps(cells_of(frame)),
        presets=list(tables),
        datasets={name: short(name) for name in datasets_of(frame)},
        figures=paths,
        advice=advice_rows(default),
        ranks=default.ranks,
        title_of=title_of,
        facts=facts_of(frame),
    )


def facts_of(frame: pd.DataFrame) -> dict[str, str]:
    """Returns the origin of the runs: number, dates, devices, versions, commits."""

    def distinct(name: str) -> str:
        values = frame[name].dropna().astype(str).unique()
        return ", ".join(values[:4]) + (" and others" if len(values) > 4 else "")

    began = frame["began"].dropna().astype(str).str[:10]
    commits = frame["commit"].dropna().astype(str).str[:7].unique()
    return {
        "runs": f"{len(frame):,}",
        "dates": f"{began.min()} to {began.max()}" if len(began) else "",
        "devices": f"{distinct('devices')}, {distinct('processor')}",
        "JAX": distinct("jax"),
        "commits": ", ".join(commits[:8]),
    }


def markdown(table: Table) -> str:
    """Returns the generated part of docs/benchmarks/matrix.md.

    Args:
        table: the table.

    Returns:
        The text: the advice, the ranks, the figures, and the holes.
    """
    lines = ["## Choose a method by data and partition", ""]
    lines += lines_of(advice_rows(table))
    if table.ranks is not None:
        ranks = table.ranks
        lines += ["", "## Compare the ranks", ""]
        lines += [
            f"The ranks are of {len(ranks.mean)} methods on {ranks.num_blocks} "
            f"partitions of {', '.join(map(short, ranks.datasets))}. The p-value of the "
            f"Friedman test is {ranks.p_value:.2g}.",
            "",
            "![Mean ranks with bars over methods that tie](matrix/ranks.png)",
        ]
    lines += ["", "## See scores and costs per data set", ""]
    for dataset in datasets_of(table.frame):
        lines += [
            f"### {short(dataset)}",
            "",
            f"![NMI against p](matrix/{dataset}.png)",
            "",
            f"![NMI against time and traffic](matrix/{dataset}-costs.png)",
            "",
        ]
    lines += ["## Know the holes", "", *lines_of(holes_of(table.frame))]
    facts = facts_of(table.frame)
    lines += ["", *(f"- {name}: {text}" for name, text in facts.items()), ""]
    return "\n".join(lines)


def lines_of(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Returns a Markdown table."""
    if not rows:
        return ["There are none."]
    titles = list(rows[0])
    return [
        f"| {' | '.join(titles)} |",
        f"|{' --- |' * len(titles)}",
        *(f"| {' | '.join(row.values())} |" for row in rows),
    ]


def holes_of(frame: pd.DataFrame) -> list[dict[str, str]]:
    """Counts the runs of each data set that are finished, failed and missing.

    Args:
        frame: the frame.

    Returns:
        One row per data set, also for data sets without a run.
    """
    methods = set(frame["method"])
    central = set(frame.loc[frame["is_central"].astype(bool), "method"])
    rows = []
    for dataset in DATA:
        runs = frame[frame["dataset"] == dataset]
        rules = {"natural": (1.0,)} if DATA[dataset].is_natural else LEVELS
        places = sum(map(len, rules.values()))
        wanted = 5 * (len(central) + places * (len(methods) - len(central)))
        failed = runs["status"].str.startswith("failed").sum()
        bad = (runs["status"] != "ok").sum() - failed
        rows.append(
            {
                "data": short(dataset),
                "finished": f"{len(runs) - failed:,}",
                "collapsed or diverged": f"{bad:,}",
                "failed": f"{failed:,}",
                "missing": f"{max(0, wanted - len(runs)):,}",
            }
        )
    return rows
