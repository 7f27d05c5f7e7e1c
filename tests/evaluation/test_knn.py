import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from fcjax.evaluation import knn, knn_accuracy


def embedded(n, seed, features=6, classes=4):
    """Classes that overlap, with labels that are not 0, 1, ..."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, classes, n)
    centres = np.random.default_rng(99).normal(size=(classes, features))
    return centres[codes] + 0.8 * rng.normal(size=(n, features)) + 1, 7 * codes - 5


def test_by_hand():
    # On the unit circle, at angles 0, 10 and 20 degrees from the test example.
    angles = np.deg2rad([0, 10, 20, 180])
    train = np.stack([np.cos(angles), np.sin(angles)], axis=1) * [[1], [9], [2], [1]]
    labels = np.array([5, 2, 2, 9])
    test, truth = np.array([[3.0, 0.0], [-1.0, 0.0]]), np.array([5, 9])
    # k = 2: a tie of 5 and 2 goes to 2, and a tie of 9 and 2 as well.
    found = knn_accuracy(train, labels, test, truth, num_neighbors=(2, 1, 3))
    assert found == {2: 0.0, 1: 1.0, 3: 0.0}
    assert list(found) == [2, 1, 3]


@pytest.mark.parametrize("chunk", [1, 1000, 2**24])
@pytest.mark.parametrize("normalize", [True, False])
def test_against_scikit_learn(monkeypatch, chunk, normalize):
    monkeypatch.setattr(knn, "_CHUNK", chunk)
    train, train_labels = embedded(300, 0)
    test, test_labels = embedded(101, 1)
    ks = (1, 2, 3, 10, 100, 300)
    found = knn_accuracy(
        train, train_labels, test, test_labels, num_neighbors=ks, normalize=normalize
    )
    if normalize:
        train /= np.linalg.norm(train, axis=1, keepdims=True)
        test /= np.linalg.norm(test, axis=1, keepdims=True)
    for k in ks:
        oracle = KNeighborsClassifier(k, algorithm="brute").fit(train, train_labels)
        assert found[k] == pytest.approx(oracle.score(test, test_labels))
    assert 0.2 < found[300] < found[10] < 1


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_cosine_does_not_depend_on_scale(scale):
    train, train_labels = embedded(200, 0)
    test, test_labels = embedded(50, 1)
    plain = knn_accuracy(train, train_labels, test, test_labels, num_neighbors=[5])
    assert plain == knn_accuracy(
        scale * train, train_labels, scale * test, test_labels, num_neighbors=[5]
    )


def test_distance_is_not_lost_far_from_the_origin():
    train, train_labels = embedded(200, 0)
    test, test_labels = embedded(50, 1)
    # Float32 resolves 1/64 around 2 ** 17.
    train, test = np.round(64 * train) / 64, np.round(64 * test) / 64
    near, far = (
        knn_accuracy(
            train + offset,
            train_labels,
            test + offset,
            test_labels,
            num_neighbors=[1, 5],
            normalize=False,
        )
        for offset in (0, 2**17)
    )
    assert near == pytest.approx(far, abs=0.021)


def test_awkward_vectors_and_classes():
    train, labels = np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([1, 1])
    test, truth = np.array([[0.0, 0.0], [0.0, 1.0]]), np.array([1, 4])
    assert knn_accuracy(train, labels, test, truth, num_neighbors=[1]) == {1: 0.5}


def test_bad_input():
    z, y = np.eye(3), np.arange(3)
    for k in (0, 4):
        with pytest.raises(ValueError, match=rf"^num_neighbors takes 1 .. 3, got {k}$"):
            knn_accuracy(z, y, z, y, num_neighbors=[k])
    with pytest.raises(ValueError, match=r"^no number of neighbours"):
        knn_accuracy(z, y, z, y, num_neighbors=[])
    with pytest.raises(ValueError, match=r"^3 test examples but 2 labels$"):
        knn_accuracy(z, y, z, y[:2], num_neighbors=[1])
    with pytest.raises(ValueError, match=r"^no training examples$"):
        knn_accuracy(z[:0], y[:0], z, y, num_neighbors=[1])
    with pytest.raises(ValueError, match=r"^3 training features but 2 test features$"):
        knn_accuracy(z, y, z[:, :2], y, num_neighbors=[1])
    with pytest.raises(ValueError, match=r"^the test embedding holds NaN"):
        knn_accuracy(z, y, np.nan * z, y, num_neighbors=[1])
