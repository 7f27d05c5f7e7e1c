"""Figures of matrices: heatmaps, confidence, associations of clusters."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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

# More rows or columns than these have no room for numbers.
_MOST_WRITTEN = 20


def partition(
    labels: Integer[np.ndarray | Array, "_"],
    clients: Integer[np.ndarray | Array, "_"],
    path: str | Path,
    title: str = "",
) -> Figure:
    """Draws how many examples of each class each client holds.

    The numbers stand in the cells up to 20 clients and 20 classes.

    Args:
      labels: [n] true classes.
      clients: [n] the client that holds each example; a negative one is nobody, whose
        examples are not shown.
      path: where to write the figure; the ending sets the format.
      title: method, data set, heterogeneity and seed.

    Returns:
      The figure, written to `path`.
    """
    labels, clients = np.asarray(labels), np.asarray(clients)
    held = clients >= 0
    rows, columns, counts = _cross(clients[held], labels[held])
    figure, axes = _canvas(counts.shape)
    image = heatmap(axes, counts, rows, columns, largest=float(counts.max()))
    _write_cells(axes, image, np.vectorize("{:,}".format)(counts))
    axes.set(xlabel="class", ylabel="client")
    ticks = MaxNLocator(integer=True)
    color_bar(figure, axes, image, "examples", ticks=ticks, format="{x:,.0f}")
    return curves.write(figure, path, title)


def confusion(
    labels: Integer[np.ndarray | Array, "_"],
    assignments: Integer[np.ndarray | Array, "_"],
    path: str | Path,
    title: str = "",
) -> Figure:
    """Draws which clusters the examples of each class went to.

    A cell is the share of its class, a row adds up to 1; up to 20 classes and clusters
    shares are written as percentages with the counts below. Columns are in the order of
    the classes that the clusters match, the match outlined; clusters beyond the classes
    follow behind a line.

    Args:
      labels: [n] true classes.
      assignments: [n] clusters, in any number.
      path: where to write the figure; the ending sets the format.
      title: method, data set, heterogeneity and seed.

    Returns:
      The figure, written to `path`.
    """
    matched = match(labels, assignments)
    labels, assignments = np.asarray(labels), np.asarray(assignments)
    classes, targets, counts = _cross(labels, matched)
    _, first = np.unique(matched, return_index=True)
    shares = counts / counts.sum(axis=1, keepdims=True)
    figure, axes = _canvas(counts.shape)
    image = heatmap(axes, shares, classes, assignments[first], largest=1.0)
    texts = np.vectorize("{:.0f}%\n{:,}".format)(100 * shares, counts)
    _write_cells(axes, image, np.where(counts > 0, texts, ""))
    num_matched = int(np.isin(targets, classes).sum())
    for column, row in enumerate(np.searchsorted(classes, targets[:num_matched])):
        cell = column - 0.5, row - 0.5
        axes.add_patch(Rectangle(cell, 1, 1, fill=False, color=curves.INK, linewidth=1))
    if 0 < num_matched < len(targets):
        axes.axvline(num_matched - 0.5, color=curves.INK, linewidth=1.2, linestyle=":")
    axes.set(xlabel="cluster, in the order of the matched classes", ylabel="class")
    agreement = accuracy(labels, assignments)
    axes.set_title(f"ACC {agreement:.3f}", fontsize=11, color=curves.INK)
    color_bar(figure, axes, image, "share of the class")
    return curves.write(figure, path, title)


def agreements(
    matrix: Float[np.ndarray, "R R"], names: Sequence[str], path: str | Path
) -> Figure:
    """Draws how far each two runs agree, 1 where they are the same; below 0, less than
    by chance, is drawn as 0.

    The numbers stand in the cells up to 20 runs.

    Args:
      matrix: of `metrics.agreement.pairwise_agreement`; NaN is left grey.
      names: of the R runs.
      path: where to write the figure; the ending sets the format.

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
    return curves.write(figure, path, "agreement of each two runs")


def _cross(
    rows: np.ndarray, columns: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Integer[np.ndarray, "R C"]]:
    """The names of rows and columns, and how often each pair occurs."""
    counts = np.asarray(contingency_matrix(rows, columns))
    return np.unique(rows), np.unique(columns), counts


def _canvas(shape: tuple[int, ...]) -> tuple[Figure, Axes]:
    """A figure whose cells are square, with room for a number in each if few."""
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
    """Draws a matrix from white, 0, to dark blue, `largest`, with its names."""
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
    if max(texts.shape) > _MOST_WRITTEN:
        return
    # White on the dark half of the scale.
    dark = np.asarray(image.get_array()) > 0.55 * image.get_clim()[1]
    for (row, column), text in np.ndenumerate(texts):
        color = "white" if dark[row, column] else curves.INK
        axes.text(column, row, str(text), ha="center", va="center", size=7, color=color)


def color_bar(
    figure: Figure, axes: Axes | list[Axes], image: AxesImage, name: str, **ticks: Any
) -> None:
    """Adds the scale of a heatmap."""
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02, label=name, **ticks)
    bar.ax.tick_params(labelsize=9, color="0.6", labelcolor=curves.INK)
    bar.outline.set(edgecolor="0.8", linewidth=0.8)  # pyright: ignore


# --- Sureness

_BINS = 10


def confidence(
    confidence: Float[np.ndarray, "n"],
    path: str | Path,
    *,
    right: Bool[np.ndarray, "n"] | None = None,
    title: str = "",
) -> Figure:
    """Draws how many examples have which confidence, and where it is known whether they
    are right, how many of those are.

    On the diagonal as many are right as are confident; above it more.

    Args:
      confidence: in [0, 1]; NaN is not shown.
      path: where to write the figure; the ending sets the format.
      right: whether each example is right; None without labels.
      title: of the figure.

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
    bars.set_xlabel("confidence: how often with the others of its cluster")
    if right is not None:
        sums = [np.bincount(place, x, _BINS) for x in (confidence, right[known])]
        held = counts > 0
        mean, rate = (x[held] / counts[held] for x in sums)
        panels[0].plot([0, 1], [0, 1], color="0.6", linewidth=0.9, linestyle=":")
        panels[0].plot(mean, rate, "o-", color="tab:blue", markersize=4)
        panels[0].set(ylabel="share of them that is right", ylim=(-0.02, 1.02))
    for axes in panels:
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        curves.plain_axes(axes)
    return curves.write(figure, path, title)


# --- Associations

_RIGHT, _WRONG = "0.45", "#d62728"
# Pale with a rim, as the colours of groups have a grey too.
_UNKNOWN, _RIM = "0.92", "0.55"
# Neighbours on a circle are about one unit apart; less of large graphs.
_INCHES_A_UNIT, _MOST_INCHES = 0.19, 10.0
_MOST_POINTS, _LEAST_POINTS = 110.0, 8.0  # of area; the largest is a unit across
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
    """Draws which clusters are associated; a community is a circle of its clusters.

    Communities, the connected components of more than one cluster, stand in rows,
    larger ones first; isolated clusters have rows of their own below a line. The
    clusters of a group lie side by side on a circle. Edges between two groups are
    wrong, and drawn above the others.

    Args:
      edges: [V, V] the symmetric graph of V clusters; its diagonal is ignored.
      path: where to write the figure; the ending sets the format.
      sizes: [V] how many examples each cluster has, its area.
      groups: [V] what each cluster is, such as the class that most of its examples
        have: its colour; -1, of which nothing is known, is grey, its edges not wrong.
      title: of the figure.

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
    beside = columns * (0.7 + 0.08 * max(map(len, marks))) + 0.2
    size = max(width, 2.4) + beside, max(height, 1.6) + 0.5
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    axes.set_axis_off()
    right, bad = list(places[ends[~wrong]]), list(places[ends[wrong]])
    axes.add_collection(LineCollection(right, colors=_RIGHT, alpha=0.3, linewidths=0.5))
    axes.add_collection(LineCollection(bad, colors=_WRONG, alpha=0.85, linewidths=1.1))
    if floor is not None:
        axes.axhline(floor, color="0.8", linewidth=0.8)
        told = f"{(~edges.any(axis=1)).sum()} isolated"
        axes.text(
            high[0], floor, told, ha="right", va="bottom", color=curves.INK, size=8
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
    """Places nodes, and returns the height of the line between communities and
    isolated clusters; None where one of the two is missing.
    """
    _, component = connected_components(edges, directed=False)
    counts = np.bincount(component)[component]
    members = [np.flatnonzero(component == c) for c in np.unique(component[counts > 1])]
    members.sort(key=len, reverse=True)
    isolated = np.flatnonzero(counts == 1)
    boxes = [_radius(len(own)) * 2 + 1.6 for own in members]
    # Somewhat wider than high.
    width = max([*boxes, 1.25 * np.sqrt(np.sum(np.square(boxes))), 12.0])

    places = np.zeros((len(edges), 2))
    left, top, row = 0.0, 0.0, 0.0
    for own, box in zip(members, boxes, strict=True):
        if left + box > width:
            left, top, row = 0.0, top - row, 0.0
        row = row or box  # the first of a row is its largest
        own = own[np.argsort(groups[own], kind="stable")]
        angles = np.pi / 2 - 2 * np.pi * np.arange(len(own)) / len(own)
        circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        places[own] = [left + box / 2, top - row / 2] + _radius(len(own)) * circle
        left += box
    floor = top - row - 0.3 if len(members) and len(isolated) else None
    isolated = isolated[np.argsort(groups[isolated], kind="stable")]
    across = max(1, int(width / 1.3))
    row, column = np.divmod(np.arange(len(isolated)), across)
    first = 0.0 if floor is None else floor - 1.2
    places[isolated] = np.stack([0.65 + 1.3 * column, first - 1.3 * row], axis=1)
    return places, floor


def _radius(count: int) -> float:
    """Of a circle on which neighbours are one unit apart."""
    return max(1.15 * count / (2 * np.pi), 0.7)


def _dot(color: Any, rim: str) -> Line2D:
    return curves.mark(color, markersize=7, markeredgecolor=rim, markeredgewidth=0.6)
