"""Draws the embedding figures of the CCFC paper: Figures 3, 4 and 5.

A communication round ends with an average, so a finished run has only the global model.
The paper shows embeddings by local models. Here these are the models after one more
round of local training.
"""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from experiments.figure_runs import load_one, train
from experiments.papers.maps import MARKERS, Panel, draw_maps
from fcjax import data, engine, metrics
from fcjax.algorithms.ccfc import leave_federation
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
"""Settings of the partition for p = 0. Rules other than p are switched off."""


class Embedded(NamedTuple):
    """The clients' examples of one run and their embeddings."""

    by_global: Float[np.ndarray, "M N D"]
    """Embedding by the global model. In a standalone run: by each client's own
    model."""
    by_local: Float[np.ndarray, "M N D"]
    """Embedding by each client's model after one more round of local training."""
    rows: Int[np.ndarray, "M N"]
    """Index of each example in the data set."""
    labels: Int[np.ndarray, "M N"]
    mask: Bool[np.ndarray, "M N"]
    """False at padding: a client with fewer examples repeats its own examples."""


def embed(task: Task, dataset: data.Dataset, folder: Path) -> list[Embedded]:
    """Trains the runs of a grid with the paper's clustering, and embeds all examples.

    Args:
        task: the method and its options. The options of the data source, the output
            files, the shards and the backend have no effect.
        dataset: the data set, with labels.
        folder: folder for `checkpoints`. The same call resumes from these checkpoints.
            A finished call trains nothing.

    Returns:
        One result per run, in the order of the grid.

    Raises:
        ValueError: an option is wrong. The message is one line that names the flag and
            the accepted values.
    """
    task = task.replace(cluster_by="ccfc")  # The paper has no other clustering.
    return train(task, dataset, folder, partial(embed_call, dataset))


def embed_call(dataset: data.Dataset, call: Call, state: State) -> list[Embedded]:
    """Embeds the clients' examples of the runs of a call.

    Args:
        dataset: the data set, with labels.
        call: the compiled program and its runs.
        state: the final state of the runs.

    Returns:
        One result per run.
    """
    method = call.batch.method

    def next_local(hyper, key, federation, state):
        # After the last round a schedule would give a learning rate of 0.
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
    """Draws Figure 3: embeddings of one client's examples.

    The data is partitioned at p = 0, and the model-contrastive term is off. The panels
    are the raw pixels, the client's model trained on its own data only, FedAvg's global
    model, and FedAvg's local model after one more round of local training. In the last
    panel the paper sees model regression. The score is the NMI of k-means on a client's
    examples, for the client shown and as a mean over all clients.

    Args:
        task: one value per flag. p and the model weight are set here.
        folder: folder of `figure3.png` and the checkpoints. It is created.

    Returns:
        One row per panel: panel, client, nmi, mean_nmi.

    Raises:
        ValueError: an option is wrong. The message is one line that names the flag and
            the accepted values.
    """
    task = task.replace(**EVENLY, model_weight=(0.0,), standalone=False)
    dataset = load_one(task)
    (fedavg,) = embed(task, dataset, folder)
    (alone,) = embed(task.replace(standalone=True), dataset, folder)
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
        clusters = cluster(z, mask, num_clusters)
        each = zip(labels, clusters, mask, strict=True)
        nmi = [
            metrics.nmi(true[is_own], predicted[is_own])
            for true, predicted, is_own in each
        ]
        mean = float(np.mean(nmi))
        row = {"panel": name, "client": client}
        rows.append(row | {"nmi": nmi[client], "mean_nmi": mean})
        title = f"{name}\nNMI {nmi[client]:.3f} (mean over clients {mean:.3f})"
        is_own = mask[client]
        panels.append(Panel(title, z[client][is_own], labels[client][is_own]))
    title = f"CCFC on {short_name(task.source.dataset)}, seed {task.options.seed[0]}"
    draw_maps(panels, folder / "figure3.png", seed=task.options.seed[0], title=title)
    return rows


def figure4(task: Task, folder: Path) -> list[dict[str, Any]]:
    """Draws Figure 4: all examples as pixels and in the embeddings of SCFC and CCFC.

    The data is partitioned at p = 0. The score is the k-nearest-neighbour accuracy on a
    random sixth of the examples, by the other examples. k is the number of training
    examples per class, near the last k of Table 3. At most 2,000 examples are drawn.
    The paper has one more panel, of PPFC-GAN, which is another method.

    Args:
        task: one value per flag. p and the loss are set here.
        folder: folder of `figure4.png` and the checkpoints. It is created.

    Returns:
        One row per panel: panel, k, knn_accuracy, calinski_harabasz (of the true
        classes).

    Raises:
        ValueError: an option is wrong. The message is one line that names the flag and
            the accepted values.
    """
    task = task.replace(**EVENLY, standalone=False)
    dataset = load_one(task)
    (scfc,) = embed(task.replace(sample_contrastive=True), dataset, folder)
    (full,) = embed(task.replace(sample_contrastive=False), dataset, folder)
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
    draw_maps(panels, folder / "figure4.png", seed=task.options.seed[0], title=title)
    return rows


def figure5(task: Task, folder: Path) -> list[dict[str, Any]]:
    """Draws Figure 5: two classes in the embeddings of the clients' local models, by p.

    The data is a random sub-sample: at most 100 examples of each of two random classes.
    CCFC is trained on it with two clusters. The default batch size is half of a
    client's examples, and the default number of local epochs is 8. The score is the
    Calinski-Harabasz score of the classes over the embeddings of all clients together.

    Args:
        task: one value per flag. p is set here. The seed decides the two classes.
        folder: folder of `figure5.png` and the checkpoints. It is created.

    Returns:
        One row per p: p, classes, calinski_harabasz, client_separation. The last one is
        the Calinski-Harabasz score of the clients instead of the classes. A low value
        means that the local models agree.

    Raises:
        ValueError: an option is wrong. The message is one line that names the flag and
            the accepted values.
    """
    if max(as_tuple(task.split.clients)) > (most := len(MARKERS)):
        clients = max(as_tuple(task.split.clients))
        raise ValueError(
            f"--clients must be at most {most}, the number of markers, got {clients}"
        )
    task = task.replace(**{**EVENLY, "p": LEVELS}, standalone=False, clusters=())
    dataset = two_classes(
        load_one(task, several=("p",)), 100, seed=task.options.seed[0]
    )
    half = max(2, len(dataset.examples) // as_tuple(task.split.clients)[0] // 2)
    open_to = {"batch_size": half, "local_epochs": 8}
    task = task.replace(
        **{k: x for k, x in open_to.items() if k not in given(task.method)},
        # So little data fits in one call. A second call would compile again.
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
        arrays = (x[run.mask] for x in (run.by_local, run.labels, clients))
        panels.append(Panel(f"p = {p:g}\nCH score {score:,.1f}", *arrays))
    title = f"CCFC on {short_name(task.source.dataset)}, seed {task.options.seed[0]}"
    draw_maps(panels, folder / "figure5.png", seed=task.options.seed[0], title=title)
    return rows


def two_classes(dataset: data.Dataset, most: int, *, seed: int) -> data.Dataset:
    """Returns at most `most` random examples of each of two random classes."""
    labels, rng = np.asarray(dataset.labels), np.random.default_rng(seed)
    chosen = rng.choice(np.unique(labels), 2, replace=False)
    subsets = [rng.permutation(np.flatnonzero(labels == c))[:most] for c in chosen]
    rows = np.sort(np.concatenate(subsets))
    return dataset._replace(examples=dataset.examples[rows], labels=labels[rows])


def cluster(
    z: Float[np.ndarray, "M N D"], mask: Bool[np.ndarray, "M N"], num_clusters: int
) -> Int[np.ndarray, "M N"]:
    """Clusters each client's examples by k-means.

    Args:
        z: the embeddings of the clients' examples.
        mask: False at padding.
        num_clusters: number of clusters K.

    Returns:
        The cluster of each example.
    """

    def cluster_client(arrays):
        z, mask = arrays
        return kmeans(jax.random.key(0), z, num_clusters, mask=mask).assignments

    return np.asarray(jax.lax.map(cluster_client, (jnp.asarray(z), jnp.asarray(mask))))


def pixels(
    dataset: data.Dataset, rows: Int[np.ndarray, "M N"]
) -> Float[np.ndarray, "M N F"]:
    """Returns the raw pixels of examples as vectors in [0, 1]."""
    scale = 255 if dataset.examples.dtype == np.uint8 else 1
    return dataset.examples[rows].reshape(*rows.shape, -1) / np.float32(scale)
