"""Maps of embeddings in the papers' figures: panels with one colour per class and one
marker per client.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Integer
from matplotlib.figure import Figure

from fcjax.results.figures import curves
from fcjax.results.figures.images import cloud, frame, project

MARKERS = "os^DvPX*<>phd8H"
"""A shape a client, those first that are told apart best."""

_INCHES = 3.3
_GREY = "0.45"


class Panel(NamedTuple):
    """One embedding of `maps`, finite."""

    title: str
    embedding: Float[np.ndarray, "n D"]
    labels: Integer[np.ndarray, "n"]
    clients: Integer[np.ndarray, "n"] | None = None
    """Who holds each example: a marker a client; None draws dots alone."""


def draw_maps(
    panels: Sequence[Panel],
    path: str | Path,
    *,
    seed: int = 0,
    max_points: int = 2000,
    groups: str = "class",
    columns: int | None = None,
    mapped: bool = False,
    title: str = "",
) -> Figure:
    """Maps each embedding to the plane by t-SNE of its own, in one row or several.

    A class has one colour in all panels and a client one marker, named below.

    Args:
      panels: embeddings, of any sizes.
      path: where to write the figure; the ending sets the format.
      seed: draws the points shown and seeds the maps. Panels of as many examples show
        the same ones.
      max_points: at most so many examples a panel are shown, drawn at random.
      groups: what the labels are.
      columns: how many panels stand in a row; None puts all in one.
      mapped: the embeddings are maps, [n, 2], and are drawn as they are.
      title: method, data set, heterogeneity and seed.

    Returns:
      The figure, written to `path`.

    Raises:
      ValueError: if there are more clients than `MARKERS`.

    References:
      van der Maaten and Hinton, Visualizing data using t-SNE, 2008.
    """
    classes = np.unique(np.concatenate([panel.labels for panel in panels]))
    held = [panel.clients for panel in panels if panel.clients is not None]
    clients = np.unique(np.concatenate(held)) if held else np.arange(0)
    if len(clients) > len(MARKERS):
        raise ValueError(f"at most {len(MARKERS)} clients have markers: {len(clients)}")
    colors = curves.color_cycle(len(classes))

    # The legends stand beside and below.
    columns = min(columns or len(panels), len(panels))
    num_rows = -(-len(panels) // columns)
    below = 0.75 if len(clients) else 0.3
    figure = Figure(
        (_INCHES * columns + 0.7, _INCHES * num_rows + below), layout="constrained"
    )
    all_axes = figure.subplots(num_rows, columns, squeeze=False).ravel()
    for axes in all_axes[len(panels) :]:
        axes.remove()
    for axes, panel in zip(all_axes, panels, strict=False):
        # A random order, so that no class is painted over all the others.
        order = np.random.default_rng(seed).permutation(len(panel.labels))
        shown = order[:max_points]
        points = panel.embedding[shown]
        if not mapped:
            points = project(points, seed)
        hues = colors[np.searchsorted(classes, panel.labels[shown])]
        frame(axes, panel.title)
        if panel.clients is None:
            cloud(axes, points, hues, len(points))
            continue
        for client, shape in zip(clients, MARKERS, strict=False):
            own = panel.clients[shown] == client
            cloud(axes, points[own], hues[own], len(points), shape)
    look = curves.MARKS | {"columnspacing": 1.0}
    marks = {str(name): curves.mark(c) for name, c in zip(classes, colors, strict=True)}
    placed = {"loc": "outside right center", "ncols": -(-len(classes) // 14)}
    curves.legend(figure, marks, title=groups, **placed, **look)
    if len(clients):
        shapes = zip(clients, MARKERS, strict=False)
        marks = {str(name): curves.mark(_GREY, shape) for name, shape in shapes}
        placed = {"loc": "outside lower center", "ncols": len(clients)}
        curves.legend(figure, marks, title="client", **placed, **look)
    return curves.write(figure, path, title)
