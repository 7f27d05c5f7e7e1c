"""Whether one method is better than another, by the runs of both with the same seeds.

A seed decides the partition, the first weights and the order of the examples: with the
same one two methods have the same luck with the data, so that their difference by seed
is what counts, not the spread of either.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

Scores = Sequence[float] | Float[np.ndarray, "_"]

SURE = 0.05
"""A p-value below it is that of a difference."""
MOST_SEEDS = 1000
"""More than that are not asked for."""


class Paired(NamedTuple):
    """Scores of one method less those of another, seed by seed."""

    mean: float
    low: float
    high: float
    """The 95 % bootstrap interval of the mean; NaN of a single seed."""
    probability: float
    """That the first is better with a seed that neither has seen; NaN of a single
    seed."""
    p_value: float
    """Of the paired t-test; NaN of a single seed."""
    more_seeds: int | None
    """How many more seeds would make the 95 % t-interval leave 0 out, should mean and
    spread stay as they are: 0 where it does; None where that takes more than 1,000, or
    of a single seed."""
    n: int


def paired(first: Scores, second: Scores, *, num_resamples: int = 10_000) -> Paired:
    """Compares two methods by their scores with the same seeds.

    The interval is that of percentiles of the mean of seeds drawn with replacement,
    which of few seeds is too narrow: n seeds have it (n - 1) / n times too small a
    variance, and at most n^n different draws. The probability takes the differences for
    normal: that a further one is above 0 is P(t > -mean / (s sqrt(1 + 1 / n))) with
    n - 1 degrees of freedom.

    Args:
      first: a score of each seed, the larger the better.
      second: those of the other method, in the same order.
      num_resamples: draws of the bootstrap, always the same ones.

    Raises:
      ValueError: there are no pairs, or a score is missing or no number.

    References:
      Efron and Tibshirani, An introduction to the bootstrap, 1993; for the prediction,
      Geisser, Predictive inference, 1993.

    Examples:
      >>> found = paired([0.8, 0.7, 0.9], [0.6, 0.6, 0.6])
      >>> print(f"{found.mean:.2f}, {found.p_value:.3f}, {found.more_seeds}")
      0.20, 0.074, 1
    """
    if len(first) != len(second) or not len(first):
        raise ValueError(f"{len(first)} and {len(second)} scores are no pairs")
    off = np.asarray(first, float) - np.asarray(second, float)
    if not np.isfinite(off).all():
        raise ValueError("a score is missing or no number")
    n, mean, nan = len(off), float(off.mean()), math.nan
    if n == 1:
        return Paired(mean, nan, nan, nan, nan, None, 1)
    drawn = np.random.default_rng(0).integers(n, size=(num_resamples, n))
    low, high = np.quantile(off[drawn].mean(axis=1), (0.025, 0.975))
    spread = float(off.std(ddof=1))
    if spread <= 1e-12 * max(1.0, abs(mean)):  # the same of every seed
        sign = np.sign(mean) if abs(mean) > 1e-12 else 0
        p_value, probability = (1.0, 0.5) if sign == 0 else (0.0, (1 + sign) / 2)
        more = None if sign == 0 else 0
        return Paired(mean, float(low), float(high), probability, p_value, more, n)
    p_value = float(stats.ttest_1samp(off, 0)[1])  # pyright: ignore[reportArgumentType]
    ahead = mean / (spread * math.sqrt(1 + 1 / n))
    counts = np.arange(2, MOST_SEEDS + n + 1)
    half = stats.t.ppf(0.975, counts - 1) * spread / np.sqrt(counts)
    enough = counts[half < abs(mean)]
    more = max(0, int(enough[0]) - n) if len(enough) else None
    return Paired(
        *(mean, float(low), float(high)),
        *(float(stats.t.cdf(ahead, n - 1)), p_value, more, n),
    )


def holm(p_values: Scores) -> list[float]:
    """Returns the p-values of tests that are made together, so that below 0.05 all are
    true at once with a chance of 95 %; NaN stays and is not counted.

    References:
      Holm, A simple sequentially rejective multiple test procedure, 1979.

    Examples:
      >>> holm([0.01, 0.04, 0.03])
      [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, float)
    order = np.argsort(p)[: int((~np.isnan(p)).sum())]
    factors = len(order) - np.arange(len(order))
    found = p.copy()
    found[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1)
    return found.tolist()
