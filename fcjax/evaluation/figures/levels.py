"""Scores against the level of heterogeneity, or of another swept value."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fcjax.evaluation.figures import style
from fcjax.evaluation.tables import Estimate, setting_of, summarize

_OURS = {"linewidth": 1.6, "marker": "o", "markersize": 4}
_PAPER = {
    "linestyle": "--",
    "linewidth": 1.1,
    "marker": "s",
    "markersize": 4,
    "markerfacecolor": "white",
}


def against_p(
    rows: Sequence[Mapping[str, Any]],
    path: str | Path,
    *,
    by: Sequence[str] = ("method", "dataset"),
    values: Sequence[str] = ("nmi", "kappa"),
    paper: Mapping[tuple, Mapping[str, float]] | None = None,
    level: str = "p",
    log: bool = False,
) -> Figure:
    """Draws scores against p, one line a setting.

    A line is the mean over the runs of its setting, the bars its 95 % interval where
    there are several runs. The paper's values are a dashed line with squares.

    Args:
      rows: one dict a run, as in results.csv.
      path: where to write the figure; the ending sets the format.
      by: the columns that make a setting, without the level.
      values: the columns to draw, one panel each. Scores share the range 0 to 1.
      paper: from a setting and a level, a tuple in the order of `by` with the level
        last, to the paper's values. Settings that no row has are not drawn.
      level: the column on the horizontal axis: p, or failure_rate or model_weight for
        Figures 6 and 7 of the CCFC paper.
      log: spaces the levels by their logarithm, with room for 0.

    Returns:
      The figure, written to `path`.

    Raises:
      ValueError: if there are no rows, a column is missing, or a level is not a number.
    """
    if not rows:
        raise ValueError("no results to draw")
    for row in rows:
        at = setting_of(row, [level])[0]
        if at is None or isinstance(at, str):
            raise ValueError(f"{level} must be a number, got {at!r}")
    summary = summarize(rows, by=[*by, level], values=values)
    summary.sort(key=lambda line: line[level])
    settings = list(dict.fromkeys(setting_of(row, by) for row in rows))
    colors = style.colors(len(settings))
    known = {k: v for k, v in (paper or {}).items() if k[:-1] in settings}

    handles = {
        style.name_setting(by, setting): Line2D([], [], color=color, **_OURS)
        for setting, color in zip(settings, colors, strict=True)
        if by
    }
    if known:
        handles["paper"] = Line2D([], [], color=style.INK, **_PAPER)
    # Long names stand below each other, short ones side by side.
    num_columns = max(1, 84 // (8 + max(map(len, handles), default=0)))
    height = 0.7 + 2.3 * len(values) + 0.22 * math.ceil(len(handles) / num_columns)
    figure = Figure(figsize=(7.2, height), layout="constrained")
    panels = figure.subplots(len(values), sharex=True, squeeze=False)[:, 0]
    levels = sorted({float(line[level]) for line in summary})
    _level_axis(panels[-1], level, levels, log)
    for axes, value in zip(panels, values, strict=True):
        for setting, color in zip(settings, colors, strict=True):
            of_setting = [line for line in summary if setting_of(line, by) == setting]
            measured = {
                float(line[level]): line[value] for line in of_setting if value in line
            }
            _bars(axes, measured, color)
            reported = {
                float(key[-1]): scores[value]
                for key, scores in known.items()
                if key[:-1] == setting and value in scores
            }
            _dashed(axes, reported, color)
        axes.set_ylabel(style.SCORE_TITLES.get(value, value), fontsize=10)
        if value in style.SCORE_TITLES:
            style.score_range(axes)
        style.plain_axes(axes)
    figure.align_ylabels(panels)
    if handles:
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower center",
            ncols=min(num_columns, len(handles)),
            frameon=False,
            fontsize=9,
        )
    return style.write(figure, path)


def _level_axis(axes: Axes, name: str, levels: Sequence[float], log: bool) -> None:
    # Before anything is drawn, so that the margins are those of the scale.
    if log:
        smallest = min((x for x in levels if x > 0), default=1.0)
        axes.set_xscale("symlog", linthresh=smallest, linscale=0.5)
    if len(levels) <= 10:
        axes.set_xticks(levels, [f"{x:g}" for x in levels])
        axes.minorticks_off()
    axes.set_xlabel(name, fontsize=10)


def _bars(axes: Axes, measured: Mapping[float, Estimate], color: Any) -> None:
    if measured:
        axes.errorbar(
            list(measured),
            [e.mean for e in measured.values()],
            yerr=np.array([e.half_width or 0.0 for e in measured.values()]),
            color=color,
            capsize=3,
            elinewidth=1.0,
            **_OURS,
        )


def _dashed(axes: Axes, reported: Mapping[float, float], color: Any) -> None:
    if reported:
        levels = sorted(reported)
        means = [reported[x] for x in levels]
        # Above the measured lines, whose intervals would cross out the squares.
        axes.plot(levels, means, color=color, zorder=3, **_PAPER)
