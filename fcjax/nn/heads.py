"""SimSiam networks, encoders, and projection heads.

`simsiam`, `conv_encoder` and `mlp_simsiam`: the network of CCFC. Layers and sizes
follow the authors' code (github.com/Jarvisyan/CCFC-pytorch), with padding 1 in every
convolution. Images of 28x28 pixels become 14x14, 7x7 and 3x3.

`encoder` and the heads below it: separate networks. A method that trains, freezes or
sends encoder and head separately takes each one as a `Network`. Layers and sizes follow
public code: github.com/Yunfan-Li/Contrastive-Clustering (CC), EasyFL's BYOL (FedU and
FedEMA), and github.com/PatrickHua/SimSiam.
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
"""(x [B, *S], *, train, mask) -> features [B, F]: a Linen module, or a function whose
layers become layers of the module that calls it."""


def simsiam(
    encoder: Encoder,
    *,
    hidden_size: int = 256,
    latent_size: int = 256,
    bottleneck: int = 16,
) -> Network:
    """Builds a SimSiam network on an encoder, with the sizes of CCFC.

    Args:
        encoder: the layers from examples to features, such as `conv_encoder(channels)`
            or an `MLP`.
        hidden_size: width of the projector's hidden layer.
        latent_size: size D of projections z and predictions p.
        bottleneck: width of the predictor's hidden layer.

    Returns:
        A `Network` from the encoder's input to (z [B, D], p [B, D]), of any value.

    References:
        Chen and He, `Exploring Simple Siamese Representation Learning
        <https://arxiv.org/abs/2011.10566>`_, 2021, section 3. The sizes are those of
        CCFC's code.

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
    """The layers of `simsiam`: encoder, projector and predictor."""

    encoder: Encoder
    hidden_size: int
    latent_size: int
    bottleneck: int

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Maps examples x to projections z [B, D] and predictions p [B, D]."""
        norm = partial(batch_norm, train=train, mask=mask)
        x = self.encoder(x, train=train, mask=mask)
        layer = partial(Dense, is_normalized=True)
        x = jax.nn.relu(norm(layer(self.hidden_size)(x)))
        z = norm(layer(self.latent_size)(x), affine=False)
        x = jax.nn.relu(norm(layer(self.bottleneck)(z)))
        return z, Dense(self.latent_size)(x)


def conv_encoder(channels: Sequence[int] = (64, 128, 256)) -> Encoder:
    """Builds CCFC's convolutional encoder of images.

    Args:
        channels: output channels of the convolutions. Each has kernel size 4, stride 2
            and padding 1 and is followed by batch norm and leaky ReLU of slope 0.2.
            Each halves the image. The last output is flattened.

    Returns:
        The encoder, a function from images [B, H, W, C] in [0, 1] to features [B, F].
        It is not a Linen module: a module would add a level of layer names, and a
        different name means different initial weights for the same seed.

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
            x = Conv(features, size=4, stride=2, padding=1, is_normalized=True)(x)
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
    """Builds a SimSiam network of feature vectors, with CCFC's projector and predictor.

    The paper has image data only. Here dense layers replace its convolutions.

    Args:
        widths: widths of the encoder's layers, see `MLP`.
        hidden_size: width of the projector's hidden layer.
        latent_size: size D of projections z and predictions p.
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
    """Encodes vectors by dense layers with batch norm and leaky ReLU of slope 0.2.

    This is a Linen module from float vectors [B, F] to features [B, widths[-1]] of any
    value. `encoder` turns it into a `Network`.

    Attributes:
        widths: width of each layer.

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
        """Maps vectors x [B, F] to features [B, widths[-1]]."""
        for features in self.widths:
            x = Dense(features, is_normalized=True)(x)
            x = batch_norm(x, train=train, mask=mask)
            x = nn.leaky_relu(x, 0.2)
        return x


# --- Heads


def encoder(layers: Encoder) -> Network:
    """Builds a network that consists of an encoder's layers only.

    Args:
        layers: a `ResNet`, an `MLP` or `conv_encoder(channels)`.

    Returns:
        A `Network` from the encoder's input to its features [B, F].

    Examples:
        >>> import jax.numpy as jnp
        >>> from fcjax.nn import MLP
        >>> network, x = encoder(MLP((8, 4))), jnp.zeros((3, 6))
        >>> network.apply(network.init(jax.random.key(0), x), x, train=False)[0].shape
        (3, 4)
    """
    return from_linen(Encoding(layers))


def projector(size: int = 128, *, hidden_size: int | None = None) -> Network:
    """Builds the instance-level head of CC and SimCLR: linear, ReLU, linear.

    Args:
        size: size D of the representations z.
        hidden_size: width of the hidden layer. With None, the number of input features,
            as in CC.

    Returns:
        A `Network` from features [B, F] to z [B, D]. Losses scale z to unit length.

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
        num_clusters: number K of clusters.
        hidden_size: width of the hidden layer. With None, the number of input features.

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
    """Builds BYOL's projector or predictor: linear, batch norm, ReLU, linear.

    Both have the same layers.

    Args:
        size: size D of the outputs. The default is EasyFL's; BYOL itself has 256.
        hidden_size: width of the hidden layer.

    Returns:
        A `Network` from features [B, F] to projections [B, D], or from projections to
        predictions [B, D], of any value.

    Examples:
        >>> import jax.numpy as jnp
        >>> network, features = byol_head(2, hidden_size=8), jnp.zeros((3, 6))
        >>> variables = network.init(jax.random.key(0), features)
        >>> network.apply(variables, features, train=False)[0].shape
        (3, 2)
    """
    return from_linen(Head(size, hidden_size, hidden_norm=True))


def simsiam_projector(size: int = 2048, *, hidden_size: int = 2048) -> Network:
    """Builds the projector of SimSiam for CIFAR: two layers, each with batch norm.

    Args:
        size: size D of the projections z.
        hidden_size: width of the hidden layer.

    Returns:
        A `Network` from features [B, F] to z [B, D], of any value.

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
        size: size D of the predictions p, equal to the size of the projections.
        hidden_size: width of the hidden layer.

    Returns:
        A `Network` from projections z [B, D] to p [B, D], of any value.

    Examples:
        >>> import jax.numpy as jnp
        >>> network, z = simsiam_predictor(6, hidden_size=2), jnp.zeros((3, 6))
        >>> variables = network.init(jax.random.key(0), z)
        >>> network.apply(variables, z, train=False)[0].shape
        (3, 6)
    """
    return from_linen(Head(size, hidden_size, hidden_norm=True))


def orchestra_projector(size: int = 512, *, hidden_size: int = 512) -> Network:
    """Builds Orchestra's projector: two layers without bias, each with batch norm.

    The last batch norm has no scale and no shift.

    Args:
        size: size D of the projections.
        hidden_size: width of the hidden layer.

    Returns:
        A `Network` from features [B, F] to projections [B, D]. In training, every
        feature of the projections has mean 0 and variance 1 over the batch.

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
    """Builds the linear head that predicts the rotation of an image in quarter turns.

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
    """A linear layer on features [B, F]."""

    size: int

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Maps features x [B, F] to outputs [B, size]."""
        return Dense(self.size)(x)


class Encoding(nn.Module):
    """A module around the layers of an encoder."""

    layers: Encoder

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Maps examples x to features [B, F]."""
        return self.layers(x, train=train, mask=mask)


class Head(nn.Module):
    """Two linear layers on features [B, F], with optional norms and softmax."""

    size: int
    hidden_size: int | None
    hidden_norm: bool = False
    norm: bool = False
    soft: bool = False
    plain: bool = False
    """If true, the layers have no bias, and the last norm has no scale and shift."""

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Maps features x [B, F] to outputs [B, size]."""
        layer = partial(Dense, use_bias=not self.plain)
        width = self.hidden_size or x.shape[-1]
        x = layer(width, is_normalized=self.hidden_norm)(x)
        if self.hidden_norm:
            x = batch_norm(x, train=train, mask=mask)
        x = layer(self.size, is_normalized=self.norm)(jax.nn.relu(x))
        if self.norm:
            x = batch_norm(x, train=train, mask=mask, affine=not self.plain)
        return jax.nn.softmax(x) if self.soft else x
