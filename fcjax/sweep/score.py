"""What is measured of a run: after every round, and when it has ended."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fcjax import evaluation
from fcjax.data import Dataset
from fcjax.evaluation.collapse import MAX_WEIGHT
from fcjax.sweep import communities
from fcjax.sweep.communities import Kept
from fcjax.sweep.experiment import short_name
from fcjax.sweep.flags import Common
from fcjax.sweep.folder import Point
from fcjax.sweep.plan import Call, Group, Method
from fcjax.sweep.run import Found

ROUND_SCORES = ("acc", "nmi", "kappa")
SCORES = (*ROUND_SCORES, "ari", "ami")
SURVIVING_SCORES = ("surviving_nmi", "surviving_acc", "surviving_kappa")
ACROSS_SCORES = ("global_acc", "global_nmi", "client_acc")
INTERNAL_SCORES = ("silhouette", "davies_bouldin", "calinski_harabasz")


def score_round(
    found: Found | None, dataset: Dataset, call: Call, run: int
) -> dict[str, Any]:
    """The scores of one run's round; empty cells where it was not evaluated, or has no
    clusters yet."""
    names = (*ROUND_SCORES, "occupied_clusters", "largest_share")
    if found is None or (found.of_examples < 0).all():
        return dict.fromkeys(names, "")
    is_global = call.group.method.scope == "global"
    clusters = found.of_examples if is_global else found.of_clients
    in_use = evaluation.collapse(
        clusters[clusters >= 0], num_clusters=call.group.num_clusters
    )
    values = {**score(found, dataset, call, run, names=ROUND_SCORES), **in_use}
    return {name: round_off(values[name]) if name in values else "" for name in names}


def score(
    found: Found,
    dataset: Dataset,
    call: Call,
    run: int,
    *,
    answered: np.ndarray | None = None,
    names: Sequence[str] = SCORES,
) -> dict[str, float]:
    """Scores one run: over all labelled examples, or a mean of its clients' own.

    With `answered` [M] only the examples that these clients hold count. An example that
    several clients hold counts once, but in the mean of clients' own at each of them.
    """
    labels = dataset.labels
    if labels is None:
        return {}
    chosen = slice(None) if answered is None else answered
    rows, mask = (x[chosen] for x in labelled_slots(dataset, call, run))
    if call.group.method.scope == "global":
        clusters = found.of_examples[: len(labels)]
        counted = clusters >= 0
        if answered is not None:
            counted &= np.isin(np.arange(len(labels)), rows[mask])
        return evaluation.scores(labels[counted], clusters[counted], names=names)
    each = evaluation.per_client(
        labels[rows], found.of_clients[chosen], mask, names=names
    )
    if call.group.method.scope == "client-mean":
        return evaluation.client_mean(each)
    return evaluation.client_pooled(each, mask)


def score_across(
    found: Found,
    dataset: Dataset,
    call: Call,
    run: int,
    scores: Mapping[str, float],
    same: Kept | None,
) -> dict[str, float]:
    """Scores a run that has ended the other way too: clients on their own by one match
    for all, where their clusters are known to be the same, and a common clustering by a
    match for each client.

    Args:
        found: its clusters.
        dataset: with its labels, if there are any.
        call: the runs.
        run: its place in the call.
        scores: of `score`.
        same: which clients' clusters are the same, if that is known.

    Returns:
        global_acc and global_nmi over all that every client holds, where communities
        are taken for clusters of all; client_acc, the mean over clients.
    """
    labels = dataset.labels
    if labels is None:
        return {}
    rows, mask = labelled_slots(dataset, call, run)
    mask &= found.of_clients >= 0
    each = [
        evaluation.accuracy(labels[rows[client, own]], clusters[own])
        for client, (clusters, own) in enumerate(
            zip(found.of_clients, mask, strict=True)
        )
        if own.any()
    ]
    across = {"client_acc": float(np.mean(each))} if each else {}
    if call.group.method.scope == "global":
        across |= {"global_acc": scores["acc"], "global_nmi": scores["nmi"]}
    if same is not None:
        names = communities.taken_globally(found.of_clients, same.community)[mask]
        across["global_acc"] = evaluation.accuracy(labels[rows[mask]], names)
        across["global_nmi"] = evaluation.nmi(labels[rows[mask]], names)
    return across


def labelled_slots(
    dataset: Dataset, call: Call, run: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the examples [M, N] that clients hold, and a mask of those with a label;
    the others stand for any that has one."""
    federations, count = call.grid.federations, len(dataset.examples)
    rows, mask = np.asarray(federations.indices[run]), np.asarray(federations.mask[run])
    return np.minimum(rows, count - 1), mask & (rows < count)


def score_run(
    dataset: Dataset,
    call: Call,
    run: int,
    found: Found,
    embedding: np.ndarray | None,
    *,
    num_rounds: int,
    same: Kept | None = None,
) -> dict[str, float]:
    """Scores a run that has ended, also over the clients that answered at least once.

    Args:
        dataset: with its labels, if there are any.
        call: the runs.
        run: its place in the call.
        found: its clusters.
        embedding: [P, D], NaN where a row has none; None where clients have no common
            one, which internal scores would compare.
        num_rounds: how many rounds the run had; it may have ended early.
        same: which clients' clusters are the same, if that is known.
    """
    scores = score(found, dataset, call, run)
    present = np.asarray(call.grid.federations.present[run])
    answered = np.any(present[:num_rounds], axis=0)
    surviving = score(found, dataset, call, run, answered=answered)
    scores |= {f"surviving_{name}": value for name, value in surviving.items()}
    scores |= score_across(found, dataset, call, run, scores, same)
    if embedding is not None:
        held = np.isfinite(embedding).all(axis=1)
        if held.any():
            clusters = found.of_examples[held]
            scores |= evaluation.internal_scores(embedding[held], clusters)
    return scores


def result_row(
    args: Common,
    dataset: Dataset,
    call: Call,
    run: int,
    history: Sequence[Mapping[str, Any]],
    scores: Mapping[str, float],
    *,
    compile_seconds: float,
) -> dict[str, Any]:
    """One row of results.csv: the last round's scores, and the best NMI beside them.

    Args:
        args: the flags.
        dataset: what was scored.
        call: the runs.
        run: its place in the call.
        history: its rounds.
        scores: from `score_run`.
        compile_seconds: of the call.
    """
    group, point = call.group, call.points[run]
    nmi = [float(row["nmi"]) for row in history if row["nmi"] != ""]
    row = {
        "method": group.method.name,
        "dataset": short_name(args.dataset),
        "samples": len(dataset.examples),
        "left_out": len(call.partitions[run].left_out),
        "clients": group.num_clients,
        "clusters": group.num_clusters,
        **point,
        "scope": group.method.scope,
        **{
            name: round_off(scores[name]) if name in scores else ""
            for name in (*SCORES, *SURVIVING_SCORES, *ACROSS_SCORES, *INTERNAL_SCORES)
        },
        "best_nmi": max(nmi, default=""),
        **reported(group.method, history),
        **paper_scores(args, group, point),
        "participation": participation(history, num_clients=group.num_clients),
        "rounds": len(history),
        "status": status(history, num_clusters=group.num_clusters),
        "seconds": round_off(sum(float(row["seconds"]) for row in history)),
        "compile_seconds": compile_seconds,
    }
    # By its swept values a run is found again: no column may take the name of one.
    return {**row, **point}


def reported(method: Method, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what the method reports: of the last round, and as initial_NAME, with the
    accuracy, of the last round of the stage that it sets out from."""

    def cell(row: Mapping[str, Any], name: str) -> float | str:
        value = row.get(name)
        return "" if value in ("", None) else round_off(float(value))

    found = {name: cell(history[-1], name) for name in method.reported}
    if method.start:
        begun: list[Mapping[str, Any]] = [{}]
        begun += [row for row in history if row["stage"] == method.start]
        for name in ("acc", *method.reported):
            found[f"initial_{name}"] = cell(begun[-1], name)
    return found


def participation(history: Sequence[Mapping[str, Any]], *, num_clients: int) -> float:
    """Returns the share of the clients that took part, averaged over the rounds."""
    counts = [float(row["participants"]) for row in history]
    return round_off(sum(counts) / len(counts) / num_clients)


def paper_scores(args: Common, group: Group, point: Point) -> dict[str, Any]:
    """Returns the paper's scores of this setting, empty where it reports none."""
    paper = group.method.paper
    names = dict.fromkeys(name for scores in paper.values() for name in scores)
    same = args.limit is None and args.split == "all" and group.num_clients == 10
    same = same and point["failure_rate"] == 0
    known = paper.get(point.get("p", -1), {}) if same else {}
    return {f"paper_{name}": known.get(name, "") for name in names}


def status(history: Sequence[Mapping[str, Any]], *, num_clusters: int) -> str:
    """ok, collapsed, or diverged with the round in which it did: the loss is no number,
    or the weights have left every scale."""
    for row in history:
        size = float(row.get("weight_size") or 0)
        if not (np.isfinite(float(row["loss"])) and size <= MAX_WEIGHT):
            return f"diverged in round {row['round']} of {row['stage']}"
    last = {
        name: float(history[-1][name])
        for name in ("occupied_clusters", "largest_share", "embedding_spread")
        if history[-1].get(name, "") != ""  # a clustering has no spread to lose
    }
    return evaluation.status(last, num_clusters=num_clusters)


def round_off(value: float | int) -> float:
    return round(float(value), 6)
