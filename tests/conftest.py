"""Strict JAX settings for every test, and one compilation of equal programs."""

import os

if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    # Each worker on a core of its own: XLA's threads of several would fight for all.
    _cores = sorted(os.sched_getaffinity(0))
    _number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    os.sched_setaffinity(0, {_cores[_number % len(_cores)]})
# Tests compile much and compute little: cheap code is the faster one for them.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=1"
)

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory):
    """Tests build the same small programs again and again: compile them once."""
    jax.config.update(
        "jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled"))
    )
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


@pytest.fixture
def key():
    return jax.random.key(0)
