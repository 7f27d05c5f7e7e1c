"""Figures of scores: curves and intervals, and the style of all figures."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fcjax.results.tables import summarize

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
"""Values that share the range 0 to 1."""
TITLES = {
    **SCORE_TITLES,
    "isolated": "isolated clusters",
    "initial_isolated": "isolated at the start",
    "wrong_associations": "wrong associations",
    "active": "active clients",
    "improvement": "improvement in %",
    "p": "heterogeneity p",
    "clusters": "number of clusters",
    "clients": "number of clients",
}
"""Columns in words; other columns are written by their names."""


def in_words(name: str) -> str:
    """Returns what an axis calls a column: "failure_rate" is "failure rate"."""
    return TITLES.get(name, name.replace("_", " "))


def color_cycle(count: int) -> Float[np.ndarray, "count 4"]:
    """Returns colours to tell groups apart: tab10, its pale half up to 20, then a scale
    from dark to light.
    """
    if count <= 20:
        return colormaps["tab20"](np.r_[0:20:2, 1:20:2][:count])
    return colormaps["viridis"](np.linspace(0, 0.95, count))


def plain_axes(axes: Axes) -> None:
    """Leaves the axes two spines and pale horizontal lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color="0.6", linewidth=0.8)
    axes.tick_params(which="both", labelsize=9, color="0.6", labelcolor=INK)
    axes.grid(axis="y", color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)


def mark(color: Any, marker: str = "o", **look: Any) -> Line2D:
    """Returns a marker of a legend."""
    look = {"markersize": 6, "linestyle": ""} | look
    return Line2D([], [], color=color, marker=marker, **look)


def legend(owner: Axes | Figure, marks: Mapping[str, Any], **look: Any) -> None:
    """Names marks, in small letters and without a frame."""
    look = {"frameon": False, "fontsize": 9} | look
    owner.legend(list(marks.values()), list(marks), **look)


def write(figure: Figure, path: str | Path, title: str = "") -> Figure:
    """Writes the figure under its title, creates the folder, and returns the figure."""
    if title:
        figure.suptitle(title, fontsize=11, color=INK)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200)
    return figure


# --- Curves

_PAPER = {
    "linestyle": "--",
    "linewidth": 1.1,
    "marker": "s",
    "markersize": 4,
    "markerfacecolor": "white",
}
_KMEANS = {"color": "0.5", "linestyle": ":", "linewidth": 1.2}
_MOST_BANDS = 12  # more bands hide each other
_MOST_NAMED, _SCALE_NAMES = 20, 12  # more colours are a scale with a few names

Runs = pd.DataFrame | Sequence[Mapping[str, Any]]


def learning_curves(
    history: Runs,
    path: str | Path,
    *,
    by: Sequence[str] = ("p",),
    values: Sequence[str] = ("nmi", "acc", "loss"),
    title: str = "",
) -> Figure:
    """Draws scores and loss against the round, one line per setting.

    A line is the mean over the runs of its setting, the band around it the 95 %
    interval where there are three or more; more than 12 settings have no bands, and of
    more than 20 the legend names 12. Dotted verticals part the stages, named above.

    Args:
      history: one row per run and round, with stage, round, the columns of `by`, and
        the `values` that were measured in that round. Rounds may count on over the
        stages or start anew in each stage.
      path: where to write the figure; the ending sets the format.
      by: the columns that make a setting.
      values: one panel each. Scores share the range 0 to 1; a loss breaks where the
        stage changes, since another stage minimises another loss.
      title: method, data set and what else all lines share.

    Returns:
      The figure, written to `path`.

    Raises:
      ValueError: if the history is empty or lacks a column of `by`.
    """
    runs: Any = pd.DataFrame(history)
    if runs.empty:
        raise ValueError("no history to draw")
    starts, shifts, end = _stage_axis(runs)
    runs["at"] = runs["round"] + runs["stage"].map(shifts)
    summary = _summary(runs, by=by, at=["stage", "at"], values=values)
    marker = "o" if end - min(starts.values()) < 20 else ""
    figure, panels = _panels(len(values), 0.9 + 1.9 * len(values))
    for axes, value in zip(panels, values, strict=True):
        parts = ["label"] if value in SCORE_TITLES else ["label", "stage"]
        _lines(axes, summary, value, parts=parts, at="at", marker=marker)
        for start in list(starts.values())[1:]:
            axes.axvline(start - 0.5, color="0.55", linewidth=0.8, linestyle=":")
        axes.margins(x=0.01)
    panels[-1].set_xlabel("communication round")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(starts) > 1:
        _name_stages(panels[0], starts, end)
    _legend(figure, summary, {})
    return write(figure, path, title)


def against(
    rows: Runs,
    path: str | Path,
    *,
    level: str,
    by: Sequence[str] = ("method", "dataset"),
    values: Sequence[str] = ("nmi", "kappa"),
    log: bool | None = None,
    title: str = "",
) -> Figure:
    """Draws scores against a swept value, one line per setting.

    A line is the mean over the runs of its setting, the band around it the 95 %
    interval where there are three or more; more than 12 settings have no bands, and of
    more than 20 the legend names 12. The paper's scores are a dashed line with squares,
    those of k-means on the examples a dotted line.

    Args:
      rows: one row per run, as in results.csv; `paper_NAME` and `kmeans_NAME` hold the
        scores of the paper and of k-means.
      path: where to write the figure; the ending sets the format.
      level: the column on the horizontal axis: p, or failure_rate or model_weight for
        Figures 6 and 7 of the CCFC paper.
      by: the columns that make a setting, without the level.
      values: the columns to draw, one panel each. Scores share the range 0 to 1.
      log: spaces the levels by their logarithm, with room for 0; None does so where
        those above 0 span more than a factor of 20.
      title: method, data set and what else all lines share.

    Returns:
      The figure, written to `path`.

    Raises:
      ValueError: if there are no rows, a column is missing, or a level is not a number.
    """
    runs: Any = pd.DataFrame(rows)
    if runs.empty:
        raise ValueError("no results to draw")
    summary = _summary(runs, by=by, at=[level], values=values)
    for at in summary[level]:
        if not isinstance(at, int | float) or np.isnan(at):
            raise ValueError(f"{level} must be a number, got {at!r}")
    figure, panels = _panels(len(values), 0.7 + 2.3 * len(values))
    _level_axis(panels[-1], level, sorted(map(float, summary[level].unique())), log)
    also = {}
    for axes, value in zip(panels, values, strict=True):
        plain = runs.reindex(columns=[level, f"kmeans_{value}"]).dropna()
        if len(plain):
            means = plain.astype(float).groupby(level)[f"kmeans_{value}"].mean()
            axes.plot(means.index, means, **_KMEANS)
            also["k-means"] = Line2D([], [], **_KMEANS)
        reported = summary.reindex(columns=["label", "color", level, f"{value}_paper"])
        for _, own in reported.dropna().groupby("label", sort=False):
            own = own.sort_values(level)
            look = {"color": own["color"].iloc[0], "zorder": 3, **_PAPER}
            axes.plot(own[level], own[f"{value}_paper"], **look)
            also["paper"] = Line2D([], [], color=INK, **_PAPER)
        _lines(axes, summary, value, parts=["label"], at=level, marker="o")
    _legend(figure, summary, also)
    return write(figure, path, title)


def _summary(
    runs: Any, *, by: Sequence[str], at: Sequence[str], values: Sequence[str]
) -> Any:
    """Returns the means over seeds, with the label and the colour of each setting."""
    means = summarize(runs, by=[*by, *at], values=values)
    summary = means.reset_index().sort_values(at[-1], kind="stable")
    settings = means.index.to_frame()[list(by)]
    labels = settings.apply(_name_setting, axis=1) if by else ""
    summary["label"] = pd.Series(labels, means.index).to_numpy()[summary.index]
    order = summary.sort_index()["label"].unique()
    colors: Any = dict(zip(order, map(tuple, color_cycle(len(order))), strict=True))
    return summary.assign(color=summary["label"].map(colors))


def _name_setting(setting: pd.Series) -> str:
    """Returns a setting as text: "p = 0.25, seed = 1"."""
    pairs = setting.items()
    return ", ".join(
        f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}"
        for name, value in pairs
    )


def _panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(7.2, height), layout="constrained")
    panels = figure.subplots(count, sharex=True, squeeze=False)[:, 0]
    figure.align_ylabels(panels)
    return figure, list(panels)


def _lines(
    axes: Axes,
    summary: Any,
    value: str,
    *,
    parts: Sequence[str],
    at: str,
    marker: str,
) -> None:
    """Plots the means of a value in bands of their intervals, one line per part.

    Scores share the range 0 to 1, and below 0 if a mean is negative; a wide interval
    does not change the range. A single mean always has a marker.
    """
    crowded = summary["label"].nunique() > _MOST_BANDS
    known = summary.dropna(subset=[value]) if value in summary else summary[:0]
    curves = [own for _, own in known.groupby(list(parts), sort=False)]
    for own in curves:
        axes.plot(
            own[at],
            own[value],
            color=own["color"].iloc[0],
            marker=marker if len(own) > 1 else "o",
            markersize=3.5,
            linewidth=0.9 if crowded else 1.5,
        )
    if value in SCORE_TITLES:
        axes.set_ylim(min(-0.02, axes.get_ylim()[0]), 1.02)
    for own in () if crowded else curves:
        half, color = own[f"{value}_half_width"], own["color"].iloc[0]
        if half.fillna(0).any():
            axes.fill_between(
                own[at],
                own[value] - half,
                own[value] + half,
                facecolor=to_rgba(color, 0.18),
                edgecolor=to_rgba(color, 0.4),  # all that a band over one place shows
                linewidth=0.8,
            )
    axes.set_ylabel(in_words(value))
    plain_axes(axes)


def _legend(figure: Figure, summary: Any, also: Mapping[str, Line2D]) -> None:
    """Adds a legend below, for which the figure grows; none where there are no names.

    More than 20 settings have colours of a scale, and an even choice of 12 is named.
    """
    colors = summary.sort_index().drop_duplicates("label").set_index("label")["color"]
    colors = colors.drop("", errors="ignore")
    count, cut = len(colors), len(colors) > _MOST_NAMED
    if cut:
        chosen = np.linspace(0, count - 1, _SCALE_NAMES).round().astype(int)
        colors = colors.iloc[chosen]
    marks = {name: Line2D([], [], color=color) for name, color in colors.items()}
    marks = {**marks, **also}
    if not marks:
        return
    # Long names stand below each other, short ones side by side.
    columns = min(len(marks), max(1, 84 // (8 + max(map(len, marks)))))
    width, height = figure.get_size_inches()
    rows = math.ceil(len(marks) / columns) + cut
    figure.set_size_inches(width, height + 0.22 * rows)
    title = f"{len(colors)} of {count} settings" if cut else None
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
    axes.set_xlabel(in_words(name), fontsize=10)


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
    history: Any,
) -> tuple[dict[str, float], dict[str, float], float]:
    """Returns where each stage starts, by what its rounds are shifted, and where all
    end.
    """
    starts, shifts, end = {}, {}, -np.inf
    for stage, rounds in history.groupby("stage", sort=False)["round"]:
        first = rounds.min()
        shifts[stage] = 0.0 if first > end else end + 1 - first
        starts[stage] = first + shifts[stage]
        end = rounds.max() + shifts[stage]
    return starts, shifts, end


# --- Intervals


def intervals(
    lines: Mapping[str, tuple[float, float, float, bool]],
    path: str | Path,
    *,
    title: str,
) -> Figure:
    """Draws a mean and its interval for each name, the first one at the top; filled
    where the difference is significant.

    Args:
      lines: by name the mean, the ends of its interval, NaN where it has none, and
        whether it is significant.
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
