"""How large the clusters of a partition are, each called by the class that it matches:
Figure 2 of the SDA-FDC paper."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer

from experiments.papers.study import Measured, Paper
from fcjax import metrics
from fcjax.data.source import load_source
from fcjax.results.store import Folder
from fcjax.sweep.flags import Common


def of_clusters(args: Common, results: Folder) -> list[Measured]:
    """Returns the share of the examples that each label has in a run, its clusters
    matched one to one to the classes, as for kappa; clusters that match none come
    last, under numbers that no class has."""
    classes = labels_of(args)
    measured = []
    for row in results.asked(results.rows):
        point = {name: row[name] for name in results.names}
        clusters = results.assigned(point)["cluster"]
        matched = metrics.match(classes, clusters)
        found = shares(matched, among=np.union1d(classes, matched))
        measured += [{**point, **line} for line in found]
    return measured


def of_classes(args: Common) -> list[Measured]:
    """Returns the same of the classes, which no seed changes."""
    classes = labels_of(args)
    return shares(classes, among=np.unique(classes))


def shares(
    labels: Integer[np.ndarray, "P"], *, among: Integer[np.ndarray, "K"]
) -> list[Measured]:
    return [
        {"label": int(name), "share": float(np.mean(labels == name))} for name in among
    ]


def labels_of(args: Common) -> Integer[np.ndarray, "P"]:
    labels = load_source(args)[0].labels
    assert labels is not None  # figures are of data sets that have classes
    return np.asarray(labels)


def draw(rows: Sequence[Mapping[str, Any]], folder: Path, *, paper: Paper) -> None:
    """Draws them of each data set into folder/DATASET.png; the paper's numbers are
    nowhere in print. Raises ValueError where there is none."""
    from fcjax.results import figures  # matplotlib only where something is drawn

    del paper
    if not rows:
        raise ValueError("no data set to draw; --datasets NAME=PATH says where one is")
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        own = [row for row in rows if row["dataset"] == dataset]
        name = re.sub(r"[^\w.]+", "-", dataset.lower())
        figures.bars(own, folder / f"{name}.png")
