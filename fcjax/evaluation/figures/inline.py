"""Figures as text of an HTML page, in the page's own colours, light or dark."""

import base64
import html
import io
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Integer
from matplotlib.colors import to_hex
from PIL import Image

from fcjax.evaluation.figures import style

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
    colors = [to_hex(color) for color in style.colors(num_groups)]
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
