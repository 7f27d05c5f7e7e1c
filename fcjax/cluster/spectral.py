"""Spectral clustering of affinities, under jit and vmap.

References:
    Ng, Jordan and Weiss, On spectral clustering: analysis and an algorithm, NIPS 2001.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fcjax.cluster.kmeans import kmeans
from fcjax.cluster.seeding import check_num_clusters
from fcjax.types import PRNGKey


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
    num_init: int = 10,
) -> Int[Array, "N"]:
    """Clusters samples by k-means of their spectral embedding.

    The algorithm of Ng, Jordan and Weiss, which FDSC cites. DSC-Net's code rounds the
    embedding to an indicator instead (Yu and Shi's discretisation), and scikit-learn
    does not scale its rows to unit length.

    Args:
        key: of k-means.
        affinity: see `spectral_embedding`.
        num_clusters: number K of clusters, at most N.
        mask: False at samples to leave out.
        num_init: number of seedings of k-means.

    Returns:
        int32 in [0, K); masked samples have a cluster too, which means nothing.

    Raises:
        ValueError: if num_clusters is below 1 or above N.

    Examples:
        >>> affinity = jnp.kron(jnp.eye(2), jnp.ones((2, 2)))  # of two pairs
        >>> clusters = spectral_clustering(jax.random.key(0), affinity, 2)
        >>> print(clusters == clusters[0])
        [ True  True False False]
    """
    embedding = spectral_embedding(affinity, num_clusters, mask=mask)
    result = kmeans(key, embedding, num_clusters, mask=mask, num_init=num_init)
    return result.assignments


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
