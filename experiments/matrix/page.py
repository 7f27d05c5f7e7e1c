"""The pages and figures of the table of all methods."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments import ledger
from experiments.ledger import METHODS
from experiments.matrix.frame import Frame
from experiments.matrix.groups import DATA, LEVELS, SEEDS, programs
from experiments.matrix.ranks import (
    Ranks,
    advice_of,
    blocks_of,
    largest_complete,
    non_dominated,
    ranks_of,
)
from fcjax.data.dataset import counted
from fcjax.results import store
from fcjax.results.figures import curves
from fcjax.results.figures.images import data_uri
from fcjax.results.tables import half_width

NEAR = 0.03
"""A method is near the best one if its score is at most this much lower."""
MOST_NAMES = 7
"""Largest number of methods that a figure names. The eighth colour would be grey."""
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
SCORES = ("nmi", "acc", "ari")
BEGIN, END = "<!-- matrix: begin -->\n", "<!-- matrix: end -->\n"
"""`write_docs` replaces the text between these marks."""
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)


class Table(NamedTuple):
    """The frame of one preset, and what is computed from it."""

    frame: Frame
    """One row per run."""
    ranks: Ranks | None
    """The ranks over the cells without holes; None without two such methods."""
    advice: Frame
    """The best methods of each partition, see `ranks.advice_of`."""


def table_of(frame: Frame) -> Table:
    """Computes ranks and advice of a frame of one preset.

    Args:
        frame: the runs.

    Returns:
        The table. The advice is about federated methods only.
    """
    complete = largest_complete(blocks_of(frame))
    ranks = ranks_of(complete) if complete.shape[1] > 1 else None
    finished = blocks_of(frame, failed=np.nan)
    federated = finished.drop(columns=central_of(frame), errors="ignore")
    advice = advice_of(federated)
    order = {rule: number for number, rule in enumerate((*LEVELS, "natural"))}
    places = sorted(
        advice.index, key=lambda x: (list(DATA).index(x[0]), order[x[1]], x[2])
    )
    return Table(frame, ranks, advice.loc[places])


def central_of(frame: Frame) -> list[str]:
    """Returns the methods that need all examples in one place."""
    return list(frame.loc[frame["is_central"].astype(bool), "method"].unique())


def write(frame: Frame, out: Path) -> None:
    """Writes the frame as CSV and Parquet, the figures, and the page for the browser.

    Args:
        frame: the frame, see `frame.COLUMNS`.
        out: the folder of matrix.csv, matrix.parquet, matrix.html and the figures.
    """
    out.mkdir(parents=True, exist_ok=True)
    store.write_whole(out / "matrix.csv", frame.to_csv(index=False))
    frame.to_parquet(out / "matrix.parquet", index=False)
    draw(first_table(frame), out)
    store.write_whole(out / "matrix.html", html(frame, out))


def write_docs(frame: Frame, docs: Path) -> None:
    """Writes the documentation's matrix.md, and matrix.csv and the figures in matrix/.

    The build of the documentation makes the page for the browser from these files.

    Args:
        frame: the frame.
        docs: the folder of matrix.md, whose text between the marks is replaced.

    Raises:
        ValueError: a run has no commit, or uncommitted changes, so that nobody could
            repeat it.
    """
    trained = frame[frame["began"].notna()]
    unknown = trained["commit"].isna() | (trained["changed"].astype(str) == "True")
    if unknown.any():
        raise ValueError(
            f"{unknown.sum()} runs have no commit or uncommitted changes; run them "
            "again in a clean checkout"
        )
    text = (docs / "matrix.md").read_text()
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{docs / 'matrix.md'} lacks the marks {BEGIN} and {END}")
    store.write_whole(docs / "matrix" / "matrix.csv", frame.to_csv(index=False))
    table = first_table(frame)
    draw(table, docs / "matrix")
    page = f"{before}{BEGIN}\n{markdown(table)}{END}{after}"
    store.write_whole(docs / "matrix.md", page)


def first_table(frame: Frame) -> Table:
    """Returns the table of the default settings, or of the only preset of a frame."""
    default = frame[frame["preset"] == "default"]
    return table_of(default if len(default) else frame)


# --- Figures


def draw(table: Table, out: Path) -> None:
    """Draws the ranks, and the scores and costs of each data set.

    Args:
        table: the table.
        out: the folder of the figures.
    """
    if table.ranks is not None:
        draw_ranks(table, table.ranks, out / "ranks.png")
    runs = table.frame[
        (table.frame["rule"] == "p") & (table.frame["scope"] == "global")
    ]
    for dataset in runs["dataset"].unique():
        of_data = runs[runs["dataset"] == dataset]
        draw_scores(of_data, dataset, out / f"{dataset}.png")
        draw_costs(table, dataset, out / f"{dataset}-costs.png")


def draw_ranks(table: Table, ranks: Ranks, path: Path) -> None:
    """Draws mean ranks, with dark lines that join methods that tie.

    Args:
        table: the table.
        ranks: its ranks.
        path: the file to write.
    """
    count = len(ranks.mean)
    figure = Figure((8, 1 + 0.22 * count), layout="constrained")
    axes = figure.subplots()
    curves.plain_axes(axes)
    axes.barh(range(count), ranks.mean, color="0.85", height=0.5)
    for place, rank in enumerate(ranks.mean):
        axes.text(rank + 0.1, place, f"{rank:.1f}", va="center", fontsize=8)
    central = central_of(table.frame)
    titles = [
        f"{title_of(x)}{' (central)' if x in central else ''}" for x in ranks.mean.index
    ]
    axes.set_yticks(range(count), titles)
    right = ranks.mean.max() + 1.5
    for number, (first, last) in enumerate(ranks.ties):
        at = right + 0.4 * number
        axes.plot([at, at], [first - 0.2, last + 0.2], color=curves.INK, linewidth=2)
    axes.invert_yaxis()
    axes.set_xlabel("mean rank by NMI (1: best); dark lines join methods that tie")
    data_sets = counted(len(ranks.datasets), "data set")
    title = f"Ranks over {ranks.num_blocks} cases of {data_sets}"
    curves.write(figure, path, title)


def draw_scores(runs: Frame, dataset: str, path: Path) -> None:
    """Draws the NMI of all methods against p, and names some of them, see `named`.

    Args:
        runs: the runs of the data set with the rule p that are scored globally.
        dataset: the name of the data set.
        path: the file to write.
    """
    groups = runs.groupby(["method", "level"])["nmi"]
    means = groups.mean().unstack()
    halves = groups.agg(lambda x: half_width(x.to_numpy(float))).unstack()
    look: dict[str, Any]
    figure = Figure((8, 4), layout="constrained")
    axes = figure.subplots()
    curves.plain_axes(axes)
    central = means.index.intersection(runs.loc[runs["is_central"], "method"])
    for method in central:
        means.loc[method] = means.loc[method].dropna().iloc[0]
    axes.plot(means.columns, means.T, color="0.85", linewidth=1, zorder=1)
    order = means.drop(central).mean(axis=1).sort_values(ascending=False).index
    best = named(list(order))
    for method, color in zip(best, curves.color_cycle(len(best)), strict=True):
        middle, half, look = means.loc[method], halves.loc[method], {"color": color}
        axes.plot(means.columns, middle, marker="o", label=title_of(method), **look)
        band = middle - half, middle + half
        axes.fill_between(means.columns, *band, alpha=0.15, linewidth=0, **look)
    if "km" in means.index:
        look = {"color": curves.INK, "linestyle": ":", "label": "central k-means"}
        axes.plot(means.columns, means.loc["km"], **look)
    axes.set_xlabel(curves.in_words("p"))
    axes.set_ylabel("NMI, mean and 95 % interval")
    axes.set_ylim(0, 1)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    what = "methods and other programs" if outside(best) else "federated methods"
    title = f"{short(dataset)}: the best {what}"
    curves.write(figure, path, title)


def draw_costs(table: Table, dataset: str, path: Path) -> None:
    """Draws NMI against time and traffic.

    The figure names the methods that none beats, and all methods from outside fcjax.

    Args:
        table: the table. Methods that need all examples in one place are left out.
        dataset: the name of the data set.
        path: the file to write.
    """
    costs = costs_of(table, dataset)
    figure = Figure((9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    names = {
        "seconds": "median seconds per run, without compilation",
        "mib": "MiB per run",
    }
    for axes, (name, label) in zip(panels, names.items(), strict=True):
        curves.plain_axes(axes)
        part = costs.dropna(subset=[name, "nmi"])
        part = part[part[name] > 0]
        axes.scatter(part[name], part["nmi"], color="0.75", s=14)
        axes.set_xscale("log")
        axes.margins(x=0.2)
        axes.set_xlabel(label)
        # Above 1 there is room for names.
        axes.set_ylim(0, 1.25)
        axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
        if part.empty:
            continue
        front = non_dominated(part[name].tolist(), part["nmi"].tolist())
        axes.plot(
            *(part[name].iloc[front], part["nmi"].iloc[front]),
            **dict(color=curves.INK, drawstyle="steps-post", marker="o", markersize=4),
        )
        others = map(list(part.index).index, outside(part.index))
        # Oblique names, by turns above and below, so that neighbours do not overlap.
        in_order = sorted({*front, *others}, key=lambda i: part[name].iloc[i])
        for place, i in enumerate(in_order):
            up = place % 2 == 0
            axes.annotate(
                title_of(part.index[i]),
                (part[name].iloc[i], part["nmi"].iloc[i]),
                **dict(xytext=(0, 5 if up else -5), textcoords="offset points"),
                **dict(rotation=35 if up else -35, va="bottom" if up else "top"),
                fontsize=8,
            )
    panels[0].set_ylabel("NMI, mean over p")
    curves.write(figure, path, f"{short(dataset)}: NMI against time and traffic")


def named(methods: Sequence[str]) -> list[str]:
    """Returns the methods that a figure names.

    Args:
        methods: the names of the methods, the best method first.

    Returns:
        At most `MOST_NAMES` methods in the same order: those from outside fcjax, and
        the best of the others.
    """
    others = outside(methods)
    chosen = [*others, *(x for x in methods if x not in others)][:MOST_NAMES]
    return [x for x in methods if x in chosen]


def outside(methods: Sequence[str]) -> list[str]:
    """Returns the methods that are not part of fcjax."""
    known = programs()
    return [x for x in methods if x not in known]


def costs_of(table: Table, dataset: str) -> Frame:
    """Returns mean NMI, median seconds and mean traffic of each method with the rule p.

    Args:
        table: the table.
        dataset: the name of the data set.

    Returns:
        One row per method that has runs at all levels.
    """
    means = [
        line["means"]
        for (data, rule, _), line in table.advice.iterrows()
        if (data, rule) == (dataset, "p")
    ]
    scores = pd.DataFrame(means).dropna(axis=1).mean()
    frame = table.frame
    runs = frame[(frame["dataset"] == dataset) & (frame["rule"] == "p")]
    of_method = runs.groupby("method")
    seconds = of_method["seconds"].median()
    mib = of_method[["bytes_up", "bytes_down"]].mean().sum(axis=1, skipna=False) / 2**20
    costs = pd.DataFrame({"nmi": scores, "seconds": seconds, "mib": mib})
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
    if rule == "classes_per_client":
        return f"{level:g} classes per client"
    return f"{rule} = {level:g}"


def datasets_of(frame: Frame) -> list[str]:
    """Returns the data sets of a frame, in the order of `DATA`."""
    return [name for name in DATA if name in set(frame["dataset"])]


def listed(methods: Sequence[str]) -> str:
    """Returns the names of some methods, and the number of the others."""
    names = ", ".join(map(title_of, methods[:MOST_NAMES]))
    more = len(methods) - MOST_NAMES
    return f"{names} and {more} others" if more > 0 else names


def advice_rows(table: Table) -> list[dict[str, str]]:
    """Returns one row per partition: the best method, its ties, and the fastest.

    Args:
        table: the table.

    Returns:
        The cells by the title of their column.
    """
    seconds = table.frame.groupby(["dataset", "method"])["seconds"].median().dropna()
    kmeans = table.frame.groupby("dataset")["kmeans_nmi"].mean()
    rows = []
    for (dataset, rule, level), line in table.advice.iterrows():
        means: Mapping[str, float] = line["means"]
        near = [m for m, score in means.items() if score >= line["score"] - NEAR]
        near = [m for m in near if (dataset, m) in seconds.index]
        fastest = min(near, key=lambda m: seconds[dataset, m], default=None)
        ties = listed(line["tied"]) or "none"
        if line["seeds"] < 2:
            ties = "no test: the best has one seed"
        cells = {
            "data and partition": f"{short(dataset)}, {place_of(rule, level)}",
            "best method": f"{title_of(line['best'])} (of {len(means)})",
            "its NMI": f"{line['score']:.3f}",
            "ties with the best": ties,
            f"fastest within {NEAR}": "",
            "central k-means": f"{kmeans[dataset]:.3f}",
        }
        if fastest is not None:
            text = f"{title_of(fastest)} ({means[fastest]:.3f})"
            cells[f"fastest within {NEAR}"] = text
        rows.append(cells)
    return rows


def cells_of(frame: Frame) -> list[dict[str, Any]]:
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
                half = half_width(values)
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
                # The first run of a process includes the start of the process.
                "seconds": number(runs["seconds"].median()),
                "mib": number((runs["bytes_up"] + runs["bytes_down"]).mean(), 20),
                "command": str(runs["command"].iloc[0]),
            }
        )
    return cells


def number(value: float, exponent: int = 0) -> float | None:
    """Returns a value / 2 ** exponent with three digits; None for NaN."""
    return None if np.isnan(value) else float(f"{value / 2**exponent:.3g}")


def html(frame: Frame, figures: Path) -> str:
    """Returns the page for the browser, one file without a network.

    Args:
        frame: the frame of all presets.
        figures: the folder of the figures.

    Returns:
        The page.
    """
    table = first_table(frame)
    return TEMPLATES.get_template("page.html").render(
        cells=json.dumps(cells_of(frame), allow_nan=False),
        presets=list(frame["preset"].unique()),
        datasets={name: short(name) for name in datasets_of(frame)},
        figures={x.stem: data_uri(x.read_bytes()) for x in figures.glob("*.png")},
        advice=advice_rows(table),
        ranks=ranks_text(table),
        facts=facts_of(frame),
    )


def facts_of(frame: Frame) -> dict[str, str]:
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
        lines += ["", "## Compare the ranks", "", ranks_text(table), ""]
        lines += [
            "![Mean ranks with dark lines that join methods that tie](matrix/ranks.png)"
        ]
    lines += ["", "## Scores and costs per data set", ""]
    for dataset in datasets_of(table.frame):
        lines += [
            f"### {short(dataset)}",
            "",
            f"![NMI against p](matrix/{dataset}.png)",
            "",
            f"![NMI against time and traffic](matrix/{dataset}-costs.png)",
            "",
        ]
    lines += ["## Find missing and failed runs", "", *lines_of(holes_of(table.frame))]
    facts = facts_of(table.frame)
    lines += ["", *(f"- {name}: {text}" for name, text in facts.items()), ""]
    return "\n".join(lines)


def ranks_text(table: Table) -> str:
    """Says of which runs the ranks are, and how the methods were tested.

    Args:
        table: the table.

    Returns:
        The text; empty without ranks.
    """
    if (ranks := table.ranks) is None:
        return ""
    others = sorted(set(table.frame["method"]) - set(ranks.mean.index))
    text = (
        f"The ranks are of {len(ranks.mean)} methods in {ranks.num_blocks} cases. A "
        "case is one partition with one seed. The data sets are "
        f"{'; '.join(map(short, ranks.datasets))}. "
    )
    if others:
        text += f"Not ranked, because runs are missing: {listed(others)}. "
    names = [title_of(method) for method in ranks.mean.index]
    groups = [", ".join(names[first : last + 1]) for first, last in ranks.ties]
    if groups:
        text += f"These methods tie: {'; '.join(groups)}. "
    if not np.isnan(ranks.p_value):
        text += f"The p-value of the Friedman test is {ranks.p_value:.2g}. "
    return text + (
        "Methods are compared in pairs by Wilcoxon's signed-rank test with Holm's "
        "correction. The tests are about these data sets: seeds and partitions of one "
        "data set are not independent."
    )


def lines_of(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Returns a Markdown table of dicts with the same keys."""
    if not rows:
        return ["No partition has a score."]
    return ledger.table(list(rows[0]), [list(row.values()) for row in rows])


def holes_of(frame: Frame) -> list[dict[str, str]]:
    """Counts the runs of each data set that are finished, failed and missing.

    Args:
        frame: the frame.

    Returns:
        One row per data set, also for data sets without a run.
    """
    known = programs()
    methods = {*known, *frame["method"]}
    central = {name for name, program in known.items() if program.is_central}
    rows = []
    for dataset in DATA:
        runs = frame[frame["dataset"] == dataset]
        places = sum(map(len, DATA[dataset].rules.values()))
        wanted = len(SEEDS) * (len(central) + places * (len(methods) - len(central)))
        failed = runs["status"].str.startswith("failed").sum()
        bad = (runs["status"] != "ok").sum() - failed
        rows.append(
            {
                "data": short(dataset),
                "finished": f"{len(runs) - failed:,}",
                "finished, but collapsed or diverged": f"{bad:,}",
                "failed": f"{failed:,}",
                "missing": f"{max(0, wanted - len(runs)):,}",
            }
        )
    return rows
