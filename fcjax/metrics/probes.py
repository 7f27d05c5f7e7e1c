"""Linear probes: accuracy of linear classifiers on an embedding.

These are the linear and the semi-supervised evaluation of the FedU, FedEMA and FedMCC
papers, for any embedding. `fcjax.metrics` does not import this module, because the
module needs optax.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Int, Integer, Key

from fcjax.federated import clients, training
from fcjax.metrics.internal import check_embeddings
from fcjax.types import PRNGKey, Scalar


def linear_probe(
    key: PRNGKey,
    train_z: Float[np.ndarray | Array, "_ _"],
    train_labels: Integer[np.ndarray | Array, "_"],
    test_z: Float[np.ndarray | Array, "_ _"],
    test_labels: Integer[np.ndarray | Array, "_"],
    *,
    num_epochs: int = 200,
    batch_size: int = 2048,
    learning_rate: float = 3e-3,
    rescale: bool = True,
) -> float:
    """Returns the test accuracy of a linear softmax classifier on a frozen embedding.

    Adam trains the classifier from zero weights on the mean cross-entropy of each
    batch. Each epoch visits all training examples once in a new order. The last batch
    may be smaller. The defaults are those of FedEMA's code. That code neither shuffles
    nor rescales, and starts from PyTorch's random weights.

    Args:
      key: the random key of the order of the examples.
      train_z: [n, D] embedding of the training examples, computed in float32.
      train_labels: [n] classes of the training examples.
      test_z: [m, D] embedding of the test examples.
      test_labels: [m] classes of the test examples. A class without a training example
        is never predicted.
      num_epochs: the number of passes over the training examples.
      batch_size: the number of examples per step; at most n are used.
      learning_rate: the constant learning rate of Adam, above 0.
      rescale: True subtracts the training mean and divides all features by one number,
        the root mean square of the training examples. Then one learning rate suits
        embeddings of any scale and offset, and nearly constant features are not
        amplified. False uses the embedding unchanged, and the result depends on its
        scale.

    Returns:
      The top-1 accuracy in [0, 1].

    Raises:
      ValueError: there are no examples, lengths or numbers of features differ, an
        embedding is not finite, or a setting is not positive.

    References:
      Zhuang et al., Divergence-aware federated self-supervised learning, ICLR 2022.
      Federated momentum contrastive clustering (FedMCC), section IV-C, Tables III, IV.
    """
    data = train_z, train_labels, test_z, test_labels
    rows = np.arange(len(train_labels))[None]
    settings = {"num_epochs": num_epochs, "batch_size": batch_size}
    return float(_probe(key[None], data, rows, learning_rate, rescale, **settings)[0])


def semi_supervised(
    key: PRNGKey,
    train_z: Float[np.ndarray | Array, "_ _"],
    train_labels: Integer[np.ndarray | Array, "_"],
    test_z: Float[np.ndarray | Array, "_ _"],
    test_labels: Integer[np.ndarray | Array, "_"],
    *,
    label_fraction: float,
    num_draws: int = 5,
    num_epochs: int = 100,
    batch_size: int = 128,
    learning_rate: float = 1e-3,
    rescale: bool = True,
) -> Float[np.ndarray, "num_draws"]:
    """Returns test accuracies of linear classifiers trained on a share of labels.

    This differs from the papers' protocol. The papers, like SimCLR, train the network
    together with the classifier and draw the labels once. Here the embedding is frozen,
    because it may come from any method, and there are several draws with one classifier
    each. So the values are not comparable with Table V of FedMCC. The number of epochs,
    the batch size and the learning rate are those of FedEMA's code.

    Args:
      key: the random key of the draws and of the order of the examples. The first draws
        do not depend on `num_draws`.
      train_z: [n, D] embedding of the training examples, computed in float32.
      train_labels: [n] classes of the training examples.
      test_z: [m, D] embedding of the test examples.
      test_labels: [m] classes of the test examples. A class without a training example
        is never predicted.
      label_fraction: the share of the labels of each class, in (0, 1]; see
        `labels_per_class`.
      num_draws: the number of draws of labels. Their classifiers train in one batch.
      num_epochs: the number of passes over the labelled examples.
      batch_size: the number of examples per step.
      learning_rate: the constant learning rate of Adam, above 0.
      rescale: True rescales the embedding as in `linear_probe`, by the mean and root
        mean square of all training examples, labelled or not.

    Returns:
      [num_draws] top-1 accuracies in [0, 1].

    Raises:
      ValueError: there are no examples, lengths or numbers of features differ, an
        embedding is not finite, a setting is not positive, or label_fraction is outside
        (0, 1].

    References:
      Chen et al., A simple framework for contrastive learning of visual
      representations (SimCLR), 2020, section 4 and appendix B.5.
      FedMCC, section IV-C, Table V.
    """
    if num_draws < 1:
        raise ValueError(f"`num_draws` must be at least 1, got {num_draws}")
    draw_keys, train_keys = jax.vmap(jax.random.split, out_axes=1)(
        clients.fold_in(key, num_draws)
    )
    draw = partial(stratified_draw, labels=train_labels, label_fraction=label_fraction)
    data = train_z, train_labels, test_z, test_labels
    settings = {"num_epochs": num_epochs, "batch_size": batch_size}
    rows = np.stack([draw(key) for key in draw_keys])
    return _probe(train_keys, data, rows, learning_rate, rescale, **settings)


def labels_per_class(
    labels: Integer[np.ndarray | Array, "n"], *, label_fraction: float
) -> Int[np.ndarray, "C"]:
    """Returns the number of labels of each class for a share of all labels.

    Args:
      labels: [n] classes.
      label_fraction: the share of the labels, in (0, 1].

    Returns:
      [C] numbers, in the order of the sorted classes. Each number is the class size
      times label_fraction, rounded, and at least 1.

    Raises:
      ValueError: label_fraction is outside (0, 1].
    """
    if not 0 < label_fraction <= 1:
        raise ValueError(f"label_fraction must lie in (0, 1], got {label_fraction}")
    counts = np.unique(np.asarray(labels), return_counts=True)[1]
    return np.maximum(1, np.rint(label_fraction * counts).astype(int))


def stratified_draw(
    key: PRNGKey, labels: Integer[np.ndarray | Array, "n"], *, label_fraction: float
) -> Int[np.ndarray, "s"]:
    """Draws `labels_per_class` examples of each class without replacement, in order.

    Args:
      key: the random key of the draw.
      labels: [n] classes.
      label_fraction: the share of the labels, in (0, 1].

    Returns:
      [s] positions of the drawn examples, in increasing order.

    Raises:
      ValueError: label_fraction is outside (0, 1].
    """
    quotas = labels_per_class(labels, label_fraction=label_fraction)
    codes = np.unique(np.asarray(labels), return_inverse=True)[1]
    counts = np.bincount(codes)
    shuffled = np.lexsort((np.asarray(jax.random.uniform(key, codes.shape)), codes))
    rank = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(shuffled[rank < np.repeat(quotas, counts)])


def _probe(
    keys: Key[Array, "T"],
    data: tuple[Any, Any, Any, Any],
    rows: Int[np.ndarray, "T s"],
    learning_rate: float,
    rescale: bool,
    *,
    num_epochs: int,
    batch_size: int,
) -> Float[np.ndarray, "T"]:
    """Checks all arguments, then returns the test accuracies of T classifiers.

    Each classifier is trained on its own rows of the training examples.
    """
    train, classes, codes, test = _prepare(*data, rescale)
    for name, count in (("num_epochs", num_epochs), ("batch_size", batch_size)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    if not 0 < learning_rate < np.inf:
        raise ValueError(
            f"learning_rate must be positive and finite, got {learning_rate}"
        )
    weights = _fit(
        keys,
        train,
        codes,
        jnp.asarray(rows),
        learning_rate,
        len(classes),
        num_epochs=num_epochs,
        batch_size=batch_size,
    )
    logits = jax.vmap(_logits, in_axes=(0, None))(weights, test)
    winners = classes[np.asarray(jnp.argmax(logits, axis=-1))]
    return np.mean(winners == np.asarray(data[-1]), axis=-1)


@partial(jax.jit, static_argnames=("num_classes", "num_epochs", "batch_size"))
def _fit(
    keys: Key[Array, "T"],
    z: Float[Array, "n D"],
    codes: Int[Array, "n"],
    rows: Int[Array, "T s"],
    learning_rate: Scalar,
    num_classes: int,
    *,
    num_epochs: int,
    batch_size: int,
) -> dict[str, Float[Array, "T ..."]]:
    """Trains T classifiers in one batch, each on its own rows of one embedding."""
    optimizer = optax.adam(learning_rate)
    shapes = {"kernel": (z.shape[1], num_classes), "bias": (num_classes,)}
    zeros = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    start = clients.Client({"params": zeros}, optimizer.init(zeros))

    def fit(key, rows):
        def loss(key, variables, indices, mask):
            batch = rows[indices]
            losses = optax.softmax_cross_entropy_with_integer_labels(
                _logits(variables["params"], z[batch]), codes[batch]
            )
            return jnp.sum(losses * mask) / mask.sum(), variables

        trained, _ = training.train(
            key,
            start,
            loss,
            jnp.ones(rows.shape, bool),
            optimizer=optimizer,
            batch_size=batch_size,
            num_epochs=num_epochs,
        )
        return trained.variables["params"]

    return jax.vmap(fit)(keys, rows)


def _logits(weights, z: Float[Array, "B D"]) -> Float[Array, "B C"]:
    product = jnp.dot(z, weights["kernel"], precision=lax.Precision.HIGHEST)
    return product + weights["bias"][None]


def _prepare(train_z, train_labels, test_z, test_labels, rescale):
    """Checks all arguments, then returns (train, classes, codes, test)."""
    train, test = np.asarray(train_z, np.float32), np.asarray(test_z, np.float32)
    check_embeddings(train, train_labels, test, test_labels)
    if rescale:
        mean = train.mean(axis=0, dtype=np.float64).astype(np.float32)
        train, test = train - mean, test - mean
        # Squares of large float32 values overflow in float32.
        size = np.sqrt(np.mean(np.square(train, dtype=np.float64))) or 1.0
        train, test = np.float32(train / size), np.float32(test / size)
    classes, codes = np.unique(np.asarray(train_labels), return_inverse=True)
    return jnp.asarray(train), classes, jnp.asarray(codes), jnp.asarray(test)
