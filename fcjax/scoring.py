"""What is measured of a run: after every round, and when it has ended."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fcjax import evaluation
from fcjax.data import Dataset
from fcjax.experiment import short_name
from fcjax.flags import Common
from fcjax.plan import Call, Group
from fcjax.results import Point

SCORES = ("acc", "nmi", "kappa", "ari", "ami")
SURVIVING_SCORES = ("surviving_nmi", "surviving_acc", "surviving_kappa")
INTERNAL_SCORES = ("silhouette", "davies_bouldin", "calinski_harabasz")


def score_round(
    clusters: np.ndarray | None, dataset: Dataset, call: Call, run: int
) -> dict[str, Any]:
    """The scores of one run's round; empty cells where it was not evaluated, or has no
    clusters yet."""
    names = ("acc", "nmi", "kappa", "occupied_clusters", "largest_share")
    if clusters is None or (clusters < 0).all():
        return dict.fromkeys(names, "")
    found = evaluation.collapse(
        clusters[clusters >= 0], num_clusters=call.group.num_clusters
    )
    values = {**score(clusters, dataset, call, run), **found}
    return {name: round_off(values[name]) if name in values else "" for name in names}


def score(
    clusters: np.ndarray,
    dataset: Dataset,
    call: Call,
    run: int,
    *,
    answered: np.ndarray | None = None,
) -> dict[str, float]:
    """Scores one run: over all labelled examples, or the mean of its clients' own.

    With `answered` [M] only the examples that these clients hold count.
    """
    labels = dataset.labels
    if labels is None:
        return {}
    federations = call.grid.federations
    chosen = slice(None) if answered is None else answered
    rows = np.asarray(federations.indices[run])[chosen]
    mask = np.asarray(federations.mask[run])[chosen] & (rows < len(labels))
    if call.group.method.scope == "global":
        clusters = clusters[: len(labels)]
        counted = clusters >= 0
        if answered is not None:
            counted &= np.isin(np.arange(len(labels)), rows[mask])
        return evaluation.scores(labels[counted], clusters[counted])
    rows = np.minimum(rows, len(labels) - 1)
    each = evaluation.per_client(labels[rows], clusters[rows], mask)
    return evaluation.client_mean(each, mask)


def score_run(
    dataset: Dataset,
    call: Call,
    run: int,
    clusters: np.ndarray,
    embedding: np.ndarray | None,
    *,
    num_rounds: int,
) -> dict[str, float]:
    """Scores a run that has ended, also over the clients that answered at least once.

    Args:
        dataset: with its labels, if there are any.
        call: the runs.
        run: its place in the call.
        clusters: [P] of all examples.
        embedding: [P, D], NaN where a row has none; None where clients have no common
            one, which internal scores would compare.
        num_rounds: how many rounds the run had; it may have ended early.
    """
    scores = score(clusters, dataset, call, run)
    present = np.asarray(call.grid.federations.present[run])
    answered = np.any(present[:num_rounds], axis=0)
    surviving = score(clusters, dataset, call, run, answered=answered)
    scores |= {f"surviving_{name}": value for name, value in surviving.items()}
    if embedding is not None:
        held = np.isfinite(embedding).all(axis=1)
        if held.any():
            scores |= evaluation.internal_scores(embedding[held], clusters[held])
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
            for name in (*SCORES, *SURVIVING_SCORES, *INTERNAL_SCORES)
        },
        "best_nmi": max(nmi, default=""),
        **paper_scores(args, group, point),
        "participation": participation(history, num_clients=group.num_clients),
        "rounds": len(history),
        "status": status(history, num_clusters=group.num_clusters),
        "seconds": round_off(sum(float(row["seconds"]) for row in history)),
        "compile_seconds": compile_seconds,
    }
    # By its swept values a run is found again: no column may take the name of one.
    return {**row, **point}


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
        if not (np.isfinite(float(row["loss"])) and size <= evaluation.MAX_WEIGHT):
            return f"diverged in round {row['round']} of {row['stage']}"
    last = {
        name: float(history[-1][name])
        for name in ("occupied_clusters", "largest_share", "embedding_spread")
        if history[-1].get(name, "") != ""  # a clustering has no spread to lose
    }
    return evaluation.status(last, num_clusters=num_clusters)


def round_off(value: float | int) -> float:
    return round(float(value), 6)
