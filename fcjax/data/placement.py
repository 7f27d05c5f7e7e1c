"""Where the pool lies: on the device, or in the host's memory, streamed by batches."""

import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int, Shaped

from fcjax.devices import are_several


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
        is still an array of the host: see `fcjax.devices.deal_pool`.
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
    if are_several():
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
    one (docs/benchmarks/speed.md, runs a call)."""
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
    system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fields = dict(line.split(":") for line in lines)
    return 1024 * int(fields["MemAvailable"].split()[0])


def peak_memory() -> int:
    """Returns the most bytes that were in use on the first device, or in this process
    where the device is the host."""
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
