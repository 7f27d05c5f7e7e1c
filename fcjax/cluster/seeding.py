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


def plus_plus(
    key: PRNGKey, x: Float[Array, "N D"], weights: Float[Array, "N"], num_clusters: int
) -> Int[Array, "K"]:
    """Draws far-apart rows: of a few candidates, each time the one that helps most.

    Returns:
        Which rows, none of weight 0; some repeat where fewer are distinct.
    """
    num_trials = 2 + int(math.log(num_clusters))
    uniform = jax.random.uniform(key, (num_clusters, num_trials))

    def add(closest, uniform):
        candidates = _draw(uniform, weights * closest, weights)
        closer = jnp.minimum(closest[None], squared_distances(x, x[candidates]))
        best = jnp.argmin(jnp.sum(weights[None] * closer, axis=1))
        return closer[best], candidates[best]

    first = _draw(uniform[0, :1], weights, weights)
    closest = squared_distances(x, x[first])[0]
    _, others = jax.lax.scan(add, closest, uniform[1:])
    return jnp.concatenate([first, others])


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
) -> Float[Array, "K D"]:
    """Returns where the best of several seedings leads.

    Args:
        descend: centroids to begin with -> (centroids at the end, what they minimise).
        key: of the seeds.
        x: the rows.
        weights: of the rows.
        num_clusters: K.
        num_init: how many seedings.
    """

    def start(key):
        return descend(x[plus_plus(key, x, weights, num_clusters)])

    centroids, objective = jax.vmap(start)(jax.random.split(key, num_init))
    # Seedings often meet in one optimum, numbered differently: rounding, which padding
    # and batching change, must not choose between them.
    best = jnp.argmax(objective <= objective.min() * (1 + 1e-5))
    return centroids[best]


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
