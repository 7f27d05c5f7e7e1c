"""Signs that a run has collapsed or diverged."""

import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Array, Float, Integer

from fcjax.evaluation.knn import unit

# No data set of the papers has a class anywhere near this large.
MAX_SHARE = 0.9
# The spread is 1 without collapse; at a hundredth, k-means separates noise.
MIN_SPREAD = 0.01
# Networks start from weights below 1. Batch norm hides from the loss that they grow
# without bound, as at a learning rate of 1000.
MAX_WEIGHT = 100.0


def collapse(
    assignments: Integer[np.ndarray | Array, "_"],
    embedding: Float[np.ndarray | Array, "_ _"] | None = None,
    *,
    num_clusters: int,
) -> dict[str, int | float]:
    """Measures how much of the clusters and of the latent space is in use.

    The spread is the standard deviation of the L2-normalised embedding, averaged over
    features, times sqrt(D): 1 for isotropic unit vectors, 0 where all are equal.

    Args:
      assignments: [n] clusters in 0 .. num_clusters - 1.
      embedding: [n, D] latent vectors of the same examples.
      num_clusters: how many clusters the run was asked for.

    Returns:
      A dict of occupied_clusters (an int), largest_share in (0, 1] and, with an
      embedding, embedding_spread in [0, 1]: NaN where the embedding is not finite.

    Raises:
      ValueError: if there are no examples, lengths differ, or a cluster is out of
        range.

    References:
      Chen and He, Exploring simple Siamese representation learning, 2021, Section 4.1.

    Examples:
      >>> collapse(np.array([0, 0, 0, 1]), num_clusters=3)
      {'occupied_clusters': 2, 'largest_share': 0.75}
    """
    assignments = np.asarray(assignments)
    if assignments.size == 0:
        raise ValueError("no assignments to look at")
    if assignments.min() < 0 or assignments.max() >= num_clusters:
        raise ValueError(f"assignments outside 0 .. {num_clusters - 1}")
    sizes = np.bincount(assignments, minlength=num_clusters)
    report: dict[str, int | float] = {
        "occupied_clusters": int(np.count_nonzero(sizes)),
        "largest_share": float(sizes.max() / assignments.size),
    }
    if embedding is not None:
        if len(embedding) != len(assignments):
            raise ValueError(
                f"{len(embedding)} embedded but {len(assignments)} assigned examples"
            )
        report["embedding_spread"] = _spread(np.asarray(embedding, np.float64))
    return report


def effective_rank(embedding: Float[np.ndarray | Array, "_ _"]) -> float:
    """In how many directions an embedding lies: the participation ratio of the
    eigenvalues of its covariance, (sum of l)^2 / sum of l^2.

    Args:
      embedding: [n, D] latent vectors, as they are.

    Returns:
      A number in [1, D]; NaN where the embedding is not finite, or all rows are equal.

    References:
      Shi et al., Towards Understanding and Mitigating Dimensional Collapse in
      Heterogeneous Federated Learning, ICLR 2023, for why it falls with heterogeneity.

    Examples:
      >>> effective_rank(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
      2.0
    """
    z = np.asarray(embedding, np.float64)
    if not np.isfinite(z).all():
        return math.nan
    z = z - z.mean(axis=0)
    # Of n and D the smaller: both products have the same eigenvalues but for zeros.
    gram = z.T @ z if z.shape[1] <= len(z) else z @ z.T
    squares = float(np.sum(gram**2))
    return float(np.trace(gram) ** 2 / squares) if squares else math.nan


def status(
    report: Mapping[str, int | float], *, num_clusters: int, loss: float = 0.0
) -> str:
    """Names the state of a run: "ok", "collapsed" or "diverged".

    Diverged: the last loss or the embedding is not finite. Collapsed: one cluster holds
    more than `MAX_SHARE` of the examples, or the embedding's spread is below
    `MIN_SPREAD`. With one cluster asked for, only the spread is judged.

    Args:
      report: what `collapse` returned.
      num_clusters: how many clusters the run was asked for.
      loss: the last loss of the run.

    Returns:
      One of the three names.

    Examples:
      >>> report = {"occupied_clusters": 2, "largest_share": 0.95}
      >>> status(report, num_clusters=3), status(report, num_clusters=3, loss=math.nan)
      ('collapsed', 'diverged')
    """
    spread = report.get("embedding_spread", 1.0)
    if not (math.isfinite(loss) and math.isfinite(spread)):
        return "diverged"
    one_cluster = num_clusters > 1 and report["largest_share"] > MAX_SHARE
    return "collapsed" if one_cluster or spread < MIN_SPREAD else "ok"


def _spread(embedding: Float[np.ndarray, "n D"]) -> float:
    if not np.isfinite(embedding).all():
        return math.nan
    spread = unit(embedding).std(axis=0).mean()
    return float(spread * math.sqrt(embedding.shape[1]))
