"""Scores of a clustering against the true labels.

All functions take the labels first, then the assignments. Both are integer arrays, and
their values are only names. All functions raise ValueError if the arrays are empty or
differ in length.
"""

from collections.abc import Callable, Collection, Mapping

import numpy as np
from jaxtyping import Array, Bool, Float, Integer, Shaped
from scipy.optimize import linear_sum_assignment
from sklearn import metrics

# --- Scores

# The axis has no name, because the functions report different lengths in one line.
Names = Integer[np.ndarray | Array, "_"]


def match(labels: Names, assignments: Names) -> Integer[np.ndarray, "_"]:
    """Renames clusters to the classes that they match best.

    The match is one to one and maximises the overlap (Hungarian method). Among several
    such matches, the one with the least agreement by chance is taken. So no score
    depends on the names of the clusters.

    Args:
      labels: [n] true classes.
      assignments: [n] clusters, in any number.

    Returns:
      [n] assignments with the names of the classes. If there are more clusters than
      classes, the remaining clusters get new names above every label.

    Raises:
      ValueError: there are no examples, or the lengths differ.

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
    # Chance agreement sums to at most one example, so it only breaks ties.
    chance = np.outer(overlap.sum(axis=1), overlap.sum(axis=0)) / len(labels) ** 2
    class_index, cluster_index = linear_sum_assignment(overlap - chance, maximize=True)
    names = int(classes[-1]) + 1 + np.arange(len(clusters))
    names[cluster_index] = classes[class_index]
    return names[of_cluster]


def accuracy(labels: Names, assignments: Names) -> float:
    """Returns the share of examples whose cluster matches their class, in [0, 1].

    Clusters without a matched class (see `match`) count as wrong.

    Args:
      labels: [n] true classes.
      assignments: [n] clusters, in any number.

    Returns:
      The accuracy.

    Raises:
      ValueError: there are no examples, or the lengths differ.

    Examples:
      >>> accuracy(np.array([0, 0, 1, 1]), np.array([5, 5, 5, 3]))
      0.75
    """
    return float(np.mean(np.asarray(labels) == match(labels, assignments)))


def kappa(labels: Names, assignments: Names) -> float:
    """Returns Cohen's unweighted kappa after `match`, in [-1, 1].

    Kappa is (po - pe) / (1 - pe) with the agreement po and the agreement by chance pe.
    Clusters without a matched class agree with no class. If all examples have one class
    and one cluster, the formula is 0 / 0 and the score is 1, as for NMI.

    Args:
      labels: [n] true classes.
      assignments: [n] clusters, in any number.

    Returns:
      Cohen's kappa.

    Raises:
      ValueError: there are no examples, or the lengths differ.

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
    """Returns the normalised mutual information, in [0, 1].

    The mutual information is divided by the arithmetic mean of the two entropies.

    Args:
      labels: [n] true classes.
      assignments: [n] clusters, in any number.

    Returns:
      The normalised mutual information.

    Raises:
      ValueError: there are no examples, or the lengths differ.

    Examples:
      >>> labels = np.array([0, 0, 1, 1])
      >>> print(f"{nmi(labels, np.array([5, 5, 3, 3])):.3f}")
      1.000
      >>> print(f"{nmi(labels, np.array([5, 3, 5, 3])):.3f}")
      0.000
    """
    return float(metrics.normalized_mutual_info_score(*_paired(labels, assignments)))


def ari(labels: Names, assignments: Names) -> float:
    """Returns the adjusted Rand index: 1 is perfect, 0 is chance, the minimum is -0.5.

    Args:
      labels: [n] true classes.
      assignments: [n] clusters, in any number.

    Returns:
      The adjusted Rand index.

    Raises:
      ValueError: there are no examples, or the lengths differ.

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
    """Returns the adjusted mutual information: 1 is perfect, 0 is chance.

    The normaliser is the arithmetic mean of the entropies. If classes have few
    examples, prefer this score or `ari` to `nmi`, which is then too high.

    Args:
      labels: [n] true classes.
      assignments: [n] clusters, in any number.

    Returns:
      The adjusted mutual information.

    Raises:
      ValueError: there are no examples, or the lengths differ.

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
"""The names of all scores, which `scores` computes by default."""


def scores(
    labels: Names, assignments: Names, *, names: Collection[str] = NAMES
) -> dict[str, float]:
    """Returns several scores of one clustering: acc, nmi, kappa, ari, ami.

    For a whole federation, pass `labels[mask]` and `assignments[mask]`. Then one match
    applies to all clients.

    Args:
      labels: [n] true classes.
      assignments: [n] clusters, in any number.
      names: the names of the scores to compute.

    Returns:
      A dict from each name to the score of `accuracy` (acc), `nmi`, `kappa`, `ari` or
      `ami`.

    Raises:
      ValueError: there are no examples, or the lengths differ.

    Examples:
      >>> labels, assignments = np.array([0, 0, 1, 1]), np.array([5, 5, 5, 3])
      >>> scores(labels, assignments, names=("acc", "kappa"))
      {'acc': 0.75, 'kappa': 0.5}
    """
    return {name: _SCORES[name](labels, assignments) for name in names}


def _paired(labels: Names, assignments: Names) -> tuple[np.ndarray, np.ndarray]:
    """Returns both arrays as NumPy arrays of the same positive length."""
    labels, assignments = np.asarray(labels), np.asarray(assignments)
    if len(labels) != len(assignments):
        raise ValueError(
            "labels and assignments must have the same length, "
            f"got {len(labels)} and {len(assignments)}"
        )
    if len(labels) == 0:
        raise ValueError("labels must contain at least 1 example, got 0")
    return labels, assignments


# --- By client

# The axes have no names, because the functions report different shapes in one line.
ClientNames = Integer[np.ndarray | Array, "_ _"]
ClientMask = Bool[np.ndarray | Array, "_ _"]


def per_client(
    labels: ClientNames,
    assignments: ClientNames,
    mask: ClientMask,
    *,
    names: Collection[str] = NAMES,
) -> dict[str, Float[np.ndarray, "_"]]:
    """Returns the scores of each client on its own examples, with one match per client.

    Args:
      labels: [M, N] true classes.
      assignments: [M, N] clusters.
      mask: [M, N] True for a client's own examples, False for padding.
      names: the names of the scores to compute.

    Returns:
      A dict from each name to an array [M].

    Raises:
      ValueError: the shapes differ, or a client has no example.

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
        scores(labels[client, is_real], assignments[client, is_real], names=names)
        for client, is_real in enumerate(mask)
    ]
    return {name: np.array([row[name] for row in rows]) for name in names}


def client_mean(
    client_scores: Mapping[str, Float[np.ndarray, "M"]],
) -> dict[str, float]:
    """Returns the mean of `per_client` scores with equal weights, as in FedCRef.

    Args:
      client_scores: a dict from names to arrays [M].

    Returns:
      A dict from the same names to floats.

    Examples:
      >>> client_mean({"acc": np.array([0.75, 1.0])})
      {'acc': 0.875}
    """
    return {name: float(np.mean(values)) for name, values in client_scores.items()}


def client_pooled(
    client_scores: Mapping[str, Float[np.ndarray, "M"]],
    mask: Bool[np.ndarray | Array, "M _"],
) -> dict[str, float]:
    """Returns the mean of `per_client` scores, weighted by the numbers of examples.

    For acc this is FDSC's Eq. 9: the share of correct examples of all clients, with one
    match per client.

    Args:
      client_scores: a dict from names to arrays [M].
      mask: [M, N] True for a client's own examples.

    Returns:
      A dict from the same names to floats.

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
    """Returns the ratio of each client's largest and smallest class sizes.

    The classes are all classes of the federation. So the ratio is infinite for a client
    without examples of some class. Table 4 of the CCFC paper reports 1.18 to 1.53 for
    MNIST with p = 0.

    Args:
      labels: [M, N] true classes.
      mask: [M, N] True for a client's own examples, False for padding.

    Returns:
      [M] ratios in [1, inf].

    Raises:
      ValueError: the shapes differ, or a client has no example.

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
    """Raises ValueError if shapes differ, a client is empty, or there is no client."""
    for name, array in arrays.items():
        if array.shape != mask.shape:
            raise ValueError(
                f"{name} must have the shape {mask.shape} of mask, got {array.shape}"
            )
    if len(mask) == 0:
        raise ValueError("mask must contain at least 1 client, got 0")
    empty = np.flatnonzero(~mask.any(axis=1))
    if empty.size:
        raise ValueError(
            "mask must be True for at least 1 example of each client, but clients "
            f"{empty.tolist()} have none"
        )
