"""Draws the figures of the pages under docs/concepts and the ideas of docs/methods.

    python docs/images/draw.py

writes federation.png, partitions.png, engine.png and one METHOD_idea.png per method
page next to this file.
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


def exchange(
    name: str, *columns: tuple[str, str, str, str, str], above: str = "server"
) -> None:
    """Draws the steps of a method side by side: the server above, a client below.

    Args:
        name: of the figure's file, without ending.
        columns: one tuple of texts per step: title, server, download, upload, client.
            An empty text draws nothing.
        above: who exchanges messages with a client, in all steps. With an empty text,
            the server's text names it.
    """
    step = 2.9
    figure, axes = blank(step * len(columns), 3.5)
    for i, (title, server, download, upload, client) in enumerate(columns):
        x, middle = step * i + 0.1, step * (i + 0.5)
        axes.text(middle, 3.3, title, ha="center", fontsize=10, weight="bold")
        if server:
            box(axes, x, 2.15, (step - 0.2, 0.95), f"{above}\n{server}".strip(), BLUE)
        if download:
            arrow(axes, (middle - 0.12, 2.1), (middle - 0.12, 1.2))
            place = {"ha": "right", "va": "center", "fontsize": 8}
            axes.text(middle - 0.2, 1.65, download, **place)
        if upload:
            arrow(axes, (middle + 0.12, 1.2), (middle + 0.12, 2.1))
            axes.text(middle + 0.2, 1.65, upload, va="center", fontsize=8)
        box(axes, x, 0.15, (step - 0.2, 1.0), f"each client\n{client}", GREEN)
    figure.savefig(FOLDER / f"{name}.png", dpi=130)
    plt.close(figure)


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
        axes, 0.1, 1.9, (2.0, 1.0), "grid\nseeds x p x settings\naxis G of arrays", GREY
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
        "jit( vmap over G ( loop over rounds ( vmap over M ( train on N ))))"
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


def ccfc() -> None:
    """Draws the three stages of CCFC's default."""
    exchange(
        "ccfc_idea",
        (
            "1. pre-training",
            "averages the networks",
            "global\nnetwork",
            "network",
            "trains on two views\nof each example",
        ),
        (
            "2. federated k-means",
            "adds and divides:\nglobal centroids",
            "centroids",
            "sums and counts\nper cluster",
            "assigns the embedding\nto the nearest centroid",
        ),
        (
            "3. contrast (similar clients)",
            "averages the networks,\nupdates the centroids",
            "network,\ncentroids",
            "network, sums\nand counts",
            "draws examples of one\npseudo-label together",
        ),
    )


def fedmcc() -> None:
    """Draws the first stage of FedMCC and both second stages."""
    exchange(
        "fedmcc_idea",
        (
            "1. representation",
            "averages the networks",
            "global\nnetwork",
            "network",
            "contrasts two views;\nthe target stays local",
        ),
        (
            "2a. similar clients",
            "averages the projectors",
            "projector",
            "projector",
            "trains a cluster head\non the frozen encoder",
        ),
        (
            "2b. different clients",
            "federated k-means:\nadds and divides",
            "centroids",
            "sums and counts\nper cluster",
            "assigns its features\nto the nearest centroid",
        ),
    )


def orchestra() -> None:
    """Draws one round of Orchestra and its end."""
    exchange(
        "orchestra_idea",
        (
            "1. local clusters",
            "averages the networks,\nclusters all centroids",
            "",
            "networks,\ncentroids",
            "clusters the projections\nof its target network",
        ),
        (
            "2. training",
            "global networks,\nglobal clusters",
            "networks,\ncentroids",
            "",
            "predicts the global cluster\nof another view",
        ),
        (
            "3. after all rounds",
            "federated k-means:\nadds and divides",
            "centroids",
            "sums and counts\nper cluster",
            "assigns its features\nto the nearest centroid",
        ),
    )


def sda_fdc() -> None:
    """Draws the single round of SDA-FDC."""
    exchange(
        "sda_fdc_idea",
        (
            "1. generators",
            "collects the generators",
            "",
            "generator,\nnumber of\nexamples",
            "trains a GAN\non its own examples",
        ),
        (
            "2. clusters",
            "clusters synthetic examples\nof all generators by DCN",
            "encoder,\ncentroids",
            "",
            "assigns its real examples\nto the nearest centroid",
        ),
    )


def fdsc() -> None:
    """Draws the rounds of FDSC and its end."""
    exchange(
        "fdsc_idea",
        (
            "1. rounds",
            "averages the encoders",
            "global\nencoder",
            "encoder",
            "expresses each code\nby its other codes:\nZ is close to C Z",
        ),
        (
            "2. end",
            "",
            "",
            "",
            "spectral clustering of\nits affinity |C| + |C|$^T$;\nclusters stay local",
        ),
    )


def fedcref() -> None:
    """Draws one iteration of FedCRef."""
    exchange(
        "fedcref_idea",
        (
            "1. local models",
            "other clients\nsend the models\nof their clusters",
            "models of\nother clients",
            "one model\nper cluster",
            "trains one auto-encoder\nper cluster",
        ),
        (
            "2. test",
            "other clients\ntest the same pairs",
            "results",
            "results",
            "tests if clusters fit\neach other's models",
        ),
        (
            "3. communities",
            "server\naverages the models\nof each community",
            "community\nmodel",
            "local\nmodel",
            "trains the community\nmodels of its clusters",
        ),
        (
            "4. refinement",
            "server\nsends the models\nof all communities",
            "all community\nmodels",
            "",
            "repeats: the model that is\nbest for most examples\ntakes these examples",
        ),
        above="",
    )


def baselines() -> None:
    """Draws the messages of three federated baselines."""
    exchange(
        "baselines_idea",
        (
            "k-FED: one round",
            "clusters all centroids",
            "centroids",
            "centroids",
            "runs k-means",
        ),
        (
            "FFCM: several rounds",
            "clusters all centroids",
            "centroids",
            "centroids",
            "improves the centroids\nby fuzzy c-means",
        ),
        (
            "exact: several rounds",
            "adds and divides",
            "centroids",
            "sums and counts\nper cluster",
            "assigns its examples\nto the nearest centroid",
        ),
    )


if __name__ == "__main__":
    federation()
    partitions()
    engine()
    for idea in (ccfc, fedmcc, orchestra, sda_fdc, fdsc, fedcref, baselines):
        idea()
