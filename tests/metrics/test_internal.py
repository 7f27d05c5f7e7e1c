"""What an embedding says by itself: internal scores, and signs of collapse."""

import math

import numpy as np
import pytest
from sklearn import metrics

from fcjax.metrics import (
    client_calinski_harabasz,
    effective_rank,
    internal_scores,
    status,
)
from fcjax.metrics.internal import MAX_SHARE, MIN_SPREAD

KEYS = ["silhouette", "davies_bouldin", "calinski_harabasz"]
UNDEFINED = dict.fromkeys(KEYS, pytest.approx(math.nan, nan_ok=True))
PAIRS = np.array([0, 0, 1, 1])


def clouds(n=300, classes=3):
    rng = np.random.default_rng(0)
    clusters = rng.integers(0, classes, n)
    places = 2 * rng.normal(size=(classes, 4))
    return places[clusters] + rng.normal(size=(n, 4)), clusters


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_against_scikit_learn_at_any_scale(scale):
    embedding, clusters = clouds()
    found = internal_scores(scale * embedding - 3 * scale, clusters)
    for name, value in found.items():
        oracle = getattr(metrics, f"{name}_score")
        assert value == pytest.approx(oracle(embedding, clusters))


def test_silhouette_is_sampled_and_the_rest_is_not():
    embedding, clusters = clouds(2000)
    full = internal_scores(embedding, clusters)
    drawn, other = (
        internal_scores(embedding, clusters, max_points=500, seed=seed)
        for seed in (0, 1)
    )
    assert drawn["silhouette"] != other["silhouette"]
    assert drawn["silhouette"] == pytest.approx(full["silhouette"], abs=0.03)
    assert {k: drawn[k] for k in KEYS[1:]} == {k: full[k] for k in KEYS[1:]}
    # A sample of one cluster leaves only the silhouette undefined.
    found = internal_scores(embedding, np.arange(2000) // 1999, max_points=3)
    assert math.isnan(found["silhouette"])
    assert found["calinski_harabasz"] > 0


@pytest.mark.parametrize(
    ("embedding", "clusters"),
    [
        (np.eye(4), 0 * PAIRS),
        (np.eye(4), np.arange(4)),
        (np.ones((4, 2)), PAIRS),
        (np.diag([1.0, 2.0, np.nan, 0.0]), PAIRS),
        (np.diag([1.0, 2.0, np.inf, 0.0]), PAIRS),
        (np.ones((1, 2)), PAIRS[:1]),
    ],
    ids=["one cluster", "all alone", "one point", "NaN", "infinite", "one example"],
)
def test_undefined(embedding, clusters):
    assert internal_scores(embedding, clusters) == UNDEFINED
    # Of a client that holds them, and of one that holds only padding.
    held = np.stack([embedding, np.nan * embedding])
    labels = np.stack([clusters, 1 - clusters])
    mask = np.array([[True], [False]]) & np.ones_like(labels, bool)
    assert math.isnan(client_calinski_harabasz(held, labels, mask))


def test_clients_by_hand():
    # Pairs at 0, 1 and at 4, 5, dealt to two clients, and one of padding: between
    # 2 * 4 + 2 * 4 with 1 degree of freedom, within 4 * 0.25 with 2.
    embeddings = np.array([[[0.0], [4.0], [np.nan]], [[5.0], [1.0], [4.0]]])
    labels = np.array([[0, 1, 1], [1, 0, 1]])
    mask = np.array([[True, True, False], [True, True, False]])
    assert client_calinski_harabasz(embeddings, labels, mask) == pytest.approx(32)
    # By client the means are 2 and 3: between 1, within 4 * 4.
    by_client = client_calinski_harabasz(embeddings, np.indices((2, 3))[0], mask)
    assert by_client == pytest.approx(1 / (16 / 2))


@pytest.mark.parametrize(
    ("changes", "num_clusters", "called"),
    [
        ({}, 10, "ok"),
        ({"embedding_spread": math.nan}, 10, "diverged"),
        ({"largest_share": 0.91}, 10, "collapsed"),
        ({"embedding_spread": 0.0}, 10, "collapsed"),
        # A single cluster is collapse unless it was asked for.
        ({"largest_share": 1.0}, 3, "collapsed"),
        ({"largest_share": 1.0}, 1, "ok"),
    ],
)
def test_status(changes, num_clusters, called):
    report = {"largest_share": MAX_SHARE, "embedding_spread": MIN_SPREAD, **changes}
    assert status(report, num_clusters=num_clusters) == called


@pytest.mark.parametrize("shape", [(40, 6), (6, 40)])
def test_the_effective_rank_is_that_of_the_eigenvalues(shape):
    z = np.random.default_rng(0).normal(size=shape) * np.arange(1, shape[1] + 1)
    values = np.linalg.eigvalsh(np.cov(z.T))
    expected = values.sum() ** 2 / (values**2).sum()
    assert effective_rank(3 * z - 7) == pytest.approx(expected)
    assert np.isnan(effective_rank(np.ones((5, 3))))
    assert np.isnan(effective_rank(np.array([[0.0, np.nan], [1.0, 2.0]])))
