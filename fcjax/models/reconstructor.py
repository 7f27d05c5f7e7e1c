"""The small auto-encoder by which FedCRef knows a cluster, as one network.

FedCRef, Table 2: d-100-64-32-64-100-d, ReLU after every hidden layer, the code
included, and a sigmoid at the end; 174,840 parameters for d = 784. The paper does not
say how weights start; its code has Keras's default, uniform by Glorot and no biases.
"""

from collections.abc import Sequence

import jax
from flax import linen as nn

from fcjax.models.network import from_linen
from fcjax.types import Network


def reconstructor(
    num_features: int, *, widths: Sequence[int] = (100, 64, 32, 64, 100)
) -> Network:
    """Builds the auto-encoder of rows.

    Args:
        num_features: F.
        widths: of the hidden layers.

    Returns:
        A `Network` from rows [B, F] in [0, 1] to their reconstructions [B, F], in
        (0, 1).

    References:
        FedCRef, Table 2.

    Examples:
        >>> import jax.numpy as jnp
        >>> network, x = reconstructor(784), jnp.zeros((1, 784))
        >>> weights = jax.eval_shape(network.init, jax.random.key(0), x)
        >>> sum(w.size for w in jax.tree.leaves(weights))  # as the paper counts them
        174840
    """
    return from_linen(Reconstructor(tuple(widths), num_features))


class Reconstructor(nn.Module):
    """Dense layers with ReLU between them and a sigmoid at the end."""

    widths: tuple[int, ...]
    out_features: int

    @nn.compact
    def __call__(self, x, *, train, mask):
        del train, mask
        for features in self.widths:
            x = jax.nn.relu(self.dense(features)(x))
        return jax.nn.sigmoid(self.dense(self.out_features)(x))

    @staticmethod
    def dense(features):
        return nn.Dense(features, kernel_init=nn.initializers.glorot_uniform())
