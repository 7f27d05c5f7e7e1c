"""One clustering of many, without a truth, and how sure it is of every example."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float, Int, Integer
from scipy import sparse
from sklearn.cluster import KMeans


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
    examples, with rows of unit length."""
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
