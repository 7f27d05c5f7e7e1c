"""What the clients' generators of SDA-FDC make, and whether it is copies."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped

from experiments.papers.sda_fdc.copying import copying, nearest
from experiments.trained import load_one, train
from fcjax import data
from fcjax.methods import SDAFCKM
from fcjax.results.figures import image_rows
from fcjax.sweep.plan import Task
from fcjax.sweep.train import Call
from fcjax.types import State

REAL = 8
"""Examples of a client that are drawn."""
RANKS = 12
"""Synthetic examples that are drawn beside the nearest training ones."""


class Client(NamedTuple):
    """What a client holds, and what its generator makes."""

    number: int
    examples: Shaped[np.ndarray, "n *F"]
    labels: Int[np.ndarray, "n"]
    synthetic: Shaped[np.ndarray, "S *F"]


def figure_synthetic(task: Task, folder: Path) -> list[dict[str, Any]]:
    """Draws what the clients' generators make, and measures whether it is copies.

    A half of each class is dealt to the clients, the other is held out: no generator
    has seen it. A client alone is measured by as many of those of each class as it
    holds, since its examples are far from other classes. Feature vectors are measured
    and not drawn.

    Args:
        task: one value a flag. The method is set here: all of the family train the same
            GANs, and SDA-FC-KM ends soonest after them.
        folder: of the checkpoints; `synthetic.png`, a row a client, some of its
            examples and one synthetic of each category k; and `nearest.png`, synthetic
            examples of all clients, from the nearest to a training example to the
            farthest at even ranks, above those, captioned with the distance; created.

    Returns:
        A row of all clients together, then one a client that has answered: client
        ("all" or its number), how many examples are synthetic, train and held_out, and
        what `copying` returns.

    Raises:
        ValueError: one line that names the flag and what it accepts.
    """
    task = task.with_method(SDAFCKM).replace(num_init=1)
    dealt, held_out = halves(load_one(task), seed=task.options.seed[0])
    read = partial(of_clients, dealt)
    (clients,) = train(task, dealt, folder, read)
    examples = np.concatenate([client.examples for client in clients])
    synthetic = np.concatenate([client.synthetic for client in clients])
    near, distances = nearest(flat(synthetic), flat(examples))
    lines = [line("all", distances, examples, held_out.examples)]
    for number, own, labels, made in clients:
        _, to_own = nearest(flat(made), flat(own))
        like = like_labels(held_out, labels, seed=task.options.seed[0])
        lines.append(line(number, to_own, own, like))
    if examples.ndim == 4:
        (num_categories,) = task.split.numbers_of_clusters(dealt)
        sheet = folder / "synthetic.png"
        draw_clients(clients, num_categories, sheet, seed=task.options.seed[0])
        draw_nearest(synthetic, examples[near], distances, folder / "nearest.png")
    return lines


def of_clients(dataset: data.Dataset, call: Call, state: State) -> list[list[Client]]:
    """Returns of each run the clients that have sent a generator."""
    labels, source = np.asarray(dataset.labels), state.server.source

    def clients(partition, examples, sizes, arrived):
        return [
            Client(i, dataset.examples[rows], labels[rows], examples[i][: sizes[i]])
            for i, rows in enumerate(partition.clients)
            if arrived[i] and sizes[i]
        ]

    runs = map(np.asarray, (source.examples, source.sizes, state.clients))
    return [clients(*run) for run in zip(call.batch.partitions, *runs, strict=True)]


def line(
    client: int | str,
    made: Float[np.ndarray, "n"],
    train: Shaped[np.ndarray, "t *F"],
    held_out: Shaped[np.ndarray, "m *F"],
) -> dict[str, Any]:
    """Returns a row of the table; `made` is how far synthetic examples are."""
    _, real = nearest(flat(held_out), flat(train))
    counts = {"synthetic": len(made), "train": len(train), "held_out": len(real)}
    return {"client": client, **counts, **copying(made, real)}


def halves(dataset: data.Dataset, *, seed: int) -> tuple[data.Dataset, data.Dataset]:
    """Returns a random half of each class, of an odd number the larger one, and the
    rest, both in the order of the data set.
    """
    labels, rng = np.asarray(dataset.labels), np.random.default_rng(seed)
    first = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        first[rows[: -(-len(rows) // 2)]] = True
    if first.all():
        raise ValueError(f"--dataset {dataset.name} leaves nothing to hold out")
    dealt, held_out = (
        dataset._replace(examples=dataset.examples[half], labels=labels[half])
        for half in (first, ~first)
    )
    return dealt, held_out


def like_labels(
    dataset: data.Dataset, labels: Int[np.ndarray, "n"], *, seed: int
) -> Shaped[np.ndarray, "m *F"]:
    """Returns random examples, as many of each class as `labels` has, or all."""
    rng = np.random.default_rng(seed)
    drawn = [
        rng.permutation(np.flatnonzero(dataset.labels == label))[:count]
        for label, count in zip(*np.unique(labels, return_counts=True), strict=True)
    ]
    return dataset.examples[np.concatenate(drawn)]


def flat(examples: Shaped[np.ndarray, "n *F"]) -> Float[np.ndarray, "n D"]:
    """Returns examples as rows, pixels in [0, 1]."""
    scale = 255 if examples.dtype == np.uint8 else 1
    return examples.reshape(len(examples), -1) / np.float32(scale)


def draw_clients(
    clients: list[Client],
    num_categories: int,
    path: Path,
    *,
    seed: int,
) -> None:
    """Draws random real examples of each client beside its first synthetic ones, whose
    categories come by turns.
    """
    rng = np.random.default_rng(seed)
    example = clients[0].examples[:1]
    blank = np.full_like(example, 255 if example.dtype == np.uint8 else 1)
    rows = []
    for client in clients:
        shown = rng.permutation(client.examples)[:REAL]
        between = np.repeat(blank, REAL + 1 - len(shown), axis=0)
        made = client.synthetic[:num_categories]
        rows.append(np.concatenate([shown, between, made]))
    names = [f"client {client.number} ({len(client.examples):,})" for client in clients]
    categories = [f"k = {k}" for k in range(num_categories)]
    captions = ["real", *[""] * REAL, *categories][: max(map(len, rows))]
    title = f"real and synthetic examples, seed {seed}"
    image_rows(rows, names, path, captions=captions, title=title)


def draw_nearest(
    synthetic: Shaped[np.ndarray, "n *F"],
    near: Shaped[np.ndarray, "n *F"],
    distances: Float[np.ndarray, "n"],
    path: Path,
) -> None:
    """Draws synthetic examples at even ranks of their distances, and below each the
    nearest training example, `near`.
    """
    order = np.argsort(distances, kind="stable")
    chosen = order[np.linspace(0, len(order) - 1, min(RANKS, len(order))).astype(int)]
    image_rows(
        [synthetic[chosen], near[chosen]],
        ["synthetic", "nearest real"],
        path,
        captions=[f"{distance:.2f}" for distance in distances[chosen]],
    )
