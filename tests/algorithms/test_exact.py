import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from fcjax.algorithms.exact import exact_cmeans
from fcjax.cluster import fuzzy_lloyd, lloyd
from tests.algorithms.federations import federate, rounds
from tests.cluster.test_fuzzy import skfuzzy_from

CLIENTS = np.split(np.random.default_rng(0).permutation(400), [30, 180, 250])


@pytest.fixture(scope="module")
def pool():
    return load_digits().data[:400] / 16


def end(method, key, federation):
    """The state once the stage is done, and how many rounds that took."""
    (stage,) = method.stages
    state, count = method.init(key, federation), 0
    round = jax.jit(stage.round)
    while not stage.done(state) and count < stage.num_rounds:
        state, _ = round(key, state, federation)
        count += 1
    return state, count


def test_k_means_is_the_central_one_from_the_same_start(key, pool):
    method = exact_cmeans(num_clusters=10, unit_length=False, num_rounds=300)
    federation = federate(pool, CLIENTS)
    start = np.asarray(method.init(key, federation).centroids)
    state, count = end(method, key, federation)
    assert 2 < count < 300
    central = KMeans(10, init=start, n_init=1, tol=0).fit(pool)
    np.testing.assert_allclose(state.centroids, central.cluster_centers_, atol=1e-4)
    ours = lloyd(jnp.asarray(pool, jnp.float32), jnp.asarray(start))
    np.testing.assert_allclose(state.centroids, ours.centroids, atol=1e-4)


def test_the_loss_is_the_central_objective_an_example(key, pool):
    """Clients of 30 to 150 examples: the mean of their own means is another number."""
    method = exact_cmeans(num_clusters=10, unit_length=False)
    federation = federate(pool, CLIENTS)
    centroids = np.asarray(method.init(key, federation).centroids)
    squares = ((pool[:, None] - centroids) ** 2).sum(axis=-1).min(axis=1)
    _, metrics = rounds(method, key, federation, 1)
    np.testing.assert_allclose(metrics["loss"], squares.mean(), rtol=1e-5)


def test_fuzzy_c_means_is_the_central_one_from_the_same_start(key, pool):
    method = exact_cmeans(
        num_clusters=10, fuzzifier=1.2, num_rounds=3000, tolerance=1e-6
    )
    federation = federate(pool, CLIENTS)
    start = method.init(key, federation).centroids
    state, _ = end(method, key, federation)
    unit = pool / np.linalg.norm(pool, axis=1, keepdims=True)
    ours = fuzzy_lloyd(
        jnp.asarray(unit, jnp.float32),
        start,
        fuzzifier=1.2,
        num_iters=3000,
        tolerance=1e-6,
    )
    np.testing.assert_allclose(state.centroids, ours.centroids, atol=1e-4)
    # Rows are their own centroids at the start: 0 / 0 in the printed formula.
    reference = skfuzzy_from(unit, np.asarray(start) + 1e-6, 1.2)[0]
    np.testing.assert_allclose(state.centroids, reference, atol=1e-3)


@pytest.mark.parametrize("fuzzifier", [None, 1.3])
def test_an_absent_client_is_as_if_it_were_not_there(key, pool, fuzzifier):
    method = exact_cmeans(num_clusters=4, fuzzifier=fuzzifier)
    three = [CLIENTS[0], CLIENTS[1], CLIENTS[3]]
    spoilt = pool.copy()
    spoilt[CLIENTS[2]] = np.nan
    with_absent, metrics = rounds(
        method, key, federate(spoilt, CLIENTS, absent=(2,)), 3
    )
    without, _ = rounds(method, key, federate(pool, three), 3)
    np.testing.assert_allclose(with_absent.centroids, without.centroids, atol=1e-5)
    assert metrics["participants"] == 3
    np.testing.assert_array_equal(metrics["up_sums"], [3, 4 * 64 * 4])
    np.testing.assert_array_equal(metrics["up_masses"], [3, 4 * 4])
