"""How well rows lie in their clusters, and how many clusters that speaks for.

References:
    Rousseeuw, Silhouettes: a graphical aid to the interpretation and validation of
    cluster analysis, 1987.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fcjax.cluster.distances import clear, origin, row_weights, squared_distances
from fcjax.cluster.kmeans import kmeans
from fcjax.types import PRNGKey


def silhouette(
    x: Float[Array, "N D"],
    assignments: Int[Array, "N"],
    *,
    num_clusters: int,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, ""]:
    """The mean silhouette coefficient by Euclidean distances, all N x N at once.

    That of a row is (b - a) / max(a, b), where a is its mean distance to the others of
    its cluster and b that to the cluster nearest in this sense; 0 for a row that is
    alone in its cluster, as in scikit-learn.

    Args:
        x: the rows; computed in float32.
        assignments: their clusters, in [0, num_clusters); some may be empty.
        num_clusters: K.
        mask: False at rows to leave out, which may hold anything; all count by default.

    Returns:
        float32 in [-1, 1]; 0 where fewer than two clusters have a row.

    Examples:
        >>> x = jnp.array([[0.0], [1.0], [10.0], [11.0]])
        >>> coefficient = silhouette(x, jnp.array([0, 0, 1, 1]), num_clusters=2)
        >>> print(f"{coefficient:.3f}")  # the mean of 9.5 / 10.5 and 8.5 / 9.5
        0.900
    """
    weights = row_weights(x, mask, None)
    return _coefficient(_distances(x, weights), assignments, num_clusters, weights)


def count_clusters(
    key: PRNGKey,
    x: Float[Array, "N D"],
    *,
    most: int,
    mask: Bool[Array, "N"] | None = None,
    num_init: int = 10,
) -> Int[Array, ""]:
    """The number of clusters whose k-means has the largest mean silhouette.

    Args:
        key: of the seedings.
        x: the rows to cluster.
        most: the largest number to try, from 2 to N.
        mask: False at rows to leave out, which may hold anything; all count by default.
        num_init: seedings of each k-means.

    Returns:
        int32 in 2..most, the smallest of equally good ones.

    Raises:
        ValueError: if most is below 2 or above N.

    Examples:
        >>> x = jnp.array([[0.0], [1.0], [10.0], [11.0], [20.0], [21.0]])
        >>> print(count_clusters(jax.random.key(0), x, most=4))
        3
    """
    if not 2 <= most <= len(x):
        raise ValueError(f"most must be between 2 and the {len(x)} rows, got {most}")
    weights = row_weights(x, mask, None)
    distances = _distances(x, weights)

    def score(num_used):
        found = kmeans(key, x, most, num_used=num_used, mask=mask, num_init=num_init)
        return _coefficient(distances, found.assignments, most, weights)

    return 2 + jnp.argmax(jax.lax.map(score, jnp.arange(2, most + 1))).astype(jnp.int32)


def _distances(
    x: Float[Array, "N D"], weights: Float[Array, "N"]
) -> Float[Array, "N N"]:
    x = x.astype(jnp.float32)
    rows = clear(x - origin(x, weights), weights)
    itself = jnp.eye(len(x), dtype=bool)
    return jnp.sqrt(jnp.where(itself, 0, squared_distances(rows, rows)))


def _coefficient(
    distances: Float[Array, "N N"],
    assignments: Int[Array, "N"],
    num_clusters: int,
    weights: Float[Array, "N"],
) -> Float[Array, ""]:
    own = assignments[:, None] == jnp.arange(num_clusters)[None]
    members = own * weights[:, None]
    sizes = members.sum(axis=0)[None]
    sums = jnp.matmul(distances, members, precision=jax.lax.Precision.HIGHEST)
    # A row is among its own cluster's, at a distance of 0.
    within = jnp.sum(own * sums / jnp.maximum(sizes - 1, 1), axis=1)
    others = jnp.where(own | (sizes == 0), jnp.inf, sums / jnp.maximum(sizes, 1))
    nearest = others.min(axis=1)
    larger = jnp.maximum(within, nearest)
    alone = jnp.sum(own * sizes, axis=1) <= 1
    # Equal rows in two clusters have no silhouette, nor have those of the only one.
    defined = ~alone & (larger > 0) & jnp.isfinite(larger) & (weights > 0)
    coefficients = jnp.where(defined, (nearest - within) / larger, 0)
    return coefficients.sum() / jnp.maximum(weights.sum(), 1)
