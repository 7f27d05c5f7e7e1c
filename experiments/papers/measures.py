"""How a table's values are read off finished runs.

A measure takes the flags of a row and the results folder of its runs, and returns a
dict for each run, or for each part of a run that the table has a line for.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from experiments.papers.study import Measured
from fcjax import data, metrics
from fcjax.data.source import load_source
from fcjax.metrics import probes
from fcjax.results import exported
from fcjax.results.probing import test_rows
from fcjax.results.store import Folder
from fcjax.settings import as_tuple
from fcjax.sweep.plan import Task

NEIGHBORS = (3, 5, 7, 9, 100, 1000, 7000)
"""Those of Table 3 of the CCFC paper."""
LABEL_FRACTIONS = (0.01, 0.1)
"""Those of Table V of the FedMCC paper."""
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Embedding and labels of the training examples, and of the test examples."""


def scores(task: Task, results: Folder) -> list[Measured]:
    """Returns the rows of results.csv: the swept values and the scores."""
    return [
        {
            name: cell
            for name, cell in row.items()
            if name != "dataset" and not name.startswith("paper_")
        }
        for row in results.requested(results.rows)
    ]


def refined(task: Task, results: Folder) -> list[Measured]:
    """Returns the same of runs that refine clusters which they set out from: with the
    `improvement` of ACC over these in percent of theirs, and with `minutes`.
    """
    measured = scores(task, results)
    for row in measured:
        row["minutes"] = row["seconds"] / 60
        before = row.get("initial_acc")
        if before is not None:
            row["improvement"] = 100 * (row["acc"] - before) / before
    return measured


def categories(task: Task, results: Folder) -> list[Measured]:
    """Returns of each seed the run of the highest ACC, with the `categories` that it
    identified: its communities, if it has them, else its K where there were several.
    """
    best: dict[float, Measured] = {}
    for row in refined(task, results):
        known = best.setdefault(row["seed"], row)
        # A run that diverged has NaN.
        if row["acc"] > known["acc"] or np.isnan(known["acc"]):
            best[row["seed"]] = row
    name = "clusters" if len(as_tuple(task.split.clusters)) > 1 else "communities"
    return [{**row, "categories": row.get(name)} for row in best.values()]


def over_iterations(task: Task, results: Folder) -> list[Measured]:
    """Returns the rounds that end an iteration of each run, the start being iteration
    0. A run that ended keeps its last round up to the last iteration of any.
    """
    points = [_point(row, results) for row in results.requested(results.rows)]
    ends = []
    for rounds in results.history_of(points):
        # Of several rounds with as many refinements behind them the last one stays.
        ends.append({int(row["iteration"]): row for row in rounds})
    last = max((max(of_run) for of_run in ends), default=-1)
    measured = []
    for of_run in ends:
        for iteration in range(last + 1):
            row = of_run[max(i for i in of_run if i <= iteration)]
            measured.append({**row, "iteration": iteration})
    return measured


OF_ROWS = (scores, refined, categories, over_iterations)
"""What results.csv and history.csv are enough for, as a ledger keeps them."""


def neighbors(task: Task, results: Folder) -> list[Measured]:
    """Returns the accuracy of k neighbours' votes in the embedding, for every k that
    there are training examples for.
    """
    dataset, _ = load_source(task.source)
    measured = []
    for row in results.requested(results.rows):
        model = results.model(**_point(row, results))
        embedding = exported.predict(model, dataset.examples).embedding
        found = _votes(task, dataset, embedding, normalize=True)
        measured += [{"seed": float(row["seed"]), **line} for line in found]
    return measured


def neighbors_of_pixels(task: Task) -> list[Measured]:
    """Returns the same of the examples as they are, which no seed changes."""
    dataset, _ = load_source(task.source)
    pixels = dataset.examples.reshape(len(dataset.examples), -1).astype(np.float32)
    return _votes(task, dataset, pixels, normalize=False)


def linear_accuracy(task: Task, results: Folder) -> list[Measured]:
    """Returns the accuracy of a linear classifier of the embedding."""

    def accuracy(split: Split) -> float:
        return probes.linear_probe(jax.random.key(0), *split)

    return _probed(task, results, accuracy, [{}])


def few_labels_accuracy(task: Task, results: Folder) -> list[Measured]:
    """Returns the same from each share of the labels, the mean over five draws."""

    def accuracy(split: Split, label_fraction: float) -> float:
        drawn = probes.semi_supervised(
            jax.random.key(0), *split, label_fraction=label_fraction
        )
        return float(drawn.mean())

    shares = [{"label_fraction": share} for share in LABEL_FRACTIONS]
    return _probed(task, results, accuracy, shares)


def clients(task: Task, results: Folder) -> list[Measured]:
    """Returns the kappa of every client on its own examples, with a match of its own,
    the ratio of its largest to its smallest class, and the mean over clients; clients
    count from 1.
    """
    labels = load_source(task.source)[0].labels
    assert labels is not None
    measured = []
    for row in results.requested(results.rows):
        assigned = results.assignment_arrays(_point(row, results))
        holders, clusters = assigned["client"], assigned["cluster"]
        holds = holders == np.arange(holders.max() + 1)[:, None]
        truth, found = (np.broadcast_to(x, holds.shape) for x in (labels, clusters))
        values = {
            "imbalance": metrics.imbalance_ratio(truth, holds),
            "kappa": metrics.per_client(truth, found, holds)["kappa"],
        }
        for client in range(len(holds)):
            line = {name: float(value[client]) for name, value in values.items()}
            measured.append({"client": client + 1, **line})
        means = {name: float(value.mean()) for name, value in values.items()}
        measured.append({"client": "mean", **means})
    return measured


def against(
    rows: Sequence[Mapping[str, Any]],
    folder: Path,
    *,
    level: str,
    values: Sequence[str],
    apart: Sequence[str] = ("dataset", "method"),
    by: Sequence[str] = ("p",),
    log: bool | None = None,
) -> None:
    """Draws scores against a swept value.

    Args:
        rows: what `scores` returned, with `dataset` and `method`, and the paper's. The
            paper's scores at other levels would stretch the axis and are left out.
        folder: of the figures, whose names are their settings.
        level: the swept value.
        values: the scores; those that no row has are left out.
        apart: the columns of which each setting has a figure.
        by: the columns of which each setting has a line.
        log: as of `figures.against`.
    """
    from fcjax.results import figures  # matplotlib only where something is drawn

    runs: Any = pd.DataFrame(rows)
    is_measured = runs.reindex(columns=[*values]).notna().any(axis=1)
    for setting, own in runs.groupby([*apart], sort=False):
        measured = own[is_measured.loc[own.index]]
        if measured.empty:
            continue
        title = ", ".join(
            value if isinstance(value, str) else f"{name} {value:g}"
            for name, value in zip(apart, setting, strict=True)
        )
        name = re.sub(r"[^\w.]+", "-", title.lower())
        figures.against(
            own[own[level].isin(measured[level])],
            folder / f"{name}.png",
            level=level,
            by=by,
            values=[name for name in values if measured.get(name) is not None],
            log=log,
            title=title,
        )


def _probed(
    task: Task,
    results: Folder,
    accuracy: Callable[..., float],
    settings: Sequence[Mapping[str, float]],
) -> list[Measured]:
    """Returns `accuracy` of each run's embedding in each setting, NaN of one that
    diverged. The test examples are those of the test split where the runs saw the
    training split alone, else as in `neighbors`.
    """
    dataset, test = load_source(task.source)[0], None
    if task.source.split == "train":
        others = replace(task.source, split="test", limit=None, extra_split=None)
        test = load_source(others)[0]
    labels, measured = dataset.labels, []
    assert labels is not None  # tables are of data sets that have classes
    held_out = np.zeros(len(labels), bool) if test else test_rows(task.source, dataset)
    for row in results.requested(results.rows):
        model = results.model(**_point(row, results))
        z = exported.predict(model, dataset.examples).embedding
        test_z, test_labels = z[held_out], labels[held_out]
        if test:
            test_z, test_labels = exported.predict(model, test.examples)[0], test.labels
        split = (z[~held_out], labels[~held_out], test_z, test_labels)
        swept = _point(row, results)
        is_finite = np.isfinite(z).all() and np.isfinite(test_z).all()
        for setting in settings:
            value = accuracy(split, **setting) if is_finite else np.nan
            measured.append({**swept, **setting, "accuracy": value})
    return measured


def _votes(
    task: Task, dataset: data.Dataset, z: np.ndarray, *, normalize: bool
) -> list[Measured]:
    labels, is_test = dataset.labels, test_rows(task.source, dataset)
    assert labels is not None  # tables are of data sets that have classes
    num_neighbors = [k for k in NEIGHBORS if k <= (~is_test).sum()]
    if not np.isfinite(z).all():  # of a run that diverged
        return [{"k": k, "accuracy": np.nan} for k in num_neighbors]
    found = metrics.knn_accuracy(
        z[~is_test],
        labels[~is_test],
        z[is_test],
        labels[is_test],
        num_neighbors=num_neighbors,
        normalize=normalize,
    )
    return [{"k": k, "accuracy": accuracy} for k, accuracy in found.items()]


def _point(row: Mapping[str, Any], results: Folder) -> dict[str, float]:
    return {name: row[name] for name in results.names}
