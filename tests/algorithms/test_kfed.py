from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import KMeans

from fcjax.algorithms.kfed import aggregate, kfed, projected_start, top_singular_vectors
from fcjax.cli.main import main
from fcjax.cluster.kmeans import plus_plus
from fcjax.methods import SCRIPTS, KFed
from tests.algorithms.federations import federate, rounds, traffic


def build(num_clusters, local_clusters, **options):
    settings = KFed(local_clusters=local_clusters, **options).plain()
    return kfed(settings, num_clusters=num_clusters)


def separated(seed):
    """Twenty clients that hold four of 16 blobs each, ten examples of every one: the
    centres are 20 apart or more, the blobs have a deviation of 1 in 20 dimensions."""
    rng = np.random.default_rng(seed)
    centres = 20.0 * np.linalg.qr(rng.normal(size=(20, 20)))[0][:16]
    # Every cluster is somewhere, the rest is drawn.
    held = [(4 * i + np.arange(4)) % 16 for i in range(10)]
    held += [rng.choice(16, 4, replace=False) for _ in range(10)]
    labels = np.repeat(np.concatenate(held), 10)
    pool = centres[labels] + rng.normal(size=(len(labels), 20))
    return pool, labels, np.split(np.arange(len(labels)), 20)


def nearest(x, centroids):
    return np.linalg.norm(x[..., :, None, :] - centroids, axis=-1).argmin(axis=-1)


@pytest.mark.parametrize("local_start", ["projected", "kmeans++"])
def test_a_client_with_few_examples_uploads_them_with_a_warning(
    local_start, key, tmp_path, capsys
):
    x = np.random.default_rng(0).normal(size=(12, 6)).astype(np.float32)
    owners = [np.arange(4), np.arange(4, 12)]
    method = build(4, 4, local_start=local_start, unit_length=False)
    state, _ = rounds(method, key, federate(x, owners))
    uploaded = np.asarray(state.clients.centroids[0])
    distances = np.linalg.norm(x[:4, None] - uploaded, axis=2)
    np.testing.assert_allclose(distances.min(axis=1), 0, atol=1e-5)

    np.savez(tmp_path / "x.npz", x=x, client=np.repeat([0, 1], [4, 8]))
    flags = ["--dataset", str(tmp_path / "x.npz"), "--no-labels", "--clusters", "4"]
    warning = "warning: k-fed: 1 of 2 clients have no more examples than "
    warning += "--local-clusters 4; their uploaded centroids are their examples"
    for number, warned in ((4, 1), (3, 0)):
        local = ["--local-clusters", str(number)]
        main(SCRIPTS["baselines"], [*flags, *local, "--methods", "k-fed", "--dry-run"])
        assert capsys.readouterr().out.splitlines().count(warning) == warned


def test_singular_vectors_span_what_numpy_finds(key):
    rng = np.random.default_rng(0)
    decay = 0.7 ** np.arange(30)
    x = rng.normal(size=(200, 30)) * decay + 1.0  # not centred
    find = jax.jit(top_singular_vectors, static_argnums=2)
    found = np.asarray(find(key, jnp.asarray(x, jnp.float32), 4))
    _, _, vt = np.linalg.svd(x, full_matrices=False)
    np.testing.assert_allclose(found.T @ found, np.eye(4), atol=1e-5)
    np.testing.assert_allclose(found @ found.T, vt[:4].T @ vt[:4], atol=1e-4)


def test_seeds_move_to_the_mean_of_what_is_three_times_nearer(key):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 2)) + 6 * rng.integers(0, 2, size=(60, 1))
    mask = np.arange(60) < 50
    rows = jnp.asarray(x, jnp.float32)
    begin = jax.jit(partial(projected_start, num_clusters=2))
    start = begin(key, rows, jnp.asarray(mask))
    # Two clusters in two dimensions: there is nothing to project.
    _, seed_key = jax.random.split(key)
    own = jnp.where(mask[:, None], rows, 0)
    draw = jax.jit(plus_plus, static_argnums=3)
    seeds = np.asarray(draw(seed_key, own, jnp.asarray(mask, jnp.float32), 2))
    assert mask[seeds].all()
    for r, s in ((0, 1), (1, 0)):
        to_r, to_s = (np.linalg.norm(x - x[seeds[i]], axis=1) for i in (r, s))
        expected = x[mask & (3 * to_r <= to_s)].mean(axis=0)
        np.testing.assert_allclose(start[r], expected, atol=1e-5)


def gaussians(seed):
    """2,000 examples of ten Gaussians in 768 dimensions, of unit length, on seven
    clients. The noise of one example is larger than the distance of two centres."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, 2000)
    x = 0.3 * rng.normal(size=(10, 768))[labels] + rng.normal(size=(2000, 768))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, labels, np.array_split(rng.permutation(2000), 7)


def start_in_numpy(x, seeds, number):
    """Algorithm 1, steps 1 to 3, from given seeds, by an exact SVD."""
    vt = np.linalg.svd(x, full_matrices=False)[2][:number]
    z = x @ vt.T
    distances = np.linalg.norm(z[:, None] - z[seeds][None], axis=-1)
    start = np.empty((number, x.shape[1]))
    for r in range(number):
        others = np.delete(distances, r, axis=1).min(axis=1)
        start[r] = z[3 * distances[:, r] <= others].mean(axis=0) @ vt
    return start


def test_a_projected_start_is_mapped_back_from_the_projection(key):
    """The mean of the examples themselves, or one of them, keeps all of their noise."""
    x, _, clients = gaussians(0)
    own = jnp.asarray(x[clients[0]], jnp.float32)
    mask = jnp.ones(len(own), bool)
    start = jax.jit(partial(projected_start, num_clusters=10))(key, own, mask)
    span_key, seed_key = jax.random.split(key)
    vectors = jax.jit(top_singular_vectors, static_argnums=2)(span_key, own, 10)
    drawn = jax.jit(plus_plus, static_argnums=3)(
        seed_key, own @ vectors, mask.astype(jnp.float32), 10
    )
    expected = start_in_numpy(np.float64(own), np.asarray(drawn), 10)
    # Randomised singular vectors of a flat spectrum are near the exact ones, not equal.
    cosines = np.sum(start * expected, axis=1) / (
        np.linalg.norm(start, axis=1) * np.linalg.norm(expected, axis=1)
    )
    assert cosines.min() > 0.9


def test_the_server_begins_with_the_first_that_answered_and_adds_the_farthest():
    # Client 0 is absent. Client 1 has 0 and 1, client 2 has 10 and 11, client 3 has 0.4
    # and 50: farthest first takes 50, Lloyd leaves {0, 0.4}, {1} and so on.
    received = jnp.array([[7.0, 8.0], [0.0, 1.0], [10.0, 11.0], [0.4, 50.0]])[..., None]
    answered = jnp.array([False, True, True, True])
    find = jax.jit(partial(aggregate, num_clusters=3))
    found = find(received, answered)
    reference = KMeans(3, init=[[0.0], [1.0], [50.0]], n_init=1, tol=0)
    reference.fit([[0.0], [1.0], [10.0], [11.0], [0.4], [50.0]])
    np.testing.assert_allclose(found, reference.cluster_centers_, atol=1e-5)


def test_a_client_keeps_its_clusters_whole_and_strangers_go_to_the_nearest(key):
    pool, _, clients = separated(0)
    federation = federate(pool, clients, absent=(12,))
    # Two local clusters for four blobs: they are near other examples than their own.
    method = build(5, 2, unit_length=False)
    state, metrics = rounds(method, key, federation)
    assert metrics["participants"] == 19
    # Down come the numbers of the server's clusters, up go the centroids; clients that
    # do not inherit are sent the centroids themselves.
    up = {"up_centroids": [19, 2 * 20 * 4]}
    assert traffic(metrics) == up | {"down_clusters": [19, 2 * 4]}
    others = build(5, 2, inherit=False)
    _, metrics = rounds(others, key, federation)
    assert traffic(metrics) == up | {"down_centroids": [19, 5 * 20 * 4]}

    rows = pool[np.asarray(federation.indices)]
    centroids, local = (np.asarray(x.centroids) for x in state)
    own = np.stack([nearest(x, c) for x, c in zip(rows, local, strict=True)])
    expected = np.take_along_axis(nearest(local, centroids), own, axis=1)
    by_server = nearest(rows, centroids)
    assert (expected != by_server)[[11, 12]].any(axis=1).all()
    expected[12] = by_server[12]
    np.testing.assert_array_equal(method.assign(state, federation), expected)

    stranger = federate(pool, [np.arange(len(pool))])
    found = method.assign(state, stranger)
    np.testing.assert_array_equal(found[0], nearest(pool, centroids))


def test_a_client_finds_no_more_clusters_than_the_server():
    with pytest.raises(ValueError, match=r"local_clusters must lie in 1\.\.3"):
        build(3, 4)
