"""Differences with their intervals, a line each."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fcjax.evaluation.figures import style


def intervals(
    lines: Mapping[str, tuple[float, float, float, bool]],
    path: str | Path,
    *,
    title: str,
) -> Figure:
    """Draws a mean and its interval for each name, the first one at the top; filled
    where it is no chance.

    Args:
      lines: by name the mean, the ends of its interval, NaN where it has none, and
        whether it is no chance.
      path: where to write the figure; the ending sets the format.
      title: of the horizontal axis.

    Returns:
      The figure, written to `path`.

    Raises:
      ValueError: if there is no line.
    """
    if not lines:
        raise ValueError("no differences to draw")
    figure = Figure(figsize=(6.4, 1.0 + 0.34 * len(lines)), layout="constrained")
    axes = figure.subplots()
    for place, (mean, low, high, is_sure) in enumerate(lines.values()):
        axes.plot([low, high], [place, place], color="tab:blue", linewidth=1.6)
        face = "tab:blue" if is_sure else "white"
        look = {"marker": "o", "markersize": 6, "color": "tab:blue"}
        axes.plot(mean, place, markerfacecolor=face, **look)
    axes.axvline(0, color=style.INK, linewidth=0.9, linestyle=":")
    axes.set_yticks(range(len(lines)), list(lines))
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlabel(title)
    style.plain_axes(axes)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color="0.92", linewidth=0.8)
    values = np.array([line[:3] for line in lines.values()])
    reach = 1.08 * max(np.nanmax(np.abs(values)), 0.01)
    axes.set_xlim(min(-0.2 * reach, 1.08 * np.nanmin(values)), None)
    if np.nanmax(values) < 0.2 * reach:
        axes.set_xlim(None, 0.2 * reach)
    return style.write(figure, path)
