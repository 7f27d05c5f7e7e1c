import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import KMeans

from fcjax.algorithms.kfed import (
    aggregate,
    kfed,
    local_start,
    top_singular_vectors,
)
from fcjax.cluster.seeding import plus_plus
from fcjax.evaluation import ari
from tests.algorithms.federations import federate, rounds


def separated(seed, num_clients=20, num_clusters=16, own=4, size=10):
    """Clients that hold some of the blobs each: the centres are 20 apart or more, the
    blobs have a deviation of 1 in 20 dimensions."""
    rng = np.random.default_rng(seed)
    centres = 20.0 * np.linalg.qr(rng.normal(size=(20, 20)))[0][:num_clusters]
    # Every cluster is somewhere, the rest is drawn.
    held = [(own * i + np.arange(own)) % num_clusters for i in range(num_clients // 2)]
    held += [
        rng.choice(num_clusters, own, replace=False) for _ in range(num_clients // 2)
    ]
    labels = np.repeat(np.concatenate(held), size)
    pool = centres[labels] + rng.normal(size=(len(labels), 20))
    clients = np.split(np.arange(len(labels)), num_clients)
    return pool, labels, clients


@pytest.mark.parametrize("inherit", [True, False])
def test_disjoint_separated_blobs_are_recovered_by_twenty_seeds_of_twenty(inherit):
    method = kfed(num_clusters=16, local_clusters=4, unit_length=False, inherit=inherit)

    @jax.jit
    def run(key, federation):
        state, _ = rounds(method, key, federation, 1)
        return method.assign(state, federation)

    recovered = 0
    for seed in range(20):
        pool, labels, clients = separated(seed)
        federation = federate(pool, clients)
        found = np.asarray(run(jax.random.key(seed), federation))
        recovered += ari(labels[np.asarray(federation.indices)].ravel(), found.ravel())
    assert recovered == pytest.approx(20)


def test_singular_vectors_span_what_numpy_finds(key):
    rng = np.random.default_rng(0)
    decay = 0.7 ** np.arange(30)
    x = rng.normal(size=(200, 30)) * decay + 1.0  # not centred
    found = np.asarray(top_singular_vectors(key, jnp.asarray(x, jnp.float32), 4))
    _, _, vt = np.linalg.svd(x, full_matrices=False)
    np.testing.assert_allclose(found.T @ found, np.eye(4), atol=1e-5)
    np.testing.assert_allclose(found @ found.T, vt[:4].T @ vt[:4], atol=1e-4)


def test_seeds_move_to_the_mean_of_what_is_three_times_nearer(key):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 2)) + 6 * rng.integers(0, 2, size=(60, 1))
    mask = np.arange(60) < 50
    rows = jnp.asarray(x, jnp.float32)
    start = local_start(key, rows, jnp.asarray(mask), num_clusters=2)
    # Two clusters in two dimensions: there is nothing to project.
    _, seed_key = jax.random.split(key)
    own = jnp.where(jnp.asarray(mask)[:, None], rows, 0)
    seeds = np.asarray(plus_plus(seed_key, own, jnp.asarray(mask, jnp.float32), 2))
    assert mask[seeds].all()
    for r, s in ((0, 1), (1, 0)):
        to_r, to_s = (np.linalg.norm(x - x[seeds[i]], axis=1) for i in (r, s))
        expected = x[mask & (3 * to_r <= to_s)].mean(axis=0)
        np.testing.assert_allclose(start[r], expected, atol=1e-5)


def test_the_server_begins_with_the_first_that_answered_and_adds_the_farthest():
    # Client 0 is absent. Client 1 has 0 and 1, client 2 has 10 and 11, client 3 has 0.4
    # and 50: farthest first takes 50, Lloyd leaves {0, 0.4}, {1} and so on.
    received = jnp.array([[[7.0], [8.0]], [[0.0], [1.0]], [[10.0], [11.0]]])
    received = jnp.concatenate([received, jnp.array([[[0.4], [50.0]]])])
    answered = jnp.array([False, True, True, True])
    found = aggregate(received, answered, num_clusters=3, num_iters=300)
    reference = KMeans(3, init=[[0.0], [1.0], [50.0]], n_init=1, tol=0)
    reference.fit([[0.0], [1.0], [10.0], [11.0], [0.4], [50.0]])
    np.testing.assert_allclose(found, reference.cluster_centers_, atol=1e-5)


def test_a_client_keeps_its_clusters_whole_and_strangers_go_to_the_nearest(key):
    pool, _, clients = separated(0)
    federation = federate(pool, clients, absent=(3,))
    # Two local clusters for four blobs: they are near other examples than their own.
    method = kfed(num_clusters=5, local_clusters=2, unit_length=False)
    state, metrics = rounds(method, key, federation, 1)
    assert metrics["participants"] == 19
    # Down come the numbers of the server's clusters, up go the centroids.
    np.testing.assert_array_equal(metrics["up_centroids"], [19, 2 * 20 * 4])
    np.testing.assert_array_equal(metrics["down_clusters"], [19, 2 * 4])
    nearest = kfed(num_clusters=5, local_clusters=2, inherit=False)
    _, metrics = rounds(nearest, key, federation, 1)
    # Clients then assign by the centroids themselves.
    np.testing.assert_array_equal(metrics["down_centroids"], [19, 5 * 20 * 4])
    assert "down_clusters" not in metrics

    rows = pool[np.asarray(federation.indices)]
    centroids = np.asarray(state.centroids)
    nearest = np.linalg.norm(rows[:, :, None] - centroids, axis=-1).argmin(axis=-1)
    local = np.asarray(state.local_centroids)
    own = np.linalg.norm(rows[:, :, None] - local[:, None], axis=-1).argmin(axis=-1)
    of_local = np.linalg.norm(local[:, :, None] - centroids, axis=-1).argmin(axis=-1)
    expected = np.take_along_axis(of_local, own, axis=1)
    expected[3] = nearest[3]
    np.testing.assert_array_equal(method.assign(state, federation), expected)
    assert (expected != nearest).any()

    stranger = federate(pool, [np.arange(len(pool))])
    np.testing.assert_array_equal(
        method.assign(state, stranger)[0],
        np.linalg.norm(pool[:, None] - centroids, axis=-1).argmin(axis=-1),
    )


def test_a_client_finds_no_more_clusters_than_the_server():
    with pytest.raises(ValueError, match=r"--local-clusters must lie in 1\.\.3"):
        kfed(num_clusters=3, local_clusters=4)
