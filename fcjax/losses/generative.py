"""Losses of generators, flows and auto-encoders.

What a discriminator and a generator lose to each other, as pure functions.

References:
    Goodfellow et al., `Generative Adversarial Nets <https://arxiv.org/abs/1406.2661>`_,
    2014, equation 1, and section 3 for the generator.
    Yan et al., `Federated deep clustering with GAN-based data synthesis
    <https://arxiv.org/abs/2211.16965>`_ (SDA-FDC), 2022, equation 2; code
    Jarvisyan/SDA-FC.

Likelihoods of flows: exact log-densities in nats, as pure functions.

Dinh, Sohl-Dickstein, Bengio: Density estimation using Real NVP (ICLR 2017,
https://arxiv.org/abs/1605.08803), Eq. 2 and section 4.1.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from fcjax.types import PRNGKey

# --- Adversarial


def discriminator_loss(
    real_logits: Float[Array, "B"],
    fake_logits: Float[Array, "B"],
    *,
    mask: Bool[Array, "B"] | None = None,
) -> Float[Array, ""]:
    """Tells real examples from fake ones.

    The mean of -log D over the real ones plus that of -log(1 - D) over the fake ones,
    where D is the sigmoid of a logit: minus Goodfellow's equation 1, and minus what
    SDA-FDC's equation 2 maximises.

    Args:
        real_logits: of real examples.
        fake_logits: of as many generated ones.
        mask: False at places of both that count nowhere; all count by default.

    Returns:
        A float32 scalar of at least 0, log 4 where all logits are 0; 0 with zero
        gradient where none counts.

    Examples:
        >>> loss = discriminator_loss(jnp.zeros(2), jnp.zeros(2))
        >>> print(f"{loss:.4f}")  # log 4: it cannot tell them apart
        1.3863
    """
    # 1 - sigmoid(x) is sigmoid(-x), which loses no digits.
    return -_log_sigmoid(real_logits, mask) - _log_sigmoid(-fake_logits, mask)


def generator_loss(
    fake_logits: Float[Array, "B"], *, mask: Bool[Array, "B"] | None = None
) -> Float[Array, ""]:
    """Passes fake examples off as real.

    The mean of -log D over the fake ones, Goodfellow's non-saturating form, as in the
    code of SDA-FC; SDA-FDC's equation 2 prints that of log(1 - D), whose gradient
    vanishes where the discriminator is sure.

    Args:
        fake_logits: the discriminator's, of generated examples.
        mask: False at places that count nowhere; all count by default.

    Returns:
        A float32 scalar of at least 0, log 2 where all logits are 0; 0 with zero
        gradient where none counts.

    Examples:
        >>> print(f"{generator_loss(jnp.zeros(2)):.4f}")  # log 2
        0.6931
    """
    return -_log_sigmoid(fake_logits, mask)


def _log_sigmoid(
    logits: Float[Array, "B"], mask: Bool[Array, "B"] | None
) -> Float[Array, ""]:
    """The mean over the places that count."""
    logits = logits.astype(jnp.float32)
    if mask is None:
        return jax.nn.log_sigmoid(logits).mean()
    # A zero in its place hides a NaN from the gradient.
    values = jax.nn.log_sigmoid(jnp.where(mask, logits, 0))
    return jnp.sum(values, where=mask) / jnp.maximum(mask.sum(), 1)


# --- Likelihood


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


# --- Reconstruction


def reconstruction_error(
    x: Float[Array, "B *F"], reconstructions: Float[Array, "B *F"]
) -> Float[Array, "B"]:
    """The squared error of each example, summed over its features.

    Summed over examples it is |X - X^|_F^2, twice the first term of FDSC's equation 4.

    Args:
        x: examples of any shape.
        reconstructions: the decoder's outputs.

    Returns:
        float32 [B], at least 0; no row depends on any other.

    Examples:
        >>> x = jnp.array([[0.0, 0.0], [1.0, 1.0]])
        >>> print(reconstruction_error(x, jnp.array([[0.0, 1.0], [3.0, 1.0]])))
        [1. 4.]
    """
    differences = x.astype(jnp.float32) - reconstructions.astype(jnp.float32)
    return jnp.sum(differences**2, axis=tuple(range(1, x.ndim)))
