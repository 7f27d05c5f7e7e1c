"""The k-nearest-neighbour probe: do examples of one class lie together?"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Array, Float, Integer

# Similarities held at a time: 64 MiB of them, and twice as much of their order.
_CHUNK = 2**24


def knn_accuracy(
    train_z: Float[np.ndarray | Array, "_ _"],
    train_labels: Integer[np.ndarray | Array, "_"],
    test_z: Float[np.ndarray | Array, "_ _"],
    test_labels: Integer[np.ndarray | Array, "_"],
    *,
    num_neighbors: Sequence[int] = (3, 5, 7, 9, 100, 1000, 7000),
    normalize: bool = True,
) -> dict[int, float]:
    """Test accuracy of the k-nearest-neighbour classifier, for every k at once.

    Neighbours have one vote each, and of classes with equally many votes the smallest
    wins, as in scikit-learn. Which of several training examples at one and the same
    distance comes k-th is not specified.

    Args:
      train_z: [n, D] embedding of the training examples.
      train_labels: [n] their classes.
      test_z: [m, D] embedding of the test examples.
      test_labels: [m] their classes; one that no training example has is never right.
      num_neighbors: the k, by default those of Table 3 of the CCFC paper.
      normalize: True compares by cosine, which is Euclidean distance between
        L2-normalised vectors; False by Euclidean distance as they are, which gives the
        table's raw pixels.

    Returns:
      A dict from each k to an accuracy in [0, 1].

    Raises:
      ValueError: if there is nothing to compare, lengths or feature counts differ, a k
        is outside 1 .. n, or an embedding is not finite.

    References:
      Liu et al., CCFC: bridging federated clustering and contrastive learning, 2024,
      Table 3.

    Examples:
      >>> train, classes = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([4, 7])
      >>> test = np.array([[3.0, 1.0], [1.0, 9.0], [2.0, 1.0]])
      >>> truth = np.array([4, 7, 7])
      >>> accuracies = knn_accuracy(train, classes, test, truth, num_neighbors=(1,))
      >>> print(f"{accuracies[1]:.3f}")  # two of three
      0.667
    """
    train, test = np.asarray(train_z, np.float32), np.asarray(test_z, np.float32)
    train_labels, test_labels = np.asarray(train_labels), np.asarray(test_labels)
    check_embeddings(train, train_labels, test, test_labels)
    if len(num_neighbors) == 0:
        raise ValueError("no number of neighbours to vote")
    for k in num_neighbors:
        if not 1 <= k <= len(train):
            raise ValueError(f"num_neighbors takes 1 .. {len(train)}, got {k}")
    if normalize:
        train, test = unit(train), unit(test)
    else:
        # Distances stay; without a common offset float32 resolves more of them.
        offset = train.mean(axis=0)
        train, test = train - offset, test - offset
    # |x - t|^2 falls where x.t - |t|^2 / 2 rises, x being the same for a whole row.
    penalty = np.square(train).sum(axis=1) / 2
    classes, codes = np.unique(train_labels, return_inverse=True)
    ks = sorted(set(num_neighbors))
    hits = dict.fromkeys(ks, 0)
    rows = max(1, _CHUNK // len(train))
    for start in range(0, len(test), rows):
        farness = penalty - test[start : start + rows] @ train.T
        # Partitioned at every k, what lies between two of them needs no order.
        order = np.argpartition(farness, [k - 1 for k in ks], axis=1)
        votes = np.zeros((len(farness), len(classes)), int)
        each = np.arange(len(farness))[:, None]
        for before, k in zip([0, *ks], ks, strict=False):
            np.add.at(votes, (each, codes[order[:, before:k]]), 1)
            winners = classes[votes.argmax(axis=1)]
            hits[k] += int(np.sum(winners == test_labels[start : start + rows]))
    return {k: hits[k] / len(test) for k in num_neighbors}


def unit(vectors: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n D"]:
    """Returns vectors of length 1; one of zeros has no direction, and stays."""
    # By the largest entry first: squares of what a type holds may not fit in it.
    for order in (np.inf, None):
        norms = np.linalg.norm(vectors, order, axis=1, keepdims=True)
        vectors = vectors / np.where(norms > 0, norms, 1)
    return vectors


def check_embeddings(train, train_labels, test, test_labels) -> None:
    """Raises ValueError with one line where they do not fit, or are not finite."""
    for name, z, labels in (
        ("training", train, train_labels),
        ("test", test, test_labels),
    ):
        if len(z) != len(labels):
            raise ValueError(f"{len(z)} {name} examples but {len(labels)} labels")
        if z.size == 0:
            raise ValueError(f"no {name} examples")
        if not np.isfinite(z).all():
            raise ValueError(f"the {name} embedding holds NaN or infinite values")
    if train.shape[1] != test.shape[1]:
        raise ValueError(
            f"{train.shape[1]} training features but {test.shape[1]} test features"
        )
