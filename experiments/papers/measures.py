"""Measures: functions that compute the values of a table from finished runs.

A measure takes the options of a row and the results folder of its runs. It returns one
dict per run, or one dict per part of a run for tables with several rows per run.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from experiments.papers.study import Measurement
from fcjax import data, metrics
from fcjax.data.sources import load_source
from fcjax.metrics import probes
from fcjax.results import exported
from fcjax.results.probing import test_rows
from fcjax.results.store import Folder
from fcjax.settings import as_tuple
from fcjax.sweep.plan import Task

NEIGHBORS = (3, 5, 7, 9, 100, 1000, 7000)
"""Numbers of neighbours k in Table 3 of the CCFC paper."""
LABEL_FRACTIONS = (0.01, 0.1)
"""Shares of the labels in Table V of the FedMCC paper."""
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Training embedding, training labels, test embedding, test labels."""


def scores(task: Task, results: Folder) -> list[Measurement]:
    """Returns the swept values and the scores of each run.

    Args:
        task: the options of the runs. They are not used.
        results: the results folder of the runs.

    Returns:
        One row per requested run of results.csv, without `dataset` and the paper's
        scores.
    """
    return [
        {
            name: cell
            for name, cell in row.items()
            if name != "dataset" and not name.startswith("paper_")
        }
        for row in results.requested(results.rows)
    ]


def refinement_scores(task: Task, results: Folder) -> list[Measurement]:
    """Returns the scores of methods that refine an initial clustering.

    Args:
        task: the options of the runs.
        results: the results folder of the runs.

    Returns:
        The rows of `scores`, with two more columns. `minutes` is the training time.
        `improvement` is the change of ACC in percent of the initial ACC.
    """
    measurements = scores(task, results)
    for row in measurements:
        row["minutes"] = row["seconds"] / 60
        initial_acc = row.get("initial_acc")
        if initial_acc is not None:
            row["improvement"] = 100 * (row["acc"] - initial_acc) / initial_acc
    return measurements


def categories(task: Task, results: Folder) -> list[Measurement]:
    """Returns the run with the highest ACC of each seed, and its number of categories.

    Args:
        task: the options of the runs.
        results: the results folder of the runs.

    Returns:
        One row of `refinement_scores` per seed. `categories` is the number of clusters
        K if the grid has several K, else the number of communities, if there are any.
    """
    best: dict[float, Measurement] = {}
    for row in refinement_scores(task, results):
        current = best.setdefault(row["seed"], row)
        # A run that diverged has NaN.
        if row["acc"] > current["acc"] or np.isnan(current["acc"]):
            best[row["seed"]] = row
    name = "clusters" if len(as_tuple(task.split.clusters)) > 1 else "communities"
    return [{**row, "categories": row.get(name)} for row in best.values()]


def iteration_scores(task: Task, results: Folder) -> list[Measurement]:
    """Returns the scores of each run after each iteration. Iteration 0 is the start.

    Args:
        task: the options of the runs.
        results: the results folder of the runs.

    Returns:
        One row per run and iteration. A run that ended early repeats its last row up to
        the last iteration of all runs.
    """
    points = [_point(row, results) for row in results.requested(results.rows)]
    runs = []
    for rounds in results.history_of(points):
        # If several rounds belong to one iteration, the dict keeps the last round.
        runs.append({int(row["iteration"]): row for row in rounds})
    last = max((max(run) for run in runs), default=-1)
    measurements = []
    for run in runs:
        for iteration in range(last + 1):
            row = run[max(i for i in run if i <= iteration)]
            measurements.append({**row, "iteration": iteration})
    return measurements


NEED_ONLY_SCORES = (scores, refinement_scores, categories, iteration_scores)
"""The measures that need only results.csv and history.csv. A ledger keeps these
files."""


def knn_accuracy(task: Task, results: Folder) -> list[Measurement]:
    """Returns the k-nearest-neighbour accuracy of each run's embedding.

    Args:
        task: the options of the runs, which name the data set.
        results: the results folder of the runs, with their models.

    Returns:
        One row per run and k of `NEIGHBORS`: `seed`, `k`, `accuracy`. A k larger than
        the number of training examples is left out.
    """
    dataset, _ = load_source(task.source)
    measurements = []
    for row in results.requested(results.rows):
        model = results.model(**_point(row, results))
        embedding = exported.predict(model, dataset.examples).embedding
        rows = _votes(task, dataset, embedding, normalize=True)
        measurements += [{"seed": float(row["seed"]), **line} for line in rows]
    return measurements


def knn_accuracy_of_pixels(task: Task) -> list[Measurement]:
    """Returns the k-nearest-neighbour accuracy of the raw pixels, for any seed.

    Args:
        task: the options, which name the data set.

    Returns:
        One row per k of `NEIGHBORS`: `k` and `accuracy`, in [0, 1]. A k larger than the
        number of training examples is left out.
    """
    dataset, _ = load_source(task.source)
    pixels = dataset.examples.reshape(len(dataset.examples), -1).astype(np.float32)
    return _votes(task, dataset, pixels, normalize=False)


def linear_accuracy(task: Task, results: Folder) -> list[Measurement]:
    """Returns the accuracy of a linear classifier on each run's embedding.

    Args:
        task: the options of the runs, which name the data set.
        results: the results folder of the runs, with their models.

    Returns:
        One row per run: the swept values and `accuracy`, in [0, 1]. The accuracy of a
        run that diverged is NaN.
    """

    def accuracy(split: Split) -> float:
        return probes.linear_probe(jax.random.key(0), *split)

    return _probed(task, results, accuracy, [{}])


def few_labels_accuracy(task: Task, results: Folder) -> list[Measurement]:
    """Returns the accuracy of a linear classifier trained on a share of the labels.

    Args:
        task: the options of the runs, which name the data set.
        results: the results folder of the runs, with their models.

    Returns:
        One row per run and share of `LABEL_FRACTIONS`. The accuracy is a mean over five
        random subsets of the labels.
    """

    def accuracy(split: Split, label_fraction: float) -> float:
        accuracies = probes.semi_supervised(
            jax.random.key(0), *split, label_fraction=label_fraction
        )
        return float(accuracies.mean())

    shares = [{"label_fraction": share} for share in LABEL_FRACTIONS]
    return _probed(task, results, accuracy, shares)


def client_scores(task: Task, results: Folder) -> list[Measurement]:
    """Returns the kappa of every client on its own examples.

    Clusters are matched to classes separately for each client.

    Args:
        task: the options of the runs, which name the data set.
        results: the results folder of the runs, with their assignments.

    Returns:
        One row per client, counted from 1, and a row "mean" with the mean over clients.
        `imbalance` is the size of the client's largest class divided by its smallest.
    """
    labels = load_source(task.source)[0].labels
    assert labels is not None
    measurements = []
    for row in results.requested(results.rows):
        assignments = results.assignment_arrays(_point(row, results))
        client_of_example, clusters = assignments["client"], assignments["cluster"]
        is_of_client = (
            client_of_example == np.arange(client_of_example.max() + 1)[:, None]
        )
        truth, predicted = (
            np.broadcast_to(x, is_of_client.shape) for x in (labels, clusters)
        )
        values = {
            "imbalance": metrics.imbalance_ratio(truth, is_of_client),
            "kappa": metrics.per_client(truth, predicted, is_of_client)["kappa"],
        }
        for client in range(len(is_of_client)):
            line = {name: float(value[client]) for name, value in values.items()}
            measurements.append({"client": client + 1, **line})
        means = {name: float(value.mean()) for name, value in values.items()}
        measurements.append({"client": "mean", **means})
    return measurements


def draw_scores(
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
        rows: the rows of `scores` with `dataset` and `method`, and the paper's rows.
            The paper's scores at other swept values would stretch the axis. They are
            left out.
        folder: folder of the figures. A file name is the setting of its figure.
        level: the column of the swept value, on the horizontal axis.
        values: the columns of the scores. A score that no row has is left out.
        apart: the columns that get one figure per value.
        by: the columns that get one line per value.
        log: whether the horizontal axis is logarithmic, as for `figures.against`.
    """
    # The import of matplotlib is slow, so only drawing pays for it.
    from fcjax.results import figures

    runs: Any = pd.DataFrame(rows)
    is_measured = runs.reindex(columns=[*values]).notna().any(axis=1)
    for setting, group in runs.groupby([*apart], sort=False):
        measured_rows = group[is_measured.loc[group.index]]
        if measured_rows.empty:
            continue
        title = ", ".join(
            value if isinstance(value, str) else f"{name} {value:g}"
            for name, value in zip(apart, setting, strict=True)
        )
        name = re.sub(r"[^\w.]+", "-", title.lower())
        figures.against(
            group[group[level].isin(measured_rows[level])],
            folder / f"{name}.png",
            level=level,
            by=by,
            values=[name for name in values if measured_rows.get(name) is not None],
            log=log,
            title=title,
        )


def _probed(
    task: Task,
    results: Folder,
    accuracy: Callable[..., float],
    settings: Sequence[Mapping[str, float]],
) -> list[Measurement]:
    """Returns the accuracy of a probe on each run's embedding.

    The test examples are the test split if the runs trained on the training split. Else
    they are the same sub-sample as for `knn_accuracy`.

    Args:
        task: the options of the runs.
        results: the results folder of the runs, with their models.
        accuracy: function (split, **setting) -> accuracy.
        settings: one dict of keyword arguments of `accuracy` per row and run.

    Returns:
        One row per run and setting. The accuracy of a run that diverged is NaN.
    """
    dataset, test = load_source(task.source)[0], None
    if task.source.split == "train":
        test_source = replace(task.source, split="test", limit=None, extra_split=None)
        test = load_source(test_source)[0]
    labels, measurements = dataset.labels, []
    assert labels is not None  # tables are of data sets that have classes
    is_test = np.zeros(len(labels), bool) if test else test_rows(task.source, dataset)
    for row in results.requested(results.rows):
        model = results.model(**_point(row, results))
        z = exported.predict(model, dataset.examples).embedding
        test_z, test_labels = z[is_test], labels[is_test]
        if test:
            test_z, test_labels = exported.predict(model, test.examples)[0], test.labels
        split = (z[~is_test], labels[~is_test], test_z, test_labels)
        swept = _point(row, results)
        is_finite = np.isfinite(z).all() and np.isfinite(test_z).all()
        for setting in settings:
            value = accuracy(split, **setting) if is_finite else np.nan
            measurements.append({**swept, **setting, "accuracy": value})
    return measurements


def _votes(
    task: Task, dataset: data.Dataset, z: np.ndarray, *, normalize: bool
) -> list[Measurement]:
    """Returns the k-nearest-neighbour accuracy of an embedding, one row per k."""
    labels, is_test = dataset.labels, test_rows(task.source, dataset)
    assert labels is not None  # tables are of data sets that have classes
    num_neighbors = [k for k in NEIGHBORS if k <= (~is_test).sum()]
    if not np.isfinite(z).all():  # of a run that diverged
        return [{"k": k, "accuracy": np.nan} for k in num_neighbors]
    accuracies = metrics.knn_accuracy(
        z[~is_test],
        labels[~is_test],
        z[is_test],
        labels[is_test],
        num_neighbors=num_neighbors,
        normalize=normalize,
    )
    return [{"k": k, "accuracy": accuracy} for k, accuracy in accuracies.items()]


def _point(row: Mapping[str, Any], results: Folder) -> dict[str, float]:
    """Returns the values of a row's swept settings."""
    return {name: row[name] for name in results.names}
