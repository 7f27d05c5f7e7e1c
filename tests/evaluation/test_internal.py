import math

import numpy as np
import pytest
from sklearn import metrics

from fcjax.evaluation import client_calinski_harabasz, internal_scores

KEYS = ["silhouette", "davies_bouldin", "calinski_harabasz"]
UNDEFINED = dict.fromkeys(KEYS, pytest.approx(math.nan, nan_ok=True))


def clouds(n=300, classes=3):
    rng = np.random.default_rng(0)
    clusters = rng.integers(0, classes, n)
    return 2 * rng.normal(size=(classes, 4))[clusters] + rng.normal(
        size=(n, 4)
    ), clusters


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


@pytest.mark.parametrize("scale", [1e-200, 1e-9, 1.0, 1e9, 1e200])
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


def test_a_sample_of_one_cluster_leaves_only_the_silhouette_undefined():
    embedding, clusters = clouds(300)
    clusters = (np.arange(300) == 0).astype(int)
    found = internal_scores(embedding, clusters, max_points=3)
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


def test_bad_input():
    with pytest.raises(ValueError, match=r"^3 embedded but 2 assigned examples$"):
        internal_scores(np.zeros((3, 2)), np.zeros(2, int))
    with pytest.raises(ValueError, match=r"^no examples to score$"):
        internal_scores(np.zeros((0, 2)), np.zeros(0, int))
    with pytest.raises(ValueError, match=r"^max_points must be at least 3, got 2$"):
        internal_scores(np.eye(3), np.array([0, 1, 1]), max_points=2)


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


def test_inconsistent_clients_score_low():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (10, 20))
    embeddings = labels[..., None] + 0.2 * rng.normal(size=(10, 20, 8))
    mask = np.ones((10, 20), bool)
    shifted = embeddings + rng.normal(size=(10, 1, 8))
    clients = np.indices(mask.shape)[0]
    agreeing = client_calinski_harabasz(embeddings, labels, mask)
    assert client_calinski_harabasz(shifted, labels, mask) < agreeing / 5
    assert client_calinski_harabasz(shifted, clients, mask) > 5
    assert client_calinski_harabasz(embeddings, clients, mask) < 5


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
    with pytest.raises(ValueError, match=r"^no examples to score$"):
        client_calinski_harabasz(embeddings, labels, mask & False)
    with pytest.raises(ValueError, match=r"^embeddings \(2, 2, 2\), labels \(1, 2\)"):
        client_calinski_harabasz(embeddings, labels[:1], mask)
