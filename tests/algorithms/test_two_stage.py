"""k-means of all clients' features as a second stage, and what comes before it."""

import jax
import numpy as np
import optax
import pytest
from sklearn.cluster import KMeans

from fcjax.algorithms.averaging import Local, part
from fcjax.algorithms.fedmcc import feature_kmeans
from fcjax.algorithms.fedu import fedsimclr
from tests.algorithms.federations import federate, traffic
from tests.algorithms.plain import matrix, noisy

ROWS = (np.arange(11), np.arange(11, 30), np.arange(30, 36))


def test_the_features_of_those_present_are_clustered_in_one_place():
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
    state = method.init(jax.random.key(1), federation)
    first, stage = method.stages
    assert [first.name, stage.name] == ["representation", "k-means"]
    # There are no clusters before the second stage.
    assert set(np.unique(method.assign(state, federation))) == {-1}

    begun = stage.begin(jax.random.key(2), state, federation)
    new, metrics = jax.jit(stage.round)(jax.random.key(3), begun, federation)
    for kept in (begun, new):
        assert set(kept.server.online["params"]) == {"encoder", "centroids"}
        assert jax.tree.leaves(kept.clients) == []
        jax.tree.map(
            np.testing.assert_array_equal,
            part(kept.server.online, "encoder"),
            part(state.server.online, "encoder"),
        )
    assert stage.num_rounds == 1
    assert traffic(metrics) == {
        "up_features": [30, 4 * 4],  # rows of four features
        "down_encoder": [2, 4 * (6 * 4 + 4 + 1)],  # kernel, mean, count
        "down_centroids": [2, 4 * 3 * 4],
    }
    assert int(metrics["participants"]) == 2

    kernel = state.server.online["params"]["encoder"]["kernel"]
    features = pool[:30] @ np.asarray(kernel)
    expected = KMeans(3, n_init=10, random_state=0).fit(features)
    assert float(metrics["loss"]) == pytest.approx(expected.inertia_ / 30, rel=1e-4)
    found = np.asarray(new.server.online["params"]["centroids"])
    order, centers = np.argsort(found[:, 0]), expected.cluster_centers_
    centers = centers[np.argsort(centers[:, 0])]
    np.testing.assert_allclose(found[order], centers, rtol=1e-3, atol=1e-3)
    nearest = np.linalg.norm(features[:, None] - found, axis=-1).argmin(axis=1)
    clusters = np.asarray(method.assign(new, federation))
    for client, rows in enumerate(ROWS[:2]):
        np.testing.assert_array_equal(clusters[client, : len(rows)], nearest[rows])
