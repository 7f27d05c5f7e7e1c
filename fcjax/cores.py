"""The cores of a CPU as devices: a grid's runs and clients have one each."""

import os
from functools import cache

import jax


def take_cores() -> None:
    """Makes a device of each core that this process may use, where JAX would make one
    of them all; before JAX is first used, and unless the user has said how many.

    Runs, and the clients of a run, then have a core each. The operations of a small
    network are too short to be shared by two: on two cores a round of the default job
    takes two thirds of the time.
    """
    asked = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if asked or jax.config.values["jax_num_cpu_devices"] > 0:
        return
    try:
        jax.config.update("jax_num_cpu_devices", num_cores())
    except RuntimeError:  # JAX has its devices by now
        return


def num_cores() -> int:
    """Returns how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def compiler_options(num_devices: int) -> dict[str, bool]:
    """Returns how to compile a program for so many devices: where they are all cores of
    a CPU its operations do not wait for other cores, which have their own to do."""
    on_cpu = jax.default_backend() == "cpu"
    return _alone() if on_cpu and 1 < num_cores() <= num_devices else {}


@cache
def _alone() -> dict[str, bool]:
    options = {"xla_cpu_multi_thread_eigen": False}
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:  # an XLA without it
        return {}
    return options
