"""Sheets of images: what a cluster looks like, or what a generator makes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Array, Float, Integer, UInt8
from matplotlib.figure import Figure

from fcjax.evaluation.figures import style

Images = UInt8[np.ndarray | Array, "_ _ _ _"] | Float[np.ndarray | Array, "_ _ _ _"]


def contact_sheet(
    images: Images,
    assignments: Integer[np.ndarray | Array, "_"],
    path: str | Path,
    *,
    per_cluster: int = 16,
    seed: int = 0,
) -> Figure:
    """Draws a row of images for every occupied cluster, named with the cluster's size.

    Args:
      images: [P, H, W, C] grey (C = 1) or colour (C = 3) images, uint8 or in [0, 1].
      assignments: [P] clusters; images of a negative one are not shown.
      path: where to write the figure; the ending sets the format.
      per_cluster: how many images of a cluster are shown, drawn at random; a cluster
        with fewer leaves the rest of its row blank.
      seed: draws them.

    Returns:
      The figure, written to `path`.

    Raises:
      ValueError: if lengths differ, no image has a cluster, per_cluster is below 1, or
        the images are not grey or colour or outside [0, 1].
    """
    images, assignments = np.asarray(images), np.asarray(assignments)
    if len(images) != len(assignments):
        raise ValueError(f"{len(images)} images but {len(assignments)} assignments")
    if per_cluster < 1:
        raise ValueError(f"per_cluster must be at least 1, got {per_cluster}")
    clusters, sizes = np.unique(assignments[assignments >= 0], return_counts=True)
    if not len(clusters):
        raise ValueError("no image has a cluster")
    rng = np.random.default_rng(seed)
    columns = min(per_cluster, int(sizes.max()))
    drawn = [
        rng.permutation(np.flatnonzero(assignments == cluster))[:columns]
        for cluster in clusters
    ]
    called = zip(clusters, sizes, strict=True)
    names = [f"cluster {cluster} ({size:,})" for cluster, size in called]
    return image_rows([images[rows] for rows in drawn], names, path)


def image_rows(
    rows: Sequence[Images],
    names: Sequence[str],
    path: str | Path,
    *,
    captions: Sequence[str] = (),
) -> Figure:
    """Draws rows of images with a name at the left of each.

    Args:
      rows: [n, H, W, C] each, grey (C = 1) or colour (C = 3) images of one size, uint8
        or in [0, 1]; a shorter one leaves the rest blank.
      names: one a row.
      path: where to write the figure; the ending sets the format.
      captions: one above each of the first columns.

    Returns:
      The figure, written to `path`.

    Raises:
      ValueError: if there are no images, names and rows differ in number, or the
        images are not grey or colour or outside [0, 1].
    """
    rows = [np.asarray(row) for row in rows]
    columns = max(map(len, rows), default=0)
    if not columns:
        raise ValueError("no images to draw")
    if len(rows) != len(names):
        raise ValueError(f"{len(rows)} rows but {len(names)} names")
    if rows[0].shape[-1] not in (1, 3):
        raise ValueError(f"images have 1 or 3 channels, not {rows[0].shape[-1]}")
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
    figure = Figure(figsize=(left + width + border, border + height + top))
    placed = np.array([[left, border], [width, height]]) / figure.get_size_inches()
    axes = figure.add_axes(placed.ravel())  # pyright: ignore
    axes.imshow(sheet)
    middles = sheet.shape[0] / len(rows) * (np.arange(len(rows)) + 0.5) - 0.5
    axes.set_yticks(middles, names, fontsize=font, color=style.INK)
    centres = sheet.shape[1] / columns * (np.arange(len(captions)) + 0.5) - 0.5
    axes.set_xticks(centres, captions, fontsize=font, color=style.INK)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return style.write(figure, path)


def _unit_range(images: np.ndarray) -> Float[np.ndarray, "n H W C"]:
    if images.dtype == np.uint8:
        return images / np.float32(255)
    # Written so that NaN fails, too.
    if not ((images >= 0) & (images <= 1)).all():
        raise ValueError("images outside [0, 1]")
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
