"""Figures of a run: learning curves and a map of the latent space.

Drawn without pyplot, so that no global state of matplotlib is touched.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Integer
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from fcjax.evaluation.tables import Estimate, estimate, number, setting_of

_INK = "0.25"
_SCORE_TITLES = {
    "acc": "ACC",
    "nmi": "NMI",
    "ari": "ARI",
    "ami": "AMI",
    "kappa": "Kappa",
}


def learning_curves(
    history: Sequence[Mapping[str, Any]],
    path: str | Path,
    *,
    by: Sequence[str] = ("p",),
    values: Sequence[str] = ("nmi", "acc", "loss"),
) -> Figure:
    """Draws scores and loss against the round, one line a setting.

    A line is the mean over the runs of its setting, the band around it the 95 %
    interval where there are several. Dotted verticals part the stages, named above.

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
    colors = _colors(len(settings))
    marker = "o" if end - min(starts.values()) < 20 else ""
    figure = Figure(figsize=(7.2, 0.9 + 1.9 * len(values)), layout="constrained")
    panels = figure.subplots(len(values), sharex=True, squeeze=False)[:, 0]
    for axes, value in zip(panels, values, strict=True):
        is_score = value in _SCORE_TITLES
        pieces = [list(starts)] if is_score else [[stage] for stage in starts]
        for rows, color in zip(settings.values(), colors, strict=True):
            for stages in pieces:
                curve = _over_rounds(rows, stages, shifts, value)
                _band(axes, curve, color, marker)
        for start in list(starts.values())[1:]:
            axes.axvline(start - 0.5, color="0.55", linewidth=0.8, linestyle=":")
        axes.set_ylabel(_SCORE_TITLES.get(value, value), fontsize=10)
        if is_score:
            axes.set_ylim(min(-0.02, axes.get_ylim()[0]), 1.02)
        _plain_axes(axes)
    panels[-1].set_xlabel("round", fontsize=10)
    figure.align_ylabels(panels)
    if len(starts) > 1:
        _name_stages(panels[0], starts, end)
    if by:
        names = [
            ", ".join(f"{n} = {_text(v)}" for n, v in zip(by, setting, strict=True))
            for setting in settings
        ]
        handles = [Line2D([], [], color=color, linewidth=1.8) for color in colors]
        figure.legend(
            handles, names, loc="outside right upper", frameon=False, fontsize=9
        )
    return _write(figure, path)


def tsne(
    embedding: Float[np.ndarray | Array, "n D"],
    labels: Integer[np.ndarray | Array, "n"] | None,
    clients: Integer[np.ndarray | Array, "n"],
    path: str | Path,
    *,
    assignments: Integer[np.ndarray | Array, "n"] | None = None,
    seed: int = 0,
    max_points: int = 2000,
) -> Figure:
    """Maps the latent space to the plane, once, and colours it twice.

    The left panel shows classes, or clusters where there are no labels; the right
    panel shows clients.

    Args:
      embedding: [n, D] latent vectors.
      labels: [n] true classes, or None.
      clients: [n] the client that holds each example.
      path: where to write the figure; the ending sets the format.
      assignments: [n] clusters, needed where labels are None.
      seed: draws the points shown and seeds the map.
      max_points: at most so many examples are shown, drawn at random.

    Returns:
      The figure, written to `path`.

    Raises:
      ValueError: if there is nothing to colour by, fewer than 4 examples, or an
        embedding that is not finite.

    References:
      van der Maaten and Hinton, Visualizing data using t-SNE, 2008.
    """
    groups = labels if labels is not None else assignments
    if groups is None:
        raise ValueError("t-SNE needs labels or assignments to colour by")
    embedding = np.asarray(embedding, np.float32)
    if len(embedding) < 4:
        raise ValueError(f"t-SNE needs at least 4 examples, not {len(embedding)}")
    if not np.isfinite(embedding).all():
        raise ValueError("the embedding holds NaN or infinite values")
    # A random order, so that no class is painted over all the others.
    shown = np.random.default_rng(seed).permutation(len(embedding))[:max_points]
    points = _tsne(embedding[shown], seed)
    figure = Figure(figsize=(10.4, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    kind = "class" if labels is not None else "cluster"
    _scatter(left, points, np.asarray(groups)[shown], kind)
    _scatter(right, points, np.asarray(clients)[shown], "client")
    return _write(figure, path)


def _tsne(points: Float[np.ndarray, "n D"], seed: int) -> Float[np.ndarray, "n 2"]:
    # A collapsed embedding has no principal axes to start from.
    flat = points.shape[1] < 2 or np.ptp(points, axis=0).max() == 0
    # So few points are mapped faster by one thread than by several that wait for each
    # other: 2.5 s against 11 s for 1,800 points on two shared cores.
    with threadpool_limits(1):
        return TSNE(
            perplexity=min(30.0, (len(points) - 1) / 3),
            init="random" if flat else "pca",
            max_iter=500,
            random_state=seed,
        ).fit_transform(points)


def _scatter(axes: Axes, points: np.ndarray, groups: np.ndarray, kind: str) -> None:
    names, codes = np.unique(groups, return_inverse=True)
    colors = _colors(len(names))
    size = 6 if len(points) > 500 else 14
    axes.scatter(*points.T, c=colors[codes], s=size, linewidths=0, alpha=0.85)
    axes.set_title(f"by {kind}", fontsize=12, color=_INK)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(color="0.8", linewidth=0.8)
    # A legend of many entries is named by an even choice of them.
    listed = np.unique(np.linspace(0, len(names) - 1, min(len(names), 20)).astype(int))
    handles = [
        Line2D([], [], color=color, marker="o", markersize=6, linestyle="")
        for color in colors[listed]
    ]
    axes.legend(
        handles,
        [str(name) for name in names[listed]],
        title=kind,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        fontsize=9,
        title_fontsize=10,
        handletextpad=0.1,
    )


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


def _band(axes: Axes, curve: Mapping[float, Estimate], color: Any, marker: str) -> None:
    if not curve:
        return
    rounds = list(curve)
    mean = np.array([e.mean for e in curve.values()])
    half_width = np.array([e.half_width or 0.0 for e in curve.values()])
    # A line of one point shows nothing without a marker.
    marker = marker if len(rounds) > 1 else "o"
    axes.plot(rounds, mean, color=color, linewidth=1.4, marker=marker, markersize=3)
    if half_width.any():
        low, high = mean - half_width, mean + half_width
        axes.fill_between(rounds, low, high, color=color, alpha=0.18, linewidth=0)


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
            color=_INK,
        )


def _plain_axes(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color="0.6", linewidth=0.8)
    axes.tick_params(labelsize=9, color="0.6", labelcolor=_INK)
    axes.grid(axis="y", color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.01)


def _colors(count: int) -> np.ndarray:
    if count <= 10:
        return colormaps["tab10"](np.arange(count))
    return colormaps["viridis"](np.linspace(0, 0.95, count))


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _write(figure: Figure, path: str | Path) -> Figure:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200)
    return figure
