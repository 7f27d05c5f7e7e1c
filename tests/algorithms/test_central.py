import jax
import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

from fcjax.algorithms.central import by_fuzzy_cmeans, by_kmeans, central
from fcjax.cluster import fuzzy_cmeans
from tests.algorithms.federations import federate, rounds


@pytest.fixture(scope="module")
def pool():
    return make_blobs(120, 6, centers=4, cluster_std=2.0, random_state=1)[0]


def dealt(seed, sizes=(50, 30, 20, 20)):
    rows = np.random.default_rng(seed).permutation(sum(sizes))
    return np.split(rows, np.cumsum(sizes)[:-1])


def test_km_is_as_good_as_scikit_learn_on_the_data_of_those_present(key, pool):
    clients = dealt(0)
    method = central(by_kmeans(num_clusters=4, unit_length=False))
    _, metrics = rounds(method, key, federate(pool, clients, absent=(1,)), 1)
    held = pool[np.concatenate([clients[0], clients[2], clients[3]])]
    reference = KMeans(4, n_init=10, tol=0, random_state=0).fit(held)
    np.testing.assert_allclose(
        metrics["loss"], reference.inertia_ / len(held), rtol=1e-3
    )
    assert metrics["participants"] == 3


def test_what_is_sent_is_every_example_and_back_the_centroids(key, pool):
    method = central(by_kmeans(num_clusters=4, num_init=1))
    _, metrics = rounds(method, key, federate(pool, dealt(0), absent=(1,)), 1)
    np.testing.assert_array_equal(metrics["up_examples"], [90, 6 * 4])
    np.testing.assert_array_equal(metrics["down_centroids"], [3, 4 * 6 * 4])


def test_how_the_data_was_dealt_changes_nothing(key, pool):
    method = central(by_kmeans(num_clusters=4, num_init=2))
    one, _ = rounds(method, key, federate(pool, dealt(0)), 1)
    other, _ = rounds(method, key, federate(pool, dealt(5, (90, 10, 15, 5))), 1)
    np.testing.assert_array_equal(one.clustering, other.clustering)


@pytest.mark.parametrize("unit_length", [True, False])
def test_examples_go_to_the_nearest_centroid(key, pool, unit_length):
    federation = federate(pool, dealt(0))
    method = central(by_kmeans(num_clusters=4, unit_length=unit_length))
    state, _ = rounds(method, key, federation, 1)
    rows = pool[np.asarray(federation.indices)]
    if unit_length:
        rows = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
    np.testing.assert_allclose(method.embed(state, federation), rows, atol=1e-6)
    distances = np.linalg.norm(rows[:, :, None] - np.asarray(state.clustering), axis=-1)
    np.testing.assert_array_equal(
        method.assign(state, federation), distances.argmin(axis=-1)
    )


def test_fcm_is_fuzzy_c_means_of_the_unit_rows(key, pool):
    method = central(by_fuzzy_cmeans(num_clusters=4, fuzzifier=1.3, num_init=2))
    state, metrics = rounds(method, key, federate(pool, dealt(0)), 1)
    unit = pool / np.linalg.norm(pool, axis=1, keepdims=True)
    found = fuzzy_cmeans(
        key, jax.numpy.asarray(unit, "float32"), 4, fuzzifier=1.3, num_init=2
    )
    np.testing.assert_allclose(state.clustering, found.centroids, atol=1e-5)
    np.testing.assert_allclose(metrics["loss"], found.objective / 120, rtol=1e-5)
