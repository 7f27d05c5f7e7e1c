"""Connected components of a graph given as a matrix, under jit and vmap."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int


def connected_components(edges: Bool[Array, "V V"]) -> Int[Array, "V"]:
    """Numbers the connected components of a graph.

    Every node takes the smallest number among its neighbours', then that of the node of
    this number, until nothing changes: at most as many passes as the longest of the
    shortest paths, and far fewer on long ones.

    Args:
        edges: symmetric; what stands on the diagonal is of no matter.

    Returns:
        int32 [V], for every node the smallest node that it is connected with, itself if
        it has no edge: equal numbers are one component.

    Examples:
        >>> edges = jnp.zeros((4, 4), bool).at[1, 3].set(True)
        >>> print(connected_components(edges | edges.T))
        [0 1 2 1]
    """
    nodes = jnp.arange(len(edges), dtype=jnp.int32)

    def spread(carry):
        labels, _ = carry
        around = jnp.where(edges, labels[None], labels[:, None]).min(axis=1)
        least = jnp.minimum(labels, around)
        least = jnp.minimum(least, least[least])
        return least, jnp.any(least != labels)

    labels, _ = lax.while_loop(lambda carry: carry[1], spread, (nodes, jnp.array(True)))
    return labels
