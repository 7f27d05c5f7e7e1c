"""Scores without labels: internal indices, nearest neighbours and collapse.

Internal scores measure how compact and how separate the clusters of an embedding are.
They compare clusterings of one embedding. They are hardly comparable between
embeddings of different size. `knn_accuracy` needs labels for its vote.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Array, Bool, Float, Integer
from sklearn import metrics

# --- Internal

INTERNAL_SCORES = ("silhouette", "davies_bouldin", "calinski_harabasz")
"""The names of the scores of `internal_scores`."""


def internal_scores(
    embedding: Float[np.ndarray | Array, "_ _"],
    assignments: Integer[np.ndarray | Array, "_"],
    *,
    max_points: int = 5000,
    seed: int = 0,
) -> dict[str, float]:
    """Returns scores of a clustering from its embedding alone, as in scikit-learn.

    A score is NaN if it is undefined: fewer than two clusters have examples, every
    example is a cluster of its own, all examples are equal, or the embedding is not
    finite.

    Args:
      embedding: [n, D] latent vectors.
      assignments: [n] clusters, or true classes.
      max_points: the maximum number of examples for the silhouette, whose cost is
        quadratic. A random subset of this size is used if there are more examples.
      seed: the seed of the random subset.

    Returns:
      A dict of silhouette in [-1, 1] and calinski_harabasz in [0, inf), where larger is
      better, and davies_bouldin in [0, inf), where smaller is better.

    References:
      Rousseeuw, Silhouettes, 1987; Davies and Bouldin, A cluster separation measure,
      1979; Calinski and Harabasz, A dendrite method for cluster analysis, 1974.

    Examples:
      >>> embedding = np.array([[0.0], [1.0], [10.0], [11.0]])
      >>> scores = internal_scores(embedding, np.array([0, 0, 1, 1]))
      >>> print(f"{scores['davies_bouldin']:.2f}")  # (0.5 + 0.5) / 10
      0.10
      >>> print(f"{scores['calinski_harabasz']:.2f}")  # (4 * 5^2 / 1) / (4 * 0.5^2 / 2)
      200.00
    """
    assignments = np.asarray(assignments)
    names = ("davies_bouldin", "calinski_harabasz")
    scores: dict[str, float] = dict.fromkeys(("silhouette", *names), math.nan)
    points = _standardized(embedding)
    if points is None or not _defined(assignments):
        return scores
    sample = np.random.default_rng(seed).permutation(len(points))[:max_points]
    if _defined(assignments[sample]):
        silhouette = metrics.silhouette_score(points[sample], assignments[sample])
        scores["silhouette"] = float(silhouette)
    for name in names:
        score = getattr(metrics, f"{name}_score")
        scores[name] = float(score(points, assignments))
    return scores


def silhouettes(
    embedding: Float[np.ndarray | Array, "n _"],
    runs: Integer[np.ndarray | Array, "R n"],
) -> Float[np.ndarray, "R"]:
    """Returns the silhouettes of several clusterings in one embedding.

    The pairwise distances are computed once. The cost is quadratic in n.

    Args:
      embedding: [n, D] latent vectors, NaN for examples without an embedding.
      runs: [R, n] clusters, -1 for examples without a cluster. Examples without a
        cluster or without an embedding are ignored.

    Returns:
      [R] silhouettes, in [-1, 1]; NaN where `internal_scores` is NaN.

    Examples:
      >>> runs = np.array([[0, 0, 1, 1], [0, 1, 0, 1]])
      >>> print(silhouettes(np.array([[0.0], [0.1], [1.0], [1.1]]), runs).round(2))
      [ 0.9  -0.45]
    """
    embedding, runs = np.asarray(embedding), np.asarray(runs)
    scores = np.full(len(runs), math.nan)
    is_finite = np.isfinite(embedding).all(axis=1)
    points = _standardized(embedding[is_finite]) if is_finite.any() else None
    if points is None:
        return scores
    distances = metrics.pairwise_distances(points)
    np.fill_diagonal(distances, 0)
    for i, clusters in enumerate(runs[:, is_finite]):
        rows = clusters >= 0
        if _defined(clusters[rows]):
            scores[i] = metrics.silhouette_score(
                distances[np.ix_(rows, rows)], clusters[rows], metric="precomputed"
            )
    return scores


def client_calinski_harabasz(
    embeddings: Float[np.ndarray | Array, "_ _ _"],
    labels: Integer[np.ndarray | Array, "_ _"],
    mask: Bool[np.ndarray | Array, "_ _"],
) -> float:
    """Returns the Calinski-Harabasz score of the classes in all clients' embeddings.

    Each client embeds its own examples with its own local model. The embeddings of all
    clients form one set. The score is high if each class lies in one place for all
    local models. It is low if each client has places of its own (semantic
    inconsistency), or if classes overlap (cluster collapse).

    This is our reading of Figure 5 of the CCFC paper. The figure shows two classes of
    100 examples; `mask & np.isin(labels, classes)` selects them. The paper does not say
    whether it scores the latent space or its t-SNE map. Here the latent space is
    scored.

    Args:
      embeddings: [M, N, D] latent vectors, from each client's own model.
      labels: [M, N] true classes. With the client numbers `np.indices(mask.shape)[0]`
        instead, the score measures how far the embedding separates clients; low is then
        consistent.
      mask: [M, N] True for examples to use, False for padding.

    Returns:
      The score, in [0, inf); NaN where `internal_scores` is NaN.

    References:
      Liu et al., CCFC: bridging federated clustering and contrastive learning, 2024,
      Section 4.3.2.

    Examples:
      >>> embeddings = np.array([[[0.0], [10.0]], [[1.0], [11.0]]])  # two clients
      >>> labels, mask = np.array([[0, 1], [0, 1]]), np.ones((2, 2), bool)
      >>> print(f"{client_calinski_harabasz(embeddings, labels, mask):.2f}")
      200.00
      >>> clients = np.array([[0, 0], [1, 1]])
      >>> print(f"{client_calinski_harabasz(embeddings, clients, mask):.2f}")  # 1 / 50
      0.02
    """
    embeddings, labels, mask = map(np.asarray, (embeddings, labels, mask))
    points, groups = _standardized(embeddings[mask]), labels[mask]
    if points is None or not _defined(groups):
        return math.nan
    return float(metrics.calinski_harabasz_score(points, groups))


def _standardized(
    embedding: Float[np.ndarray | Array, "n D"],
) -> Float[np.ndarray, "n D"] | None:
    """Returns the embedding centred at 0 with scale 1; None if it has no finite scale.

    The scores do not depend on the scale, but scikit-learn treats distances below 1e-8
    as zero.
    """
    points = np.asarray(embedding)
    if not np.isfinite(points).all():
        return None
    # Half of the range, because the range of finite values may overflow.
    halves = points.max(axis=0) / 2 - points.min(axis=0) / 2
    extent = np.max(halves, initial=0.0)
    if extent <= 0:
        return None
    points = np.divide(points, extent, dtype=np.float64)
    points -= points.mean(axis=0)
    return points


def _defined(groups: np.ndarray) -> bool:
    """Returns whether scores are defined for these groups."""
    return 2 <= len(np.unique(groups)) < len(groups)


# --- k nearest neighbours

# The number of distances in memory at once: 64 MiB, and 128 MiB for their order.
_CHUNK = 2**24


def knn_accuracy(
    train_z: Float[np.ndarray | Array, "_ _"],
    train_labels: Integer[np.ndarray | Array, "_"],
    test_z: Float[np.ndarray | Array, "_ _"],
    test_labels: Integer[np.ndarray | Array, "_"],
    *,
    num_neighbors: Sequence[int] = (3, 5, 7, 9, 100, 1000, 7000),
    normalize: bool = True,
) -> dict[int, float]:
    """Returns the test accuracy of the k-nearest-neighbour classifier for several k.

    Each neighbour has one vote. As in scikit-learn, the smallest class wins a tie. If
    several training examples are at the same distance, it is not specified which of
    them is the k-th neighbour.

    Args:
      train_z: [n, D] embedding of the training examples.
      train_labels: [n] classes of the training examples.
      test_z: [m, D] embedding of the test examples.
      test_labels: [m] classes of the test examples. A class without a training example
        is never predicted.
      num_neighbors: the values of k. The default is Table 3 of the CCFC paper.
      normalize: True compares by cosine, that is by the Euclidean distance of
        L2-normalised vectors. False compares by the Euclidean distance of the vectors,
        as for the raw pixels in the table.

    Returns:
      A dict from each k to an accuracy in [0, 1].

    Raises:
      ValueError: there are no examples or no k, lengths or numbers of features differ,
        a k is outside 1..n, or an embedding is not finite.

    References:
      Liu et al., CCFC: bridging federated clustering and contrastive learning, 2024,
      Table 3.

    Examples:
      >>> train, classes = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([4, 7])
      >>> test = np.array([[3.0, 1.0], [1.0, 9.0], [2.0, 1.0]])
      >>> truth = np.array([4, 7, 7])
      >>> accuracies = knn_accuracy(train, classes, test, truth, num_neighbors=(1,))
      >>> print(f"{accuracies[1]:.3f}")  # two of three are correct
      0.667
    """
    train, test = np.asarray(train_z, np.float32), np.asarray(test_z, np.float32)
    train_labels, test_labels = np.asarray(train_labels), np.asarray(test_labels)
    check_embeddings(train, train_labels, test, test_labels)
    if len(num_neighbors) == 0:
        raise ValueError("`num_neighbors` must contain at least 1 number, got none")
    for k in num_neighbors:
        if not 1 <= k <= len(train):
            raise ValueError(
                f"`num_neighbors` must lie in 1..{len(train)}, the number of training "
                f"examples, got {k}"
            )
    if normalize:
        train, test = unit(train), unit(test)
    else:
        # Distances do not change, and float32 is more precise without a common offset.
        offset = train.mean(axis=0)
        train, test = train - offset, test - offset
    # |x - t|^2 / 2 and |t|^2 / 2 - x.t differ by a constant in each row.
    penalty = np.square(train).sum(axis=1) / 2
    classes, codes = np.unique(train_labels, return_inverse=True)
    ks = sorted(set(num_neighbors))
    hits = dict.fromkeys(ks, 0)
    rows = max(1, _CHUNK // len(train))
    for start in range(0, len(test), rows):
        distances = penalty - test[start : start + rows] @ train.T
        # The votes need no order of the neighbours between two values of k.
        order = np.argpartition(distances, [k - 1 for k in ks], axis=1)
        votes = np.zeros((len(distances), len(classes)), int)
        row = np.arange(len(distances))[:, None]
        for previous, k in zip([0, *ks], ks, strict=False):
            np.add.at(votes, (row, codes[order[:, previous:k]]), 1)
            winners = classes[votes.argmax(axis=1)]
            hits[k] += int(np.sum(winners == test_labels[start : start + rows]))
    return {k: hits[k] / len(test) for k in num_neighbors}


def unit(vectors: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n D"]:
    """Returns the vectors scaled to length 1; zero vectors stay zero.

    Args:
      vectors: [n, D] vectors of any length.

    Returns:
      [n, D] vectors of L2 norm 1 or 0.
    """
    # Dividing by the largest entry first avoids overflow of the squares.
    for order in (np.inf, None):
        norms = np.linalg.norm(vectors, order, axis=1, keepdims=True)
        vectors = vectors / np.where(norms > 0, norms, 1)
    return vectors


def check_embeddings(
    train: Float[np.ndarray, "_ _"],
    train_labels: Integer[np.ndarray | Array, "_"],
    test: Float[np.ndarray, "_ _"],
    test_labels: Integer[np.ndarray | Array, "_"],
) -> None:
    """Checks that embeddings and labels fit and are finite.

    Args:
      train: [n, D] embedding of the training examples.
      train_labels: [n] classes of the training examples.
      test: [m, D] embedding of the test examples.
      test_labels: [m] classes of the test examples.

    Raises:
      ValueError: there are no examples, lengths or numbers of features differ, or an
        embedding is not finite.
    """
    for name, z, labels in (
        ("train", train, train_labels),
        ("test", test, test_labels),
    ):
        if len(z) != len(labels):
            raise ValueError(
                f"{name}_labels must have one label per example, got {len(labels)} "
                f"labels for {len(z)} examples"
            )
        if z.size == 0:
            raise ValueError(f"{name}_z must contain at least 1 example, got none")
        if not np.isfinite(z).all():
            raise ValueError(f"{name}_z must be finite, got NaN or infinite values")
    if train.shape[1] != test.shape[1]:
        raise ValueError(
            "train_z and test_z must have the same number of features, "
            f"got {train.shape[1]} and {test.shape[1]}"
        )


# --- Collapse

# All classes of the papers' data sets are far below this share.
MAX_SHARE = 0.9
# The spread is 1 without collapse. At 0.01, k-means separates only noise.
MIN_SPREAD = 0.01
# Initial weights of networks are below 1. With batch norm, weights can grow without
# bound and without any effect on the loss, for example at a learning rate of 1000.
MAX_WEIGHT = 100.0


def collapse(
    assignments: Integer[np.ndarray | Array, "n"], *, num_clusters: int
) -> dict[str, int | float]:
    """Measures how many clusters are used and how large the largest one is.

    Args:
      assignments: [n] clusters in 0..num_clusters - 1.
      num_clusters: the number of clusters of the run.

    Returns:
      A dict of occupied_clusters (int) and largest_share in (0, 1].

    Raises:
      ValueError: there are no examples, or a cluster is out of range.

    Examples:
      >>> collapse(np.array([0, 0, 0, 1]), num_clusters=3)
      {'occupied_clusters': 2, 'largest_share': 0.75}
    """
    assignments = np.asarray(assignments)
    if assignments.size == 0:
        raise ValueError("assignments must contain at least 1 example, got 0")
    if assignments.min() < 0 or assignments.max() >= num_clusters:
        raise ValueError(
            f"assignments must lie in 0..{num_clusters - 1}, got values from "
            f"{assignments.min()} to {assignments.max()}"
        )
    sizes = np.bincount(assignments, minlength=num_clusters)
    return {
        "occupied_clusters": int(np.count_nonzero(sizes)),
        "largest_share": float(sizes.max() / assignments.size),
    }


def effective_rank(embedding: Float[np.ndarray | Array, "_ _"]) -> float:
    """Returns the effective number of dimensions of an embedding.

    It is the participation ratio of the eigenvalues l of the covariance matrix,
    (sum of l)^2 / sum of l^2.

    Args:
      embedding: [n, D] latent vectors, without any scaling.

    Returns:
      A number in [1, D]; NaN if the embedding is not finite or all rows are equal.

    References:
      Shi et al., Towards Understanding and Mitigating Dimensional Collapse in
      Heterogeneous Federated Learning, ICLR 2023. The paper explains why this number
      falls with heterogeneity.

    Examples:
      >>> effective_rank(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
      2.0
    """
    z = np.array(embedding, np.float64)
    if not np.isfinite(z).all():
        return math.nan
    z -= z.mean(axis=0)  # in place, because z may be large
    # The smaller product is cheaper. Both have the same nonzero eigenvalues.
    gram = z.T @ z if z.shape[1] <= len(z) else z @ z.T
    squares = float(np.sum(gram**2))
    return float(np.trace(gram) ** 2 / squares) if squares else math.nan


def status(report: Mapping[str, int | float], *, num_clusters: int) -> str:
    """Returns the state of a run: "ok", "collapsed" or "diverged".

    A run is diverged if its embedding is not finite. A run is collapsed if one cluster
    has more than `MAX_SHARE` of the examples, or if the spread of the embedding is
    below `MIN_SPREAD`. For a run with one cluster, only the spread matters.

    Args:
      report: the result of `collapse`, and optionally embedding_spread. The spread is
        the standard deviation of the L2-normalised embedding, averaged over features,
        times sqrt(D): 1 for isotropic unit vectors, 0 if all vectors are equal.
      num_clusters: the number of clusters of the run.

    Returns:
      The state.

    References:
      Chen and He, Exploring simple Siamese representation learning, 2021, Section 4.1.

    Examples:
      >>> status({"occupied_clusters": 2, "largest_share": 0.95}, num_clusters=3)
      'collapsed'
    """
    spread = report.get("embedding_spread", 1.0)
    if not math.isfinite(spread):
        return "diverged"
    one_dominates = num_clusters > 1 and report["largest_share"] > MAX_SHARE
    return "collapsed" if one_dominates or spread < MIN_SPREAD else "ok"
