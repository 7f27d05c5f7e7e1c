import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from fcjax import training
from fcjax.evaluation import linear
from fcjax.evaluation.linear import (
    labels_per_class,
    linear_probe,
    semi_supervised,
    stratified_draw,
)


def embedded(n, seed, spread, features=3, classes=4):
    """Gaussian classes, with labels that are not 0, 1, ..."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, classes, n)
    centres = np.random.default_rng(99).normal(size=(classes, features))
    return centres[codes] + spread * rng.normal(size=(n, features)), 7 * codes - 5


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


def fitted(keys, z, codes, rows, **settings):
    weights = linear._fit(
        keys, jnp.asarray(z, jnp.float32), jnp.asarray(codes), jnp.asarray(rows), 0.05,
        num_classes=3, **settings,
    )  # fmt: skip
    return np.concatenate([weights["kernel"], weights["bias"][:, None]], axis=1)


def test_weights_against_adam_in_numpy(key):
    z, labels = embedded(30, 0, 1.0, classes=3)
    codes = (labels + 5) // 7
    # Ten of the thirty rows, in batches of four: the last holds the two that are left.
    rows = np.random.default_rng(1).permutation(30)[:10]
    found = fitted(key[None], z, codes, rows[None], num_epochs=3, batch_size=4)[0]
    batches = []
    for epoch in range(3):
        order_key, _ = jax.random.split(jax.random.fold_in(key, epoch))
        order = rows[np.asarray(training.shuffle(order_key, jnp.ones(10, bool)))]
        assert sorted(order) == sorted(rows)
        batches += [order[:4], order[4:8], order[8:]]
    expected = numpy_adam(z, codes, 3, batches, 0.05)
    assert np.abs(expected).max() > 0.2
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_classifiers_side_by_side_are_those_one_at_a_time(key):
    z, labels = embedded(30, 0, 1.0, classes=3)
    codes = (labels + 5) // 7
    keys = jax.random.split(key, 4)
    rows = np.stack([np.random.default_rng(i).permutation(30)[:10] for i in range(4)])
    settings = {"num_epochs": 3, "batch_size": 4}
    together = fitted(keys, z, codes, rows, **settings)
    for i in range(4):
        alone = fitted(keys[i : i + 1], z, codes, rows[i : i + 1], **settings)[0]
        np.testing.assert_allclose(together[i], alone, atol=1e-6)
    assert np.abs(together[0] - together[1]).max() > 0.01


def test_the_first_draws_do_not_depend_on_their_number(key):
    data = *embedded(200, 0, 1.0), *embedded(500, 1, 1.0)
    found = semi_supervised(key, *data, label_fraction=0.05, num_draws=4)
    assert len(set(found.tolist())) > 1
    alone = semi_supervised(key, *data, label_fraction=0.05, num_draws=1)
    assert found[0] == pytest.approx(alone[0], abs=0.004)  # two examples on a boundary


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


def test_scale_and_offset_do_not_matter(key):
    train, train_labels = embedded(100, 0, 0.05)
    test, test_labels = embedded(300, 1, 0.05)
    # Few steps, in which raw features so small would move no logit.
    settings = {"num_epochs": 5}
    plain = linear_probe(key, train, train_labels, test, test_labels, **settings)
    assert 0.4 < plain < 1
    for scale, offset in ((2.0**-100, 0.0), (2.0**100, 0.0), (1.0, 1000.0)):
        train_z, test_z = (scale * z + offset for z in (train, test))
        found = linear_probe(
            key, train_z, train_labels, test_z, test_labels, **settings
        )
        assert found == pytest.approx(plain, abs=0.01)
    with_offset = linear_probe(
        key, train + 1000, train_labels, test + 1000, test_labels,
        rescale=False, **settings,
    )  # fmt: skip
    assert with_offset < 0.6 * plain


def test_rescaled_by_hand():
    # Mean (1, 2); what is left, (1, 0), (-1, 0), (3, 4), (-3, -4), has a mean square of
    # 52 / 8 = 6.5.
    train = np.array([[2.0, 2.0], [0.0, 2.0], [4.0, 6.0], [-2.0, -2.0]])
    labels = np.array([4, 9, 9, 4])
    found, classes, codes, test = linear._prepare(
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
        assert labels_per_class(labels, label_fraction=share).tolist() == expected
        rows = stratified_draw(key, labels, label_fraction=share)
        assert len(set(rows.tolist())) == sum(expected)
        assert np.bincount(labels[rows])[[2, 5, 7]].tolist() == expected


def test_every_example_is_drawn_as_often_as_the_others_of_its_class(key):
    labels = np.repeat([0, 1], [4, 10])
    rows = [
        stratified_draw(k, labels, label_fraction=0.5)
        for k in jax.random.split(key, 400)
    ]
    # Each has a chance of 1/2: 200 of 400, with a standard deviation of 10.
    assert np.abs(np.bincount(np.concatenate(rows)) - 200).max() < 45


def test_classes_that_one_side_lacks(key):
    z, labels = np.array([[-1.0], [1.0]]), np.array([3, 8])
    test, truth = np.array([[-2.0], [2.0], [2.0], [2.0]]), np.array([3, 8, 5, 8])
    found = semi_supervised(key, z, labels, test, truth, label_fraction=0.01)
    np.testing.assert_array_equal(found, np.full(5, 0.75))


def test_a_collapsed_embedding_leaves_the_most_frequent_class(key):
    z, labels = np.full((3, 2), 0.1), np.array([1, 2, 2])
    assert linear_probe(key, z, labels, z, labels) == pytest.approx(2 / 3)


def test_draws_and_rates_are_one_program(key):
    data = *embedded(50, 0, 1.0, features=5), *embedded(20, 1, 1.0, features=5)
    before = linear._fit._cache_size()
    semi_supervised(key, *data, label_fraction=0.2, num_draws=6)
    other = jax.random.key(1)
    semi_supervised(other, *data, label_fraction=0.2, num_draws=6, learning_rate=0.1)
    assert linear._fit._cache_size() == before + 1


@pytest.mark.parametrize("evaluate", [linear_probe, semi_supervised])
def test_bad_input(key, evaluate):
    z, y = np.eye(3), np.arange(3)
    share = {"label_fraction": 0.5} if evaluate is semi_supervised else {}

    def refused(match, *data, **settings):
        with pytest.raises(ValueError, match=match):
            evaluate(key, *data, **{**share, **settings})

    refused(r"^3 training examples but 2 labels$", z, y[:2], z, y)
    refused(r"^3 test examples but 2 labels$", z, y, z, y[:2])
    refused(r"^no training examples$", z[:0], y[:0], z, y)
    refused(r"^no test examples$", z, y, z[:0], y[:0])
    refused(r"^3 training features but 2 test features$", z, y, z[:, :2], y)
    refused(r"^the test embedding holds NaN", z, y, np.nan * z, y)
    refused(r"^the training embedding holds NaN", np.inf * (z + 1), y, z, y)
    refused(r"^num_epochs takes 1 or more, got 0$", z, y, z, y, num_epochs=0)
    refused(r"^batch_size takes 1 or more, got 0$", z, y, z, y, batch_size=0)
    for rate in (0.0, np.nan, np.inf):
        refused(r"^learning_rate must be positive", z, y, z, y, learning_rate=rate)


def test_bad_shares(key):
    z, y = np.eye(3), np.arange(3)
    for share in (0.0, -0.1, 1.1, np.nan):
        match = rf"^label_fraction takes \(0, 1\], got {share}$"
        with pytest.raises(ValueError, match=match):
            semi_supervised(key, z, y, z, y, label_fraction=share)
    with pytest.raises(ValueError, match=r"^num_draws takes 1 or more, got 0$"):
        semi_supervised(key, z, y, z, y, label_fraction=0.5, num_draws=0)
