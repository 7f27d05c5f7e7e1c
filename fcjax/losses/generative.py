"""Losses of GANs, normalizing flows and auto-encoders, as pure functions.

* GANs: `discriminator_loss` and `generator_loss`.
* Flows: exact log-densities in nats, `standard_normal_log_density`,
  `flow_log_likelihood` and `dequantize`.
* Auto-encoders: `reconstruction_error`.

References:
    Goodfellow et al., `Generative Adversarial Nets <https://arxiv.org/abs/1406.2661>`_,
    2014, equation 1, and section 3 for the generator.
    Yan et al., `Federated deep clustering with GAN-based data synthesis
    <https://arxiv.org/abs/2211.16965>`_ (SDA-FDC), 2022, equation 2; code
    Jarvisyan/SDA-FC.
    Dinh, Sohl-Dickstein and Bengio, `Density estimation using Real NVP
    <https://arxiv.org/abs/1605.08803>`_ (RealNVP), ICLR 2017, equation 2 and section
    4.1.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from fcjax.shapes import checked
from fcjax.types import PRNGKey

# --- Adversarial


@checked
def discriminator_loss(
    real_logits: Float[Array, "B"],
    fake_logits: Float[Array, "C"],
    *,
    mask: Bool[Array, "B"] | None = None,
) -> Float[Array, ""]:
    """Computes the loss of a GAN's discriminator.

    The loss is the mean of -log D over real examples plus the mean of -log(1 - D) over
    generated ones, where D is the sigmoid of the logit. This is minus equation 1 of
    Goodfellow et al., and minus the objective that equation 2 of SDA-FDC maximizes.

    Args:
        real_logits: logits of real examples [B].
        fake_logits: logits of generated examples [C]; with a mask, C must be B.
        mask: [B], False at positions of both arrays to ignore. By default no position
            is ignored.

    Returns:
        A float32 scalar, at least 0. It is log 4 if all logits are 0. If the mask is
        False everywhere, the loss and its gradient are 0.

    Examples:
        >>> loss = discriminator_loss(jnp.zeros(2), jnp.zeros(2))
        >>> print(f"{loss:.4f}")  # log 4: real and generated examples look the same
        1.3863
    """
    # sigmoid(-x) equals 1 - sigmoid(x) without loss of digits.
    return -_log_sigmoid(real_logits, mask) - _log_sigmoid(-fake_logits, mask)


@checked
def generator_loss(
    fake_logits: Float[Array, "B"], *, mask: Bool[Array, "B"] | None = None
) -> Float[Array, ""]:
    """Computes the non-saturating loss of a GAN's generator.

    The loss is the mean of -log D over generated examples, where D is the sigmoid of
    the logit, as in the code of SDA-FC. Equation 2 of SDA-FDC prints the mean of log(1
    - D) instead, whose gradient vanishes where the discriminator is confident.

    Args:
        fake_logits: the discriminator's logits of generated examples [B].
        mask: [B], False at positions to ignore. By default no position is ignored.

    Returns:
        A float32 scalar, at least 0. It is log 2 if all logits are 0. If the mask is
        False everywhere, the loss and its gradient are 0.

    Examples:
        >>> print(f"{generator_loss(jnp.zeros(2)):.4f}")  # log 2
        0.6931
    """
    return -_log_sigmoid(fake_logits, mask)


def _log_sigmoid(
    logits: Float[Array, "B"], mask: Bool[Array, "B"] | None
) -> Float[Array, ""]:
    """Returns the mean log-sigmoid of the positions where the mask is True."""
    logits = logits.astype(jnp.float32)
    if mask is None:
        return jax.nn.log_sigmoid(logits).mean()
    # Masked logits become 0, so that their NaN reaches no gradient.
    values = jax.nn.log_sigmoid(jnp.where(mask, logits, 0))
    return jnp.sum(values, where=mask) / jnp.maximum(mask.sum(), 1)


# --- Likelihood


@checked
def standard_normal_log_density(z: Float[Array, "B D"]) -> Float[Array, "B"]:
    """Computes the log-density of each row under the standard normal distribution.

    The log-density is -(|z|^2 + D log(2 pi)) / 2.

    Args:
        z: points [B, D].

    Returns:
        [B], in nats, of any sign. Each value depends only on its own row.

    Examples:
        >>> densities = standard_normal_log_density(jnp.zeros((1, 2)))
        >>> print(f"{densities[0]:.3f}")  # -log(2 pi)
        -1.838
    """
    return -(jnp.sum(z**2, axis=1) + z.shape[1] * math.log(2 * math.pi)) / 2


@checked
def flow_log_likelihood(
    z: Float[Array, "B D"], log_det: Float[Array, "B"]
) -> Float[Array, "B"]:
    """Computes the log-density of the examples that a normalizing flow maps to z.

    The log-density is log N(z; 0, I) + log |det dz/dx|: equation 2 of RealNVP.

    Args:
        z: codes of the examples [B, D].
        log_det: log |det dz/dx| of each example [B], summed over all maps from x to z.

    Returns:
        float32 [B], in nats, of any sign. Each value depends only on its own row.

    Examples:
        >>> densities = flow_log_likelihood(jnp.zeros((1, 2)), jnp.array([0.5]))
        >>> print(f"{densities[0]:.3f}")  # 0.5 - log(2 pi)
        -1.338
    """
    return standard_normal_log_density(z) + log_det


@checked
def dequantize(
    key: PRNGKey | None,
    x: Shaped[Array, "B *F"],
    *,
    levels: int | None = 256,
    eps: float = 0.05,
) -> tuple[Float[Array, "B *F"], Float[Array, "B"]]:
    """Adds noise to quantized pixels and maps them to the real line by a logit.

    A pixel of level v becomes logit(eps + (1 - 2 eps) (v + u) / levels), where u in
    [0, 1) is the noise. A flow can then model the pixels as a continuous density:
    section 4.1 of RealNVP.

    Args:
        key: key of the uniform noise u. With None, u is 1/2.
        x: examples [B, ...]: uint8, or floating point in [0, 1], which is rounded to
            the nearest level.
        levels: number of values of a pixel; 0 and 1 are the smallest and the largest
            value of `x`. With None the examples are not quantized, and they are
            returned unchanged.
        eps: distance of the logit's argument from 0 and 1, above 0 and below 1/2.

    Returns:
        The transformed examples y [B, ...], of any value, and log |det dy/d(v + u)|
        [B], in nats. The log-likelihood of y plus this value is a log-density of v + u.
        Its mean over u is at most 0, as it is for log-probabilities of the levels.

    Examples:
        >>> y, log_det = dequantize(None, jnp.array([[0.0, 1.0]]), levels=2)
        >>> print(f"{y[0, 0]:.3f}")  # logit of 0.05 + 0.9 / 2 * (0 + 1 / 2)
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


@checked
def reconstruction_error(
    x: Float[Array, "B *F"], reconstructions: Float[Array, "B *F"]
) -> Float[Array, "B"]:
    """Computes the squared reconstruction error of each example, summed over features.

    The sum over examples is |X - X^|_F^2, twice the first term of equation 4 of FDSC.

    Args:
        x: examples of any shape [B, ...].
        reconstructions: outputs of the decoder, of the same shape.

    Returns:
        float32 [B], at least 0. Each value depends only on its own example.

    Examples:
        >>> x = jnp.array([[0.0, 0.0], [1.0, 1.0]])
        >>> print(reconstruction_error(x, jnp.array([[0.0, 1.0], [3.0, 1.0]])))
        [1. 4.]
    """
    differences = x.astype(jnp.float32) - reconstructions.astype(jnp.float32)
    return jnp.sum(differences**2, axis=tuple(range(1, x.ndim)))
