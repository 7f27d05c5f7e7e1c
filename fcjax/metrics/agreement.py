"""Agreement between clusterings, consensus of several clusterings, and paired tests.

The module answers four questions. Only the last one may need labels.

- How far do clusterings of the same examples agree? Runs that differ only in their
  seed agree if the data determines the clusters. They disagree if chance does.
- How many clusters does the data have? With the right number, runs with different
  seeds find the same clusters. With too few clusters, each cluster contains several
  true clusters, and splits into the same parts with every seed. With too many
  clusters, runs disagree.
- What is the consensus of several clusterings?
- Is one method better than another? The seed determines the partition, the initial
  weights and the order of the examples. So the scores of two methods are compared
  seed by seed. The spread of the scores of one method does not matter.
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
    """Returns the agreement of two clusterings: 1 if they are equal.

    Only examples with a cluster in both clusterings are compared.

    Args:
      first: [n] clusters of the first run, -1 for examples without a cluster.
      second: [n] clusters of the second run, with any number of clusters and any names.
      blocks: [n] groups of examples that are compared separately. Use one group per
        client if clients cluster independently, because their clusters are then
        unrelated. The result is the mean over groups, weighted by the number of
        examples. Groups of one example are ignored. None compares all examples at once.
      measure: a score of two clusterings: `ari` (0 for agreement by chance) or `nmi`.

    Returns:
      The agreement; NaN if there are fewer than two examples to compare.

    Raises:
      ValueError: the lengths differ.

    References:
      Hubert and Arabie, Comparing partitions, 1985; Strehl and Ghosh, Cluster
      ensembles, 2002 (average normalised mutual information, with `nmi`).

    Examples:
      >>> first, second = np.array([0, 0, 1, 1, -1]), np.array([7, 7, 5, 5, 5])
      >>> agreement(first, second)
      1.0
      >>> clients = np.array([0, 1, 0, 1, 0])
      >>> agreement(first, np.array([7, 5, 5, 7, 5]), blocks=clients)
      1.0
    """
    first, second = np.asarray(first), np.asarray(second)
    if len(first) != len(second):
        raise ValueError(
            "first and second must have the same length, "
            f"got {len(first)} and {len(second)}"
        )
    both = (first >= 0) & (second >= 0)
    groups = np.zeros(len(first), int) if blocks is None else np.asarray(blocks)
    values, sizes = [], []
    for group in np.unique(groups[both]):
        members = both & (groups == group)
        if members.sum() > 1:
            values.append(measure(first[members], second[members]))
            sizes.append(members.sum())
    return float(np.average(values, weights=sizes)) if values else math.nan


def pairwise_agreement(
    runs: Integer[np.ndarray | Array, "R n"],
    *,
    client_of_example: Integer[np.ndarray | Array, "R n"] | None = None,
    measure: Callable[[Names, Names], float] = ari,
) -> Float[np.ndarray, "R R"]:
    """Returns the agreement of each pair of runs; NaN on the diagonal.

    Args:
      runs: [R, n] clusters, -1 for examples without a cluster.
      client_of_example: [R, n] the client of each example in each run, if clients
        clustered independently. Then two examples are compared only if they have the
        same client in both runs. For a run with one clustering of all examples, use one
        value, such as -1, for all examples. None means that all runs have one
        clustering.
      measure: a score of two clusterings, `ari` or `nmi`.

    Returns:
      [R, R] agreements, symmetric.

    Examples:
      >>> runs = np.array([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]])
      >>> print(pairwise_agreement(runs).round(1))
      [[ nan  1.  -0.5]
       [ 1.   nan -0.5]
       [-0.5 -0.5  nan]]
    """
    runs = np.asarray(runs)
    result = np.full((len(runs), len(runs)), np.nan)
    for i, j in itertools.combinations(range(len(runs)), 2):
        blocks = None
        if client_of_example is not None:
            client_pairs = np.asarray(client_of_example)[[i, j]]
            blocks = np.unique(client_pairs, axis=1, return_inverse=True)[1].reshape(-1)
        result[i, j] = agreement(runs[i], runs[j], blocks=blocks, measure=measure)
        result[j, i] = result[i, j]
    return result


def mean_agreement(pairwise: Float[np.ndarray, "R R"]) -> Float[np.ndarray, "R"]:
    """Returns the mean agreement of each run with the other runs.

    Args:
      pairwise: [R, R] the result of `pairwise_agreement`.

    Returns:
      [R] means; NaN for a run that cannot be compared with any other run.

    Examples:
      >>> runs = np.array([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]])
      >>> print(mean_agreement(pairwise_agreement(runs)))
      [ 0.25  0.25 -0.5 ]
    """
    return np.ma.masked_invalid(pairwise).mean(axis=1).filled(np.nan)


# --- Stability


class Stability(NamedTuple):
    """Stability of runs with the same number of clusters; one value per pair."""

    between: tuple[float, ...]
    """The agreement of the two clusterings of each pair (adjusted Rand index)."""
    within: tuple[float, ...]
    """The agreement about the parts of each cluster of the first run. The cluster is
    split into two by k-means, once in the embedding of each run. The value is the mean
    over clusters, weighted by examples; NaN if all clusters are too small to split."""

    num_runs: int
    """The number of runs."""

    @property
    def trade_off(self) -> tuple[float, ...]:
        """`between` minus `within`, in [-1, 1].

        It is high if runs find the same clusters and the clusters have no stable parts.
        """
        pairs = zip(self.between, self.within, strict=True)
        return tuple(between - within for between, within in pairs)


def stability(
    runs: Integer[np.ndarray | Array, "S n"],
    embeddings: Sequence[Float[np.ndarray | Array, "n _"]],
    *,
    most_pairs: int = 10,
    least: int = 10,
) -> Stability:
    """Measures how stable clusters and their parts are in runs with different seeds.

    Mourer et al. compare a clustering with clusterings of perturbed data. Here, runs
    with different seeds are compared.

    Args:
      runs: [S, n] clusters of S runs, -1 for examples without a cluster.
      embeddings: one [n, D] embedding per run, NaN for examples without an embedding.
      most_pairs: the maximum number of pairs, spread over all pairs of runs.
      least: the minimum number of examples of a cluster that is split.

    Returns:
      One value per pair.

    Raises:
      ValueError: there is only one run, or the numbers of runs and embeddings differ.

    References:
      Mourer, Forest, Lebbah, Azzag and Lacaille, Selecting the number of clusters K
      with a stability trade-off, arXiv 2006.08530, 2020.
    """
    runs = np.asarray(runs)
    if len(runs) < 2:
        raise ValueError(f"runs must contain at least 2 runs, got {len(runs)}")
    if len(runs) != len(embeddings):
        raise ValueError(
            f"embeddings must contain one embedding per run, got {len(embeddings)} "
            f"embeddings for {len(runs)} runs"
        )
    pairs = list(itertools.permutations(range(len(runs)), 2))
    step = -(-len(pairs) // most_pairs)
    between, within = [], []
    for i, j in pairs[::step]:
        between.append(agreement(runs[i], runs[j]))
        spaces = [np.asarray(embeddings[run]) for run in (i, j)]
        within.append(_split_agreement(runs[i], spaces, least))
    return Stability(tuple(between), tuple(within), len(runs))


def _split_agreement(
    clusters: np.ndarray, spaces: Sequence[np.ndarray], least: int
) -> float:
    """Returns the agreement of two embeddings about the two parts of each cluster.

    The result is the mean over clusters, weighted by examples; NaN if all clusters are
    too small to split.
    """
    has_embedding = np.all([np.isfinite(z).all(axis=1) for z in spaces], axis=0)
    total = count = 0.0
    for k in np.unique(clusters[clusters >= 0]):
        members = has_embedding & (clusters == k)
        if members.sum() >= least:
            first, second = (_halves(z[members], seed) for seed, z in enumerate(spaces))
            total += float(members.sum()) * agreement(first, second)
            count += float(members.sum())
    return total / count if count else math.nan


def _halves(z: np.ndarray, seed: int) -> np.ndarray:
    """Returns two clusters from k-means on a random half of the examples.

    The random half makes the two clusters of a cluster without parts differ between
    calls, even in the same embedding.
    """
    sample = np.random.default_rng(seed).permutation(len(z))[: -(-len(z) // 2)]
    kmeans = KMeans(2, n_init=3, random_state=seed)  # pyright: ignore[reportArgumentType]
    return np.asarray(kmeans.fit(z[sample]).predict(z))


# --- Consensus


class Consensus(NamedTuple):
    """The consensus of several runs: clusters and confidence."""

    clusters: Int[np.ndarray, "n"]
    """The cluster of each example, in [0, K); -1 if no run has a cluster for the
    example."""
    confidence: Float[np.ndarray, "n"]
    """The mean co-association of an example with the other examples of its cluster, in
    [0, 1]. The co-association of two examples is the share of runs in which they have
    the same cluster. NaN if no run has a cluster for the example."""


def consensus(
    runs: Integer[np.ndarray | Array, "R n"],
    num_clusters: int,
    *,
    client_of_example: Integer[np.ndarray | Array, "R n"] | None = None,
    seed: int = 0,
) -> Consensus:
    """Clusters examples by how often several runs put them into the same cluster.

    The result is the spectral clustering of the co-association matrix A. A_ij is the
    share of runs in which examples i and j have the same cluster. A is never computed.
    It equals H H^T / R. The matrix H has one 0/1 column per cluster of each run.
    The eigenvectors of D^-1/2 H H^T D^-1/2 are D^-1/2 H v, up to length, for the
    eigenvectors v of the small matrix H^T D^-1 H.

    This small matrix and the sizes for D are sums over clients. So a server can compute
    the consensus from sums alone, with a federated k-means as the last step. It then
    sees no example's clusters.

    Args:
      runs: [R, n] clusters with any names, -1 for examples without a cluster. If
        clients cluster independently, clusters of different clients need different
        names.
      num_clusters: the number K of clusters of the consensus.
      client_of_example: [R, n] the client of each example in each run, if clients
        cluster independently. Examples of different clients cannot have the same
        cluster in such a run, so these pairs do not lower the confidence.
      seed: the seed of k-means.

    Returns:
      The clusters and the confidence of each example.

    Raises:
      ValueError: fewer than K examples have a cluster in any run.

    References:
      Fred and Jain, Combining multiple clusterings using evidence accumulation, 2005;
      Fern and Brodley, Solving cluster ensemble problems by bipartite graph
      partitioning, 2004.

    Examples:
      >>> runs = np.array([[0, 0, 0, 1, 1, 1], [5, 5, 5, 2, 2, 2], [0, 0, 1, 1, 1, 1]])
      >>> result = consensus(runs, 2)
      >>> print(result.clusters == result.clusters[0])
      [ True  True  True False False False]
      >>> print(result.confidence.round(2))
      [0.83 0.83 0.67 1.   1.   1.  ]
    """
    runs = np.asarray(runs)
    client_of_example = (
        None if client_of_example is None else np.asarray(client_of_example)
    )
    clustered = (runs >= 0).any(axis=0)
    if clustered.sum() < num_clusters:
        raise ValueError(
            f"num_clusters must be at most {clustered.sum()}, the number of examples "
            f"with a cluster in any run, got {num_clusters}"
        )
    # Examples with the same clusters in all runs are one row, weighted by their number.
    profiles, row_of_example, counts = np.unique(
        runs[:, clustered], axis=1, return_inverse=True, return_counts=True
    )
    row_of_example = row_of_example.reshape(-1)
    rows = _embedding(memberships(profiles), counts, num_clusters)
    num_nonempty = min(num_clusters, len(rows))
    kmeans = KMeans(num_nonempty, n_init=10, random_state=seed)  # pyright: ignore[reportArgumentType]
    row_clusters = kmeans.fit_predict(rows, sample_weight=counts)
    clusters = np.full(runs.shape[1], -1)
    clusters[clustered] = row_clusters[row_of_example]
    return Consensus(
        clusters, confidence(runs, clusters, client_of_example=client_of_example)
    )


def memberships(
    runs: Integer[np.ndarray, "R n"],
) -> sparse.csr_array:
    """Returns the 0/1 matrix H with one column per cluster of each run.

    Args:
      runs: [R, n] clusters, -1 for examples without a cluster.

    Returns:
      [n, S] sparse matrix, 1 for the examples of a cluster; S is the number of clusters
      of all runs together.

    Examples:
      >>> h = memberships(np.array([[0, 0, 1], [1, -1, 1]]))
      >>> print(h.toarray().astype(int))
      [[1 0 1]
       [1 0 0]
       [0 1 1]]
    """
    columns, rows, first = [], [], 0
    for clusters in runs:
        (clustered,) = np.nonzero(clusters >= 0)
        names, code = np.unique(clusters[clustered], return_inverse=True)
        columns.append(first + code)
        rows.append(clustered)
        first += len(names)
    cells = np.concatenate(rows), np.concatenate(columns)
    ones = np.ones(len(cells[0]))
    return sparse.csr_array((ones, cells), shape=(runs.shape[1], first))


def confidence(
    runs: Integer[np.ndarray, "R n"],
    clusters: Int[np.ndarray, "n"],
    *,
    client_of_example: Integer[np.ndarray, "R n"] | None = None,
) -> Float[np.ndarray, "n"]:
    """Returns the mean co-association of each example with the others of its cluster.

    The co-association of two examples is the share of runs in which they have the same
    cluster. A run is ignored for an example if no other example of its cluster could be
    together with it in this run. An example that is alone in its cluster has confidence
    1.

    Args:
      runs: [R, n] clusters with any names, -1 for examples without a cluster.
      clusters: [n] the clusters whose confidence is measured, -1 for none.
      client_of_example: [R, n] the client of each example in each run, if clients
        cluster independently; None if all runs have one clustering of all examples.

    Returns:
      [n] values in [0, 1]; NaN if no run has a cluster for the example.

    Examples:
      >>> runs = np.array([[3, 3, 4, 4, 4], [0, 0, 0, 1, -1]])
      >>> print(confidence(runs, np.array([0, 0, 1, 1, 1])))
      [1.  1.  0.5 0.5 1. ]
    """
    total, count = np.zeros(len(clusters)), np.zeros(len(clusters))
    for i, run in enumerate(runs):
        both = (run >= 0) & (clusters >= 0)
        names = clusters[both]
        client = (
            np.zeros(len(names), int)
            if client_of_example is None
            else client_of_example[i][both]
        )
        num_together = _group_sizes(names, client, run[both]) - 1  # without itself
        num_possible = _group_sizes(names, client) - 1
        share = num_together / np.maximum(num_possible, 1)
        total[both] += np.where(num_possible > 0, share, 0)
        count[both] += num_possible > 0
    _, code, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    is_alone = (sizes[code.reshape(-1)] == 1) & (clusters >= 0)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return np.where(is_alone & (runs >= 0).any(axis=0), 1.0, mean)


def _group_sizes(*names: np.ndarray) -> np.ndarray:
    """Returns for each example how many examples have the same tuple of names."""
    if not len(names[0]):
        return np.zeros(0, int)
    _, code, sizes = np.unique(
        np.stack(names), axis=1, return_inverse=True, return_counts=True
    )
    return sizes[code.reshape(-1)]


def _embedding(
    h: sparse.csr_array, counts: Int[np.ndarray, "n"], num_clusters: int
) -> Float[np.ndarray, "n K"]:
    """Returns the leading eigenvectors of D^-1/2 H H^T D^-1/2, with unit rows.

    Row i stands for counts[i] equal examples.
    """
    sizes = h.T @ counts  # of the clusters of the runs
    scaled = h / np.sqrt(h @ sizes)[:, None]
    gram = (scaled.T @ (scaled * counts[:, None])).toarray()
    values, vectors = np.linalg.eigh(gram)
    leading = values[::-1][:num_clusters], vectors[:, ::-1][:, :num_clusters]
    # Zero eigenvalues of the small matrix give no eigenvector of the large matrix.
    positive = leading[0] > 1e-9
    rows = scaled @ leading[1][:, positive] / np.sqrt(leading[0][positive])
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1)


# --- Pooled


def pooled_ranks(scores: Float[np.ndarray, "R R"]) -> Float[np.ndarray, "R"]:
    """Returns each run's mean rank in the embeddings of the other runs.

    Scores in different embeddings are not comparable, but the order of the clusterings
    in one embedding is. A run's own embedding is excluded, because it was trained to
    make its own clusters compact. This is the pooling of ACE without its selection of
    embeddings.

    Args:
      scores: [R, R] the score of each run's clustering (column) in each run's embedding
        (row); see `silhouettes`.

    Returns:
      [R] mean ranks, from 0 (the lowest score in all other embeddings) to 1; NaN for a
      run that no other embedding ranks.

    References:
      Deep clustering evaluation: how to validate internal clustering validation
      measures (ACE), arXiv 2403.14830, 2024.

    Examples:
      >>> scores = np.array([[0.1, 0.5, 0.3], [0.4, 0.9, 0.2], [0.7, 0.8, 0.9]])
      >>> print(pooled_ranks(scores))
      [0.5 1.  0. ]
    """
    ranks = np.full(scores.shape, np.nan)
    for i, row in enumerate(scores):
        (columns,) = np.nonzero(~np.isnan(row) & (np.arange(len(row)) != i))
        if len(columns) > 1:
            ranks[i, columns] = (stats.rankdata(row[columns]) - 1) / (len(columns) - 1)
    return np.ma.masked_invalid(ranks).mean(axis=0).filled(np.nan)


# --- Differences

Scores = Sequence[float] | Float[np.ndarray, "_"]

SURE = 0.05
"""Differences with a p-value below this are called significant."""
MOST_SEEDS = 1000
"""The maximum of `Paired.more_seeds`."""


class Paired(NamedTuple):
    """The differences of two methods' scores with the same seeds."""

    mean: float
    """The mean difference, the first method minus the second."""
    low: float
    """The lower end of the 95 % bootstrap interval of the mean; NaN for a single
    seed."""
    high: float
    """The upper end of the 95 % bootstrap interval of the mean; NaN for a single
    seed."""
    probability: float
    """The probability that the first method is better with a new seed; NaN for a single
    seed."""
    p_value: float
    """The p-value of the paired t-test; NaN for a single seed."""
    more_seeds: int | None
    """The number of further seeds until the 95 % t-interval excludes 0, if mean and
    standard deviation stay the same. 0 if the interval excludes 0 already. None for a
    single seed, or if more than 1,000 seeds are needed."""
    n: int
    """The number of seeds."""


def paired(first: Scores, second: Scores, *, num_resamples: int = 10_000) -> Paired:
    """Compares two methods by their scores with the same seeds.

    The interval is the percentile bootstrap interval of the mean. It is too narrow for
    few seeds: its variance is (n - 1) / n times the right one, and there are at most
    n^n different resamples.

    The probability assumes normal differences. A new difference is above 0 with
    probability P(t > -mean / (s sqrt(1 + 1 / n))), with n - 1 degrees of freedom.

    Args:
      first: one score of the first method per seed; larger is better.
      second: the scores of the second method, in the same order of seeds.
      num_resamples: the number of bootstrap resamples, drawn with a fixed seed.

    Returns:
      The mean difference, its interval and the test results.

    Raises:
      ValueError: there are no scores, their numbers differ, or a score is not finite.

    References:
      Efron and Tibshirani, An introduction to the bootstrap, 1993; for the prediction,
      Geisser, Predictive inference, 1993.

    Examples:
      >>> result = paired([0.8, 0.7, 0.9], [0.6, 0.6, 0.6])
      >>> print(f"{result.mean:.2f}, {result.p_value:.3f}, {result.more_seeds}")
      0.20, 0.074, 1
    """
    if len(first) != len(second) or not len(first):
        raise ValueError(
            "first and second must have the same number of scores, at least 1, "
            f"got {len(first)} and {len(second)}"
        )
    differences = np.asarray(first, float) - np.asarray(second, float)
    if not np.isfinite(differences).all():
        raise ValueError("first and second must be finite, got NaN or infinity")
    n, mean, nan = len(differences), float(differences.mean()), math.nan
    if n == 1:
        return Paired(mean, nan, nan, nan, nan, None, 1)
    resamples = np.random.default_rng(0).integers(n, size=(num_resamples, n))
    low, high = np.quantile(differences[resamples].mean(axis=1), (0.025, 0.975))
    spread = float(differences.std(ddof=1))
    if spread <= 1e-12 * max(1.0, abs(mean)):  # the same difference for every seed
        sign = np.sign(mean) if abs(mean) > 1e-12 else 0
        p_value, probability = (1.0, 0.5) if sign == 0 else (0.0, (1 + sign) / 2)
        more = None if sign == 0 else 0
        return Paired(mean, float(low), float(high), probability, p_value, more, n)
    p_value = float(stats.ttest_1samp(differences, 0)[1])  # pyright: ignore[reportArgumentType]
    t_value = mean / (spread * math.sqrt(1 + 1 / n))
    counts = np.arange(2, MOST_SEEDS + n + 1)
    half = stats.t.ppf(0.975, counts - 1) * spread / np.sqrt(counts)
    enough = counts[half < abs(mean)]
    more = max(0, int(enough[0]) - n) if len(enough) else None
    return Paired(
        *(mean, float(low), float(high)),
        *(float(stats.t.cdf(t_value, n - 1)), p_value, more, n),
    )


def holm(p_values: Scores) -> list[float]:
    """Returns the p-values of several tests, adjusted by Holm's method.

    If all hypotheses are true, an adjusted p-value falls below 0.05 with probability at
    most 5 %.

    Args:
      p_values: the p-values of the tests; NaN is ignored and stays NaN.

    Returns:
      The adjusted p-values, in the same order.

    References:
      Holm, A simple sequentially rejective multiple test procedure, 1979.

    Examples:
      >>> holm([0.01, 0.04, 0.03])
      [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, float)
    order = np.argsort(p)[: int((~np.isnan(p)).sum())]
    factors = len(order) - np.arange(len(order))
    adjusted = p.copy()
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1)
    return adjusted.tolist()
