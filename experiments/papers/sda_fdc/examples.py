"""Draws the synthetic examples of SDA-FDC's generators, and tests them for copying."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped

from experiments.figure_runs import load_one, train
from fcjax import data
from fcjax.methods import SDAFCKM
from fcjax.metrics.leakage import copying, flat, nearest
from fcjax.results.figures import image_rows
from fcjax.sweep.plan import Task
from fcjax.sweep.train import Call
from fcjax.types import State

REAL = 8
"""Number of real examples per client in the figure."""
RANKS = 12
"""Number of synthetic examples in the figure of nearest training examples."""


class Client(NamedTuple):
    """The real examples of a client and the synthetic examples of its generator."""

    number: int
    examples: Shaped[np.ndarray, "n *F"]
    labels: Int[np.ndarray, "n"]
    synthetic: Shaped[np.ndarray, "S *F"]


def figure_synthetic(task: Task, folder: Path) -> list[dict[str, Any]]:
    """Draws the clients' synthetic examples, and tests them for copying.

    Half of each class is partitioned over the clients. The other half is held out, so
    that no generator has seen it. For the test of one client, the held-out examples
    have the client's number of examples per class, because its examples are far from
    other classes. Feature vectors are tested but not drawn.

    The figure `synthetic.png` has one row per client: some real examples, and one
    synthetic example per category k. The figure `nearest.png` has synthetic examples of
    all clients, at even ranks of the distance to the nearest training example, which is
    drawn below.

    Args:
        task: one value per flag. The method is set here: all methods of the family
            train the same GANs, and SDA-FC-KM has the shortest training after the GANs.
        folder: folder of the figures and the checkpoints. It is created.

    Returns:
        One row for all clients together and one row per participating client: client
        ("all" or its number), the numbers of synthetic, train and held_out examples,
        and the values of `copying`.

    Raises:
        ValueError: an option is wrong. The message is one line that names the flag and
            the accepted values.
    """
    task = task.with_method(SDAFCKM).replace(num_init=1)
    partitioned, held_out = halves(load_one(task), seed=task.options.seed[0])
    read = partial(of_clients, partitioned)
    (clients,) = train(task, partitioned, folder, read)
    examples = np.concatenate([client.examples for client in clients])
    synthetic = np.concatenate([client.synthetic for client in clients])
    nearest_rows, distances = nearest(flat(synthetic), flat(examples))
    table_rows = [line("all", distances, examples, held_out.examples)]
    for number, examples_of_client, labels, synthetic_of_client in clients:
        _, to_own = nearest(flat(synthetic_of_client), flat(examples_of_client))
        held_out_like = like_labels(held_out, labels, seed=task.options.seed[0])
        table_rows.append(line(number, to_own, examples_of_client, held_out_like))
    if examples.ndim == 4:
        (num_categories,) = task.split.numbers_of_clusters(partitioned)
        path = folder / "synthetic.png"
        draw_clients(clients, num_categories, path, seed=task.options.seed[0])
        draw_nearest(
            synthetic, examples[nearest_rows], distances, folder / "nearest.png"
        )
    return table_rows


def of_clients(dataset: data.Dataset, call: Call, state: State) -> list[list[Client]]:
    """Returns the participating clients of each run, with their synthetic examples.

    Args:
        dataset: the data set that is partitioned over the clients.
        call: the compiled program and its runs.
        state: the final state of the runs.

    Returns:
        The clients of each run that sent a generator.
    """
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
    distances: Float[np.ndarray, "n"],
    train: Shaped[np.ndarray, "t *F"],
    held_out: Shaped[np.ndarray, "m *F"],
) -> dict[str, Any]:
    """Returns a row of the table.

    Args:
        client: number of the client, or "all".
        distances: distance of each synthetic example to its nearest training example.
        train: the training examples.
        held_out: the held-out examples.

    Returns:
        The counts of the examples and the values of `copying`.
    """
    _, held_out_distances = nearest(flat(held_out), flat(train))
    counts = {
        "synthetic": len(distances),
        "train": len(train),
        "held_out": len(held_out_distances),
    }
    return {"client": client, **counts, **copying(distances, held_out_distances)}


def halves(dataset: data.Dataset, *, seed: int) -> tuple[data.Dataset, data.Dataset]:
    """Splits each class at random into two halves, in the order of the data set.

    Args:
        dataset: the data set, with labels.
        seed: seed of the split.

    Returns:
        The first half and the second half. An odd class has one more example in the
        first.

    Raises:
        ValueError: no class has two examples.
    """
    labels, rng = np.asarray(dataset.labels), np.random.default_rng(seed)
    first = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        first[rows[: -(-len(rows) // 2)]] = True
    if first.all():
        raise ValueError(
            f"--dataset {dataset.name} has one example per class, so none can be held "
            "out; use a data set with at least two examples in some class"
        )
    partitioned, held_out = (
        dataset._replace(examples=dataset.examples[half], labels=labels[half])
        for half in (first, ~first)
    )
    return partitioned, held_out


def like_labels(
    dataset: data.Dataset, labels: Int[np.ndarray, "n"], *, seed: int
) -> Shaped[np.ndarray, "m *F"]:
    """Returns random examples with the class counts of `labels`, or all of a class."""
    rng = np.random.default_rng(seed)
    subsets = [
        rng.permutation(np.flatnonzero(dataset.labels == label))[:count]
        for label, count in zip(*np.unique(labels, return_counts=True), strict=True)
    ]
    return dataset.examples[np.concatenate(subsets)]


def draw_clients(
    clients: list[Client],
    num_categories: int,
    path: Path,
    *,
    seed: int,
) -> None:
    """Draws random real examples and the first synthetic examples of each client.

    The categories of the synthetic examples take turns.

    Args:
        clients: the clients.
        num_categories: number of categories of the generators.
        path: file of the figure.
        seed: seed of the choice of real examples.
    """
    rng = np.random.default_rng(seed)
    example = clients[0].examples[:1]
    blank = np.full_like(example, 255 if example.dtype == np.uint8 else 1)
    rows = []
    for client in clients:
        real = rng.permutation(client.examples)[:REAL]
        padding = np.repeat(blank, REAL + 1 - len(real), axis=0)
        synthetic = client.synthetic[:num_categories]
        rows.append(np.concatenate([real, padding, synthetic]))
    names = [f"client {client.number} ({len(client.examples):,})" for client in clients]
    categories = [f"k = {k}" for k in range(num_categories)]
    captions = ["real", *[""] * REAL, *categories][: max(map(len, rows))]
    title = f"real and synthetic examples, seed {seed}"
    image_rows(rows, names, path, captions=captions, title=title)


def draw_nearest(
    synthetic: Shaped[np.ndarray, "n *F"],
    nearest_real: Shaped[np.ndarray, "n *F"],
    distances: Float[np.ndarray, "n"],
    path: Path,
) -> None:
    """Draws synthetic examples above their nearest training examples, by distance.

    Args:
        synthetic: the synthetic examples.
        nearest_real: the nearest training example of each synthetic example.
        distances: the distance of each pair.
        path: file of the figure. The captions are the distances.
    """
    order = np.argsort(distances, kind="stable")
    chosen = order[np.linspace(0, len(order) - 1, min(RANKS, len(order))).astype(int)]
    image_rows(
        [synthetic[chosen], nearest_real[chosen]],
        ["synthetic", "nearest real"],
        path,
        captions=[f"{distance:.2f}" for distance in distances[chosen]],
    )
