"""Auto-encoders of DEC and DCN, of subspace clustering, and of FedCRef.

The autoencoder of deep clustering: DEC's, DCN's and so SDA-FDC's.

Xie, Girshick, Farhadi: Unsupervised Deep Embedding for Clustering Analysis (ICML
2016), section 4.3: d-500-500-2000-10 and its mirror, ReLU between layers, code and
output linear; Yang et al., Towards K-means-friendly Spaces (ICML 2017), takes the
same layers. Weights start as in PyTorch, uniform in +-1/sqrt(fan_in); the published
programs differ from each other there.

The convolutional auto-encoder of deep subspace clustering: DSC-Net's and FDSC's.

Ji et al., Deep Subspace Clustering Networks (NIPS 2017), and its code (github.com/
panji1990/Deep-subspace-clustering-networks): convolutions of stride 2 and their mirror,
ReLU after every layer, the last one included, no batch norm; Xavier's uniform kernels,
biases from 0. That code pads even sides by one zero less before than after, here it is
(k - 1) / 2 on every side. FDSC states two layers for the encoder, two for the decoder
and nothing more: [choice] 20 and 10 channels, kernels 5 and 3, and 4 in the decoder.

The small auto-encoder by which FedCRef knows a cluster, as one network.

FedCRef, Table 2: d-100-64-32-64-100-d, ReLU after every hidden layer, the code
included, and a sigmoid at the end; 174,840 parameters for d = 784. The paper does not
say how weights start; its code has Keras's default, uniform by Glorot and no biases.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from fcjax.nn.layers import Conv, ConvTranspose, Dense, from_linen
from fcjax.types import Network

# --- Autoencoder


class AutoEncoder(NamedTuple):
    """Two networks, each with variables of its own, without batch norm: `train` and
    `mask` make no difference to them.

    Examples:
        >>> import jax.numpy as jnp
        >>> codec, x = autoencoder(6, widths=(4,), latent_size=2), jnp.zeros((3, 6))
        >>> to_z, to_x = jax.random.split(jax.random.key(0))
        >>> z, _ = codec.encoder.apply(codec.encoder.init(to_z, x), x, train=False)
        >>> x_hat, _ = codec.decoder.apply(codec.decoder.init(to_x, z), z, train=False)
        >>> z.shape, x_hat.shape
        ((3, 2), (3, 6))
    """

    encoder: Network
    """From rows [B, F], or images, to codes [B, D]."""
    decoder: Network
    """From codes [B, D] to rows [B, F], or images."""


def autoencoder(
    num_features: int,
    *,
    widths: Sequence[int] = (500, 500, 2000),
    latent_size: int = 10,
) -> AutoEncoder:
    """Builds the autoencoder of rows [B, F].

    Args:
        num_features: F.
        widths: of the encoder's hidden layers; the decoder has them in reverse.
        latent_size: D, the size of a code.

    Returns:
        The encoder from rows [B, F] to codes [B, D] and the decoder back, both linear
        at the end, so of any value.

    Examples:
        >>> import jax.numpy as jnp
        >>> encoder, x = autoencoder(784).encoder, jnp.zeros((1, 784))
        >>> weights = jax.eval_shape(encoder.init, jax.random.key(0), x)
        >>> sum(w.size for w in jax.tree.leaves(weights))  # 785 * 500 + 501 * 500 + ...
        1665010
    """
    return AutoEncoder(
        encoder=from_linen(Layers(tuple(widths), latent_size)),
        decoder=from_linen(Layers(tuple(reversed(widths)), num_features)),
    )


class Layers(nn.Module):
    """Dense layers with ReLU between them."""

    widths: tuple[int, ...]
    out_features: int

    @nn.compact
    def __call__(self, x, *, train, mask):
        del train, mask
        for features in self.widths:
            x = jax.nn.relu(Dense(features)(x))
        return Dense(self.out_features)(x)


# --- Conv autoencoder

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


# --- Reconstructor


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
