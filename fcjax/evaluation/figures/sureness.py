"""How sure a clustering is of its examples, and whether it may be."""

from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fcjax.evaluation.figures import style

_BINS = 10


def sureness(
    confidence: Float[np.ndarray, "n"],
    path: str | Path,
    *,
    right: Bool[np.ndarray, "n"] | None = None,
) -> Figure:
    """Draws how many examples have which confidence, and where it is known whether they
    are right, how many of those are.

    On the diagonal as many are right as are confident; above it more.

    Args:
      confidence: in [0, 1]; NaN is not shown.
      path: where to write the figure; the ending sets the format.
      right: whether each is; None where nobody knows.

    Returns:
      The figure, written to `path`.

    Raises:
      ValueError: if no example has a confidence.
    """
    known = ~np.isnan(confidence)
    if not known.any():
        raise ValueError("no example has a confidence")
    confidence = confidence[known]
    edges = np.linspace(0, 1, _BINS + 1)
    place = np.clip(np.digitize(confidence, edges) - 1, 0, _BINS - 1)
    counts = np.bincount(place, minlength=_BINS)
    count = 1 if right is None else 2
    figure = Figure(figsize=(5.4, 2.4 * count), layout="constrained")
    panels = figure.subplots(count, sharex=True, squeeze=False)[:, 0]
    middles = (edges[1:] + edges[:-1]) / 2
    bars = panels[-1]
    bars.bar(middles, counts / len(confidence), width=0.92 / _BINS, color="tab:blue")
    bars.set_ylabel("of the examples")
    bars.set_xlabel("confidence: how often with the others of its cluster")
    if right is not None:
        sums = [np.bincount(place, x, _BINS) for x in (confidence, right[known])]
        held = counts > 0
        mean, rate = (x[held] / counts[held] for x in sums)
        panels[0].plot([0, 1], [0, 1], color="0.6", linewidth=0.9, linestyle=":")
        panels[0].plot(mean, rate, "o-", color="tab:blue", markersize=4)
        panels[0].set(ylabel="of them right", ylim=(-0.02, 1.02))
    for axes in panels:
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        style.plain_axes(axes)
    return style.write(figure, path)
