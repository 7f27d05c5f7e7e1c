"""Spectral clustering, and the graphs and affinities that it takes.

Which samples are near each other.

References:
    The graph A of FDSC's Eq. 7, over raw samples.

Spectral clustering of affinities, under jit and vmap.

References:
    Ng, Jordan and Weiss, On spectral clustering: analysis and an algorithm, NIPS 2001.
    Yu and Shi, Multiclass spectral clustering, ICCV 2003.

How alike samples are by the coefficients that express each through the others.

References:
    Ji, Zhang, Li, Salzmann and Reid, `Deep Subspace Clustering Networks
    <https://arxiv.org/abs/1709.02508>`_ (DSC-Net), NeurIPS 2017; code
    panji1990/Deep-subspace-clustering-networks.
    Vidal and Favaro, Low rank subspace clustering (LRSC), 2014.
    Haeffele, You and Vidal, `A Critique of Self-Expressive Deep Subspace Clustering
    <https://arxiv.org/abs/2010.03697>`_, ICLR 2021.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from fcjax.cluster.kmeans import check_num_clusters, kmeans
from fcjax.types import PRNGKey, Scalar

# --- Neighbors


def neighbor_graph(
    x: Float[Array, "N D"],
    num_neighbors: int,
    *,
    mask: Bool[Array, "N"] | None = None,
) -> Bool[Array, "N N"]:
    """Joins each sample with its nearest others by Euclidean distance.

    Of samples equally near, those of smaller index are the neighbours. Distances are
    sums of squared differences, so that samples that repeat are exactly equally near.

    Args:
        x: the samples; computed in float32.
        num_neighbors: how many each sample chooses, or all others where they are fewer.
        mask: False at samples without neighbours, that are nobody's either; all count
            by default.

    Returns:
        Symmetric: True where either sample has chosen the other; never on the diagonal.

    Raises:
        ValueError: if num_neighbors is below 1.

    Examples:
        >>> print(neighbor_graph(jnp.array([[0.0], [1.0], [5.0]]), 1).astype(int))
        [[0 1 0]
         [1 0 1]
         [0 1 0]]
    """
    if num_neighbors < 1:
        raise ValueError(f"num_neighbors must be at least 1, got {num_neighbors}")
    if mask is None:
        mask = jnp.ones(len(x), bool)
    return _graph(x, mask, min(num_neighbors, len(x) - 1))


@partial(jax.jit, static_argnames="num_neighbors")
def _graph(
    x: Float[Array, "N D"], mask: Bool[Array, "N"], num_neighbors: int
) -> Bool[Array, "N N"]:
    samples = jnp.arange(len(x))
    x = jnp.where(mask[:, None], x, 0).astype(jnp.float32)

    def choose(sample):
        # A row at a time: all differences at once would be N x N x D.
        distances = jnp.sum((x - x[sample][None]) ** 2, axis=1)
        others = mask & (samples != sample)
        _, nearest = jax.lax.top_k(
            -jnp.where(others, distances, jnp.inf), num_neighbors
        )
        return jnp.zeros(len(x), bool).at[nearest].set(True) & others

    chosen = jax.lax.map(choose, samples) & mask[:, None]
    return chosen | chosen.T


# --- Components


def connected_components(edges: Bool[Array, "V V"]) -> Int[Array, "V"]:
    """Numbers the connected components of a graph.

    Every node takes the smallest number among its neighbours', then that of the node of
    this number, until nothing changes: at most as many passes as the longest of the
    shortest paths, and far fewer on long ones.

    Args:
        edges: symmetric; what stands on the diagonal is of no matter.

    Returns:
        int32 [V], for every node the smallest node that it is connected with, itself if
        it has no edge: equal numbers are one component.

    Examples:
        >>> edges = jnp.zeros((4, 4), bool).at[1, 3].set(True)
        >>> print(connected_components(edges | edges.T))
        [0 1 2 1]
    """
    nodes = jnp.arange(len(edges), dtype=jnp.int32)

    def spread(carry):
        labels, _ = carry
        around = jnp.where(edges, labels[None], labels[:, None]).min(axis=1)
        least = jnp.minimum(labels, around)
        least = jnp.minimum(least, least[least])
        return least, jnp.any(least != labels)

    labels, _ = lax.while_loop(lambda carry: carry[1], spread, (nodes, jnp.array(True)))
    return labels


# --- Spectral

Assign = Literal["kmeans", "discretize"]
"""How the spectral embedding becomes clusters, in scikit-learn's words."""


def spectral_embedding(
    affinity: Float[Array, "N N"],
    num_clusters: int,
    *,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, "N K"]:
    """The leading eigenvectors of D^-1/2 A D^-1/2, with rows of unit length.

    The diagonal of the affinity is taken as zero, as Ng, Jordan and Weiss define it and
    as scikit-learn's spectral_embedding has it: neither the degrees D nor the matrix
    see how alike a sample is to itself.

    Args:
        affinity: A, symmetric and non-negative; computed in float32.
        num_clusters: number K of eigenvectors, at most N.
        mask: False at samples to leave out, whose affinities may be anything; all count
            by default.

    Returns:
        The eigenvector of the largest eigenvalue first. Rows are zero of samples that
        are masked, like no other or without a part in these eigenvectors; where fewer
        than K samples count, so are the columns beyond them. Signs are arbitrary, and
        so is the basis of eigenvalues that coincide, as with several connected
        components.

    Raises:
        ValueError: if num_clusters is below 1 or above N.

    Examples:
        >>> affinity = jnp.kron(jnp.eye(2), jnp.ones((2, 2)))  # of two pairs
        >>> rows = spectral_embedding(affinity, 2)
        >>> print(jnp.abs(rows @ rows.T).round(2)[0])  # whatever the basis
        [1. 1. 0. 0.]
    """
    check_num_clusters(num_clusters, len(affinity))
    if mask is None:
        mask = jnp.ones(len(affinity), bool)
    return _embedding(affinity, mask, num_clusters)


def spectral_clustering(
    key: PRNGKey,
    affinity: Float[Array, "N N"],
    num_clusters: int,
    *,
    mask: Bool[Array, "N"] | None = None,
    assign_labels: Assign = "kmeans",
    num_init: int = 10,
) -> Int[Array, "N"]:
    """Clusters samples by their spectral embedding.

    With k-means it is the algorithm of Ng, Jordan and Weiss, which FDSC cites; the code
    of DSC-Net discretises, as Yu and Shi. scikit-learn scales rows to unit length for
    the latter alone.

    Args:
        key: of k-means, or of where discretisation begins.
        affinity: see `spectral_embedding`.
        num_clusters: number K of clusters, at most N.
        mask: False at samples to leave out.
        assign_labels: "kmeans", or "discretize", see `discretize`.
        num_init: number of seedings of k-means, or of beginnings.

    Returns:
        int32 in [0, K); masked samples have a cluster too, which means nothing.

    Raises:
        ValueError: if num_clusters is below 1 or above N, or assign_labels is neither.

    Examples:
        >>> affinity = jnp.kron(jnp.eye(2), jnp.ones((2, 2)))  # of two pairs
        >>> clusters = spectral_clustering(jax.random.key(0), affinity, 2)
        >>> print(clusters == clusters[0])
        [ True  True False False]
    """
    if assign_labels not in ("kmeans", "discretize"):
        raise ValueError(
            f"assign_labels is kmeans or discretize, got {assign_labels!r}"
        )
    embedding = spectral_embedding(affinity, num_clusters, mask=mask)
    if assign_labels == "discretize":
        return discretize(key, embedding, mask=mask, num_init=num_init)
    result = kmeans(key, embedding, num_clusters, mask=mask, num_init=num_init)
    return result.assignments


def discretize(
    key: PRNGKey,
    embedding: Float[Array, "N K"],
    *,
    mask: Bool[Array, "N"] | None = None,
    num_init: int = 10,
    num_iters: int = 20,
) -> Int[Array, "N"]:
    """Rounds an embedding to the clusters that are nearest to it but for a rotation.

    Yu and Shi's algorithm: a row's cluster is its largest entry once rotated, and the
    rotation is the one that brings the rows closest to their clusters, in turns until
    no cluster changes. It begins at a row that is drawn, and rows as orthogonal to it
    and to each other as there are. scikit-learn's `discretize` begins once, and first
    scales the columns to one length, which those of `spectral_embedding` before its
    rows are scaled have.

    Args:
        key: of the rows to begin at.
        embedding: eigenvectors as columns; rows are scaled to unit length, and computed
            in float32.
        mask: False at rows to leave out, which may hold anything; all count by default.
        num_init: how often it begins; the clusters that end nearest are returned.
        num_iters: upper bound of the turns.

    Returns:
        int32 in [0, K); rows of zeros and masked ones are in cluster 0, which means
        nothing. Clusters may be empty.

    Examples:
        >>> turned = jnp.array([[0.6, 0.8], [0.8, -0.6]])
        >>> rows = turned[jnp.array([0, 1, 1])]
        >>> clusters = discretize(jax.random.key(0), rows)
        >>> print(clusters == clusters[0])
        [ True False False]
    """
    if mask is None:
        mask = jnp.ones(len(embedding), bool)
    return _discretize(key, embedding, mask, num_iters, num_init)


@partial(jax.jit, static_argnames="num_init")
def _discretize(
    key: PRNGKey,
    embedding: Float[Array, "N K"],
    mask: Bool[Array, "N"],
    num_iters: Int[Array, ""],
    num_init: int,
) -> Int[Array, "N"]:
    num_clusters = embedding.shape[1]
    rows = jnp.where(mask[:, None], embedding, 0).astype(jnp.float32)
    rows = unit_rows(rows, jnp.ones(num_clusters), mask)
    counts = jnp.any(rows != 0, axis=1)
    product = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)

    def orthogonal_rows(key):
        ranks = jnp.cumsum(counts)
        first = rows[jnp.argmax(ranks > jax.random.uniform(key) * ranks[-1])]

        def add(carry, _):
            likeness, last = carry
            likeness += jnp.abs(product(rows, last))
            row = rows[jnp.argmin(jnp.where(counts, likeness, jnp.inf))]
            return (likeness, row), row

        carry = (jnp.zeros(len(rows)), first)
        _, others = jax.lax.scan(add, carry, None, length=num_clusters - 1)
        return jnp.concatenate([first[None], others]).T

    def nearest(rotation):
        return jnp.argmax(product(rows, rotation), axis=1).astype(jnp.int32)

    def sums(clusters):
        """Of the rows of each cluster: all that a rotation is found by."""
        return jax.ops.segment_sum(rows, clusters, num_clusters)

    def turn(carry):
        iteration, clusters, _ = carry
        u, _, vt = jnp.linalg.svd(sums(clusters))
        turned = nearest(product(vt.T, u.T))
        return iteration + 1, turned, jnp.any(turned != clusters)

    def unfinished(carry):
        iteration, _, changed = carry
        return changed & (iteration < num_iters)

    def begin(key):
        start = (0, nearest(orthogonal_rows(key)), jnp.array(True))
        clusters = jax.lax.while_loop(unfinished, turn, start)[1]
        return clusters, jnp.linalg.svd(sums(clusters), compute_uv=False).sum()

    clusters, closeness = jax.vmap(begin)(jax.random.split(key, num_init))
    # As in k-means rounding must not choose between beginnings that end alike.
    return clusters[jnp.argmax(closeness >= closeness.max() * (1 - 1e-5))]


@partial(jax.jit, static_argnames="num_clusters")
def _embedding(
    affinity: Float[Array, "N N"], mask: Bool[Array, "N"], num_clusters: int
) -> Float[Array, "N K"]:
    diagonal = jnp.eye(len(affinity), dtype=bool)
    edges = mask[:, None] & mask[None] & ~diagonal
    a = jnp.where(edges, affinity, 0).astype(jnp.float32)
    degrees = a.sum(axis=1)
    scale = jnp.where(degrees > 0, 1 / jnp.sqrt(jnp.where(degrees > 0, degrees, 1)), 0)
    a = scale[:, None] * a * scale[None]
    # All true eigenvalues lie in [-1, 1]: masked samples come last.
    a = jnp.where(diagonal & ~mask[:, None], -2, a)

    _, eigenvectors = jnp.linalg.eigh(a)
    leading = eigenvectors[:, ::-1][:, :num_clusters]
    return unit_rows(leading, jnp.ones(num_clusters), degrees > 0)


def unit_rows(
    eigenvectors: Float[Array, "N R"],
    weights: Float[Array, "R"],
    present: Bool[Array, "N"],
) -> Float[Array, "N R"]:
    """Returns the rows of weighted eigenvectors, scaled to unit length.

    Rows are zero where they are not present, or have no part in the eigenvectors of
    positive weight, as those of components that others leave no room for.
    """
    share = jnp.linalg.norm(jnp.where(weights[None] > 0, eigenvectors, 0), axis=1)
    # In float32 rounding leaves about 1e-6 where a part is zero: not a direction.
    present = present & (share > 1e-5)
    rows = jnp.where(present[:, None], eigenvectors * weights[None], 0)
    norms = jnp.linalg.norm(rows, axis=1, keepdims=True)
    return rows / jnp.where(norms > 0, norms, 1)


# --- Affinity


def symmetric_affinity(coefficients: Float[Array, "N N"]) -> Float[Array, "N N"]:
    """Returns |C| + |C|^T, the affinity of LRSC: non-negative and symmetric.

    Examples:
        >>> print(symmetric_affinity(jnp.array([[0.0, -1.0], [3.0, 0.0]])))
        [[0. 4.]
         [4. 0.]]
    """
    size = jnp.abs(coefficients)
    return size + size.T


def subspace_affinity(
    coefficients: Float[Array, "N N"],
    num_clusters: int,
    *,
    keep: Scalar,
    dimension: int,
    power: Scalar,
    unit_diagonal: bool = False,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, "N N"]:
    """The affinity that DSC-Net's code makes of its coefficients C.

    In order: the small entries of each column give way to zeros, C becomes
    (C + C^T) / 2, then U sqrt(S) of its truncated singular value decomposition with
    rows of unit length; the inner products of those rows, 0 where they are negative,
    raised to a power and divided by the largest, are the affinity.

    Much of what deep subspace clustering is reported to gain lies here and not in the
    network (Haeffele, You and Vidal): baselines must share it, or be compared without.

    Samples that are masked, have no coefficient or no part in the leading singular
    vectors are like no other, nor like themselves: their rows and columns are zero
    (DSC-Net's code scales what rounding has left there). So is all of it where fewer
    than two samples count.

    Args:
        coefficients: C of codes Z = C Z with samples in rows, as in DSC-Net's code; for
            Z = Z R with samples in columns, as FDSC writes it, C is R^T. Computed in
            float32.
        num_clusters: number K of clusters.
        keep: the share of a column's L1 norm that its largest entries must exceed; they
            are kept up to the one that does so, of equal ones the first. 1 and more
            keeps all. DSC-Net's: 0.04 for COIL, 0.2 for ORL.
        dimension: of one subspace, d: the rank is d K + 1, or the number of counted
            samples less 1 where that is smaller. DSC-Net's: 12 for COIL, 3 for ORL.
        power: above 0; the larger, the less moderate likeness counts. DSC-Net's: 8 for
            COIL, 1 for ORL.
        unit_diagonal: whether C's diagonal becomes ones before the decomposition, as
            for COIL20.
        mask: False at samples to leave out, whose coefficients may be anything; all
            count by default.

    Returns:
        In [0, 1], symmetric; the diagonal is 1, or 0 at samples like no other.

    Examples:
        >>> swap = jnp.array([[0.0, 1.0], [1.0, 0.0]])
        >>> c = jnp.kron(jnp.eye(2), swap)  # 0 and 1 express each other, so do 2 and 3
        >>> options = dict(keep=1.0, dimension=1, power=1.0, unit_diagonal=True)
        >>> print(subspace_affinity(c, 2, **options).round(2)[0])
        [1. 1. 0. 0.]
    """
    if mask is None:
        mask = jnp.ones(len(coefficients), bool)
    return _affinity(
        coefficients, mask, keep, power, num_clusters * dimension + 1, unit_diagonal
    )


@partial(jax.jit, static_argnames=("rank", "unit_diagonal"))
def _affinity(
    coefficients: Float[Array, "N N"],
    mask: Bool[Array, "N"],
    keep: Scalar,
    power: Scalar,
    rank: int,
    unit_diagonal: bool,
) -> Float[Array, "N N"]:
    counted = mask[:, None] & mask[None]
    c = _threshold(jnp.where(counted, coefficients, 0).astype(jnp.float32), keep)
    c = (c + c.T) / 2
    if unit_diagonal:
        c = jnp.where(jnp.eye(len(c), dtype=bool), mask[:, None], c)

    # C is symmetric: its singular values are the sizes of its eigenvalues, and its left
    # singular vectors are its eigenvectors.
    eigenvalues, eigenvectors = jnp.linalg.eigh(c)
    rank = min(rank, len(c) - 1)
    sizes, largest = jax.lax.top_k(jnp.abs(eigenvalues), rank)
    sizes = jnp.where(jnp.arange(rank) < mask.sum() - 1, sizes, 0)
    present = jnp.any(c != 0, axis=1)
    u = unit_rows(eigenvectors[:, largest], jnp.sqrt(sizes), present)
    z = jnp.matmul(u, u.T, precision=jax.lax.Precision.HIGHEST)
    z = jnp.where(z > 0, z, 0) ** power
    z = z / jnp.where(z.max() > 0, z.max(), 1)
    return (z + z.T) / 2


def _threshold(c: Float[Array, "N N"], keep: Scalar) -> Float[Array, "N N"]:
    """Keeps each column's largest entries, up to the one that exceeds the share."""
    order = jnp.argsort(-jnp.abs(c), axis=0)
    sizes = jnp.abs(jnp.take_along_axis(c, order, axis=0))
    covered = jnp.cumsum(sizes, axis=0)
    needed = (covered - sizes <= keep * covered[-1:]) | (keep >= 1)
    kept = jnp.put_along_axis(
        jnp.zeros(c.shape, bool), order, needed, axis=0, inplace=False
    )
    return jnp.where(kept, c, 0)
