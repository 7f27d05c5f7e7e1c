"""Feature vectors on the device: examples as rows, and augmentation of one at a time.

Every function of a key takes one vector [F] with values in [0, 1] and returns one of
the same shape and range; the caller vmaps over vectors and their keys.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Shaped

from fcjax import clients, losses
from fcjax.data.augment import Number, to_float
from fcjax.ragged import Ragged
from fcjax.types import Federation, PRNGKey

Vector = Float[Array, " F"]


def as_rows(
    examples: Shaped[Array, "N *F"], *, unit_length: bool
) -> Float32[Array, "N D"]:
    """Examples as flat rows, pixels in [0, 1].

    Args:
      examples: images or vectors, uint8 or floating.
      unit_length: scale each row to L2 norm 1, as the code of SDA-FC does; the k-means
        figures of the CCFC and SDA-FDC papers follow from that and not from raw pixels.

    Returns:
      float32 [N, D], D the product of F: uint8 divided by 255, floating values as they
      are, before any scaling of the rows.

    Examples:
      >>> print(as_rows(jnp.array([[[3.0, 0.0]], [[0.0, 5.0]]]), unit_length=True))
      [[1. 0.]
       [0. 1.]]
    """
    rows = to_float(examples).reshape(examples.shape[0], -1)
    return losses.normalize(rows) if unit_length else rows


def client_rows(
    federation: Federation, *, unit_length: bool
) -> Float32[Array, "M N D"] | Ragged:
    """The examples of every client by `as_rows`.

    Args:
      federation: of one run.
      unit_length: as in `as_rows`.

    Returns:
      float32 [M, N, D], ragged as the federation is; a short client's repeated rows,
      where `federation.mask` is False, are among them.

    Examples:
      >>> federation = Federation(
      ...     pool=jnp.array([[0, 255], [255, 0]], jnp.uint8),
      ...     indices=jnp.array([[0, 1], [1, 1]]),
      ...     mask=jnp.array([[True, True], [True, False]]),
      ...     present=jnp.array([[True, True]]),
      ...     local_clusters=jnp.array([2, 2]),
      ... )
      >>> print(client_rows(federation, unit_length=False)[0])
      [[0. 1.]
       [1. 0.]]
    """

    def rows(indices):
        return as_rows(federation.pool[indices], unit_length=unit_length)

    return clients.for_each(rows, federation.indices)


def jitter(key: PRNGKey, x: Vector, *, scale: Number) -> Vector:
    """The vector plus normal noise of standard deviation `scale`, clipped to [0, 1]."""
    return jnp.clip(x + scale * jax.random.normal(key, x.shape), 0.0, 1.0)


def feature_dropout(key: PRNGKey, x: Vector, *, probability: Number) -> Vector:
    """The vector with each feature set to 0 with `probability`, one by one.

    What is kept is not scaled up, unlike in a network's dropout: values would leave
    [0, 1], and evaluation sees the kept ones as they are. SCARF replaces by another
    example's value (https://arxiv.org/abs/2106.15147), which one vector alone cannot.
    """
    return jnp.where(jax.random.uniform(key, x.shape) < probability, 0.0, x)


def vector_view(
    key: PRNGKey, x: Vector, *, scale: Number = 0.1, probability: Number = 0.2
) -> Vector:
    """A view by noise and then dropout, so that what is dropped is exactly 0.

    This library's own choice, for tables; it is taken from no paper.

    Args:
      key: of the draws.
      x: a vector [F] in [0, 1].
      scale: standard deviation of the noise, at least 0.
      probability: of dropping a feature, in [0, 1].

    Returns:
      A vector [F] in [0, 1].

    Examples:
      >>> x = jnp.array([0.25, 0.5, 0.75])
      >>> print(vector_view(jax.random.key(0), x, scale=0.0, probability=0.0))
      [0.25 0.5  0.75]
      >>> print(vector_view(jax.random.key(0), x, probability=1.0))
      [0. 0. 0.]
    """
    jitter_key, dropout_key = jax.random.split(key)
    x = jitter(jitter_key, x, scale=scale)
    return feature_dropout(dropout_key, x, probability=probability)
