"""Draws Figures 3 and 4 of the FDSC paper from the clients' final states.

Figure 3 shows the codes of the clients' examples, with the scores of Table 1. Figure 4
shows the coefficients of the self-expression.
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

from experiments.figure_runs import load_one, train
from experiments.papers.fdsc.printed import DISPLAY_NAMES, MAP_SCORES, scores_of
from experiments.papers.maps import Panel, draw_maps
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
"""The methods of Figure 3, one row of panels per method."""
AVERAGED_METHODS = (DSCN, FDSC1, FDSC)
"""The methods of Figure 4, one map per method.

The paper's map of FDSC is from FDSC1 or FDSC2. FDSC2 is trained towards the neighbour
graph, which already has blocks."""
NUM_SHOWN = 4
"""Number of clients in Figure 3."""
INCHES = 3.6
"""Width of a map of Figure 4, in inches."""


class ClientResults(NamedTuple):
    """Codes, coefficients and labels of the clients of one run, after training."""

    codes: Float[np.ndarray, "M N D"]
    coefficients: Float[np.ndarray, "M N N"]
    """Coefficients of the self-expression. The diagonal has no meaning."""
    labels: Int[np.ndarray, "M N"]
    mask: Bool[np.ndarray, "M N"]
    """False at padding: a client with fewer examples repeats its own examples."""


def figure3(task: Task, folder: Path) -> list[dict[str, Any]]:
    """Draws Figure 3: t-SNE of the codes of four random clients, by FDSC2 and by DSCN.

    Colours are classes. The table is Table 1 of the paper: the scores of k-means on the
    maps, with as many clusters as the client has classes, as means over the clients
    shown.

    Args:
        task: one value per flag. The methods are set here.
        folder: folder of `figure3.png` and the checkpoints. It is created.

    Returns:
        One row per method: its scores and the paper's scores.

    Raises:
        ValueError: an option is wrong. The message is one line that names the flag and
            the accepted values.
    """
    dataset, seed = load_one(task), task.options.seed[0]
    rows, panels = [], []
    for method in MAPPED_METHODS:
        results, scores = train_method(task, method, dataset, folder), []
        num_clients = len(results.mask)
        shown_clients = np.random.default_rng(seed).permutation(num_clients)[:NUM_SHOWN]
        for client in sorted(shown_clients):
            is_own = results.mask[client]
            labels, points = (
                results.labels[client][is_own],
                results.codes[client][is_own],
            )
            points = project(points, seed)
            scores.append(scores_of_map(points, labels, seed=seed))
            text = f"ACC {scores[-1]['acc']:.3f}, NMI {scores[-1]['nmi']:.3f}"
            panels.append(
                Panel(
                    f"{DISPLAY_NAMES[method.name]}, client {client}\n{text}",
                    points,
                    labels,
                )
            )
        paper = scores_of(MAP_SCORES[DISPLAY_NAMES[method.name]])
        means = {name: mean(x[name] for x in scores) for name in paper}
        paper_columns = {f"paper_{name}": score for name, score in paper.items()}
        rows.append({"method": DISPLAY_NAMES[method.name], **means, **paper_columns})
    draw_maps(
        panels,
        folder / "figure3.png",
        seed=seed,
        columns=len(panels) // len(MAPPED_METHODS),
        mapped=True,
        title=f"t-SNE of the codes, {short_name(task.source.dataset)}, seed {seed}",
    )
    return rows


def figure4(task: Task, folder: Path) -> list[dict[str, Any]]:
    """Draws Figure 4: the mean absolute coefficient by pair of classes.

    The methods are DSCN, FDSC1 and FDSC2. The mean is over all clients. Each map is
    divided by its largest value.

    Args:
        task: one value per flag. The methods are set here.
        folder: folder of `figure4-DATASET.png` and the checkpoints. It is created.

    Returns:
        One row per method: the mean of the diagonal, the mean of the other values, and
        their ratio.

    Raises:
        ValueError: an option is wrong. The message is one line that names the flag and
            the accepted values.
    """
    dataset, rows, matrices = load_one(task), [], {}
    classes = np.unique(np.asarray(dataset.labels))
    for method in AVERAGED_METHODS:
        results = train_method(task, method, dataset, folder)
        matrix = mean_coefficients(results, classes)
        matrix = matrix / np.nanmax(matrix)
        is_same = np.eye(len(classes), dtype=bool)
        within, between = (float(np.nanmean(matrix[x])) for x in (is_same, ~is_same))
        row = {"diagonal": within, "rest": between, "ratio": within / between}
        rows.append({"method": DISPLAY_NAMES[method.name], **row})
        title = (
            f"{DISPLAY_NAMES[method.name]}\ndiagonal {row['ratio']:.2f} times the rest"
        )
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
    """Draws matrices of pairs of classes on one scale from 0 to 1. NaN is grey.

    Subspace clustering looks for block structure: a diagonal darker than the rest.

    Args:
        matrices: the matrices by title.
        path: file of the figure.
        names: names of the classes.
        title: title of the figure.

    Returns:
        The figure, written to `path`.
    """
    size = (INCHES * len(matrices) + 0.9, INCHES + 0.8)
    figure = Figure(size, layout="compressed")
    all_axes = figure.subplots(1, len(matrices), squeeze=False)[0]
    for axes, (name, matrix) in zip(all_axes, matrices.items(), strict=True):
        image = heatmap(axes, matrix, names, names, largest=1.0)
        axes.set(facecolor="0.85", xlabel="class")
        axes.set_title(name, fontsize=12, color=curves.INK)
    all_axes[0].set_ylabel("class")
    color_bar(figure, list(all_axes), image, "mean absolute coefficient")
    return curves.write(figure, path, title)


def train_method(
    task: Task, method: type[Method], dataset: data.Dataset, folder: Path
) -> ClientResults:
    """Trains one run of a method and returns the results of its clients."""
    (results,) = train(
        task.with_method(method), dataset, folder, partial(read_clients, dataset)
    )
    return results


def read_clients(
    dataset: data.Dataset, call: Call, state: State
) -> list[ClientResults]:
    """Returns the results of the clients, one tuple per run of a call."""
    rows = np.asarray(call.grid.federations.indices)
    stacked = (
        np.asarray(call.program.embed(call.grid, state)),
        np.asarray(state.clients.parts["coefficients"]),
        np.asarray(dataset.labels)[rows],
        np.asarray(call.grid.federations.mask),
    )
    return [ClientResults(*run) for run in zip(*stacked, strict=True)]


def mean_coefficients(
    results: ClientResults, classes: Int[np.ndarray, "K"]
) -> Float[np.ndarray, "K K"]:
    """Returns the mean absolute coefficient |c_ij| by pair of classes.

    The mean is over pairs of different examples i, j of the same client.

    Args:
        results: the results of the clients of one run.
        classes: the classes.

    Returns:
        Matrix with the class of i in rows and the class of j in columns. NaN if no
        client has such a pair.
    """
    totals, counts = np.zeros((2, len(classes), len(classes)))
    for coefficients, labels, is_own in zip(*results[1:], strict=True):
        magnitudes = np.abs(coefficients[np.ix_(is_own, is_own)]).astype(float)
        np.fill_diagonal(magnitudes, 0)
        is_member = (labels[is_own][:, None] == classes).astype(float)
        class_counts = is_member.sum(axis=0)
        totals += is_member.T @ magnitudes @ is_member
        counts += np.outer(class_counts, class_counts) - np.diag(class_counts)
    with np.errstate(invalid="ignore"):
        return totals / counts


def scores_of_map(
    points: Float[np.ndarray, "n 2"], labels: Int[np.ndarray, "n"], *, seed: int
) -> dict[str, float]:
    """Returns the scores of k-means on a map, with as many clusters as classes.

    Args:
        points: [n, 2] the positions of the examples on the map.
        labels: [n] the class of each example.
        seed: seed of the ten seedings of k-means.

    Returns:
        The scores by name, see `metrics.scores`.
    """
    kmeans = KMeans(len(np.unique(labels)), n_init=10, random_state=seed)  # pyright: ignore
    return metrics.scores(labels, kmeans.fit_predict(points))
