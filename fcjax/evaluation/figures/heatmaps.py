"""Heat maps of counts: classes of clients, and classes against clusters."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Array, Float, Integer
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from fcjax.evaluation.figures import style
from fcjax.evaluation.scores import accuracy, match

# More rows or columns than these have no room for numbers.
_MOST_WRITTEN = 20


def partition(
    labels: Integer[np.ndarray | Array, "_"],
    clients: Integer[np.ndarray | Array, "_"],
    path: str | Path,
) -> Figure:
    """Draws how many examples of each class each client holds.

    The numbers stand in the cells up to 20 clients and 20 classes.

    Args:
      labels: [n] true classes.
      clients: [n] the client that holds each example; a negative one is nobody, whose
        examples are not shown.
      path: where to write the figure; the ending sets the format.

    Returns:
      The figure, written to `path`.

    Raises:
      ValueError: if lengths differ or no client holds an example.
    """
    labels, clients = np.asarray(labels), np.asarray(clients)
    if len(labels) != len(clients):
        raise ValueError(f"{len(labels)} labels but {len(clients)} clients")
    held = clients >= 0
    if not held.any():
        raise ValueError("no client holds an example")
    rows, columns, counts = _cross(clients[held], labels[held])
    figure, axes = _canvas(counts.shape)
    image = _map(axes, counts, rows, columns, largest=float(counts.max()))
    if max(counts.shape) <= _MOST_WRITTEN:
        _write_cells(axes, image, [[f"{count:,}" for count in row] for row in counts])
    axes.set_xlabel("class", fontsize=10)
    axes.set_ylabel("client", fontsize=10)
    bar = _scale(figure, axes, image, "examples")
    bar.locator, bar.formatter = (
        MaxNLocator(integer=True),
        StrMethodFormatter("{x:,.0f}"),
    )
    return style.write(figure, path)


def confusion(
    labels: Integer[np.ndarray | Array, "_"],
    assignments: Integer[np.ndarray | Array, "_"],
    path: str | Path,
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

    Returns:
      The figure, written to `path`.

    Raises:
      ValueError: if lengths differ or there are no examples.
    """
    matched = match(labels, assignments)
    labels, assignments = np.asarray(labels), np.asarray(assignments)
    classes, targets, counts = _cross(labels, matched)
    _, first = np.unique(matched, return_index=True)
    shares = counts / counts.sum(axis=1, keepdims=True)
    figure, axes = _canvas(counts.shape)
    image = _map(axes, shares, classes, assignments[first], largest=1.0)
    if max(counts.shape) <= _MOST_WRITTEN:
        texts = [
            [
                f"{100 * share:.0f}%\n{count:,}" if count else ""
                for share, count in zip(*pair, strict=True)
            ]
            for pair in zip(shares, counts, strict=True)
        ]
        _write_cells(axes, image, texts)
    num_matched = int(np.isin(targets, classes).sum())
    for column, row in enumerate(np.searchsorted(classes, targets[:num_matched])):
        cell = column - 0.5, row - 0.5
        axes.add_patch(Rectangle(cell, 1, 1, fill=False, color=style.INK, linewidth=1))
    if 0 < num_matched < len(targets):
        axes.axvline(num_matched - 0.5, color=style.INK, linewidth=1.2, linestyle=":")
    axes.set_xlabel("cluster, in the order of the matched classes", fontsize=10)
    axes.set_ylabel("class", fontsize=10)
    agreement = accuracy(labels, assignments)
    axes.set_title(f"ACC {agreement:.3f}", fontsize=11, color=style.INK)
    _scale(figure, axes, image, "share of the class")
    return style.write(figure, path)


def _cross(
    rows: np.ndarray, columns: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Integer[np.ndarray, "R C"]]:
    """The names of rows and columns, and how often each pair occurs."""
    row_names, row = np.unique(rows, return_inverse=True)
    column_names, column = np.unique(columns, return_inverse=True)
    counts = np.zeros((len(row_names), len(column_names)), int)
    np.add.at(counts, (row, column), 1)
    return row_names, column_names, counts


def _canvas(shape: tuple[int, ...]) -> tuple[Figure, Axes]:
    """A figure whose cells are square, with room for a number in each if few."""
    cell = 0.55 if max(shape) <= _MOST_WRITTEN else 10 / max(shape)
    height, width = (max(cell * size, 1.2) for size in shape)
    figure = Figure(figsize=(width + 1.9, height + 1.1), layout="constrained")
    return figure, figure.subplots()


def _map(
    axes: Axes,
    values: Float[np.ndarray, "R C"] | Integer[np.ndarray, "R C"],
    rows: Sequence | np.ndarray,
    columns: Sequence | np.ndarray,
    *,
    largest: float,
) -> AxesImage:
    image = axes.imshow(values, cmap="Blues", vmin=0, vmax=largest, aspect="equal")
    for axis, names in ((axes.yaxis, rows), (axes.xaxis, columns)):
        listed = range(0, len(names), math.ceil(len(names) / _MOST_WRITTEN))
        axis.set_ticks(listed, [str(names[i]) for i in listed])
    axes.tick_params(labelsize=9, length=0, labelcolor=style.INK)
    axes.spines[:].set(color="0.8", linewidth=0.8)
    return image


def _write_cells(axes: Axes, image: AxesImage, texts: Sequence[Sequence[str]]) -> None:
    values = np.asarray(image.get_array())
    # White on the dark half of the scale.
    dark = values > 0.55 * image.get_clim()[1]
    for row, line in enumerate(texts):
        for column, text in enumerate(line):
            axes.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                fontsize=7,
                color="white" if dark[row, column] else style.INK,
            )


def _scale(figure: Figure, axes: Axes, image: AxesImage, name: str) -> Colorbar:
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02)
    bar.set_label(name, fontsize=10)
    bar.ax.tick_params(labelsize=9, color="0.6", labelcolor=style.INK)
    bar.outline.set(edgecolor="0.8", linewidth=0.8)  # pyright: ignore
    return bar
