"""Draws the figures of the pages under docs/concepts.

    python docs/images/draw.py

writes federation.png, partitions.png and engine.png next to this file.
"""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyBboxPatch

from fcjax import data

FOLDER = Path(__file__).parent
BLUE, GREEN, GREY = "#dbe7f5", "#dff0d8", "#eeeeee"


def box(axes: Any, x: float, y: float, size: tuple, text: str, color: str) -> None:
    """Draws a box with its lower left corner at (x, y), and text in its middle."""
    style = "round,pad=0.02,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch((x, y), *size, boxstyle=style, fc=color, ec="0.3"))
    middle = x + size[0] / 2, y + size[1] / 2
    axes.text(*middle, text, ha="center", va="center", fontsize=9)


def arrow(axes: Any, start: tuple, end: tuple) -> None:
    """Draws an arrow between two points."""
    style = {"arrowstyle": "-|>", "color": "0.3", "lw": 1.2}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)


def blank(width: float, height: float) -> tuple[Any, Any]:
    """Returns a figure and axes without lines, with one unit per inch."""
    figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.axis("off")
    return figure, axes


def federation() -> None:
    """Draws the server, three clients and one round of messages."""
    figure, axes = blank(7.2, 3.7)
    box(axes, 1.9, 2.65, (3.4, 0.85), "server\ncombines the uploads", BLUE)
    for i, x in enumerate((0.1, 2.5, 4.9)):
        name = (
            f"client {i + 1}\nown examples, never uploaded\ntrains and clusters locally"
        )
        box(axes, x, 0.2, (2.2, 0.95), name, GREEN)
        middle, top = x + 1.1, 2.6 + (i - 1) * 0.9 + 1.0
        arrow(axes, (top - 0.12, 2.6), (middle - 0.12, 1.2))
        arrow(axes, (middle + 0.12, 1.2), (top + 0.12, 2.6))
    axes.text(
        1.55, 1.95, "download:\nglobal network,\ncentroids", ha="right", fontsize=8
    )
    axes.text(5.65, 1.95, "upload:\nlocal network,\nsums and counts", fontsize=8)
    figure.savefig(FOLDER / "federation.png", dpi=130)


def partitions() -> None:
    """Draws the examples per client and class for five partitions of digits."""
    labels = data.load("digits").labels
    by_flag = {
        "--p 0": data.heterogeneous(labels, 10, 0.0, seed=0),
        "--p 0.5": data.heterogeneous(labels, 10, 0.5, seed=0),
        "--p 1": data.heterogeneous(labels, 10, 1.0, seed=0),
        "--alpha 0.1": data.dirichlet(labels, 10, 0.1, seed=0),
        "--classes-per-client 2": data.drawn_classes(labels, 10, 2, seed=0),
    }
    figure, axes = plt.subplots(1, 5, figsize=(11, 2.9), layout="constrained")
    image = None
    for ax, (flag, partition) in zip(axes, by_flag.items(), strict=True):
        counts = [np.bincount(labels[i], minlength=10) for i in partition.clients]
        image = ax.imshow(counts, cmap="Blues", vmin=0, vmax=180)
        ax.set(
            title=flag, xlabel="class", xticks=range(0, 10, 3), yticks=range(0, 10, 3)
        )
    axes[0].set_ylabel("client")
    figure.colorbar(image, ax=axes, label="examples")
    figure.savefig(FOLDER / "partitions.png", dpi=130)


def engine() -> None:
    """Draws the arrays of a grid and the compiled program that they go through."""
    figure, axes = blank(7.6, 3.2)
    box(
        axes, 0.1, 1.9, (2.0, 1.0), "grid\nseeds x p x settings\naxis R of arrays", GREY
    )
    box(
        axes,
        2.8,
        1.9,
        (2.0, 1.0),
        "clients\naxis M of arrays,\npadded and masked",
        GREEN,
    )
    box(axes, 5.5, 1.9, (2.0, 1.0), "examples\naxis N of arrays", GREEN)
    text = (
        "one compiled program per shape:\n"
        "jit( vmap over R ( loop over rounds ( vmap over M ( train on N ))))"
    )
    box(axes, 0.1, 0.9, (7.4, 0.6), text, BLUE)
    box(
        axes,
        0.1,
        0.1,
        (7.4, 0.45),
        "devices: runs are spread first, then clients",
        GREY,
    )
    for x in (1.1, 3.8, 6.5):
        arrow(axes, (x, 1.87), (x, 1.55))
        arrow(axes, (x, 0.87), (x, 0.6))
    figure.savefig(FOLDER / "engine.png", dpi=130)


if __name__ == "__main__":
    federation()
    partitions()
    engine()
