"""The client axis: apply a function to every client, and combine the clients' results.

Clients are the leading array axis M. If several devices share the clients of a run,
each device holds M of all A clients. `fcjax.federated.server` exchanges values between
clients; this module does not.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, Key, Shaped

from fcjax import ragged
from fcjax.parallel.exact import one_by_one
from fcjax.parallel.mesh import ALL_CLIENTS, AXIS, SECURE, SITES, platform
from fcjax.ragged import Ragged
from fcjax.types import PRNGKey, PyTree

ClientAxis = Literal["vmap", "map"]


class Client(NamedTuple):
    """The variables that a client trains, and its optimizer state.

    All clients together are one `Client` whose leaves have a leading axis M.
    """

    variables: PyTree
    opt_state: PyTree


def for_each(fn: Callable, *stacked: PyTree, axis: ClientAxis | None = None) -> PyTree:
    """Applies a function to every client.

    If an argument is `fcjax.ragged.Ragged`, the function is applied to each size class
    on its own.

    Args:
        fn: a function of the values of one client.
        *stacked: the values of all clients; each leaf has a leading client axis.
        axis: `vmap` runs all clients in one batch. `map` runs one client after another,
            so that the bits of a result do not depend on the other clients of the
            device. None is `map` on a CPU and `vmap` elsewhere.

    Returns:
        The results, stacked on a leading client axis. A result whose shape depends on
        the size class is `Ragged`.

    Examples:
        >>> print(for_each(jnp.sum, jnp.array([[1, 2], [3, 4]])))
        [3 7]
    """
    if axis is None:
        axis = "map" if platform() == "cpu" else "vmap"
    apply = partial(one_by_one, fn) if axis == "map" else jax.vmap(fn)
    like = ragged.ragged_in(stacked)
    if like is None:
        return apply(*stacked)
    results = [apply(*part) for part in ragged.parts(stacked, like)]
    return ragged.joined(results, like)


LARGE = 2**26
"""Above this number of values of all clients together (256 MiB in float32), no array
holds the points of all examples. Statistics are then sums over chunks of a client."""
CHUNK = 1024
"""Largest number of examples in a chunk. Larger chunks do not fit in the cache of a
core: with 10,000 examples of 768 values per chunk, a Lloyd step takes twice the
time."""


def is_large(mask: Bool[Array, "M N"] | Ragged, num_features: int) -> bool:
    """Tells whether the points of all clients are too large for one array.

    Args:
        mask: the mask of the clients on this device.
        num_features: D, the number of values per point.

    Returns:
        True if M x N x D of the clients of all devices exceeds `LARGE`.
    """
    blocks = mask.blocks if isinstance(mask, Ragged) else (mask,)
    shares = total_clients(len(mask)) / len(mask)
    return sum(map(jnp.size, blocks)) * shares * num_features > LARGE


def _chunks(rows: PyTree) -> PyTree:
    """Splits arrays [N, ...] into chunks [C, N / C, ...], padded with 0."""
    count = len(jax.tree.leaves(rows)[0])
    number = -(-count // CHUNK)
    missing = -count % number

    def split(x):
        x = jnp.pad(x, ((0, missing), *[(0, 0)] * (x.ndim - 1)))
        return x.reshape(number, -1, *x.shape[1:])

    return jax.tree.map(split, rows)


def sum_chunks(fn: Callable, *rows: PyTree) -> PyTree:
    """Sums a function over chunks of a client's examples.

    Args:
        fn: a function of some examples of a client -> a tree of sums over examples.
        *rows: arrays [N, ...] of the client. The last chunk is padded with 0 and False.

    Returns:
        The sum of the results.

    Examples:
        >>> print(sum_chunks(jnp.sum, jnp.arange(2000)))
        1999000
    """
    chunks = _chunks(rows)
    shapes = jax.eval_shape(fn, *jax.tree.map(lambda x: x[0], chunks))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def add(total, chunk):
        return jax.tree.map(jnp.add, total, fn(*chunk)), None

    return lax.scan(add, zeros, chunks)[0]


def map_chunks(fn: Callable, *rows: PyTree) -> PyTree:
    """Applies a function to chunks of a client's examples, one after another.

    Args:
        fn: a function of some examples of a client -> a tree of arrays with one row per
            example.
        *rows: arrays [N, ...] of the client.

    Returns:
        The results [N, ...].

    Examples:
        >>> print(map_chunks(jnp.sqrt, jnp.full(1500, 4.0)).shape)
        (1500,)
    """
    count = len(jax.tree.leaves(rows)[0])
    results = lax.map(lambda chunk: fn(*chunk), _chunks(rows))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:count], results)


def fold_in(key: PRNGKey, count: int) -> Key[Array, "count"]:
    """Derives `count` keys from one key; a larger count does not change the first keys.

    Args:
        key: the key.
        count: number of keys, such as one per epoch or per example.

    Returns:
        The keys [count].
    """
    return jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(count))


def keys(key: PRNGKey, count: int) -> Key[Array, "count"]:
    """Derives one key per client; the key does not depend on the client's device.

    Args:
        key: the key of the round.
        count: number of clients on this device.

    Returns:
        The keys [count] of the clients on this device.
    """
    numbers = first_index(count) + jnp.arange(count)
    return jax.vmap(partial(jax.random.fold_in, key))(numbers)


def num_devices() -> int:
    """Returns the number of devices that share the clients of a run."""
    return _axis_size(AXIS, 1)


def total_clients(count: int) -> int:
    """Returns the number of clients of the run on all devices.

    Clients that were repeated to give every device the same number are not counted.

    Args:
        count: number of clients on this device.

    Returns:
        The number A.
    """
    return _axis_size(ALL_CLIENTS, count * num_devices() * num_sites())


def num_sites() -> int:
    """Returns the number of sites of a real federation; 1 in a simulation."""
    return _axis_size(SITES, 1)


def has_secure_sums() -> bool:
    """Returns whether the server of a real federation learns averages as sums only."""
    return _axis_size(SECURE, 0) > 0


def _axis_size(axis: str, default: int) -> int:
    try:
        return lax.axis_size(axis)
    except NameError:  # The axis is not bound.
        return default


def first_index(count: int) -> int | Int[Array, ""]:
    """Returns the index, among all clients, of the first client on this device.

    Args:
        count: number of clients on this device.

    Returns:
        The index, from 0.
    """
    if num_sites() > 1:
        return count * lax.axis_index(SITES)
    return count * lax.axis_index(AXIS) if num_devices() > 1 else 0


def on_this_device(flags: Bool[Array, "A"], count: int) -> Bool[Array, "M"]:
    """Selects the flags of the clients on this device.

    Args:
        flags: one truth value per client, for the clients of all devices.
        count: M, the number of clients on this device.

    Returns:
        The flags [M]; False for clients that were repeated to fill the devices.
    """
    numbers = first_index(count) + jnp.arange(count)
    return flags.at[numbers].get(mode="fill", fill_value=False)


def repeat(tree: PyTree, num_clients: int) -> PyTree:
    """Gives every client a copy of the server's tree.

    Args:
        tree: a tree of arrays [...].
        num_clients: M.

    Returns:
        A tree of arrays [M, ...].
    """
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_clients, *x.shape)), tree)


def keep_absent(present: Bool[Array, "M"], new: PyTree, old: PyTree) -> PyTree:
    """Takes new values for participating clients, and keeps the old ones of the others.

    Args:
        present: the participating clients.
        new: a tree of arrays [M, ...], the values after the round.
        old: a tree of the same shapes, the values before the round.

    Returns:
        A tree of the same shapes.

    Examples:
        >>> present = jnp.array([True, False])
        >>> print(keep_absent(present, new=jnp.array([5, 5]), old=jnp.array([1, 2])))
        [5 2]
    """

    def choose(new, old):
        return jnp.where(column(present, new.ndim), new, old)

    return jax.tree.map(choose, new, old)


def column(values: Shaped[Array, "M"], ndim: int) -> Shaped[Array, "M *ones"]:
    """Reshapes one value per client, so that it broadcasts with arrays [M, ...].

    Args:
        values: one value per client.
        ndim: number of axes of the arrays, the client axis included.

    Returns:
        The values [M, 1, ..., 1], with `ndim` axes.
    """
    return values.reshape(-1, *(1,) * (ndim - 1))


def sampled_indices(sampled: Bool[Array, "M"], count: int) -> Int[Array, "C"]:
    """Returns client indices: the sampled clients first, then others to fill up.

    Args:
        sampled: the clients to take, among those on this device.
        count: C, the number of indices; at most M are returned.

    Returns:
        Indices [C] on the client axis of this device. They are distinct.
    """
    order = jnp.argsort(~sampled, stable=True)
    return order[: min(count, len(sampled))]


def take(tree: PyTree, indices: Int[Array, "C"]) -> PyTree:
    """Selects some clients, so that the others need no computation.

    Args:
        tree: a tree of arrays [M, ...].
        indices: indices on the client axis.

    Returns:
        A tree of arrays [C, ...].
    """
    return jax.tree.map(lambda x: x[indices], tree)


def put(
    tree: PyTree, indices: Int[Array, "C"], new: PyTree, *, where: Bool[Array, "M"]
) -> PyTree:
    """Writes new values of some clients into a tree of all clients.

    Args:
        tree: a tree of arrays [M, ...].
        indices: indices on the client axis, distinct.
        new: a tree of arrays [C, ...], the values of these clients.
        where: the clients to change, among all M. The new values of other clients are
            ignored, even if they are NaN.

    Returns:
        The tree with the new values.
    """
    new = keep_absent(where[indices], new, take(tree, indices))
    return jax.tree.map(lambda x, new: x.at[indices].set(new), tree, new)
