"""Line figures: learning curves, scores against a swept value, and intervals.

The style that all figures share is here, too.
"""

import math
import types
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
"""Colour of text and outlines: dark grey."""
MARKS = {"title_fontsize": 10, "handletextpad": 0.1}
"""Keyword arguments for a legend of markers that has a title."""
SCORE_TITLES = {
    "acc": "ACC",
    "nmi": "NMI",
    "ari": "ARI",
    "ami": "AMI",
    "kappa": "Kappa",
    "surviving_nmi": "NMI of surviving clients",
    "surviving_acc": "ACC of surviving clients",
    "surviving_kappa": "Kappa of surviving clients",
    "initial_acc": "ACC at the start",
    "client_acc": "ACC, mean over clients",
    "global_acc": "ACC of communities",
    "global_nmi": "NMI of communities",
}
"""Axis labels of the scores that are drawn on the range 0 to 1."""
TITLES = {
    **SCORE_TITLES,
    "loss": "training loss",
    "silhouette": "silhouette",
    "davies_bouldin": "Davies-Bouldin index",
    "calinski_harabasz": "Calinski-Harabasz index",
    "between": "agreement of seeds (ARI)",
    "within": "agreement on halves of clusters (ARI)",
    "trade-off": "difference of the two",
    "isolated": "isolated clusters",
    "initial_isolated": "isolated clusters at the start",
    "wrong_associations": "wrong associations",
    "active": "active clients",
    "improvement": "improvement (%)",
    "p": "heterogeneity p",
    "alpha": "Dirichlet alpha",
    "class_share": "share of classes per client",
    "classes_per_client": "classes per client",
    "client_size": "examples per client",
    "clusters": "number of clusters",
    "clients": "number of clients",
}
"""Axis labels of columns; other columns are labelled with their names."""


def in_words(name: str) -> str:
    """Returns the axis label of a column, such as "failure rate" for "failure_rate".

    Args:
      name: the name of the column.

    Returns:
      The label.
    """
    return TITLES.get(name, name.replace("_", " "))


def color_cycle(count: int) -> Float[np.ndarray, "count 4"]:
    """Returns `count` RGBA colours that differ from each other.

    Up to 10 groups have the colours of tab10, up to 20 those of tab20. More groups have
    the colours of viridis, from dark to light.

    Args:
      count: the number of groups, at least 1.

    Returns:
      [count, 4] the colours, in [0, 1].
    """
    if count <= 20:
        return colormaps["tab20"](np.r_[0:20:2, 1:20:2][:count])
    return colormaps["viridis"](np.linspace(0, 0.95, count))


def plain_axes(axes: Axes) -> None:
    """Removes the upper and right spines, and draws pale horizontal grid lines.

    Args:
      axes: the axes to change.
    """
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color="0.6", linewidth=0.8)
    axes.tick_params(which="both", labelsize=9, color="0.6", labelcolor=INK)
    axes.grid(axis="y", color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)


def mark(color: Any, marker: str = "o", **look: Any) -> Line2D:
    """Returns a legend marker of this colour.

    Args:
      color: any colour of Matplotlib.
      marker: the marker of Matplotlib.
      **look: further options of `Line2D`, which replace the defaults.

    Returns:
      The marker, without a line.
    """
    look = {"markersize": 6, "linestyle": ""} | look
    return Line2D([], [], color=color, marker=marker, **look)


def legend(owner: Axes | Figure, marks: Mapping[str, Any], **look: Any) -> None:
    """Adds a frameless legend that maps each name to its mark.

    Args:
      owner: the axes or the figure that gets the legend.
      marks: the mark of each name, such as the result of `mark`.
      **look: further options of Matplotlib's `legend`, which replace the defaults.
    """
    look = {"frameon": False, "fontsize": 9} | look
    owner.legend(list(marks.values()), list(marks), **look)


def write(figure: Figure, path: str | Path, title: str = "") -> Figure:
    """Adds the title, writes the figure to `path`, and returns the figure.

    A missing folder is created.

    Args:
      figure: the figure.
      path: file to write; the ending sets the format.
      title: title of the figure; "" for no title.

    Returns:
      The same figure.
    """
    if title:
        figure.suptitle(title, fontsize=11, color=INK)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    # The HTML report finds a figure of the same run by the title in the file.
    figure.savefig(path, dpi=200, metadata={"Title": title} if title else None)
    return figure


# --- Curves

_PAPER = {
    "linestyle": "--",
    "linewidth": 1.1,
    "marker": "s",
    "markersize": 4,
    "markerfacecolor": "white",
}
_BASELINE = "k-means (baseline)"
_KMEANS = {"color": "0.5", "linestyle": ":", "linewidth": 1.2}
# More bands than these would hide each other.
_MOST_BANDS = 12
# Above 20 settings the colours are a scale, and the legend names only 12 settings.
_MOST_NAMED, _SCALE_NAMES = 20, 12

Runs = pd.DataFrame | Sequence[Mapping[str, Any]]
"""A table: a data frame, or one mapping from column to value per row."""


def learning_curves(
    history: Runs,
    path: str | Path,
    *,
    by: Sequence[str] = ("p",),
    values: Sequence[str] = ("nmi", "acc", "loss"),
    baselines: Mapping[str, Sequence[float]] = types.MappingProxyType({}),
    title: str = "",
) -> Figure:
    """Draws scores and loss against the communication round, one line per setting.

    A line is the mean over the runs of a setting. The band is the 95 % Student-t
    interval of the mean, for three runs or more. With more than 12 settings there are
    no bands. With more than 20 settings the legend names 12 of them. Dotted vertical
    lines separate the stages, whose names stand above the first panel.

    Args:
      history: one row per run and round, as in history.csv, with the columns stage,
        round, those of `by` and those of `values`. Cells without a measurement are
        None or NaN. The round may count over all stages or restart in each stage.
      path: file to write; the ending sets the format.
      by: columns whose values define a setting.
      values: columns to draw, one panel per column. Scores share the range 0 to 1. The
        line of a loss is interrupted between stages, because stages have different
        losses.
      baselines: by column of `values`, the scores of k-means on the raw examples; each
        is a dotted horizontal line.
      title: title of the figure: method, data set, heterogeneity and seed.

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
        for level in baselines.get(value, ()):
            axes.axhline(level, **_KMEANS)
        axes.margins(x=0.01)
    panels[-1].set_xlabel("communication round")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(starts) > 1:
        _name_stages(panels[0], starts, end)
    has_baseline = any(len(baselines.get(value, ())) for value in values)
    references = {_BASELINE: Line2D([], [], **_KMEANS)} if has_baseline else {}
    _legend(figure, summary, references)
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

    A line is the mean over the runs of a setting. The band is the 95 % Student-t
    interval of the mean, for three runs or more. With more than 12 settings there are
    no bands. With more than 20 settings the legend names 12 of them. The scores of the
    paper are a dashed line with squares. The scores of k-means on the raw examples are
    a dotted line.

    Args:
      rows: one row per run, as in results.csv. The columns `paper_NAME` and
        `kmeans_NAME` hold the scores of the paper and of k-means.
      path: file to write; the ending sets the format.
      level: column on the horizontal axis, such as p. Figures 6 and 7 of the CCFC paper
        have failure_rate and model_weight.
      by: columns whose values define a setting, without `level`.
      values: columns to draw, one panel per column. Scores share the range 0 to 1.
      log: whether the horizontal axis is logarithmic, with room for 0. None chooses
        this if the levels above 0 span more than a factor of 20.
      title: title of the figure: method, data set, heterogeneity and seed.

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
    references = {}
    for axes, value in zip(panels, values, strict=True):
        kmeans = runs.reindex(columns=[level, f"kmeans_{value}"]).dropna()
        if len(kmeans):
            means = kmeans.astype(float).groupby(level)[f"kmeans_{value}"].mean()
            axes.plot(means.index, means, **_KMEANS)
            references[_BASELINE] = Line2D([], [], **_KMEANS)
        paper = summary.reindex(columns=["label", "color", level, f"{value}_paper"])
        for _, setting in paper.dropna().groupby("label", sort=False):
            setting = setting.sort_values(level)
            look = {"color": setting["color"].iloc[0], "zorder": 3, **_PAPER}
            axes.plot(setting[level], setting[f"{value}_paper"], **look)
            references["paper"] = Line2D([], [], color=INK, **_PAPER)
        _lines(axes, summary, value, parts=["label"], at=level, marker="o")
    _legend(figure, summary, references)
    return write(figure, path, title)


def _summary(
    runs: Any, *, by: Sequence[str], at: Sequence[str], values: Sequence[str]
) -> Any:
    """Returns the means over seeds, with the columns `label` and `color` per setting.

    Rows are sorted by the last column of `at`.
    """
    means = summarize(runs, by=[*by, *at], values=values)
    summary = means.reset_index().sort_values(at[-1], kind="stable")
    settings = means.index.to_frame()[list(by)]
    labels = settings.apply(_name_setting, axis=1) if by else ""
    summary["label"] = pd.Series(labels, means.index).to_numpy()[summary.index]
    order = summary.sort_index()["label"].unique()
    colors: Any = dict(zip(order, map(tuple, color_cycle(len(order))), strict=True))
    return summary.assign(color=summary["label"].map(colors))


def _name_setting(setting: pd.Series) -> str:
    """Returns a setting as text, such as "p = 0.25, seed = 1"."""
    pairs = setting.items()
    return ", ".join(
        f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}"
        for name, value in pairs
    )


def _panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """Returns a figure of `count` panels above each other that share the x axis."""
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
    """Plots the means of a column with bands of their intervals.

    There is one line per combination of the columns `parts`. The vertical axis of a
    score is 0 to 1, and reaches below 0 only if a mean is negative. A line of a single
    point always has a marker.
    """
    crowded = summary["label"].nunique() > _MOST_BANDS
    known = summary.dropna(subset=[value]) if value in summary else summary[:0]
    curves = [curve for _, curve in known.groupby(list(parts), sort=False)]
    for curve in curves:
        axes.plot(
            curve[at],
            curve[value],
            color=curve["color"].iloc[0],
            marker=marker if len(curve) > 1 else "o",
            markersize=3.5,
            linewidth=0.9 if crowded else 1.5,
        )
    if value in SCORE_TITLES:
        axes.set_ylim(min(-0.02, axes.get_ylim()[0]), 1.02)
    for curve in () if crowded else curves:
        half, color = curve[f"{value}_half_width"], curve["color"].iloc[0]
        if half.fillna(0).any():
            axes.fill_between(
                curve[at],
                curve[value] - half,
                curve[value] + half,
                facecolor=to_rgba(color, 0.18),
                # The band of a single point is visible by its edge alone.
                edgecolor=to_rgba(color, 0.4),
                linewidth=0.8,
            )
    axes.set_ylabel(in_words(value))
    plain_axes(axes)


def _legend(figure: Figure, summary: Any, references: Mapping[str, Line2D]) -> None:
    """Adds a legend of the settings and the reference lines below the panels.

    The figure grows by the height of the legend. A single setting without a label and
    without reference lines has no legend. Of more than 20 settings 12 are named, evenly
    spaced.
    """
    colors = summary.sort_index().drop_duplicates("label").set_index("label")["color"]
    colors = colors.drop("", errors="ignore")
    count, cut = len(colors), len(colors) > _MOST_NAMED
    if cut:
        chosen = np.linspace(0, count - 1, _SCALE_NAMES).round().astype(int)
        colors = colors.iloc[chosen]
    marks = {name: Line2D([], [], color=color) for name, color in colors.items()}
    marks = {**marks, **references}
    if not marks:
        return
    # Long names stand below each other, short names next to each other.
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
    """Sets scale, ticks and label of the horizontal axis of `against`."""
    # The scale is set before anything is drawn, because the margins depend on it.
    above = [x for x in levels if x > 0] or [1.0]
    if log or (log is None and max(above) > 20 * min(above)):
        axes.set_xscale("symlog", linthresh=min(above), linscale=0.5)
    if len(levels) <= 10:
        axes.set_xticks(levels, [f"{x:g}" for x in levels])
        axes.minorticks_off()
    axes.set_xlabel(in_words(name), fontsize=10)


def _name_stages(axes: Axes, starts: Mapping[str, float], end: float) -> None:
    """Writes the names of the stages above the axes, slanted if they are too long."""
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
    """Returns the stages' first rounds, the shifts of their rounds, and the last round.

    The shifts make the rounds of several stages count on.
    """
    starts, shifts, end = {}, {}, -np.inf
    for stage, rounds in history.groupby("stage", sort=False)["round"]:
        first = rounds.min()
        shifts[stage] = 0.0 if first > end else end + 1 - first
        starts[stage] = first + shifts[stage]
        end = rounds.max() + shifts[stage]
    return starts, shifts, end


# --- Intervals


def histogram(
    values: Float[np.ndarray, "n"],
    path: str | Path,
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
) -> Figure:
    """Draws a histogram of values that are at least 0.

    Args:
      values: [n] the values.
      path: file to write; the ending sets the format.
      xlabel: meaning and unit of the values.
      ylabel: meaning of the counts.
      title: title of the figure.

    Returns:
      The figure, written to `path`.
    """
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.hist(values, bins=30, range=(0, max(float(values.max()), 1)), color="tab:blue")
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    plain_axes(axes)
    return write(figure, path, title)


def intervals(
    lines: Mapping[str, tuple[float, float, float, bool]],
    path: str | Path,
    *,
    xlabel: str,
    title: str = "",
) -> Figure:
    """Draws one mean with its interval per line, and a dotted vertical line at 0.

    The first line is at the top. The marker of a significant difference is filled.

    Args:
      lines: by the name of a line: the mean, the lower and the upper end of its
        interval (NaN without an interval), and whether it is significant.
      path: file to write; the ending sets the format.
      xlabel: label of the horizontal axis.
      title: title of the figure.

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
    axes.set_xlabel(xlabel)
    plain_axes(axes)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color="0.92", linewidth=0.8)
    values = np.array([line[:3] for line in lines.values()])
    reach = 1.08 * max(np.nanmax(np.abs(values)), 0.01)
    axes.set_xlim(min(-0.2 * reach, 1.08 * np.nanmin(values)), None)
    if np.nanmax(values) < 0.2 * reach:
        axes.set_xlim(None, 0.2 * reach)
    return write(figure, path, title)
