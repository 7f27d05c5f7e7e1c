"""KM and FCM of all examples in one place, and how these come there."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import cluster
from sklearn.datasets import make_blobs

from fcjax.algorithms.central import (
    Clustering,
    Phase,
    by_fuzzy_cmeans,
    by_kmeans,
    central,
)
from fcjax.cluster import fuzzy_cmeans
from fcjax.methods import FuzzyCMeans, KMeans
from tests.algorithms.federations import federate, follow, rounds, traffic

POOL = make_blobs(120, 6, centers=4, cluster_std=2.0, random_state=1)[0]


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def dealt(seed, sizes=(50, 30, 20, 20), **options):
    rows = np.random.default_rng(seed).permutation(sum(sizes))
    return federate(POOL, np.split(rows, np.cumsum(sizes)[:-1]), **options)


def of_clients(federation):
    return POOL[np.asarray(federation.indices)]


def kmeans(num_clusters=4, *, num_used=None, by_cosine=False, **options):
    settings = KMeans(**{"num_init": 2} | options).plain()
    numbers = {"num_clusters": num_clusters, "num_used": num_used}
    return central(by_kmeans(settings, **numbers, by_cosine=by_cosine))


def test_km_is_as_good_as_scikit_learn_on_the_data_of_those_present(key):
    federation = dealt(0, absent=(1,))
    _, metrics = rounds(kmeans(num_init=10, unit_length=False), key, federation)
    present = np.asarray(federation.mask & federation.present[0][:, None])
    held = of_clients(federation)[present]
    reference = cluster.KMeans(4, n_init=10, tol=0, random_state=0).fit(held)
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
    settings = FuzzyCMeans(**options).plain()
    method = central(by_fuzzy_cmeans(settings, num_clusters=4))
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


# --- A server with examples in phases

ROWS = (np.array([4, 0, 5]), np.array([1]), np.array([3, 2]))
PRESENT = np.array([[1, 0, 0], [0, 0, 1], [1, 0, 1], [0, 0, 0], [0, 1, 1]], bool)
POWERS = 2.0 ** np.arange(6)[:, None]  # so that a sum tells who is in it


class Total(NamedTuple):
    """Made up: sums of the examples that count, and how often a phase began."""

    sums: jax.Array
    begun: jax.Array


def total(x, mask):
    return jnp.sum(x, where=mask[:, None], axis=0)


def begin(key, state, x, mask):
    return Total(state.sums, state.begun + total(x, mask))


def add_up(key, state, x, mask, now):
    sums = state.sums + total(x, mask)
    return Total(sums, state.begun), sums.sum()


ADDING_UP = Clustering(
    lambda key, x: Total(0 * x[0], 0 * x[0]),
    (Phase("one", begin, add_up, 2), Phase("two", begin, add_up, 3)),
    embed=lambda state, x: x + state.sums[None],
    assign=lambda state, z: (z[:, 0] > state.sums[0] + 10).astype(jnp.int32),
    results=lambda state: {"sums": state.sums, "pair": (state.sums, state.begun)},
)


@pytest.fixture(scope="module")
def data():
    return federate(POWERS, ROWS)._replace(present=jnp.asarray(PRESENT))


def test_a_phase_has_the_examples_of_those_who_came_by_then(data):
    first, second, third = (POWERS[rows].sum() for rows in ROWS)
    of_rounds = [first, *[first + third] * 3, first + second + third]
    sums = np.cumsum(of_rounds)
    found = follow(central(ADDING_UP), data)
    states, metrics = ([getattr(x, k) for x in found] for k in ("after", "metrics"))
    servers = [state.server for state in states]
    np.testing.assert_allclose([x.clustering.sums[0] for x in servers], sums)
    np.testing.assert_allclose([row["loss"] for row in metrics], sums)
    # A phase begins with what is there, which is nothing before the first round.
    begun = [x.clustering.begun[0] for x in servers]
    np.testing.assert_allclose(begun, [0, 0, *[first + third] * 3])
    arrived = [state.clients for state in states]
    np.testing.assert_array_equal(arrived, np.logical_or.accumulate(PRESENT))

    # Examples go up once and results down in the last round: an example is one float32,
    # the results three of them.
    uploads = [[3, 4], [2, 4], [0, 4], [0, 4], [1, 4]]
    receivers = [0, 0, 0, 0, 2]
    for row, up, down in zip(metrics, uploads, receivers, strict=True):
        sent = {"up_examples": up, "down_sums": [down, 4], "down_pair": [down, 8]}
        assert traffic(row) == sent
        assert set(row) == {"loss", "participants", *sent}
    assert [int(row["participants"]) for row in metrics] == [1, 1, 2, 0, 2]
