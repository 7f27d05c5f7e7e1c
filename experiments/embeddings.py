"""The embedding figures of the CCFC paper: Figures 3, 4 and 5 as functions.

A communication round ends in an average, so a finished run holds the global model alone.
The paper shows the embeddings of local models: here those that the clients would send
in the next round.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ccfc
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from fcjax import data, engine, evaluation, experiment, plan
from fcjax.algorithms.ccfc import leave
from fcjax.backends import over_runs
from fcjax.checkpoints import Checkpoints
from fcjax.cluster import kmeans
from fcjax.evaluation.figures import Panel, maps
from fcjax.evaluation.figures.panels import MARKERS
from fcjax.progress import Progress
from fcjax.session import enable_compilation_cache

LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)


class Embedded(NamedTuple):
    """What the clients of one run hold, and where its models put it."""

    by_global: Float[np.ndarray, "M N D"]
    """By the model that a client downloads; standalone, by its own."""
    by_local: Float[np.ndarray, "M N D"]
    """By each client's model after its next local training."""
    rows: Int[np.ndarray, "M N"]
    """Of the data set."""
    labels: Int[np.ndarray, "M N"]
    mask: Bool[np.ndarray, "M N"]
    """False where a shorter client repeats its own examples."""


def embed(args: ccfc.Args, dataset: data.Dataset, folder: Path) -> list[Embedded]:
    """Trains the runs of a grid and embeds every example of their clients.

    Args:
        args: the flags; those of the data set alone are not looked at.
        dataset: with labels.
        folder: holds `checkpoints`, from which the same call goes on, and a finished
            one ends without training.

    Returns:
        One a run, in the order of the grid; with D = `args.latent_size`.

    Raises:
        ValueError: one line that names the flag and what it accepts.
    """
    enable_compilation_cache()
    groups = plan.groups(args, dataset, 0, ccfc.describe)
    total = sum(len(group.points) * sum(plan.num_rounds(group)) for group in groups)
    found = []
    with jax.default_matmul_precision(args.precision), Progress(total) as progress:
        for group in groups:
            size = plan.state_bytes(group, dataset.examples)
            pool, _ = data.place(
                dataset.examples,
                size,
                where=args.pool,
                devices=jax.local_devices()[: 1 if args.backend == "loop" else None],
            )
            most = args.runs_per_call
            if most is None:
                most = jax.local_device_count() * data.runs_that_fit(pool, size)
            group = group._replace(runs_per_call=plan.width(len(group.points), most))
            program = engine.Program(group.build, backend=args.backend)
            for call in plan.calls(group, pool):
                checkpoints = Checkpoints(
                    folder / "checkpoints" / digest(args, dataset, call),
                    interval=args.checkpoint_interval,
                )
                show = partial(show_round, progress, len(call.points))
                state = program.run(call.grid, on_round=show, checkpoints=checkpoints)
                found += embed_call(args, dataset, call, program, state)
    return found


def embed_call(
    args: ccfc.Args,
    dataset: data.Dataset,
    call: plan.Call,
    program: engine.Program,
    state: Any,
) -> list[Embedded]:
    """Returns what the runs of a call embed, once they ended in `state`."""
    method, num_clients = call.group.method, call.group.num_clients
    stages = plan.num_rounds(call.group)

    def next_local(hyper, key, federation, state):
        alone = method.build({**method.settings, **hyper, "standalone": True})
        if not method.settings["standalone"]:
            state = leave(state, num_clients)
        # The key that the engine would give the round.
        for number in (len(stages) - 1, stages[-1] + 1):
            key = jax.random.fold_in(key, number)
        state, _ = alone.stages[-1].round(key, state, federation)
        return alone.embed(state, federation)

    by_global = np.asarray(program.embed(call.grid, state))
    by_local = np.asarray(over_runs(next_local, args.backend)(call.grid, state))
    rows = np.asarray(call.grid.federations.indices)
    mask = np.asarray(call.grid.federations.mask)
    assert dataset.labels is not None
    return [
        Embedded(*run)
        for run in zip(
            by_global, by_local, rows, dataset.labels[rows], mask, strict=True
        )
    ]


def digest(args: ccfc.Args, dataset: data.Dataset, call: plan.Call) -> str:
    """Returns a name of all that decides what a call trains."""
    config = experiment.configuration(args, call.group.method, call.points[0])
    told = hashlib.sha256(json.dumps([config, call.points], sort_keys=True).encode())
    told.update(np.ascontiguousarray(dataset.examples).data)
    told.update(np.ascontiguousarray(dataset.labels).data)
    return told.hexdigest()[:8]


def show_round(progress: Progress, num_runs: int, round: engine.Round) -> None:
    label = f"{round.stage.name} round {round.position.round}/{round.stage.num_rounds}"
    loss = np.mean(round.metrics["loss"])
    progress.show(label, num_runs, {"loss": loss}, last=round.is_last)


def figure3(args: ccfc.Args, folder: Path) -> list[dict[str, Any]]:
    """Draws Figure 3: what training alone and FedAvg make of one client's examples.

    Data is dealt evenly (p = 0), and there is no model-contrastive term. The panels are
    the pixels, the client's model trained on its own data alone, the global model of
    FedAvg, and the client's model after one more local training of it, in which the
    paper sees model regression. The number is the NMI of a k-means of each client's
    examples in that space: that of the client shown and the mean over clients.

    Args:
        args: one value of each flag; p and weights are set here.
        folder: where `figure3.png` and checkpoints go; created.

    Returns:
        A row a panel: panel, client, nmi, mean_nmi.

    Raises:
        ValueError: one line that names the flag and what it accepts.
    """
    args = replace(args, p=LEVELS[:1], alpha=(), model_weight=(0.0,), standalone=False)
    dataset = load(args, num_runs=1)
    (together,) = embed(args, dataset, folder)
    (alone,) = embed(replace(args, standalone=True), dataset, folder)
    labels, mask = together.labels, together.mask
    client = int(np.random.default_rng(args.seed[0]).integers(len(mask)))
    num_clusters = plan.numbers_of_clusters(args, dataset)[0]
    rows, panels = [], []
    for panel, z in (
        ("raw pixels", flat(dataset.examples[together.rows], 2)),
        ("trained alone", alone.by_global),
        ("FedAvg, global model", together.by_global),
        ("FedAvg, local model", together.by_local),
    ):
        found = cluster(z, mask, num_clusters)
        nmi = [
            evaluation.nmi(true[own], clusters[own])
            for true, clusters, own in zip(labels, found, mask, strict=True)
        ]
        row = {"panel": panel, "client": client, "nmi": nmi[client]}
        rows.append(row | {"mean_nmi": float(np.mean(nmi))})
        title = f"({'abcd'[len(panels)]}) {panel}\nNMI {nmi[client]:.3f}"
        title += f" (all clients' {np.mean(nmi):.3f})"
        own = mask[client]
        panels.append(Panel(title, z[client][own], labels[client][own]))
    maps(panels, folder / "figure3.png", seed=args.seed[0])
    return rows


def figure4(args: ccfc.Args, folder: Path) -> list[dict[str, Any]]:
    """Draws Figure 4: all examples as pixels, by SCFC and by CCFC, at p = 0.

    The number is the accuracy of a vote of neighbours, as in Table 3 with `k` as many
    as a class has training examples, on a random sixth of the examples by the rest.
    SCFC and CCFC are the global models of one `args.model_weight`. The paper's fourth
    panel, PPFC-GAN, is another method's.

    Args:
        args: one value of each flag; p and the loss are set here.
        folder: where `figure4.png` and checkpoints go; created.

    Returns:
        A row a panel: panel, k, knn_accuracy and, by five neighbours, knn5_accuracy.

    Raises:
        ValueError: one line that names the flag and what it accepts.
    """
    args = replace(args, p=LEVELS[:1], alpha=(), standalone=False)
    dataset = load(args, num_runs=1)
    (scfc,) = embed(replace(args, sample_contrastive=True), dataset, folder)
    (full,) = embed(replace(args, sample_contrastive=False), dataset, folder)
    mask, labels = full.mask, full.labels[full.mask]
    order = np.random.default_rng(args.seed[0]).permutation(len(labels))
    test, train = np.split(order, [len(order) // 6])
    k = len(train) // len(np.unique(labels))
    rows, panels = [], []
    for panel, z in (
        ("raw pixels", flat(dataset.examples[full.rows[mask]], 1)),
        ("SCFC", scfc.by_global[mask]),
        ("CCFC", full.by_global[mask]),
    ):
        accuracy = evaluation.knn_accuracy(
            z[train],
            labels[train],
            z[test],
            labels[test],
            num_neighbors=(min(5, k), k),
            normalize=panel != "raw pixels",
        )
        few, many = accuracy.values() if k > 5 else [accuracy[k]] * 2
        rows.append(
            {"panel": panel, "k": k, "knn_accuracy": many, "knn5_accuracy": few}
        )
        panels.append(Panel(f"{panel}\n{k}-NN accuracy {many:.3f}", z, labels))
    maps(panels, folder / "figure4.png", seed=args.seed[0])
    return rows


def figure5(args: ccfc.Args, folder: Path) -> list[dict[str, Any]]:
    """Draws Figure 5: two classes in the eyes of the clients' local models, by p.

    100 examples of each of two random classes (all, where a class has fewer) are dealt
    to the clients, and CCFC is trained on them alone for two clusters. Where the flags
    do not say otherwise, clients of so few examples train in batches of half of them
    and as many epochs as make 16 steps. The number is the Calinski-Harabasz score of
    the true classes over all clients' embeddings, each by its own local model.

    Args:
        args: one value of each flag; p is set here, and the seed draws the classes.
        folder: where `figure5.png` and checkpoints go; created.

    Returns:
        A row a p: p, classes, calinski_harabasz, and the same score of the clients in
        place of the classes, client_separation, where low is consistent.

    Raises:
        ValueError: one line that names the flag and what it accepts.
    """
    args = replace(args, p=LEVELS, alpha=(), standalone=False, clusters=())
    if max(args.clients) > len(MARKERS):
        raise ValueError(
            f"--clients must be at most {len(MARKERS)} to have a marker each, got "
            f"{max(args.clients)}"
        )
    dataset = two_classes(load(args, num_runs=len(LEVELS)), seed=args.seed[0])
    half = max(2, len(dataset.examples) // args.clients[0] // 2)
    args = replace(
        args,
        batch_size=args.batch_size or (half,),
        local_epochs=args.local_epochs or (8,),
        # So little data is best trained at once: a call of fewer is compiled anew.
        runs_per_call=args.runs_per_call or len(LEVELS),
    )
    classes = " and ".join(map(str, np.unique(dataset.labels)))
    rows, panels = [], []
    for p, run in zip(LEVELS, embed(args, dataset, folder), strict=True):
        z, labels, mask = run.by_local, run.labels, run.mask
        clients = np.indices(mask.shape)[0]
        score = evaluation.client_calinski_harabasz(z, labels, mask)
        apart = evaluation.client_calinski_harabasz(z, clients, mask)
        row = {"p": p, "classes": classes, "calinski_harabasz": score}
        rows.append(row | {"client_separation": apart})
        title = f"p = {p:g}\nCH score {score:.1f}"
        panels.append(Panel(title, z[mask], labels[mask], clients[mask]))
    maps(panels, folder / "figure5.png", seed=args.seed[0])
    return rows


def load(args: ccfc.Args, *, num_runs: int) -> data.Dataset:
    """Returns the data of a figure, once the flags are known to span so many runs."""
    if args.extra_split is not None:
        raise ValueError("--extra-split has no labels, which the figures need")
    dataset, _ = experiment.load(args)
    if dataset.labels is None:
        raise ValueError(f"--dataset {args.dataset} must have labels for the figures")
    groups = plan.groups(args, dataset, 0, ccfc.describe)
    points = [point for group in groups for point in group.points]
    for name in points[0]:
        values = {point[name] for point in points}
        if name != "p" and len(values) > 1:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} takes one value for a figure, got {values}")
    assert len(points) == num_runs
    return dataset


def two_classes(
    dataset: data.Dataset, *, seed: int, per_class: int = 100
) -> data.Dataset:
    """Returns random examples of two random classes, in dataset order."""
    assert dataset.labels is not None
    rng = np.random.default_rng(seed)
    chosen = rng.choice(np.unique(dataset.labels), 2, replace=False)
    rows = [
        rng.permutation(np.flatnonzero(dataset.labels == c))[:per_class] for c in chosen
    ]
    rows = np.sort(np.concatenate(rows))
    return dataset._replace(
        examples=dataset.examples[rows], labels=dataset.labels[rows]
    )


def cluster(
    z: Float[np.ndarray, "M N D"], mask: Bool[np.ndarray, "M N"], num_clusters: int
) -> Int[np.ndarray, "M N"]:
    """Returns the clusters that k-means finds in each client's examples."""

    @jax.jit
    def each(key, z, mask):
        return kmeans(key, z, num_clusters, mask=mask).assignments

    keys = jax.random.split(jax.random.key(0), len(z))
    run = jax.lax.map(lambda values: each(*values), (keys, jnp.asarray(z), mask))
    return np.asarray(run)


def flat(examples: np.ndarray, leading: int) -> Float[np.ndarray, "..."]:
    """Returns examples as vectors, behind so many leading axes."""
    values = examples.reshape(*examples.shape[:leading], -1)
    return values.astype(np.float32) / (255 if examples.dtype == np.uint8 else 1)
