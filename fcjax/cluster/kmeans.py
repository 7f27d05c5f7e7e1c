"""k-means for masked, weighted arrays, under jit and vmap.

References:
    Lloyd, Least squares quantization in PCM, 1982.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fcjax.cluster.distances import (
    clear,
    origin,
    relative_distances,
    row_weights,
    squared_distances,
)
from fcjax.cluster.seeding import best_start, check_num_clusters, used_clusters
from fcjax.types import PRNGKey


class KMeansResult(NamedTuple):
    """Centroids, and what they make of the examples.

    Examples:
        >>> x = jnp.array([[0.0], [1.0], [10.0], [11.0]])
        >>> found = lloyd(x, centroids=jnp.array([[0.0], [11.0]]))
        >>> print(found.assignments, found.inertia)  # 4 * 0.5^2
        [0 0 1 1] 1.0
    """

    centroids: Float[Array, "K D"]
    assignments: Int[Array, "N"]
    """int32, the nearest centroid of every row, masked rows included."""
    inertia: Float[Array, ""]
    """The weighted sum of squared distances to the nearest centroid; masked rows
    count nothing."""


def kmeans(
    key: PRNGKey,
    x: Float[Array, "N D"],
    num_clusters: int,
    *,
    num_used: Int[Array, ""] | int | None = None,
    mask: Bool[Array, "N"] | None = None,
    weights: Float[Array, "N"] | None = None,
    num_init: int = 10,
    num_iters: int = 100,
) -> KMeansResult:
    """Clusters rows by k-means: the best of several seedings by greedy k-means++.

    Rows that are masked or of weight 0 are never drawn as a seed and move no centroid,
    and the draws do not depend on how many there are: an array padded by such rows has
    the same clusters, save where a draw falls between two rows to rounding. Inertias
    within 1e-5 of the least, relatively, or within 1e-6 of the rows' own about their
    mean, are a tie that the first seeding wins, and so among a seeding's candidates.

    With fewer distinct rows than clusters, some centroids coincide or stay unused; with
    no row left at all they are zero. All stay finite.

    Args:
        key: the key of all draws.
        x: the rows to cluster; computed in float32.
        num_clusters: number K of clusters, at most N.
        num_used: how many of them are used, in 1..K, where that is data: the first ones
            are the clusters of `num_clusters=num_used`, and the centroids of the others
            lie so far away that no row is nearest to them, see `used_clusters`.
        mask: False at rows to leave out; all rows count by default.
        weights: non-negative weight of each row, 1 by default.
        num_init: number of seedings.
        num_iters: upper bound of the Lloyd iterations; they stop at a fixed point.

    Returns:
        The centroids [K, D], assignments [N] in [0, K) and inertia of the best seeding.

    Raises:
        ValueError: if num_clusters is below 1 or above N, or num_used, where it is an
            int, below 1 or above num_clusters.

    Examples:
        >>> x = jnp.array([[0.0], [1.0], [10.0], [11.0]])
        >>> found = kmeans(jax.random.key(0), x, 2)
        >>> print(jnp.sort(found.centroids[:, 0]))  # clusters have no order
        [ 0.5 10.5]
    """
    check_num_clusters(num_clusters, len(x))
    if isinstance(num_used, int) and not 1 <= num_used <= num_clusters:
        raise ValueError(
            f"num_used must be between 1 and num_clusters, {num_clusters}, "
            f"got {num_used}"
        )
    weights = row_weights(x, mask, weights)
    return _best_of(key, x, weights, num_iters, num_clusters, num_init, num_used)


def lloyd(
    x: Float[Array, "N D"],
    centroids: Float[Array, "K D"],
    *,
    mask: Bool[Array, "N"] | None = None,
    weights: Float[Array, "N"] | None = None,
    num_iters: int = 100,
) -> KMeansResult:
    """Improves centroids until they are the means of their clusters.

    A cluster that has lost all its weight keeps its centroid.

    Args:
        x: the rows to cluster; computed in float32.
        centroids: where to start.
        mask: False at rows to leave out; all rows count by default.
        weights: non-negative weight of each row, 1 by default.
        num_iters: upper bound of the iterations; they stop at a fixed point.

    Returns:
        The improved centroids [K, D], with assignments [N] and inertia by them.

    Examples:
        >>> x = jnp.array([[0.0], [1.0], [10.0], [11.0]])
        >>> found = lloyd(x, centroids=jnp.array([[0.0], [11.0]]))
        >>> print(found.centroids)
        [[ 0.5]
         [10.5]]
    """
    weights = row_weights(x, mask, weights)
    return _improve(x, weights, num_iters, centroids)


def assign_nearest(
    x: Float[Array, "N D"], centroids: Float[Array, "K D"]
) -> Int[Array, "N"]:
    """The nearest centroid of each row by Euclidean distance.

    Returns:
        int32 [N], in [0, K); rounding decides between centroids equally near.

    Examples:
        >>> print(assign_nearest(jnp.array([[1.0], [9.0]]), jnp.array([[0.0], [10.0]])))
        [0 1]
    """
    centroids = centroids.astype(jnp.float32)
    used = used_clusters(centroids)[:, None]
    offset = centroids.mean(axis=0, keepdims=True, where=used)
    scores = relative_distances(x.astype(jnp.float32) - offset, centroids - offset)
    return jnp.argmin(scores, axis=0).astype(jnp.int32)


# Both are compiled once a shape: loops run eagerly would be compiled at every call.
@partial(jax.jit, static_argnames=("num_clusters", "num_init"))
def _best_of(
    key: PRNGKey,
    x: Float[Array, "N D"],
    weights: Float[Array, "N"],
    num_iters: Int[Array, ""],
    num_clusters: int,
    num_init: int,
    num_used: Int[Array, ""] | int | None,
) -> KMeansResult:
    x = x.astype(jnp.float32)
    offset = origin(x, weights)
    rows = clear(x - offset, weights)

    def descend(seeds):
        centroids = _descend(rows, weights, num_iters, seeds)
        distances = squared_distances(rows, centroids).min(axis=0)
        return centroids, jnp.sum(weights * distances)

    best = best_start(descend, key, rows, weights, num_clusters, num_init, num_used)
    return _result(x, weights, best + offset)


@jax.jit
def _improve(
    x: Float[Array, "N D"],
    weights: Float[Array, "N"],
    num_iters: Int[Array, ""],
    centroids: Float[Array, "K D"],
) -> KMeansResult:
    x = x.astype(jnp.float32)
    offset = origin(x, weights)
    rows = clear(x - offset, weights)
    start = centroids.astype(jnp.float32) - offset
    improved = _descend(rows, weights, num_iters, start)
    return _result(x, weights, improved + offset)


def _result(
    x: Float[Array, "N D"], weights: Float[Array, "N"], centroids: Float[Array, "K D"]
) -> KMeansResult:
    assignments = assign_nearest(x, centroids)
    residuals = clear(x - centroids[assignments], weights)
    inertia = jnp.sum(weights * jnp.sum(residuals**2, axis=-1))
    return KMeansResult(centroids, assignments, inertia)


def _descend(
    x: Float[Array, "N D"],
    weights: Float[Array, "N"],
    num_iters: Int[Array, ""],
    centroids: Float[Array, "K D"],
) -> Float[Array, "K D"]:
    num_clusters = centroids.shape[0]

    def improve(carry):
        iteration, centroids, _ = carry
        nearest = jnp.argmin(relative_distances(x, centroids), axis=0)
        members = nearest[None] == jnp.arange(num_clusters)[:, None]
        shares = jnp.where(members, weights[None], 0)
        mass = shares.sum(axis=1)[:, None]
        sums = jnp.matmul(shares, x, precision=jax.lax.Precision.HIGHEST)
        means = sums / jnp.where(mass > 0, mass, 1)
        moved = jnp.where(mass > 0, means, centroids)
        return iteration + 1, moved, jnp.any(moved != centroids)

    def unfinished(carry):
        iteration, _, changed = carry
        return changed & (iteration < num_iters)

    return jax.lax.while_loop(unfinished, improve, (0, centroids, jnp.array(True)))[1]
