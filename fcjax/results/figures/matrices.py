"""Figures of matrices, of the confidence of examples, and of association graphs."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Integer, Shaped
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter
from scipy.sparse.csgraph import connected_components
from sklearn.metrics.cluster import contingency_matrix

from fcjax.metrics.external import accuracy, match
from fcjax.results.figures import curves

# --- Heatmaps

# Above this number of rows or columns, cells have no room for numbers.
_MOST_WRITTEN = 20


class Confusion(NamedTuple):
    """The number of examples per class and cluster."""

    classes: Integer[np.ndarray, "R"]
    """The classes, in ascending order."""
    clusters: Integer[np.ndarray, "C"]
    """The clusters, in the order of the classes that match them. Clusters without a
    class follow."""
    counts: Integer[np.ndarray, "R C"]
    """The number of examples of each class in each cluster."""
    matched: Integer[np.ndarray, "_"]
    """The row of the matching class, for each of the first columns."""


def confusion_counts(
    labels: Integer[np.ndarray | Array, "_"],
    assignments: Integer[np.ndarray | Array, "_"],
) -> Confusion:
    """Counts examples per class and cluster, with clusters in the order of classes.

    Classes and clusters are matched one to one, so that the accuracy is largest.

    Args:
      labels: [n] true classes.
      assignments: [n] clusters, in any number.

    Returns:
      The counts.

    Examples:
      >>> table = confusion_counts(np.array([0, 0, 1]), np.array([7, 7, 5]))
      >>> table.clusters, table.counts.tolist(), table.matched
      (array([7, 5]), [[2, 0], [0, 1]], array([0, 1]))
    """
    assignments, matched = np.asarray(assignments), match(labels, assignments)
    classes, targets, counts = cross_counts(np.asarray(labels), matched)
    _, first = np.unique(matched, return_index=True)
    rows = np.searchsorted(classes, targets[np.isin(targets, classes)])
    return Confusion(classes, assignments[first], counts, rows)


def cross_counts(
    rows: np.ndarray, columns: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Integer[np.ndarray, "R C"]]:
    """Counts how often each pair of values occurs.

    Args:
      rows: [n] one value per example.
      columns: [n] a second value per example.

    Returns:
      The distinct values of `rows` and of `columns`, in ascending order, and the counts
      of their pairs.
    """
    counts = np.asarray(contingency_matrix(rows, columns))
    return np.unique(rows), np.unique(columns), counts


def partition(
    labels: Integer[np.ndarray | Array, "_"],
    clients: Integer[np.ndarray | Array, "_"],
    path: str | Path,
    title: str = "",
) -> Figure:
    """Draws the number of examples per client and class.

    Up to 20 clients and 20 classes, the numbers stand in the cells.

    Args:
      labels: [n] true classes.
      clients: [n] the client of each example. Examples with a negative number have no
        client and are not counted.
      path: file to write; the ending sets the format.
      title: title of the figure: method, data set, heterogeneity and seed.

    Returns:
      The figure, written to `path`.
    """
    labels, clients = np.asarray(labels), np.asarray(clients)
    has_client = clients >= 0
    rows, columns, counts = cross_counts(clients[has_client], labels[has_client])
    figure, axes = _canvas(counts.shape)
    image = heatmap(axes, counts, rows, columns, largest=float(counts.max()))
    _write_cells(axes, image, np.vectorize("{:,}".format)(counts))
    axes.set(xlabel="class", ylabel="client")
    ticks = MaxNLocator(integer=True)
    color_bar(figure, axes, image, "number of examples", ticks=ticks, format="{x:,.0f}")
    return curves.write(figure, path, title)


def confusion(
    labels: Integer[np.ndarray | Array, "_"],
    assignments: Integer[np.ndarray | Array, "_"],
    path: str | Path,
    title: str = "",
) -> Figure:
    """Draws the confusion matrix: the share of each class in each cluster.

    The shares of a row sum to 1. Up to 20 classes and 20 clusters, each cell has the
    share in percent and the number of examples. Columns are in the order of the classes
    that match the clusters, and the matches are outlined. Clusters without a class
    follow after a dotted line.

    Args:
      labels: [n] true classes.
      assignments: [n] clusters, in any number.
      path: file to write; the ending sets the format.
      title: title of the figure: method, data set, heterogeneity and seed.

    Returns:
      The figure, written to `path`.
    """
    classes, clusters, counts, matched = confusion_counts(labels, assignments)
    shares = counts / counts.sum(axis=1, keepdims=True)
    figure, axes = _canvas(counts.shape)
    image = heatmap(axes, shares, classes, clusters, largest=1.0)
    texts = np.vectorize("{:.0f}%\n{:,}".format)(100 * shares, counts)
    _write_cells(axes, image, np.where(counts > 0, texts, ""))
    num_matched = len(matched)
    for column, row in enumerate(matched):
        cell = column - 0.5, row - 0.5
        axes.add_patch(Rectangle(cell, 1, 1, fill=False, color=curves.INK, linewidth=1))
    if 0 < num_matched < len(clusters):
        axes.axvline(num_matched - 0.5, color=curves.INK, linewidth=1.2, linestyle=":")
    axes.set(xlabel="cluster (in the order of the matching classes)", ylabel="class")
    agreement = accuracy(labels, assignments)
    axes.set_title(f"ACC {agreement:.3f}", fontsize=11, color=curves.INK)
    color_bar(figure, axes, image, "share of the examples of the class")
    return curves.write(figure, path, title)


def agreements(
    matrix: Float[np.ndarray, "R R"],
    names: Sequence[str],
    path: str | Path,
    title: str = "agreement of pairs of runs",
) -> Figure:
    """Draws the agreement of each pair of runs as a heatmap from 0 to 1.

    An adjusted Rand index of 1 means equal clusterings. Negative values (less agreement
    than by chance) have the colour of 0. Up to 20 runs, the numbers stand in the cells.

    Args:
      matrix: [R, R] the result of `metrics.agreement.pairwise_agreement`. NaN is grey.
      names: names of the R runs.
      path: file to write; the ending sets the format.
      title: title of the figure.

    Returns:
      The figure, written to `path`.
    """
    figure, axes = _canvas(matrix.shape)
    image = heatmap(axes, np.maximum(matrix, 0), names, names, largest=1.0)
    axes.set_facecolor("0.85")
    axes.tick_params(axis="x", rotation=90)
    texts = np.vectorize(lambda x: "" if np.isnan(x) else f"{x:.2f}")(matrix)
    _write_cells(axes, image, texts)
    color_bar(figure, axes, image, "adjusted Rand index")
    longest = 0.075 * max(map(len, names))
    width, height = figure.get_size_inches()
    figure.set_size_inches(width + longest, height + longest)
    return curves.write(figure, path, title)


def _canvas(shape: tuple[int, ...]) -> tuple[Figure, Axes]:
    """Returns a figure and axes for a matrix of this shape, with square cells."""
    cell = 0.55 if max(shape) <= _MOST_WRITTEN else 10 / max(shape)
    height, width = (max(cell * size, 1.2) for size in shape)
    figure = Figure(figsize=(width + 1.9, height + 1.1), layout="constrained")
    return figure, figure.subplots()


def heatmap(
    axes: Axes,
    values: Float[np.ndarray, "R C"] | Integer[np.ndarray, "R C"],
    rows: Sequence | np.ndarray,
    columns: Sequence | np.ndarray,
    *,
    largest: float,
) -> AxesImage:
    """Draws a matrix in colours from white (0) to dark blue (`largest`).

    Args:
      axes: axes to draw on.
      values: the matrix.
      rows: R names of the rows.
      columns: C names of the columns. Of more than 20 names, an even choice is written.
      largest: value of the darkest colour.

    Returns:
      The image, for `color_bar`.
    """
    image = axes.imshow(values, cmap="Blues", vmin=0, vmax=largest, aspect="equal")
    for axis, names in ((axes.yaxis, rows), (axes.xaxis, columns)):
        listed = range(0, len(names), math.ceil(len(names) / _MOST_WRITTEN))
        axis.set_ticks(listed, [str(names[i]) for i in listed])
    axes.tick_params(labelsize=9, length=0, labelcolor=curves.INK)
    axes.spines[:].set(color="0.8", linewidth=0.8)
    return image


def _write_cells(
    axes: Axes, image: AxesImage, texts: Shaped[np.ndarray, "R C"]
) -> None:
    """Writes a text into each cell of a heatmap, unless there are too many cells."""
    if max(texts.shape) > _MOST_WRITTEN:
        return
    # The text is white on the dark half of the colour scale.
    dark = np.asarray(image.get_array()) > 0.55 * image.get_clim()[1]
    for (row, column), text in np.ndenumerate(texts):
        color = "white" if dark[row, column] else curves.INK
        axes.text(column, row, str(text), ha="center", va="center", size=7, color=color)


def color_bar(
    figure: Figure, axes: Axes | list[Axes], image: AxesImage, name: str, **ticks: Any
) -> None:
    """Adds the colour bar of a heatmap, with `name` as its label.

    Args:
      figure: the figure, which is changed.
      axes: the axes next to the colour bar.
      image: the heatmap.
      name: the label of the colour bar.
      **ticks: further options of Matplotlib's `colorbar`, such as `ticks` and `format`.
    """
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02, label=name, **ticks)
    bar.ax.tick_params(labelsize=9, color="0.6", labelcolor=curves.INK)
    bar.outline.set(edgecolor="0.8", linewidth=0.8)  # pyright: ignore


# --- Confidence

_BINS = 10


def confidence(
    confidence: Float[np.ndarray, "n"],
    path: str | Path,
    *,
    right: Bool[np.ndarray, "n"] | None = None,
    title: str = "",
) -> Figure:
    """Draws a histogram of confidence and, with labels, the share of correct examples.

    A point on the diagonal means that the confidence is calibrated. A point above the
    diagonal means that more examples are correct than the confidence says.

    Args:
      confidence: [n] confidence of each example, in [0, 1]. NaN is not drawn.
      path: file to write; the ending sets the format.
      right: [n] whether the cluster of each example matches its class; None for data
        without labels.
      title: title of the figure.

    Returns:
      The figure, written to `path`.
    """
    known = ~np.isnan(confidence)
    confidence = confidence[known]
    edges = np.linspace(0, 1, _BINS + 1)
    place = np.clip(np.digitize(confidence, edges) - 1, 0, _BINS - 1)
    counts = np.bincount(place, minlength=_BINS)
    count = 1 if right is None else 2
    figure = Figure(figsize=(5.4, 2.4 * count), layout="constrained")
    panels = figure.subplots(count, sharex=True, squeeze=False)[:, 0]
    middles = (edges[1:] + edges[:-1]) / 2
    bars = panels[-1]
    bars.bar(middles, counts / len(confidence), width=0.92 / _BINS, color="tab:blue")
    bars.set_ylabel("share of the examples")
    bars.set_xlabel("confidence (mean co-assignment with its cluster, 0 to 1)")
    if right is not None:
        sums = [np.bincount(place, x, _BINS) for x in (confidence, right[known])]
        occupied = counts > 0
        mean, rate = (x[occupied] / counts[occupied] for x in sums)
        panels[0].plot([0, 1], [0, 1], color="0.6", linewidth=0.9, linestyle=":")
        panels[0].plot(mean, rate, "o-", color="tab:blue", markersize=4)
        panels[0].set(ylabel="share of correct examples", ylim=(-0.02, 1.02))
    for axes in panels:
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        curves.plain_axes(axes)
    return curves.write(figure, path, title)


# --- Associations

_RIGHT, _WRONG = "0.45", "#d62728"
# Unknown nodes are pale with a rim, because the colours of groups include a grey.
_UNKNOWN, _RIM = "0.92", "0.55"
# Neighbours on a circle are about one unit apart. Large graphs are scaled down.
_INCHES_A_UNIT, _MOST_INCHES = 0.19, 10.0
# Areas of the nodes in square points. The diameter of the largest is one unit.
_MOST_POINTS, _LEAST_POINTS = 110.0, 8.0
_MARGIN = 1.0
_NAMES_A_COLUMN = 16


def associations(
    edges: Bool[np.ndarray | Array, "_ _"],
    path: str | Path,
    *,
    sizes: Integer[np.ndarray | Array, "_"] | Float[np.ndarray | Array, "_"],
    groups: Integer[np.ndarray | Array, "_"],
    title: str = "",
) -> Figure:
    """Draws the association graph of clusters, with one circle per community.

    A community is a connected component of two or more clusters. Communities stand in
    rows, the largest first. Isolated clusters stand below a horizontal line. On a
    circle, the clusters of a group are neighbours. An edge between two groups is wrong
    and is drawn in red above the other edges.

    Args:
      edges: [V, V] symmetric adjacency matrix of V clusters. The diagonal is ignored.
      path: file to write; the ending sets the format.
      sizes: [V] number of examples of each cluster, which sets the area of its node.
      groups: [V] group of each cluster, such as its most frequent class, which sets the
        colour. A cluster with -1 has no known group: it is grey, and its edges are not
        wrong.
      title: title of the figure.

    Returns:
      The figure, written to `path`.
    """
    edges, sizes, groups = np.asarray(edges), np.asarray(sizes), np.asarray(groups)
    edges = edges & ~np.eye(len(edges), dtype=bool)
    places, floor = _layout(edges, groups)
    ends = np.argwhere(np.triu(edges, 1))
    known = (groups[ends] >= 0).all(axis=1)
    wrong = known & (groups[ends[:, 0]] != groups[ends[:, 1]])

    low, high = places.min(axis=0) - _MARGIN, places.max(axis=0) + _MARGIN
    names = np.unique(groups[groups >= 0])
    colors = dict(zip(names.tolist(), curves.color_cycle(len(names)), strict=True))
    marks = {str(name): _dot(color, "white") for name, color in colors.items()}
    if (groups < 0).any():
        marks["unknown"] = _dot(_UNKNOWN, _RIM)
    if wrong.any():
        marks["wrong"] = Line2D([], [], color=_WRONG, linewidth=1.4)
    columns = -(-len(marks) // _NAMES_A_COLUMN)

    scale = min(1.0, _MOST_INCHES / (_INCHES_A_UNIT * (high - low).max()))
    width, height = scale * _INCHES_A_UNIT * (high - low)
    legend_width = columns * (0.7 + 0.08 * max(map(len, marks))) + 0.2
    size = max(width, 2.4) + legend_width, max(height, 1.6) + 0.5
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    axes.set_axis_off()
    right, bad = list(places[ends[~wrong]]), list(places[ends[wrong]])
    axes.add_collection(LineCollection(right, colors=_RIGHT, alpha=0.3, linewidths=0.5))
    axes.add_collection(LineCollection(bad, colors=_WRONG, alpha=0.85, linewidths=1.1))
    if floor is not None:
        axes.axhline(floor, color="0.8", linewidth=0.8)
        text = f"{(~edges.any(axis=1)).sum()} isolated clusters"
        axes.text(
            high[0], floor, text, ha="right", va="bottom", color=curves.INK, size=8
        )
    shares = sizes / max(1, sizes.max())
    axes.scatter(
        *places.T,
        s=scale**2 * (_LEAST_POINTS + (_MOST_POINTS - _LEAST_POINTS) * shares),
        c=[colors.get(group, _UNKNOWN) for group in groups.tolist()],
        edgecolors=["white" if group >= 0 else _RIM for group in groups],
        linewidths=0.6,
        zorder=3,
    )
    curves.legend(figure, marks, loc="outside right center", ncols=columns)
    return curves.write(figure, path, title)


def _layout(
    edges: Bool[np.ndarray, "V V"], groups: Integer[np.ndarray, "V"]
) -> tuple[Float[np.ndarray, "V 2"], float | None]:
    """Returns the positions of the nodes, and the height of the separating line.

    The line separates communities from isolated clusters. It is None if there are no
    communities or no isolated clusters.
    """
    _, component = connected_components(edges, directed=False)
    counts = np.bincount(component)[component]
    members = [np.flatnonzero(component == c) for c in np.unique(component[counts > 1])]
    members.sort(key=len, reverse=True)
    isolated = np.flatnonzero(counts == 1)
    boxes = [_radius(len(nodes)) * 2 + 1.6 for nodes in members]
    # The drawing is somewhat wider than high.
    width = max([*boxes, 1.25 * np.sqrt(np.sum(np.square(boxes))), 12.0])

    places = np.zeros((len(edges), 2))
    left, top, row = 0.0, 0.0, 0.0
    for nodes, box in zip(members, boxes, strict=True):
        if left + box > width:
            left, top, row = 0.0, top - row, 0.0
        # The first community of a row is its largest.
        row = row or box
        nodes = nodes[np.argsort(groups[nodes], kind="stable")]
        angles = np.pi / 2 - 2 * np.pi * np.arange(len(nodes)) / len(nodes)
        circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        places[nodes] = [left + box / 2, top - row / 2] + _radius(len(nodes)) * circle
        left += box
    floor = top - row - 0.3 if len(members) and len(isolated) else None
    isolated = isolated[np.argsort(groups[isolated], kind="stable")]
    across = max(1, int(width / 1.3))
    row, column = np.divmod(np.arange(len(isolated)), across)
    first = 0.0 if floor is None else floor - 1.2
    places[isolated] = np.stack([0.65 + 1.3 * column, first - 1.3 * row], axis=1)
    return places, floor


def _radius(count: int) -> float:
    """Returns the radius of a circle of `count` nodes that are one unit apart."""
    return max(1.15 * count / (2 * np.pi), 0.7)


def _dot(color: Any, rim: str) -> Line2D:
    """Returns the legend mark of a node."""
    return curves.mark(color, markersize=7, markeredgecolor=rim, markeredgewidth=0.6)
