"""Scores that need no labels: internal indices, collapse, copies.

Internal scores: how compact and apart the groups of an embedding are.

No truth is needed for them, so they also serve data without labels. They compare
clusterings of one embedding; between embeddings of different size they say little.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int, Integer, Shaped
from scipy import stats
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


# --- Copying

BLOCK = 2048
"""Rows of each side that are compared at a time: 32 MiB of distances."""


class Nearest(NamedTuple):
    """Of each example the nearest among others.

    Examples:
      >>> found = nearest(np.array([[1.5], [0.0]]), np.array([[0.0], [1.0]]))
      >>> print(found.rows, found.distances)
      [1 0] [0.5 0. ]
    """

    rows: Int[np.ndarray, "n"]
    """Which of the others."""
    distances: Float[np.ndarray, "n"]
    """How far it is, at least 0, in the unit of the examples."""


def nearest(
    a: Shaped[np.ndarray | Array, "n _"], b: Shaped[np.ndarray | Array, "_ _"]
) -> Nearest:
    """Finds the row of `b` nearest to each row of `a`, by Euclidean distance.

    Memory beside the arguments does not grow with n or m.

    Args:
      a: [n, D] finite values, compared as float64.
      b: [m, D] as well.

    Returns:
      Rows of `b`, the first of equally near ones, and the distances: exactly 0 to a
      copy.

    Raises:
      ValueError: there is nothing to compare, numbers of features differ, or a value
        is not finite.

    Examples:
      >>> found = nearest(np.array([[1.5], [0.0]]), np.array([[0.0], [1.0]]))
      >>> print(found.rows, found.distances)
      [1 0] [0.5 0. ]
    """
    a, b = np.asarray(a), np.asarray(b)
    _check(a, b)
    # Distances do not change; without a common offset more of their digits count.
    centre = b.mean(axis=0, dtype=np.float64)
    rows, distances = np.zeros(len(a), int), np.zeros(len(a))
    for start in range(0, len(a), BLOCK):
        block = slice(start, start + BLOCK)
        x, among = a[block] - centre, np.arange(len(a[block]))
        smallest = np.full(len(x), np.inf)
        for first in range(0, len(b), BLOCK):
            y = b[first : first + BLOCK] - centre
            # |x - y|^2 / 2 but for |x|^2 / 2, which is the same for a whole row.
            relative = (y**2).sum(axis=1) / 2 - x @ y.T
            winners = relative.argmin(axis=1)
            nearer = relative[among, winners] < smallest
            smallest[nearer] = relative[among, winners][nearer]
            rows[block][nearer] = first + winners[nearer]
        # That difference of products is not exactly 0 where the examples are the same.
        distances[block] = np.linalg.norm(x - (b[rows[block]] - centre), axis=1)
    return Nearest(rows, distances)


def nearest_distances(
    a: Shaped[np.ndarray | Array, "n _"], b: Shaped[np.ndarray | Array, "_ _"]
) -> Float[np.ndarray, "n"]:
    """Finds how far the nearest row of `b` is from each row of `a`.

    Args:
      a: as in `nearest`.
      b: as well.

    Returns:
      [n] Euclidean distances, exactly 0 to a copy.

    Raises:
      ValueError: as `nearest`.

    Examples:
      >>> print(nearest_distances(np.array([[1.5], [0.0]]), np.array([[0.0], [1.0]])))
      [0.5 0. ]
    """
    return nearest(a, b).distances


def copying(
    synthetic: Shaped[np.ndarray | Array, "_ _"],
    train: Shaped[np.ndarray | Array, "_ _"],
    held_out: Shaped[np.ndarray | Array, "_ _"],
) -> dict[str, float]:
    """Compares how near synthetic and unseen real examples come to the training ones.

    A generator that copies makes examples nearer to those that it was trained on than
    further draws of the same distribution are. So does one that makes examples of the
    dense parts alone, as one digit that looks always the same: a small distance is a
    reason to look. [choice] One test over all examples, where the paper also averages
    it over cells of the space.

    Args:
      synthetic: [n, D] of the generator.
      train: [t, D] that it was trained on.
      held_out: [m, D] of the distribution of `train`, not trained on.

    Returns:
      copy_probability: that a synthetic example is nearer to its nearest training
        example than a held-out one is to its own, ties one half: the Mann-Whitney U
        divided by n m. 0.5 without copying, near 1 for copies, near 0 for what is far
        off the data.
      copy_z: that U less its mean without copying, in its standard deviations, of
        tied distances too: large for copies; the paper's Z_U has the other sign. NaN
        where all distances are equal.
      synthetic_distance, held_out_distance: the medians.
      closest_share: of the synthetic examples that are as near as the nearest 1 % of
        the held-out ones, at least one of them: some 0.01 without copying.

    Raises:
      ValueError: as `nearest`.

    References:
      Meehan, Chaudhuri and Dasgupta, A non-parametric test to detect data-copying in
      generative models, AISTATS 2020, https://arxiv.org/abs/2004.05675, Section 3.

    Examples:
      >>> train, held_out = np.array([[0.0], [1.0]]), np.array([[0.5], [2.0]])
      >>> copying(train, train, held_out)["copy_probability"]
      1.0
    """
    made, real = (nearest_distances(x, train) for x in (synthetic, held_out))
    return copying_by_distance(made, real)


def copying_by_distance(
    made: Float[np.ndarray, "_"], real: Float[np.ndarray, "_"]
) -> dict[str, float]:
    """Compares what `copying` does where the distances are known.

    Args:
      made: [n] of synthetic examples to their nearest training ones.
      real: [m] of held-out examples to theirs; neither may be empty.

    Returns:
      As `copying`.

    Examples:
      >>> found = copying_by_distance(np.array([0.0, 1.5]), np.array([1.0, 2.0]))
      >>> found["copy_probability"], found["held_out_distance"]  # 3 of 4 pairs
      (0.75, 1.5)
    """
    n, m = len(made), len(real)
    ranks = stats.rankdata(np.concatenate([made, real]))
    u = float(n * m + n * (n + 1) / 2 - ranks[:n].sum())
    variance = n * m / 12 * (n + m + 1) * stats.tiecorrect(ranks)
    return {
        "copy_probability": u / (n * m),
        "copy_z": (u - n * m / 2) / math.sqrt(variance) if variance > 0 else math.nan,
        "synthetic_distance": float(np.median(made)),
        "held_out_distance": float(np.median(real)),
        "closest_share": float(np.mean(made <= np.sort(real)[math.ceil(m / 100) - 1])),
    }


def _check(a: np.ndarray, b: np.ndarray) -> None:
    if not len(a) or not len(b):
        raise ValueError(f"nothing to compare: {len(a)} and {len(b)} examples")
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"examples have {a.shape[1]} and {b.shape[1]} features")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("examples hold NaN or infinite values")
