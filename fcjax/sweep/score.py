"""Scores of a run, after every round and at its end; the k-means baseline."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from fcjax import metrics
from fcjax.data.source import Source, short_name
from fcjax.federated.kmeans import heterogeneity
from fcjax.methods.base import MethodSpec, Scope
from fcjax.metrics.internal import MAX_WEIGHT
from fcjax.results.run import INTERNAL_SCORES
from fcjax.results.store import CommunityAssignments, Row, global_clusters
from fcjax.sweep.outcome import Outcome
from fcjax.sweep.plan import Batch

# --- The k-means baseline

MOST_FITTED = 10_000
"""Examples that the centroids are found on, drawn at random; all of them are assigned.
"""
MOST_MEASURED = 2000
"""Examples that silhouettes are taken of, which are quadratic in their number."""

COLUMNS = (
    *("kmeans_nmi", "kmeans_acc", "kmeans_agreement"),
    *("kmeans_silhouette", "input_silhouette"),
)


class Baseline(NamedTuple):
    """What k-means makes of all examples in one place."""

    clusters: Int[np.ndarray, "P"]
    few: Int[np.ndarray, "n"]
    """Examples that silhouettes are taken of."""
    points: Float[np.ndarray, "n F"]
    """Those examples."""
    scores: dict[str, float]
    """Of k-means: NMI and ACC where there are labels, and its silhouette."""

    def of_run(self, run: Outcome) -> dict[str, float]:
        """Returns the columns of `COLUMNS` for a run with clusters of all examples:
        k-means' own, the adjusted Rand index of the two, and the silhouette of the run
        among the examples as they are.
        """
        clusters = run.clusters[: len(self.clusters)]
        held = clusters >= 0
        (own,) = metrics.silhouettes(self.points, clusters[self.few][None])
        found = {
            **self.scores,
            "kmeans_agreement": metrics.ari(self.clusters[held], clusters[held]),
            "input_silhouette": float(own),
        }
        return {name: value for name, value in found.items() if np.isfinite(value)}


def kmeans_baseline(
    examples: np.ndarray, labels: Int[np.ndarray, "P"] | None, *, num_clusters: int
) -> Baseline:
    """Clusters the examples as they are, by the best of ten seedings.

    Args:
        examples: [P, *F], the scored ones.
        labels: for scores alone; None where the data has none.
        num_clusters: K; of fewer examples, as many as there are.
    """
    drawn = np.random.default_rng(0).permutation(len(examples))
    rows, few = np.sort(drawn[:MOST_FITTED]), np.sort(drawn[:MOST_MEASURED])
    flat = examples.reshape(len(examples), -1)
    points = flat[few].astype(np.float32)
    kmeans = KMeans(min(num_clusters, len(rows)), n_init=10, random_state=0)  # pyright: ignore[reportArgumentType]
    with warnings.catch_warnings():
        # Of fewer different examples some clusters are empty.
        warnings.simplefilter("ignore", ConvergenceWarning)
        kmeans.fit(flat[rows].astype(np.float32))
    parts = np.array_split(flat, -(-len(flat) // MOST_FITTED))
    each = [kmeans.predict(part.astype(np.float32)) for part in parts]
    clusters = np.concatenate(each)
    (own,) = metrics.silhouettes(points, clusters[few][None])
    scores = {"kmeans_silhouette": float(own)}
    if labels is not None:
        scores["kmeans_nmi"] = metrics.nmi(labels, clusters)
        scores["kmeans_acc"] = metrics.accuracy(labels, clusters)
    return Baseline(clusters, few, points, scores)


# --- Scores of a round and of a run

ROUND_SCORES = ("acc", "nmi", "kappa")
IN_USE = ("occupied_clusters", "largest_share")
SCORES = (*ROUND_SCORES, "ari", "ami")
SURVIVING_SCORES = ("surviving_nmi", "surviving_acc", "surviving_kappa")
ACROSS_SCORES = ("global_acc", "global_nmi", "client_acc")

Labels = Int[np.ndarray, "L"] | None
"""Of the first L examples, the others being trained on alone; None where the data has
none."""


def score_round(
    run: Outcome,
    labels: Labels,
    scope: Scope,
    *,
    num_clusters: int,
    names: Sequence[str] = ROUND_SCORES,
) -> dict[str, float | int]:
    """Scores a run after a round: against the labels, and how its clusters are in use;
    nothing where it has none yet.
    """
    if (run.clusters < 0).all():
        return {}
    found = run.clusters if scope == "global" else run.of_clients
    in_use = metrics.collapse(found[found >= 0], num_clusters=num_clusters)
    scores = against(run, labels, scope, names=names)
    return scores | {name: in_use[name] for name in IN_USE}


def cells(scores: Mapping[str, float | int]) -> Row:
    """Returns what history.csv has of `score_round`, empty cells where it has none."""
    return {
        name: round_off(scores[name]) if name in scores else None
        for name in (*ROUND_SCORES, *IN_USE)
    }


def against(
    run: Outcome,
    labels: Labels,
    scope: Scope,
    *,
    answered: Bool[np.ndarray, "M"] | None = None,
    names: Sequence[str] = SCORES,
) -> dict[str, float]:
    """Scores a run against the labels: over all examples that have one, or a mean of
    its clients' own.

    With `answered` only the examples that these clients hold count. An example that
    several clients hold counts once, but in the mean of clients' own at each of them.
    """
    if labels is None:
        return {}
    chosen = slice(None) if answered is None else answered
    rows, mask = (x[chosen] for x in labelled_slots(run, labels))
    if scope == "global":
        clusters = run.clusters[: len(labels)]
        counted = clusters >= 0
        if answered is not None:
            counted &= np.isin(np.arange(len(labels)), rows[mask])
        return metrics.scores(labels[counted], clusters[counted], names=names)
    each = metrics.per_client(labels[rows], run.of_clients[chosen], mask, names=names)
    if scope == "client-mean":
        return metrics.client_mean(each)
    return metrics.client_pooled(each, mask)


def score_across(
    run: Outcome,
    labels: Labels,
    scope: Scope,
    scores: Mapping[str, float | int],
    same: CommunityAssignments | None,
) -> dict[str, float]:
    """Scores a run that has ended the other way too: clients on their own by one match
    for all, where their clusters are known to be the same, and a common clustering by a
    match for each client.

    Args:
        run: what it found.
        labels: see `Labels`.
        scope: of the method.
        scores: of `against`.
        same: which clients' clusters are the same, if that is known.

    Returns:
        global_acc and global_nmi over all that every client holds, where communities
        are taken for clusters of all; client_acc, the mean over clients.
    """
    if labels is None:
        return {}
    rows, mask = labelled_slots(run, labels)
    mask &= run.of_clients >= 0
    each = [
        metrics.accuracy(labels[rows[client, own]], clusters[own])
        for client, (clusters, own) in enumerate(zip(run.of_clients, mask, strict=True))
        if own.any()
    ]
    across = {"client_acc": float(np.mean(each))} if each else {}
    if scope == "global" and scores:
        across |= {"global_acc": scores["acc"], "global_nmi": scores["nmi"]}
    if same is not None:
        names = global_clusters(run.of_clients, same.community)[mask]
        across["global_acc"] = metrics.accuracy(labels[rows[mask]], names)
        across["global_nmi"] = metrics.nmi(labels[rows[mask]], names)
    return across


def labelled_slots(run: Outcome, labels: Int[np.ndarray, "L"]):
    """Returns the examples [M, N] that clients hold, and a mask of those with a label;
    the others stand for any that has one.
    """
    count = len(labels)
    return np.minimum(run.rows, count - 1), run.mask & (run.rows < count)


def score_end(
    run: Outcome,
    labels: Labels,
    scope: Scope,
    scores: Mapping[str, float | int],
    *,
    present: Bool[np.ndarray, "R M"],
    embedding: Float[np.ndarray, "P D"] | None,
    same: CommunityAssignments | None = None,
) -> dict[str, float | int]:
    """Scores a run that has ended, also over the clients that answered at least once.

    Args:
        run: what it found.
        labels: see `Labels`.
        scope: of the method.
        scores: of its last round, by all names of `SCORES`.
        present: who answered in its rounds.
        embedding: NaN where a row has none; None where clients have no common one,
            which internal scores would compare.
        same: which clients' clusters are the same, if that is known.
    """
    answered = np.any(present, axis=0)
    surviving = against(run, labels, scope, answered=answered, names=ROUND_SCORES)
    found = {**scores, **{f"surviving_{k}": value for k, value in surviving.items()}}
    found |= score_across(run, labels, scope, scores, same)
    if scope == "global" and len(run.of_clients) > 1:
        most = run.of_clients.max() + 1
        counts = [
            np.bincount(clusters[clusters >= 0], minlength=most)
            for clusters in run.of_clients
        ]
        # Compiled whole: its operations one by one take a second.
        value = jax.jit(heterogeneity)(np.asarray(counts, np.float32))
        found["heterogeneity"] = float(value)
    if embedding is not None:
        held = np.isfinite(embedding).all(axis=1)
        if held.any():
            found |= metrics.internal_scores(embedding[held], run.clusters[held])
            found["effective_rank"] = metrics.effective_rank(embedding[held])
    return found


def result_row(
    source: Source,
    batch: Batch,
    run: int,
    history: Sequence[Row],
    scores: Mapping[str, float | int],
    *,
    num_examples: int,
    compile_seconds: float,
) -> Row:
    """One row of results.csv: the last round's scores, and the best NMI beside them.

    Args:
        source: of the data.
        batch: the runs.
        run: its place among them.
        history: its rounds.
        scores: from `score_end`.
        num_examples: of the data set that was scored.
        compile_seconds: of the batch.
    """
    point = batch.points[run]
    nmi = [row["nmi"] for row in history if row["nmi"] is not None]
    row = {
        "method": batch.method.name,
        "dataset": short_name(source.dataset),
        "samples": num_examples,
        "left_out": len(batch.partitions[run].left_out),
        "clients": batch.num_clients,
        "clusters": batch.num_clusters,
        **point,
        "scope": batch.method.scope,
        **{
            name: round_off(scores[name]) if name in scores else None
            for name in (
                *(*SCORES, *SURVIVING_SCORES, *ACROSS_SCORES, *INTERNAL_SCORES),
                *("effective_rank", "heterogeneity", *COLUMNS),
            )
        },
        "best_nmi": max(nmi, default=None),
        **reported(batch.method, history),
        **paper_scores(source, batch, point),
        "participation": participation(history, num_clients=batch.num_clients),
        "rounds": len(history),
        "status": status(history, num_clusters=batch.num_clusters),
        "seconds": round_off(sum(row["seconds"] for row in history)),
        "compile_seconds": compile_seconds,
    }
    # By its swept values a run is found again: no column may take the name of one.
    return {**row, **point}


def reported(method: MethodSpec, history: Sequence[Row]) -> Row:
    """Returns what the method reports: of the last round, and as initial_NAME, with the
    accuracy, of the last round of the stage that it sets out from.
    """

    def cell(row: Row, name: str) -> float | None:
        value = row.get(name)
        return None if value is None else round_off(value)

    found = {name: cell(history[-1], name) for name in method.reported}
    if method.start:
        begun = [{}, *(row for row in history if row["stage"] == method.start)]
        for name in ("acc", *method.reported):
            found[f"initial_{name}"] = cell(begun[-1], name)
    return found


def participation(history: Sequence[Row], *, num_clients: int) -> float:
    """Returns the share of the clients that took part, averaged over the rounds."""
    counts = [row["participants"] for row in history]
    return round_off(sum(counts) / len(counts) / num_clients)


def paper_scores(source: Source, batch: Batch, point: Mapping[str, Any]) -> Row:
    """Returns the paper's scores of this setting, empty where it reports none."""
    paper = batch.method.paper
    names = dict.fromkeys(name for scores in paper.values() for name in scores)
    same = source.limit is None and source.split == "all" and batch.num_clients == 10
    same = same and point["failure_rate"] == 0
    known = paper.get(point.get("p", -1), {}) if same else {}
    return {f"paper_{name}": known.get(name) for name in names}


def status(history: Sequence[Row], *, num_clusters: int) -> str:
    """ok, collapsed, or diverged with the round in which it did: the loss is no number,
    or the weights have left every scale.
    """
    for row in history:
        size = row.get("weight_size") or 0
        if not (np.isfinite(row["loss"]) and size <= MAX_WEIGHT):
            return f"diverged in round {row['round']} of {row['stage']}"
    last = {
        name: float(history[-1][name])
        for name in (*IN_USE, "embedding_spread")
        if history[-1].get(name) is not None  # a clustering has no spread to lose
    }
    return metrics.status(last, num_clusters=num_clusters)


def round_off(value: float | int) -> float:
    return round(float(value), 6)
