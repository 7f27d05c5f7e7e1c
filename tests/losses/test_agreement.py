"""Orchestra's cross-entropy of soft clusters by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.losses import cluster_agreement

CENTROIDS = jnp.array([[1.0, 0.0], [0.0, 1.0]])


def test_by_hand():
    """At T = 1: the target (1, 0) has e / (e + 1) and 1 / (e + 1), and the projection
    of direction (0, 1) the logarithms of the reverse. Lengths do not matter."""
    v, u = jnp.array([[0.0, 3.0]]), jnp.array([[2.0, 0.0]])
    e = np.e
    expected = -(e * np.log(1 / (e + 1)) + np.log(e / (e + 1))) / (e + 1)
    found = cluster_agreement(v, u, CENTROIDS, temperature=1.0)
    assert float(found) == pytest.approx(expected, rel=1e-6)
