"""Cluster sizes of a partition, by matched class (Figure 2 of the SDA-FDC paper)."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Integer

from experiments.papers.study import Measurement
from fcjax import metrics
from fcjax.data.sources import load_source
from fcjax.results import tables
from fcjax.results.store import Folder
from fcjax.sweep.plan import Task


def of_clusters(task: Task, results: Folder) -> list[Measurement]:
    """Returns the share of the examples in each cluster, by the class that it matches.

    Clusters are matched one to one to classes, as for kappa. A cluster without a class
    comes last, under a number that no class has.

    Args:
        task: the options of the runs, which name the data set.
        results: the results folder of the runs.

    Returns:
        One row per run and cluster: the swept values, `label` and `share`.
    """
    classes = labels_of(task)
    measured = []
    for row in results.requested(results.rows):
        point = {name: row[name] for name in results.names}
        clusters = results.assignment_arrays(point)["cluster"]
        matched = metrics.match(classes, clusters)
        cluster_shares = shares(matched, among=np.union1d(classes, matched))
        measured += [{**point, **line} for line in cluster_shares]
    return measured


def of_classes(task: Task) -> list[Measurement]:
    """Returns the share of the examples in each true class, which no seed changes.

    Args:
        task: the options, which name the data set.

    Returns:
        One row per class: `label` and `share`, in [0, 1].
    """
    classes = labels_of(task)
    return shares(classes, among=np.unique(classes))


def shares(
    labels: Integer[np.ndarray, "P"], *, among: Integer[np.ndarray, "K"]
) -> list[Measurement]:
    """Returns one row per label of `among`: the label and its share."""
    return [
        {"label": int(name), "share": float(np.mean(labels == name))} for name in among
    ]


def labels_of(task: Task) -> Integer[np.ndarray, "P"]:
    """Returns the true class of each example of the task's data set."""
    labels = load_source(task.source)[0].labels
    assert labels is not None  # Every data set of a figure has labels.
    return np.asarray(labels)


def draw(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Draws the shares of each data set into folder/DATASET.png, one bar per method.

    A bar is the mean over seeds with its 95 % confidence interval. The paper prints the
    figure without numbers.

    Args:
        rows: the rows of `of_clusters` and `of_classes`, with `dataset` and `method`.
        folder: folder of the figures.
    """
    for dataset, group in pd.DataFrame(rows).groupby("dataset", sort=False):
        summary = tables.summarize(group, by=["label", "method"], values=["share"])
        means, widths = (
            summary[name].unstack(sort=False).sort_index()
            for name in ("share", "share_half_width")
        )
        # The import of matplotlib is slow, so only drawing pays for it.
        from matplotlib.figure import Figure
        from matplotlib.ticker import PercentFormatter

        from fcjax.results.figures import curves

        figure = Figure(figsize=(max(4.0, 1.2 + 0.6 * len(means)), 3.6))
        axes = figure.subplots()
        colors = curves.color_cycle(len(means.columns))
        means.plot.bar(ax=axes, yerr=widths, color=colors, width=0.8, rot=0)
        axes.set(
            xlabel="class that the cluster matches", ylabel="share of the examples"
        )
        axes.set_ylim(0, min(1.0, axes.get_ylim()[1]))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.legend(frameon=False, fontsize=9)
        curves.plain_axes(axes)
        name = re.sub(r"[^\w.]+", "-", str(dataset).lower())
        title = f"cluster sizes by matched class, {dataset}"
        curves.write(figure, folder / f"{name}.png", title)
