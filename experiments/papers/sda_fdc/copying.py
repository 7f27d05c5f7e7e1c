"""Whether what a generator makes is copies of its training examples.

A generator that copies makes examples nearer to those that it was trained on than
further draws of the same distribution are. So does one that makes examples of the dense
parts alone, as one digit that looks always the same: a small distance is a reason to
look. [choice] One test over all examples, where the paper also averages it over cells
of the space.

References:
  Meehan, Chaudhuri and Dasgupta, A non-parametric test to detect data-copying in
  generative models, AISTATS 2020, https://arxiv.org/abs/2004.05675, Section 3.
"""

import math

import numpy as np
from jaxtyping import Float, Int, Shaped
from scipy import stats
from sklearn.metrics import pairwise_distances_argmin


def nearest(
    a: Shaped[np.ndarray, "n D"], b: Shaped[np.ndarray, "m D"]
) -> tuple[Int[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """Returns the row of `b` nearest to each row of `a`, and their Euclidean distance:
    exactly 0 to a copy.
    """
    # Distances do not change; without a common offset more of their digits count.
    centre = b.mean(axis=0, dtype=np.float64)
    a, b = a - centre, b - centre
    rows = pairwise_distances_argmin(a, b)
    return rows, np.linalg.norm(a - b[rows], axis=1)


def copying(
    made: Float[np.ndarray, "n"], real: Float[np.ndarray, "m"]
) -> dict[str, float]:
    """Compares how near synthetic and unseen real examples come to the training ones.

    Args:
      made: [n] distances of synthetic examples to their nearest training examples.
      real: [m] distances of held-out examples to theirs.

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

    Examples:
      >>> found = copying(np.array([0.0, 1.5]), np.array([1.0, 2.0]))
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
