"""k-means for masked, weighted arrays, under jit and vmap.

References:
    Lloyd, Least squares quantization in PCM, 1982.
    Arthur and Vassilvitskii, k-means++: the advantages of careful seeding, 2007; the
    greedy variant of their section 5, with 2 + log K trials as in scikit-learn.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fcjax.types import PRNGKey


class KMeansResult(NamedTuple):
    """Centroids, and what they make of the examples."""

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
    mask: Bool[Array, "N"] | None = None,
    weights: Float[Array, "N"] | None = None,
    num_init: int = 10,
    num_iters: int = 100,
) -> KMeansResult:
    """Clusters rows by k-means: the best of several seedings by greedy k-means++.

    Rows that are masked or of weight 0 are never drawn as a seed and move no centroid,
    and the draws do not depend on how many there are: an array padded by such rows has
    the same clusters, save where rounding decides an exact tie. Inertias within 1e-5 of
    the least, relatively, are a tie that the first seeding wins.

    With fewer distinct rows than clusters, some centroids coincide or stay unused; with
    no row left at all they are zero. All stay finite.

    Args:
        key: the key of all draws.
        x: the rows to cluster; computed in float32.
        num_clusters: number K of clusters, at most N.
        mask: False at rows to leave out; all rows count by default.
        weights: non-negative weight of each row, 1 by default.
        num_init: number of seedings.
        num_iters: upper bound of the Lloyd iterations; they stop at a fixed point.

    Returns:
        The centroids [K, D], assignments [N] in [0, K) and inertia of the best seeding.

    Raises:
        ValueError: if num_clusters is below 1 or above N.
    """
    num_rows = x.shape[0]
    if not 1 <= num_clusters <= num_rows:
        raise ValueError(
            f"num_clusters must be between 1 and the {num_rows} rows, "
            f"got {num_clusters}"
        )
    weights = _effective_weights(x, mask, weights)
    return _best_of(key, x, weights, num_iters, num_clusters, num_init)


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
    """
    weights = _effective_weights(x, mask, weights)
    return _improve(x, weights, num_iters, centroids)


def assign_nearest(
    x: Float[Array, "N D"], centroids: Float[Array, "K D"]
) -> Int[Array, "N"]:
    """The nearest centroid of each row by Euclidean distance.

    Returns:
        int32 [N], in [0, K); rounding decides between centroids equally near.
    """
    centroids = centroids.astype(jnp.float32)
    offset = centroids.mean(axis=0, keepdims=True)
    scores = _scores(x.astype(jnp.float32) - offset, centroids - offset)
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
) -> KMeansResult:
    x = x.astype(jnp.float32)
    offset = _offset(x, weights)
    rows = _clear(x - offset, weights)

    def restart(key):
        seeds = _seed(key, rows, weights, num_clusters)
        centroids = _descend(rows, weights, num_iters, seeds)
        distances = _squared_distances(rows, centroids).min(axis=0)
        return centroids, jnp.sum(weights * distances)

    centroids, inertia = jax.vmap(restart)(jax.random.split(key, num_init))
    # Seedings often meet in one optimum, numbered differently: rounding, which padding
    # and batching change, must not choose between them.
    best = jnp.argmax(inertia <= inertia.min() * (1 + 1e-5))
    return _result(x, weights, centroids[best] + offset)


@jax.jit
def _improve(
    x: Float[Array, "N D"],
    weights: Float[Array, "N"],
    num_iters: Int[Array, ""],
    centroids: Float[Array, "K D"],
) -> KMeansResult:
    x = x.astype(jnp.float32)
    offset = _offset(x, weights)
    rows = _clear(x - offset, weights)
    start = centroids.astype(jnp.float32) - offset
    improved = _descend(rows, weights, num_iters, start)
    return _result(x, weights, improved + offset)


def _effective_weights(
    x: Float[Array, "N D"],
    mask: Bool[Array, "N"] | None,
    weights: Float[Array, "N"] | None,
) -> Float[Array, "N"]:
    if weights is None:
        weights = jnp.ones(x.shape[0])
    weights = weights.astype(jnp.float32)
    return weights if mask is None else jnp.where(mask, weights, 0)


def _offset(x: Float[Array, "N D"], weights: Float[Array, "N"]) -> Float[Array, "1 D"]:
    # Squared distances by way of inner products lose digits far from the origin.
    total = jnp.maximum(weights.sum(), jnp.finfo(jnp.float32).tiny)
    mean = jnp.matmul(
        weights[None] / total, _clear(x, weights), precision=jax.lax.Precision.HIGHEST
    )
    # Any point near the mean serves; fewer bits make it the same one however the sum is
    # rounded, so that padding does not disturb the draws.
    return jax.lax.reduce_precision(mean, exponent_bits=8, mantissa_bits=12)


def _clear(x: Float[Array, "N D"], weights: Float[Array, "N"]) -> Float[Array, "N D"]:
    # A weight of 0 alone would let infinities in, as 0 * inf is NaN.
    return jnp.where(weights[:, None] > 0, x, 0)


def _dot(a: Float[Array, "I D"], b: Float[Array, "J D"]) -> Float[Array, "I J"]:
    return jnp.matmul(a, b.T, precision=jax.lax.Precision.HIGHEST)


def _scores(
    x: Float[Array, "N D"], centroids: Float[Array, "K D"]
) -> Float[Array, "K N"]:
    # |x - c|^2 - |x|^2, which has the same argmin. Clusters come first, as matrix
    # products and the reductions over K are then fast on CPUs.
    return jnp.sum(centroids**2, axis=-1)[:, None] - 2 * _dot(centroids, x)


def _squared_distances(
    x: Float[Array, "N D"], centroids: Float[Array, "K D"]
) -> Float[Array, "K N"]:
    return jnp.maximum(_scores(x, centroids) + jnp.sum(x**2, axis=-1)[None], 0)


def _result(
    x: Float[Array, "N D"], weights: Float[Array, "N"], centroids: Float[Array, "K D"]
) -> KMeansResult:
    assignments = assign_nearest(x, centroids)
    residuals = _clear(x - centroids[assignments], weights)
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
        nearest = jnp.argmin(_scores(x, centroids), axis=0)
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


def _draw(
    uniform: Float[Array, "T"], mass: Float[Array, "N"], weights: Float[Array, "N"]
) -> Int[Array, "T"]:
    """Rows drawn in proportion to `mass`, or to `weights` where there is no mass."""
    mass = jnp.where(jnp.any(mass > 0), mass, weights)
    row = jnp.arange(mass.shape[0])
    last = jnp.max(jnp.where(mass > 0, row, 0))
    cumulative = jnp.cumsum(mass)
    # A rounded cumulative sum may step at a row without mass, and end below its target.
    beyond = (cumulative[None] > uniform[:, None] * cumulative[last]) & (mass > 0)[None]
    return jnp.min(jnp.where(beyond, row[None], last), axis=1)


def _seed(
    key: PRNGKey, x: Float[Array, "N D"], weights: Float[Array, "N"], num_clusters: int
) -> Float[Array, "K D"]:
    """Draws far-apart rows: of a few candidates, each time the one that helps most."""
    num_trials = 2 + int(math.log(num_clusters))
    uniform = jax.random.uniform(key, (num_clusters, num_trials))

    def add(closest, uniform):
        candidates = x[_draw(uniform, weights * closest, weights)]
        closer = jnp.minimum(closest[None], _squared_distances(x, candidates))
        best = jnp.argmin(jnp.sum(weights[None] * closer, axis=1))
        return closer[best], candidates[best]

    first = x[_draw(uniform[0, :1], weights, weights)]
    closest = _squared_distances(x, first)[0]
    _, others = jax.lax.scan(add, closest, uniform[1:])
    return jnp.concatenate([first, others])
