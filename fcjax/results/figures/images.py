"""Figures of examples: embeddings and sheets of images; SVG and images for HTML."""

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

from fcjax.data.dataset import counted
from fcjax.metrics.external import match
from fcjax.results.figures import curves

# --- Embedding


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
    """Draws a t-SNE map of the embedding, coloured by class, cluster and client.

    There is one panel for each of the three. The panel of classes needs labels, and the
    panel of clusters needs assignments. A cluster has the colour of the class that
    matches it.

    Args:
      embedding: [n, D] finite embeddings of at least four examples.
      labels: [n] true classes; None for data without labels.
      clients: [n] the client of each example.
      path: file to write; the ending sets the format.
      assignments: [n] clusters; None only if there are labels.
      seed: seed of t-SNE and of the choice of examples.
      max_points: largest number of examples that are drawn, chosen at random.
      title: title of the figure: method, data set, heterogeneity and seed.

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
    # Classes and the clusters that match them have the same colour.
    shared = np.unique(np.concatenate([hues for _, _, hues in panels]))
    panels.append(("client", clients, clients))
    # The order is random, so that no class hides all other classes.
    sampled = np.random.default_rng(seed).permutation(len(embedding))[:max_points]
    points = project(embedding[sampled], seed)
    figure = Figure(figsize=(5.2 * len(panels), 4.6), layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (kind, names, hues) in zip(all_axes, panels, strict=True):
        known = np.unique(hues) if kind == "client" else shared
        colors = curves.color_cycle(len(known))[np.searchsorted(known, hues)]
        frame(axes, f"by {kind}")
        axes.set(xlabel="t-SNE axis 1 (no unit)", ylabel="t-SNE axis 2 (no unit)")
        cloud(axes, points, colors[sampled], len(points))
        _legend(axes, np.asarray(names), np.asarray(hues), colors, kind)
    return curves.write(figure, path, title)


def project(points: Float[np.ndarray, "n D"], seed: int) -> Float[np.ndarray, "n 2"]:
    """Projects points to the plane with t-SNE.

    Args:
      points: [n, D] at least four points.
      seed: seed of t-SNE.

    Returns:
      [n, 2] positions in the plane.
    """
    # A collapsed embedding has no principal axes for the initial positions.
    flat = points.shape[1] < 2 or np.ptp(points, axis=0).max() == 0
    # One thread is faster than several threads for so few points: 2.5 s against 11 s
    # for 1,800 points on two shared cores.
    with threadpool_limits(1):
        return TSNE(
            perplexity=min(30.0, (len(points) - 1) / 3),
            init="random" if flat else "pca",
            max_iter=500,
            random_state=seed,
        ).fit_transform(points)


def frame(axes: Axes, title: str) -> None:
    """Sets the title of a map, and draws a frame without ticks.

    Args:
      axes: the axes of the map, which are changed.
      title: the title.
    """
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
    """Draws points, which are smaller on a map of many points.

    Args:
      axes: the axes of the map, which are changed.
      points: [n, 2] the positions.
      colors: [n, 4] the colours RGBA, in [0, 1].
      among: the number of points on the whole map, which sets their size.
      marker: the marker of Matplotlib.
    """
    size = 6 if among > 500 else 14 if among > 250 else 22
    axes.scatter(*points.T, c=colors, s=size, marker=marker, linewidths=0, alpha=0.85)


def _legend(
    axes: Axes, names: np.ndarray, hues: np.ndarray, colors: np.ndarray, kind: str
) -> None:
    """Adds a legend of the groups in the order of their hues, at most 20 of them."""
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
    """Draws one row of images per cluster, with the number of examples of the cluster.

    Empty clusters have no row.

    Args:
      images: [P, H, W, C] grey (C = 1) or colour (C = 3) images, uint8 or in [0, 1].
      assignments: [P] clusters. Images with a negative cluster are not drawn.
      path: file to write; the ending sets the format.
      per_cluster: largest number of images per cluster, chosen at random. The row of a
        smaller cluster ends earlier.
      seed: seed of the choice of images.
      title: title of the figure: method, data set, heterogeneity and seed.

    Returns:
      The figure, written to `path`.
    """
    images, assignments = np.asarray(images), np.asarray(assignments)
    clusters, sizes = np.unique(assignments[assignments >= 0], return_counts=True)
    rng = np.random.default_rng(seed)
    columns = min(per_cluster, int(sizes.max()))
    indices = [
        rng.permutation(np.flatnonzero(assignments == cluster))[:columns]
        for cluster in clusters
    ]
    names = [
        f"cluster {cluster}: {counted(int(size), 'example')}"
        for cluster, size in zip(clusters, sizes, strict=True)
    ]
    return image_rows([images[each] for each in indices], names, path, title=title)


def image_rows(
    rows: Sequence[Images],
    names: Sequence[str],
    path: str | Path,
    *,
    captions: Sequence[str] = (),
    title: str = "",
) -> Figure:
    """Draws rows of images, with a name to the left of each row.

    Args:
      rows: one array [n, H, W, C] per row: grey (C = 1) or colour (C = 3) images of one
        size, uint8 or in [0, 1]. The number n may differ between rows.
      names: one name per row.
      path: file to write; the ending sets the format.
      captions: texts above the first columns.
      title: title of the figure.

    Returns:
      The figure, written to `path`.
    """
    rows = [np.asarray(row) for row in rows]
    columns = max(map(len, rows))
    sheet = _mosaic([_unit_range(row) for row in rows], columns)
    # Ten to twenty rows fill a page. More rows are drawn smaller.
    side = min(0.6, 40 / len(rows))
    font = min(9, 60 * side)
    height, border = side * len(rows), 0.1
    width = height * sheet.shape[1] / sheet.shape[0]
    # The axes have a fixed position, because a layout engine leaves no room for names
    # next to a wide image. The width of a letter is about 0.6 of the font size.
    left = 2 * border + 0.6 * font / 72 * max(map(len, names))
    top = 2 * border + 1.2 * font / 72 if captions else border
    top += 0.3 * bool(title)
    # A long title above few images needs a wider figure.
    whole_width = max(left + width, 0.6 * 11 / 72 * len(title)) + border
    figure = Figure(figsize=(whole_width, border + height + top))
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
    """Returns images as float32 in [0, 1]."""
    if images.dtype == np.uint8:
        return images / np.float32(255)
    return images.astype(np.float32)


def _mosaic(
    rows: list[Float[np.ndarray, "_ H W C"]], columns: int
) -> Float[np.ndarray, "height width 3"]:
    """Returns one image of all tiles, with a white border right of and below each."""
    height, width = rows[0].shape[1:3]
    gap = max(1, height // 14)
    shape = len(rows) * (height + gap), columns * (width + gap)
    sheet = np.ones((len(rows), height + gap, columns, width + gap, 3), np.float32)
    for row, images in enumerate(rows):
        sheet[row, :height, : len(images), :width] = images.swapaxes(0, 1)
    return sheet.reshape(*shape, 3)


# --- Parts of HTML pages

_SMALL = 64
"""Largest side in pixels of an image that is embedded without change."""
_THUMBNAIL = 128
"""Largest side in pixels of the thumbnail of a larger image."""
_MOST_TICKS = 8


def image(pixels: np.ndarray) -> str:
    """Returns an image as a data URI; a large image is reduced to a thumbnail.

    Args:
      pixels: [H, W, C] grey (C = 1) or colour (C = 3) image, uint8 or in [0, 1].

    Returns:
      The data URI of a PNG file, or of a JPEG file for a thumbnail.
    """
    if pixels.dtype != np.uint8:
        pixels = np.round(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    kind = "png" if is_small(pixels) else "jpeg"
    if kind == "jpeg":
        picture.thumbnail((_THUMBNAIL, _THUMBNAIL))
    file = io.BytesIO()
    picture.save(file, kind)
    return data_uri(file.getvalue(), kind)


def data_uri(content: bytes, kind: str = "png") -> str:
    """Returns the content of an image file as a data URI.

    Args:
      content: the bytes of the file.
      kind: the format of the image, for example "png" or "jpeg".

    Returns:
      The URI, for the `src` of an image in HTML.
    """
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def is_small(pixels: np.ndarray) -> bool:
    """Returns whether an image is embedded without change, with square pixels.

    Args:
      pixels: [H, W] or [H, W, C] the image.

    Returns:
      True for images of at most 64 x 64 pixels.
    """
    return max(pixels.shape[:2]) <= _SMALL


def scatter(
    points: Float[np.ndarray, "n 2"],
    groups: Integer[np.ndarray, "n"],
    titles: Sequence[str],
    *,
    num_groups: int,
) -> str:
    """Returns a scatter plot of groups as an SVG element.

    The number of a group stands at the point that is nearest to its median.

    Args:
      points: [n, 2] positions of the points.
      groups: [n] group of each point, in 0 .. num_groups - 1, which sets its colour.
      titles: tooltip of each point.
      num_groups: number of colours.

    Returns:
      The SVG element as text.
    """
    width, height, edge = 640, 480, 20
    low, high = points.min(axis=0), points.max(axis=0)
    room = np.array([width - 2 * edge, height - 2 * edge])
    # Both axes have the same scale, and the second axis points upwards.
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
        members = placed[groups == group]
        # The median of a group that lies in several places may be far from all points.
        offsets = members - np.median(members, axis=0)
        x, y = members[np.linalg.norm(offsets, axis=1).argmin()]
        names.append(f'<text x="{x:.1f}" y="{y:.1f}">{group}</text>')
    return (
        f'<svg class="map" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="map of the embedding">{"".join(circles)}{"".join(names)}</svg>'
    )


def curve(title: str, values: Mapping[float, float], *, marked: float) -> str:
    """Returns a small line plot as an SVG element.

    Args:
      title: text above the line.
      values: by position on the horizontal axis, the value. NaN is left out.
      marked: position of the point that is filled.

    Returns:
      The SVG element as text; "" without finite values.
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
