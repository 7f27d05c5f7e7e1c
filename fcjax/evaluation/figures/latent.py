"""Maps of the latent space."""

from pathlib import Path

import numpy as np
from jaxtyping import Array, Float, Integer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from fcjax.evaluation.figures import style
from fcjax.evaluation.scores import match


def tsne(
    embedding: Float[np.ndarray | Array, "n D"],
    labels: Integer[np.ndarray | Array, "n"] | None,
    clients: Integer[np.ndarray | Array, "n"],
    path: str | Path,
    *,
    assignments: Integer[np.ndarray | Array, "n"] | None = None,
    seed: int = 0,
    max_points: int = 2000,
) -> Figure:
    """Maps the latent space to the plane, once, and colours it up to three times.

    The panels show classes where there are labels, clusters where there are
    assignments, and clients. A cluster has the colour of the class that it matches.

    Args:
      embedding: [n, D] latent vectors.
      labels: [n] true classes, or None.
      clients: [n] the client that holds each example.
      path: where to write the figure; the ending sets the format.
      assignments: [n] clusters, needed where labels are None.
      seed: draws the points shown and seeds the map.
      max_points: at most so many examples are shown, drawn at random.

    Returns:
      The figure, written to `path`.

    Raises:
      ValueError: if there are neither labels nor assignments, fewer than 4 examples,
        or an embedding that is not finite.

    References:
      van der Maaten and Hinton, Visualizing data using t-SNE, 2008.
    """
    if labels is None and assignments is None:
        raise ValueError("t-SNE needs labels or assignments to colour by")
    embedding = checked(embedding)
    panels = []
    if labels is not None:
        panels.append(("class", labels, labels))
    if assignments is not None:
        renamed = assignments if labels is None else match(labels, assignments)
        panels.append(("cluster", assignments, renamed))
    # Classes and the clusters that match them share a colour.
    shared = np.unique(np.concatenate([hues for _, _, hues in panels]))
    panels.append(("client", clients, clients))
    # A random order, so that no class is painted over all the others.
    shown = np.random.default_rng(seed).permutation(len(embedding))[:max_points]
    points = project(embedding[shown], seed)
    figure = Figure(figsize=(5.2 * len(panels), 4.6), layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (kind, names, hues) in zip(all_axes, panels, strict=True):
        known = np.unique(hues) if kind == "client" else shared
        colors = style.colors(len(known))[np.searchsorted(known, hues)]
        frame(axes, f"by {kind}")
        cloud(axes, points, colors[shown], len(points))
        _legend(axes, np.asarray(names), np.asarray(hues), colors, kind)
    return style.write(figure, path)


def checked(embedding: Float[np.ndarray | Array, "n D"]) -> Float[np.ndarray, "n D"]:
    """Returns the embedding as float32; raises ValueError where t-SNE has no map."""
    embedding = np.asarray(embedding, np.float32)
    if len(embedding) < 4:
        raise ValueError(f"t-SNE needs at least 4 examples, not {len(embedding)}")
    if not np.isfinite(embedding).all():
        raise ValueError("the embedding holds NaN or infinite values")
    return embedding


def project(points: Float[np.ndarray, "n D"], seed: int) -> Float[np.ndarray, "n 2"]:
    """Returns the t-SNE map of the points."""
    # A collapsed embedding has no principal axes to start from.
    flat = points.shape[1] < 2 or np.ptp(points, axis=0).max() == 0
    # So few points are mapped faster by one thread than by several that wait for each
    # other: 2.5 s against 11 s for 1,800 points on two shared cores.
    with threadpool_limits(1):
        return TSNE(
            perplexity=min(30.0, (len(points) - 1) / 3),
            init="random" if flat else "pca",
            max_iter=500,
            random_state=seed,
        ).fit_transform(points)


def frame(axes: Axes, title: str) -> None:
    """Gives a map its title and a frame without ticks."""
    axes.set_title(title, fontsize=12, color=style.INK)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(color="0.8", linewidth=0.8)


def cloud(
    axes: Axes,
    points: Float[np.ndarray, "n 2"],
    colors: Float[np.ndarray, "n 4"],
    among: int,
    marker: str = "o",
) -> None:
    """Draws points of the size that `among` points in all leave them."""
    size = 6 if among > 500 else 14 if among > 250 else 22
    axes.scatter(*points.T, c=colors, s=size, marker=marker, linewidths=0, alpha=0.85)


def _legend(
    axes: Axes, names: np.ndarray, hues: np.ndarray, colors: np.ndarray, kind: str
) -> None:
    """Names the groups in the order of their hues; many by an even choice of them."""
    _, first = np.unique(hues, return_index=True)
    listed = first[np.linspace(0, len(first) - 1, min(len(first), 20)).astype(int)]
    marks = {str(names[i]): style.mark(tuple(colors[i])) for i in listed}
    placed = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    style.legend(axes, marks, title=kind, **placed, **style.MARKS)
