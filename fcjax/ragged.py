"""Arrays of clients of unequal sizes, each client padded to those of its size class."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

if TYPE_CHECKING:  # it stands in the place of arrays
    from typing import Any as _Array
else:
    _Array = object

PyTree = Any

GROUPS = 8
"""Into how many groups of alike clients they come, so that clients are spread over 2, 4
or 8 devices which then have as many of every class."""


@jax.tree_util.register_pytree_node_class
class Ragged(_Array):
    """Takes the place of an array [M, N, ...] of clients, as `Federation.indices`.

    Clients come in groups, all with as many clients of every class, the first class
    first; the last group may lack some of the last class.

    Args:
        blocks: of each class, [M_c, N_c, ...]: what its clients have, in their order.
        counts: how many clients of each class a group has.

    Examples:
        >>> x = Ragged((jnp.ones((2, 3)), jnp.ones((1, 1))), counts=(1, 1))
        >>> len(x), [rows.tolist() for rows in x.clients_by_class]  # large, small; large
        (3, [[0, 2], [1]])
    """

    def __init__(self, blocks: Sequence[Any], counts: tuple[int, ...]):
        self.blocks, self.counts = tuple(blocks), counts

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    @property
    def clients_by_class(self) -> list[np.ndarray]:
        """Which of the clients those of each class are."""
        return clients_by_class(self.counts, len(self))

    def tree_flatten(self):
        return self.blocks, self.counts

    @classmethod
    def tree_unflatten(cls, counts, blocks):
        return cls(blocks, counts)


def is_ragged(x: Any) -> bool:
    return isinstance(x, Ragged)


def ragged_in(tree: PyTree) -> Ragged | None:
    """Returns the first of a tree's leaves that is ragged, if one is."""
    leaves = jax.tree.leaves(tree, is_leaf=is_ragged)
    return next(filter(is_ragged, leaves), None)


def clients_by_class(counts: tuple[int, ...], num_clients: int) -> list[np.ndarray]:
    """Returns which of so many clients those of each class are, see `Ragged`."""
    of_place = np.repeat(np.arange(len(counts)), counts)
    classes = of_place[np.arange(num_clients) % sum(counts)]
    return [np.flatnonzero(classes == c) for c in range(len(counts))]


def parts(stacked: PyTree, like: Ragged) -> list[PyTree]:
    """Returns what the clients of each class have, of arrays [M, ...] or ragged."""

    def of_class(c: int, own: np.ndarray):
        def part(x):
            return x.blocks[c] if is_ragged(x) else jnp.asarray(x)[own]

        return jax.tree.map(part, stacked, is_leaf=is_ragged)

    return [of_class(c, own) for c, own in enumerate(like.clients_by_class)]


def joined(found: Sequence[PyTree], like: Ragged) -> PyTree:
    """Returns what the clients of all classes have: `parts` undone. What has another
    shape in another class is ragged.
    """
    order = np.argsort(np.concatenate(like.clients_by_class))

    def of_all(*blocks):
        if len({x.shape[1:] for x in blocks}) > 1:
            return Ragged(blocks, like.counts)
        return jnp.concatenate(blocks)[order]

    return jax.tree.map(of_all, *found)


def rectangle(x: Any) -> np.ndarray:
    """Returns on the host what the clients of runs have, [G, M, N, ...], with zeros, or
    False, behind what a smaller class has.
    """
    if not is_ragged(x):
        return np.asarray(x)
    blocks = list(map(np.asarray, x.blocks))
    own = clients_by_class(x.counts, sum(block.shape[1] for block in blocks))
    num_runs, _, _, *shape = blocks[0].shape
    widest = max(block.shape[2] for block in blocks)
    found = np.zeros((num_runs, sum(map(len, own)), widest, *shape), blocks[0].dtype)
    for rows, block in zip(own, blocks, strict=True):
        found[:, rows, : block.shape[2]] = block
    return found


def sizes(mask: Bool[Array, "M N"] | Ragged) -> Int[Array, "M"]:
    """Returns how many examples each client has.

    Examples:
        >>> print(sizes(jnp.array([[True, True], [True, False]])))
        [2 1]
    """
    if isinstance(mask, Ragged):
        return joined([x.sum(axis=1) for x in mask.blocks], mask)
    return mask.sum(axis=1)
