"""Clusters of nearly equal size, by Sinkhorn and Knopp's scaling of scores.

References:
    Cuturi, Sinkhorn distances, NIPS 2013; Asano, Rupprecht and Vedaldi,
    Self-labelling via simultaneous clustering and representation learning, ICLR 2020.
    Lubana, Tang, Kawsar, Dick and Mathur, `Orchestra
    <https://arxiv.org/abs/2205.11506>`_, ICML 2022; code akhilmathurs/orchestra.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from fcjax.cluster.seeding import check_num_clusters
from fcjax.losses import normalize
from fcjax.types import PRNGKey, Scalar

EVERY = 10
"""Iterations after which it is asked whether the scaling still changes."""
LEAST = 1e-30
"""Of the softmax: what underflows in all rows would leave a column nothing to scale."""


def sinkhorn(
    scores: Float[Array, "N K"],
    *,
    sharpness: Scalar = 25.0,
    num_iters: int = 100,
    tolerance: Scalar = 1e-2,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, "N K"]:
    """Soft assignments in which all clusters have as much, as far as they can.

    Scales softmax(sharpness * scores) by turns so that its columns sum to N / K and its
    rows to 1. As the rows come last, theirs are exact, and the columns' only at
    convergence: of tight clusters some ten iterations leave them far off.

    Args:
        scores: such as cosines of rows to centroids.
        sharpness: the inverse of the entropic regularisation.
        num_iters: upper bound of the iterations.
        tolerance: they stop once no more than this, summed over the rows, changes in
            the share of their scaling; looked at before the first and then every
            tenth iteration, as in Orchestra's code.
        mask: False at rows that count nowhere; all count by default.

    Returns:
        float32 [N, K], in [0, 1]: rows sum to 1, masked rows are 0.

    Examples:
        >>> scores = jnp.array([[1.0, 0.9], [1.0, 0.8]])  # both are nearer to the first
        >>> print(sinkhorn(scores, tolerance=1e-6).round(2))
        [[0.22 0.78]
         [0.78 0.22]]
    """
    shares = jax.nn.softmax(sharpness * scores.astype(jnp.float32), axis=1)
    shares = jnp.maximum(shares, LEAST)
    kept = jnp.ones(len(scores), bool) if mask is None else mask
    count = jnp.maximum(kept.sum(), 1)
    shares = jnp.where(kept[:, None], shares, 0)

    def iterate(carry):
        i, rows, _, change = carry
        columns = 1 / scores.shape[1] / (rows @ shares)
        sums = jnp.where(kept, shares @ columns, 1)
        new = jnp.where(kept, 1 / count / sums, 0)
        moved = jnp.sum(jnp.abs(jnp.where(kept, rows * count * sums - 1, 0)))
        return i + 1, new, columns, jnp.where(i % EVERY == 0, moved, change)

    def unfinished(carry):
        i, *_, change = carry
        return (change >= tolerance) & (i < num_iters)

    begin = jnp.where(kept, 1 / count, 0.0), jnp.zeros(scores.shape[1])
    start = 0, *begin, jnp.float32(jnp.inf)
    _, rows, columns, _ = lax.while_loop(unfinished, iterate, start)
    return count * rows[:, None] * shares * columns[None]


def equal_clusters(
    key: PRNGKey,
    x: Float[Array, "N D"],
    num_clusters: int,
    *,
    sharpness: Scalar = 25.0,
    num_rounds: int = 5,
    num_iters: int = 10,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, "K D"]:
    """Unit centroids of clusters of roughly equal size.

    From random rows on, by turns: rows go to the cluster of their largest `sinkhorn`
    share, and a centroid to the direction of the mean of its rows; one without any to
    that of a random row. Orchestra's local clustering.

    Args:
        key: of the draws.
        x: rows of unit length.
        num_clusters: K, at most N.
        sharpness, num_iters: of `sinkhorn`.
        num_rounds: turns.
        mask: False at rows that count nowhere; all count by default. Where fewer than K
            do, some centroids begin at the same row.

    Raises:
        ValueError: if num_clusters is below 1 or above N.

    Examples:
        >>> x = jnp.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> print(jnp.sort(equal_clusters(jax.random.key(0), x, 2), axis=0))
        [[0. 0.]
         [1. 1.]]
    """
    check_num_clusters(num_clusters, len(x))
    kept = jnp.ones(len(x), bool) if mask is None else mask
    x = jnp.where(kept[:, None], x.astype(jnp.float32), 0)
    count = jnp.maximum(kept.sum(), 1)

    def drawn(key):
        draws = jax.random.uniform(key, (len(x),))
        order = jnp.argsort(jnp.where(kept, draws, jnp.inf))
        return x[order[jnp.arange(num_clusters) % count]]

    def improve(centroids, key):
        cosines = jnp.matmul(x, centroids.T, precision=lax.Precision.HIGHEST)
        shares = sinkhorn(cosines, sharpness=sharpness, num_iters=num_iters, mask=mask)
        nearest = jnp.argmax(shares, axis=1)
        members = jax.nn.one_hot(nearest, num_clusters) * kept[:, None]
        sums = jnp.matmul(members.T, x, precision=lax.Precision.HIGHEST)
        is_empty = members.sum(axis=0) == 0
        return normalize(jnp.where(is_empty[:, None], drawn(key), sums)), None

    keys = jax.random.split(key, num_rounds + 1)
    return lax.scan(improve, normalize(drawn(keys[0])), keys[1:])[0]
