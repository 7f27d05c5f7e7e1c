import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

from fcjax.algorithms.baselines import cluster_all, ffcm, support_mean
from tests.algorithms.federations import federate, rounds, traffic
from tests.cluster.test_fuzzy import naive_memberships

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
    method = ffcm(
        num_clusters=3,
        fuzzifier=1.5,
        local_iters=4,
        aggregation="mean",
        tolerance=0.0,
        unit_length=False,
    )
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


@pytest.mark.parametrize("aggregation", ["mean", "kmeans"])
def test_clients_that_hold_the_same_agree_with_one_and_end_where_it_stands_still(
    key, aggregation
):
    method = ffcm(num_clusters=3, aggregation=aggregation, local_iters=200)
    (stage,), rows = method.stages, np.arange(90)
    one = federate(POOL, [rows])
    many, _ = rounds(method, key, federate(POOL, [rows, rows, rows]), 6)
    alone, _ = rounds(method, key, one, 6)
    found, expected = (
        x[np.lexsort(x.T)] for x in (many.server.centroids, alone.server.centroids)
    )
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert not stage.done(method.init(key, one))
    assert stage.done(alone)
    assert alone.server.moved < 1e-4
