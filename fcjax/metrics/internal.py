"""Scores that need no labels: internal indices, nearest neighbours and collapse.

Internal scores: how compact and apart the groups of an embedding are.

No truth is needed for them, so they also serve data without labels. They compare
clusterings of one embedding; between embeddings of different size they say little.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Array, Bool, Float, Integer
from sklearn import metrics

# --- Internal


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


# --- k nearest neighbours

# Similarities held at a time: 64 MiB of them, and twice as much of their order.
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
    """Test accuracy of the k-nearest-neighbour classifier, for every k at once.

    Neighbours have one vote each, and of classes with equally many votes the smallest
    wins, as in scikit-learn. Which of several training examples at one and the same
    distance comes k-th is not specified.

    Args:
      train_z: [n, D] embedding of the training examples.
      train_labels: [n] their classes.
      test_z: [m, D] embedding of the test examples.
      test_labels: [m] their classes; one that no training example has is never right.
      num_neighbors: the k, by default those of Table 3 of the CCFC paper.
      normalize: True compares by cosine, which is Euclidean distance between
        L2-normalised vectors; False by Euclidean distance as they are, which gives the
        table's raw pixels.

    Returns:
      A dict from each k to an accuracy in [0, 1].

    Raises:
      ValueError: if there is nothing to compare, lengths or feature counts differ, a k
        is outside 1 .. n, or an embedding is not finite.

    References:
      Liu et al., CCFC: bridging federated clustering and contrastive learning, 2024,
      Table 3.

    Examples:
      >>> train, classes = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([4, 7])
      >>> test = np.array([[3.0, 1.0], [1.0, 9.0], [2.0, 1.0]])
      >>> truth = np.array([4, 7, 7])
      >>> accuracies = knn_accuracy(train, classes, test, truth, num_neighbors=(1,))
      >>> print(f"{accuracies[1]:.3f}")  # two of three
      0.667
    """
    train, test = np.asarray(train_z, np.float32), np.asarray(test_z, np.float32)
    train_labels, test_labels = np.asarray(train_labels), np.asarray(test_labels)
    check_embeddings(train, train_labels, test, test_labels)
    if len(num_neighbors) == 0:
        raise ValueError("no number of neighbours to vote")
    for k in num_neighbors:
        if not 1 <= k <= len(train):
            raise ValueError(f"num_neighbors takes 1 .. {len(train)}, got {k}")
    if normalize:
        train, test = unit(train), unit(test)
    else:
        # Distances stay; without a common offset float32 resolves more of them.
        offset = train.mean(axis=0)
        train, test = train - offset, test - offset
    # |x - t|^2 falls where x.t - |t|^2 / 2 rises, x being the same for a whole row.
    penalty = np.square(train).sum(axis=1) / 2
    classes, codes = np.unique(train_labels, return_inverse=True)
    ks = sorted(set(num_neighbors))
    hits = dict.fromkeys(ks, 0)
    rows = max(1, _CHUNK // len(train))
    for start in range(0, len(test), rows):
        farness = penalty - test[start : start + rows] @ train.T
        # Partitioned at every k, what lies between two of them needs no order.
        order = np.argpartition(farness, [k - 1 for k in ks], axis=1)
        votes = np.zeros((len(farness), len(classes)), int)
        each = np.arange(len(farness))[:, None]
        for before, k in zip([0, *ks], ks, strict=False):
            np.add.at(votes, (each, codes[order[:, before:k]]), 1)
            winners = classes[votes.argmax(axis=1)]
            hits[k] += int(np.sum(winners == test_labels[start : start + rows]))
    return {k: hits[k] / len(test) for k in num_neighbors}


def unit(vectors: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n D"]:
    """Returns vectors of length 1; one of zeros has no direction, and stays."""
    # By the largest entry first: squares of what a type holds may not fit in it.
    for order in (np.inf, None):
        norms = np.linalg.norm(vectors, order, axis=1, keepdims=True)
        vectors = vectors / np.where(norms > 0, norms, 1)
    return vectors


def check_embeddings(train, train_labels, test, test_labels) -> None:
    """Raises ValueError with one line where they do not fit, or are not finite."""
    for name, z, labels in (
        ("training", train, train_labels),
        ("test", test, test_labels),
    ):
        if len(z) != len(labels):
            raise ValueError(f"{len(z)} {name} examples but {len(labels)} labels")
        if z.size == 0:
            raise ValueError(f"no {name} examples")
        if not np.isfinite(z).all():
            raise ValueError(f"the {name} embedding holds NaN or infinite values")
    if train.shape[1] != test.shape[1]:
        raise ValueError(
            f"{train.shape[1]} training features but {test.shape[1]} test features"
        )


# --- Collapse

# No data set of the papers has a class anywhere near this large.
MAX_SHARE = 0.9
# The spread is 1 without collapse; at a hundredth, k-means separates noise.
MIN_SPREAD = 0.01
# Networks start from weights below 1. Batch norm hides from the loss that they grow
# without bound, as at a learning rate of 1000.
MAX_WEIGHT = 100.0


def collapse(
    assignments: Integer[np.ndarray | Array, "n"], *, num_clusters: int
) -> dict[str, int | float]:
    """Measures how much of the clusters is in use.

    Args:
      assignments: [n] clusters in 0 .. num_clusters - 1.
      num_clusters: how many clusters the run was asked for.

    Returns:
      A dict of occupied_clusters (an int) and largest_share in (0, 1].

    Raises:
      ValueError: if there are no examples, or a cluster is out of range.

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
    return {
        "occupied_clusters": int(np.count_nonzero(sizes)),
        "largest_share": float(sizes.max() / assignments.size),
    }


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


def status(report: Mapping[str, int | float], *, num_clusters: int) -> str:
    """Names the state of a run: "ok", "collapsed" or "diverged".

    Diverged: the embedding is not finite. Collapsed: one cluster holds more than
    `MAX_SHARE` of the examples, or the embedding's spread is below `MIN_SPREAD`. With
    one cluster asked for, only the spread is judged.

    Args:
      report: of `collapse`, and embedding_spread of the method's local training: the
        standard deviation of the L2-normalised embedding, averaged over features, times
        sqrt(D): 1 for isotropic unit vectors, 0 where all are equal. Without an
        embedding it is left out.
      num_clusters: how many clusters the run was asked for.

    Returns:
      One of the three names.

    References:
      Chen and He, Exploring simple Siamese representation learning, 2021, Section 4.1.

    Examples:
      >>> status({"occupied_clusters": 2, "largest_share": 0.95}, num_clusters=3)
      'collapsed'
    """
    spread = report.get("embedding_spread", 1.0)
    if not math.isfinite(spread):
        return "diverged"
    one_cluster = num_clusters > 1 and report["largest_share"] > MAX_SHARE
    return "collapsed" if one_cluster or spread < MIN_SPREAD else "ok"
