"""Agreement between clusterings, consensus of several, and paired tests.

How far clusterings of the same examples agree with each other.

No truth is needed: runs that differ in their seed alone agree where the data says what
the clusters are, and disagree where chance did.

How many clusters there are, by what comes out again with another seed.

As many clusters as there are come out alike with every seed. Fewer may, too, as
clusters that hold several: but then each of these falls apart alike. More do not.

Whether one method is better than another, by the runs of both with the same seeds.

A seed decides the partition, the first weights and the order of the examples: with the
same one two methods have the same luck with the data, so that their difference by seed
is what counts, not the spread of either.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int, Integer
from scipy import sparse, stats
from sklearn.cluster import KMeans

from fcjax.metrics.external import ari

# --- Agreement

Names = Integer[np.ndarray | Array, "_"]


def agreement(
    first: Names,
    second: Names,
    *,
    blocks: Names | None = None,
    measure: Callable[[Names, Names], float] = ari,
) -> float:
    """Returns how far two clusterings agree on the examples that both have a cluster
    for, 1 where they are the same; NaN where there are no two such examples.

    Args:
      first: [n] clusters, -1 where there is none.
      second: [n] those of another run, in any number and by any names.
      blocks: [n] groups of examples that are measured on their own, as where clients
        cluster without each other and no cluster of one is that of another: the mean
        over the groups, which count by their examples. Those of one example, which
        nothing can be said of, do not count.
      measure: of two clusterings: `ari`, in which agreement by chance is 0, or `nmi`.

    Raises:
      ValueError: lengths differ.

    References:
      Hubert and Arabie, Comparing partitions, 1985; Strehl and Ghosh, Cluster
      ensembles, 2002, whose average normalised mutual information this is with `nmi`.

    Examples:
      >>> first, second = np.array([0, 0, 1, 1, -1]), np.array([7, 7, 5, 5, 5])
      >>> agreement(first, second)
      1.0
      >>> owners = np.array([0, 1, 0, 1, 0])  # who tell one example from the other
      >>> agreement(first, np.array([7, 5, 5, 7, 5]), blocks=owners)
      1.0
    """
    first, second = np.asarray(first), np.asarray(second)
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} clustered examples")
    both = (first >= 0) & (second >= 0)
    groups = np.zeros(len(first), int) if blocks is None else np.asarray(blocks)
    found, sizes = [], []
    for group in np.unique(groups[both]):
        rows = both & (groups == group)
        if rows.sum() > 1:
            found.append(measure(first[rows], second[rows]))
            sizes.append(rows.sum())
    return float(np.average(found, weights=sizes)) if found else math.nan


def pairwise_agreement(
    runs: Integer[np.ndarray | Array, "R n"],
    *,
    holders: Integer[np.ndarray | Array, "R n"] | None = None,
    measure: Callable[[Names, Names], float] = ari,
) -> Float[np.ndarray, "R R"]:
    """Returns the agreement of each run with each other; NaN on the diagonal, since a
    run says nothing by agreeing with itself.

    Args:
      runs: clusters, -1 where there is none.
      holders: which client holds each example in each run, where clients clustered
        without each other: only examples that one client holds in both runs are
        compared. The same for all, as -1, in a run that has one clustering of all.
      measure: as of `agreement`.

    Examples:
      >>> runs = np.array([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]])
      >>> print(pairwise_agreement(runs).round(1))
      [[ nan  1.  -0.5]
       [ 1.   nan -0.5]
       [-0.5 -0.5  nan]]
    """
    runs = np.asarray(runs)
    found = np.full((len(runs), len(runs)), np.nan)
    for i, j in itertools.combinations(range(len(runs)), 2):
        blocks = None
        if holders is not None:
            each = np.asarray(holders)[[i, j]]
            blocks = np.unique(each, axis=1, return_inverse=True)[1].reshape(-1)
        found[i, j] = agreement(runs[i], runs[j], blocks=blocks, measure=measure)
        found[j, i] = found[i, j]
    return found


def mean_agreement(pairwise: Float[np.ndarray, "R R"]) -> Float[np.ndarray, "R"]:
    """Returns how far each run agrees with the others on average, from
    `pairwise_agreement`; NaN where it can be compared with none.

    Examples:
      >>> runs = np.array([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]])
      >>> print(mean_agreement(pairwise_agreement(runs)))
      [ 0.25  0.25 -0.5 ]
    """
    known = np.ma.masked_invalid(pairwise)
    return known.mean(axis=1).filled(np.nan)


# --- Stability


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
        no parts that do.
        """
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
    small to have any.
    """
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
    without parts they are others with every draw, in one embedding, too.
    """
    drawn = np.random.default_rng(seed).permutation(len(z))[: -(-len(z) // 2)]
    kmeans = KMeans(2, n_init=3, random_state=seed)  # pyright: ignore[reportArgumentType]
    return np.asarray(kmeans.fit(z[drawn]).predict(z))


# --- Consensus


class Consensus(NamedTuple):
    """What many runs say together."""

    clusters: Int[np.ndarray, "n"]
    """In [0, K); -1 where no run has a cluster."""
    confidence: Float[np.ndarray, "n"]
    """How often the runs put an example together with the others of its cluster: the
    mean of their co-associations, in [0, 1]; NaN where no run has a cluster for it."""


def consensus(
    runs: Integer[np.ndarray | Array, "R n"],
    num_clusters: int,
    *,
    holders: Integer[np.ndarray | Array, "R n"] | None = None,
    seed: int = 0,
) -> Consensus:
    """Clusters examples by how often the runs put them together.

    Spectral clustering of the co-association matrix A, A_ij the share of the runs in
    which i and j have the same cluster. A is never made: with one column of zeros and
    ones for each cluster of each run it is H H^T, and the eigenvectors of
    D^-1/2 H H^T D^-1/2 are D^-1/2 H v for those v of the small matrix H^T D^-1 H, but
    for their length. Over clients that matrix, like the sizes that D needs, is a sum: a
    server that is given those sums alone, and then sums of the rows' k-means, finds the
    same clusters and sees no example's.

    Args:
      runs: [R, n] clusters by any names, -1 where a run has none. Where clients
        clustered on their own, a cluster of each client's is one.
      num_clusters: K.
      holders: then, which client holds each example in each run: examples of two cannot
        be together there, which makes nobody less sure.
      seed: of k-means.

    Raises:
      ValueError: fewer than K examples have a cluster in any run.

    References:
      Fred and Jain, Combining multiple clusterings using evidence accumulation, 2005;
      Fern and Brodley, Solving cluster ensemble problems by bipartite graph
      partitioning, 2004.

    Examples:
      >>> runs = np.array([[0, 0, 0, 1, 1, 1], [5, 5, 5, 2, 2, 2], [0, 0, 1, 1, 1, 1]])
      >>> found = consensus(runs, 2)
      >>> print(found.clusters == found.clusters[0])
      [ True  True  True False False False]
      >>> print(found.confidence.round(2))  # with two others in two runs of three
      [0.83 0.83 0.67 1.   1.   1.  ]
    """
    runs = np.asarray(runs)
    holders = None if holders is None else np.asarray(holders)
    clustered = (runs >= 0).any(axis=0)
    if clustered.sum() < num_clusters:
        raise ValueError(
            f"{clustered.sum()} clustered examples make no {num_clusters} clusters"
        )
    # Examples that no run tells apart are one, of so much weight.
    profiles, place, counts = np.unique(
        runs[:, clustered], axis=1, return_inverse=True, return_counts=True
    )
    place = place.reshape(-1)
    rows = _embedding(memberships(profiles), counts, num_clusters)
    known = min(num_clusters, len(rows))
    kmeans = KMeans(known, n_init=10, random_state=seed)  # pyright: ignore[reportArgumentType]
    found = kmeans.fit_predict(rows, sample_weight=counts)[place]
    clusters = np.full(runs.shape[1], -1)
    clusters[clustered] = found
    return Consensus(clusters, confidence(runs, clusters, holders=holders))


def memberships(
    runs: Integer[np.ndarray, "R n"],
) -> sparse.csr_array:
    """Returns H, [n, S]: a column for each cluster of each run, 1 at its examples.

    Examples:
      >>> h = memberships(np.array([[0, 0, 1], [1, -1, 1]]))
      >>> print(h.toarray().astype(int))
      [[1 0 1]
       [1 0 0]
       [0 1 1]]
    """
    columns, rows, first = [], [], 0
    for clusters in runs:
        (held,) = np.nonzero(clusters >= 0)
        names, code = np.unique(clusters[held], return_inverse=True)
        columns.append(first + code)
        rows.append(held)
        first += len(names)
    at = np.concatenate(rows), np.concatenate(columns)
    return sparse.csr_array((np.ones(len(at[0])), at), shape=(runs.shape[1], first))


def confidence(
    runs: Integer[np.ndarray, "R n"],
    clusters: Int[np.ndarray, "n"],
    *,
    holders: Integer[np.ndarray, "R n"] | None = None,
) -> Float[np.ndarray, "n"]:
    """Returns how often the runs put each example together with the others that are in
    its cluster of `clusters`, see `Consensus`; an example that is alone there, 1. A run
    in which none of the others can be together with it does not count.

    Args:
      runs: as in `consensus`.
      clusters: -1 where there is none.
      holders: as of `consensus`.

    Examples:
      >>> runs = np.array([[3, 3, 4, 4, 4], [0, 0, 0, 1, -1]])
      >>> print(confidence(runs, np.array([0, 0, 1, 1, 1])))
      [1.  1.  0.5 0.5 1. ]
    """
    total, count = np.zeros(len(clusters)), np.zeros(len(clusters))
    for i, of_run in enumerate(runs):
        held = (of_run >= 0) & (clusters >= 0)
        found = clusters[held]
        block = np.zeros(len(found), int) if holders is None else holders[i][held]
        both = _group_sizes(found, block, of_run[held])
        others = _group_sizes(found, block) - 1  # not with itself
        share = (both - 1) / np.maximum(others, 1)
        total[held] += np.where(others > 0, share, 0)
        count[held] += others > 0
    _, place, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    alone = (sizes[place.reshape(-1)] == 1) & (clusters >= 0)
    found = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return np.where(alone & (runs >= 0).any(axis=0), 1.0, found)


def _group_sizes(*names: np.ndarray) -> np.ndarray:
    """How many examples have all the names that each has."""
    if not len(names[0]):
        return np.zeros(0, int)
    _, place, sizes = np.unique(
        np.stack(names), axis=1, return_inverse=True, return_counts=True
    )
    return sizes[place.reshape(-1)]


def _embedding(
    h: sparse.csr_array, counts: Int[np.ndarray, "n"], num_clusters: int
) -> Float[np.ndarray, "n K"]:
    """The leading eigenvectors of D^-1/2 H H^T D^-1/2 where row i stands for counts[i]
    examples, with rows of unit length.
    """
    sizes = h.T @ counts  # of the clusters of the runs
    scaled = h / np.sqrt(h @ sizes)[:, None]
    gram = (scaled.T @ (scaled * counts[:, None])).toarray()
    values, vectors = np.linalg.eigh(gram)
    leading = values[::-1][:num_clusters], vectors[:, ::-1][:, :num_clusters]
    # What lies below has no eigenvector of the large matrix.
    known = leading[0] > 1e-9
    rows = scaled @ leading[1][:, known] / np.sqrt(leading[0][known])
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1)


# --- Pooled


def pooled_ranks(scores: Float[np.ndarray, "R R"]) -> Float[np.ndarray, "R"]:
    """Returns how highly the other runs' embeddings rank each run, from 0, below all
    others in each, to 1; NaN where no other ranks it.

    A score of one embedding cannot be compared with that of another, but its order of
    the clusterings can; and a run's own embedding, which was trained to make its
    clusters compact, has no vote. This is the pooling of ACE without its
    selection of the embeddings.

    Args:
      scores: of every run in every run's embedding, see `silhouettes`.

    References:
      Deep clustering evaluation: how to validate internal clustering validation
      measures (ACE), arXiv 2403.14830, 2024.

    Examples:
      >>> scores = np.array([[0.1, 0.5, 0.3], [0.4, 0.9, 0.2], [0.7, 0.8, 0.9]])
      >>> print(pooled_ranks(scores))
      [0.5 1.  0. ]
    """
    found = np.full(scores.shape, np.nan)
    for i, row in enumerate(scores):
        (others,) = np.nonzero(~np.isnan(row) & (np.arange(len(row)) != i))
        if len(others) > 1:
            found[i, others] = (stats.rankdata(row[others]) - 1) / (len(others) - 1)
    return np.ma.masked_invalid(found).mean(axis=0).filled(np.nan)


# --- Differences

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
