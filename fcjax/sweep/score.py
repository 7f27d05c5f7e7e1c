"""Scores of runs after a round and at the end, and the k-means baseline."""

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
from fcjax.metrics.internal import INTERNAL_SCORES, MAX_WEIGHT
from fcjax.results.store import CommunityAssignments, Row, global_clusters
from fcjax.sweep.outcome import Embedding, Outcome
from fcjax.sweep.plan import Batch

# --- The k-means baseline

MOST_FITTED = 10_000
"""Largest number of examples, sampled at random, on which k-means is fitted. Afterwards
all examples are assigned."""
MOST_MEASURED = 2000
"""Largest number of examples for silhouettes, whose cost is quadratic in the number."""

COLUMNS = (
    *("kmeans_nmi", "kmeans_acc", "kmeans_agreement"),
    *("kmeans_silhouette", "input_silhouette"),
)
"""The columns of results.csv that compare a run with the baseline."""


class Baseline(NamedTuple):
    """The result of k-means on all raw examples in one place."""

    clusters: Int[np.ndarray, "P"]
    """The cluster of every example."""
    few: Int[np.ndarray, "n"]
    """Indices of the examples for silhouettes."""
    points: Float[np.ndarray, "n F"]
    """The examples for silhouettes, as vectors."""
    scores: dict[str, float]
    """The silhouette of k-means, and for data with labels NMI and ACC."""

    def of_run(self, run: Outcome) -> dict[str, float]:
        """Compares a run that clusters all examples together with k-means.

        Args:
            run: the clusters of the run.

        Returns:
            The scores of k-means, the adjusted Rand index between both clusterings
            (`kmeans_agreement`), and the silhouette of the run on the raw examples
            (`input_silhouette`). Values that are not finite are left out.
        """
        clusters = run.clusters[: len(self.clusters)]
        known = clusters >= 0
        (silhouette,) = metrics.silhouettes(self.points, clusters[self.few][None])
        columns = {
            **self.scores,
            "kmeans_agreement": metrics.ari(self.clusters[known], clusters[known]),
            "input_silhouette": float(silhouette),
        }
        return {name: value for name, value in columns.items() if np.isfinite(value)}


def kmeans_baseline(
    examples: np.ndarray, labels: Int[np.ndarray, "P"] | None, *, num_clusters: int
) -> Baseline:
    """Runs k-means on the raw examples, and keeps the best of ten initializations.

    Args:
        examples: the scored examples, [P, *F].
        labels: the classes, which are only used for the scores; None for data without
            labels.
        num_clusters: K. With fewer examples, every example is a cluster.

    Returns:
        The clusters and their scores.
    """
    order = np.random.default_rng(0).permutation(len(examples))
    rows, few = np.sort(order[:MOST_FITTED]), np.sort(order[:MOST_MEASURED])
    flat = examples.reshape(len(examples), -1)
    points = flat[few].astype(np.float32)
    kmeans = KMeans(min(num_clusters, len(rows)), n_init=10, random_state=0)  # pyright: ignore[reportArgumentType]
    with warnings.catch_warnings():
        # Some clusters are empty if there are fewer different examples than clusters.
        warnings.simplefilter("ignore", ConvergenceWarning)
        kmeans.fit(flat[rows].astype(np.float32))
    parts = np.array_split(flat, -(-len(flat) // MOST_FITTED))
    each = [kmeans.predict(part.astype(np.float32)) for part in parts]
    clusters = np.concatenate(each)
    (silhouette,) = metrics.silhouettes(points, clusters[few][None])
    scores = {"kmeans_silhouette": float(silhouette)}
    if labels is not None:
        scores["kmeans_nmi"] = metrics.nmi(labels, clusters)
        scores["kmeans_acc"] = metrics.accuracy(labels, clusters)
    return Baseline(clusters, few, points, scores)


# --- Scores of a round and of a run

ROUND_SCORES = ("acc", "nmi", "kappa")
"""The scores after every evaluated round."""
IN_USE = ("occupied_clusters", "largest_share")
"""The number of non-empty clusters, and the share of examples in the largest one."""
SCORES = (*ROUND_SCORES, "ari", "ami")
SURVIVING_SCORES = ("surviving_nmi", "surviving_acc", "surviving_kappa")
ACROSS_SCORES = ("global_acc", "global_nmi", "client_acc")
GUARANTEE = ("delta", "privacy_unit", "mechanism")
"""The columns of results.csv with the guarantee of differential privacy."""

Labels = Int[np.ndarray, "L"] | None
"""The classes of the first L examples; further examples are only trained on. None for
data without labels."""


def score_round(
    run: Outcome,
    labels: Labels,
    scope: Scope,
    *,
    num_clusters: int,
    names: Sequence[str] = ROUND_SCORES,
) -> dict[str, float | int]:
    """Scores a run after a round.

    Args:
        run: the clusters of the run.
        labels: see `Labels`.
        scope: how the clusters of the method are scored.
        num_clusters: K.
        names: the scores to compute from the labels.

    Returns:
        The scores, the number of non-empty clusters and the share of the largest one;
        empty if the run has no clusters yet.
    """
    if (run.clusters < 0).all():
        return {}
    clusters = run.clusters if scope == "global" else run.clusters_of_clients
    in_use = metrics.collapse(clusters[clusters >= 0], num_clusters=num_clusters)
    scores = label_scores(run, labels, scope, names=names)
    return scores | {name: in_use[name] for name in IN_USE}


def history_cells(scores: Mapping[str, float | int]) -> Row:
    """Returns the cells of history.csv for the result of `score_round`.

    Args:
        scores: the scores of a round; may be empty.

    Returns:
        One cell per score, None for a missing score.
    """
    return {
        name: round_off(scores[name]) if name in scores else None
        for name in (*ROUND_SCORES, *IN_USE)
    }


def label_scores(
    run: Outcome,
    labels: Labels,
    scope: Scope,
    *,
    participating: Bool[np.ndarray, "M"] | None = None,
    names: Sequence[str] = SCORES,
) -> dict[str, float]:
    """Scores a run by its labels, over all examples or as a mean over clients.

    An example that several clients hold counts once if the scope is global, otherwise
    once per client.

    Args:
        run: the clusters of the run.
        labels: see `Labels`.
        scope: how the clusters of the method are scored.
        participating: the clients whose examples are scored; None scores all.
        names: the scores to compute.

    Returns:
        The scores by name; empty for data without labels.
    """
    if labels is None:
        return {}
    chosen = slice(None) if participating is None else participating
    rows, mask = (x[chosen] for x in labelled_examples(run, labels))
    if scope == "global":
        clusters = run.clusters[: len(labels)]
        counted = clusters >= 0
        if participating is not None:
            counted &= np.isin(np.arange(len(labels)), rows[mask])
        return metrics.scores(labels[counted], clusters[counted], names=names)
    each = metrics.per_client(
        labels[rows], run.clusters_of_clients[chosen], mask, names=names
    )
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
    """Scores a finished run globally and per client, whatever the scope of its method.

    Clusterings of single clients are scored globally if communities tell which of their
    clusters are the same.

    Args:
        run: the clusters of the run.
        labels: see `Labels`.
        scope: how the clusters of the method are scored.
        scores: the result of `label_scores`.
        same: the communities of the clients' clusters; None if they are unknown.

    Returns:
        `global_acc` and `global_nmi`, with one matching for all clients, if they are
        known; `client_acc`, the mean over clients of the accuracy with one matching per
        client.
    """
    if labels is None:
        return {}
    rows, mask = labelled_examples(run, labels)
    mask &= run.clusters_of_clients >= 0
    each = [
        metrics.accuracy(labels[rows[client, known]], clusters[known])
        for client, (clusters, known) in enumerate(
            zip(run.clusters_of_clients, mask, strict=True)
        )
        if known.any()
    ]
    across = {"client_acc": float(np.mean(each))} if each else {}
    if scope == "global" and scores:
        across |= {"global_acc": scores["acc"], "global_nmi": scores["nmi"]}
    if same is not None:
        names = global_clusters(run.clusters_of_clients, same.community)[mask]
        across["global_acc"] = metrics.accuracy(labels[rows[mask]], names)
        across["global_nmi"] = metrics.nmi(labels[rows[mask]], names)
    return across


def labelled_examples(run: Outcome, labels: Int[np.ndarray, "L"]):
    """Returns the indices [M, N] of the clients' examples and a mask of labelled ones.

    Args:
        run: the clusters of the run.
        labels: the classes of the first L examples.

    Returns:
        The indices, at most L - 1, and the mask of the examples with a label.
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
    embedding: Embedding | None,
    same: CommunityAssignments | None = None,
) -> dict[str, float | int]:
    """Computes all scores of a finished run.

    Args:
        run: the clusters of the run.
        labels: see `Labels`.
        scope: how the clusters of the method are scored.
        scores: the scores of the last round, with all names of `SCORES`.
        present: the participating clients of each round.
        embedding: the embedding by the global model; None if the clients have no global
            model. Internal scores need it.
        same: the communities of the clients' clusters; None if they are unknown.

    Returns:
        `scores`, the scores over the clients that participated at least once
        (`surviving_*`), the scores of `score_across`, the measured heterogeneity, the
        internal scores and the effective rank, as far as they are defined.
    """
    surviving = label_scores(
        run, labels, scope, participating=np.any(present, axis=0), names=ROUND_SCORES
    )
    final = {**scores, **{f"surviving_{k}": value for k, value in surviving.items()}}
    final |= score_across(run, labels, scope, scores, same)
    if scope == "global" and len(run.clusters_of_clients) > 1:
        most = run.clusters_of_clients.max() + 1
        counts = [
            np.bincount(clusters[clusters >= 0], minlength=most)
            for clusters in run.clusters_of_clients
        ]
        # Without `jit` its operations are compiled one by one, which takes a second.
        value = jax.jit(heterogeneity)(np.asarray(counts, np.float32))
        final["heterogeneity"] = float(value)
    if embedding is not None:
        known = np.isfinite(embedding.points).all(axis=1)
        if known.any():
            points, examples = embedding.points, embedding.examples
            if not known.all():
                points, examples = points[known], examples[known]
            final |= metrics.internal_scores(points, run.clusters[examples])
            final["effective_rank"] = metrics.effective_rank(points)
    return final


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
    """Returns the row of a run in results.csv.

    Args:
        source: the source of the data.
        batch: the runs of the call.
        run: the index of the run in the batch.
        history: the rows of the run in history.csv.
        scores: the result of `score_end`.
        num_examples: the number of scored examples.
        compile_seconds: the seconds that the call spent compiling.

    Returns:
        The settings and scores by column. `best_nmi` is the best NMI of all rounds.
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
        **{k: v for k, v in batch.method.settings.items() if k in GUARANTEE},
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
    # The swept values identify a run. No other column may overwrite them.
    return {**row, **point}


def reported(method: MethodSpec, history: Sequence[Row]) -> Row:
    """Returns the metrics that a method reports in results.csv.

    Args:
        method: names the metrics in `reported`, and its first stage in `start`.
        history: the rows of a run in history.csv.

    Returns:
        The metrics of the last round. `initial_NAME` are the metrics, and the accuracy,
        of the last round of the stage `start`.
    """

    def cell(row: Row, name: str) -> float | None:
        value = row.get(name)
        return None if value is None else round_off(value)

    columns = {name: cell(history[-1], name) for name in method.reported}
    if method.start:
        rows = [{}, *(row for row in history if row["stage"] == method.start)]
        for name in ("acc", *method.reported):
            columns[f"initial_{name}"] = cell(rows[-1], name)
    return columns


def participation(history: Sequence[Row], *, num_clients: int) -> float:
    """Returns the mean share of participating clients per round, in [0, 1].

    Args:
        history: rounds of one run. The column `participants` has the number of clients.
        num_clients: M, the number of clients.

    Returns:
        The share, rounded to six decimal places.
    """
    counts = [row["participants"] for row in history]
    return round_off(sum(counts) / len(counts) / num_clients)


def paper_scores(source: Source, batch: Batch, point: Mapping[str, Any]) -> Row:
    """Returns the paper's scores for the setting of a run.

    Args:
        source: the data source. A sub-sample has no scores in the paper.
        batch: the runs of the compiled program.
        point: the values of the run's varied settings, by name.

    Returns:
        A dict with the key `paper_NAME` for each score; the value is None if the paper
        does not report the setting.
    """
    paper = batch.method.paper
    names = dict.fromkeys(name for scores in paper.values() for name in scores)
    is_same = source.limit is None and source.split == "all"
    is_same = is_same and batch.num_clients == 10 and point["failure_rate"] == 0
    known = paper.get(point.get("p", -1), {}) if is_same else {}
    return {f"paper_{name}": known.get(name) for name in names}


def status(history: Sequence[Row], *, num_clusters: int) -> str:
    """Returns the status of a finished run.

    Args:
        history: the rows of the run in history.csv.
        num_clusters: K.

    Returns:
        "ok"; "collapsed", see `fcjax.metrics.status`; or "diverged in round ... of ..."
        if the loss is not finite or the weights are larger than `MAX_WEIGHT`.
    """
    for row in history:
        size = row.get("weight_size") or 0
        if not (np.isfinite(row["loss"]) and size <= MAX_WEIGHT):
            return f"diverged in round {row['round']} of {row['stage']}"
    last = {
        name: float(history[-1][name])
        for name in (*IN_USE, "embedding_spread")
        if history[-1].get(name) is not None  # without an embedding, no spread
    }
    return metrics.status(last, num_clusters=num_clusters)


def round_off(value: float | int) -> float:
    """Rounds a number to six decimal places.

    Args:
        value: the number.

    Returns:
        The rounded number.
    """
    return round(float(value), 6)
