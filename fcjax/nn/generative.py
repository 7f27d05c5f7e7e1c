"""Generative networks: GANs and the normalizing flow RealNVP.

GANs (`dcgan`, `mlp_gan`): in SDA-FC the clients upload a generator instead of their
data. Layers and sizes of `dcgan` for 28x28 images follow the authors' code
(github.com/Jarvisyan/SDA-FC). Those of `mlp_gan` follow the Pendigits network of their
later work (github.com/Jarvisyan/CCEGAN-pytorch). In both, weights start from N(0, 0.02)
and biases from 0. Layers before a batch norm have no bias here: the batch norm
subtracts the mean, so a bias would have no effect. Networks for image sizes other than
28x28 are not public. Our choice is the same pattern, with more stages for larger
images.

RealNVP (`realnvp`): a density that can be evaluated exactly, sampled and inverted, at a
single scale as in UIFCA. Footnote 3 of the FedCRef paper describes six affine couplings
with alternating checkerboard masks. One network with three hidden layers computes the
scale (through tanh) and the shift (linear). Our choices: hidden kernels start from
Glorot's uniform distribution and biases from 0; the tanh of the scale is multiplied by
a learned factor per feature, which starts at 1; the last layers start at 0, so that a
flow begins as the identity.

References:
    Dinh, Sohl-Dickstein and Bengio, Density estimation using Real NVP, ICLR 2017,
    https://arxiv.org/abs/1605.08803, equations 4 to 9.
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
"""Largest side, in pixels, of a generator's first image; later layers double it."""


class Gan(NamedTuple):
    """The generator and the discriminator of a GAN, each with its own variables.

    Examples:
        >>> gan, noise = mlp_gan(6, widths=(4,)), jnp.zeros((3, 2))
        >>> variables = gan.generator.init(jax.random.key(0), noise)
        >>> gan.generator.apply(variables, noise, train=False)[0].shape
        (3, 6)
    """

    generator: Network
    """Maps noise [B, L] to examples [B, *F] in [0, 1]. The first columns of the noise
    are the one-hot category. L is taken from the noise that is passed to `init`."""
    discriminator: Network
    """Maps examples [B, *F] in [0, 1] to logits [B]. Large logits mean "real"."""


def dcgan(
    shape: tuple[int, int, int], *, channels: int = 64, hidden_size: int = 1024
) -> Gan:
    """Builds the convolutional GAN of SDA-FC.

    The two dense layers of the generator make an image of at most 8 pixels per side.
    Two or more transposed convolutions then double it to its full size. The
    discriminator halves the image with one more convolution than that and ends with two
    dense layers. Every layer except the last is followed by batch norm and ReLU (leaky
    ReLU with slope 0.2 in the discriminator).

    Args:
        shape: height, width and number of channels of an image.
        channels: features of the last hidden image of the generator and of the first
            one of the discriminator. Each layer further inside has twice as many.
        hidden_size: width of the hidden dense layer in each network.

    Returns:
        The generator of images [B, H, W, C] in [0, 1], and the discriminator of such
        images.

    Raises:
        ValueError: if the image sides cannot be halved often enough without a
            remainder.

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
    """Returns how often the generator doubles an image, and checks the image size."""
    height, width, _ = shape
    doublings = 2
    while max(height, width) > SMALLEST * 2**doublings:
        doublings += 1
    step = 2**doublings
    # The discriminator halves once more than the generator doubles.
    if height % step or width % step or min(height, width) < 2 * step:
        raise ValueError(
            f"the sides of the images must be multiples of {step} and at least "
            f"{2 * step}, because the generator doubles images {doublings} times; got "
            f"{height}x{width}; resize the images, for example to 32x32"
        )
    return doublings


class Generator(nn.Module):
    """The generator of `dcgan`, from noise to images."""

    shape: tuple[int, int, int]
    doublings: int
    channels: int
    hidden_size: int

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Maps noise x [B, L] to images [B, H, W, C] in [0, 1]."""
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
    """The discriminator of `dcgan`, from images to logits."""

    halvings: int
    channels: int
    hidden_size: int

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Maps images x [B, H, W, C] to logits [B]."""
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
    """Builds the fully connected GAN of feature vectors.

    The authors' later discriminator has one more output per category. SDA-FC's
    discriminator of images has a single logit; here it is our choice for vectors, too.

    Args:
        num_features: number F of features of an example.
        widths: widths of the hidden layers of each network. Each is dense, with batch
            norm and leaky ReLU of slope 0.2.

    Returns:
        The generator of vectors [B, F] in [0, 1], and the discriminator of such
        vectors.

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
    """The generator of `mlp_gan`, from noise to feature vectors."""

    num_features: int
    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Maps noise x [B, L] to vectors [B, F] in [0, 1]."""
        x = _hidden_layers(x, self.widths, train, mask)
        return jax.nn.sigmoid(_dense(self.num_features, use_bias=True)(x))


class VectorDiscriminator(nn.Module):
    """The discriminator of `mlp_gan`, from feature vectors to logits."""

    widths: tuple[int, ...]

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Maps vectors x [B, F] to logits [B]."""
        x = _hidden_layers(x, self.widths, train, mask)
        return _dense(1, use_bias=True)(x)[:, 0]


def _hidden_layers(x, widths, train, mask):
    """Applies dense layers of these widths with batch norm and leaky ReLU."""
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
    """An invertible network as three pure functions.

    `variables` holds `params` only. The couplings are stacked on a leading axis.

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
    """(variables, x) -> the codes z [B, D] and log |det dz/dx| of each example [B]."""
    inverse: Callable[[PyTree, Float[Array, "B D"]], Float[Array, "B *F"]]
    """(variables, z) -> the examples x."""


def realnvp(
    shape: Sequence[int],
    *,
    num_couplings: int = 6,
    hidden: Sequence[int] = (512, 512, 512),
) -> Flow:
    """Builds the RealNVP flow of UIFCA.

    Each coupling keeps one half of the features. A network computes a scale and a shift
    from this half and applies them to the other half. The halves change roles at every
    coupling.

    Args:
        shape: shape of an example: (F,) for vectors, or (H, W, C) for images. Vectors
            are split into even and odd features. Images are split by a checkerboard of
            pixels, with all channels of a pixel in the same half.
        num_couplings: number of couplings, at least 2.
        hidden: widths of the hidden ReLU layers of a coupling's network.

    Returns:
        The flow between examples [B, *shape] of any value and codes [B, D], where D is
        the product of `shape`. `forward` also returns the log-determinants [B].

    Raises:
        ValueError: if `num_couplings` is below 2, because one half would never change,
            or if `shape` has fewer than two features or pixels.

    Examples:
        >>> flow = realnvp((2,), hidden=(4,))
        >>> variables = flow.init(jax.random.key(0))
        >>> z, log_det = flow.forward(variables, jnp.array([[3.0, -1.0]]))
        >>> print(z, log_det)  # the flow starts as the identity
        [[ 3. -1.]] [0.]
    """
    if num_couplings < 2:
        raise ValueError(f"num_couplings must be at least 2, got {num_couplings}")
    is_first_half = first_half(shape)
    is_first_turn = np.arange(num_couplings)[:, None] % 2 == 0
    masks = jnp.asarray(is_first_turn == is_first_half[None])
    conditioner = Conditioner(tuple(hidden), len(is_first_half))

    def init(key):
        x = jnp.zeros((1, len(is_first_half)))
        keys = jax.random.split(key, num_couplings)
        return jax.vmap(lambda key: conditioner.init(key, x))(keys)

    def affine(coupling, is_kept, x):
        """Returns log scale and shift of one half, computed from the other half."""
        outputs: Any = conditioner.apply(coupling, jnp.where(is_kept[None], x, 0))
        scale, shift = outputs
        return jnp.where(is_kept[None], 0, scale), jnp.where(is_kept[None], 0, shift)

    # A scan, because an unrolled loop over the couplings of K flows compiles slowly.
    def forward(variables, x):
        def couple(carry, coupling_and_mask):
            (z, log_det), (coupling, is_kept) = carry, coupling_and_mask
            scale, shift = affine(coupling, is_kept, z)
            return (z * jnp.exp(scale) + shift, log_det + scale.sum(axis=1)), None

        initial = (x.reshape(len(x), -1), jnp.zeros(len(x)))
        return lax.scan(couple, initial, (variables, masks))[0]

    def inverse(variables, z):
        def uncouple(x, coupling_and_mask):
            coupling, is_kept = coupling_and_mask
            scale, shift = affine(coupling, is_kept, x)
            return (x - shift) * jnp.exp(-scale), None

        x, _ = lax.scan(uncouple, z, (variables, masks), reverse=True)
        return x.reshape(-1, *shape)

    return Flow(init, forward, inverse)


def first_half(shape: Sequence[int]) -> Bool[np.ndarray, "D"]:
    """Returns which features, in the flattened example, the first coupling keeps.

    Args:
        shape: shape of an example, (F,) or (H, W, C).

    Returns:
        Boolean [D], True at the features of the first half; D is the product of
        `shape`.

    Raises:
        ValueError: if `shape` is neither (F,) nor (H, W, C), or has fewer than two
            features or pixels.
    """
    if len(shape) not in (1, 3):
        raise ValueError(
            f"shape of a flow must be (F,) or (H, W, C), got {tuple(shape)}"
        )
    coordinate_sums = np.indices(shape[:2] if len(shape) == 3 else shape).sum(axis=0)
    if coordinate_sums.size < 2:
        raise ValueError(
            "shape of a flow must have at least two features or pixels, got "
            f"{tuple(shape)}"
        )
    channels = math.prod(shape) // coordinate_sums.size
    return np.repeat(coordinate_sums.ravel() % 2 == 0, channels)


class Conditioner(nn.Module):
    """The network of a coupling: from x [B, D] to log scale and shift, each [B, D]."""

    widths: tuple[int, ...]
    features: int

    @nn.compact
    def __call__(self, x):
        """Returns log scale and shift [B, D] for x [B, D]."""
        for width in self.widths:
            x = jax.nn.relu(nn.Dense(width, kernel_init=GLOROT)(x))
        scale = nn.Dense(self.features, kernel_init=ZEROS, name="scale")(x)
        shift = nn.Dense(self.features, kernel_init=ZEROS, name="shift")(x)
        factor = self.param("factor", nn.initializers.ones, (self.features,))
        return factor[None] * jnp.tanh(scale), shift
