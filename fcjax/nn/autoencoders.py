"""Auto-encoders of DEC and DCN, of deep subspace clustering, and of FedCRef.

`autoencoder`: the network of DEC, DCN and SDA-FDC. Its encoder has layers
d-500-500-2000-10 and its decoder the reverse, with ReLU between layers and a linear
code and output. Weights start as in PyTorch, uniform in +-1/sqrt(fan_in); the published
programs differ in this point.

`conv_autoencoder`: the network of DSC-Net and FDSC. Convolutions of stride 2 and their
transposes, ReLU after every layer (the last one included), no batch norm, Xavier's
uniform kernels, and biases that start at 0. The code of DSC-Net pads even image sides
by one zero less before than after; here the padding is (k - 1) / 2 on every side. The
FDSC paper states only the numbers of layers, two for the encoder and two for the
decoder. The rest is our choice: 20 and 10 channels, kernel sizes 5 and 3, and size 4 in
the decoder.

`reconstructor`: the network with which FedCRef models one cluster, Table 2 of its
paper: d-100-64-32-64-100-d, ReLU after every hidden layer (the code included), and a
sigmoid at the end. It has 174,840 parameters for d = 784. The paper does not say how
weights start; its code uses the default of Keras, Glorot's uniform kernels and zero
biases.

References:
    Xie, Girshick and Farhadi, Unsupervised Deep Embedding for Clustering Analysis
    (DEC), ICML 2016, section 4.3.
    Yang et al., Towards K-means-friendly Spaces (DCN), ICML 2017.
    Ji et al., Deep Subspace Clustering Networks (DSC-Net), NIPS 2017; code
    github.com/panji1990/Deep-subspace-clustering-networks.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from fcjax.nn.layers import Conv, ConvTranspose, Dense, from_linen
from fcjax.types import Network

# --- Fully connected auto-encoder


class AutoEncoder(NamedTuple):
    """The encoder and the decoder of an auto-encoder.

    Each network has its own variables. Neither has a batch norm, so the arguments
    `train` and `mask` of `apply` have no effect.

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
    """Maps rows [B, F] or images [B, H, W, C] to codes [B, D]."""
    decoder: Network
    """Maps codes [B, D] to rows [B, F] or images [B, H, W, C]."""


def autoencoder(
    num_features: int,
    *,
    widths: Sequence[int] = (500, 500, 2000),
    latent_size: int = 10,
) -> AutoEncoder:
    """Builds the fully connected auto-encoder of DEC and DCN.

    Args:
        num_features: number F of features of an example.
        widths: widths of the hidden layers of the encoder. The decoder has them in
            reverse order.
        latent_size: size D of a code.

    Returns:
        The encoder from rows [B, F] to codes [B, D], and the decoder from codes to
        rows. Both end with a linear layer, so their outputs can have any value.

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
        """Applies the layers to x [B, F]."""
        del train, mask
        for features in self.widths:
            x = jax.nn.relu(Dense(features)(x))
        return Dense(self.out_features)(x)


# --- Convolutional auto-encoder

INIT = nn.initializers.glorot_uniform()


def conv_autoencoder(
    image_shape: tuple[int, int, int],
    *,
    channels: Sequence[int] = (20, 10),
    kernel_sizes: Sequence[int] = (5, 3),
) -> AutoEncoder:
    """Builds the convolutional auto-encoder of DSC-Net and FDSC.

    Each layer of the encoder halves the image sides and rounds up. Each layer of the
    decoder doubles them. The decoder then removes surplus pixels at the bottom and on
    the right.

    Args:
        image_shape: height H, width W and number C of channels of an image.
        channels: output channels of the encoder's layers. The decoder has them in
            reverse order.
        kernel_sizes: kernel sizes of the encoder's layers, odd, one per layer.

    Returns:
        The encoder from float images [B, H, W, C] to codes [B, D], and the decoder from
        codes to images. Codes and decoded images are at least 0. For L layers, D is
        ceil(H / 2^L) * ceil(W / 2^L) * channels[-1].

    Raises:
        ValueError: if `channels` and `kernel_sizes` differ in length or are empty, if a
            kernel size is even, or if a layer would halve a single pixel.

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
            "channels and kernel_sizes must have one entry for each layer and at least "
            f"one layer, got {tuple(channels)} and {tuple(kernel_sizes)}"
        )
    if any(size < 1 or size % 2 == 0 for size in kernel_sizes):
        raise ValueError(f"kernel_sizes must be odd, got {tuple(kernel_sizes)}")
    smallest = 2 ** (layers - 1) + 1
    if min(height, width) < smallest:
        raise ValueError(
            f"image_shape is too small for {layers} layers that halve an image: the "
            f"sides must have at least {smallest} pixels, got {height}x{width}"
        )
    return AutoEncoder(
        encoder=from_linen(ConvEncoder(tuple(channels), tuple(kernel_sizes))),
        decoder=from_linen(ConvDecoder(image_shape, tuple(channels))),
    )


class ConvEncoder(nn.Module):
    """The encoder of `conv_autoencoder`: convolutions of stride 2 with ReLU."""

    channels: tuple[int, ...]
    kernel_sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Maps images x [B, H, W, C] to codes [B, D]."""
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
    """The decoder of `conv_autoencoder`: transposed convolutions with ReLU."""

    image_shape: tuple[int, int, int]
    channels: tuple[int, ...]

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Maps codes x [B, D] to images [B, H, W, C]."""
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
    """Builds FedCRef's auto-encoder, with which one cluster is modelled.

    Args:
        num_features: number F of features of an example.
        widths: widths of the hidden layers.

    Returns:
        A `Network` from rows [B, F] in [0, 1] to their reconstructions [B, F],
        in (0, 1).

    References:
        FedCRef, Table 2.

    Examples:
        >>> import jax.numpy as jnp
        >>> network, x = reconstructor(784), jnp.zeros((1, 784))
        >>> weights = jax.eval_shape(network.init, jax.random.key(0), x)
        >>> sum(w.size for w in jax.tree.leaves(weights))  # the number in the paper
        174840
    """
    return from_linen(Reconstructor(tuple(widths), num_features))


class Reconstructor(nn.Module):
    """Dense layers with ReLU between them and a sigmoid at the end."""

    widths: tuple[int, ...]
    out_features: int

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Maps rows x [B, F] to their reconstructions [B, F]."""
        del train, mask
        for features in self.widths:
            x = jax.nn.relu(self.dense(features)(x))
        return jax.nn.sigmoid(self.dense(self.out_features)(x))

    @staticmethod
    def dense(features: int) -> nn.Dense:
        """Returns a dense layer with Glorot's uniform kernel.

        Args:
            features: number of outputs of the layer.

        Returns:
            The layer. Its biases start at 0.
        """
        return nn.Dense(features, kernel_init=nn.initializers.glorot_uniform())
