"""The game of a discriminator and a generator by hand and against PyTorch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from fcjax.losses import discriminator_loss, generator_loss


@pytest.fixture
def logits(key):
    """Of seven real examples and seven fake ones."""
    return tuple(3 * jax.random.normal(k, (7,)) for k in jax.random.split(key))


def losses_of(mask=None):
    """Both as functions of real and fake logits."""
    return {
        "discriminator": partial(discriminator_loss, mask=mask),
        "generator": lambda real, fake: generator_loss(fake, mask=mask),
    }


def naive(name, real, fake):
    """Goodfellow's equation 1 and section 3, by probabilities."""
    real, fake = np.asarray(real, np.float64), np.asarray(fake, np.float64)
    d_real, d_fake = 1 / (1 + np.exp(-real)), 1 / (1 + np.exp(-fake))
    if name == "generator":
        return -np.log(d_fake).mean()
    return -np.log(d_real).mean() - np.log(1 - d_fake).mean()


NAMES = list(losses_of())


def test_by_hand():
    """Logits of log(3) are probabilities of 3/4."""
    real, fake = jnp.log(jnp.array([3.0, 1.0])), jnp.log(jnp.array([3.0, 1 / 3]))
    # Real ones at 3/4 and 1/2; fake ones at 3/4 and 1/4.
    expected = -np.log(3 / 4 * 1 / 2) / 2 - np.log(1 / 4 * 3 / 4) / 2
    np.testing.assert_allclose(discriminator_loss(real, fake), expected, rtol=1e-6)
    expected = -np.log(3 / 4 * 1 / 4) / 2
    np.testing.assert_allclose(generator_loss(fake), expected, rtol=1e-6)


def test_who_cannot_tell_loses_log_4_and_log_2():
    undecided = jnp.zeros(5)
    loss = discriminator_loss(undecided, undecided)
    np.testing.assert_allclose(loss, np.log(4), rtol=1e-6)
    np.testing.assert_allclose(generator_loss(undecided), np.log(2), rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_the_equations(logits, name):
    loss = losses_of()[name](*logits)
    np.testing.assert_allclose(loss, naive(name, *logits), rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_those_of_torch(logits, name):
    torch = pytest.importorskip("torch")
    bce = torch.nn.functional.binary_cross_entropy_with_logits
    real, fake = (torch.tensor(np.asarray(x), requires_grad=True) for x in logits)
    expected = bce(fake, torch.ones(7))
    if name == "discriminator":
        expected = bce(real, torch.ones(7)) + bce(fake, torch.zeros(7))
    expected.backward()
    value, gradients = jax.value_and_grad(losses_of()[name], argnums=(0, 1))(*logits)
    np.testing.assert_allclose(value, expected.item(), rtol=1e-6)
    if name == "discriminator":
        np.testing.assert_allclose(gradients[0], real.grad.numpy(), atol=1e-7)
    else:
        np.testing.assert_array_equal(gradients[0], 0)
    np.testing.assert_allclose(gradients[1], fake.grad.numpy(), atol=1e-7)


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


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_differences(logits, name):
    loss = losses_of()[name]
    # check_grads itself passes NumPy arrays.
    check_grads(
        lambda a, b: loss(jnp.asarray(a), jnp.asarray(b)),
        logits,
        order=1,
        modes=["rev"],
        atol=1e-2,
        rtol=1e-2,
    )


@pytest.mark.parametrize("name", NAMES)
def test_same_under_jit_and_vmap(logits, name):
    real, fake = logits
    both = jax.value_and_grad(losses_of()[name], argnums=(0, 1))
    expected = [both(real, fake), both(fake, 2 * real)]
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, jax.jit(both)(real, fake), expected[0])
    stacked = jax.jit(jax.vmap(both))(
        jnp.stack([real, fake]), jnp.stack([fake, 2 * real])
    )
    for i in range(2):
        jax.tree.map(lambda x, y, i=i: close(x[i], y), stacked, expected[i])


@pytest.mark.parametrize("name", NAMES)
def test_lower_precision_is_computed_in_float32(logits, name):
    short = [x.astype(jnp.bfloat16) for x in logits]
    loss = losses_of()[name](*short)
    assert loss.dtype == jnp.float32
    np.testing.assert_allclose(loss, naive(name, *short), rtol=1e-6)


@pytest.mark.parametrize("spoiler", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_masked_places_may_hold_anything(logits, name, spoiler):
    mask = np.array([True, False, True, True, False, False, True])
    spoilt = [jnp.where(jnp.asarray(mask), x, spoiler) for x in logits]
    masked = losses_of(jnp.asarray(mask))[name]
    value, gradients = jax.value_and_grad(masked, argnums=(0, 1))(*spoilt)
    counted = [x[mask] for x in logits]
    np.testing.assert_allclose(value, naive(name, *counted), rtol=1e-6)
    references = jax.grad(losses_of()[name], argnums=(0, 1))(*counted)
    for gradient, reference in zip(gradients, references, strict=True):
        np.testing.assert_allclose(gradient[mask], reference, atol=1e-7)
        np.testing.assert_array_equal(gradient[~mask], 0)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_left_is_zero(logits, name):
    loss = losses_of(jnp.zeros(7, bool))[name]
    value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(*logits)
    assert value == 0
    np.testing.assert_array_equal(gradients, 0)
