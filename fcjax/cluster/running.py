"""Centroids as running means of the examples that have come by.

References:
    Yang et al., `Towards K-means-friendly Spaces: Simultaneous Deep Learning and
    Clustering <https://arxiv.org/abs/1610.04794>`_ (DCN), ICML 2017, its update of the
    centroids; code boyangumn/DCN-New.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def running_means(
    centroids: Float[Array, "K D"],
    counts: Float[Array, "K"],
    x: Float[Array, "B D"],
    assignments: Int[Array, "B"],
    *,
    mask: Bool[Array, "B"] | None = None,
) -> tuple[Float[Array, "K D"], Float[Array, "K"]]:
    """Moves each centroid by the rows that are assigned to it.

    What DCN's code does row by row, count += 1 and c += (x - c) / count, in any order
    of the rows and at once: (count c + sum of m rows) / (count + m).

    Args:
        centroids: where they are.
        counts: how many rows each stands for, at least 0; the more, the slower it
            moves. DCN's code starts at 100. Whole numbers stay exact up to 2^24, about
            17 million; above, float32 rounds how many are added, and single rows may
            no longer be counted, though they still move the centroid.
        x: the rows; computed in float32.
        assignments: the cluster of each row; a row whose cluster is outside [0, K)
            counts nowhere.
        mask: False at rows that count nowhere; all rows count by default.

    Returns:
        The centroids [K, D] and counts [K], float32; a cluster without a row keeps both
        exactly as they are.

    Examples:
        >>> centroids, counts = jnp.array([[0.0], [1.0]]), jnp.array([1.0, 1.0])
        >>> x, assignments = jnp.array([[3.0], [6.0]]), jnp.array([0, 0])
        >>> centroids, counts = running_means(centroids, counts, x, assignments)
        >>> print(centroids[:, 0], counts)  # (0 + 3 + 6) / 3; no row of the second
        [3. 1.] [3. 1.]
    """
    centroids = centroids.astype(jnp.float32)
    members = assignments[None] == jnp.arange(len(centroids))[:, None]
    if mask is not None:
        members &= mask[None]
    # Steps from its own centroid: count * c / count is not always c.
    steps = x.astype(jnp.float32) - centroids[assignments]
    steps = jnp.where(members.any(axis=0)[:, None], steps, 0)
    sums = jnp.matmul(
        members.astype(jnp.float32), steps, precision=jax.lax.Precision.HIGHEST
    )
    counts = counts.astype(jnp.float32) + members.sum(axis=1)
    # A count of 0 has no rows now either: 0 / 0.
    return centroids + sums / jnp.maximum(counts, 1)[:, None], counts
