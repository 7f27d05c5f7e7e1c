"""Scores of leakage: copies of training examples, and membership inference.

Synthetic examples that are copies are nearer to the training examples than held-out
real examples are. A generator of only typical examples is near the training examples as
well, for instance a generator whose digits all look the same. A small distance is thus
a reason to look at the examples, not a proof. [choice] One test over all examples. The
paper also averages the test over cells of the space.

References:
  Meehan, Chaudhuri and Dasgupta, A non-parametric test to detect data-copying in
  generative models, AISTATS 2020, https://arxiv.org/abs/2004.05675, Section 3.
  DeLong, DeLong and Clarke-Pearson, Comparing the areas under two or more correlated
  receiver operating characteristic curves, Biometrics 44, 1988: the interval of `auc`.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped
from scipy import stats
from sklearn.metrics import pairwise_distances_argmin


def flat(examples: Shaped[np.ndarray, "n *F"]) -> Float[np.ndarray, "n D"]:
    """Returns examples as vectors. Pixels are scaled to [0, 1].

    Args:
      examples: images or feature vectors, uint8 or floating.

    Returns:
      The vectors, in the order of the examples.
    """
    scale = 255 if examples.dtype == np.uint8 else 1
    return examples.reshape(len(examples), -1) / np.float32(scale)


def nearest(
    a: Shaped[np.ndarray, "n D"], b: Shaped[np.ndarray, "m D"]
) -> tuple[Int[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """Finds the nearest row of `b` for each row of `a`.

    Args:
      a: the query points.
      b: the points to search.

    Returns:
      Indices into `b`, and Euclidean distances. The distance to an exact copy is 0.
    """
    # Centring does not change distances, but it reduces their rounding errors.
    centre = b.mean(axis=0, dtype=np.float64)
    a, b = a - centre, b - centre
    rows = pairwise_distances_argmin(a, b)
    return rows, np.linalg.norm(a - b[rows], axis=1)


def copying(
    synthetic: Float[np.ndarray, "n"], held_out: Float[np.ndarray, "m"]
) -> dict[str, float]:
    """Compares synthetic and held-out examples by their distance to training examples.

    Args:
      synthetic: distance of each synthetic example to its nearest training example.
      held_out: distance of each held-out example to its nearest training example.

    Returns:
      copy_probability: probability that a synthetic example is nearer to the training
        examples than a held-out example. A tie counts one half. It is the Mann-Whitney
        U divided by n m: 0.5 without copying, near 1 for copies, near 0 for synthetic
        examples far from the data.
      copy_z: U standardised by its mean and standard deviation without copying, with
        ties in account. Large for copies. The paper's Z_U has the opposite sign. NaN if
        all distances are equal.
      synthetic_distance, held_out_distance: the median distances.
      closest_share: share of the synthetic examples that are as near as the nearest 1 %
        of the held-out examples (at least one). About 0.01 without copying.

    Examples:
      >>> result = copying(np.array([0.0, 1.5]), np.array([1.0, 2.0]))
      >>> result["copy_probability"], result["held_out_distance"]  # 3 of 4 pairs
      (0.75, 1.5)
    """
    n, m = len(synthetic), len(held_out)
    ranks = stats.rankdata(np.concatenate([synthetic, held_out]))
    u = float(n * m + n * (n + 1) / 2 - ranks[:n].sum())
    variance = n * m / 12 * (n + m + 1) * stats.tiecorrect(ranks)
    return {
        "copy_probability": u / (n * m),
        "copy_z": (u - n * m / 2) / math.sqrt(variance) if variance > 0 else math.nan,
        "synthetic_distance": float(np.median(synthetic)),
        "held_out_distance": float(np.median(held_out)),
        "closest_share": float(
            np.mean(synthetic <= np.sort(held_out)[math.ceil(m / 100) - 1])
        ),
    }


class Auc(NamedTuple):
    """The area under the ROC curve, with its 95 % interval.

    Examples:
      >>> Auc(0.75, 0.5, 1.0).value
      0.75
    """

    value: float
    """The area, in [0, 1]; 0.5 for scores that do not depend on the group."""
    low: float
    high: float


def auc(members: Float[np.ndarray, "n"], non_members: Float[np.ndarray, "m"]) -> Auc:
    """Computes the probability that a member has a higher score than a non-member.

    A tie counts one half. The interval is the area plus and minus 1.96 standard errors
    by the formula of DeLong, within [0, 1]. The standard error is 0 if all members have
    higher scores than all non-members.

    Args:
      members: the scores of n >= 2 members.
      non_members: the scores of m >= 2 non-members.

    Returns:
      The area under the ROC curve, and the ends of its 95 % interval.

    Examples:
      >>> result = auc(np.array([3.0, 1.0]), np.array([2.0, 0.0]))
      >>> result.value, round(result.low, 3), result.high  # 3 of 4 pairs
      (0.75, 0.057, 1.0)
    """
    n, m = len(members), len(non_members)
    ranks = stats.rankdata(np.concatenate([members, non_members]))
    # The share of the other group below each score. A tie counts one half.
    below = (ranks[:n] - stats.rankdata(members)) / m
    above = 1 - (ranks[n:] - stats.rankdata(non_members)) / n
    value = float(below.mean())
    error = math.sqrt(below.var(ddof=1) / n + above.var(ddof=1) / m)
    low, high = value - 1.96 * error, value + 1.96 * error
    return Auc(value, max(0.0, low), min(1.0, high))
