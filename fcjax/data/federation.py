"""Stacks the clients' indices into arrays, and places the examples in memory."""

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
"""Size classes are added while the share of padding is at least `MOST_PADDING` and
there are at most `MOST_CLASSES`. Each size class needs one more compiled program, and
fewer clients are computed in one batch."""


class SizeClasses(NamedTuple):
    """The padding of clients in the order of `partition.natural`, by classes of size.

    Examples:
      >>> classes = SizeClasses(counts=(2, 6), padded_sizes=(100, 5))  # for 64 clients
      >>> 8 * sum(n * rows for n, rows in zip(*classes, strict=True))  # rows in all
      1840
    """

    counts: tuple[int, ...]
    """The number of clients of each class in one of the groups, see `fcjax.ragged`."""
    padded_sizes: tuple[int, ...]
    """The number of examples to which the clients of each class are padded."""


def size_classes(sizes: Int[np.ndarray, " M"], *, least: int = 1) -> SizeClasses | None:
    """Returns as few size classes as keep padding below a quarter of all rows.

    Among classifications with this number of classes, the one with the least padding is
    returned. There are at most eight classes, even if more padding remains.

    Args:
      sizes: [M] the number of examples of each client, in the order of
        `partition.natural`.
      least: the minimum number of rows that a client is padded to.

    Returns:
      The classes, or None if one class is enough or there are too few clients for
      groups.

    Examples:
      >>> size_classes(np.tile([100, 100] + [5] * 6, 8))
      SizeClasses(counts=(2, 6), padded_sizes=(100, 5))
    """
    if len(sizes) <= FEW:
        return None
    per_group = -(-len(sizes) // GROUPS)
    # Position i of the groups has one client of each group; the largest one counts.
    all_sizes = np.zeros(GROUPS * per_group, int)
    all_sizes[: len(sizes)] = np.maximum(sizes, least)
    heights = all_sizes.reshape(GROUPS, per_group).max(axis=0)
    starts = np.flatnonzero(np.diff(heights, prepend=heights[0] + 1))
    ends = np.append(starts[1:], per_group)
    # costs[i, j]: the rows of a class from the start of height i to the end of height
    # j.
    costs = heights[starts][:, None] * (ends[None] - starts[:, None]) * GROUPS
    costs = np.where(starts[:, None] < ends[None], costs, np.inf)
    best, cuts = costs[0], []
    for _ in range(min(MOST_CLASSES, len(starts)) - 1):
        if 1 - sizes.sum() / best[-1] < MOST_PADDING:
            break
        # The cost of the best classification with one class more, by the start of its
        # last class.
        totals = np.append(np.inf, best[:-1])[:, None] + costs
        cuts.append(totals.argmin(axis=0))
        best = totals.min(axis=0)
    if not cuts:
        return None
    end, begins = len(ends) - 1, []
    for cut in reversed(cuts):
        begins.append(int(starts[cut[end]]))
        end = cut[end] - 1
    begins = [0, *reversed(begins)]
    counts = np.diff([*begins, per_group])
    return SizeClasses(tuple(counts.tolist()), tuple(heights[begins].tolist()))


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
      pool: [P, ...] all examples; the type is kept.
      partitions: one partition per run, all with the same number M of clients.
      present: the participating clients of each run, as returned by `failures`.
      num_clusters: the number of clusters of each client, for partitions without
        `local_clusters`.
      padded_size: the number N of rows per client, at least the size of the largest
        client; None means the size of the largest client.
      classes: size classes to pad the clients to; the partitions must be in the order
        of `partition.natural`.

    Returns:
      The federation with indices and mask [G, M, N], ragged if `classes` is given,
      present [G, R, M] and local_clusters [G, M]. A shorter client repeats its own
      examples cyclically.

    Raises:
      ValueError: the partitions have different numbers of clients, a client has no
        example, `present` does not fit the partitions, `padded_size` is too small, or
        an index is not in the pool.

    Examples:
      >>> clients = (np.array([0, 1, 2]), np.array([3, 4]))
      >>> partition = Partition(clients, left_out=np.array([], int))
      >>> pool, present = np.zeros((5, 6), np.float32), np.ones((1, 1, 2), bool)
      >>> federation = federate(pool, [partition], present, num_clusters=2)
      >>> print(federation.indices[0, 1], federation.mask[0, 1])  # 3 is repeated
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
            raise ValueError(
                f"client {empty[0]} of a partition has no example; every client needs "
                "at least 1"
            )
    if classes is None:
        federation = _stack(pool, grid, present, num_clusters, padded_size)
    else:
        federation = _in_classes(pool, grid, present, num_clusters, classes)
    local_clusters = [
        [num_clusters] * len(part.clients)
        if part.local_clusters is None
        else part.local_clusters
        for part in partitions
    ]
    return federation._replace(local_clusters=jnp.array(local_clusters, jnp.int32))


def federate_left_out(
    pool: Pool,
    partitions: Sequence[Partition],
    *,
    num_clusters: int,
    padded_size: int | None = None,
) -> Federation | None:
    """Returns the examples without a client as one client, so that they are scored.

    Args:
      pool: [P, ...] all examples; the type is kept.
      partitions: one partition per run, with any numbers of clients.
      num_clusters: the value of `local_clusters` of the single client.
      padded_size: the number D of rows, at least the largest number of examples without
        a client; None means this number.

    Returns:
      The federation with indices and mask [G, 1, D], or None if D is 0. A run with
      fewer such examples repeats them, and a run without any has index 0; the mask is
      False there.

    Raises:
      ValueError: `padded_size` is too small, or an index is not in the pool.

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
    """Returns the federation whose clients are padded by size classes."""
    parts = [
        _stack(
            pool,
            [tuple(clients[i] for i in members) for clients in grid],
            [rounds[:, members] for rounds in present],
            num_clusters,
            padded_size,
        )
        for members, padded_size in zip(
            clients_by_class(classes.counts, len(grid[0])),
            classes.padded_sizes,
            strict=True,
        )
    ]
    indices, mask = (
        Ragged([getattr(part, name) for part in parts], classes.counts)
        for name in ("indices", "mask")
    )
    all_present = jnp.asarray(np.stack(list(present)))
    return parts[0]._replace(indices=indices, mask=mask, present=all_present)


def _stack(
    pool: Pool,
    grid: Sequence[tuple[np.ndarray, ...]],
    present: Sequence[np.ndarray] | np.ndarray,
    num_clusters: int,
    padded_size: int | None,
) -> Federation:
    """Returns the federation with all clients padded to the same size."""
    sizes = np.array([[len(rows) for rows in clients] for clients in grid])
    width = sizes.max() if padded_size is None else padded_size
    if width < sizes.max():
        raise ValueError(
            f"padded_size must be at least {sizes.max()}, the size of the largest "
            f"client, got {width}"
        )
    # np.resize repeats cyclically, and fills an empty array with 0.
    indices = np.stack(
        [np.stack([np.resize(r, width) for r in clients]) for clients in grid]
    )
    if indices.max() >= pool.shape[0]:
        raise ValueError(
            f"a partition has the index {indices.max()}, but the pool has only "
            f"{pool.shape[0]} examples"
        )
    if len({rounds.shape for rounds in present}) != 1:
        raise ValueError(
            "all runs of a grid must have the same number of rounds in `present`"
        )
    all_present = np.stack(list(present))
    if (len(all_present), all_present.shape[-1]) != sizes.shape:
        raise ValueError(
            f"`present` has {len(all_present)} runs of {all_present.shape[-1]} clients"
            f", but the partitions have {len(sizes)} runs of {sizes.shape[1]} clients"
        )
    return Federation(
        pool=jnp.asarray(pool) if isinstance(pool, np.ndarray) else pool,  # pyright: ignore[reportArgumentType]
        indices=jnp.asarray(indices, jnp.int32),
        mask=jnp.asarray(np.arange(width) < sizes[..., None]),
        present=jnp.asarray(all_present),
        local_clusters=jnp.full(sizes.shape, num_clusters, jnp.int32),
    )


# --- Placement


@jax.tree_util.register_static
class HostPool:
    """The array of examples in host memory, for data that does not fit on the device.

    `pool[rows]` is a device array of these examples. It works in compiled programs and
    under `jax.vmap` and `jax.shard_map`, where the host is called for every batch. The
    class is a pytree without leaves, so nothing is copied when it is an argument of a
    compiled function.

    Args:
        examples: [P, *F] all examples, which are not copied.

    Attributes:
        shape: the shape of the examples.
        dtype: the type of the examples.

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
        # With broadcast_all, one call fetches the batches of all clients and runs.
        return jax.pure_callback(self._fetch, shape, rows, vmap_method="broadcast_all")

    def _fetch(self, rows: jax.Array) -> np.ndarray:
        return self._examples[np.asarray(rows)]


STATES_IN_FORCE = 3
"""The number of state-sized arrays in a round: the state, its successor and about one
more for gradients."""

SHARE = 0.8
"""The share of device memory for examples and states. The rest is for activations,
which no estimate here counts."""


def place(
    examples: Shaped[np.ndarray, "P *F"],
    state_bytes: int,
    *,
    where: Literal["auto", "device", "host"],
    devices: Sequence[jax.Device],  # pyright: ignore[reportInvalidTypeForm]
) -> tuple[Array | np.ndarray | HostPool, str]:
    """Puts the examples on the devices if they and the state of one run fit there.

    Args:
        examples: [P, *F] all examples.
        state_bytes: the size of one run's state in bytes.
        where: where the examples are placed; auto decides by the estimated memory.
        devices: the devices that train, one or more; each device gets a copy.

    Returns:
        The pool, and one line about the estimate and the placement. With several
        processes, the pool is still an array on the host; see
        `fcjax.parallel.mesh.shard_pool`.
    """
    limit = device_memory()
    needed = examples.nbytes + STATES_IN_FORCE * state_bytes
    if where == "auto":
        fits = limit is None or needed <= SHARE * limit
        where = "device" if fits else "host"
    location = f"on the {where}"
    if where == "device" and is_multiprocess():
        location = "on the devices of their clients"
    line = (
        f"memory: data set {readable(examples.nbytes)} ({location}), model and "
        f"optimizer state {readable(STATES_IN_FORCE * state_bytes)} per run"
    )
    if limit is not None:
        line += f", device memory {readable(limit)}"
    if where == "host":
        return HostPool(examples), line
    if is_multiprocess():
        return examples, line
    if len(devices) == 1:
        return jax.device_put(examples, devices[0]), line
    # A pool on one of several devices would be copied to the others in every call.
    everywhere = NamedSharding(Mesh(devices, "device"), P())
    return jax.device_put(examples, everywhere), line


def check_state(
    state_bytes: int,
    *,
    devices: Sequence[jax.Device],  # pyright: ignore[reportInvalidTypeForm]
) -> None:
    """Raises ValueError if the estimated state of one run does not fit into memory.

    Args:
        state_bytes: the size of one run's state in bytes.
        devices: the devices that the clients may be spread over; each process counts as
            one host.

    Raises:
        ValueError: the state exceeds the memory of all devices. On CPUs, it exceeds the
            free memory of the hosts.
    """
    needed, limit = STATES_IN_FORCE * state_bytes, device_memory()
    if limit is None:
        hosts = len({device.process_index for device in devices})
        limit, location = hosts * host_memory(), "free on the host" + "s" * (hosts > 1)
    else:
        limit = len(devices) * limit
        location = "on the device" + "s" * (len(devices) > 1)
    if needed > limit:
        raise ValueError(
            f"the state of one run needs {readable(needed)}, but {readable(limit)} of "
            f"memory is {location}; reduce `client_size` or `limit`, or change "
            "`clients`"
        )


def runs_that_fit(pool: Array | np.ndarray | HostPool, state_bytes: int) -> int:
    """Returns the number of runs that a device can compute in one batch, at least 1.

    The estimate is the same as in `place`. On a CPU it is 1, because a device is one
    core, and one run keeps a core busy (docs/benchmarks/speed.md, runs per call).

    Args:
        pool: the examples, as returned by `place`.
        state_bytes: the size of one run's state in bytes.

    Returns:
        The number of runs.
    """
    limit = device_memory()
    if limit is None:
        return 1
    pool_bytes = 0 if isinstance(pool, HostPool) else pool.nbytes
    return max(1, int((SHARE * limit - pool_bytes) / (STATES_IN_FORCE * state_bytes)))


def device_memory() -> int | None:
    """Returns the memory of the first device in bytes; None for a CPU."""
    stats = jax.local_devices()[0].memory_stats()
    return None if stats is None else stats.get("bytes_limit")


def host_memory() -> int:
    """Returns the free memory of the host in bytes.

    If the system does not report the free memory, the total memory is returned.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fields = dict(line.split(":") for line in lines)
    return 1024 * int(fields["MemAvailable"].split()[0])


def peak_memory() -> int:
    """Returns the peak memory in bytes of the first device, or of a CPU process."""
    stats = jax.local_devices()[0].memory_stats()
    if stats is None:
        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return stats["peak_bytes_in_use"]


def readable(num_bytes: int) -> str:
    """Returns a number of bytes as text, such as 512 B or 1.5 MiB.

    Args:
        num_bytes: the number of bytes.

    Returns:
        The number with its unit, in powers of 1024.
    """
    size, units = float(num_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
