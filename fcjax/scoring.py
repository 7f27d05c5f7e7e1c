"""What is measured of a run: after every round, and when it has ended."""

from typing import Any

import numpy as np

from fcjax import evaluation
from fcjax.experiment import Experiment, short_name

SCORES = ("acc", "nmi", "kappa", "ari", "ami")
INTERNAL_SCORES = ("silhouette", "davies_bouldin", "calinski_harabasz")


def score_round(
    clusters: np.ndarray | None, experiment: Experiment, run: int
) -> dict[str, Any]:
    """The scores of one run's round; empty cells where it was not evaluated."""
    names = ("acc", "nmi", "kappa", "occupied_clusters", "largest_share")
    if clusters is None:
        return dict.fromkeys(names, "")
    found = evaluation.collapse(
        clusters[clusters >= 0], num_clusters=experiment.num_clusters
    )
    values = {**score(clusters, experiment, run), **found}
    return {name: round_off(values[name]) if name in values else "" for name in names}


def score(clusters: np.ndarray, experiment: Experiment, run: int) -> dict[str, float]:
    """Scores one run: over all labelled examples, or the mean of its clients' own."""
    labels = experiment.dataset.labels
    if labels is None:
        return {}
    if experiment.method.scope == "global":
        clusters = clusters[: len(labels)]
        counted = clusters >= 0
        return evaluation.scores(labels[counted], clusters[counted])
    federations = experiment.grid.federations
    rows = np.asarray(federations.indices[run])
    mask = np.asarray(federations.mask[run]) & (rows < len(labels))
    rows = np.minimum(rows, len(labels) - 1)
    each = evaluation.per_client(labels[rows], clusters[rows], mask)
    return evaluation.client_mean(each, mask)


def result_row(
    experiment: Experiment,
    run: int,
    clusters: np.ndarray,
    embedding: np.ndarray | None,
    compile_seconds: float,
) -> dict[str, Any]:
    """One row of results.csv: the last round's scores, and the best NMI beside them.

    Args:
        experiment: whose run it is.
        run: its place in the grid.
        clusters: [P] of all examples.
        embedding: [P, D], NaN where a row has none; None where clients have no common
            one, which internal scores would compare.
        compile_seconds: of the grid.
    """
    args, results = experiment.args, experiment.results
    point, partition = results.pending[run], experiment.partitions[run]
    history = results.history_of(point)
    scores = score(clusters, experiment, run)
    if embedding is not None:
        held = np.isfinite(embedding).all(axis=1)
        if held.any():
            scores |= evaluation.internal_scores(embedding[held], clusters[held])
    nmi = [float(row["nmi"]) for row in history if row["nmi"] != ""]
    return {
        "method": experiment.method.name,
        "dataset": short_name(args.dataset),
        "samples": len(experiment.dataset.examples),
        "left_out": len(partition.left_out),
        "clients": args.clients,
        "clusters": experiment.num_clusters,
        **point,
        "scope": experiment.method.scope,
        **{
            name: round_off(scores[name]) if name in scores else ""
            for name in (*SCORES, *INTERNAL_SCORES)
        },
        "best_nmi": max(nmi, default=""),
        "rounds": len(history),
        "status": status(history, experiment.num_clusters),
        "seconds": round_off(sum(float(row["seconds"]) for row in history)),
        "compile_seconds": compile_seconds,
    }


def status(history: list[dict[str, Any]], num_clusters: int) -> str:
    """ok, collapsed, or diverged with the round in which the loss stopped being one."""
    for row in history:
        if not np.isfinite(float(row["loss"])):
            return f"diverged in round {row['round']} of {row['stage']}"
    last = {
        name: float(history[-1][name])
        for name in ("occupied_clusters", "largest_share", "embedding_spread")
    }
    return evaluation.status(last, num_clusters=num_clusters)


def round_off(value: float | int) -> float:
    return round(float(value), 6)
