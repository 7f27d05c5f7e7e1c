"""Which clients are padded to one number of rows, so that little is padding."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from fcjax.data.partition_by_client import FEW
from fcjax.ragged import GROUPS

MOST_PADDING, MOST_CLASSES = 0.25, 8
"""A class more is a program more to compile, and clients side by side are fewer."""


class SizeClasses(NamedTuple):
    """How clients in the order of `partition_by_client.natural` are padded.

    Examples:
      >>> classes = SizeClasses(counts=(2, 6), slots=(100, 5))  # of 64 clients
      >>> 8 * sum(n * rows for n, rows in zip(*classes, strict=True))  # rows in all
      1840
    """

    counts: tuple[int, ...]
    """Of each class, its clients in one of the groups, see `fcjax.ragged`."""
    slots: tuple[int, ...]
    """Of each class, the rows that its clients are padded to."""


def size_classes(sizes: Int[np.ndarray, " M"], *, least: int = 1) -> SizeClasses | None:
    """Returns as few classes as make less than a quarter of all rows padding, and of so
    many those that make the least; at most eight, even where they make more.

    Args:
      sizes: of the clients, in the order of `natural`.
      least: the fewest rows that a client is padded to.

    Returns:
      The classes, or None where one will do, or there are too few clients for groups.

    Examples:
      >>> size_classes(np.tile([100, 100] + [5] * 6, 8))
      SizeClasses(counts=(2, 6), slots=(100, 5))
    """
    if len(sizes) <= FEW:
        return None
    per_group = -(-len(sizes) // GROUPS)
    # A row of the groups is a client of each.
    filled = np.zeros(GROUPS * per_group, int)
    filled[: len(sizes)] = np.maximum(sizes, least)
    tall = filled.reshape(GROUPS, per_group).max(axis=0)
    starts = np.flatnonzero(np.diff(tall, prepend=tall[0] + 1))  # of the heights
    ends = np.append(starts[1:], per_group)
    # Rows of the pool from the start of one height to the end of another.
    costs = tall[starts][:, None] * (ends[None] - starts[:, None]) * GROUPS
    costs = np.where(starts[:, None] < ends[None], costs, np.inf)
    best, cuts = costs[0], []
    for _ in range(min(MOST_CLASSES, len(starts)) - 1):
        if 1 - sizes.sum() / best[-1] < MOST_PADDING:
            break
        # The last class begins at a height: what is before it costs the best of less.
        each = np.append(np.inf, best[:-1])[:, None] + costs
        cuts.append(each.argmin(axis=0))
        best = each.min(axis=0)
    if not cuts:
        return None
    end, begins = len(ends) - 1, []
    for cut in reversed(cuts):
        begins.append(int(starts[cut[end]]))
        end = cut[end] - 1
    begins = [0, *reversed(begins)]
    counts = np.diff([*begins, per_group])
    return SizeClasses(tuple(counts.tolist()), tuple(tall[begins].tolist()))
