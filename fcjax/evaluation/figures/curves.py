"""Learning curves: scores and loss against the round."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fcjax.evaluation.figures import lines, style
from fcjax.evaluation.tables import Estimate, estimate, number, setting_of


def learning_curves(
    history: Sequence[Mapping[str, Any]],
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
    settings: dict[tuple, list[Mapping[str, Any]]] = defaultdict(list)
    for row in history:
        settings[setting_of(row, by)].append(row)
    colors = style.colors(len(settings))
    marker = "o" if end - min(starts.values()) < 20 else ""
    figure = Figure(figsize=(7.2, 0.9 + 1.9 * len(values)), layout="constrained")
    panels = figure.subplots(len(values), sharex=True, squeeze=False)[:, 0]
    for axes, value in zip(panels, values, strict=True):
        pieces = [[stage] for stage in starts]
        if value in style.SCORE_TITLES:
            pieces = [list(starts)]
        curves = [
            (color, _over_rounds(rows, stages, shifts, value))
            for rows, color in zip(settings.values(), colors, strict=True)
            for stages in pieces
        ]
        lines.panel(
            axes, curves, value, among=len(settings), marker=marker, markersize=3.0
        )
        for start in list(starts.values())[1:]:
            axes.axvline(start - 0.5, color="0.55", linewidth=0.8, linestyle=":")
        axes.margins(x=0.01)
    panels[-1].set_xlabel("round", fontsize=10)
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.align_ylabels(panels)
    if len(starts) > 1:
        _name_stages(panels[0], starts, end)
    handles = {
        style.name_setting(by, setting): Line2D([], [], color=color, linewidth=1.8)
        for setting, color in zip(settings, colors, strict=True)
        if by
    }
    lines.legend(figure, handles)
    return style.write(figure, path)


def _over_rounds(
    rows: Sequence[Mapping[str, Any]],
    stages: Sequence[str],
    shifts: Mapping[str, float],
    value: str,
) -> dict[float, Estimate]:
    measured: dict[float, list[float]] = defaultdict(list)
    for row in rows:
        if row["stage"] in stages and (x := number(row.get(value))) is not None:
            measured[float(row["round"]) + shifts[row["stage"]]].append(x)
    return {at: estimate(measured[at]) for at in sorted(measured)}


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
            color=style.INK,
        )
