"""What a discriminator and a generator lose to each other, as pure functions.

References:
    Goodfellow et al., `Generative Adversarial Nets <https://arxiv.org/abs/1406.2661>`_,
    2014, equation 1, and section 3 for the generator.
    Yan et al., `Federated deep clustering with GAN-based data synthesis
    <https://arxiv.org/abs/2211.16965>`_ (SDA-FDC), 2022, equation 2; code
    Jarvisyan/SDA-FC.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


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
