"""Which samples are near each other.

References:
    The graph A of FDSC's Eq. 7, over raw samples.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


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
