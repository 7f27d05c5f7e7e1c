"""Lines of means with their intervals, and the legend that names them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fcjax.evaluation.figures import style
from fcjax.evaluation.tables import Estimate

# More bands than these hide each other.
_MOST_BANDS = 12
# More colours than these are a scale, for which fewer names will do.
_MOST_NAMED, _SCALE_NAMES = 20, 12


def panel(
    axes: Axes,
    curves: Sequence[tuple[Any, Mapping[float, Estimate]]],
    value: str,
    *,
    among: int,
    marker: str,
    markersize: float,
) -> None:
    """Plots estimates where they were measured, in translucent bands of intervals.

    A NaN leaves a gap in the line, and an estimate without an interval in the band.

    Args:
      axes: where to draw. Scores share the range 0 to 1, and below 0 what lies there;
        a wide interval, such as that of two seeds, does not change it.
      curves: a colour, and from a place on the horizontal axis to what was measured.
      value: what was measured.
      among: how many settings there are; more than 12 are thin lines without bands.
      marker: at the estimates of a line; a single estimate always has one.
      markersize: in points.
    """
    crowded = among > _MOST_BANDS
    curves = [(color, means) for color, means in curves if means]
    for color, means in curves:
        axes.plot(
            list(means),
            [e.mean for e in means.values()],
            color=color,
            linewidth=0.9 if crowded else 1.5,
            marker=marker if len(means) > 1 else "o",
            markersize=markersize,
        )
    if value in style.SCORE_TITLES:
        style.score_range(axes)
    for color, means in () if crowded else curves:
        _band(axes, means, color)
    axes.set_ylabel(style.TITLES.get(value, value), fontsize=10)
    style.plain_axes(axes)


def _band(axes: Axes, means: Mapping[float, Estimate], color: Any) -> None:
    known = [np.nan if e.half_width is None else e.half_width for e in means.values()]
    mean, half_width = np.array([e.mean for e in means.values()]), np.array(known)
    if np.nan_to_num(half_width).any():
        axes.fill_between(
            list(means),
            mean - half_width,
            mean + half_width,
            facecolor=to_rgba(color, 0.18),
            # All that is seen of a band over one place alone.
            edgecolor=to_rgba(color, 0.4),
            linewidth=0.8,
        )


def legend(
    figure: Figure,
    settings: Mapping[str, Line2D],
    *,
    also: Mapping[str, Line2D] | None = None,
) -> None:
    """Adds a legend below, for which the figure grows; none where there are no names.

    Args:
      figure: of a constrained layout.
      settings: from a name to its line. More than 20 have colours of a scale, and an
        even choice of 12 is named.
      also: what else is named.
    """
    chosen = list(settings)
    cut = len(chosen) > _MOST_NAMED
    if cut:
        places = np.linspace(0, len(chosen) - 1, _SCALE_NAMES).round().astype(int)
        chosen = [chosen[i] for i in places]
    handles = {name: settings[name] for name in chosen} | dict(also or {})
    if not handles:
        return
    # Long names stand below each other, short ones side by side.
    columns = min(len(handles), max(1, 84 // (8 + max(map(len, handles)))))
    width, height = figure.get_size_inches()
    rows = math.ceil(len(handles) / columns) + cut
    figure.set_size_inches(width, height + 0.22 * rows)
    figure.legend(
        list(handles.values()),
        list(handles),
        title=f"{len(chosen)} of {len(settings)} settings" if cut else None,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=9,
        title_fontsize=9,
    )
