"""Local training: the optimizer's steps of one client over its own examples."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from fcjax import losses
from fcjax.federated.clients import Client, fold_in
from fcjax.parallel.mesh import platform
from fcjax.types import PRNGKey, PyTree, Scalar

LocalLoss = Callable[
    [PRNGKey, PyTree, Int[Array, "B"], Bool[Array, "B"]],
    tuple[Float[Array, ""], PyTree],
]
"""(key, variables, batch, batch_mask) -> (loss, variables): the loss of a batch, and
the variables with new batch statistics. `batch` holds the positions of B examples among
the N examples of the client. `batch_mask` is False at padding."""


def train(
    key: PRNGKey,
    client: Client,
    loss: LocalLoss,
    mask: Bool[Array, "N"],
    *,
    optimizer: optax.GradientTransformation,
    batch_size: int,
    num_epochs: int,
    drop_last: bool = False,
    after_step: Callable[[PyTree], PyTree] = lambda variables: variables,
) -> tuple[Client, Float[Array, ""]]:
    """Trains one client for some epochs on its own examples.

    Each epoch visits every example once, in a new random order. The last batch of an
    epoch may be smaller, as in PyTorch's data loaders. A client with few examples takes
    fewer steps than others. It does not change after its last step.

    Args:
        key: the key of the order of the examples and of every step.
        client: the initial variables and optimizer state.
        loss: the loss of a batch.
        mask: True at the examples to train on, False at padding.
        optimizer: the optimizer of the parameters.
        batch_size: number of examples per step; at most N are used.
        num_epochs: number of epochs.
        drop_last: leave out a last batch that is smaller than the others. Each epoch
            leaves out different examples. A client whose only batch is smaller trains
            on this batch, whereas PyTorch's data loader would return no batch.
        after_step: (variables) -> variables after a step of the optimizer. It may
            update a target network, for example.

    Returns:
        The trained client, and the mean loss over its steps.
    """

    def take_step(key, client, batch, batch_mask):
        return step(
            key,
            client,
            loss,
            batch,
            batch_mask,
            optimizer=optimizer,
            after_step=after_step,
        )

    return epochs(
        key,
        client,
        take_step,
        mask,
        batch_size=batch_size,
        num_epochs=num_epochs,
        drop_last=drop_last,
    )


def step(
    key: PRNGKey,
    client: Client,
    loss: LocalLoss,
    batch: Int[Array, "B"],
    batch_mask: Bool[Array, "B"],
    *,
    optimizer: optax.GradientTransformation,
    after_step: Callable[[PyTree], PyTree] = lambda variables: variables,
) -> tuple[Client, Float[Array, ""]]:
    """Takes one optimizer step on one batch.

    Args:
        key: the key of the loss.
        client: the variables and optimizer state before the step.
        loss: the loss of a batch.
        batch: positions of the batch's examples among the client's examples.
        batch_mask: False at padding.
        optimizer: the optimizer of the parameters.
        after_step: (variables) -> variables after the step of the optimizer.

    Returns:
        The client after the step, and the loss before the step.
    """
    params, statistics = split(client.variables)

    def objective(params):
        return loss(key, {"params": params, **statistics}, batch, batch_mask)

    (value, variables), gradients = jax.value_and_grad(objective, has_aux=True)(params)
    updates, opt_state = optimizer.update(gradients, client.opt_state, params)
    params = optax.apply_updates(params, updates)
    return Client(after_step({**variables, "params": params}), opt_state), value


def scale_updates(
    optimizer: optax.GradientTransformation, factor: Scalar
) -> optax.GradientTransformation:
    """Returns an optimizer whose updates are multiplied by a factor.

    Unlike `optax.chain`, it has the state of the original optimizer. So the state can
    be kept while the factor changes from round to round.

    Args:
        optimizer: the original optimizer.
        factor: the factor, such as a share of the learning rate.

    Returns:
        The optimizer.
    """

    def update(updates, state, params=None):
        updates, state = optimizer.update(updates, state, params)
        return optax.tree.scale(factor, updates), state

    return optax.GradientTransformation(optimizer.init, update)


Carry = TypeVar("Carry")


def epochs(
    key: PRNGKey,
    carry: Carry,
    step: Callable[
        [PRNGKey, Carry, Int[Array, "B"], Bool[Array, "B"]], tuple[Carry, PyTree]
    ],
    mask: Bool[Array, "N"],
    *,
    batch_size: int,
    num_epochs: int,
    drop_last: bool = False,
    zero: PyTree = 0.0,
) -> tuple[Carry, PyTree]:
    """Runs a step function on every batch of some epochs, in the order of `train`.

    Args:
        key: the key of the order of the examples and of every step.
        carry: the value that steps change.
        step: (key, carry, batch, batch_mask) -> (carry, measurements).
        mask: True at the examples to visit, False at padding.
        batch_size: number of examples per step; at most N are used.
        num_epochs: number of visits of each example.
        drop_last: leave out a last batch that is smaller than the others, see `train`.
        zero: a tree of zeros of the same structure as the measurements of a step.

    Returns:
        The carry after the last step, and the mean measurements over the steps.
    """
    padded_size = mask.shape[0]
    size = mask.sum()
    batch_size = min(batch_size, padded_size)
    num_steps = num_batches(mask, batch_size=batch_size, drop_last=drop_last)
    max_steps = (
        padded_size // batch_size if drop_last else -(-padded_size // batch_size)
    )
    slack = -padded_size % batch_size
    # All values that the two loops carry are computed from the mask. Otherwise `vmap`
    # takes some of them as equal for all clients before a loop but not after it, and
    # traces the body of the loop once more.
    first = 0 * size
    zero = jax.tree.map(lambda x: x + first.astype(jnp.float32), zero)

    def epoch(carry, epoch_key: PRNGKey):
        order_key, step_key = jax.random.split(epoch_key)
        order = shuffle(order_key, mask)
        # The last batch is filled up with examples that its mask excludes.
        order = jnp.concatenate([order, order[:slack]])

        def take_step(i: Int[Array, ""], state):
            carry, total = state
            start = i * batch_size
            batch = lax.dynamic_slice(order, (start,), (batch_size,))
            batch_mask = start + jnp.arange(batch_size) < size
            batch_key = jax.random.fold_in(step_key, i)
            carry, values = step(batch_key, carry, batch, batch_mask)
            return carry, jax.tree.map(jnp.add, total, values)

        def take_step_or_none(i: Int[Array, ""], state):
            keep = partial(jnp.where, i < num_steps)
            return jax.tree.map(keep, take_step(i, state), state)

        # On a CPU clients run one after another, so a small client finishes earlier. In
        # one batch (vmapped) it would wait for the others, and XLA plans a loop of
        # constant length better.
        if platform() == "cpu":
            return lax.fori_loop(first, num_steps, take_step, (carry, zero))
        return lax.fori_loop(0, max_steps, take_step_or_none, (carry, zero))

    carry, totals = lax.scan(epoch, carry, fold_in(key, num_epochs))
    count = num_epochs * num_steps
    return carry, jax.tree.map(lambda x: x.sum() / count, totals)


def num_batches(
    mask: Bool[Array, "N"], *, batch_size: int, drop_last: bool = False
) -> Int[Array, ""]:
    """Computes the number of batches of one epoch of a client.

    Args:
        mask: True at the client's examples, False at padding.
        batch_size: number of examples per batch; at most N are used.
        drop_last: leave out a last batch that is smaller than the others, see `train`.

    Returns:
        The number of batches, at least 1 for a client with examples.
    """
    size, batch_size = mask.sum(), min(batch_size, len(mask))
    whole = -(-size // batch_size)
    return (
        jnp.where(size < batch_size, whole, size // batch_size) if drop_last else whole
    )


def split(variables: PyTree) -> tuple[PyTree, PyTree]:
    """Splits variables into the trained parameters and the rest, such as statistics.

    Args:
        variables: the variables of a network by kind, with the kind "params".

    Returns:
        The parameters, and the variables of the other kinds.
    """
    return variables["params"], {k: v for k, v in variables.items() if k != "params"}


def root_mean_square(weights: PyTree) -> Float[Array, ""]:
    """Computes the root mean square of all weights of a network.

    Args:
        weights: a tree of arrays of any shape.

    Returns:
        A scalar, at least 0.
    """
    leaves = jax.tree.leaves(weights)
    squares = sum(jnp.sum(jnp.square(x)) for x in leaves)
    return jnp.sqrt(squares / sum(x.size for x in leaves))


def spread(z: Float[Array, "N D"], mask: Bool[Array, "N"]) -> Float[Array, ""]:
    """Measures the spread of the directions of an embedding, to detect its collapse.

    It is the standard deviation of the features of unit vectors, averaged over the
    features, times the square root of D.

    Args:
        z: the embedding of a client's examples.
        mask: False at padding.

    Returns:
        About 1 if the directions fill the unit sphere, 0 if all of them are equal.

    Examples:
        >>> mask = jnp.array([True, True])
        >>> print(spread(jnp.array([[1.0, 0.0], [1.0, 0.0]]), mask))  # collapsed
        0.0
    """
    z = losses.normalize(z)
    return jnp.sqrt(z.shape[-1]) * jnp.std(z, axis=0, where=mask[:, None]).mean()


def evenly_spaced_indices(mask: Bool[Array, "N"], count: int) -> Int[Array, "C"]:
    """Returns evenly spaced positions of a client's examples, without padding.

    A subset of evenly spaced examples represents all classes, even if the examples are
    sorted by class.

    Args:
        mask: True at the client's examples, which come first; False at padding.
        count: C, the number of positions; at most N are returned.

    Returns:
        Positions [C] among the client's examples.
    """
    few = jnp.arange(min(count, len(mask)))
    # The product is computed in two parts, because it may exceed int32.
    each, rest = jnp.divmod(mask.sum(), len(few))
    return few * each + few * rest // len(few)


def shuffle(key: PRNGKey, mask: Bool[Array, "N"]) -> Int[Array, "N"]:
    """Permutes the positions of a client's examples at random, and puts padding last.

    Args:
        key: the key of the permutation.
        mask: True at the client's examples, False at padding.

    Returns:
        The positions [N] in random order: first the examples, then the padding.
    """
    draws = jax.random.uniform(key, mask.shape)
    return jnp.argsort(jnp.where(mask, draws, jnp.inf))


def in_batches(
    fn: Callable[[Int[Array, "B"]], Shaped[Array, "B *F"]],
    indices: Int[Array, "N"],
    *,
    batch_size: int,
) -> Shaped[Array, "N *F"]:
    """Applies a function to many examples, one batch after another, to bound memory.

    Args:
        fn: (indices of a batch) -> one result per index.
        indices: the indices of all examples.
        batch_size: number of indices per batch.

    Returns:
        The results of all examples, in the order of the indices.
    """
    count = indices.shape[0]
    batch_size = min(batch_size, count)
    num_batches = -(-count // batch_size)
    padded = jnp.concatenate([indices, indices[: num_batches * batch_size - count]])
    results = lax.map(fn, padded.reshape(num_batches, batch_size))
    return results.reshape(-1, *results.shape[2:])[:count]
