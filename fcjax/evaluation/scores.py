"""Scores of a clustering against the true labels.

Labels come first, assignments second; both are integer arrays whose values are names
only. Every function raises ValueError where they are empty or differ in length.
"""

from collections.abc import Callable, Collection

import numpy as np
from jaxtyping import Array, Integer
from scipy.optimize import linear_sum_assignment
from sklearn import metrics

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
    names, codes = np.unique(np.stack([labels, renamed]), return_inverse=True)
    codes = codes.reshape(2, -1)
    shares = [np.bincount(row, minlength=len(names)) / row.size for row in codes]
    by_chance = float(shares[0] @ shares[1])
    if by_chance == 1:
        return 1.0
    return (float(np.mean(codes[0] == codes[1])) - by_chance) / (1 - by_chance)


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
