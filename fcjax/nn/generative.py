"""Generative networks: GANs and RealNVP.

Generative adversarial networks: what SDA-FC's clients send instead of their data.

Layers and sizes of `dcgan` at 28x28 follow the authors' code (github.com/Jarvisyan/
SDA-FC), those of `mlp_gan` the Pendigits network of their later work (github.com/
Jarvisyan/CCEGAN-pytorch). In both all weights start from N(0, 0.02) and all biases
from 0. Layers that a batch norm follows have no bias here: the mean that is taken off
takes a bias off with it, so it changes nothing.

Networks for other images than 28x28 are not public: [choice] the same pattern, with
more stages for larger images.

RealNVP: a density that can be evaluated exactly, sampled and inverted.

Dinh, Sohl-Dickstein, Bengio: Density estimation using Real NVP (ICLR 2017,
https://arxiv.org/abs/1605.08803), Eq. 4 to 9, at a single scale, as UIFCA has it:
FedCRef's footnote 3 gives six affine couplings with alternating checkerboard masks, the
scale through tanh and the shift linear, both from one network of three hidden layers.
[choice] Hidden kernels start as Glorot's uniform, biases from 0; the scale's tanh is
multiplied by a learned factor a feature, from 1; the last layers start from 0, so that
a flow begins as the identity.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax
from jaxtyping import Array, Bool, Float

from fcjax.nn.layers import Conv, ConvTranspose, batch_norm, from_linen
from fcjax.types import Network, PRNGKey, PyTree

# --- GANs

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


# --- RealNVP

GLOROT = nn.initializers.glorot_uniform()
ZEROS = nn.initializers.zeros


class Flow(NamedTuple):
    """An invertible network as pure functions.

    `variables` holds `params` alone, its couplings stacked on a leading axis.

    Examples:
        >>> flow = realnvp((2,), hidden=(4,))
        >>> x = jnp.array([[3.0, -1.0]])
        >>> variables = flow.init(jax.random.key(0))
        >>> print(flow.inverse(variables, flow.forward(variables, x)[0]))
        [[ 3. -1.]]
    """

    init: Callable[[PRNGKey], PyTree]
    """(key) -> variables."""
    forward: Callable[
        [PyTree, Float[Array, "B *F"]], tuple[Float[Array, "B D"], Float[Array, "B"]]
    ]
    """(variables, x) -> the codes z, flat, and log |det dz/dx| of each example."""
    inverse: Callable[[PyTree, Float[Array, "B D"]], Float[Array, "B *F"]]
    """(variables, z) -> x."""


def realnvp(
    shape: Sequence[int],
    *,
    num_couplings: int = 6,
    hidden: Sequence[int] = (512, 512, 512),
) -> Flow:
    """Builds the flow of examples of this shape.

    Args:
        shape: (F,) of vectors, whose even and odd features take turns, or (H, W, C) of
            images, whose pixels do by a checkerboard, all channels alike.
        num_couplings: how often one half is scaled and shifted by what the other says.
        hidden: widths of the ReLU layers that say it.

    Returns:
        The flow between examples [B, *shape] of any value and codes [B, D], D the
        product of the shape; `forward` also returns the log-determinants [B].

    Raises:
        ValueError: with less than two couplings a half would stay as it is; with less
            than two features or pixels there are no halves.

    Examples:
        >>> flow = realnvp((2,), hidden=(4,))
        >>> variables = flow.init(jax.random.key(0))
        >>> z, log_det = flow.forward(variables, jnp.array([[3.0, -1.0]]))
        >>> print(z, log_det)  # it begins as the identity
        [[ 3. -1.]] [0.]
    """
    if num_couplings < 2:
        raise ValueError(f"num_couplings must be at least 2, got {num_couplings}")
    even = first_half(shape)
    turns = np.arange(num_couplings)[:, None] % 2 == 0
    kept_halves = jnp.asarray(turns == even[None])
    conditioner = Conditioner(tuple(hidden), len(even))

    def init(key):
        x = jnp.zeros((1, len(even)))
        keys = jax.random.split(key, num_couplings)
        return jax.vmap(lambda key: conditioner.init(key, x))(keys)

    def affine(coupling, kept, x):
        """Of the half that changes, from the half that is kept."""
        outputs: Any = conditioner.apply(coupling, jnp.where(kept[None], x, 0))
        scale, shift = outputs
        return jnp.where(kept[None], 0, scale), jnp.where(kept[None], 0, shift)

    # A scan: unrolled, the couplings of K flows take long to compile.
    def forward(variables, x):
        def couple(carry, each):
            (z, log_det), (coupling, kept) = carry, each
            scale, shift = affine(coupling, kept, z)
            return (z * jnp.exp(scale) + shift, log_det + scale.sum(axis=1)), None

        begun = (x.reshape(len(x), -1), jnp.zeros(len(x)))
        return lax.scan(couple, begun, (variables, kept_halves))[0]

    def inverse(variables, z):
        def uncouple(x, each):
            coupling, kept = each
            scale, shift = affine(coupling, kept, x)
            return (x - shift) * jnp.exp(-scale), None

        x, _ = lax.scan(uncouple, z, (variables, kept_halves), reverse=True)
        return x.reshape(-1, *shape)

    return Flow(init, forward, inverse)


def first_half(shape: Sequence[int]) -> Bool[np.ndarray, "D"]:
    """Returns which features, flat, the first coupling keeps.

    Raises:
        ValueError: the shape is of neither vectors nor images, or has only one half.
    """
    if len(shape) not in (1, 3):
        raise ValueError(f"a flow's shape is (F,) or (H, W, C), got {tuple(shape)}")
    places = np.indices(shape[:2] if len(shape) == 3 else shape).sum(axis=0)
    if places.size < 2:
        raise ValueError(f"a flow has two features or pixels or more, got {shape}")
    channels = math.prod(shape) // places.size
    return np.repeat(places.ravel() % 2 == 0, channels)


class Conditioner(nn.Module):
    """The scale, as a logarithm, and the shift [B, D] that x [B, D] asks for."""

    widths: tuple[int, ...]
    features: int

    @nn.compact
    def __call__(self, x):
        for width in self.widths:
            x = jax.nn.relu(nn.Dense(width, kernel_init=GLOROT)(x))
        scale = nn.Dense(self.features, kernel_init=ZEROS, name="scale")(x)
        shift = nn.Dense(self.features, kernel_init=ZEROS, name="shift")(x)
        factor = self.param("factor", nn.initializers.ones, (self.features,))
        return factor[None] * jnp.tanh(scale), shift
