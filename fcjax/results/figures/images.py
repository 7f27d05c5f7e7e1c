"""Figures of examples: embeddings, panels, sheets; SVG for HTML pages."""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Array, Float, Integer, UInt8
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from fcjax.metrics.external import match
from fcjax.results.figures import curves

# --- Latent


def tsne(
    embedding: Float[np.ndarray | Array, "n D"],
    labels: Integer[np.ndarray | Array, "n"] | None,
    clients: Integer[np.ndarray | Array, "n"],
    path: str | Path,
    *,
    assignments: Integer[np.ndarray | Array, "n"] | None = None,
    seed: int = 0,
    max_points: int = 2000,
    title: str = "",
) -> Figure:
    """Maps the latent space to the plane, once, and colours it up to three times.

    The panels show classes where there are labels, clusters where there are
    assignments, and clients. A cluster has the colour of the class that it matches.

    Args:
      embedding: [n, D] finite latent vectors, at least four.
      labels: [n] true classes, or None.
      clients: [n] the client that holds each example.
      path: where to write the figure; the ending sets the format.
      assignments: [n] clusters, needed where labels are None.
      seed: draws the points shown and seeds the map.
      max_points: at most so many examples are shown, drawn at random.
      title: method, data set, heterogeneity and seed.

    Returns:
      The figure, written to `path`.

    References:
      van der Maaten and Hinton, Visualizing data using t-SNE, 2008.
    """
    embedding = np.asarray(embedding, np.float32)
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
        colors = curves.color_cycle(len(known))[np.searchsorted(known, hues)]
        frame(axes, f"by {kind}")
        cloud(axes, points, colors[shown], len(points))
        _legend(axes, np.asarray(names), np.asarray(hues), colors, kind)
    return curves.write(figure, path, title)


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
    axes.set_title(title, fontsize=12, color=curves.INK)
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
    marks = {str(names[i]): curves.mark(tuple(colors[i])) for i in listed}
    placed = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    curves.legend(axes, marks, title=kind, **placed, **curves.MARKS)


# --- Sheets

Images = UInt8[np.ndarray | Array, "_ _ _ _"] | Float[np.ndarray | Array, "_ _ _ _"]


def contact_sheet(
    images: Images,
    assignments: Integer[np.ndarray | Array, "_"],
    path: str | Path,
    *,
    per_cluster: int = 16,
    seed: int = 0,
    title: str = "",
) -> Figure:
    """Draws a row of images for every occupied cluster, named with the cluster's size.

    Args:
      images: [P, H, W, C] grey (C = 1) or colour (C = 3) images, uint8 or in [0, 1].
      assignments: [P] clusters; images of a negative one are not shown.
      path: where to write the figure; the ending sets the format.
      per_cluster: how many images of a cluster are shown, drawn at random; a cluster
        with fewer leaves the rest of its row blank.
      seed: draws them.
      title: method, data set, heterogeneity and seed.

    Returns:
      The figure, written to `path`.
    """
    images, assignments = np.asarray(images), np.asarray(assignments)
    clusters, sizes = np.unique(assignments[assignments >= 0], return_counts=True)
    rng = np.random.default_rng(seed)
    columns = min(per_cluster, int(sizes.max()))
    drawn = [
        rng.permutation(np.flatnonzero(assignments == cluster))[:columns]
        for cluster in clusters
    ]
    called = zip(clusters, sizes, strict=True)
    names = [f"cluster {cluster} ({size:,})" for cluster, size in called]
    return image_rows([images[rows] for rows in drawn], names, path, title=title)


def image_rows(
    rows: Sequence[Images],
    names: Sequence[str],
    path: str | Path,
    *,
    captions: Sequence[str] = (),
    title: str = "",
) -> Figure:
    """Draws rows of images with a name at the left of each.

    Args:
      rows: [n, H, W, C] each, grey (C = 1) or colour (C = 3) images of one size, uint8
        or in [0, 1]; a shorter one leaves the rest blank.
      names: one a row.
      path: where to write the figure; the ending sets the format.
      captions: one above each of the first columns.
      title: of the figure.

    Returns:
      The figure, written to `path`.
    """
    rows = [np.asarray(row) for row in rows]
    columns = max(map(len, rows))
    sheet = _mosaic([_unit_range(row) for row in rows], columns)
    # Ten to twenty rows fill a page; more of them still fit a file.
    side = min(0.6, 40 / len(rows))
    font = min(9, 60 * side)
    height, border = side * len(rows), 0.1
    width = height * sheet.shape[1] / sheet.shape[0]
    # The axes are placed by hand, since a wide image leaves a layout engine no room
    # for what stands beside it. A letter is some 0.6 of the font's size wide.
    left = 2 * border + 0.6 * font / 72 * max(map(len, names))
    top = 2 * border + 1.2 * font / 72 if captions else border
    top += 0.3 * bool(title)
    figure = Figure(figsize=(left + width + border, border + height + top))
    placed = np.array([[left, border], [width, height]]) / figure.get_size_inches()
    axes = figure.add_axes(placed.ravel())  # pyright: ignore
    axes.imshow(sheet)
    middles = sheet.shape[0] / len(rows) * (np.arange(len(rows)) + 0.5) - 0.5
    axes.set_yticks(middles, names, fontsize=font, color=curves.INK)
    centres = sheet.shape[1] / columns * (np.arange(len(captions)) + 0.5) - 0.5
    axes.set_xticks(centres, captions, fontsize=font, color=curves.INK)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return curves.write(figure, path, title)


def _unit_range(images: np.ndarray) -> Float[np.ndarray, "n H W C"]:
    if images.dtype == np.uint8:
        return images / np.float32(255)
    return images.astype(np.float32)


def _mosaic(
    rows: list[Float[np.ndarray, "_ H W C"]], columns: int
) -> Float[np.ndarray, "height width 3"]:
    """Tiles with a white border to the right of and below each of them."""
    height, width = rows[0].shape[1:3]
    gap = max(1, height // 14)
    shape = len(rows) * (height + gap), columns * (width + gap)
    sheet = np.ones((len(rows), height + gap, columns, width + gap, 3), np.float32)
    for row, images in enumerate(rows):
        sheet[row, :height, : len(images), :width] = images.swapaxes(0, 1)
    return sheet.reshape(*shape, 3)


# --- Inline

_SMALL = 64
"""Pixels a side up to which an image is embedded as it is."""
_THUMBNAIL = 128
"""Pixels a side of what is left of a larger one."""
_MOST_TICKS = 8


def image(pixels: np.ndarray) -> str:
    """Returns an image as a data URI: a small one as it is, a large one as a thumbnail.

    Args:
      pixels: [H, W, C] grey (C = 1) or colour (C = 3), uint8 or in [0, 1].
    """
    if pixels.dtype != np.uint8:
        pixels = np.round(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
    drawn = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    kind = "png" if is_small(pixels) else "jpeg"
    if kind == "jpeg":
        drawn.thumbnail((_THUMBNAIL, _THUMBNAIL))
    file = io.BytesIO()
    drawn.save(file, kind)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def is_small(pixels: np.ndarray) -> bool:
    """Whether an image is so small that its pixels are shown as squares."""
    return max(pixels.shape[:2]) <= _SMALL


def scatter(
    points: Float[np.ndarray, "n 2"],
    groups: Integer[np.ndarray, "n"],
    titles: Sequence[str],
    *,
    num_groups: int,
) -> str:
    """Returns a map of points, coloured by their group, as an SVG element.

    Args:
      points: where they lie.
      groups: in 0 .. num_groups - 1; its number stands in the middle of them.
      titles: what is shown of a point that is pointed at.
      num_groups: how many colours are told apart.
    """
    width, height, edge = 640, 480, 20
    low, high = points.min(axis=0), points.max(axis=0)
    room = np.array([width - 2 * edge, height - 2 * edge])
    # One scale for both axes, and the second one upwards.
    scale = np.min(room / np.maximum(high - low, 1e-6))
    placed = (points - (low + high) / 2) * scale * [1, -1] + [width / 2, height / 2]
    colors = [to_hex(color) for color in curves.color_cycle(num_groups)]
    radius = 2.5 if len(points) > 500 else 4
    circles = [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colors[group]}">'
        f"<title>{html.escape(title)}</title></circle>"
        for (x, y), group, title in zip(placed, groups, titles, strict=True)
    ]
    names = []
    for group in np.unique(groups):
        own = placed[groups == group]
        # A group in several places has a median where none of its points lie.
        x, y = own[np.linalg.norm(own - np.median(own, axis=0), axis=1).argmin()]
        names.append(f'<text x="{x:.1f}" y="{y:.1f}">{group}</text>')
    return (
        f'<svg class="map" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="map of the embedding">{"".join(circles)}{"".join(names)}</svg>'
    )


def curve(title: str, values: Mapping[float, float], *, marked: float) -> str:
    """Returns a line through values at numbers such as cluster counts, as an SVG
    element.

    Args:
      title: above the line.
      values: from a place on the horizontal axis to what was measured there; NaN is
        left out.
      marked: the place whose point is filled.
    """
    width, height, left, top, bottom = 260, 150, 46, 26, 24
    known = {x: y for x, y in sorted(values.items()) if np.isfinite(y)}
    if not known:
        return ""
    xs, ys = np.array(list(known)), np.array(list(known.values()))
    span_x, span_y = np.ptp(xs) or 1.0, np.ptp(ys) or 1.0
    px = left + 10 + (xs - xs[0]) / span_x * (width - left - 30)
    py = height - bottom - 8 - (ys - ys.min()) / span_y * (height - top - bottom - 16)
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(px, py, strict=True))
    parts = [
        f'<text x="0" y="12">{html.escape(title)}</text>',
        f'<path d="M{left},{top}V{height - bottom}H{width - 6}"/>',
        f'<polyline points="{line}"/>',
    ]
    step = -(-len(xs) // _MOST_TICKS)
    for i, (x, y, at) in enumerate(zip(px, py, xs, strict=True)):
        kind = ' class="marked"' if at == marked else ""
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"{kind}/>')
        if i % step:
            continue
        parts.append(f'<text class="x" x="{x:.1f}" y="{height - 8}">{at:g}</text>')
    for i in {int(ys.argmin()), int(ys.argmax())}:
        parts.append(
            f'<text class="y" x="{left - 6}" y="{py[i] + 4:.1f}">{ys[i]:.3g}</text>'
        )
    return (
        f'<svg class="curve" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{html.escape(title)}">{"".join(parts)}</svg>'
    )
