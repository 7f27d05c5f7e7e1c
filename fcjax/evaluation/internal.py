"""Internal scores: how compact and apart the groups of an embedding are.

No truth is needed for them, so they also serve data without labels. They compare
clusterings of one embedding; between embeddings of different size they say little.
"""

import math

import numpy as np
from jaxtyping import Array, Bool, Float, Integer
from sklearn import metrics


def internal_scores(
    embedding: Float[np.ndarray | Array, "_ _"],
    assignments: Integer[np.ndarray | Array, "_"],
    *,
    max_points: int = 5000,
    seed: int = 0,
) -> dict[str, float]:
    """Scores a clustering by its embedding alone, as scikit-learn defines the scores.

    A score is NaN where it is not defined: fewer than two clusters are occupied, every
    example is a cluster of its own, all examples are at one point, or the embedding is
    not finite.

    Args:
      embedding: [n, D] latent vectors.
      assignments: [n] clusters, or true classes.
      max_points: the silhouette, quadratic in n, is measured on at most so many
        examples drawn at random, among themselves.
      seed: draws them.

    Returns:
      A dict of silhouette in [-1, 1] and calinski_harabasz in [0, inf), the larger the
      better, and davies_bouldin in [0, inf), the smaller the better.

    Raises:
      ValueError: if there are no examples, lengths differ, or max_points is below 3.

    References:
      Rousseeuw, Silhouettes, 1987; Davies and Bouldin, A cluster separation measure,
      1979; Calinski and Harabasz, A dendrite method for cluster analysis, 1974.

    Examples:
      >>> embedding = np.array([[0.0], [1.0], [10.0], [11.0]])
      >>> found = internal_scores(embedding, np.array([0, 0, 1, 1]))
      >>> print(f"{found['davies_bouldin']:.2f}")  # (0.5 + 0.5) / 10
      0.10
      >>> print(f"{found['calinski_harabasz']:.2f}")  # (4 * 5^2 / 1) / (4 * 0.5^2 / 2)
      200.00
    """
    assignments = np.asarray(assignments)
    if len(embedding) != len(assignments):
        raise ValueError(
            f"{len(embedding)} embedded but {len(assignments)} assigned examples"
        )
    if len(assignments) == 0:
        raise ValueError("no examples to score")
    if max_points < 3:
        raise ValueError(f"max_points must be at least 3, got {max_points}")
    others = ("davies_bouldin", "calinski_harabasz")
    scores: dict[str, float] = dict.fromkeys(("silhouette", *others), math.nan)
    points = _standardized(embedding)
    if points is None or not _defined(assignments):
        return scores
    drawn = np.random.default_rng(seed).permutation(len(points))[:max_points]
    if _defined(assignments[drawn]):
        silhouette = metrics.silhouette_score(points[drawn], assignments[drawn])
        scores["silhouette"] = float(silhouette)
    for name in others:
        score = getattr(metrics, f"{name}_score")
        scores[name] = float(score(points, assignments))
    return scores


def silhouettes(
    embedding: Float[np.ndarray | Array, "n _"],
    runs: Integer[np.ndarray | Array, "R n"],
) -> Float[np.ndarray, "R"]:
    """The silhouette of several clusterings in one embedding, whose distances are taken
    once: quadratic in n.

    Args:
      embedding: latent vectors, NaN where an example has none.
      runs: clusters, -1 where there is none. Either is left out of its clustering.

    Returns:
      [R], in [-1, 1]; NaN as of `internal_scores`.

    Examples:
      >>> runs = np.array([[0, 0, 1, 1], [0, 1, 0, 1]])
      >>> print(silhouettes(np.array([[0.0], [0.1], [1.0], [1.1]]), runs).round(2))
      [ 0.9  -0.45]
    """
    embedding, runs = np.asarray(embedding), np.asarray(runs)
    found = np.full(len(runs), math.nan)
    held = np.isfinite(embedding).all(axis=1)
    points = _standardized(embedding[held]) if held.any() else None
    if points is None:
        return found
    distances = metrics.pairwise_distances(points)
    np.fill_diagonal(distances, 0)
    for i, clusters in enumerate(runs[:, held]):
        rows = clusters >= 0
        if _defined(clusters[rows]):
            found[i] = metrics.silhouette_score(
                distances[np.ix_(rows, rows)], clusters[rows], metric="precomputed"
            )
    return found


def client_calinski_harabasz(
    embeddings: Float[np.ndarray | Array, "_ _ _"],
    labels: Integer[np.ndarray | Array, "_ _"],
    mask: Bool[np.ndarray | Array, "_ _"],
) -> float:
    """Calinski-Harabasz score of all clients' embeddings in one space, by true class.

    Every client embeds its own examples with its own local model, all of them are put
    together, and the score is that of the true classes: high where one class has one
    place whichever model embedded it, low where each client has a place of its own
    (semantic inconsistency) or the classes overlap (cluster collapse).

    This is how Figure 5 of the CCFC paper is read here. It draws two classes of 100
    examples: `mask & np.isin(labels, classes)` leaves the others out. The paper does
    not say whether it scores the latent space or its t-SNE map; here it is the former.

    Args:
      embeddings: [M, N, D] latent vectors, each client's by its own model.
      labels: [M, N] true classes. Clients in their place, `np.indices(mask.shape)[0]`,
        score how far the embedding separates clients, where low is consistent.
      mask: [M, N] True at the examples that count, False at padding.

    Returns:
      The score, in [0, inf); NaN where `internal_scores` has NaN.

    Raises:
      ValueError: if shapes differ or no example counts.

    References:
      Liu et al., CCFC: bridging federated clustering and contrastive learning, 2024,
      Section 4.3.2.

    Examples:
      >>> embeddings = np.array([[[0.0], [10.0]], [[1.0], [11.0]]])  # of two clients
      >>> labels, mask = np.array([[0, 1], [0, 1]]), np.ones((2, 2), bool)
      >>> print(f"{client_calinski_harabasz(embeddings, labels, mask):.2f}")
      200.00
      >>> clients = np.array([[0, 0], [1, 1]])
      >>> print(f"{client_calinski_harabasz(embeddings, clients, mask):.2f}")  # 1 / 50
      0.02
    """
    embeddings, labels, mask = map(np.asarray, (embeddings, labels, mask))
    if not embeddings.shape[:2] == labels.shape == mask.shape:
        raise ValueError(
            f"embeddings {embeddings.shape}, labels {labels.shape} and mask "
            f"{mask.shape} differ"
        )
    if not mask.any():
        raise ValueError("no examples to score")
    points, groups = _standardized(embeddings[mask]), labels[mask]
    if points is None or not _defined(groups):
        return math.nan
    return float(metrics.calinski_harabasz_score(points, groups))


def _standardized(
    embedding: Float[np.ndarray | Array, "n D"],
) -> Float[np.ndarray, "n D"] | None:
    """The embedding around 0 and of scale 1; None where it has no scale.

    No score depends on scale, but scikit-learn takes distances below 1e-8 for none.
    """
    points = np.asarray(embedding)
    if not np.isfinite(points).all():
        return None
    # Halved, since the range of finite values need not be finite.
    halves = points.max(axis=0) / 2 - points.min(axis=0) / 2
    extent = np.max(halves, initial=0.0)
    if extent <= 0:
        return None
    points = np.divide(points, extent, dtype=np.float64)
    points -= points.mean(axis=0)
    return points


def _defined(groups: np.ndarray) -> bool:
    return 2 <= len(np.unique(groups)) < len(groups)
