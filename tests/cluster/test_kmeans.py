from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from fcjax.cluster import assign_nearest, kmeans, lloyd, used_clusters


@pytest.fixture(scope="module")
def digits():
    return jnp.array(load_digits().data[:600] / 16, jnp.float32)


def assert_same(result, expected):
    """The same clusters in the same order."""
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    close(result.centroids, expected.centroids)
    np.testing.assert_array_equal(result.assignments, expected.assignments)
    close(result.inertia, expected.inertia)


def test_as_good_as_sklearn(digits, key):
    reference = KMeans(10, n_init=10, tol=0, random_state=0).fit(np.array(digits))
    result = kmeans(key, digits, 10)
    assert result.inertia <= reference.inertia_ * (1 + 1e-3)
    assert result.assignments.dtype == jnp.int32
    assert result.centroids.dtype == result.inertia.dtype == jnp.float32


def assert_lloyd_equals_sklearn(x, start, **weights):
    result = lloyd(x, start, num_iters=300, **weights)
    reference = KMeans(len(start), init=np.array(start), n_init=1, tol=0)
    reference.fit(np.array(x), sample_weight=weights.get("weights"))
    np.testing.assert_allclose(result.centroids, reference.cluster_centers_, atol=1e-4)
    np.testing.assert_allclose(result.inertia, reference.inertia_, rtol=1e-4)
    np.testing.assert_array_equal(result.assignments, reference.labels_)


def test_lloyd_equals_sklearn(digits, key):
    # Digits lie on a lattice, where a row can be as near to one seed as to another.
    start = digits[jnp.arange(0, 200, 20)]
    start += 0.01 * jax.random.normal(key, start.shape)
    assert_lloyd_equals_sklearn(digits, start)


def test_weights_equal_sklearn(blobs, key):
    weights = jax.random.uniform(key, (300,), maxval=3).at[::7].set(0)
    assert_lloyd_equals_sklearn(blobs, blobs[:6], weights=weights)
    best = KMeans(6, n_init=10, tol=0, random_state=0)
    best = best.fit(np.array(blobs), sample_weight=np.array(weights))
    inertia = kmeans(key, blobs, 6, weights=weights).inertia
    assert inertia <= best.inertia_ * (1 + 1e-3)


def test_far_from_the_origin(blobs, key):
    result = kmeans(key, blobs + 1e4, 6)
    expected = kmeans(key, blobs, 6)
    np.testing.assert_allclose(result.inertia, expected.inertia, rtol=1e-3)


def test_an_empty_cluster_keeps_its_centroid():
    x = jnp.array([[0.0], [1.0], [10.0]])
    start = jnp.array([[0.0], [50.0], [9.0]])
    result = lloyd(x, start)
    np.testing.assert_allclose(result.centroids, [[0.5], [50.0], [10.0]], atol=1e-5)
    np.testing.assert_array_equal(result.assignments, [0, 0, 2])
    # A cluster whose rows are all masked is empty too.
    result = lloyd(x, start, mask=jnp.array([True, True, False]))
    np.testing.assert_allclose(result.centroids, [[0.5], [50.0], [9.0]], atol=1e-5)
    np.testing.assert_allclose(result.inertia, 0.5, rtol=1e-5)


# --- fifteen rows and seven clusters, for which there is little


def test_fewer_distinct_points_than_clusters(key):
    x = jnp.tile(jnp.array([[0.0, 1.0], [5.0, 5.0], [-3.0, 2.0]]), (5, 1))
    result = kmeans(key, x, 7)
    np.testing.assert_allclose(result.inertia, 0, atol=1e-8)
    np.testing.assert_allclose(result.centroids[result.assignments], x, atol=1e-5)
    points = {tuple(c) for c in np.round(result.centroids).tolist()}
    assert points == {(0.0, 1.0), (5.0, 5.0), (-3.0, 2.0)}


def test_rows_that_do_not_count_are_never_seeds(key):
    """They have a cluster all the same, the nearest."""
    x = jnp.arange(15.0)[:, None] * jnp.array([[1.0, 0.0]])
    counted = jnp.arange(15) % 7 == 3
    for options in ({"mask": counted}, {"weights": 2.0 * counted}):
        result = kmeans(key, x, 7, **options)
        assert set(np.round(result.centroids[:, 0]).tolist()) == {3.0, 10.0}
        nearest = assign_nearest(x, result.centroids)
        np.testing.assert_array_equal(result.assignments, nearest)


# --- fewer clusters used than there are


def test_used_clusters_are_those_of_fewer(blobs, key):
    """Seed by seed: with one seeding, and as many trials as fewer clusters have."""
    used = jnp.array([1, 3, 7, 9])
    mask = jnp.arange(300) % 5 > 0
    x = jnp.where(mask[:, None], blobs, jnp.nan)

    def cluster(num_used):
        return kmeans(key, x, 9, num_used=num_used, mask=mask, num_init=1)

    found = jax.jit(jax.vmap(cluster))(used)
    for i, k in enumerate(used.tolist()):
        result = jax.tree.map(lambda a, i=i: a[i], found)
        np.testing.assert_array_equal(used_clusters(result.centroids), np.arange(9) < k)
        assert np.isfinite(result.centroids).all()
        expected = kmeans(key, blobs, k, mask=mask, num_init=1)
        own, others = (
            r._replace(centroids=r.centroids[:k], assignments=r.assignments[mask])
            for r in (result, expected)
        )
        assert_same(own, others)
