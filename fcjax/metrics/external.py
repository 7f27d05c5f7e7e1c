"""Scores of a clustering against the true labels.

Labels come first, assignments second; both are integer arrays whose values are names
only. Every function raises ValueError where they are empty or differ in length.
"""

from collections.abc import Callable, Collection, Mapping

import numpy as np
from jaxtyping import Array, Bool, Float, Integer, Shaped
from scipy.optimize import linear_sum_assignment
from sklearn import metrics

# --- Scores

# Anonymous axes: lengths that differ are reported in one line by the functions.
Names = Integer[np.ndarray | Array, "_"]


def match(labels: Names, assignments: Names) -> Integer[np.ndarray, "_"]:
    """Renames clusters to the classes that they match best.

    The match is one to one and maximises the overlap (Hungarian method). Of several
    such matches it takes the one with the least agreement by chance, so that no score
    depends on how the clusters were named.

    Args:
      labels: [n] true classes.
      assignments: [n] clusters, in any number.

    Returns:
      [n] assignments in the names of the classes. Clusters beyond the number of
      classes get names of their own, above every label.

    Raises:
      ValueError: there are no examples, or lengths differ.

    References:
      Kuhn, The Hungarian method for the assignment problem, 1955.

    Examples:
      >>> print(match(np.array([0, 0, 1, 1, 1]), np.array([5, 5, 3, 3, 9])))
      [0 0 1 1 4]
    """
    labels, assignments = _paired(labels, assignments)
    classes, of_class = np.unique(labels, return_inverse=True)
    clusters, of_cluster = np.unique(assignments, return_inverse=True)
    shape = len(classes), len(clusters)
    cells = np.ravel_multi_index((of_class, of_cluster), shape)
    overlap = np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)
    # Chance agreement sums to at most one example: it decides between ties alone.
    chance = np.outer(overlap.sum(axis=1), overlap.sum(axis=0)) / len(labels) ** 2
    class_index, cluster_index = linear_sum_assignment(overlap - chance, maximize=True)
    names = int(classes[-1]) + 1 + np.arange(len(clusters))
    names[cluster_index] = classes[class_index]
    return names[of_cluster]


def accuracy(labels: Names, assignments: Names) -> float:
    """Share of examples whose cluster matches their class, in [0, 1].

    Clusters that `match` leaves over count as wrong.

    Args:
      labels: [n] true classes.
      assignments: [n] clusters, in any number.

    Raises:
      ValueError: as `match`.

    Examples:
      >>> accuracy(np.array([0, 0, 1, 1]), np.array([5, 5, 5, 3]))
      0.75
    """
    return float(np.mean(np.asarray(labels) == match(labels, assignments)))


def kappa(labels: Names, assignments: Names) -> float:
    """Cohen's unweighted kappa after `match`, in [-1, 1].

    (po - pe) / (1 - pe) with po the agreement and pe the agreement by chance. Clusters
    left over agree with no class. One class in one cluster scores 1, as with NMI, where
    the formula is 0 / 0.

    Args:
      labels: [n] true classes.
      assignments: [n] clusters, in any number.

    Raises:
      ValueError: as `match`.

    References:
      Cohen, A coefficient of agreement for nominal scales, 1960.

    Examples:
      >>> labels, assignments = np.array([0, 0, 1, 1]), np.array([5, 5, 5, 3])
      >>> kappa(labels, assignments)  # (0.75 - 0.5) / (1 - 0.5)
      0.5
    """
    renamed = match(labels, assignments)
    if np.array_equal(labels, renamed):
        return 1.0
    return float(metrics.cohen_kappa_score(np.asarray(labels), renamed))


def nmi(labels: Names, assignments: Names) -> float:
    """Mutual information over the arithmetic mean of the two entropies, in [0, 1].

    Args:
      labels: [n] true classes.
      assignments: [n] clusters, in any number.

    Raises:
      ValueError: as `match`.

    Examples:
      >>> labels = np.array([0, 0, 1, 1])
      >>> print(f"{nmi(labels, np.array([5, 5, 3, 3])):.3f}")
      1.000
      >>> print(f"{nmi(labels, np.array([5, 3, 5, 3])):.3f}")
      0.000
    """
    return float(metrics.normalized_mutual_info_score(*_paired(labels, assignments)))


def ari(labels: Names, assignments: Names) -> float:
    """Rand index adjusted for chance: 1 is perfect, 0 is chance, at least -0.5.

    Args:
      labels: [n] true classes.
      assignments: [n] clusters, in any number.

    Raises:
      ValueError: as `match`.

    References:
      Hubert and Arabie, Comparing partitions, 1985.

    Examples:
      >>> labels = np.array([0, 0, 1, 1])
      >>> print(f"{ari(labels, np.array([5, 5, 3, 3])):.3f}")
      1.000
      >>> print(f"{ari(labels, np.array([5, 3, 5, 3])):.3f}")  # (0 - 2/3) / (2 - 2/3)
      -0.500
    """
    return float(metrics.adjusted_rand_score(*_paired(labels, assignments)))


def ami(labels: Names, assignments: Names) -> float:
    """Mutual information adjusted for chance (arithmetic mean): 1 perfect, 0 chance.

    Prefer it and `ari` to `nmi` where classes hold few examples: NMI is inflated there.

    Args:
      labels: [n] true classes.
      assignments: [n] clusters, in any number.

    Raises:
      ValueError: as `match`.

    References:
      Vinh, Epps and Bailey, Information theoretic measures for clusterings comparison,
      2010.

    Examples:
      >>> labels = np.array([0, 0, 1, 1])
      >>> print(f"{ami(labels, np.array([5, 5, 3, 3])):.3f}")
      1.000
    """
    return float(metrics.adjusted_mutual_info_score(*_paired(labels, assignments)))


_SCORES: dict[str, Callable[[Names, Names], float]] = {
    "acc": accuracy,
    "nmi": nmi,
    "kappa": kappa,
    "ari": ari,
    "ami": ami,
}

NAMES = tuple(_SCORES)
"""What `scores` measures unless told otherwise."""


def scores(
    labels: Names, assignments: Names, *, names: Collection[str] = NAMES
) -> dict[str, float]:
    """Scores of one clustering, all by default: acc, nmi, kappa, ari, ami.

    For a whole federation, pass `labels[mask]` and `assignments[mask]`: one match for
    all clients.

    Args:
      labels: [n] true classes.
      assignments: [n] clusters, in any number.
      names: which of the five.

    Returns:
      A dict from those names to the scores of `accuracy`, `nmi`, `kappa`, `ari` and
      `ami`.

    Raises:
      ValueError: as `match`.

    Examples:
      >>> labels, assignments = np.array([0, 0, 1, 1]), np.array([5, 5, 5, 3])
      >>> scores(labels, assignments, names=("acc", "kappa"))
      {'acc': 0.75, 'kappa': 0.5}
    """
    return {name: _SCORES[name](labels, assignments) for name in names}


def _paired(labels: Names, assignments: Names) -> tuple[np.ndarray, np.ndarray]:
    labels, assignments = np.asarray(labels), np.asarray(assignments)
    if len(labels) != len(assignments):
        raise ValueError(f"{len(labels)} labels but {len(assignments)} assignments")
    if len(labels) == 0:
        raise ValueError("no examples to score")
    return labels, assignments


# --- By client

# Anonymous axes: shapes that differ are reported in one line by the functions.
ClientNames = Integer[np.ndarray | Array, "_ _"]
ClientMask = Bool[np.ndarray | Array, "_ _"]


def per_client(
    labels: ClientNames,
    assignments: ClientNames,
    mask: ClientMask,
    *,
    names: Collection[str] = NAMES,
) -> dict[str, Float[np.ndarray, "_"]]:
    """Scores of every client on its own examples, with a match of its own.

    Args:
      labels: [M, N] true classes.
      assignments: [M, N] clusters.
      mask: [M, N] True at a client's own examples, False at padding.
      names: which scores.

    Returns:
      A dict from their names to arrays [M].

    Raises:
      ValueError: if shapes differ or a client holds no example.

    Examples:
      >>> labels = np.array([[0, 0, 1, 1], [0, 1, 1, 1]])
      >>> assignments = np.array([[5, 5, 5, 3], [3, 5, 5, 5]])
      >>> mask = np.array([[True, True, True, True], [True, True, False, False]])
      >>> print(per_client(labels, assignments, mask, names=("acc",))["acc"])
      [0.75 1.  ]
    """
    labels, assignments, mask = map(np.asarray, (labels, assignments, mask))
    _check_clients(mask, labels=labels, assignments=assignments)
    rows = [
        scores(labels[client, own], assignments[client, own], names=names)
        for client, own in enumerate(mask)
    ]
    return {name: np.array([row[name] for row in rows]) for name in names}


def client_mean(
    client_scores: Mapping[str, Float[np.ndarray, "M"]],
) -> dict[str, float]:
    """Mean of `per_client` scores, every client alike, as FedCRef takes it.

    Args:
      client_scores: a dict of arrays [M].

    Returns:
      A dict of floats with the same keys.

    Examples:
      >>> client_mean({"acc": np.array([0.75, 1.0])})
      {'acc': 0.875}
    """
    return {name: float(np.mean(values)) for name, values in client_scores.items()}


def client_pooled(
    client_scores: Mapping[str, Float[np.ndarray, "M"]],
    mask: Bool[np.ndarray | Array, "M _"],
) -> dict[str, float]:
    """Mean of `per_client` scores, each client weighted by its number of examples.

    For acc this is FDSC's Eq. 9: hits pooled over clients, each with its own match.

    Args:
      client_scores: a dict of arrays [M].
      mask: [M, N] True at a client's own examples.

    Returns:
      A dict of floats with the same keys.

    Examples:
      >>> mask = np.array([[True, True, True], [True, False, False]])
      >>> client_pooled({"acc": np.array([1.0, 0.0])}, mask)  # (3 * 1 + 1 * 0) / 4
      {'acc': 0.75}
    """
    sizes = np.asarray(mask).sum(axis=1)
    return {
        name: float(np.average(values, weights=sizes))
        for name, values in client_scores.items()
    }


def imbalance_ratio(labels: ClientNames, mask: ClientMask) -> Float[np.ndarray, "_"]:
    """Size of each client's largest class over that of its smallest.

    The classes are those found anywhere in the federation: a client that misses one
    has a ratio of infinity. Table 4 of the CCFC paper reports 1.18 to 1.53 for MNIST
    with p = 0.

    Args:
      labels: [M, N] true classes.
      mask: [M, N] True at a client's own examples, False at padding.

    Returns:
      [M] ratios in [1, inf].

    Raises:
      ValueError: if shapes differ or a client holds no example.

    Examples:
      >>> labels, mask = np.array([[0, 0, 1], [0, 1, 1]]), np.ones((2, 3), bool)
      >>> print(imbalance_ratio(labels, mask))
      [2. 2.]
    """
    labels, mask = np.asarray(labels), np.asarray(mask)
    _check_clients(mask, labels=labels)
    classes = np.unique(labels[mask])
    counts = ((labels[..., None] == classes) & mask[..., None]).sum(axis=1)
    with np.errstate(divide="ignore"):
        return counts.max(axis=1) / counts.min(axis=1)


def _check_clients(
    mask: Shaped[np.ndarray, "_ _"], **arrays: Shaped[np.ndarray, "_ _"]
) -> None:
    for name, array in arrays.items():
        if array.shape != mask.shape:
            raise ValueError(f"{name} {array.shape} and mask {mask.shape} differ")
    if len(mask) == 0:
        raise ValueError("no clients to score")
    empty = np.flatnonzero(~mask.any(axis=1))
    if empty.size:
        raise ValueError(f"clients without examples: {empty.tolist()}")
