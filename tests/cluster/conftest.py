import jax.numpy as jnp
import pytest
from sklearn.datasets import make_blobs


@pytest.fixture(scope="package")
def blobs():
    """Six of them in 300 rows, close to each other."""
    x, _ = make_blobs(300, 8, centers=6, cluster_std=3.0, random_state=0)
    return jnp.array(x, jnp.float32)
