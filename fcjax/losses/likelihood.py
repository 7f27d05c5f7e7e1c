"""Likelihoods of flows: exact log-densities in nats, as pure functions.

Dinh, Sohl-Dickstein, Bengio: Density estimation using Real NVP (ICLR 2017,
https://arxiv.org/abs/1605.08803), Eq. 2 and section 4.1.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from fcjax.types import PRNGKey


def standard_normal_log_density(z: Float[Array, "B D"]) -> Float[Array, "B"]:
    """The log-density of each row under N(0, I): -(|z|^2 + D log 2 pi) / 2.

    Returns:
        [B], in nats and of any sign; no row depends on any other.

    Examples:
        >>> densities = standard_normal_log_density(jnp.zeros((1, 2)))
        >>> print(f"{densities[0]:.3f}")  # -log 2 pi
        -1.838
    """
    return -(jnp.sum(z**2, axis=1) + z.shape[1] * math.log(2 * math.pi)) / 2


def flow_log_likelihood(
    z: Float[Array, "B D"], log_det: Float[Array, "B"]
) -> Float[Array, "B"]:
    """The log-density of the examples that a flow maps to z (Eq. 2).

    Args:
        z: their codes, standard normal by the flow's model.
        log_det: log |det dz/dx|, of all maps on the way summed up.

    Returns:
        float32 [B], in nats and of any sign; no row depends on any other.

    Examples:
        >>> densities = flow_log_likelihood(jnp.zeros((1, 2)), jnp.array([0.5]))
        >>> print(f"{densities[0]:.3f}")  # 0.5 - log 2 pi
        -1.338
    """
    return standard_normal_log_density(z) + log_det


def dequantize(
    key: PRNGKey | None,
    x: Shaped[Array, "B *F"],
    *,
    levels: int | None = 256,
    eps: float = 0.05,
) -> tuple[Float[Array, "B *F"], Float[Array, "B"]]:
    """Spreads each of the levels of a pixel over an interval, and all of them over the
    real line: logit(eps + (1 - 2 eps) (v + u) / levels) of level v and u in [0, 1).

    Args:
        key: of the noise u, uniform; None takes the midpoints, u = 1/2.
        x: uint8, or floating in [0, 1], of which the nearest of the levels is taken.
        levels: how many values a pixel has, 0 and 1 the outermost; None for examples
            that are not quantised, which are returned as they are.
        eps: what is kept off 0 and 1, above 0 and below 1/2.

    Returns:
        y [B, *F], of any value, and log |det dy/d(v + u)| [B] in nats, with which the
        log-likelihood of y becomes one of v + u, at most 0 in the mean over u, as
        log-probabilities of levels are.

    Examples:
        >>> y, log_det = dequantize(None, jnp.array([[0.0, 1.0]]), levels=2)
        >>> print(f"{y[0, 0]:.3f}")  # the logit of 0.05 + 0.9 / 2 * (0 + 1 / 2)
        -0.969
    """
    if levels is None:
        return x, jnp.zeros(len(x))
    unit = x / 255.0 if x.dtype == jnp.uint8 else x
    noise = 0.5 if key is None else jax.random.uniform(key, x.shape)
    squeezed = eps + (1 - 2 * eps) / levels * (jnp.round(unit * (levels - 1)) + noise)
    slopes = math.log((1 - 2 * eps) / levels) - jnp.log(squeezed * (1 - squeezed))
    logits = jax.scipy.special.logit(squeezed)
    return logits, slopes.sum(axis=tuple(range(1, x.ndim)))
