"""The figures of the FDSC paper, of what clients hold when training ends: Figure 3, the
codes of their examples, with the numbers of Table 1, and Figure 4, their coefficients.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from matplotlib.figure import Figure
from sklearn.cluster import KMeans

from experiments.papers.fdsc.printed import CALLED, MAPPED, scores_of
from experiments.papers.maps import Panel, maps
from experiments.trained import load_one, train
from fcjax import data, metrics
from fcjax.data.source import short_name
from fcjax.methods import DSCN, FDSC, FDSC1, Method
from fcjax.results.figures import curves
from fcjax.results.figures.images import project
from fcjax.results.figures.matrices import color_bar, heatmap
from fcjax.sweep.plan import Task
from fcjax.sweep.train import Call
from fcjax.types import State

MAPPED_METHODS = (FDSC, DSCN)
"""The rows of Figure 3."""
AVERAGED_METHODS = (DSCN, FDSC1, FDSC)
"""The maps of Figure 4. The paper's FDSC is one of the last two; FDSC2 is drawn to the
graph of neighbours, which has blocks by itself."""
NUM_SHOWN = 4
"""Clients of Figure 3."""
INCHES = 3.6
"""Side of a map of Figure 4."""


class Held(NamedTuple):
    """What the clients of a run hold in the end."""

    codes: Float[np.ndarray, "M N D"]
    coefficients: Float[np.ndarray, "M N N"]
    """The diagonal counts nowhere."""
    labels: Int[np.ndarray, "M N"]
    mask: Bool[np.ndarray, "M N"]
    """False where a shorter client repeats its own examples."""


def figure3(task: Task, folder: Path) -> list[dict[str, Any]]:
    """Draws Figure 3: t-SNE of the codes of four clients, drawn by the seed, by FDSC2
    and below by DSCN. Colours are classes.

    Args:
        task: one value a flag; the methods are set here.
        folder: of `figure3.png` and checkpoints; created.

    Returns:
        Table 1: a row a method with the scores of k-means on the maps, for as many
        clusters as the client has classes, as means over the clients shown and beside
        the paper's.

    Raises:
        ValueError: one line that names the flag and what it accepts.
    """
    dataset, seed = load_one(task), task.options.seed[0]
    rows, panels = [], []
    for method in MAPPED_METHODS:
        held, found = trained(task, method, dataset, folder), []
        num_clients = len(held.mask)
        drawn = np.random.default_rng(seed).permutation(num_clients)[:NUM_SHOWN]
        for client in sorted(drawn):
            own = held.mask[client]
            labels, points = held.labels[client][own], held.codes[client][own]
            points = project(points, seed)
            found.append(scores_of_map(points, labels, seed=seed))
            told = f"ACC {found[-1]['acc']:.3f}, NMI {found[-1]['nmi']:.3f}"
            panels.append(
                Panel(f"{CALLED[method.name]}, client {client}\n{told}", points, labels)
            )
        paper = scores_of(MAPPED[CALLED[method.name]])
        means = {name: mean(x[name] for x in found) for name in paper}
        reported = {f"paper_{name}": score for name, score in paper.items()}
        rows.append({"method": CALLED[method.name], **means, **reported})
    maps(
        panels,
        folder / "figure3.png",
        seed=seed,
        columns=len(panels) // len(MAPPED_METHODS),
        mapped=True,
        title=f"{short_name(task.source.dataset)}, seed {seed}",
    )
    return rows


def figure4(task: Task, folder: Path) -> list[dict[str, Any]]:
    """Draws Figure 4: the size of the coefficients by pair of classes, of DSCN, FDSC1
    and FDSC2, as means over all clients. The largest of each map is 1.

    Args:
        task: one value a flag; the methods are set here.
        folder: of `figure4-DATASET.png` and checkpoints; created.

    Returns:
        A row a method: the mean of the map's diagonal, the mean of the rest, and how
        many times that the diagonal is.

    Raises:
        ValueError: as `figure3`.
    """
    dataset, rows, matrices = load_one(task), [], {}
    classes = np.unique(np.asarray(dataset.labels))
    for method in AVERAGED_METHODS:
        held = trained(task, method, dataset, folder)
        matrix = by_classes(held, classes)
        matrix = matrix / np.nanmax(matrix)
        is_same = np.eye(len(classes), dtype=bool)
        within, between = (float(np.nanmean(matrix[x])) for x in (is_same, ~is_same))
        row = {"diagonal": within, "rest": between, "ratio": within / between}
        rows.append({"method": CALLED[method.name], **row})
        title = f"{CALLED[method.name]}\ndiagonal {row['ratio']:.2f} times the rest"
        matrices[title] = matrix
    name = short_name(task.source.dataset)
    blocks(
        matrices,
        folder / f"figure4-{name}.png",
        names=classes,
        title=f"{name}, seed {task.options.seed[0]}: coefficients, the largest is 1",
    )
    return rows


def blocks(
    matrices: Mapping[str, Float[np.ndarray, "K K"]],
    path: Path,
    *,
    names: Int[np.ndarray, "K"],
    title: str,
) -> Figure:
    """Draws matrices of pairs of classes on one scale, 0 to 1; NaN is left grey.

    A diagonal darker than the rest is the block structure that subspace clustering
    looks for.
    """
    size = (INCHES * len(matrices) + 0.9, INCHES + 0.8)
    figure = Figure(size, layout="compressed")
    all_axes = figure.subplots(1, len(matrices), squeeze=False)[0]
    for axes, (name, matrix) in zip(all_axes, matrices.items(), strict=True):
        image = heatmap(axes, matrix, names, names, largest=1.0)
        axes.set(facecolor="0.85", xlabel="class")
        axes.set_title(name, fontsize=12, color=curves.INK)
    all_axes[0].set_ylabel("class")
    color_bar(figure, list(all_axes), image, "mean size of a coefficient")
    return curves.write(figure, path, title)


def trained(
    task: Task, method: type[Method], dataset: data.Dataset, folder: Path
) -> Held:
    """Trains a run of a method and returns what its clients hold."""
    (held,) = train(task.with_method(method), dataset, folder, partial(read, dataset))
    return held


def read(dataset: data.Dataset, call: Call, state: State) -> list[Held]:
    rows = np.asarray(call.grid.federations.indices)
    stacked = (
        np.asarray(call.program.embed(call.grid, state)),
        np.asarray(state.clients.parts["coefficients"]),
        np.asarray(dataset.labels)[rows],
        np.asarray(call.grid.federations.mask),
    )
    return [Held(*run) for run in zip(*stacked, strict=True)]


def by_classes(held: Held, classes: Int[np.ndarray, "K"]) -> Float[np.ndarray, "K K"]:
    """Returns the mean |c_ij| over pairs of different examples of a client, i of the
    class of the row and j of that of the column; NaN where no client has such a pair.
    """
    totals, counts = np.zeros((2, len(classes), len(classes)))
    for coefficients, labels, own in zip(*held[1:], strict=True):
        sizes = np.abs(coefficients[np.ix_(own, own)]).astype(float)
        np.fill_diagonal(sizes, 0)
        member = (labels[own][:, None] == classes).astype(float)
        held_by_class = member.sum(axis=0)
        totals += member.T @ sizes @ member
        counts += np.outer(held_by_class, held_by_class) - np.diag(held_by_class)
    with np.errstate(invalid="ignore"):
        return totals / counts


def scores_of_map(
    points: Float[np.ndarray, "n 2"], labels: Int[np.ndarray, "n"], *, seed: int
) -> dict[str, float]:
    """Returns the scores of k-means on a map, for as many clusters as classes."""
    kmeans = KMeans(len(np.unique(labels)), n_init=10, random_state=seed)  # pyright: ignore
    return metrics.scores(labels, kmeans.fit_predict(points))
