"""How large the clusters of a partition are, each called by the class that it matches:
Figure 2 of the SDA-FDC paper.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Integer

from experiments.papers.study import Measured
from fcjax import metrics
from fcjax.data.source import load_source
from fcjax.results import tables
from fcjax.results.store import Folder
from fcjax.sweep.plan import Task


def of_clusters(task: Task, results: Folder) -> list[Measured]:
    """Returns the share of the examples that each label has in a run, its clusters
    matched one to one to the classes, as for kappa; clusters that match none come
    last, under numbers that no class has.
    """
    classes = labels_of(task)
    measured = []
    for row in results.requested(results.rows):
        point = {name: row[name] for name in results.names}
        clusters = results.assignment_arrays(point)["cluster"]
        matched = metrics.match(classes, clusters)
        found = shares(matched, among=np.union1d(classes, matched))
        measured += [{**point, **line} for line in found]
    return measured


def of_classes(task: Task) -> list[Measured]:
    """Returns the same of the classes, which no seed changes."""
    classes = labels_of(task)
    return shares(classes, among=np.unique(classes))


def shares(
    labels: Integer[np.ndarray, "P"], *, among: Integer[np.ndarray, "K"]
) -> list[Measured]:
    return [
        {"label": int(name), "share": float(np.mean(labels == name))} for name in among
    ]


def labels_of(task: Task) -> Integer[np.ndarray, "P"]:
    labels = load_source(task.source)[0].labels
    assert labels is not None  # figures are of data sets that have classes
    return np.asarray(labels)


def draw(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Draws the shares of each data set into folder/DATASET.png, one bar per method;
    the paper prints no numbers. A bar is the mean over seeds with its 95 % interval.
    """
    for dataset, own in pd.DataFrame(rows).groupby("dataset", sort=False):
        summary = tables.summarize(own, by=["label", "method"], values=["share"])
        means, widths = (
            summary[name].unstack(sort=False).sort_index()
            for name in ("share", "share_half_width")
        )
        # Matplotlib only where something is drawn.
        from matplotlib.figure import Figure
        from matplotlib.ticker import PercentFormatter

        from fcjax.results.figures import curves

        figure = Figure(figsize=(max(4.0, 1.2 + 0.6 * len(means)), 3.6))
        axes = figure.subplots()
        colors = curves.color_cycle(len(means.columns))
        means.plot.bar(ax=axes, yerr=widths, color=colors, width=0.8, rot=0)
        axes.set(xlabel="label of the cluster", ylabel="share of the examples")
        axes.set_ylim(0, min(1.0, axes.get_ylim()[1]))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.legend(frameon=False, fontsize=9)
        curves.plain_axes(axes)
        name = re.sub(r"[^\w.]+", "-", str(dataset).lower())
        curves.write(figure, folder / f"{name}.png", f"cluster sizes, {dataset}")
