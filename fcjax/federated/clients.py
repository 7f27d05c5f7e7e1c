"""The client axis: who runs how, and what of absent clients is kept."""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, Key, Shaped

from fcjax import ragged
from fcjax.parallel.exact import one_by_one
from fcjax.parallel.mesh import ALL_CLIENTS, AXIS, platform
from fcjax.types import PRNGKey, PyTree

ClientAxis = Literal["vmap", "map"]


class Client(NamedTuple):
    """What a client trains; stacked on a leading axis M for all clients."""

    variables: PyTree
    opt_state: PyTree


def for_each(fn: Callable, *stacked: PyTree, axis: ClientAxis | None = None) -> PyTree:
    """Applies `fn` to every client; nothing else in the library says how.

    Args:
        fn: a function of one client's values.
        *stacked: the clients' values, each leaf with a leading client axis.
        axis: `vmap` batches the clients' operations; `map` takes one client after
            another, which then has the same bits whoever shares its device. None is
            `map` on a CPU.

    Where some of the values are ragged, clients are taken by their size classes.

    Returns:
        The results, stacked on a leading client axis; ragged, where their shapes are
        those of the size classes.

    Examples:
        >>> print(for_each(jnp.sum, jnp.array([[1, 2], [3, 4]])))
        [3 7]
    """
    if axis is None:
        axis = "map" if platform() == "cpu" else "vmap"
    each = partial(one_by_one, fn) if axis == "map" else jax.vmap(fn)
    like = ragged.ragged_in(stacked)
    if like is None:
        return each(*stacked)
    found = [each(*part) for part in ragged.parts(stacked, like)]
    return ragged.joined(found, like)


def fold_in(key: PRNGKey, count: int) -> Key[Array, "count"]:
    """Returns a key for each epoch or example: the first ones are the same whatever
    the count.
    """
    return jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(count))


def keys(key: PRNGKey, count: int) -> Key[Array, "count"]:
    """Returns a key for each of this device's clients: the same on whatever device."""
    numbers = first_index(count) + jnp.arange(count)
    return jax.vmap(partial(jax.random.fold_in, key))(numbers)


def num_devices() -> int:
    """Returns over how many devices the clients of a run are spread."""
    return _size(AXIS, 1)


def total_clients(count: int) -> int:
    """Returns how many clients a run has, of which this device has `count`: without
    those that were repeated to fill the devices.
    """
    return _size(ALL_CLIENTS, count * num_devices())


def _size(axis: str, otherwise: int) -> int:
    try:
        return lax.axis_size(axis)
    except NameError:  # not bound
        return otherwise


def first_index(count: int) -> int | Int[Array, ""]:
    """Returns the number, among all clients, of the first of this device's `count`."""
    return count * lax.axis_index(AXIS) if num_devices() > 1 else 0


def on_this_device(flags: Bool[Array, "A"], count: int) -> Bool[Array, "M"]:
    """Returns, of a truth value for each client of a run, those of this device's
    `count`; False for the clients that were repeated to fill the devices.
    """
    numbers = first_index(count) + jnp.arange(count)
    return flags.at[numbers].get(mode="fill", fill_value=False)


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
        return jnp.where(column(present, new.ndim), new, old)

    return jax.tree.map(choose, new, old)


def column(values: Shaped[Array, "M"], ndim: int) -> Shaped[Array, "M *ones"]:
    """Returns a value a client in the shape that arrays of `ndim` axes work with."""
    return values.reshape(-1, *(1,) * (ndim - 1))


def sampled_indices(chosen: Bool[Array, "M"], count: int) -> Int[Array, "C"]:
    """Returns the places of the chosen clients among this device's own, then those of
    others, so that there are `count`, or all M if they are fewer.
    """
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
