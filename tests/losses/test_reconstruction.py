"""The error of each example by hand and against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.losses import reconstruction_error


@pytest.mark.parametrize("shape", [(4,), (4, 3, 5, 2)])
def test_features_of_any_shape(key, shape):
    """The gradient is twice the difference, of opposite signs."""
    pair = jax.random.normal(key, (2, *shape))
    errors, backwards = jax.vjp(reconstruction_error, *pair)
    differences = np.float64(pair[0]) - np.float64(pair[1])
    expected = [np.linalg.norm(np.ravel(row)) ** 2 for row in differences]
    np.testing.assert_allclose(errors, expected, rtol=1e-5)
    gradients = backwards(jnp.ones(4))
    np.testing.assert_allclose(gradients[0], 2 * differences, rtol=1e-6)
    np.testing.assert_allclose(gradients[1], -2 * differences, rtol=1e-6)
