"""K-means of the examples as they are, beside which every run is shown: a method that
does no better has learnt nothing."""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from fcjax import evaluation
from fcjax.sweep.run import Run

MOST_FITTED = 10_000
"""Examples that the centroids are found on, drawn at random; all of them are assigned.
"""
MOST_MEASURED = 2000
"""Examples that silhouettes are taken of, which are quadratic in their number."""
LIKELY_WORSE = 0.7
"""Share of k-means' silhouette among the examples below which a run has likely found
less: measured in docs/benchmarks/without_labels.md."""

COLUMNS = (
    *("kmeans_nmi", "kmeans_acc", "kmeans_agreement"),
    *("kmeans_silhouette", "input_silhouette"),
)


class Beside(NamedTuple):
    """What k-means makes of all examples in one place."""

    clusters: Int[np.ndarray, "P"]
    few: Int[np.ndarray, "n"]
    """Examples that silhouettes are taken of."""
    points: Float[np.ndarray, "n F"]
    """Those examples."""
    scores: dict[str, float]
    """Of k-means: NMI and ACC where there are labels, and its silhouette."""

    def of_run(self, run: Run) -> dict[str, float]:
        """Returns the columns of `COLUMNS` for a run with clusters of all examples:
        k-means' own, the adjusted Rand index of the two, and the silhouette of the run
        among the examples as they are."""
        clusters = run.clusters[: len(self.clusters)]
        held = clusters >= 0
        (own,) = evaluation.silhouettes(self.points, clusters[self.few][None])
        found = {
            **self.scores,
            "kmeans_agreement": evaluation.ari(self.clusters[held], clusters[held]),
            "input_silhouette": float(own),
        }
        return {name: value for name, value in found.items() if np.isfinite(value)}


def below(scores: Mapping[str, Any]) -> str:
    """Returns by what a run is below k-means, its NMI, or without labels likely is, the
    silhouettes among the examples; nothing where it is not. `scores` are of
    results.csv, or means of them."""
    own, plain = scores.get("nmi"), scores.get("kmeans_nmi")
    if own is not None and plain is not None:
        return f"NMI {own:.3f}, k-means {plain:.3f}" if own < plain else ""
    own, plain = (scores.get(x) for x in ("input_silhouette", "kmeans_silhouette"))
    if own is None or plain is None or own >= LIKELY_WORSE * plain:
        return ""
    return f"silhouette {own:.2f} among the examples, k-means {plain:.2f}"


def beside(
    examples: np.ndarray, labels: Int[np.ndarray, "P"] | None, *, num_clusters: int
) -> Beside:
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
    (own,) = evaluation.silhouettes(points, clusters[few][None])
    scores = {"kmeans_silhouette": float(own)}
    if labels is not None:
        scores["kmeans_nmi"] = evaluation.nmi(labels, clusters)
        scores["kmeans_acc"] = evaluation.accuracy(labels, clusters)
    return Beside(clusters, few, points, scores)
