"""SimSiam, networks of feature vectors, and projection heads.

SimSiam over any encoder, and CCFC's convolutional one for small grey images.

Layers and sizes follow the authors' code (github.com/Jarvisyan/CCFC-pytorch), padding
1 in every convolution included: 28x28 images pass through 14, 7 and 3 pixels a side.

Encoders as networks of their own, and the heads of contrastive methods on them.

A method that trains, freezes or sends them apart takes each as a `Network`. Layers and
sizes follow public code: github.com/Yunfan-Li/Contrastive-Clustering (CC), EasyFL's
BYOL for FedU and FedEMA, github.com/PatrickHua/SimSiam.
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from fcjax.nn.layers import Conv, Dense, batch_norm, from_linen
from fcjax.types import Network

# --- SimSiam

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
        >>> from fcjax.nn import encoder
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


# --- Networks of feature vectors


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
        >>> from fcjax.nn import encoder
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


# --- Heads


def encoder(layers: Encoder) -> Network:
    """Builds a network of an encoder's layers alone.

    Args:
        layers: a `ResNet`, an `MLP` or `conv_encoder(channels)`.

    Returns:
        A `Network` from what the encoder takes to its features [B, F].

    Examples:
        >>> import jax.numpy as jnp
        >>> from fcjax.nn import MLP
        >>> network, x = encoder(MLP((8, 4))), jnp.zeros((3, 6))
        >>> network.apply(network.init(jax.random.key(0), x), x, train=False)[0].shape
        (3, 4)
    """
    return from_linen(Encoding(layers))


def projector(size: int = 128, *, hidden_size: int | None = None) -> Network:
    """Builds CC's instance-level head, and SimCLR's: linear, ReLU, linear.

    Args:
        size: D, of the representations z.
        hidden_size: width between; None takes that of the features, as CC.

    Returns:
        A `Network` from features [B, F] to z [B, D]; losses scale them to unit length.

    Examples:
        >>> import jax.numpy as jnp
        >>> network, features = projector(2), jnp.zeros((3, 6))
        >>> variables = network.init(jax.random.key(0), features)
        >>> network.apply(variables, features, train=False)[0].shape
        (3, 2)
    """
    return from_linen(Head(size, hidden_size))


def cluster_projector(num_clusters: int, *, hidden_size: int | None = None) -> Network:
    """Builds CC's cluster-level head: linear, ReLU, linear, softmax.

    Args:
        num_clusters: K.
        hidden_size: as in `projector`.

    Returns:
        A `Network` from features [B, F] to soft assignments [B, K].

    Examples:
        >>> import jax.numpy as jnp
        >>> network, features = cluster_projector(10), jnp.zeros((3, 6))
        >>> variables = network.init(jax.random.key(0), features)
        >>> c, _ = network.apply(variables, features, train=False)
        >>> print(c.shape, f"{c.sum():.3f}")  # rows are probabilities
        (3, 10) 3.000
    """
    return from_linen(Head(num_clusters, hidden_size, soft=True))


def byol_head(size: int = 2048, *, hidden_size: int = 4096) -> Network:
    """Builds BYOL's projector, and its predictor: linear, batch norm, ReLU, linear.

    Args:
        size: D, of the outputs; EasyFL's, where BYOL itself has 256.
        hidden_size: width between.

    Returns:
        A `Network` from features [B, F] to projections, or from these to predictions,
        [B, D] of any value.

    Examples:
        >>> import jax.numpy as jnp
        >>> network, features = byol_head(2, hidden_size=8), jnp.zeros((3, 6))
        >>> variables = network.init(jax.random.key(0), features)
        >>> network.apply(variables, features, train=False)[0].shape
        (3, 2)
    """
    return from_linen(Head(size, hidden_size, hidden_norm=True))


def simsiam_projector(size: int = 2048, *, hidden_size: int = 2048) -> Network:
    """Builds the projector of SimSiam for CIFAR: two layers, batch norm after each.

    Args:
        size: D, of the projections z.
        hidden_size: width between.

    Returns:
        A `Network` from features [B, F] to z [B, D] of any value.

    Examples:
        >>> import jax.numpy as jnp
        >>> network, features = simsiam_projector(2, hidden_size=8), jnp.zeros((3, 6))
        >>> variables = network.init(jax.random.key(0), features)
        >>> network.apply(variables, features, train=False)[0].shape
        (3, 2)
    """
    return from_linen(Head(size, hidden_size, hidden_norm=True, norm=True))


def simsiam_predictor(size: int = 2048, *, hidden_size: int = 512) -> Network:
    """Builds SimSiam's predictor: linear, batch norm, ReLU, linear.

    Args:
        size: D, of the predictions p, as of the projections.
        hidden_size: width between.

    Returns:
        A `Network` from projections z [B, D] to p [B, D] of any value.

    Examples:
        >>> import jax.numpy as jnp
        >>> network, z = simsiam_predictor(6, hidden_size=2), jnp.zeros((3, 6))
        >>> variables = network.init(jax.random.key(0), z)
        >>> network.apply(variables, z, train=False)[0].shape
        (3, 6)
    """
    return from_linen(Head(size, hidden_size, hidden_norm=True))


def orchestra_projector(size: int = 512, *, hidden_size: int = 512) -> Network:
    """Builds Orchestra's projector: two layers without bias, batch norm after each, the
    last one without scale and shift.

    Args:
        size: D, of the projections.
        hidden_size: width between.

    Returns:
        A `Network` from features [B, F] to projections [B, D], whose features have mean
        0 and variance 1 over a batch that trains.

    References:
        Lubana et al., Orchestra, 2022; code akhilmathurs/orchestra.

    Examples:
        >>> import jax.numpy as jnp
        >>> network, features = orchestra_projector(2, hidden_size=8), jnp.zeros((3, 6))
        >>> variables = network.init(jax.random.key(0), features)
        >>> network.apply(variables, features, train=False)[0].shape
        (3, 2)
    """
    layers = Head(size, hidden_size, hidden_norm=True, norm=True, plain=True)
    return from_linen(layers)


def rotation_head() -> Network:
    """Builds the head that tells by how many quarters an image was turned: linear.

    Returns:
        A `Network` from projections [B, D] to logits [B, 4].

    Examples:
        >>> import jax.numpy as jnp
        >>> network, z = rotation_head(), jnp.zeros((3, 6))
        >>> variables = network.init(jax.random.key(0), z)
        >>> network.apply(variables, z, train=False)[0].shape
        (3, 4)
    """
    return from_linen(Linear(4))


class Linear(nn.Module):
    """A layer on features [B, F]."""

    size: int

    @nn.compact
    def __call__(self, x, *, train, mask):
        return Dense(self.size)(x)


class Encoding(nn.Module):
    """The layers of an encoder as a module."""

    layers: Encoder

    @nn.compact
    def __call__(self, x, *, train, mask):
        return self.layers(x, train=train, mask=mask)


class Head(nn.Module):
    """Two layers on features [B, F]."""

    size: int
    hidden_size: int | None
    hidden_norm: bool = False
    norm: bool = False
    soft: bool = False
    plain: bool = False  # no biases, and the last norm neither scales nor shifts

    @nn.compact
    def __call__(self, x, *, train, mask):
        layer = partial(Dense, use_bias=not self.plain)
        x = layer(self.hidden_size or x.shape[-1])(x)
        if self.hidden_norm:
            x = batch_norm(x, train=train, mask=mask)
        x = layer(self.size)(jax.nn.relu(x))
        if self.norm:
            x = batch_norm(x, train=train, mask=mask, affine=not self.plain)
        return jax.nn.softmax(x) if self.soft else x
