"""The embedding figures of the CCFC paper: Figures 3, 4 and 5 as functions.

A communication round ends in an average, so a finished run has the global model alone.
The paper shows embeddings by local models: here those that the clients would send in
the round that comes next.
"""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from experiments.papers.maps import MARKERS, Panel, maps
from experiments.trained import load_one, train
from fcjax import data, engine, metrics
from fcjax.algorithms.ccfc import alone as leave_federation
from fcjax.cluster import kmeans
from fcjax.data.partition import RULES
from fcjax.data.source import short_name
from fcjax.methods.paper_scores_ccfc import LEVELS
from fcjax.parallel.mesh import CLIENTS, over_runs
from fcjax.settings import as_tuple, given
from fcjax.sweep import plan
from fcjax.sweep.plan import Task
from fcjax.sweep.train import Call
from fcjax.types import State

EVENLY = {rule: () for rule in RULES} | {"p": (0.0,)}


class Embedded(NamedTuple):
    """What the clients of a run hold, and where its models put it."""

    by_global: Float[np.ndarray, "M N D"]
    """By the model that clients download; of standalone ones, by their own."""
    by_local: Float[np.ndarray, "M N D"]
    """By each client's model after its next local training."""
    rows: Int[np.ndarray, "M N"]
    """Of the data set."""
    labels: Int[np.ndarray, "M N"]
    mask: Bool[np.ndarray, "M N"]
    """False where a shorter client repeats its own examples."""


def embed(task: Task, dataset: data.Dataset, folder: Path) -> list[Embedded]:
    """Trains the runs of a grid, with the paper's clusters, and embeds the examples of
    their clients.

    Args:
        task: the flags; those of data, files, shards and backends are not looked at.
        dataset: with labels.
        folder: holds `checkpoints`, from which the same call goes on; once finished,
            it trains no more.

    Returns:
        One a run, in the order of the grid.

    Raises:
        ValueError: one line that names the flag and what it accepts.
    """
    task = task.but(cluster_by="ccfc")  # as in the paper
    return train(task, dataset, folder, partial(embed_call, dataset))


def embed_call(dataset: data.Dataset, call: Call, state: State) -> list[Embedded]:
    """Returns what the runs of a call embed that ended in `state`."""
    method = call.batch.method

    def next_local(hyper, key, federation, state):
        # A schedule has fallen to 0 by the round after the last.
        changes = {"standalone": True, "schedule": "constant"}
        alone = method.build({**method.settings, **hyper, **changes})
        if not method.settings["standalone"]:
            state = leave_federation(state, len(federation.indices))
        state, _ = alone.stages[-1].round(key, state, federation)
        return alone.embed(state, federation)

    local = over_runs(next_local, "shard_map", results=CLIENTS)
    *earlier, last = plan.num_rounds(call.batch)
    next_round = engine.at_round(
        *(call.grid, "cluster"),
        number=last + 1,
        earlier=sum(earlier),
        is_evaluated=True,
    )
    rows = np.asarray(call.grid.federations.indices)
    stacked = (
        np.asarray(call.program.embed(call.grid, state)),
        np.asarray(local(next_round, state)),
        rows,
        np.asarray(dataset.labels)[rows],
        np.asarray(call.grid.federations.mask),
    )
    return [Embedded(*run) for run in zip(*stacked, strict=True)]


def figure3(task: Task, folder: Path) -> list[dict[str, Any]]:
    """Draws Figure 3: what training alone and FedAvg make of one client's examples.

    The data is dealt evenly and there is no model-contrastive term. The panels are the
    pixels, the client's model trained on its own data alone, FedAvg's global model, and
    the local model after one more local training of it, where the paper sees model
    regression. The number is the NMI of k-means on a client's examples in that space:
    of the client shown, and the mean over all clients.

    Args:
        task: one value a flag; p and the model weight are set here.
        folder: of `figure3.png` and checkpoints; created.

    Returns:
        A row a panel: panel, client, nmi, mean_nmi.

    Raises:
        ValueError: one line that names the flag and what it accepts.
    """
    task = task.but(**EVENLY, model_weight=(0.0,), standalone=False)
    dataset = load_one(task)
    (fedavg,) = embed(task, dataset, folder)
    (alone,) = embed(task.but(standalone=True), dataset, folder)
    labels, mask = fedavg.labels, fedavg.mask
    client = int(np.random.default_rng(task.options.seed[0]).integers(len(mask)))
    (num_clusters,) = task.split.numbers_of_clusters(dataset)
    rows, panels = [], []
    for name, z in {
        "(a) raw pixels": pixels(dataset, fedavg.rows),
        "(b) trained alone": alone.by_global,
        "(c) FedAvg, global model": fedavg.by_global,
        "(d) FedAvg, local model": fedavg.by_local,
    }.items():
        found = cluster(z, mask, num_clusters)
        each = zip(labels, found, mask, strict=True)
        nmi = [metrics.nmi(true[own], mine[own]) for true, mine, own in each]
        mean = float(np.mean(nmi))
        row = {"panel": name, "client": client}
        rows.append(row | {"nmi": nmi[client], "mean_nmi": mean})
        title = f"{name}\nNMI {nmi[client]:.3f} (clients' mean {mean:.3f})"
        own = mask[client]
        panels.append(Panel(title, z[client][own], labels[client][own]))
    title = f"CCFC on {short_name(task.source.dataset)}, seed {task.options.seed[0]}"
    maps(panels, folder / "figure3.png", seed=task.options.seed[0], title=title)
    return rows


def figure4(task: Task, folder: Path) -> list[dict[str, Any]]:
    """Draws Figure 4: all examples as pixels and in the spaces of SCFC and CCFC.

    The data is dealt evenly. The number is the accuracy of the vote of as many
    neighbours as a class has training examples, the last k of Table 3 or near it; on a
    random sixth of the examples, by the others. At most 2,000 are drawn. The paper's
    further panel, PPFC-GAN, is of another method.

    Args:
        task: one value a flag; p and the loss are set here.
        folder: of `figure4.png` and checkpoints; created.

    Returns:
        A row a panel: panel, k, knn_accuracy, calinski_harabasz (by true class).

    Raises:
        ValueError: as `figure3`.
    """
    task = task.but(**EVENLY, standalone=False)
    dataset = load_one(task)
    (scfc,) = embed(task.but(sample_contrastive=True), dataset, folder)
    (full,) = embed(task.but(sample_contrastive=False), dataset, folder)
    labels, rng = full.labels[full.mask], np.random.default_rng(task.options.seed[0])
    test, train = np.split(rng.permutation(len(labels)), [len(labels) // 6])
    k = len(train) // len(np.unique(labels))
    rows, panels = [], []
    for name, z in {
        "raw pixels": pixels(dataset, full.rows),
        "SCFC": scfc.by_global,
        "CCFC": full.by_global,
    }.items():
        compact = metrics.client_calinski_harabasz(z, full.labels, full.mask)
        z = z[full.mask]
        train_set, test_set = ((z[part], labels[part]) for part in (train, test))
        accuracy = metrics.knn_accuracy(
            *train_set, *test_set, num_neighbors=[k], normalize=name != "raw pixels"
        )[k]
        row = {"panel": name, "k": k, "knn_accuracy": accuracy}
        rows.append(row | {"calinski_harabasz": compact})
        panels.append(Panel(f"{name}\n{k}-NN accuracy {accuracy:.3f}", z, labels))
    title = f"CCFC on {short_name(task.source.dataset)}, seed {task.options.seed[0]}"
    maps(panels, folder / "figure4.png", seed=task.options.seed[0], title=title)
    return rows


def figure5(task: Task, folder: Path) -> list[dict[str, Any]]:
    """Draws Figure 5: two classes in the spaces of the clients' local models, by p.

    100 examples of each of two classes, or all where there are fewer, are dealt to the
    clients, on which alone CCFC is trained, for two clusters. Without a flag for it, a
    batch is half a client's examples, and a round 8 epochs. The number is the
    Calinski-Harabasz score of the classes over all clients' embeddings together.

    Args:
        task: one value a flag; p is set here, and the seed draws the classes.
        folder: of `figure5.png` and checkpoints; created.

    Returns:
        A row a p: p, classes, calinski_harabasz, and client_separation, the score of
        the clients in place of the classes, where low is consistent.

    Raises:
        ValueError: as `figure3`.
    """
    if max(as_tuple(task.split.clients)) > (most := len(MARKERS)):
        raise ValueError(f"--clients must be at most {most}, the number of markers")
    task = task.but(**{**EVENLY, "p": LEVELS}, standalone=False, clusters=())
    dataset = two_classes(
        load_one(task, several=("p",)), 100, seed=task.options.seed[0]
    )
    half = max(2, len(dataset.examples) // as_tuple(task.split.clients)[0] // 2)
    open_to = {"batch_size": half, "local_epochs": 8}
    task = task.but(
        **{k: x for k, x in open_to.items() if k not in given(task.method)},
        # So little data goes at once: a further call, of fewer runs, compiles anew.
        runs_per_call=task.options.runs_per_call or len(LEVELS),
    )
    rows, panels = [], []
    for p, run in zip(LEVELS, embed(task, dataset, folder), strict=True):
        clients = np.indices(run.mask.shape)[0]
        score, separation = (
            metrics.client_calinski_harabasz(run.by_local, groups, run.mask)
            for groups in (run.labels, clients)
        )
        classes = " and ".join(map(str, np.unique(run.labels)))
        row = {"p": p, "classes": classes, "calinski_harabasz": score}
        rows.append(row | {"client_separation": separation})
        shown = (values[run.mask] for values in (run.by_local, run.labels, clients))
        panels.append(Panel(f"p = {p:g}\nCH score {score:,.1f}", *shown))
    title = f"CCFC on {short_name(task.source.dataset)}, seed {task.options.seed[0]}"
    maps(panels, folder / "figure5.png", seed=task.options.seed[0], title=title)
    return rows


def two_classes(dataset: data.Dataset, most: int, *, seed: int) -> data.Dataset:
    """Returns random examples, at most so many each, of two random classes."""
    labels, rng = np.asarray(dataset.labels), np.random.default_rng(seed)
    chosen = rng.choice(np.unique(labels), 2, replace=False)
    drawn = [rng.permutation(np.flatnonzero(labels == c))[:most] for c in chosen]
    rows = np.sort(np.concatenate(drawn))
    return dataset._replace(examples=dataset.examples[rows], labels=labels[rows])


def cluster(
    z: Float[np.ndarray, "M N D"], mask: Bool[np.ndarray, "M N"], num_clusters: int
) -> Int[np.ndarray, "M N"]:
    """Returns the clusters that k-means finds among each client's examples."""

    def each(own):
        return kmeans(jax.random.key(0), own[0], num_clusters, mask=own[1]).assignments

    return np.asarray(jax.lax.map(each, (jnp.asarray(z), jnp.asarray(mask))))


def pixels(
    dataset: data.Dataset, rows: Int[np.ndarray, "M N"]
) -> Float[np.ndarray, "M N F"]:
    scale = 255 if dataset.examples.dtype == np.uint8 else 1
    return dataset.examples[rows].reshape(*rows.shape, -1) / np.float32(scale)
