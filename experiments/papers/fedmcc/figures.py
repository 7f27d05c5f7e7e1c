"""Draws the t-SNE figures of the FedMCC paper: Figures 4 and 5.

A figure trains one run per number of rounds that it shows, with the settings of the
tables. It is drawn from the exported models of these runs.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax import traverse_util
from jaxtyping import Float, Int

from experiments.figure_runs import check_single
from experiments.papers.fedmcc.printed import FIGURE5_NMI
from experiments.papers.maps import Panel, draw_maps
from fcjax import metrics, nn
from fcjax.cli.main import run
from fcjax.data.source import short_name
from fcjax.data.sources import load_source
from fcjax.results import exported
from fcjax.sweep.plan import Task

PROJECTOR = "online/params/cluster_projector/"
"""Prefix of the names of the cluster projector's weights in an exported model."""


class RunOutput(NamedTuple):
    """Embedding and clusters of the scored examples by one run."""

    num_rounds: int
    """Number of rounds of the first, or only, stage."""
    features: Float[np.ndarray, "P D"]
    soft: Float[np.ndarray, "P K"]
    """Soft assignments: the output of the cluster projector for the features."""
    clusters: Int[np.ndarray, "P"]
    labels: Int[np.ndarray, "P"]


def figure4(task: Task, folder: Path) -> list[dict[str, Any]]:
    """Draws Figure 4: soft assignments after different numbers of rounds.

    Each panel is a run with this number of rounds in the first stage, and all rounds of
    the second stage. Without the second stage there is no cluster projector. Colours
    are the clusters of the run.

    Args:
        task: one value per flag, except --num-rounds.
        folder: folder of `figure4.png`. It is created.

    Returns:
        One row per panel: rounds, nmi, acc.

    Raises:
        ValueError: a flag has several values, or the data has no labels.
    """
    rows, panels = [], []
    for output in train_runs(task):
        scores = scores_of(output)
        rows.append({"rounds": output.num_rounds, **scores})
        panels.append(panel(output.soft, output, f"{output.num_rounds} rounds", scores))
    title = f"FedMCC on {short_name(task.source.dataset)}, seed {task.options.seed[0]}"
    draw = partial(draw_maps, seed=task.options.seed[0], groups="cluster", title=title)
    draw(panels, folder / "figure4.png")
    return rows


def figure5(task: Task, folder: Path) -> list[dict[str, Any]]:
    """Draws Figure 5: the encoder's features at the start and at the end of training.

    Colours are the clusters of the run. A round of a central method is one epoch. The
    paper's epoch 0 is epoch 1 here, because a run has at least one epoch.

    Args:
        task: one value per flag, except --num-rounds, which has two values.
        folder: folder of `figure5.png`. It is created.

    Returns:
        One row per panel: epochs, nmi, acc, paper_nmi.

    Raises:
        ValueError: a flag has several values, or the data has no labels.
    """
    rows, panels = [], []
    for output, percent in zip(train_runs(task), FIGURE5_NMI, strict=True):
        scores = scores_of(output)
        paper = {"paper_nmi": percent / 100}
        rows.append({"epochs": output.num_rounds, **scores, **paper})
        epochs = "1 epoch" if output.num_rounds == 1 else f"{output.num_rounds} epochs"
        panels.append(panel(output.features, output, epochs, scores))
    title = f"MCC on {short_name(task.source.dataset)}, seed {task.options.seed[0]}"
    draw = partial(draw_maps, seed=task.options.seed[0], groups="cluster", title=title)
    draw(panels, folder / "figure5.png")
    return rows


def train_runs(task: Task) -> Iterator[RunOutput]:
    """Trains one run per number of rounds and yields their embeddings and clusters.

    Args:
        task: the method and its options.

    Yields:
        RunOutput: one output per run, in the order of the number of rounds.

    Raises:
        ValueError: a flag has several values, or the data has no labels.
    """
    check_single(task, several=("num_rounds",))
    (results,) = run(lambda: [task])
    dataset, _ = load_source(task.source)
    if dataset.labels is None:
        raise ValueError("a figure needs labels: remove --no-labels")
    rows = results.requested(results.rows)
    for row in sorted(rows, key=lambda row: float(row["num_rounds"])):
        point = {name: float(row[name]) for name in results.names}
        model = exported.read(results.model_path(point))
        prediction = exported.predict(model, dataset.examples)
        yield RunOutput(
            int(point["num_rounds"]),
            prediction.embedding,
            soft_assignments(model, prediction.embedding),
            prediction.clusters,
            np.asarray(dataset.labels),
        )


def soft_assignments(
    model: exported.ExportedModel, features: Float[np.ndarray, "P D"]
) -> Float[np.ndarray, "P K"]:
    """Returns the output of a model's cluster projector for the features.

    Args:
        model: the exported model.
        features: the features of the examples.

    Returns:
        The probability of each cluster for each example.
    """
    params = traverse_util.unflatten_dict(
        {
            tuple(name.removeprefix(PROJECTOR).split("/")): weights
            for name, weights in model.weights.items()
            if name.startswith(PROJECTOR)
        }
    )
    width = model.weights[f"{PROJECTOR}Dense_0/Dense_0/bias"].size
    projector = nn.cluster_projector(len(model.centers), hidden_size=width)
    return np.asarray(projector.apply({"params": params}, features, train=False)[0])


def scores_of(output: RunOutput) -> dict[str, float]:
    """Returns the pair (NMI, ACC) of the clusters of a run against the labels."""
    scores = metrics.scores(output.labels, output.clusters)
    return {name: float(scores[name]) for name in ("nmi", "acc")}


def panel(
    z: Float[np.ndarray, "P D"],
    output: RunOutput,
    progress: str,
    scores: dict[str, float],
) -> Panel:
    """Returns a panel in which a cluster has the colour of the class that it matches.

    Args:
        z: the embedding to draw.
        output: the output of the run.
        progress: number of rounds or epochs of the run, as text.
        scores: NMI and ACC of the run.

    Returns:
        The panel.
    """
    title = f"{progress}\nNMI {scores['nmi']:.3f}, ACC {scores['acc']:.3f}"
    return Panel(title, z, metrics.match(output.labels, output.clusters))
