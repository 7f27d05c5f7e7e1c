"""The CCFC network: a convolutional SimSiam for small grey images.

Layers and sizes follow the authors' code (github.com/Jarvisyan/CCFC-pytorch), padding
1 in every convolution included: 28x28 images pass through 14, 7 and 3 pixels a side.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn

from fcjax.models.conv import Conv
from fcjax.models.initializers import Dense
from fcjax.models.network import from_linen
from fcjax.types import Network


def simsiam(
    *,
    channels: Sequence[int] = (64, 128, 256),
    hidden_size: int = 256,
    latent_size: int = 256,
    bottleneck: int = 16,
) -> Network:
    """Builds the network that maps images to projections and predictions.

    Args:
        channels: features of the encoder's convolutions (kernel 4, stride 2,
            padding 1, batch norm, leaky ReLU 0.2); each halves the image.
        hidden_size: width of the projector's hidden layer.
        latent_size: D, the size of projections z and predictions p.
        bottleneck: width of the predictor's hidden layer.

    Returns:
        A `Network` from images [B, H, W, C] in [0, 1] to (z [B, D], p [B, D]).
    """
    return from_linen(SimSiam(tuple(channels), hidden_size, latent_size, bottleneck))


class SimSiam(nn.Module):
    """Encoder, projector and predictor; see `simsiam`."""

    channels: tuple[int, ...]
    hidden_size: int
    latent_size: int
    bottleneck: int

    @nn.compact
    def __call__(self, x, *, train, mask):
        def norm(x, axis, **options):
            return nn.BatchNorm(
                use_running_average=not train,
                axis=axis,
                momentum=0.9,
                epsilon=1e-5,
                use_fast_variance=False,
                **options,
            )(x, mask=counted(x, axis))

        def counted(x, axis):
            if mask is None:
                return None
            batch_axis = 1 if axis == 0 else 0
            shape = [-1 if i == batch_axis else 1 for i in range(x.ndim)]
            return mask.reshape(shape)

        x = jnp.transpose(x, (3, 0, 1, 2))
        for features in self.channels:
            x = norm(Conv(features, size=4, stride=2, padding=1)(x), 0)
            x = nn.leaky_relu(x, 0.2)
        x = jnp.moveaxis(x, 0, -1).reshape(x.shape[1], -1)

        x = jax.nn.relu(norm(Dense(self.hidden_size)(x), -1))
        z = norm(Dense(self.latent_size)(x), -1, use_scale=False, use_bias=False)
        x = jax.nn.relu(norm(Dense(self.bottleneck)(z), -1))
        return z, Dense(self.latent_size)(x)
