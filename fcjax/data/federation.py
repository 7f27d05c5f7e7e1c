"""Stacks the clients' indices into arrays: federations and size classes."""

import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Int, Shaped

from fcjax.data.partition import FEW, Partition
from fcjax.parallel.mesh import is_multiprocess
from fcjax.ragged import GROUPS, Ragged, clients_by_class
from fcjax.types import Federation, Pool

# --- Size classes

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


# --- Federation


def federate(
    pool: Pool,
    partitions: Sequence[Partition],
    present: Sequence[Bool[np.ndarray, "R M"]] | Bool[np.ndarray, "G R M"],
    *,
    num_clusters: int,
    padded_size: int | None = None,
    classes: SizeClasses | None = None,
) -> Federation:
    """Returns a grid of G partitions of one pool as a `Federation`.

    Args:
      pool: all examples; the type is kept.
      partitions: one a run, all with the same number of clients.
      present: who answers in each run, as `failures` returns it.
      num_clusters: how many clusters every client looks for whose partition does not
        say.
      padded_size: N, at least the largest client; by default just that.
      classes: pad clients by them; the partitions have them in the order of `natural`.

    Returns:
      indices and mask [G, M, N], ragged with `classes`, where a shorter client repeats
      its own rows cyclically; present [G, R, M]; local_clusters [G, M].

    Raises:
      ValueError: the partitions differ in their number of clients, a client has no
        example, `present` does not fit them, `padded_size` are too few, or a row is not
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
        found = _stack(pool, grid, present, num_clusters, padded_size)
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
    padded_size: int | None = None,
) -> Federation | None:
    """Returns the rows that no client holds as one client, so they can be scored.

    Args:
      pool: as in `federate`.
      partitions: one a run, with any numbers of clients.
      num_clusters: what `local_clusters` of that one client says.
      padded_size: D, at least as many as any run leaves out.

    Returns:
      indices and mask [G, 1, D], where D is `padded_size` or the largest number of rows
      that a run leaves out; a shorter run repeats its own rows, a run without any has
      row 0, always under a False mask. None where D is 0.

    Raises:
      ValueError: `padded_size` are too few, or a row is not in the pool.

    Examples:
      >>> partition = Partition((np.array([0, 1]),), left_out=np.array([2, 3, 4]))
      >>> pool = np.zeros((5, 6), np.float32)
      >>> federation = federate_left_out(pool, [partition], num_clusters=2)
      >>> print(federation.indices)
      [[[2 3 4]]]
    """
    left_out = [(partition.left_out,) for partition in partitions]
    if padded_size is None:
        padded_size = max(len(rows) for (rows,) in left_out)
    if padded_size == 0:
        return None
    present = np.ones((len(left_out), 1, 1), bool)
    return _stack(pool, left_out, present, num_clusters, padded_size)


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
            padded_size,
        )
        for own, padded_size in zip(
            clients_by_class(classes.counts, len(grid[0])), classes.slots, strict=True
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
    padded_size: int | None,
) -> Federation:
    sizes = np.array([[len(rows) for rows in clients] for clients in grid])
    width = sizes.max() if padded_size is None else padded_size
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


# --- Placement


@jax.tree_util.register_static
class HostPool:
    """Takes the place of the array of examples where it does not fit on the device.

    `pool[rows]` is a device array of those rows, also inside compiled programs and
    under vmap and shard_map, where the host is called for every batch. A pytree
    without leaves: nothing of it is copied when it is passed to one.

    Args:
        examples: [P, *F], which are not copied.

    Attributes:
        shape: of the examples.
        dtype: of the examples.

    Examples:
        >>> pool = HostPool(np.array([[1, 2], [3, 4], [5, 6]], np.uint8))
        >>> print(pool[jnp.array([2, 0])])
        [[5 6]
         [1 2]]
    """

    def __init__(self, examples: Shaped[np.ndarray, "P *F"]):
        self._examples = examples
        self.shape = examples.shape
        self.dtype = examples.dtype

    def __getitem__(self, rows: slice | Int[Array, "*S"]) -> Shaped[Array, "..."]:
        if isinstance(rows, slice):
            return jnp.asarray(self._examples[rows])
        rows = jnp.asarray(rows)
        shape = jax.ShapeDtypeStruct((*rows.shape, *self.shape[1:]), self.dtype)
        # broadcast_all: one call fetches the batches of all clients and runs.
        return jax.pure_callback(self._fetch, shape, rows, vmap_method="broadcast_all")

    def _fetch(self, rows: jax.Array) -> np.ndarray:
        return self._examples[np.asarray(rows)]


STATES_IN_FORCE = 3
"""A round holds the state, its successor, and gradients of the order of one more."""

SHARE = 0.8
"""Of the device's memory; the rest is for activations, which nothing here counts."""


def place(
    examples: Shaped[np.ndarray, "P *F"],
    state_bytes: int,
    *,
    where: Literal["auto", "device", "host"],
    devices: Sequence[jax.Device],  # pyright: ignore[reportInvalidTypeForm]
) -> tuple[Array | np.ndarray | HostPool, str]:
    """Puts the examples on the devices if they fit beside the state of one run.

    Args:
        examples: all of them.
        state_bytes: the size of one run's state.
        where: they shall lie; auto decides by the estimate.
        devices: that train on them, one or more; each of them gets a copy.

    Returns:
        The pool, and one line on the estimate and the choice. Of several processes it
        is still an array of the host: see `fcjax.parallel.mesh.shard_pool`.
    """
    limit = device_memory()
    needed = examples.nbytes + STATES_IN_FORCE * state_bytes
    if where == "auto":
        fits = limit is None or needed <= SHARE * limit
        where = "device" if fits else "host"
    has = "the host's" if limit is None else readable(limit)
    line = (
        f"memory: examples {readable(examples.nbytes)}, state of a run "
        f"{STATES_IN_FORCE} x {readable(state_bytes)}, of {has}; "
        f"the examples lie on the {where}"
    )
    if where == "host":
        return HostPool(examples), line
    if is_multiprocess():
        return examples, line + "s of the clients that hold them"
    if len(devices) == 1:
        return jax.device_put(examples, devices[0]), line
    # A pool on one of several devices would be copied to the others at every call.
    everywhere = NamedSharding(Mesh(devices, "device"), P())
    return jax.device_put(examples, everywhere), line


def check_state(
    state_bytes: int,
    *,
    devices: Sequence[jax.Device],  # pyright: ignore[reportInvalidTypeForm]
) -> None:
    """Checks that the state of one run fits, by the estimate of `place`.

    Args:
        state_bytes: its size.
        devices: that its clients may be spread over; each process is taken for a host
            of its own.

    Raises:
        ValueError: it exceeds all of their memory, or what the host has free where
            they are the host.
    """
    needed, limit = STATES_IN_FORCE * state_bytes, device_memory()
    if limit is None:
        hosts = len({device.process_index for device in devices})
        limit, has = hosts * host_memory(), "free on the host" + "s" * (hosts > 1)
    else:
        limit, has = len(devices) * limit, "on the device"
        has += "s" if len(devices) > 1 else ""
    if needed > limit:
        raise ValueError(
            f"the state of one run takes {STATES_IN_FORCE} x {readable(state_bytes)}, "
            f"{readable(limit)} of memory are {has}: give a smaller --client-size or "
            "--limit, or another number of --clients"
        )


def runs_that_fit(pool: Array | np.ndarray | HostPool, state_bytes: int) -> int:
    """Returns how many runs a device holds side by side, at least one, by the estimate
    of `place`; on a CPU one, since a core is a device and its arithmetic is taken up by
    one (docs/benchmarks/speed.md, runs a call).
    """
    limit = device_memory()
    if limit is None:
        return 1
    taken = 0 if isinstance(pool, HostPool) else pool.nbytes
    return max(1, int((SHARE * limit - taken) / (STATES_IN_FORCE * state_bytes)))


def device_memory() -> int | None:
    """Returns the bytes of the first device's memory; None where it is the host's."""
    stats = jax.local_devices()[0].memory_stats()
    return None if stats is None else stats.get("bytes_limit")


def host_memory() -> int:
    """Returns the bytes of the host's memory that are free, or all of them where the
    system does not say.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fields = dict(line.split(":") for line in lines)
    return 1024 * int(fields["MemAvailable"].split()[0])


def peak_memory() -> int:
    """Returns the most bytes that were in use on the first device, or in this process
    where the device is the host.
    """
    stats = jax.local_devices()[0].memory_stats()
    if stats is None:
        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return stats["peak_bytes_in_use"]


def readable(num_bytes: int) -> str:
    """Returns bytes as text: 512 B, 1.5 MiB."""
    size, units = float(num_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
