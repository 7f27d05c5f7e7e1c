"""The client axis: who runs how, local training, and padding."""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from fcjax import losses
from fcjax.types import PRNGKey, PyTree

ClientAxis = Literal["vmap", "map", "unroll"]

LocalLoss = Callable[
    [PRNGKey, PyTree, Int[Array, "B"], Bool[Array, "B"]],
    tuple[Float[Array, ""], PyTree],
]
"""(key, variables, slots, mask) -> (loss, variables): the loss of a batch, given as
slots into the client's own rows, and the variables with new batch statistics."""


class Client(NamedTuple):
    """What a client trains; stacked on a leading axis M for all clients."""

    variables: PyTree
    opt_state: PyTree


AXIS = "client"
"""The mesh axis over which the clients of a run are spread where devices are left over;
a function of one run then sees those of its own device. Elsewhere it is not bound."""

LARGE_CLIENT = 2**19
"""Bytes from which a client on a CPU is better trained alone: its network, optimiser
and gradients stay in a core's cache, as they do not beside those of the others, and a
product with a kernel of all clients' own is slower than with one."""


def for_each(fn: Callable, *stacked: PyTree, axis: ClientAxis | None = None) -> PyTree:
    """Applies `fn` to every client; nothing else in the library says how.

    Args:
        fn: a function of one client's values.
        *stacked: the clients' values, each leaf with a leading client axis.
        axis: `vmap` batches the clients' operations, best for small networks and on
            accelerators; `map` takes one client after another, best where one client
            fills the machine; `unroll` does so without a loop, at the price of
            compile time. None chooses by platform and size.

    Returns:
        The results, stacked on a leading client axis.

    Examples:
        >>> print(for_each(jnp.sum, jnp.array([[1, 2], [3, 4]])))
        [3 7]
    """
    leaves = jax.tree.leaves(stacked)
    count = len(leaves[0])
    if axis is None:
        size = sum(x.size * x.dtype.itemsize for x in leaves) // count
        on_cpu = jax.default_backend() == "cpu"
        axis = "map" if on_cpu and size >= LARGE_CLIENT else "vmap"
    if axis == "vmap":
        return jax.vmap(fn)(*stacked)
    if axis == "map":
        return lax.map(lambda values: fn(*values), stacked)
    one_by_one = [fn(*jax.tree.map(lambda x, i=i: x[i], stacked)) for i in range(count)]
    return jax.tree.map(lambda *xs: jnp.stack(xs), *one_by_one)


def fold_in(key: PRNGKey, count: int) -> Key[Array, "count"]:
    """Returns a key for each epoch or example: the first ones are the same whatever
    the count."""
    return jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(count))


def keys(key: PRNGKey, count: int) -> Key[Array, "count"]:
    """Returns a key for each of this device's clients: the same on whatever device."""
    numbers = first_number(count) + jnp.arange(count)
    return jax.vmap(partial(jax.random.fold_in, key))(numbers)


def num_devices() -> int:
    """Returns over how many devices the clients of a run are spread."""
    try:
        return lax.axis_size(AXIS)
    except NameError:  # not bound: all clients are here
        return 1


def first_number(count: int) -> int | Int[Array, ""]:
    """Returns the number, among all clients, of the first of this device's `count`."""
    return count * lax.axis_index(AXIS) if num_devices() > 1 else 0


def repeat(tree: PyTree, num_clients: int) -> PyTree:
    """Gives every client a copy of the server's tree: [M, ...]."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_clients, *x.shape)), tree)


def keep_absent(present: Bool[Array, "M"], new: PyTree, old: PyTree) -> PyTree:
    """Takes the new values of the clients that answered, the old ones of the rest.

    Examples:
        >>> present = jnp.array([True, False])
        >>> print(keep_absent(present, new=jnp.array([5, 5]), old=jnp.array([1, 2])))
        [5 2]
    """

    def choose(new, old):
        return jnp.where(present.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(choose, new, old)


def slots_of(chosen: Bool[Array, "M"], count: int) -> Int[Array, "C"]:
    """Returns the places of the chosen clients among this device's own, then those of
    others, so that there are `count`, or all M if they are fewer."""
    order = jnp.argsort(~chosen, stable=True)
    return order[: min(count, len(chosen))]


def take(tree: PyTree, slots: Int[Array, "C"]) -> PyTree:
    """Returns what the clients at these places have: the others cost nothing then."""
    return jax.tree.map(lambda x: x[slots], tree)


def put(
    tree: PyTree, slots: Int[Array, "C"], new: PyTree, *, where: Bool[Array, "M"]
) -> PyTree:
    """Returns the tree with new values at those of these places that are `where`."""
    new = keep_absent(where[slots], new, take(tree, slots))
    return jax.tree.map(lambda x, new: x.at[slots].set(new), tree, new)


def train(
    key: PRNGKey,
    client: Client,
    loss: LocalLoss,
    mask: Bool[Array, "N"],
    *,
    optimizer: optax.GradientTransformation,
    batch_size: int,
    num_epochs: int,
    after_step: Callable[[PyTree], PyTree] = lambda variables: variables,
) -> tuple[Client, Float[Array, ""]]:
    """Trains one client for some epochs over its own examples.

    Every epoch visits the true examples once, in a new order, the last batch holding
    what is left, as PyTorch's loaders do. A client with fewer examples than the
    padded length takes fewer steps: afterwards it stands still.

    Args:
        key: decides the order and is folded into the key of every step.
        client: the variables to start from and the state of the optimiser.
        loss: the loss of a batch.
        mask: True at the examples to train on.
        optimizer: of the parameters alone.
        batch_size: examples a step; a longer one than N is cut to N.
        num_epochs: how often each example is visited.
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

    return epochs(key, client, one, mask, batch_size=batch_size, num_epochs=num_epochs)


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
        zero: as many zeros as a step measures.

    Returns:
        The carry, and the mean over the steps of what was measured.
    """
    padded = mask.shape[0]
    size = mask.sum()
    batch_size = min(batch_size, padded)
    num_steps = -(-size // batch_size)
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

        # As many steps as this client has batches: where clients run one after another
        # a small one is done sooner, and under vmap it stands still meanwhile.
        return lax.fori_loop(first, num_steps, one, (carry, zero))

    carry, totals = lax.scan(epoch, carry, fold_in(key, num_epochs))
    count = num_epochs * num_steps
    return carry, jax.tree.map(lambda x: x.sum() / count, totals)


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


def shuffle(key: PRNGKey, mask: Bool[Array, "N"]) -> Int[Array, "N"]:
    """Permutes a client's slots: true examples first, in an order that the padding
    behind them does not change."""
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
