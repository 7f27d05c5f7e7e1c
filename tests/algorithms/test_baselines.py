"""FFCM and exact c-means: rounds against the formulas, and the central methods."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, make_blobs

from fcjax.algorithms.baselines import (
    cluster_all,
    exact_cmeans,
    ffcm,
    support_mean,
)
from fcjax.methods import FFCM, ExactKMeans
from tests.algorithms.federations import federate, rounds, traffic
from tests.cluster.test_fuzzy import naive_memberships, skfuzzy_from

CLIENTS = np.split(np.arange(90), [40, 60])
POOL = make_blobs(90, 5, centers=3, cluster_std=1.5, random_state=2)[0]
POOL /= np.linalg.norm(POOL, axis=1, keepdims=True)


def naive_client(x, centroids, fuzzifier, num_iters):
    """Centroids and supports after some iterations of Bezdek's formulas."""
    for _ in range(num_iters):
        shares = naive_memberships(x, centroids, fuzzifier) ** fuzzifier
        centroids = (shares.T @ x) / shares.sum(axis=0)[:, None]
    return centroids, naive_memberships(x, centroids, fuzzifier).sum(axis=0)


def test_a_round_is_the_support_weighted_mean_of_the_clients_own(key):
    settings = FFCM(fuzzifier=1.5, local_iters=4, unit_length=False).plain()
    method = ffcm(settings, num_clusters=3, aggregation="mean", tolerance=0.0)
    federation = federate(POOL, CLIENTS, absent=(1,))
    start = np.asarray(method.init(key, federation).server.centroids, np.float64)
    assert ((start >= 0) & (start < 1)).all()
    state, metrics = rounds(method, key, federation)

    found = [naive_client(POOL[CLIENTS[i]], start, 1.5, 4) for i in (0, 2)]
    sums = sum(support[:, None] * centroids for centroids, support in found)
    expected = sums / sum(support for _, support in found)[:, None]
    np.testing.assert_allclose(state.server.centroids, expected, rtol=1e-4, atol=1e-5)
    moved = np.linalg.norm(expected - start)
    np.testing.assert_allclose(metrics["moved"], moved, rtol=1e-4)
    centroids = [2, 3 * 5 * 4]
    assert traffic(metrics) == {
        "up_centroids": centroids,
        "up_supports": [2, 3 * 4],
        "down_centroids": centroids,
    }


def test_a_centroid_without_support_stays():
    received = jnp.array([[[1.0], [5.0]], [[3.0], [0.0]], [[9.0], [9.0]]])
    supports = jnp.array([[1.0, 0.0], [3.0, 0.0], [50.0, 50.0]])
    answered = jnp.array([True, True, False])
    found = support_mean(received, supports, answered, jnp.array([[0.0], [7.0]]))
    np.testing.assert_allclose(found, [[(1 * 1 + 3 * 3) / 4], [7.0]])


def test_clustering_starts_anew_once_and_then_from_the_last_centroids(key):
    points = np.random.default_rng(0).normal(size=(6, 4, 3)).astype(np.float32)
    answered = np.array([True, True, False, True, True, True])
    before = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    own = points[answered].reshape(-1, 3)
    find = jax.jit(cluster_all)
    arguments = (key, jnp.asarray(points), jnp.asarray(answered), jnp.asarray(before))
    warm = find(*arguments, jnp.array(False))
    reference = KMeans(4, init=before, n_init=1, tol=0).fit(own)
    np.testing.assert_allclose(warm, reference.cluster_centers_, atol=1e-5)
    first = np.asarray(find(*arguments, jnp.array(True)))
    inertia = np.square(own[:, None] - first).sum(axis=-1).min(axis=1).sum()
    best = KMeans(4, n_init=20, random_state=0).fit(own).inertia_
    assert inertia <= best * 1.02


# --- Exact c-means

DIGITS = load_digits().data[:400] / 16
HOLDERS = np.split(np.random.default_rng(0).permutation(400), [30, 180, 250])
HELD = np.concatenate([HOLDERS[i] for i in (0, 1, 3)])


@pytest.fixture(scope="module")
def federation():
    """Client 2 is absent: all is as if it were not there."""
    spoilt = DIGITS.copy()
    spoilt[HOLDERS[2]] = np.nan
    return federate(spoilt, HOLDERS, absent=(2,))


def follow(federation, settings, **options):
    """The centroids from the first ones to where the stage is done, and the metrics of
    the first round."""
    method = exact_cmeans(settings.plain(), num_clusters=10, **options)
    (stage,) = method.stages
    state = method.init(jax.random.key(0), federation)
    state = jax.jit(stage.begin)(jax.random.key(0), state, federation)
    round, measured = jax.jit(stage.round), []
    found = [np.asarray(state.server.clusters.centroids)]
    while not stage.done(state) and len(measured) < stage.num_rounds:
        state, metrics = round(jax.random.key(0), state, federation)
        found.append(np.asarray(state.server.clusters.centroids))
        measured.append(metrics)
    return found, measured[0]


def test_k_means_is_the_central_one_from_the_same_start(federation):
    """Clients of 30 to 150 examples: the mean of their own means is another loss."""
    found, metrics = follow(federation, ExactKMeans(unit_length=False, num_rounds=300))
    assert 2 < len(found) - 1 < 300
    central = KMeans(10, init=found[0], n_init=1, tol=0).fit(DIGITS[HELD])
    np.testing.assert_allclose(found[-1], central.cluster_centers_, atol=1e-4)
    squares = ((DIGITS[HELD][:, None] - found[0]) ** 2).sum(axis=-1).min(axis=1)
    np.testing.assert_allclose(metrics["loss"], squares.mean(), rtol=1e-5)
    assert metrics["participants"] == 3
    centroids, counts = 10 * 64 * 4, 10 * 4
    assert traffic(metrics) == {
        "up_sums": [3, centroids],
        "up_counts": [3, counts],
        "down_centroids": [3, centroids],
        "up_seeds": [3, centroids + counts + 10 * 4],  # and ten inertias
        "down_seeds": [3, 10 * centroids],
    }


def test_fuzzy_c_means_is_the_central_one_from_the_same_start(federation):
    settings = ExactKMeans(num_rounds=3000)
    found, _ = follow(federation, settings, fuzzifier=1.2, tolerance=1e-6)
    unit = DIGITS[HELD] / np.linalg.norm(DIGITS[HELD], axis=1, keepdims=True)
    # Rows are their own centroids at the start: 0 / 0 in the printed formula.
    reference = skfuzzy_from(unit, found[0] + 1e-6, 1.2)[0]
    np.testing.assert_allclose(found[-1], reference, atol=1e-4)
