"""Bit-identical results on a CPU, for any number of cores.

The rounding of a sum depends on the order of its terms. This order must depend neither
on the number of cores nor on the other runs and clients of a device. Therefore a device
is one core, the compiler options keep each operation on one thread, and rows are
processed one after another in a loop that XLA does not unroll.
"""

import os
import re
from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from fcjax.types import PyTree

O1 = 19
"""JAX's number for the XLA optimization level with fewer compiler passes."""

SMALL = 2**24
"""Bytes of a run and of all examples. For smaller runs a short compile time matters
more than a fast program."""

AT_LEAST_0 = {"allow_negative_indices": False}
"""Tells JAX that an index is at least 0. Otherwise it compiles three more operations
for each of the hundreds of arrays that a round indexes."""


def take_cores() -> None:
    """Makes each core of the CPU a JAX device; by default all cores are one device.

    It must be called before JAX is first used. It does nothing if the user has set the
    number of CPU devices. Runs, and the clients of a run, then have one core each. The
    operations of a small network are too short for several cores: with two devices, a
    round of the default job takes two thirds of the time.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    forced = re.search(r"xla_force_host_platform_device_count=(\d+)", flags)
    num_devices = int(forced[1]) if forced else jax.config.values["jax_num_cpu_devices"]
    if num_devices < 1:
        num_devices = num_cores()
        try:
            jax.config.update("jax_num_cpu_devices", num_devices)
        except RuntimeError:  # JAX has already created its devices
            return
    # Two reasons require a thread pool with more threads than devices, and always the
    # same number for up to four devices. First, a LAPACK call of jaxlib 0.10.0 to
    # 0.11.1 waits on a thread of the pool for tasks in the same pool. With one call per
    # thread, all calls would wait for ever. Second, XLA splits the sums of a product
    # into as many parts as there are threads, which decides their rounding.
    os.environ.setdefault("NPROC", str(max(num_cores(), num_devices, 4) + 1))


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def compiler_options(target: str, *, num_bytes: int) -> dict[str, bool | int | str]:
    """Returns the compiler options of a program; none for a GPU.

    On a CPU the rounding must not depend on the number of devices. Two options ensure
    this. Operations are not split over threads, because the number of threads would
    decide the parts. Common subexpressions are not eliminated, because XLA does this
    earlier for several devices than for one, and then simplifies differently.

    Small programs are compiled with fewer passes. This takes three quarters of the
    compile time on a CPU, with equally fast programs (docs/benchmarks/speed.md, the
    main job), and a tenth for a TPU (docs/benchmarks/accelerators.md). For large
    programs all passes pay off.

    Args:
        target: the platform, see `fcjax.parallel.mesh.platform`.
        num_bytes: the bytes of the inputs of one run.

    Returns:
        The options by name.
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
    flags = os.environ.get("XLA_FLAGS", "")
    if num_bytes < SMALL and "xla_backend_optimization_level" not in flags:
        options["xla_backend_optimization_level"] = 1
    return {name: x for name, x in options.items() if _is_known(name, x)}


@cache
def _is_known(name: str, value: bool | int | str) -> bool:
    """Returns whether the installed XLA has a compiler option."""
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def one_by_one(function: Callable[..., PyTree], *stacked: PyTree) -> PyTree:
    """Applies a function to the rows of arrays, one row after another.

    The program of a row does not depend on the number of rows. With `vmap`, the
    rounding of a row would depend on this number.

    Args:
        function: (*row) -> a tree of arrays.
        *stacked: trees of arrays with a common leading axis.

    Returns:
        The results, stacked along the leading axis.

    Examples:
        >>> print(one_by_one(jnp.sum, jnp.array([[1, 2], [3, 4]])))
        [3 7]
    """
    function = jax.jit(function)  # the shapes and the loop then share one trace

    def place(i, row, results):
        values = function(*row)
        return jax.tree.map(lambda x, new: set_row(x, new, i), results, values)

    length = len(_leaf(stacked))
    shapes = jax.eval_shape(function, *jax.tree.map(lambda x: x[0], stacked))
    num_rows = max(length, 2)  # `over_rows` repeats a single row
    empty = jax.tree.map(lambda x: jnp.zeros((num_rows, *x.shape), x.dtype), shapes)
    return jax.tree.map(lambda x: x[:length], over_rows(place, stacked, empty))


def over_rows(
    step: Callable[[jax.Array, PyTree, PyTree], PyTree],
    stacked: PyTree,
    carry: PyTree,
    *,
    where: bool | Bool[Array, ""] = True,
) -> PyTree:
    """Runs a step for every row of arrays, in order.

    Args:
        step: (index, row, carry) -> carry.
        stacked: a tree of arrays with a common leading axis.
        carry: the initial carry.
        where: False skips all rows.

    Returns:
        The final carry.
    """
    stacked = jax.tree.map(jnp.asarray, stacked)
    count = len(_leaf(stacked))
    if count == 1:
        # For a single row, the compiler would remove the index and the loop. It would
        # then fuse operations, and so round, differently than for several rows.
        stacked = jax.tree.map(lambda x: jnp.concatenate([x, x]), stacked)
        stacked = lax.optimization_barrier(stacked)

    def one(i, carry):
        return step(i, jax.tree.map(lambda x: row_at(x, i), stacked), carry)

    number = lax.optimization_barrier(jnp.int32(count))
    if where is not True:
        number = jnp.where(where, number, 0)
    return lax.fori_loop(0, number, one, carry)


def row_at(rows: Array, index: Int[Array, ""]) -> Array:
    """Returns the row of an array [N, ...] at an index of at least 0."""
    return lax.dynamic_index_in_dim(rows, index, 0, False, **AT_LEAST_0)


def set_row(rows: Array, new: Array, index: Int[Array, ""]) -> Array:
    """Returns an array [N, ...] with a new row at an index of at least 0."""
    return lax.dynamic_update_index_in_dim(rows, new, index, 0, **AT_LEAST_0)


def _leaf(stacked):
    return jax.tree.leaves(stacked)[0]
