"""What all figures share: colours, axes, legends of settings, writing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

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


def colors(count: int) -> Float[np.ndarray, "count 4"]:
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
