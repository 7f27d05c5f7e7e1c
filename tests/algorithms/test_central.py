import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

from fcjax.algorithms.central import by_fuzzy_cmeans, by_kmeans, central
from fcjax.algorithms.dcn import by_dcn
from fcjax.cluster import fuzzy_cmeans
from fcjax.models.autoencoder import AutoEncoder
from tests.algorithms.federations import federate, rounds
from tests.algorithms.plain import matrix


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
        key, jnp.asarray(unit, "float32"), 4, fuzzifier=1.3, num_init=2
    )
    np.testing.assert_allclose(state.clustering, found.centroids, atol=1e-5)
    np.testing.assert_allclose(metrics["loss"], found.objective / 120, rtol=1e-5)


# --- DCN_central, whose phases take rounds


@pytest.fixture(scope="module")
def dcn(pool):
    """From who is present in its five rounds to the state and the metrics."""
    clustering = by_dcn(
        AutoEncoder(matrix(2), matrix(6)),
        optax.sgd(1e-3),
        num_clusters=4,
        pretrain_rounds=1,
        joint_rounds=2,
        batch_size=30,
        num_init=2,
    )
    method = central(clustering)

    @jax.jit
    def run(key, federation):
        state, measured = method.init(key, federation), []
        for stage in method.stages:
            state = stage.begin(key, state, federation)
            for _ in range(stage.num_rounds):
                state, metrics = stage.round(key, state, federation)
                measured.append(metrics)
        return state, measured

    def of(present, seed=0, spoil=()):
        data = federate(pool, dealt(seed))._replace(present=jnp.array(present) > 0)
        rows = np.isin(np.arange(len(pool)), [dealt(seed)[i] for i in spoil])
        data = data._replace(pool=jnp.where(rows[:, None], jnp.nan, data.pool))
        return run(jax.random.key(0), data)

    return of


ALWAYS = [[1, 1, 1, 1]] * 5
LATE = [[1, 1, 0, 0]] * 3 + [[1, 0, 1, 0]] * 2


def test_a_late_client_is_taken_in_by_dcn(dcn):
    state, metrics = dcn(LATE)
    never, _ = dcn([[1, 1, 0, 0]] * 3 + [[1, 0, 0, 0]] * 2)
    sent = [row["up_examples"] for row in metrics]
    np.testing.assert_array_equal(sent, [[80, 24], [0, 24], [0, 24], [20, 24], [0, 24]])
    assert state.clustering.counts.sum() == 400 + 80 + 100
    assert never.clustering.counts.sum() == 400 + 80 + 80
    apart = np.abs(state.clustering.centroids - never.clustering.centroids)
    assert apart.max() > 1e-4
    down = [
        [row[f"down_{name}"][0] for row in metrics] for name in ("encoder", "centroids")
    ]
    np.testing.assert_array_equal(down, [[0, 0, 0, 0, 2]] * 2)
    np.testing.assert_array_equal(metrics[-1]["down_encoder"], [2, 6 * 2 * 4])
    np.testing.assert_array_equal(metrics[-1]["down_centroids"], [2, 4 * 2 * 4])


def test_who_never_comes_may_hold_anything_before_dcn(dcn):
    jax.tree.map(np.testing.assert_array_equal, dcn(LATE), dcn(LATE, spoil=(3,)))


def test_how_the_data_was_dealt_changes_nothing_in_dcn(dcn):
    one, other = (dcn(ALWAYS, seed=seed)[0].clustering for seed in (0, 5))
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_by_cosine_an_example_goes_to_the_largest_inner_product(key, pool):
    """Of unit centroids, as SDA-FC's code assigns; their lengths differ before."""
    federation = federate(pool, dealt(0))
    near = central(by_kmeans(num_clusters=4))
    cosine = central(by_kmeans(num_clusters=4, by_cosine=True))
    centroids = np.asarray(rounds(near, key, federation, 1)[0].clustering)
    lengths = np.linalg.norm(centroids, axis=1, keepdims=True)
    assert lengths.min() < 0.99
    state, _ = rounds(cosine, key, federation, 1)
    np.testing.assert_allclose(state.clustering, centroids / lengths, atol=1e-6)
    rows = pool[np.asarray(federation.indices)]
    np.testing.assert_array_equal(
        cosine.assign(state, federation),
        (rows @ (centroids / lengths).T).argmax(axis=-1),
    )


@pytest.mark.parametrize("by_cosine", [False, True])
def test_with_fewer_clusters_used_km_is_that_of_fewer(key, pool, by_cosine):
    federation, options = federate(pool, dealt(0)), {"by_cosine": by_cosine}
    method = central(by_kmeans(num_clusters=6, num_used=jnp.int32(4), **options))
    state, metrics = rounds(method, key, federation, 1)
    expected = central(by_kmeans(num_clusters=4, **options))
    alone, alone_metrics = rounds(expected, key, federation, 1)
    np.testing.assert_allclose(state.clustering[:4], alone.clustering, atol=1e-5)
    np.testing.assert_allclose(metrics["loss"], alone_metrics["loss"], rtol=1e-5)
    np.testing.assert_array_equal(
        method.assign(state, federation), expected.assign(alone, federation)
    )
