"""The graph of clusters that clients found to be the same."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Array, Bool, Float, Integer
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.sparse.csgraph import connected_components

from fcjax.evaluation.figures import style

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
    labels: Sequence[str] | None = None,
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
      labels: what group i is called; None numbers them.
      title: of the figure.

    Returns:
      The figure, written to `path`.

    Raises:
      ValueError: if there are no clusters, lengths differ, the graph is not symmetric,
        a size is negative, or a group has no label.
    """
    edges, sizes, groups = np.asarray(edges), np.asarray(sizes), np.asarray(groups)
    _check(edges, sizes, groups, labels)
    edges = edges & ~np.eye(len(edges), dtype=bool)
    places, floor = _layout(edges, groups)
    ends = np.argwhere(np.triu(edges, 1))
    known = (groups[ends] >= 0).all(axis=1)
    wrong = known & (groups[ends[:, 0]] != groups[ends[:, 1]])

    low, high = places.min(axis=0) - _MARGIN, places.max(axis=0) + _MARGIN
    names = np.unique(groups[groups >= 0])
    colors = dict(zip(names.tolist(), style.colors(len(names)), strict=True))
    marks = {
        str(name if labels is None else labels[name]): _dot(color, "white")
        for name, color in colors.items()
    }
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
            high[0], floor, told, ha="right", va="bottom", color=style.INK, size=8
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
    axes.set_title(title, fontsize=11, color=style.INK)
    style.legend(figure, marks, loc="outside right center", ncols=columns)
    return style.write(figure, path)


def _check(edges, sizes, groups, labels: Sequence[str] | None) -> None:
    if not len(groups):
        raise ValueError("no clusters to draw")
    if edges.shape != (len(groups),) * 2 or len(sizes) != len(groups):
        raise ValueError(
            f"edges {edges.shape}, {len(sizes)} sizes and {len(groups)} groups are not "
            "of the same clusters"
        )
    if (edges != edges.T).any():
        raise ValueError("edges are not symmetric")
    if sizes.min() < 0:
        raise ValueError(f"sizes must be at least 0, got {sizes.min()}")
    if labels is not None and groups.max() >= len(labels):
        raise ValueError(f"{len(labels)} labels do not name group {groups.max()}")


def _layout(
    edges: Bool[np.ndarray, "V V"], groups: Integer[np.ndarray, "V"]
) -> tuple[Float[np.ndarray, "V 2"], float | None]:
    """Places nodes, and returns the height of the line between communities and
    isolated clusters; None where one of the two is missing."""
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
    return style.mark(color, markersize=7, markeredgecolor=rim, markeredgewidth=0.6)
