"""What an embedding says by itself: internal scores, and signs of collapse."""

import math

import numpy as np
import pytest
from sklearn import metrics

from fcjax.evaluation import (
    client_calinski_harabasz,
    collapse,
    internal_scores,
    status,
)
from fcjax.evaluation.collapse import MAX_SHARE, MIN_SPREAD

KEYS = ["silhouette", "davies_bouldin", "calinski_harabasz"]
UNDEFINED = dict.fromkeys(KEYS, pytest.approx(math.nan, nan_ok=True))


def clouds(n=300, classes=3):
    rng = np.random.default_rng(0)
    clusters = rng.integers(0, classes, n)
    places = 2 * rng.normal(size=(classes, 4))
    return places[clusters] + rng.normal(size=(n, 4)), clusters


def test_by_hand():
    # Pairs at 0, 1 and at 4, 5. Silhouettes: a = 1 everywhere, b = 4.5 outside and
    # 3.5 inside. Davies-Bouldin: (0.5 + 0.5) / 4. Calinski-Harabasz: between
    # 2 * 4 + 2 * 4 with 1 degree of freedom, within 4 * 0.25 with 2.
    embedding, clusters = np.array([[0.0], [1.0], [4.0], [5.0]]), np.array([3, 3, 8, 8])
    assert internal_scores(embedding, clusters) == pytest.approx(
        {
            "silhouette": (3.5 / 4.5 + 2.5 / 3.5) / 2,
            "davies_bouldin": 1 / 4,
            "calinski_harabasz": 16 / (1 / 2),
        }
    )


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_against_scikit_learn_at_any_scale(scale):
    embedding, clusters = clouds()
    assert internal_scores(scale * embedding - 3 * scale, clusters) == pytest.approx(
        {
            "silhouette": metrics.silhouette_score(embedding, clusters),
            "davies_bouldin": metrics.davies_bouldin_score(embedding, clusters),
            "calinski_harabasz": metrics.calinski_harabasz_score(embedding, clusters),
        }
    )


def test_silhouette_is_sampled_and_the_rest_is_not():
    embedding, clusters = clouds(2000)
    full = internal_scores(embedding, clusters)
    drawn = internal_scores(embedding, clusters, max_points=500)
    assert drawn == internal_scores(embedding, clusters, max_points=500)
    other = internal_scores(embedding, clusters, max_points=500, seed=1)
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
        (np.eye(4), np.zeros(4, int)),
        (np.eye(4), np.arange(4)),
        (np.ones((4, 2)), np.array([0, 0, 1, 1])),
        (np.diag([1.0, 2.0, np.nan, 0.0]), np.array([0, 0, 1, 1])),
        (np.diag([1.0, 2.0, np.inf, 0.0]), np.array([0, 0, 1, 1])),
        (np.ones((1, 2)), np.zeros(1, int)),
    ],
    ids=["one cluster", "all alone", "one point", "NaN", "infinite", "one example"],
)
def test_undefined(embedding, clusters):
    assert internal_scores(embedding, clusters) == UNDEFINED


def test_clients_by_hand():
    # The four points of `test_by_hand`, dealt to two clients, and one of padding.
    embeddings = np.array([[[0.0], [4.0], [99.0]], [[5.0], [1.0], [4.0]]])
    labels = np.array([[0, 1, 1], [1, 0, 1]])
    mask = np.array([[True, True, False], [True, True, False]])
    assert client_calinski_harabasz(embeddings, labels, mask) == pytest.approx(32)
    # By client the means are 2 and 3: between 1, within 4 * 4.
    clients = np.indices(mask.shape)[0]
    assert client_calinski_harabasz(embeddings, clients, mask) == pytest.approx(
        1 / (16 / 2)
    )


def test_undefined_clients():
    mask = np.array([[True, True], [True, False]])
    labels = np.array([[0, 1], [0, 1]])
    embeddings = np.arange(8.0).reshape(2, 2, 2)
    assert client_calinski_harabasz(embeddings, labels, mask) >= 0
    for bad in (np.nan * embeddings, 0 * embeddings):
        assert math.isnan(client_calinski_harabasz(bad, labels, mask))
    assert math.isnan(client_calinski_harabasz(embeddings, 0 * labels, mask))
    # What padding holds is of no account.
    embeddings[1, 1] = np.nan
    assert client_calinski_harabasz(embeddings, labels, mask) >= 0


def test_collapse_by_hand():
    # Columns of the unit vectors (1, 0), (0, 1): each has a deviation of 1 / 2.
    embedding = np.array([[3.0, 0.0], [0.0, 0.5]], np.float32)
    report = collapse(np.array([2, 0]), embedding, num_clusters=4)
    assert report == {
        "occupied_clusters": 2,
        "largest_share": 0.5,
        "embedding_spread": pytest.approx(math.sqrt(2) / 2),
    }
    assert isinstance(report["occupied_clusters"], int)


def test_isotropic_embeddings_spread_by_one():
    embedding = np.random.default_rng(0).normal(size=(20_000, 16))
    report = collapse(np.zeros(20_000, int), embedding, num_clusters=2)
    assert report["embedding_spread"] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_spread_does_not_depend_on_scale(scale):
    embedding = np.array([[1.0, 2.0], [-2.0, 1.0], [1.0, 0.0]])
    clusters = np.array([0, 1, 1])
    expected = collapse(clusters, embedding, num_clusters=2)
    scaled = collapse(clusters, scale * embedding, num_clusters=2)
    assert scaled == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rows", "spread", "called"),
    [
        ([[1.0, -2.0, 5.0]] * 2, 0, "collapsed"),
        ([[0.0, 0.0]] * 2, 0, "collapsed"),
        ([[1.0, np.nan], [0.0, 1.0]], np.nan, "diverged"),
        ([[1.0, np.inf], [0.0, 1.0]], np.nan, "diverged"),
    ],
)
def test_equal_embeddings_have_no_spread_and_others_no_number(rows, spread, called):
    report = collapse(np.array([0, 1]), np.array(rows), num_clusters=2)
    assert report["embedding_spread"] == pytest.approx(spread, abs=0, nan_ok=True)
    assert status(report, num_clusters=2) == called


def test_status():
    report = {"occupied_clusters": 10}
    healthy = report | {"largest_share": MAX_SHARE, "embedding_spread": MIN_SPREAD}
    assert status(healthy, num_clusters=10) == "ok"
    assert status(healthy, num_clusters=10, loss=math.nan) == "diverged"
    assert status(healthy | {"largest_share": 0.91}, num_clusters=10) == "collapsed"
    assert status(healthy | {"embedding_spread": 0.0}, num_clusters=10) == "collapsed"


def test_a_single_cluster_is_collapse_unless_it_was_asked_for():
    one = np.zeros(5, int)
    assert status(collapse(one, num_clusters=3), num_clusters=3) == "collapsed"
    assert status(collapse(one, num_clusters=1), num_clusters=1) == "ok"
