"""What the server does, and what crosses the boundary between it and the clients."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from fcjax.types import Federation, PyTree


def weighted_mean(stacked: PyTree, weights: Float[Array, "M"]) -> PyTree:
    """Averages a tree over its leading client axis, as FedAvg does.

    Args:
        stacked: a tree of arrays [M, ...], parameters and batch statistics alike.
        weights: a weight of at least 0 for each client; need not sum to 1. A client
            of weight 0 changes nothing, whatever it holds.

    Returns:
        The tree without its leading axis; undefined (NaN) if all weights are 0.

    References:
        McMahan et al., `Communication-Efficient Learning of Deep Networks from
        Decentralized Data <https://arxiv.org/abs/1602.05629>`_, 2017, Algorithm 1;
        Eq. 8 of the CCFC paper.
    """
    share = weights / weights.sum()

    def mean(x: Shaped[Array, "M *S"]) -> Shaped[Array, "*S"]:
        # A failed client may hold NaN: 0 * NaN would let it through.
        column = share.reshape(-1, *(1,) * (x.ndim - 1))
        return jnp.sum(x * column, axis=0, where=column != 0)

    return jax.tree.map(mean, stacked)


def participants(
    federation: Federation, num_rounds: Int[Array, ""]
) -> Bool[Array, "M"]:
    """Returns who answers in the round after `num_rounds` rounds."""
    last = federation.present.shape[0] - 1
    return federation.present[jnp.minimum(num_rounds, last)]


def traffic(
    present: Bool[Array, "M"], *, up: dict[str, PyTree], down: dict[str, PyTree]
) -> dict[str, Int[Array, "2"]]:
    """Counts what a round sends between the server and the clients.

    Args:
        present: who takes part; nobody else sends or receives.
        up: by name, what one client uploads (arrays or their shapes).
        down: by name, what one client downloads.

    Returns:
        Metrics `up_<name>` and `down_<name>`, each a pair of the number of senders and
        the bytes of one message: their product overflows 32 bits where networks are
        large, so `total_bytes` takes it on the host.
    """
    senders = present.sum(dtype=jnp.int32)
    sizes = {f"up_{name}": num_bytes(tree) for name, tree in up.items()}
    sizes |= {f"down_{name}": num_bytes(tree) for name, tree in down.items()}
    return {name: jnp.stack([senders, jnp.int32(n)]) for name, n in sizes.items()}


def num_bytes(tree: PyTree) -> int:
    """Returns the size of a message: the bytes of all arrays of a tree."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def total_bytes(pairs: np.ndarray) -> np.ndarray:
    """Returns the bytes [...] of the pairs [..., 2] that `traffic` counted."""
    return np.asarray(np.prod(np.asarray(pairs, np.int64), axis=-1))
