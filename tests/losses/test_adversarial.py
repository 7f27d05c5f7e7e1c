"""The game of a discriminator and a generator by probabilities and at its ends."""

import jax
import jax.numpy as jnp
import numpy as np

from fcjax.losses import discriminator_loss, generator_loss


def test_values_are_those_of_the_equations(key):
    """Goodfellow's equation 1 and section 3."""
    real, fake = 3 * jax.random.normal(key, (2, 7))
    d_real, d_fake = (1 / (1 + np.exp(-np.float64(x))) for x in (real, fake))
    expected = -np.log(d_real).mean() - np.log(1 - d_fake).mean()
    np.testing.assert_allclose(discriminator_loss(real, fake), expected, rtol=1e-6)
    expected = -np.log(d_fake).mean()
    np.testing.assert_allclose(generator_loss(fake), expected, rtol=1e-6)


def test_sure_and_right_or_sure_and_wrong():
    """At +-1000 a probability is 0 or 1, and its logarithm minus the logit."""
    sure = jnp.array([1000.0])

    def step(loss, *logits):
        argnums = tuple(range(len(logits)))
        leaves = jax.tree.leaves(jax.value_and_grad(loss, argnums)(*logits))
        return [leaf.item() for leaf in leaves]

    assert step(discriminator_loss, sure, -sure) == [0, 0, 0]
    assert step(discriminator_loss, -sure, sure) == [2000, -1, 1]
    assert step(generator_loss, sure) == [0, 0]
    # Where the printed log(1 - D) has no slope left, this one has it all.
    assert step(generator_loss, -sure) == [1000, -1]
    assert step(lambda fake: -discriminator_loss(sure, fake), -sure) == [0, 0]
