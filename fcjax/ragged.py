"""Ragged arrays: clients of unequal sizes, padded to the size of their size class."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

if TYPE_CHECKING:  # `Ragged` is accepted wherever an array is
    from typing import Any as _Array
else:
    _Array = object

PyTree = Any

GROUPS = 8
"""Number of groups of clients. Every group has the same number of clients per size
class, so that 2, 4 or 8 devices get equal parts."""


@jax.tree_util.register_pytree_node_class
class Ragged(_Array):
    """An array [M, N, ...] whose N differs between size classes of clients.

    It replaces an array such as `Federation.indices`. Clients come in groups and
    are sorted by class within a group. All groups have the same number of clients per
    class, except that the last group may have fewer clients of the last class.

    Args:
        blocks: one array [M_c, N_c, ...] per class, with the clients in order.
        counts: the number of clients of each class in a group.

    Examples:
        >>> x = Ragged((jnp.ones((2, 3)), jnp.ones((1, 1))), counts=(1, 1))
        >>> clients = [rows.tolist() for rows in x.clients_by_class]
        >>> len(x), clients  # large, small; large
        (3, [[0, 2], [1]])
    """

    def __init__(self, blocks: Sequence[Any], counts: tuple[int, ...]):
        self.blocks, self.counts = tuple(blocks), counts

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    @property
    def clients_by_class(self) -> list[np.ndarray]:
        """The indices of the clients of each class."""
        return clients_by_class(self.counts, len(self))

    def tree_flatten(self):
        """Returns the blocks as children and the counts as auxiliary data, for JAX."""
        return self.blocks, self.counts

    @classmethod
    def tree_unflatten(cls, counts: tuple[int, ...], blocks: Sequence[Any]) -> "Ragged":
        """Builds the array from the result of `tree_flatten`, for JAX.

        Args:
            counts: the number of clients of each class in a group.
            blocks: one array [M_c, N_c, ...] per class, or JAX's placeholders.

        Returns:
            The array.
        """
        return cls(blocks, counts)


def is_ragged(x: Any) -> bool:
    """Returns whether an object is a `Ragged` array.

    Args:
        x: an object of any type.

    Returns:
        True for a `Ragged` array.
    """
    return isinstance(x, Ragged)


def ragged_in(tree: PyTree) -> Ragged | None:
    """Returns the first `Ragged` leaf of a tree; None if there is none.

    Args:
        tree: a tree of arrays and `Ragged` arrays.

    Returns:
        The `Ragged` array, or None.
    """
    leaves = jax.tree.leaves(tree, is_leaf=is_ragged)
    return next(filter(is_ragged, leaves), None)


def clients_by_class(counts: tuple[int, ...], num_clients: int) -> list[np.ndarray]:
    """Returns the indices of the clients of each class, in the order of `Ragged`.

    Args:
        counts: the number of clients of each class in a group.
        num_clients: M.

    Returns:
        One array of indices per class.
    """
    classes_of_group = np.repeat(np.arange(len(counts)), counts)
    classes = classes_of_group[np.arange(num_clients) % sum(counts)]
    return [np.flatnonzero(classes == c) for c in range(len(counts))]


def parts(stacked: PyTree, like: Ragged) -> list[PyTree]:
    """Splits arrays of clients by size class.

    Args:
        stacked: a tree of arrays [M, ...] or `Ragged`.
        like: the size classes.

    Returns:
        One tree of arrays [M_c, ...] per class.
    """

    def of_class(c: int, clients: np.ndarray):
        def part(x):
            return x.blocks[c] if is_ragged(x) else jnp.asarray(x)[clients]

        return jax.tree.map(part, stacked, is_leaf=is_ragged)

    return [of_class(c, clients) for c, clients in enumerate(like.clients_by_class)]


def joined(class_parts: Sequence[PyTree], like: Ragged) -> PyTree:
    """Joins arrays of the size classes, the inverse of `parts`.

    Args:
        class_parts: one tree of arrays [M_c, ...] per class.
        like: the size classes.

    Returns:
        A tree of arrays [M, ...]. Arrays whose shapes differ between classes become
        `Ragged`.
    """
    order = np.argsort(np.concatenate(like.clients_by_class))

    def of_all(*blocks):
        if len({x.shape[1:] for x in blocks}) > 1:
            return Ragged(blocks, like.counts)
        return jnp.concatenate(blocks)[order]

    return jax.tree.map(of_all, *class_parts)


def rectangle(x: Any) -> np.ndarray:
    """Pads the size classes of an array of runs to one array on the host.

    Args:
        x: an array [G, M, N, ...], which is returned as it is, or `Ragged` with blocks
            [G, M_c, N_c, ...].

    Returns:
        A NumPy array [G, M, N, ...]. The padding is 0 or False.
    """
    if not is_ragged(x):
        return np.asarray(x)
    blocks = list(map(np.asarray, x.blocks))
    clients = clients_by_class(x.counts, sum(block.shape[1] for block in blocks))
    num_runs, _, _, *shape = blocks[0].shape
    widest = max(block.shape[2] for block in blocks)
    num_clients = sum(map(len, clients))
    padded = np.zeros((num_runs, num_clients, widest, *shape), blocks[0].dtype)
    for indices, block in zip(clients, blocks, strict=True):
        padded[:, indices, : block.shape[2]] = block
    return padded


def sizes(mask: Bool[Array, "M N"] | Ragged) -> Int[Array, "M"]:
    """Counts the examples of each client.

    Args:
        mask: False for padding.

    Returns:
        The number of examples, [M].

    Examples:
        >>> print(sizes(jnp.array([[True, True], [True, False]])))
        [2 1]
    """
    if isinstance(mask, Ragged):
        return joined([x.sum(axis=1) for x in mask.blocks], mask)
    return mask.sum(axis=1)
