"""k-means of all clients' features as a second stage, and what comes before it."""

import jax
import numpy as np
import optax
import pytest
from sklearn.cluster import KMeans

from fcjax.algorithms.averaging import Local
from fcjax.algorithms.fedsimclr import fedsimclr
from fcjax.algorithms.two_stage import feature_kmeans
from tests.algorithms.federations import federate
from tests.algorithms.plain import matrix, noisy

ROWS = (np.arange(11), np.arange(11, 30), np.arange(30, 36))


@pytest.fixture(scope="module")
def problem():
    """Three blobs of six values; client 2 is absent and holds no numbers."""
    rng = np.random.default_rng(0)
    pool = 5 * rng.normal(size=(3, 6))[rng.integers(3, size=36)]
    pool += rng.normal(size=pool.shape)
    pool[ROWS[2]] = np.nan
    federation = federate(pool, ROWS, absent=(2,))
    method = fedsimclr(
        matrix(4, centre=True),
        matrix(2),
        feature_kmeans(num_clusters=3, batch_size=7),
        Local(optax.sgd(0.1), noisy, keep_optimizer=True),
    )
    return pool, federation, method, method.init(jax.random.key(1), federation)


@pytest.fixture(scope="module")
def clustered(problem):
    """The state that the stage begins with, the one it ends with, and its metrics."""
    _, federation, method, state = problem
    stage = method.stages[1]
    begun = stage.begin(jax.random.key(2), state, federation)
    return begun, *jax.jit(stage.round)(jax.random.key(3), begun, federation)


def test_there_are_no_clusters_before_the_second_stage(problem):
    _, federation, method, state = problem
    assert [stage.name for stage in method.stages] == ["representation", "k-means"]
    assert set(np.unique(method.assign(state, federation))) == {-1}


def test_the_features_of_those_present_are_clustered_in_one_place(problem, clustered):
    pool, federation, method, state = problem
    begun, new, metrics = clustered
    for kept in (begun, new):
        assert set(kept.online) == {"encoder", "centroids"}
        assert jax.tree.leaves(kept[1:4]) == []
        jax.tree.map(
            np.testing.assert_array_equal,
            kept.online["encoder"],
            state.online["encoder"],
        )
    assert method.stages[1].num_rounds == new.num_rounds == 1

    features = pool[:30] @ np.asarray(state.online["encoder"]["params"]["kernel"])
    expected = KMeans(3, n_init=10, random_state=0).fit(features)
    assert float(metrics["loss"]) == pytest.approx(expected.inertia_ / 30, rel=1e-4)
    found = np.asarray(new.online["centroids"])
    order, other = (np.argsort(c[:, 0]) for c in (found, expected.cluster_centers_))
    np.testing.assert_allclose(
        found[order], expected.cluster_centers_[other], rtol=1e-3, atol=1e-3
    )
    clusters = np.asarray(method.assign(new, federation))
    names = dict(zip(order, other, strict=True))
    for client in (0, 1):
        own = [names[c] for c in clusters[client, : len(ROWS[client])]]
        np.testing.assert_array_equal(own, expected.labels_[ROWS[client]])


def test_features_go_up_and_the_encoder_comes_down_with_the_centroids(clustered):
    metrics = clustered[-1]
    traffic = {k: list(v) for k, v in metrics.items() if k[:3] in ("up_", "dow")}
    assert traffic == {
        "up_features": [30, 4 * 4],  # rows of four features
        "down_encoder": [2, 4 * (6 * 4 + 4 + 1)],  # kernel, mean, count
        "down_centroids": [2, 4 * 3 * 4],
    }
    assert int(metrics["participants"]) == 2
