"""The same bits on a CPU, with one core or with many.

A sum is rounded by its order. So that the order depends neither on the number of cores
nor on the other runs and clients of a device, a device is one core, the compiler
options turn off what shares an operation between threads, and rows go one after another
in a loop that XLA does not unroll.
"""

import os
import re
from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool

from fcjax.types import PyTree

O1 = 19
"""XLA's level of fewer passes, as JAX numbers it."""

SMALL = 2**24
"""Bytes of a run and of all examples below which its program is better compiled soon
than well."""


def take_cores() -> None:
    """Makes a device of each core that this process may use, where JAX would make one
    of them all; before JAX is first used, and unless the user has said how many.

    Runs, and the clients of a run, then have a core each. The operations of a small
    network are too short to be shared by two: on two cores a round of the default job
    takes two thirds of the time.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    forced = re.search(r"xla_force_host_platform_device_count=(\d+)", flags)
    num_devices = int(forced[1]) if forced else jax.config.values["jax_num_cpu_devices"]
    if num_devices < 1:
        num_devices = num_cores()
        try:
            jax.config.update("jax_num_cpu_devices", num_devices)
        except RuntimeError:  # JAX has its devices by now
            return
    # A LAPACK call of jaxlib 0.10.0 to 0.11.1 waits, on a thread of the pool that all
    # devices share, for tasks that it hands to the same pool: as many calls at once as
    # there are threads wait for ever. A device makes one at a time. And the sums of a
    # product are cut into as many parts as there are threads: as many for one device as
    # for four, or for as many as there are cores.
    os.environ.setdefault("NPROC", str(max(num_cores(), num_devices, 4) + 1))


def num_cores() -> int:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def compiler_options(target: str, *, num_bytes: int) -> dict[str, bool | int | str]:
    """Returns how to compile a program; for a GPU nothing is asked for.

    How it is rounded on a CPU may not depend on how many devices it is for. What
    threads share is cut where their number says, so that each operation has one: cores
    are devices. XLA looks for what is computed twice earlier in a program of several
    devices than in that of one, and then simplifies otherwise: here it never does.

    A small program is compiled for fewer passes over its code. On a CPU it takes three
    quarters of the time and runs as fast (docs/benchmarks/speed.md, the main job); for
    a TPU it takes a tenth (docs/benchmarks/accelerators.md).
    Of a large one rounds take so long that a twentieth of them is more than what
    compiles sooner.

    Args:
        target: as of `platform`.
        num_bytes: of what one run of it is given.
    """
    if target == "tpu":
        is_small = num_bytes < SMALL and "JAX_OPTIMIZATION_LEVEL" not in os.environ
        return {"optimization_level": O1} if is_small else {}
    if target != "cpu":
        return {}
    options: dict[str, bool | int | str] = {
        "xla_cpu_multi_thread_eigen": False,
        "xla_disable_hlo_passes": "cse,cpu-parallel-task-assigner",
    }
    asked = os.environ.get("XLA_FLAGS", "")
    if num_bytes < SMALL and "xla_backend_optimization_level" not in asked:
        options["xla_backend_optimization_level"] = 1
    return {name: x for name, x in options.items() if _is_known(name, x)}


@cache
def _is_known(name: str, value: bool | int | str) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:  # an XLA without it
        return False
    return True


def one_by_one(function: Callable[..., PyTree], *stacked: PyTree) -> PyTree:
    """Applies a function to one row of the arrays after another, by a program that does
    not depend on how many they are: side by side, rows are rounded otherwise.

    Returns:
        The results, stacked as the rows are.

    Examples:
        >>> print(one_by_one(jnp.sum, jnp.array([[1, 2], [3, 4]])))
        [3 7]
    """
    function = jax.jit(function)  # traced once for its shapes and the loop

    def place(i, row, results):
        found = function(*row)
        return jax.tree.map(
            lambda x, new: lax.dynamic_update_index_in_dim(x, new, i, 0), results, found
        )

    length = len(_leaf(stacked))
    shapes = jax.eval_shape(function, *jax.tree.map(lambda x: x[0], stacked))
    places = max(length, 2)  # as in `over_rows`
    empty = jax.tree.map(lambda x: jnp.zeros((places, *x.shape), x.dtype), shapes)
    return jax.tree.map(lambda x: x[:length], over_rows(place, stacked, empty))


def over_rows(
    step: Callable[[jax.Array, PyTree, PyTree], PyTree],
    stacked: PyTree,
    carry: PyTree,
    *,
    where: bool | Bool[Array, ""] = True,
) -> PyTree:
    """Takes a step (i, row i, carry) -> carry for every row of the arrays, in order;
    for none where `where` is False.
    """
    stacked = jax.tree.map(jnp.asarray, stacked)
    count = len(_leaf(stacked))
    if count == 1:
        # The only row would need no index, and a loop over it alone no loop: the
        # compiler would fuse, and so round, otherwise than for several.
        stacked = jax.tree.map(lambda x: jnp.concatenate([x, x]), stacked)
        stacked = lax.optimization_barrier(stacked)

    def one(i, carry):
        return step(i, jax.tree.map(lambda x: x[i], stacked), carry)

    number = lax.optimization_barrier(jnp.int32(count))
    if where is not True:
        number = jnp.where(where, number, 0)
    return lax.fori_loop(0, number, one, carry)


def _leaf(stacked):
    return jax.tree.leaves(stacked)[0]
