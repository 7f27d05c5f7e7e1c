"""Figures of scores: bars, curves and intervals, and the common style."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from fcjax.results.tables import Estimate, setting_of, summarize

# --- Style

INK = "0.25"
MARKS = {"title_fontsize": 10, "handletextpad": 0.1}
"""The look of a legend of markers under a title."""
SCORE_TITLES = {
    "acc": "ACC",
    "nmi": "NMI",
    "ari": "ARI",
    "ami": "AMI",
    "kappa": "Kappa",
    "surviving_nmi": "NMI, survivors",
    "surviving_acc": "ACC, survivors",
    "surviving_kappa": "Kappa, survivors",
    "initial_acc": "ACC, start",
    "client_acc": "ACC, clients",
    "global_acc": "ACC, communities",
    "global_nmi": "NMI, communities",
}
"""Of values that share the range 0 to 1."""
TITLES = {
    **SCORE_TITLES,
    "isolated": "isolated clusters",
    "initial_isolated": "isolated at the start",
    "wrong_associations": "wrong associations",
    "active": "active clients",
    "improvement": "improvement in %",
}
"""Of all values; what is not here is called as its column."""


def color_cycle(count: int) -> Float[np.ndarray, "count 4"]:
    """Colours to tell groups apart: tab10, its pale half up to 20, then a scale."""
    if count <= 20:
        return colormaps["tab20"](np.r_[0:20:2, 1:20:2][:count])
    return colormaps["viridis"](np.linspace(0, 0.95, count))


def name_setting(by: Sequence[str], setting: tuple) -> str:
    """A setting as text: "p = 0.25, seed = 1"."""
    pairs = zip(by, setting, strict=True)
    return ", ".join(f"{name} = {_text(value)}" for name, value in pairs)


def plain_axes(axes: Axes) -> None:
    """Leaves the axes two spines and pale horizontal lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color="0.6", linewidth=0.8)
    axes.tick_params(which="both", labelsize=9, color="0.6", labelcolor=INK)
    axes.grid(axis="y", color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)


def mark(color: Any, marker: str = "o", **look: Any) -> Line2D:
    """A marker of a legend."""
    look = {"markersize": 6, "linestyle": ""} | look
    return Line2D([], [], color=color, marker=marker, **look)


def legend(owner: Axes | Figure, marks: Mapping[str, Any], **look: Any) -> None:
    """Names marks, in small letters and without a frame."""
    look = {"frameon": False, "fontsize": 9} | look
    owner.legend(list(marks.values()), list(marks), **look)


def write(figure: Figure, path: str | Path) -> Figure:
    """Writes the figure, making its folder, and returns it."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200)
    return figure


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- Bars


def bars(
    rows: Sequence[Mapping[str, Any]],
    path: str | Path,
    *,
    group: str = "label",
    by: str = "method",
    value: str = "share",
) -> Figure:
    """Draws the share of every group as bars, one a setting side by side.

    A bar is the mean over the runs of its setting, with a 95 % interval where there are
    several. A group that a setting does not have has no bar there.

    Args:
      rows: one dict a group a run.
      path: where to write the figure; the ending sets the format.
      group: the column on the horizontal axis, in the order of its values.
      by: the column that makes a setting, a colour, in the order of the rows.
      value: the column to draw, from 0 to 1.

    Returns:
      The figure, written to `path`.

    Raises:
      ValueError: if there are no rows or a column of `group` or `by` is missing.
    """
    if not rows:
        raise ValueError("no shares to draw")
    summary = summarize(rows, by=[by, group], values=[value])
    settings = list(dict.fromkeys(line[by] for line in summary))
    groups = sorted({line[group] for line in summary})
    width = 0.8 / len(settings)

    size = max(4.0, 1.2 + 0.6 * len(groups)), 3.2
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    colors = color_cycle(len(settings))
    for number, setting in enumerate(settings):
        own = [line for line in summary if line[by] == setting and value in line]
        known = [line[value].half_width for line in own]
        axes.bar(
            [groups.index(line[group]) + (number + 0.5) * width - 0.4 for line in own],
            [line[value].mean for line in own],
            width=0.92 * width,
            yerr=[np.nan if half is None else half for half in known],
            error_kw={"ecolor": INK, "elinewidth": 0.9},
            color=colors[number],
            label=str(setting),
        )
    axes.set_ylim(0, min(1.0, axes.get_ylim()[1]))
    axes.set_xticks(range(len(groups)), [str(name) for name in groups])
    axes.set(xlabel=group, ylabel=f"{value} of the examples")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    plain_axes(axes)
    axes.tick_params(axis="x", length=0)
    figure.legend(
        loc="outside lower center", ncols=len(settings), frameon=False, fontsize=9
    )
    return write(figure, path)


# --- Curves

_OURS = {"marker": "o", "markersize": 4.0}
_PAPER = {
    "linestyle": "--",
    "linewidth": 1.1,
    "marker": "s",
    "markersize": 4,
    "markerfacecolor": "white",
}
# More bands than these hide each other.
_MOST_BANDS = 12
# More colours than these are a scale, for which fewer names will do.
_MOST_NAMED, _SCALE_NAMES = 20, 12

_Rows = Sequence[Mapping[str, Any]]


def learning_curves(
    history: _Rows,
    path: str | Path,
    *,
    by: Sequence[str] = ("p",),
    values: Sequence[str] = ("nmi", "acc", "loss"),
) -> Figure:
    """Draws scores and loss against the round, one line a setting.

    A line is the mean over the runs of its setting, the band around it the 95 %
    interval where there are several; more than 12 settings have no bands, and of more
    than 20 the legend names 12. Dotted verticals part the stages, named above.

    Args:
      history: one dict a run a round, with stage, round, the columns of `by`, and
        whichever of `values` were measured in that round (None or "" otherwise).
        Rounds may count on over the stages or start anew in each.
      path: where to write the figure; the ending sets the format.
      by: the columns that make a setting.
      values: one panel each. Scores share the range 0 to 1; a loss breaks where the
        stage changes, since another stage minimises another loss.

    Returns:
      The figure, written to `path`.

    Raises:
      ValueError: if the history is empty or lacks a column of `by`.
    """
    if not history:
        raise ValueError("no history to draw")
    starts, shifts, end = _stage_axis(history)
    rows = [{**x, "at": float(x["round"]) + shifts[x["stage"]]} for x in history]
    colors = _colors(rows, by)
    look = {"marker": "o" if end - min(starts.values()) < 20 else "", "markersize": 3.0}
    figure, panels = _panels(len(values), 0.9 + 1.9 * len(values))
    for axes, value in zip(panels, values, strict=True):
        of_line = by if value in SCORE_TITLES else [*by, "stage"]
        _lines(axes, rows, value, by=of_line, at="at", colors=colors, look=look)
        for start in list(starts.values())[1:]:
            axes.axvline(start - 0.5, color="0.55", linewidth=0.8, linestyle=":")
        axes.margins(x=0.01)
    panels[-1].set_xlabel("round")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(starts) > 1:
        _name_stages(panels[0], starts, end)
    _legend(figure, by, colors, {"linewidth": 1.8}, {})
    return write(figure, path)


def against(
    rows: _Rows,
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
    levels: set[Any] = {setting_of(row, [level])[0] for row in rows}
    for at in levels:
        if at is None or isinstance(at, str):
            raise ValueError(f"{level} must be a number, got {at!r}")
    colors = _colors(rows, by)
    known = {key: x for key, x in (paper or {}).items() if key[:-1] in colors}
    figure, panels = _panels(len(values), 0.7 + 2.3 * len(values))
    _level_axis(panels[-1], level, sorted(map(float, levels)), log)
    for axes, value in zip(panels, values, strict=True):
        for setting, color in colors.items():
            reported = sorted(
                (float(key[-1]), scores[value])
                for key, scores in known.items()
                if key[:-1] == setting and value in scores
            )
            if reported:
                # Above the measured lines, whose intervals would cross out the squares.
                axes.plot(*zip(*reported, strict=True), color=color, zorder=3, **_PAPER)
        _lines(axes, rows, value, by=by, at=level, colors=colors, look=_OURS)
    paper_line = Line2D([], [], color=INK, **_PAPER)
    _legend(figure, by, colors, _OURS, {"paper": paper_line} if known else {})
    return write(figure, path)


def _colors(rows: _Rows, by: Sequence[str]) -> dict[tuple, Any]:
    """A colour for each setting, in the order of their first rows."""
    settings = dict.fromkeys(setting_of(row, by) for row in rows)
    return dict(zip(settings, color_cycle(len(settings)), strict=True))


def _panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(7.2, height), layout="constrained")
    panels = figure.subplots(count, sharex=True, squeeze=False)[:, 0]
    figure.align_ylabels(panels)
    return figure, list(panels)


def _lines(
    axes: Axes,
    rows: _Rows,
    value: str,
    *,
    by: Sequence[str],
    at: str,
    colors: Mapping[tuple, Any],
    look: dict[str, Any],
) -> None:
    """Plots the means of a value at each `at` in bands of their intervals, a line for
    each setting of `by`; its colour is that of a setting or of the beginning of one.

    A NaN leaves a gap in the line, and an estimate without an interval in the band.
    Scores share the range 0 to 1, and below 0 what lies there; a wide interval, such as
    that of two seeds, does not change it. A single estimate always has a marker.
    """
    found: dict[tuple, dict[float, Estimate]] = {}
    summary = summarize(rows, by=[*by, at], values=[value])
    for line in sorted(summary, key=itemgetter(at)):
        if value in line:
            own = found.setdefault(setting_of(line, by), {})
            own[float(line[at])] = line[value]
    curves = [
        (color, own)
        for setting, color in colors.items()
        for key, own in found.items()
        if key[: len(setting)] == setting
    ]
    crowded = len(colors) > _MOST_BANDS
    for color, means in curves:
        drawn: dict[str, Any] = {"linewidth": 0.9 if crowded else 1.5} | look
        if len(means) == 1:
            drawn["marker"] = "o"
        heights = [e.mean for e in means.values()]
        axes.plot(list(means), heights, color=color, **drawn)
    if value in SCORE_TITLES:
        axes.set_ylim(min(-0.02, axes.get_ylim()[0]), 1.02)
    for color, means in () if crowded else curves:
        _band(axes, means, color)
    axes.set_ylabel(TITLES.get(value, value))
    plain_axes(axes)


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


def _legend(
    figure: Figure,
    by: Sequence[str],
    colors: Mapping[tuple, Any],
    look: Mapping[str, Any],
    also: Mapping[str, Line2D],
) -> None:
    """Adds a legend below, for which the figure grows; none where there are no names.

    More than 20 settings have colours of a scale, and an even choice of 12 is named.
    """
    chosen = list(colors) if by else []
    cut = len(chosen) > _MOST_NAMED
    if cut:
        places = np.linspace(0, len(chosen) - 1, _SCALE_NAMES).round().astype(int)
        chosen = [chosen[i] for i in places]
    marks = {
        name_setting(by, setting): Line2D([], [], color=colors[setting], **look)
        for setting in chosen
    } | dict(also)
    if not marks:
        return
    # Long names stand below each other, short ones side by side.
    columns = min(len(marks), max(1, 84 // (8 + max(map(len, marks)))))
    width, height = figure.get_size_inches()
    rows = math.ceil(len(marks) / columns) + cut
    figure.set_size_inches(width, height + 0.22 * rows)
    title = f"{len(chosen)} of {len(colors)} settings" if cut else None
    placed = {"loc": "outside lower center", "ncols": columns}
    legend(figure, marks, title=title, title_fontsize=9, **placed)


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


def _name_stages(axes: Axes, starts: Mapping[str, float], end: float) -> None:
    edges = [*starts.values(), end + 1]
    # A letter takes about a hundredth of the panel's width.
    room = 100 / (edges[-1] - edges[0])
    spans = list(zip(starts, pairwise(edges), strict=True))
    slanted = any(room * (right - left) < len(name) for name, (left, right) in spans)
    for name, (left, right) in spans:
        axes.annotate(
            name,
            ((left + right - 1) / 2, 1.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, 4),
            textcoords="offset points",
            rotation=40 if slanted else 0,
            rotation_mode="anchor",
            ha="left" if slanted else "center",
            va="bottom",
            fontsize=9,
            color=INK,
        )


def _stage_axis(
    history: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, float], dict[str, float], float]:
    """Where each stage starts, what its rounds are shifted by, and where all end."""
    rounds: dict[str, list[float]] = {}
    for row in history:
        rounds.setdefault(row["stage"], []).append(float(row["round"]))
    starts, shifts, end = {}, {}, -np.inf
    for stage, of_stage in rounds.items():
        first = min(of_stage)
        shifts[stage] = 0.0 if first > end else end + 1 - first
        starts[stage] = first + shifts[stage]
        end = max(of_stage) + shifts[stage]
    return starts, shifts, end


# --- Intervals


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
    axes.axvline(0, color=INK, linewidth=0.9, linestyle=":")
    axes.set_yticks(range(len(lines)), list(lines))
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.set_xlabel(title)
    plain_axes(axes)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color="0.92", linewidth=0.8)
    values = np.array([line[:3] for line in lines.values()])
    reach = 1.08 * max(np.nanmax(np.abs(values)), 0.01)
    axes.set_xlim(min(-0.2 * reach, 1.08 * np.nanmin(values)), None)
    if np.nanmax(values) < 0.2 * reach:
        axes.set_xlim(None, 0.2 * reach)
    return write(figure, path)
