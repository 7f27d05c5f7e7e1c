"""The error of each example by hand and against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.losses import reconstruction_error


def test_by_hand():
    x = jnp.array([[1.0, 2.0], [0.0, 0.0], [3.0, 3.0]])
    reconstructions = jnp.array([[0.0, 4.0], [0.0, 0.0], [3.0, 2.5]])
    errors = reconstruction_error(x, reconstructions)
    np.testing.assert_array_equal(errors, [5, 0, 0.25])


@pytest.mark.parametrize("shape", [(4,), (4, 7), (4, 3, 5, 2)])
def test_features_of_any_shape(key, shape):
    x, reconstructions = jax.random.normal(key, (2, *shape))
    expected = [
        np.linalg.norm(np.ravel(np.float64(a) - np.float64(b))) ** 2
        for a, b in zip(x, reconstructions, strict=True)
    ]
    for function in (reconstruction_error, jax.jit(reconstruction_error)):
        errors = function(x, reconstructions)
        assert errors.shape == (4,)
        np.testing.assert_allclose(errors, expected, rtol=1e-5)
    pairs = jnp.stack([x, 2 * x]), jnp.stack([reconstructions, 2 * reconstructions])
    np.testing.assert_allclose(
        jax.vmap(reconstruction_error)(*pairs),
        [expected, 4 * np.array(expected)],
        rtol=1e-5,
    )


def test_gradients_by_hand(key):
    """Twice the difference, of opposite signs."""
    x, reconstructions = jax.random.normal(key, (2, 4, 3, 2))
    gradients = jax.grad(
        lambda *pair: reconstruction_error(*pair).sum(), argnums=(0, 1)
    )(x, reconstructions)
    expected = 2 * (np.asarray(x) - np.asarray(reconstructions))
    np.testing.assert_allclose(gradients[0], expected, rtol=1e-6)
    np.testing.assert_allclose(gradients[1], -expected, rtol=1e-6)


def test_one_spoilt_example_spoils_no_other():
    x = jnp.ones((3, 2)).at[1, 0].set(jnp.nan)
    errors = reconstruction_error(x, jnp.zeros((3, 2)))
    np.testing.assert_array_equal(errors, [2, np.nan, 2])


def test_lower_precision_is_computed_in_float32():
    """In float16 squares of 300 would overflow."""
    x = jnp.full((2, 3), 300, jnp.float16)
    errors = reconstruction_error(x, jnp.zeros_like(x))
    assert errors.dtype == jnp.float32
    np.testing.assert_array_equal(errors, 270_000)
