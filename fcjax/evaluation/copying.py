"""Are synthetic examples copies of those that a generator was trained on?"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int, Shaped
from scipy import stats

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
