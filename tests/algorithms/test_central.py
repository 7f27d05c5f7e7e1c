"""KM and FCM of all examples in one place. How they come there is in `test_pooling`."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

from fcjax.algorithms.central import by_fuzzy_cmeans, by_kmeans, central
from fcjax.cluster import fuzzy_cmeans
from tests.algorithms.federations import federate, rounds, traffic

POOL = make_blobs(120, 6, centers=4, cluster_std=2.0, random_state=1)[0]


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def dealt(seed, sizes=(50, 30, 20, 20), **options):
    rows = np.random.default_rng(seed).permutation(sum(sizes))
    return federate(POOL, np.split(rows, np.cumsum(sizes)[:-1]), **options)


def of_clients(federation):
    return POOL[np.asarray(federation.indices)]


def kmeans(**options):
    return central(by_kmeans(**{"num_clusters": 4, "num_init": 2} | options))


def test_km_is_as_good_as_scikit_learn_on_the_data_of_those_present(key):
    federation = dealt(0, absent=(1,))
    _, metrics = rounds(kmeans(num_init=10, unit_length=False), key, federation)
    present = np.asarray(federation.mask & federation.present[0][:, None])
    held = of_clients(federation)[present]
    reference = KMeans(4, n_init=10, tol=0, random_state=0).fit(held)
    np.testing.assert_allclose(metrics["loss"], reference.inertia_ / 90, rtol=1e-3)
    assert metrics["participants"] == 3
    assert traffic(metrics) == {
        "up_examples": [90, 6 * 4],
        "down_centroids": [3, 4 * 6 * 4],
    }


@pytest.mark.parametrize("unit_length", [True, False])
def test_examples_go_to_the_nearest_centroid_however_they_were_dealt(key, unit_length):
    federation, method = dealt(0), kmeans(unit_length=unit_length)
    state, _ = rounds(method, key, federation)
    rows = of_clients(federation)
    if unit_length:
        rows = unit(rows)
    np.testing.assert_allclose(method.embed(state, federation), rows, atol=1e-6)
    centroids = np.asarray(state.server.clustering)
    distances = np.linalg.norm(rows[:, :, None] - centroids, axis=-1)
    found = method.assign(state, federation)
    np.testing.assert_array_equal(found, distances.argmin(axis=-1))
    other, _ = rounds(method, key, dealt(5, (50, 45, 20, 5)))
    np.testing.assert_array_equal(centroids, other.server.clustering)


def test_fcm_is_fuzzy_c_means_of_the_unit_rows(key):
    options = {"fuzzifier": 1.3, "num_init": 2}
    method = central(by_fuzzy_cmeans(num_clusters=4, **options))
    state, metrics = rounds(method, key, dealt(0))
    found = fuzzy_cmeans(key, jnp.asarray(unit(POOL), "float32"), 4, **options)
    np.testing.assert_allclose(state.server.clustering, found.centroids, atol=1e-5)
    np.testing.assert_allclose(metrics["loss"], found.objective / 120, rtol=1e-5)


def test_by_cosine_an_example_goes_to_the_largest_inner_product(key):
    """Of unit centroids, as SDA-FC's code assigns; their lengths differ before."""
    federation, method = dealt(0), kmeans(by_cosine=True)
    near, _ = rounds(kmeans(), key, federation)
    centroids = np.asarray(near.server.clustering)
    assert np.linalg.norm(centroids, axis=1).min() < 0.99
    state, metrics = rounds(method, key, federation)
    np.testing.assert_allclose(state.server.clustering, unit(centroids), atol=1e-6)
    expected = (of_clients(federation) @ unit(centroids).T).argmax(axis=-1)
    np.testing.assert_array_equal(method.assign(state, federation), expected)

    # With fewer clusters used it is that of fewer.
    more = kmeans(num_clusters=6, num_used=jnp.int32(4), by_cosine=True)
    found, measured = rounds(more, key, federation)
    same = (found.server.clustering[:4], state.server.clustering)
    np.testing.assert_allclose(*same, atol=1e-5)
    np.testing.assert_allclose(measured["loss"], metrics["loss"], rtol=1e-5)
    np.testing.assert_array_equal(more.assign(found, federation), expected)
