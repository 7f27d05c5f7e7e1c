"""The convolutional auto-encoder of deep subspace clustering: DSC-Net's and FDSC's.

Ji et al., Deep Subspace Clustering Networks (NIPS 2017), and its code (github.com/
panji1990/Deep-subspace-clustering-networks): convolutions of stride 2 and their mirror,
ReLU after every layer, the last one included, no batch norm; Xavier's uniform kernels,
biases from 0. That code pads even sides by one zero less before than after, here it is
(k - 1) / 2 on every side. FDSC states two layers for the encoder, two for the decoder
and nothing more: [choice] 20 and 10 channels, kernels 5 and 3, and 4 in the decoder.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn

from fcjax.models.autoencoder import AutoEncoder
from fcjax.models.conv import Conv
from fcjax.models.conv_transpose import ConvTranspose
from fcjax.models.network import from_linen

INIT = nn.initializers.glorot_uniform()


def conv_autoencoder(
    image_shape: tuple[int, int, int],
    *,
    channels: Sequence[int] = (20, 10),
    kernel_sizes: Sequence[int] = (5, 3),
) -> AutoEncoder:
    """Builds the auto-encoder of images [B, H, W, C].

    The encoder halves an image once a layer and rounds up; the decoder doubles as
    often, and its image is cut to the size at the bottom and on the right.

    Args:
        image_shape: H, W and C of an image.
        channels: features of the encoder's layers; the decoder has them in reverse.
        kernel_sizes: of the encoder's layers, odd.

    Returns:
        The encoder from float images [B, H, W, C] to codes [B, D] of at least 0 and
        the decoder back, to images of at least 0. D is ceil(H / 2^L) * ceil(W / 2^L)
        * channels[-1] for L layers: for two ceil(H / 4) * ceil(W / 4) * channels[-1].

    Raises:
        ValueError: if channels and kernels differ in number, a kernel is even, or a
            layer would halve a single pixel.

    Examples:
        >>> network = conv_autoencoder((28, 28, 1)).encoder
        >>> x = jnp.zeros((2, 28, 28, 1))
        >>> def outputs(key):
        ...     return network.apply(network.init(key, x), x, train=False)[0]
        >>> jax.eval_shape(outputs, jax.random.key(0)).shape  # 7 * 7 * 10
        (2, 490)
    """
    height, width, _ = image_shape
    layers = len(channels)
    if not layers or layers != len(kernel_sizes):
        raise ValueError(
            "channels and kernel_sizes have one entry for each layer and at least one "
            f"layer, got {tuple(channels)} and {tuple(kernel_sizes)}"
        )
    if any(size < 1 or size % 2 == 0 for size in kernel_sizes):
        raise ValueError(f"kernel_sizes are odd, got {tuple(kernel_sizes)}")
    smallest = 2 ** (layers - 1) + 1
    if min(height, width) < smallest:
        raise ValueError(
            f"an encoder of {layers} layers halves images of at least {smallest} "
            f"pixels a side, got {height}x{width}"
        )
    return AutoEncoder(
        encoder=from_linen(ConvEncoder(tuple(channels), tuple(kernel_sizes))),
        decoder=from_linen(ConvDecoder(image_shape, tuple(channels))),
    )


class ConvEncoder(nn.Module):
    """From images to codes; see `conv_autoencoder`."""

    channels: tuple[int, ...]
    kernel_sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, x, *, train, mask):
        del train, mask
        for features, size in zip(self.channels, self.kernel_sizes, strict=True):
            x = Conv(
                features,
                size,
                stride=2,
                padding=size // 2,
                kernel_init=INIT,
                bias_init=nn.initializers.zeros,
            )(x)
            x = jax.nn.relu(x)
        return jnp.moveaxis(x, 3, 1).reshape(len(x), -1)


class ConvDecoder(nn.Module):
    """From codes to images; see `conv_autoencoder`."""

    image_shape: tuple[int, int, int]
    channels: tuple[int, ...]

    @nn.compact
    def __call__(self, x, *, train, mask):
        del train, mask
        height, width, colours = self.image_shape
        *inner, features = self.channels
        step = 2 ** len(self.channels)
        x = x.reshape(-1, features, -(-height // step), -(-width // step))
        x = jnp.moveaxis(x, 1, 3)
        for features in (*reversed(inner), colours):
            x = jax.nn.relu(ConvTranspose(features, INIT)(x))
        return x[:, :height, :width]
