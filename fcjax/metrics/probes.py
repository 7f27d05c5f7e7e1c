"""Linear probes: how well a linear classifier reads an embedding, from all labels or
from a few.

The linear and the semi-supervised evaluation of the FedU, FedEMA and FedMCC papers, of
any embedding. A module of its own, which `fcjax.metrics` does not import.
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
    """Test accuracy of a linear softmax classifier of the frozen embedding.

    Trained by Adam from zero weights on the mean cross-entropy of a batch. Every epoch
    visits each training example once in a new order, the last batch being the mean over
    what is left. The defaults are those of FedEMA's code, which neither shuffles nor
    rescales and starts from PyTorch's random weights.

    Args:
      key: decides the order of the examples.
      train_z: [n, D] embedding of the training examples, computed in float32.
      train_labels: [n] their classes.
      test_z: [m, D] embedding of the test examples.
      test_labels: [m] their classes; one that no training example has is never right.
      num_epochs: passes over the training examples.
      batch_size: examples a step; a longer one than n is cut to n.
      learning_rate: of Adam, constant.
      rescale: True subtracts the training mean and divides all features by one number,
        the root of the training examples' mean square, so that one learning rate suits
        embeddings of any scale and offset, and no feature that hardly varies is blown
        up. False takes them as they are: what is learnt then depends on their scale.

    Returns:
      The top-1 accuracy in [0, 1].

    Raises:
      ValueError: if there are no examples, lengths or feature counts differ, an
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
    """Test accuracies of linear classifiers that were given a share of the labels.

    Not the papers' protocol to the letter: there, as in SimCLR, the network is trained
    on with the classifier, and the labels are drawn once; here the embedding is frozen,
    since it may be of any origin, and each of several draws has a classifier of its
    own. Figures are therefore not comparable with FedMCC's Table V. The number of
    epochs, the batch size and the learning rate are those of FedEMA's code.

    Args:
      key: decides the draws, each from its own fold of the key, so that the first ones
        are the same whatever their number, and the order of the examples.
      train_z, train_labels, test_z, test_labels, num_epochs, batch_size, learning_rate,
        rescale: see `linear_probe`. `rescale` uses all training examples, since the
        embedding of those without a label is known too.
      label_fraction: the share in (0, 1], of each class; see `labels_per_class`.
      num_draws: how many shares are drawn. They are trained side by side.

    Returns:
      [num_draws] top-1 accuracies in [0, 1].

    Raises:
      ValueError: as `linear_probe`, or if label_fraction is outside (0, 1].

    References:
      Chen et al., A simple framework for contrastive learning of visual
      representations (SimCLR), 2020, section 4 and appendix B.5.
      FedMCC, section IV-C, Table V.
    """
    if num_draws < 1:
        raise ValueError(f"num_draws takes 1 or more, got {num_draws}")
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
    """How many labels of each class are a share of them.

    Returns:
      [C], in the order of the sorted classes: the whole number nearest to the class's
      share of its examples, at least 1.

    Raises:
      ValueError: if label_fraction is outside (0, 1].
    """
    if not 0 < label_fraction <= 1:
        raise ValueError(f"label_fraction takes (0, 1], got {label_fraction}")
    counts = np.unique(np.asarray(labels), return_counts=True)[1]
    return np.maximum(1, np.rint(label_fraction * counts).astype(int))


def stratified_draw(
    key: PRNGKey, labels: Integer[np.ndarray | Array, "n"], *, label_fraction: float
) -> Int[np.ndarray, "s"]:
    """Draws `labels_per_class` rows of each class, without replacement, in order."""
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
    """Checks everything; returns the test accuracies of T classifiers, each trained on
    its own rows of the training examples.
    """
    train, classes, codes, test = _prepare(*data, rescale)
    for name, count in (("num_epochs", num_epochs), ("batch_size", batch_size)):
        if count < 1:
            raise ValueError(f"{name} takes 1 or more, got {count}")
    if not 0 < learning_rate < np.inf:
        raise ValueError(f"learning_rate must be positive, got {learning_rate}")
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
    """Trains T classifiers side by side, each on its own rows of one embedding."""
    optimizer = optax.adam(learning_rate)
    shapes = {"kernel": (z.shape[1], num_classes), "bias": (num_classes,)}
    zeros = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    start = clients.Client({"params": zeros}, optimizer.init(zeros))

    def fit(key, rows):
        def loss(key, variables, slots, mask):
            batch = rows[slots]
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
    """Checks everything; returns (train, classes, codes, test)."""
    train, test = np.asarray(train_z, np.float32), np.asarray(test_z, np.float32)
    check_embeddings(train, train_labels, test, test_labels)
    if rescale:
        mean = train.mean(axis=0, dtype=np.float64).astype(np.float32)
        train, test = train - mean, test - mean
        # Squares of what float32 holds may not fit in it.
        size = np.sqrt(np.mean(np.square(train, dtype=np.float64))) or 1.0
        train, test = np.float32(train / size), np.float32(test / size)
    classes, codes = np.unique(np.asarray(train_labels), return_inverse=True)
    return jnp.asarray(train), classes, jnp.asarray(codes), jnp.asarray(test)
