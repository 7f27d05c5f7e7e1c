"""Classifiers of an embedding, beside scikit-learn's and NumPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from fcjax.federated import training
from fcjax.metrics import internal, knn_accuracy, probes
from fcjax.metrics.probes import linear_probe, semi_supervised, stratified_draw


def embedded(n, seed, spread, features=3, classes=4):
    """Gaussian classes around 1, with labels that are not 0, 1, ..."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, classes, n)
    centres = np.random.default_rng(99).normal(size=(classes, features))
    return centres[codes] + spread * rng.normal(size=(n, features)) + 1, 7 * codes - 5


def numpy_adam(z, codes, num_classes, batches, learning_rate):
    """Adam (Kingma and Ba, 2015, algorithm 1) on the mean cross-entropy of a batch."""
    weights = np.zeros((z.shape[1] + 1, num_classes))
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    z = np.hstack([z, np.ones((len(z), 1))])
    for t, rows in enumerate(batches, start=1):
        shares = np.exp(z[rows] @ weights)
        shares /= shares.sum(axis=1, keepdims=True)
        gradient = z[rows].T @ (shares - np.eye(num_classes)[codes[rows]]) / len(rows)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        size = np.sqrt(second / (1 - 0.999**t)) + 1e-8
        weights -= learning_rate * first / (1 - 0.9**t) / size
    return weights


def test_weights_of_classifiers_side_by_side_against_adam_in_numpy(key):
    z, labels = embedded(30, 0, 1.0, classes=3)
    codes, keys = (labels + 5) // 7, jax.random.split(key, 2)
    # Ten of the thirty rows, in batches of four: the last holds the two that are left.
    rows = np.stack([np.random.default_rng(i).permutation(30)[:10] for i in range(2)])
    settings = {"num_classes": 3, "num_epochs": 3, "batch_size": 4}
    data = jnp.asarray(z, jnp.float32), jnp.asarray(codes), jnp.asarray(rows)
    weights = probes._fit(keys, *data, 0.05, **settings)
    found = np.concatenate([weights["kernel"], weights["bias"][:, None]], axis=1)
    for own_key, own, actual in zip(keys, rows, found, strict=True):
        batches = []
        for epoch in range(3):
            order_key, _ = jax.random.split(jax.random.fold_in(own_key, epoch))
            order = own[np.asarray(training.shuffle(order_key, jnp.ones(10, bool)))]
            assert sorted(order) == sorted(own)
            batches += [order[:4], order[4:8], order[8:]]
        expected = numpy_adam(z, codes, 3, batches, 0.05)
        assert np.abs(expected).max() > 0.2
        np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize("spread", [0.05, 1.0])
def test_against_logistic_regression(key, spread):
    train, test = embedded(400, 0, spread), embedded(2000, 1, spread)
    oracle = LogisticRegression(C=np.inf, max_iter=10_000).fit(*train).score(*test)
    # The loss is convex and full batches leave no noise: both end in one optimum, but
    # for what Adam has still to go, which may move examples close to a boundary.
    settings = {"learning_rate": 0.05, "num_epochs": 500}
    found = linear_probe(key, *train, *test, **settings)
    assert oracle == 1 if spread < 1 else 0.5 < oracle < 0.8
    assert found == pytest.approx(oracle, abs=0.002)
    # Batches of 150, 150 and 100 end near it, a step of Adam away.
    found = linear_probe(key, *train, *test, num_epochs=500, batch_size=150)
    assert found == pytest.approx(oracle, abs=0.01)


def test_rescaled_by_hand():
    # Mean (1, 2); what is left, (1, 0), (-1, 0), (3, 4), (-3, -4), has a mean square of
    # 52 / 8 = 6.5.
    train = np.array([[2.0, 2.0], [0.0, 2.0], [4.0, 6.0], [-2.0, -2.0]])
    labels = np.array([4, 9, 9, 4])
    found, classes, codes, test = probes._prepare(
        train, labels, np.array([[1.0, 3.0]]), np.array([4]), True
    )
    expected = np.array([[1, 0], [-1, 0], [3, 4], [-3, -4]]) / np.sqrt(6.5)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(test, [[0, 1 / np.sqrt(6.5)]], rtol=1e-6)
    assert classes.tolist() == [4, 9]
    assert codes.tolist() == [0, 1, 1, 0]


def test_labels_of_a_share_by_hand(key):
    # Twenty of class 7, six of class 2 and one of class 5.
    labels = np.random.default_rng(0).permutation(np.repeat([7, 2, 5], [20, 6, 1]))
    for share, expected in ((0.01, [1, 1, 1]), (0.25, [2, 1, 5]), (1.0, [6, 1, 20])):
        assert (
            probes.labels_per_class(labels, label_fraction=share).tolist() == expected
        )
        rows = stratified_draw(key, labels, label_fraction=share)
        assert len(set(rows.tolist())) == sum(expected)
        assert np.bincount(labels[rows])[[2, 5, 7]].tolist() == expected


def test_classes_that_one_side_lacks_and_a_collapsed_embedding(key):
    z, labels = np.array([[-1.0], [1.0]]), np.array([3, 8])
    test, truth = np.array([[-2.0], [2.0], [2.0], [2.0]]), np.array([3, 8, 5, 8])
    found = semi_supervised(key, z, labels, test, truth, label_fraction=0.01)
    np.testing.assert_array_equal(found, np.full(5, 0.75))
    # A collapsed embedding leaves the most frequent class.
    z, labels = np.full((3, 2), 0.1), np.array([1, 2, 2])
    assert linear_probe(key, z, labels, z, labels) == pytest.approx(2 / 3)


def test_neighbours_by_hand():
    # On the unit circle, at angles 0, 10 and 20 degrees from the test example.
    angles = np.deg2rad([0, 10, 20, 180])
    train = np.stack([np.cos(angles), np.sin(angles)], axis=1) * [[1], [9], [2], [1]]
    labels = np.array([5, 2, 2, 9])
    test, truth = np.array([[3.0, 0.0], [-1.0, 0.0]]), np.array([5, 9])
    # k = 2: a tie of 5 and 2 goes to 2, and a tie of 9 and 2 as well.
    found = knn_accuracy(train, labels, test, truth, num_neighbors=(2, 1, 3))
    assert found == {2: 0.0, 1: 1.0, 3: 0.0}
    assert list(found) == [2, 1, 3]


@pytest.mark.parametrize(
    ("chunk", "normalize"), [(1, True), (1000, False), (2**24, True)]
)
def test_neighbours_against_scikit_learn(monkeypatch, chunk, normalize):
    monkeypatch.setattr(internal, "_CHUNK", chunk)
    train, test = embedded(300, 0, 0.8, 6), embedded(101, 1, 0.8, 6)
    ks = (1, 2, 3, 10, 100, 300)
    found = knn_accuracy(*train, *test, num_neighbors=ks, normalize=normalize)
    if normalize:
        for z, _ in (train, test):
            z /= np.linalg.norm(z, axis=1, keepdims=True)
    for k in ks:
        oracle = KNeighborsClassifier(k, algorithm="brute").fit(*train)
        assert found[k] == pytest.approx(oracle.score(*test))
    assert 0.2 < found[300] < found[10] < 1
