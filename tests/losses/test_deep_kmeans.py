"""DCN's loss against NumPy."""

import jax
import numpy as np

from fcjax.losses import deep_kmeans


def test_value_is_that_of_the_equation(key):
    """SDA-FDC's equation 3 over the number of examples; its centroids are fixed."""
    shapes = [(7, 5), (7, 5), (7, 3), (7, 3)]
    keys = jax.random.split(key, 4)
    batch = [jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True)]
    step = jax.jit(jax.value_and_grad(deep_kmeans, argnums=(2, 3)))
    for weight in (0.0, 0.5, 20.0):
        loss, gradients = step(*batch, cluster_weight=weight)
        x, reconstructions, z, centroids = (np.float64(array) for array in batch)
        expected = [
            np.linalg.norm(x[i] - reconstructions[i]) ** 2
            + weight / 2 * np.linalg.norm(z[i] - centroids[i]) ** 2
            for i in range(7)
        ]
        np.testing.assert_allclose(loss, np.mean(expected), rtol=1e-5)
        np.testing.assert_allclose(
            gradients[0], weight * (z - centroids) / 7, rtol=1e-5
        )
        np.testing.assert_array_equal(gradients[1], 0)
