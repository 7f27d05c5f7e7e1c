"""Bars of shares, side by side: how large each cluster is, by method."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fcjax.evaluation.figures import style
from fcjax.evaluation.tables import summarize


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
    colors = style.colors(len(settings))
    for number, setting in enumerate(settings):
        own = [line for line in summary if line[by] == setting and value in line]
        known = [line[value].half_width for line in own]
        axes.bar(
            [groups.index(line[group]) + (number + 0.5) * width - 0.4 for line in own],
            [line[value].mean for line in own],
            width=0.92 * width,
            yerr=[np.nan if half is None else half for half in known],
            error_kw={"ecolor": style.INK, "elinewidth": 0.9},
            color=colors[number],
            label=str(setting),
        )
    axes.set_ylim(0, min(1.0, axes.get_ylim()[1]))
    axes.set_xticks(range(len(groups)), [str(name) for name in groups])
    axes.set(xlabel=group, ylabel=f"{value} of the examples")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    style.plain_axes(axes)
    axes.tick_params(axis="x", length=0)
    figure.legend(
        loc="outside lower center", ncols=len(settings), frameon=False, fontsize=9
    )
    return style.write(figure, path)
