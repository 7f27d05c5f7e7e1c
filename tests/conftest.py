"""Strict JAX settings for every test, and one compilation of equal programs."""

import os

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
