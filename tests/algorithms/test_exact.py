import jax
import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from fcjax.algorithms.baselines import exact_cmeans
from tests.algorithms.federations import federate, traffic
from tests.cluster.test_fuzzy import skfuzzy_from

POOL = load_digits().data[:400] / 16
CLIENTS = np.split(np.random.default_rng(0).permutation(400), [30, 180, 250])
HELD = np.concatenate([CLIENTS[i] for i in (0, 1, 3)])


@pytest.fixture(scope="module")
def federation():
    """Client 2 is absent: all is as if it were not there."""
    spoilt = POOL.copy()
    spoilt[CLIENTS[2]] = np.nan
    return federate(spoilt, CLIENTS, absent=(2,))


def follow(federation, **options):
    """The centroids from the first ones to where the stage is done, and the metrics of
    the first round."""
    method = exact_cmeans(num_clusters=10, **options)
    (stage,) = method.stages
    state = method.init(jax.random.key(0), federation)
    round, measured = jax.jit(stage.round), []
    found = [np.asarray(state.server.centroids)]
    while not stage.done(state) and len(measured) < stage.num_rounds:
        state, metrics = round(jax.random.key(0), state, federation)
        found.append(np.asarray(state.server.centroids))
        measured.append(metrics)
    return found, measured[0]


def test_k_means_is_the_central_one_from_the_same_start(federation):
    """Clients of 30 to 150 examples: the mean of their own means is another loss."""
    found, metrics = follow(federation, unit_length=False, num_rounds=300)
    assert 2 < len(found) - 1 < 300
    central = KMeans(10, init=found[0], n_init=1, tol=0).fit(POOL[HELD])
    np.testing.assert_allclose(found[-1], central.cluster_centers_, atol=1e-4)
    squares = ((POOL[HELD][:, None] - found[0]) ** 2).sum(axis=-1).min(axis=1)
    np.testing.assert_allclose(metrics["loss"], squares.mean(), rtol=1e-5)
    assert metrics["participants"] == 3
    assert traffic(metrics) == {
        "up_sums": [3, 10 * 64 * 4],
        "up_masses": [3, 10 * 4],
        "down_centroids": [3, 10 * 64 * 4],
    }


def test_fuzzy_c_means_is_the_central_one_from_the_same_start(federation):
    found, _ = follow(federation, fuzzifier=1.2, tolerance=1e-6, num_rounds=3000)
    unit = POOL[HELD] / np.linalg.norm(POOL[HELD], axis=1, keepdims=True)
    # Rows are their own centroids at the start: 0 / 0 in the printed formula.
    reference = skfuzzy_from(unit, found[0] + 1e-6, 1.2)[0]
    np.testing.assert_allclose(found[-1], reference, atol=1e-4)
