import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_digits, make_blobs
from sklearn.metrics import silhouette_score

from fcjax.cluster import count_clusters, silhouette


def test_as_sklearn():
    """With empty clusters and one of a single row, also far from the origin."""
    x, classes = load_digits(return_X_y=True)
    x, classes = x[:400] / 16, 2 * classes[:400] + 1
    classes[7] = 0
    of = jax.jit(silhouette, static_argnames="num_clusters")
    for offset in (0.0, 100.0):
        rows = jnp.asarray(x + offset, jnp.float32)
        found = of(rows, jnp.asarray(classes), num_clusters=25)
        assert float(found) == pytest.approx(silhouette_score(x, classes), abs=1e-4)


def test_what_has_no_silhouette_counts_0():
    x, equal = jnp.array([[0.0], [1.0], [5.0], [6.0]]), jnp.ones((4, 1))
    of = jax.jit(silhouette, static_argnames="num_clusters")
    for rows, classes, count in (
        (x, [0, 0, 0, 0], 4),
        (x, [0, 1, 2, 3], 4),
        (equal, [0, 0, 1, 1], 4),
        (x, [0, 0, 1, 1], 0),
    ):
        mask = jnp.arange(4) < count
        assert of(rows, jnp.array(classes), num_clusters=4, mask=mask) == 0


def test_clients_are_counted_apart(key):
    """Of their blobs one is masked."""
    clients = [
        make_blobs(90, 20, centers=n + 1, random_state=n, shuffle=False)
        for n in (2, 3, 5)
    ]
    mask = np.stack([own < own.max() for _, own in clients])
    x = np.where(mask[..., None], np.stack([x for x, _ in clients]), np.nan)
    found = jax.jit(
        jax.vmap(lambda x, mask: count_clusters(key, x, most=6, mask=mask, num_init=3))
    )(jnp.asarray(x, jnp.float32), jnp.asarray(mask))
    np.testing.assert_array_equal(found, [2, 3, 5])
    assert found.dtype == jnp.int32


def test_the_fewest_of_equally_many(key):
    # Two points: a third cluster stays empty or lies on one of them.
    x = jnp.repeat(jnp.array([[0.0, 0.0], [3.0, 4.0]]), 5, axis=0)
    assert count_clusters(key, x, most=4) == 2
