"""Clients as the data has them, of whatever sizes."""

import numpy as np
from jaxtyping import Int

from fcjax.data.partition import Partition
from fcjax.ragged import GROUPS

FEW = GROUPS * (GROUPS - 1)
"""Clients for which groups would be too uneven."""


def natural(clients: Int[np.ndarray, " P"]) -> Partition:
    """Returns the partition in which everybody holds what is theirs.

    Clients come by their size, the largest first, those of one size in their order;
    more than `FEW` in eight groups to which they are dealt in turn, so that all parts
    of them are alike.

    Args:
      clients: whose each row is; what is below 0 is nobody's.

    Raises:
      ValueError: all rows are nobody's.

    Examples:
      >>> partition = natural(np.array([7, 3, 3, -1, 9]))
      >>> [rows.tolist() for rows in partition.clients], partition.left_out
      ([[1, 2], [0], [4]], array([3]))
    """
    order = np.argsort(clients, kind="stable")
    names, starts = np.unique(clients[order], return_index=True)
    parts = np.split(order, starts[1:])
    held = [rows for name, rows in zip(names, parts, strict=True) if name >= 0]
    if not held:
        raise ValueError("no row has a client")
    held.sort(key=len, reverse=True)  # stable
    if len(held) > FEW:
        held = [held[rank] for rank in _in_groups(len(held))]
    return Partition(tuple(held), np.flatnonzero(clients < 0))


def _in_groups(count: int) -> np.ndarray:
    """Returns the ranks group by group; where they do not come out even, the last group
    has fewer of the smallest."""
    rows, groups = np.divmod(np.arange(count + -count % GROUPS), GROUPS)
    whole = len(rows) // GROUPS - (len(rows) - count)
    groups = groups[(groups < GROUPS - 1) | (rows < whole)]
    return np.argsort(groups, kind="stable")


def some_of(
    clients: Int[np.ndarray, " P"],
    *,
    most: int | None = None,
    least_size: int = 1,
    seed: int = 0,
) -> tuple[Int[np.ndarray, " P"], str]:
    """Leaves small clients out, then all but some that are drawn at random.

    Args:
      clients: as in `natural`.
      most: how many clients stay at most; None is all.
      least_size: the fewest rows of a client that stays.
      seed: of the draw.

    Returns:
      The clients, -1 where one was left out; and a line on how many they are, and on
      who was left out.

    Raises:
      ValueError: `most` or `least_size` are below 1, or nobody would stay.

    Examples:
      >>> kept, told = some_of(np.array([7, 3, 3, -1, 9]), least_size=2)
      >>> print(kept)
      [-1  3  3 -1 -1]
      >>> print(told)
      clients of the data: 1 of 3, of 2 examples; 2 left out; nobody's examples: 3
    """
    for flag, number in (("most", most), ("least_size", least_size)):
        if number is not None and number < 1:
            raise ValueError(f"{flag} must be at least 1, got {number}")
    names, counts = np.unique(clients[clients >= 0], return_counts=True)
    staying = np.flatnonzero(counts >= least_size)
    if len(staying) == 0:
        raise ValueError(
            f"least_size must be at most {counts.max(initial=0)}, the size of "
            f"the largest client, got {least_size}"
        )
    if most is not None and most < len(staying):
        rng = np.random.default_rng(seed)
        staying = np.sort(rng.choice(staying, most, replace=False))
    sizes = counts[staying]
    kept = np.where(np.isin(clients, names[staying]), clients, -1)
    of = " to ".join(map(str, sorted({int(sizes.min()), int(sizes.max())})))
    told = f"clients of the data: {len(staying)} of {len(names)}, of {of} examples"
    if len(staying) < len(names):
        told += f"; {len(names) - len(staying)} left out"
    if (kept < 0).any():
        told += f"; nobody's examples: {(kept < 0).sum()}"
    return kept, told
