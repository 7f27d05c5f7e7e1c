"""The autoencoder of deep clustering: DEC's, DCN's and so SDA-FDC's.

Xie, Girshick, Farhadi: Unsupervised Deep Embedding for Clustering Analysis (ICML
2016), section 4.3: d-500-500-2000-10 and its mirror, ReLU between layers, code and
output linear; Yang et al., Towards K-means-friendly Spaces (ICML 2017), takes the
same layers. Weights start as in PyTorch, uniform in +-1/sqrt(fan_in); the published
programs differ from each other there.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
from flax import linen as nn

from fcjax.models.initializers import Dense
from fcjax.models.network import from_linen
from fcjax.types import Network


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
