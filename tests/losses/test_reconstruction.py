"""The error of each example by hand and against NumPy."""

import jax
import numpy as np
import pytest

from fcjax.losses import reconstruction_error


@pytest.mark.parametrize("shape", [(4,), (4, 3, 5, 2)])
def test_features_of_any_shape(key, shape):
    pair = jax.random.normal(key, (2, *shape))
    differences = np.float64(pair[0]) - np.float64(pair[1])
    expected = [np.linalg.norm(np.ravel(row)) ** 2 for row in differences]
    np.testing.assert_allclose(reconstruction_error(*pair), expected, rtol=1e-5)
