"""Spectral clustering of affinities, under jit and vmap.

References:
    Ng, Jordan and Weiss, On spectral clustering: analysis and an algorithm, NIPS 2001.
    Yu and Shi, Multiclass spectral clustering, ICCV 2003.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fcjax.cluster.kmeans import kmeans
from fcjax.cluster.seeding import check_num_clusters
from fcjax.types import PRNGKey

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
