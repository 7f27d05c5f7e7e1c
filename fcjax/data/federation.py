"""Partitions of one pool, padded and stacked to the arrays that algorithms take."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from fcjax.data.partition import Partition
from fcjax.data.size_classes import SizeClasses
from fcjax.ragged import Ragged, places
from fcjax.types import Federation, Pool


def federate(
    pool: Pool,
    partitions: Sequence[Partition],
    present: Sequence[Bool[np.ndarray, "R M"]] | Bool[np.ndarray, "G R M"],
    *,
    num_clusters: int,
    num_slots: int | None = None,
    classes: SizeClasses | None = None,
) -> Federation:
    """Returns a grid of G partitions of one pool as a `Federation`.

    Args:
      pool: all examples; the type is kept.
      partitions: one a run, all with the same number of clients.
      present: who answers in each run, as `failures` returns it.
      num_clusters: how many clusters every client looks for whose partition does not
        say.
      num_slots: N, at least the largest client; by default just that.
      classes: pad clients by them; the partitions have them in the order of `natural`.

    Returns:
      indices and mask [G, M, N], ragged with `classes`, where a shorter client repeats
      its own rows cyclically; present [G, R, M]; local_clusters [G, M].

    Raises:
      ValueError: the partitions differ in their number of clients, a client has no
        example, `present` does not fit them, `num_slots` are too few, or a row is not
        in the pool.

    Examples:
      >>> clients = (np.array([0, 1, 2]), np.array([3, 4]))
      >>> partition = Partition(clients, left_out=np.array([], int))
      >>> pool, present = np.zeros((5, 6), np.float32), np.ones((1, 1, 2), bool)
      >>> federation = federate(pool, [partition], present, num_clusters=2)
      >>> print(federation.indices[0, 1], federation.mask[0, 1])  # row 3 again, and why
      [3 4 3] [ True  True False]
    """
    counts = [len(partition.clients) for partition in partitions]
    if len(set(counts)) != 1:
        raise ValueError(
            f"all partitions of a grid must have the same num_clients, got {counts}"
        )
    grid = [part.clients for part in partitions]
    for clients in grid:
        if empty := [i for i, rows in enumerate(clients) if not len(rows)]:
            raise ValueError(f"client {empty[0]} of a partition has no example")
    if classes is None:
        found = _stack(pool, grid, present, num_clusters, num_slots)
    else:
        found = _in_classes(pool, grid, present, num_clusters, classes)
    local_clusters = [
        [num_clusters] * len(part.clients)
        if part.local_clusters is None
        else part.local_clusters
        for part in partitions
    ]
    return found._replace(local_clusters=jnp.array(local_clusters, jnp.int32))


def federate_left_out(
    pool: Pool,
    partitions: Sequence[Partition],
    *,
    num_clusters: int,
    num_slots: int | None = None,
) -> Federation | None:
    """Returns the rows that no client holds as one client, so they can be scored.

    Args:
      pool: as in `federate`.
      partitions: one a run, with any numbers of clients.
      num_clusters: what `local_clusters` of that one client says.
      num_slots: D, at least as many as any run leaves out.

    Returns:
      indices and mask [G, 1, D], where D is `num_slots` or the largest number of rows
      that a run leaves out; a shorter run repeats its own rows, a run without any has
      row 0, always under a False mask. None where D is 0.

    Raises:
      ValueError: `num_slots` are too few, or a row is not in the pool.

    Examples:
      >>> partition = Partition((np.array([0, 1]),), left_out=np.array([2, 3, 4]))
      >>> pool = np.zeros((5, 6), np.float32)
      >>> federation = federate_left_out(pool, [partition], num_clusters=2)
      >>> print(federation.indices)
      [[[2 3 4]]]
    """
    left_out = [(partition.left_out,) for partition in partitions]
    if num_slots is None:
        num_slots = max(len(rows) for (rows,) in left_out)
    if num_slots == 0:
        return None
    present = np.ones((len(left_out), 1, 1), bool)
    return _stack(pool, left_out, present, num_clusters, num_slots)


def _in_classes(
    pool: Pool,
    grid: Sequence[tuple[np.ndarray, ...]],
    present: Sequence[np.ndarray] | np.ndarray,
    num_clusters: int,
    classes: SizeClasses,
) -> Federation:
    parts = [
        _stack(
            pool,
            [tuple(clients[i] for i in own) for clients in grid],
            [rounds[:, own] for rounds in present],
            num_clusters,
            num_slots,
        )
        for own, num_slots in zip(
            places(classes.counts, len(grid[0])), classes.slots, strict=True
        )
    ]
    indices, mask = (
        Ragged([getattr(part, name) for part in parts], classes.counts)
        for name in ("indices", "mask")
    )
    everyone = jnp.asarray(np.stack(list(present)))
    return parts[0]._replace(indices=indices, mask=mask, present=everyone)


def _stack(
    pool: Pool,
    grid: Sequence[tuple[np.ndarray, ...]],
    present: Sequence[np.ndarray] | np.ndarray,
    num_clusters: int,
    num_slots: int | None,
) -> Federation:
    sizes = np.array([[len(rows) for rows in clients] for clients in grid])
    width = sizes.max() if num_slots is None else num_slots
    if width < sizes.max():
        raise ValueError(f"{width} slots are too few for {sizes.max()} rows")
    # np.resize repeats cyclically, and makes row 0 of nothing.
    indices = np.stack(
        [np.stack([np.resize(r, width) for r in clients]) for clients in grid]
    )
    if indices.max() >= pool.shape[0]:
        raise ValueError(
            f"row {indices.max()} of a partition is not in the pool of {pool.shape[0]}"
        )
    if len({rounds.shape for rounds in present}) != 1:
        raise ValueError("all runs of a grid must have the same rounds in `present`")
    here = np.stack(list(present))
    if (len(here), here.shape[-1]) != sizes.shape:
        raise ValueError(
            f"`present` is for {len(here)} runs of {here.shape[-1]} clients, the "
            f"partitions are {sizes.shape[0]} runs of {sizes.shape[1]} clients"
        )
    return Federation(
        pool=jnp.asarray(pool) if isinstance(pool, np.ndarray) else pool,  # pyright: ignore[reportArgumentType]
        indices=jnp.asarray(indices, jnp.int32),
        mask=jnp.asarray(np.arange(width) < sizes[..., None]),
        present=jnp.asarray(here),
        local_clusters=jnp.full(sizes.shape, num_clusters, jnp.int32),
    )
