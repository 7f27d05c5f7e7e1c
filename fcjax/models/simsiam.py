"""SimSiam over any encoder, and CCFC's convolutional one for small grey images.

Layers and sizes follow the authors' code (github.com/Jarvisyan/CCFC-pytorch), padding
1 in every convolution included: 28x28 images pass through 14, 7 and 3 pixels a side.
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from fcjax.models.conv import Conv
from fcjax.models.initializers import Dense
from fcjax.models.network import from_linen
from fcjax.models.norm import batch_norm
from fcjax.types import Network

Encoder = Callable[..., Float[Array, "B F"]]
"""(x [B, *S], *, train, mask) -> features [B, F]: a Linen module, or a function of
layers that become the calling module's own."""


def simsiam(
    encoder: Encoder,
    *,
    hidden_size: int = 256,
    latent_size: int = 256,
    bottleneck: int = 16,
) -> Network:
    """Builds the network that maps examples to projections and predictions.

    Args:
        encoder: maps examples to features, as `conv_encoder(channels)` or an `MLP`.
        hidden_size: width of the projector's hidden layer.
        latent_size: D, the size of projections z and predictions p.
        bottleneck: width of the predictor's hidden layer.

    Returns:
        A `Network` from what the encoder takes to (z [B, D], p [B, D]) of any value.

    References:
        Chen and He, `Exploring Simple Siamese Representation Learning
        <https://arxiv.org/abs/2011.10566>`_, 2021, section 3; its sizes here are those
        of CCFC's code.

    Examples:
        >>> import jax.numpy as jnp
        >>> network = simsiam(conv_encoder((4, 8)), hidden_size=8, latent_size=4)
        >>> x = jnp.zeros((2, 8, 8, 1))
        >>> def outputs(key):
        ...     return network.apply(network.init(key, x), x, train=False)[0]
        >>> z, p = jax.eval_shape(outputs, jax.random.key(0))
        >>> z.shape, p.shape
        ((2, 4), (2, 4))
    """
    return from_linen(SimSiam(encoder, hidden_size, latent_size, bottleneck))


class SimSiam(nn.Module):
    """Encoder, projector and predictor; see `simsiam`."""

    encoder: Encoder
    hidden_size: int
    latent_size: int
    bottleneck: int

    @nn.compact
    def __call__(self, x, *, train, mask):
        norm = partial(batch_norm, train=train, mask=mask)
        x = self.encoder(x, train=train, mask=mask)
        x = jax.nn.relu(norm(Dense(self.hidden_size)(x)))
        z = norm(Dense(self.latent_size)(x), affine=False)
        x = jax.nn.relu(norm(Dense(self.bottleneck)(z)))
        return z, Dense(self.latent_size)(x)


def conv_encoder(channels: Sequence[int] = (64, 128, 256)) -> Encoder:
    """Builds CCFC's encoder of images [B, H, W, C] in [0, 1].

    Args:
        channels: features of its convolutions (kernel 4, stride 2, padding 1, batch
            norm, leaky ReLU 0.2); each halves the image, and the last one's are
            flattened.

    Returns:
        The encoder. It is no Linen module, whose layers would be called otherwise
        and so be drawn otherwise from the same seed.

    Examples:
        >>> import jax.numpy as jnp
        >>> from fcjax.models import encoder
        >>> network, x = encoder(conv_encoder((4, 8))), jnp.zeros((2, 28, 28, 1))
        >>> def outputs(key):
        ...     return network.apply(network.init(key, x), x, train=False)[0]
        >>> jax.eval_shape(outputs, jax.random.key(0)).shape  # 7 * 7 * 8
        (2, 392)
    """

    def encode(x, *, train, mask):
        for features in channels:
            x = Conv(features, size=4, stride=2, padding=1)(x)
            x = batch_norm(x, train=train, mask=mask)
            x = nn.leaky_relu(x, 0.2)
        return x.reshape(len(x), -1)

    return encode
