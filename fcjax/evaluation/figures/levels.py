"""Scores against a swept value: p, a weight, a learning rate, a failure rate."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fcjax.evaluation.figures import lines, style
from fcjax.evaluation.tables import setting_of, summarize

_OURS = {"marker": "o", "markersize": 4.0}
_PAPER = {
    "linestyle": "--",
    "linewidth": 1.1,
    "marker": "s",
    "markersize": 4,
    "markerfacecolor": "white",
}


def against(
    rows: Sequence[Mapping[str, Any]],
    path: str | Path,
    *,
    level: str,
    by: Sequence[str] = ("method", "dataset"),
    values: Sequence[str] = ("nmi", "kappa"),
    paper: Mapping[tuple, Mapping[str, float]] | None = None,
    log: bool | None = None,
) -> Figure:
    """Draws scores against a swept value, one line a setting.

    A line is the mean over the runs of its setting, the band around it the 95 %
    interval where there are several; more than 12 settings have no bands, and of more
    than 20 the legend names 12. A mean of NaN leaves a gap. The paper's values are a
    dashed line with squares.

    Args:
      rows: one dict a run, as in results.csv.
      path: where to write the figure; the ending sets the format.
      level: the column on the horizontal axis: p, or failure_rate or model_weight for
        Figures 6 and 7 of the CCFC paper.
      by: the columns that make a setting, without the level.
      values: the columns to draw, one panel each. Scores share the range 0 to 1.
      paper: from a setting and a level, a tuple in the order of `by` with the level
        last, to the paper's values. Settings that no row has are not drawn.
      log: spaces the levels by their logarithm, with room for 0; None does so where
        those above 0 span more than a factor of 20.

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

    figure = Figure(figsize=(7.2, 0.7 + 2.3 * len(values)), layout="constrained")
    panels = figure.subplots(len(values), sharex=True, squeeze=False)[:, 0]
    levels = sorted({float(line[level]) for line in summary})
    _level_axis(panels[-1], level, levels, log)
    for axes, value in zip(panels, values, strict=True):
        curves = []
        for setting, color in zip(settings, colors, strict=True):
            of_setting = [line for line in summary if setting_of(line, by) == setting]
            measured = {
                float(line[level]): line[value] for line in of_setting if value in line
            }
            curves.append((color, measured))
            reported = {
                float(key[-1]): scores[value]
                for key, scores in known.items()
                if key[:-1] == setting and value in scores
            }
            _dashed(axes, reported, color)
        lines.panel(axes, curves, value, among=len(settings), **_OURS)
    figure.align_ylabels(panels)
    handles = {
        style.name_setting(by, setting): Line2D([], [], color=color, **_OURS)
        for setting, color in zip(settings, colors, strict=True)
        if by
    }
    paper_line = Line2D([], [], color=style.INK, **_PAPER)
    lines.legend(figure, handles, also={"paper": paper_line} if known else None)
    return style.write(figure, path)


def _level_axis(
    axes: Axes, name: str, levels: Sequence[float], log: bool | None
) -> None:
    # Before anything is drawn, so that the margins are those of the scale.
    above = [x for x in levels if x > 0] or [1.0]
    if log or (log is None and max(above) > 20 * min(above)):
        axes.set_xscale("symlog", linthresh=min(above), linscale=0.5)
    if len(levels) <= 10:
        axes.set_xticks(levels, [f"{x:g}" for x in levels])
        axes.minorticks_off()
    axes.set_xlabel(name, fontsize=10)


def _dashed(axes: Axes, reported: Mapping[float, float], color: Any) -> None:
    if reported:
        levels = sorted(reported)
        means = [reported[x] for x in levels]
        # Above the measured lines, whose intervals would cross out the squares.
        axes.plot(levels, means, color=color, zorder=3, **_PAPER)
