"""Heat maps: classes of clients, classes against clusters, pairs of classes or runs."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Integer, Shaped
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from sklearn.metrics.cluster import contingency_matrix

from fcjax.evaluation.figures import style
from fcjax.evaluation.scores import accuracy, match

# More rows or columns than these have no room for numbers.
_MOST_WRITTEN = 20
_INCHES = 3.6


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
    _write_cells(axes, image, np.vectorize("{:,}".format)(counts))
    axes.set(xlabel="class", ylabel="client")
    ticks = MaxNLocator(integer=True)
    _scale(figure, axes, image, "examples", ticks=ticks, format="{x:,.0f}")
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
    texts = np.vectorize("{:.0f}%\n{:,}".format)(100 * shares, counts)
    _write_cells(axes, image, np.where(counts > 0, texts, ""))
    num_matched = int(np.isin(targets, classes).sum())
    for column, row in enumerate(np.searchsorted(classes, targets[:num_matched])):
        cell = column - 0.5, row - 0.5
        axes.add_patch(Rectangle(cell, 1, 1, fill=False, color=style.INK, linewidth=1))
    if 0 < num_matched < len(targets):
        axes.axvline(num_matched - 0.5, color=style.INK, linewidth=1.2, linestyle=":")
    axes.set(xlabel="cluster, in the order of the matched classes", ylabel="class")
    agreement = accuracy(labels, assignments)
    axes.set_title(f"ACC {agreement:.3f}", fontsize=11, color=style.INK)
    _scale(figure, axes, image, "share of the class")
    return style.write(figure, path)


def blocks(
    matrices: Mapping[str, Float[np.ndarray, "K K"]],
    path: str | Path,
    *,
    names: Sequence | np.ndarray,
    scale: str,
) -> Figure:
    """Draws matrices of pairs of classes on one scale, 0 to 1.

    A diagonal darker than the rest is the block structure that subspace clustering
    looks for.

    Args:
      matrices: by title; NaN where there is no such pair, which is left grey.
      path: where to write the figure; the ending sets the format.
      names: of the K classes.
      scale: what the values are, beside the bar of colours.

    Returns:
      The figure, written to `path`.

    Raises:
      ValueError: if there is no matrix, a value lies outside [0, 1], or there are not
        K names.
    """
    if not matrices:
        raise ValueError("no matrices to draw")
    for title, matrix in matrices.items():
        if len(names) != len(matrix):
            raise ValueError(f"{title}: {len(names)} names of {len(matrix)} classes")
        if np.any(matrix < 0) or np.any(matrix > 1):
            raise ValueError(f"{title}: values must lie in [0, 1]")
    size = (_INCHES * len(matrices) + 0.9, _INCHES + 0.8)
    figure = Figure(size, layout="compressed")
    all_axes = figure.subplots(1, len(matrices), squeeze=False)[0]
    for axes, (title, matrix) in zip(all_axes, matrices.items(), strict=True):
        image = _map(axes, matrix, names, names, largest=1.0)
        axes.set(facecolor="0.85", xlabel="class")
        axes.set_title(title, fontsize=12, color=style.INK)
    all_axes[0].set_ylabel("class")
    _scale(figure, list(all_axes), image, scale)
    return style.write(figure, path)


def agreements(
    matrix: Float[np.ndarray, "R R"], names: Sequence[str], path: str | Path
) -> Figure:
    """Draws how far each two runs agree, 1 where they are the same; below 0, less than
    by chance, is drawn as 0.

    The numbers stand in the cells up to 20 runs.

    Args:
      matrix: of `evaluation.agreement.pairwise_agreement`; NaN is left grey.
      names: of the R runs.
      path: where to write the figure; the ending sets the format.

    Returns:
      The figure, written to `path`.

    Raises:
      ValueError: if there are not R names.
    """
    if len(names) != len(matrix):
        raise ValueError(f"{len(names)} names of {len(matrix)} runs")
    figure, axes = _canvas(matrix.shape)
    image = _map(axes, np.maximum(matrix, 0), names, names, largest=1.0)
    axes.set_facecolor("0.85")
    axes.tick_params(axis="x", rotation=90)
    texts = np.vectorize(lambda x: "" if np.isnan(x) else f"{x:.2f}")(matrix)
    _write_cells(axes, image, texts)
    _scale(figure, axes, image, "adjusted Rand index")
    longest = 0.075 * max(map(len, names))
    width, height = figure.get_size_inches()
    figure.set_size_inches(width + longest, height + longest)
    return style.write(figure, path)


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


def _write_cells(
    axes: Axes, image: AxesImage, texts: Shaped[np.ndarray, "R C"]
) -> None:
    if max(texts.shape) > _MOST_WRITTEN:
        return
    # White on the dark half of the scale.
    dark = np.asarray(image.get_array()) > 0.55 * image.get_clim()[1]
    for (row, column), text in np.ndenumerate(texts):
        color = "white" if dark[row, column] else style.INK
        axes.text(column, row, str(text), ha="center", va="center", size=7, color=color)


def _scale(
    figure: Figure, axes: Axes | list[Axes], image: AxesImage, name: str, **ticks: Any
) -> None:
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02, label=name, **ticks)
    bar.ax.tick_params(labelsize=9, color="0.6", labelcolor=style.INK)
    bar.outline.set(edgecolor="0.8", linewidth=0.8)  # pyright: ignore
