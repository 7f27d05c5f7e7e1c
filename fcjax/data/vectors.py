"""Augmentation of feature vectors on the device, one at a time.

Every function takes one vector [F] with values in [0, 1] and returns one of the same
shape and range; the caller vmaps over vectors and their keys.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fcjax.data.augment import Number
from fcjax.types import PRNGKey

Vector = Float[Array, " F"]


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
    """
    jitter_key, dropout_key = jax.random.split(key)
    x = jitter(jitter_key, x, scale=scale)
    return feature_dropout(dropout_key, x, probability=probability)
