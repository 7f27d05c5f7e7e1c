"""Weighted rows and their squared distances: what all clusterings share."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def row_weights(
    x: Float[Array, "N D"],
    mask: Bool[Array, "N"] | None,
    weights: Float[Array, "N"] | None,
) -> Float[Array, "N"]:
    """The weight of every row, 1 by default, 0 where it is masked."""
    if weights is None:
        weights = jnp.ones(x.shape[0])
    weights = weights.astype(jnp.float32)
    return weights if mask is None else jnp.where(mask, weights, 0)


def origin(x: Float[Array, "N D"], weights: Float[Array, "N"]) -> Float[Array, "1 D"]:
    """A point near the weighted mean, to be taken off all rows."""
    # Squared distances by way of inner products lose digits far from the origin.
    total = jnp.maximum(weights.sum(), jnp.finfo(jnp.float32).tiny)
    mean = jnp.matmul(
        weights[None] / total, clear(x, weights), precision=jax.lax.Precision.HIGHEST
    )
    # Any point near the mean serves; fewer bits make it the same one however the sum is
    # rounded, so that padding does not disturb the draws.
    return jax.lax.reduce_precision(mean, exponent_bits=8, mantissa_bits=12)


def clear(x: Float[Array, "N D"], weights: Float[Array, "N"]) -> Float[Array, "N D"]:
    """The rows, with zeros in place of those of weight 0."""
    # A weight of 0 alone would let infinities in, as 0 * inf is NaN.
    return jnp.where(weights[:, None] > 0, x, 0)


def relative_distances(
    x: Float[Array, "N D"], centroids: Float[Array, "K D"]
) -> Float[Array, "K N"]:
    """|x - c|^2 - |x|^2, which has the same nearest centroid."""
    # Clusters come first, as matrix products and the reductions over K are then fast on
    # CPUs.
    product = jnp.matmul(centroids, x.T, precision=jax.lax.Precision.HIGHEST)
    return jnp.sum(centroids**2, axis=-1)[:, None] - 2 * product


def squared_distances(
    x: Float[Array, "N D"], centroids: Float[Array, "K D"]
) -> Float[Array, "K N"]:
    """|x - c|^2, at least 0."""
    norms = jnp.sum(x**2, axis=-1)
    return jnp.maximum(relative_distances(x, centroids) + norms[None], 0)
