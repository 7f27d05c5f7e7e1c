"""Generative adversarial networks: what SDA-FC's clients send instead of their data.

Layers and sizes of `dcgan` at 28x28 follow the authors' code (github.com/Jarvisyan/
SDA-FC), those of `mlp_gan` the Pendigits network of their later work (github.com/
Jarvisyan/CCEGAN-pytorch). In both all weights start from N(0, 0.02) and all biases
from 0. Layers that a batch norm follows have no bias here: the mean that is taken off
takes a bias off with it, so it changes nothing.

Networks for other images than 28x28 are not public: [choice] the same pattern, with
more stages for larger images.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from fcjax.models.conv import Conv
from fcjax.models.conv_transpose import ConvTranspose
from fcjax.models.network import from_linen
from fcjax.models.norm import batch_norm
from fcjax.types import Network

INIT = nn.initializers.normal(0.02)
SMALLEST = 8
"""The longest side, in pixels, from which a generator begins to double."""


class Gan(NamedTuple):
    """Two networks, each with variables of its own.

    Examples:
        >>> gan, noise = mlp_gan(6, widths=(4,)), jnp.zeros((3, 2))
        >>> variables = gan.generator.init(jax.random.key(0), noise)
        >>> gan.generator.apply(variables, noise, train=False)[0].shape
        (3, 6)
    """

    generator: Network
    """From noise [B, L], the one-hot category first, to examples [B, *F] in [0, 1];
    L is that of the noise in `init`."""
    discriminator: Network
    """From examples [B, *F] in [0, 1] to logits [B], large where they look real."""


def dcgan(
    shape: tuple[int, int, int], *, channels: int = 64, hidden_size: int = 1024
) -> Gan:
    """Builds the convolutional GAN of images [B, H, W, C].

    The generator's two dense layers draw an image of at most 8 pixels a side, which
    two transposed convolutions or more double to its size; the discriminator halves
    it by one convolution more, and two dense layers judge the rest. Every layer but
    the last is followed by batch norm and ReLU, leaky by 0.2 in the discriminator.

    Args:
        shape: height, width and colours of an image.
        channels: features of the generator's last hidden image and of the
            discriminator's first; each step further inside doubles them.
        hidden_size: width of the hidden dense layer in each.

    Returns:
        The generator of images [B, H, W, C] in [0, 1] and the discriminator of them.

    Raises:
        ValueError: if the images cannot be halved so often without a remainder.

    Examples:
        >>> network = dcgan((28, 28, 1), channels=4).discriminator
        >>> x = jnp.zeros((2, 28, 28, 1))
        >>> def outputs(key):
        ...     return network.apply(network.init(key, x), x, train=False)[0]
        >>> jax.eval_shape(outputs, jax.random.key(0)).shape
        (2,)
    """
    doublings = _doublings(shape)
    return Gan(
        generator=from_linen(Generator(shape, doublings, channels, hidden_size)),
        discriminator=from_linen(Discriminator(doublings + 1, channels, hidden_size)),
    )


def _doublings(shape: tuple[int, int, int]) -> int:
    height, width, _ = shape
    doublings = 2
    while max(height, width) > SMALLEST * 2**doublings:
        doublings += 1
    step = 2**doublings
    # The discriminator halves once more than the generator doubles.
    if height % step or width % step or min(height, width) < 2 * step:
        raise ValueError(
            f"a generator that doubles {doublings} times makes images whose sides are "
            f"multiples of {step} and at least {2 * step}, got {height}x{width}; "
            "resize them, for example to 32x32"
        )
    return doublings


class Generator(nn.Module):
    """From noise to images; see `dcgan`."""

    shape: tuple[int, int, int]
    doublings: int
    channels: int
    hidden_size: int

    @nn.compact
    def __call__(self, x, *, train, mask):
        norm = partial(batch_norm, train=train, mask=mask)
        height, width, colours = self.shape
        height, width = height // 2**self.doublings, width // 2**self.doublings
        *inner, features = [self.channels * 2**i for i in range(self.doublings)]

        x = jax.nn.relu(norm(_dense(self.hidden_size)(x)))
        x = jax.nn.relu(norm(_dense(features * height * width)(x)))
        x = jnp.moveaxis(x.reshape(-1, features, height, width), 1, 3)
        for features in reversed(inner):
            x = ConvTranspose(features, INIT, use_bias=False)(x)
            x = jax.nn.relu(norm(x))
        return jax.nn.sigmoid(ConvTranspose(colours, INIT)(x))


class Discriminator(nn.Module):
    """From images to logits; see `dcgan`."""

    halvings: int
    channels: int
    hidden_size: int

    @nn.compact
    def __call__(self, x, *, train, mask):
        norm = partial(batch_norm, train=train, mask=mask)
        for i in range(self.halvings):
            x = Conv(
                self.channels * 2**i,
                size=4,
                stride=2,
                padding=1,
                use_bias=False,
                kernel_init=INIT,
            )(x)
            x = nn.leaky_relu(norm(x), 0.2)
        x = jnp.moveaxis(x, 3, 1).reshape(len(x), -1)
        x = nn.leaky_relu(norm(_dense(self.hidden_size)(x)), 0.2)
        return _dense(1, use_bias=True)(x)[:, 0]


def mlp_gan(num_features: int, *, widths: Sequence[int] = (256, 256)) -> Gan:
    """Builds the GAN of feature vectors [B, F].

    The authors' later discriminator has an output for each category more, which
    SDA-FC's on images has not: [choice] here it has the single logit.

    Args:
        num_features: F.
        widths: features of the hidden layers of each network, dense with batch norm
            and leaky ReLU 0.2.

    Returns:
        The generator of vectors [B, F] in [0, 1] and the discriminator of them.

    Examples:
        >>> network, x = mlp_gan(6, widths=(4,)).discriminator, jnp.zeros((3, 6))
        >>> variables = network.init(jax.random.key(0), x)
        >>> network.apply(variables, x, train=False)[0].shape
        (3,)
    """
    return Gan(
        generator=from_linen(VectorGenerator(num_features, tuple(widths))),
        discriminator=from_linen(VectorDiscriminator(tuple(widths))),
    )


class VectorGenerator(nn.Module):
    """From noise to feature vectors; see `mlp_gan`."""

    num_features: int
    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x, *, train, mask):
        x = _hidden_layers(x, self.widths, train, mask)
        return jax.nn.sigmoid(_dense(self.num_features, use_bias=True)(x))


class VectorDiscriminator(nn.Module):
    """From feature vectors to logits; see `mlp_gan`."""

    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x, *, train, mask):
        x = _hidden_layers(x, self.widths, train, mask)
        return _dense(1, use_bias=True)(x)[:, 0]


def _hidden_layers(x, widths, train, mask):
    for features in widths:
        x = batch_norm(_dense(features)(x), train=train, mask=mask)
        x = nn.leaky_relu(x, 0.2)
    return x


def _dense(features, *, use_bias=False):
    return nn.Dense(features, use_bias=use_bias, kernel_init=INIT)
