"""The t-SNE figures of the FedMCC paper: Figures 4 and 5 as functions.

The runs are those of the tables, one for each number of rounds that a figure shows, and
are drawn from the models that they leave.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax import traverse_util
from jaxtyping import Float, Int

from experiments.papers.fedmcc.printed import MAPPED
from experiments.papers.maps import Panel, maps
from experiments.trained import check_single
from fcjax import metrics, nn
from fcjax.cli.main import run
from fcjax.data.source import load_source, short_name
from fcjax.results import exported
from fcjax.sweep.plan import Task

PROJECTOR = "online/params/cluster_projector/"
"""What the names of its weights begin with in a model."""


class Mapped(NamedTuple):
    """What a run makes of the examples that are scored."""

    num_rounds: int
    """Of the first or only stage."""
    features: Float[np.ndarray, "P D"]
    soft: Float[np.ndarray, "P K"]
    """What the cluster projector makes of the features."""
    clusters: Int[np.ndarray, "P"]
    labels: Int[np.ndarray, "P"]


def figure4(task: Task, folder: Path) -> list[dict[str, Any]]:
    """Draws Figure 4: soft assignments of the examples after more and more rounds.

    Each panel is a run of so many rounds of the first stage, then all of the second,
    since before there is no cluster projector. Colours are the clusters found.

    Args:
        task: one value a flag, but for --num-rounds.
        folder: of `figure4.png`; created.

    Returns:
        A row a panel: rounds, nmi, acc.

    Raises:
        ValueError: a flag has several values, or the data has no labels.
    """
    rows, panels = [], []
    for found in trained(task):
        scores = scores_of(found)
        rows.append({"rounds": found.num_rounds, **scores})
        panels.append(panel(found.soft, found, f"{found.num_rounds} rounds", scores))
    title = f"FedMCC on {short_name(task.source.dataset)}, seed {task.options.seed[0]}"
    draw = partial(maps, seed=task.options.seed[0], groups="cluster", title=title)
    draw(panels, folder / "figure4.png")
    return rows


def figure5(task: Task, folder: Path) -> list[dict[str, Any]]:
    """Draws Figure 5: the encoder's features at the beginning and the end, by cluster.

    A round of a central method is an epoch. The paper's epoch 0 is here the first,
    since a run has at least one.

    Args:
        task: one value a flag, but for --num-rounds, which has two.
        folder: of `figure5.png`; created.

    Returns:
        One row per panel: epochs, nmi, acc, paper_nmi.

    Raises:
        ValueError: as `figure4`.
    """
    rows, panels = [], []
    for found, percent in zip(trained(task), MAPPED, strict=True):
        scores = scores_of(found)
        paper = {"paper_nmi": percent / 100}
        rows.append({"epochs": found.num_rounds, **scores, **paper})
        epochs = "1 epoch" if found.num_rounds == 1 else f"{found.num_rounds} epochs"
        panels.append(panel(found.features, found, epochs, scores))
    title = f"MCC on {short_name(task.source.dataset)}, seed {task.options.seed[0]}"
    draw = partial(maps, seed=task.options.seed[0], groups="cluster", title=title)
    draw(panels, folder / "figure5.png")
    return rows


def trained(task: Task) -> Iterator[Mapped]:
    """Trains a run for each number of rounds and yields what they make of the data."""
    check_single(task, several=("num_rounds",))
    (results,) = run(lambda: [task])
    dataset, _ = load_source(task.source)
    if dataset.labels is None:
        raise ValueError("figures need labels: not --no-labels")
    rows = results.requested(results.rows)
    for row in sorted(rows, key=lambda row: float(row["num_rounds"])):
        point = {name: float(row[name]) for name in results.names}
        model = exported.read(results.model_path(point))
        found = exported.predict(model, dataset.examples)
        yield Mapped(
            int(point["num_rounds"]),
            found.embedding,
            soft_assignments(model, found.embedding),
            found.clusters,
            np.asarray(dataset.labels),
        )


def soft_assignments(
    model: exported.ExportedModel, features: Float[np.ndarray, "P D"]
) -> Float[np.ndarray, "P K"]:
    """Returns what a model's cluster projector makes of the features."""
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


def scores_of(found: Mapped) -> dict[str, float]:
    scores = metrics.scores(found.labels, found.clusters)
    return {name: float(scores[name]) for name in ("nmi", "acc")}


def panel(
    z: Float[np.ndarray, "P D"], found: Mapped, trained: str, scores: dict[str, float]
) -> Panel:
    """Returns a panel, in which a cluster has the colour of the class it matches."""
    title = f"{trained}\nNMI {scores['nmi']:.3f}, ACC {scores['acc']:.3f}"
    return Panel(title, z, metrics.match(found.labels, found.clusters))
