"""The cores of a CPU as devices: a grid's runs and clients have one each."""

import os
import re
from functools import cache

import jax

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
    # there are threads wait for ever. A device makes one at a time.
    if num_devices > 1:
        os.environ.setdefault("NPROC", str(max(num_cores(), num_devices + 1)))


def num_cores() -> int:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def compiler_options(num_devices: int, *, num_bytes: int) -> dict[str, bool | int]:
    """Returns how to compile a program on a CPU; nothing is asked for elsewhere.

    Where its devices are all cores, its operations do not wait for other cores, which
    have their own to do. A small one is compiled for fewer passes over its code: it
    takes three quarters of the time and runs as fast. Of a large one rounds take so
    long that a twentieth of them is more than what compiles sooner.

    Args:
        num_devices: that the program runs on.
        num_bytes: of what one run of it is given.
    """
    if jax.default_backend() != "cpu":
        return {}
    options: dict[str, bool | int] = {}
    if 1 < num_cores() <= num_devices:
        options["xla_cpu_multi_thread_eigen"] = False
    asked = os.environ.get("XLA_FLAGS", "")
    if num_bytes < SMALL and "xla_backend_optimization_level" not in asked:
        options["xla_backend_optimization_level"] = 1
    return {name: x for name, x in options.items() if _is_known(name, x)}


@cache
def _is_known(name: str, value: bool | int) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:  # an XLA without it
        return False
    return True
