"""Networks of feature vectors, for tables."""

from collections.abc import Sequence

from flax import linen as nn

from fcjax.models.initializers import Dense
from fcjax.models.norm import batch_norm
from fcjax.models.simsiam import simsiam
from fcjax.types import Network


def mlp_simsiam(
    *,
    widths: Sequence[int] = (256, 256),
    hidden_size: int = 256,
    latent_size: int = 256,
    bottleneck: int = 16,
) -> Network:
    """Builds a `simsiam` of feature vectors, CCFC's projector and predictor included.

    The paper has images only: here dense layers take the place of its convolutions.

    Args:
        widths: features of the encoder's layers, see `MLP`.
        hidden_size: width of the projector's hidden layer.
        latent_size: D, the size of projections z and predictions p.
        bottleneck: width of the predictor's hidden layer.

    Returns:
        A `Network` from vectors [B, F] in [0, 1] to (z [B, D], p [B, D]).

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> network, x = mlp_simsiam(widths=(8,), latent_size=4), jnp.zeros((3, 6))
        >>> def outputs(key):
        ...     return network.apply(network.init(key, x), x, train=False)[0]
        >>> z, p = jax.eval_shape(outputs, jax.random.key(0))
        >>> z.shape, p.shape
        ((3, 4), (3, 4))
    """
    return simsiam(
        MLP(tuple(widths)),
        hidden_size=hidden_size,
        latent_size=latent_size,
        bottleneck=bottleneck,
    )


class MLP(nn.Module):
    """Encodes vectors [B, F]: dense layer, batch norm and leaky ReLU 0.2 a width.

    A Linen module, from float vectors to features [B, widths[-1]] of any value;
    `encoder` makes a `Network` of it.

    Attributes:
        widths: features of the layers.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from fcjax.models import encoder
        >>> network, x = encoder(MLP((8, 4))), jnp.zeros((3, 6))
        >>> network.apply(network.init(jax.random.key(0), x), x, train=False)[0].shape
        (3, 4)
    """

    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x, *, train, mask):
        for features in self.widths:
            x = batch_norm(Dense(features)(x), train=train, mask=mask)
            x = nn.leaky_relu(x, 0.2)
        return x
