"""Draws t-SNE maps of embeddings: one colour per class, one marker shape per client."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Integer
from matplotlib.figure import Figure

from fcjax.results.figures import curves
from fcjax.results.figures.images import cloud, frame, project

MARKERS = "os^DvPX*<>phd8H"
"""Marker shapes of the clients, the most distinct shapes first."""

_INCHES = 3.3
_GREY = "0.45"


class Panel(NamedTuple):
    """One embedding of a figure. All its values are finite."""

    title: str
    embedding: Float[np.ndarray, "n D"]
    labels: Integer[np.ndarray, "n"]
    clients: Integer[np.ndarray, "n"] | None = None
    """The client of each example. None draws all examples as dots."""


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
    """Maps each embedding to the plane by t-SNE, and draws one panel per embedding.

    A class has the same colour in all panels. A client has the same marker in all
    panels. Legends name both.

    Args:
      panels: the embeddings, of any dimension and number of examples.
      path: file of the figure. Its ending sets the format.
      seed: seed of the sub-sample and of t-SNE. Panels with equally many examples show
        the same examples.
      max_points: maximum number of examples per panel, a random sub-sample.
      groups: title of the colour legend.
      columns: number of panels per row. None puts all panels into one row.
      mapped: whether the embeddings are points in the plane, [n, 2]. Such points are
        drawn as they are.
      title: title of the figure: method, data set, heterogeneity and seed.

    Returns:
      The figure, written to `path`.

    Raises:
      ValueError: if there are more clients than `MARKERS`.

    References:
      van der Maaten and Hinton, Visualizing data using t-SNE, 2008.
    """
    classes = np.unique(np.concatenate([panel.labels for panel in panels]))
    clients_by_panel = [panel.clients for panel in panels if panel.clients is not None]
    clients = (
        np.unique(np.concatenate(clients_by_panel))
        if clients_by_panel
        else np.arange(0)
    )
    if len(clients) > len(MARKERS):
        raise ValueError(
            f"at most {len(MARKERS)} clients have a marker, got {len(clients)} clients"
        )
    colors = curves.color_cycle(len(classes))

    # The figure needs room for the legends on the right and at the bottom.
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
        # In a random order no class hides all other classes.
        order = np.random.default_rng(seed).permutation(len(panel.labels))
        shown = order[:max_points]
        points = panel.embedding[shown]
        if not mapped:
            points = project(points, seed)
        point_colors = colors[np.searchsorted(classes, panel.labels[shown])]
        frame(axes, panel.title)
        if panel.clients is None:
            cloud(axes, points, point_colors, len(points))
            continue
        for client, shape in zip(clients, MARKERS, strict=False):
            is_client = panel.clients[shown] == client
            cloud(axes, points[is_client], point_colors[is_client], len(points), shape)
    style = curves.MARKS | {"columnspacing": 1.0}
    marks = {str(name): curves.mark(c) for name, c in zip(classes, colors, strict=True)}
    position = {"loc": "outside right center", "ncols": -(-len(classes) // 14)}
    curves.legend(figure, marks, title=groups, **position, **style)
    if len(clients):
        shapes = zip(clients, MARKERS, strict=False)
        marks = {str(name): curves.mark(_GREY, shape) for name, shape in shapes}
        position = {"loc": "outside lower center", "ncols": len(clients)}
        curves.legend(figure, marks, title="client", **position, **style)
    return curves.write(figure, path, title)
