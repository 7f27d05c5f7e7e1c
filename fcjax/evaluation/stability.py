"""How many clusters there are, by what comes out again with another seed.

As many clusters as there are come out alike with every seed. Fewer may, too, as
clusters that hold several: but then each of these falls apart alike. More do not.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Integer
from sklearn.cluster import KMeans

from fcjax.evaluation.agreement import agreement


class Stability(NamedTuple):
    """Of runs that look for the same number of clusters, pair by pair."""

    between: tuple[float, ...]
    """How far the clusterings of the two agree: their adjusted Rand index."""
    within: tuple[float, ...]
    """How far they agree on how each cluster of the first falls into two, by k-means
    of half of its examples in the embedding of either: the mean over its examples. NaN
    where all clusters are too small to be taken apart."""

    num_runs: int
    """That the pairs are of."""

    @property
    def trade_off(self) -> tuple[float, ...]:
        """Between less within, in [-1, 1]: high where clusters come out again and have
        no parts that do."""
        pairs = zip(self.between, self.within, strict=True)
        return tuple(one - other for one, other in pairs)


def stability(
    runs: Integer[np.ndarray | Array, "S n"],
    embeddings: Sequence[Float[np.ndarray | Array, "n _"]],
    *,
    most_pairs: int = 10,
    least: int = 10,
) -> Stability:
    """Measures how far runs that differ in their seed agree, between clusters and
    within them.

    Mourer et al. disturb the data where seeds differ here, and take the pairs of a
    clustering and a disturbed one.

    Args:
      runs: clusters of S runs, -1 where there is none.
      embeddings: of the same runs, NaN where an example has none.
      most_pairs: pairs that are taken, spread over all of them.
      least: examples that a cluster must have to be taken apart.

    Returns:
      A value a pair.

    Raises:
      ValueError: there is but one run, or numbers differ.

    References:
      Mourer, Forest, Lebbah, Azzag and Lacaille, Selecting the number of clusters K
      with a stability trade-off, arXiv 2006.08530, 2020.
    """
    runs = np.asarray(runs)
    if len(runs) < 2:
        raise ValueError("stability takes two runs or more")
    if len(runs) != len(embeddings):
        raise ValueError(f"{len(runs)} runs but {len(embeddings)} embeddings")
    pairs = list(itertools.permutations(range(len(runs)), 2))
    step = -(-len(pairs) // most_pairs)
    between, within = [], []
    for one, other in pairs[::step]:
        between.append(agreement(runs[one], runs[other]))
        spaces = [np.asarray(embeddings[i]) for i in (one, other)]
        within.append(_split_agreement(runs[one], spaces, least))
    return Stability(tuple(between), tuple(within), len(runs))


def _split_agreement(
    clusters: np.ndarray, spaces: Sequence[np.ndarray], least: int
) -> float:
    """How far two embeddings agree on the halves of each cluster; NaN where all are too
    small to have any."""
    held = np.all([np.isfinite(z).all(axis=1) for z in spaces], axis=0)
    total = count = 0.0
    for k in np.unique(clusters[clusters >= 0]):
        rows = held & (clusters == k)
        if rows.sum() >= least:
            first, second = (_halves(z[rows], seed) for seed, z in enumerate(spaces))
            total += float(rows.sum()) * agreement(first, second)
            count += float(rows.sum())
    return total / count if count else math.nan


def _halves(z: np.ndarray, seed: int) -> np.ndarray:
    """Two clusters by k-means of every other example, drawn at random: of a cluster
    without parts they are others with every draw, in one embedding, too."""
    drawn = np.random.default_rng(seed).permutation(len(z))[: -(-len(z) // 2)]
    kmeans = KMeans(2, n_init=3, random_state=seed)  # pyright: ignore[reportArgumentType]
    return np.asarray(kmeans.fit(z[drawn]).predict(z))
