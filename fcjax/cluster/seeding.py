"""Where clusterings start: rows that lie far apart.

References:
    Arthur and Vassilvitskii, k-means++: the advantages of careful seeding, 2007; the
    greedy variant of their section 5, with 2 + log K trials as in scikit-learn.
    Gonzalez, Clustering to minimize the maximum intercluster distance, 1985.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fcjax.cluster.distances import squared_distances
from fcjax.types import PRNGKey

UNUSED = 1e15
"""Every feature of a centroid that is not used: beyond all rows, and the sum even of
many of its squares is a number in float32."""


def used_clusters(centroids: Float[Array, "K D"]) -> Bool[Array, "K"]:
    """Which centroids stand for a cluster, where `kmeans` was given a `num_used`.

    Args:
        centroids: as `kmeans` returned them.

    Returns:
        bool [K], False at those that lie beyond all rows.

    Examples:
        >>> from fcjax.cluster import kmeans
        >>> x = jnp.array([[0.0], [1.0], [10.0], [11.0]])
        >>> found = kmeans(jax.random.key(0), x, 3, num_used=2)
        >>> print(used_clusters(found.centroids))
        [ True  True False]
    """
    return centroids[:, 0] < UNUSED / 2


def plus_plus(
    key: PRNGKey,
    x: Float[Array, "N D"],
    weights: Float[Array, "N"],
    num_clusters: int,
    num_used: Int[Array, ""] | int | None = None,
) -> Int[Array, "K"]:
    """Draws far-apart rows: of a few candidates, each time the one that helps most.

    Returns:
        Which rows, none of weight 0; some repeat where fewer are distinct. The first
        `num_used` are those that `num_clusters=num_used` draws.
    """
    num_trials = _num_trials(num_clusters)
    uniform = jax.random.uniform(key, (num_clusters, num_trials))
    if num_used is not None:
        # Fewer clusters have fewer trials: the same draws in shorter rows, the first
        # one again in place of a trial too many.
        trials = jnp.array([_num_trials(k + 1) for k in range(num_clusters)])
        width = trials[jnp.asarray(num_used) - 1]
        trial = jnp.arange(num_trials)
        column = jnp.where(trial < width, trial, 0)[None]
        row = jnp.arange(num_clusters)[:, None]
        uniform = uniform.reshape(-1)[row * width + column]

    rounding = _rounding(x, weights)

    def add(closest, uniform):
        candidates = _draw(uniform, weights * closest, weights)
        closer = jnp.minimum(closest[None], squared_distances(x, x[candidates]))
        best = _first_least(jnp.sum(weights[None] * closer, axis=1), rounding)
        return closer[best], candidates[best]

    first = _draw(uniform[0, :1], weights, weights)
    closest = squared_distances(x, x[first])[0]
    _, others = jax.lax.scan(add, closest, uniform[1:])
    return jnp.concatenate([first, others])


def _num_trials(num_clusters: int) -> int:
    return 2 + int(math.log(num_clusters))


def check_num_clusters(num_clusters: int, num_rows: int) -> None:
    # Before anything is traced: JAX adds lines of its own to what is raised within.
    if not 1 <= num_clusters <= num_rows:
        raise ValueError(
            f"num_clusters must be between 1 and the {num_rows} rows, "
            f"got {num_clusters}"
        )


def best_start(
    descend: Callable[[Float[Array, "K D"]], tuple[Float[Array, "K D"], Array]],
    key: PRNGKey,
    x: Float[Array, "N D"],
    weights: Float[Array, "N"],
    num_clusters: int,
    num_init: int,
    num_used: Int[Array, ""] | int | None = None,
) -> Float[Array, "K D"]:
    """Returns where the best of several seedings leads.

    Args:
        descend: centroids to begin with -> (centroids at the end, what they minimise).
        key: of the seeds.
        x: the rows.
        weights: of the rows.
        num_clusters: K.
        num_init: how many seedings.
        num_used: how many of the clusters begin at a row, the others at `UNUSED`.
    """

    def start(key):
        seeds = x[plus_plus(key, x, weights, num_clusters, num_used)]
        if num_used is not None:
            used = jnp.arange(num_clusters) < num_used
            seeds = jnp.where(used[:, None], seeds, UNUSED)
        return descend(seeds)

    centroids, objective = jax.vmap(start)(jax.random.split(key, num_init))
    # Seedings often meet in one optimum, numbered differently.
    return centroids[_first_least(objective, _rounding(x, weights))]


def _rounding(x: Float[Array, "N D"], weights: Float[Array, "N"]) -> Float[Array, ""]:
    """What the rows' distances together are rounded by, however small they are."""
    return 1e-6 * jnp.sum(weights * jnp.sum(x**2, axis=-1))


def _first_least(objective: Float[Array, "S"], rounding: Float[Array, ""]) -> Array:
    """The first of those that only rounding, which padding and batching change, tells
    from the least."""
    return jnp.argmax(objective <= objective.min() * (1 + 1e-5) + rounding)


def farthest_first(
    x: Float[Array, "N D"],
    weights: Float[Array, "N"],
    chosen: Bool[Array, "N"],
    num_clusters: int,
) -> Int[Array, "K"]:
    """Adds to some chosen rows the one farthest from all chosen, until there are K.

    Args:
        x: the rows.
        weights: 0 at rows that are never added.
        chosen: True at the rows to begin with, at least one and at most K.
        num_clusters: K.

    Returns:
        Which rows, those to begin with first, in their order.
    """
    begun = jnp.flatnonzero(chosen, size=num_clusters, fill_value=0)

    def add(rank, carry):
        rows, closest = carry
        farthest = jnp.argmax(jnp.where(weights > 0, closest, -1))
        row = jnp.where(rank < chosen.sum(), rows[rank], farthest)
        closer = squared_distances(x, x[row][None])[0]
        return rows.at[rank].set(row), jnp.minimum(closest, closer)

    carry = (begun, jnp.full(x.shape[0], jnp.inf))
    return jax.lax.fori_loop(0, num_clusters, add, carry)[0]


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
