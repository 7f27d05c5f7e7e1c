"""Local training: the optimiser's steps of one client over its own examples."""

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
"""(key, variables, slots, mask) -> (loss, variables): the loss of a batch, given as
slots into the client's own rows, and the variables with new batch statistics."""


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
    """Trains one client for some epochs over its own examples.

    Every epoch visits the true examples once, in a new order, the last batch holding
    what is left, as PyTorch's loaders do where they are not told to drop it. A client
    with fewer examples than the padded length takes fewer steps: afterwards it stands
    still.

    Args:
        key: decides the order and is folded into the key of every step.
        client: the variables to start from and the state of the optimiser.
        loss: the loss of a batch.
        mask: True at the examples to train on.
        optimizer: of the parameters alone.
        batch_size: examples a step; a longer one than N is cut to N.
        num_epochs: how often each example is visited.
        drop_last: leave out a last batch that is not full, other examples in every
            epoch. A client that has no full batch keeps the one it has, where
            PyTorch's loader would give it none.
        after_step: what changes in the variables when the optimiser has taken a step,
            as a target network that follows them.

    Returns:
        The trained client and the mean loss of its steps.
    """

    def one(key, client, slots, counted):
        return step(
            key,
            client,
            loss,
            slots,
            counted,
            optimizer=optimizer,
            after_step=after_step,
        )

    return epochs(
        key,
        client,
        one,
        mask,
        batch_size=batch_size,
        num_epochs=num_epochs,
        drop_last=drop_last,
    )


def step(
    key: PRNGKey,
    client: Client,
    loss: LocalLoss,
    slots: Int[Array, "B"],
    counted: Bool[Array, "B"],
    *,
    optimizer: optax.GradientTransformation,
    after_step: Callable[[PyTree], PyTree] = lambda variables: variables,
) -> tuple[Client, Float[Array, ""]]:
    """Takes one step of `train`.

    Args:
        key: of the loss.
        client: as in `train`.
        loss: of the batch.
        slots: of the batch.
        counted: which of them count.
        optimizer, after_step: as in `train`.

    Returns:
        The client after the step, and the loss before it.
    """
    params, statistics = split(client.variables)

    def objective(params):
        return loss(key, {"params": params, **statistics}, slots, counted)

    (value, variables), gradients = jax.value_and_grad(objective, has_aux=True)(params)
    updates, opt_state = optimizer.update(gradients, client.opt_state, params)
    params = optax.apply_updates(params, updates)
    return Client(after_step({**variables, "params": params}), opt_state), value


def scale_updates(
    optimizer: optax.GradientTransformation, share: Scalar
) -> optax.GradientTransformation:
    """Returns an optimiser whose steps are a share of its own; unlike a chain's its
    state is the same, which may outlive the rounds of a share.
    """

    def update(updates, state, params=None):
        updates, state = optimizer.update(updates, state, params)
        return optax.tree.scale(share, updates), state

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
    """Takes the steps of some epochs over the true examples, in batches as `train`.

    Args:
        key: decides the order and is folded into the key of every step.
        carry: what a step changes.
        step: (key, carry, slots, mask of the batch) -> (carry, what is measured).
        mask: True at the examples to go over.
        batch_size: examples a step; a longer one than N is cut to N.
        num_epochs: how often each is visited.
        drop_last: as in `train`.
        zero: as many zeros as a step measures.

    Returns:
        The carry, and the mean over the steps of what was measured.
    """
    padded = mask.shape[0]
    size = mask.sum()
    batch_size = min(batch_size, padded)
    num_steps = num_batches(mask, batch_size=batch_size, drop_last=drop_last)
    most_steps = padded // batch_size if drop_last else -(-padded // batch_size)
    slack = -padded % batch_size
    # Made of the mask, as all that the loops carry: what vmap finds to be the same for
    # all clients before a loop and not after it costs a further trace of its body, and
    # there are two loops.
    first = 0 * size
    zero = jax.tree.map(lambda x: x + first.astype(jnp.float32), zero)

    def epoch(carry, epoch_key: PRNGKey):
        order_key, step_key = jax.random.split(epoch_key)
        order = shuffle(order_key, mask)
        # A last batch is filled up with examples that its mask leaves out.
        order = jnp.concatenate([order, order[:slack]])

        def one(i: Int[Array, ""], state):
            carry, total = state
            start = i * batch_size
            slots = lax.dynamic_slice(order, (start,), (batch_size,))
            counted = start + jnp.arange(batch_size) < size
            carry, values = step(jax.random.fold_in(step_key, i), carry, slots, counted)
            return carry, jax.tree.map(jnp.add, total, values)

        def one_or_none(i: Int[Array, ""], state):
            return jax.tree.map(partial(jnp.where, i < num_steps), one(i, state), state)

        # As many steps as this client has batches: where clients run one after another
        # a small one is done sooner. Side by side it stands still meanwhile, and a loop
        # of known length is one that XLA can plan.
        if platform() == "cpu":
            return lax.fori_loop(first, num_steps, one, (carry, zero))
        return lax.fori_loop(0, most_steps, one_or_none, (carry, zero))

    carry, totals = lax.scan(epoch, carry, fold_in(key, num_epochs))
    count = num_epochs * num_steps
    return carry, jax.tree.map(lambda x: x.sum() / count, totals)


def num_batches(
    mask: Bool[Array, "N"], *, batch_size: int, drop_last: bool = False
) -> Int[Array, ""]:
    """Returns how many batches an epoch of a client has, see `train`."""
    size, batch_size = mask.sum(), min(batch_size, len(mask))
    whole = -(-size // batch_size)
    return (
        jnp.where(size < batch_size, whole, size // batch_size) if drop_last else whole
    )


def split(variables: PyTree) -> tuple[PyTree, PyTree]:
    """Returns what gradients train and the rest (batch statistics)."""
    return variables["params"], {k: v for k, v in variables.items() if k != "params"}


def root_mean_square(weights: PyTree) -> Float[Array, ""]:
    """Returns the size of a network's typical weight."""
    leaves = jax.tree.leaves(weights)
    squares = sum(jnp.sum(jnp.square(x)) for x in leaves)
    return jnp.sqrt(squares / sum(x.size for x in leaves))


def spread(z: Float[Array, "N D"], mask: Bool[Array, "N"]) -> Float[Array, ""]:
    """Returns how far the directions of an embedding fill their sphere: the mean
    standard deviation of a unit vector's features times the root of D, 1 where they
    fill it and 0 where it has collapsed.

    Examples:
        >>> mask = jnp.array([True, True])
        >>> print(spread(jnp.array([[1.0, 0.0], [1.0, 0.0]]), mask))  # collapsed
        0.0
    """
    z = losses.normalize(z)
    return jnp.sqrt(z.shape[-1]) * jnp.std(z, axis=0, where=mask[:, None]).mean()


def evenly_spaced_indices(mask: Bool[Array, "N"], count: int) -> Int[Array, "C"]:
    """Returns so many of a client's slots, or all, spread over its true examples, which
    come class by class.
    """
    few = jnp.arange(min(count, len(mask)))
    # In two parts, as the product of both numbers may not fit an int32.
    each, rest = jnp.divmod(mask.sum(), len(few))
    return few * each + few * rest // len(few)


def shuffle(key: PRNGKey, mask: Bool[Array, "N"]) -> Int[Array, "N"]:
    """Permutes a client's slots: true examples first, in an order that the padding
    behind them does not change.
    """
    draws = jax.random.uniform(key, mask.shape)
    return jnp.argsort(jnp.where(mask, draws, jnp.inf))


def in_batches(
    fn: Callable[[Int[Array, "B"]], Shaped[Array, "B *F"]],
    rows: Int[Array, "N"],
    *,
    batch_size: int,
) -> Shaped[Array, "N *F"]:
    """Applies a function of a batch of rows to all rows, in bounded memory."""
    count = rows.shape[0]
    batch_size = min(batch_size, count)
    num_batches = -(-count // batch_size)
    padded = jnp.concatenate([rows, rows[: num_batches * batch_size - count]])
    results = lax.map(fn, padded.reshape(num_batches, batch_size))
    return results.reshape(-1, *results.shape[2:])[:count]
