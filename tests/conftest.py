"""Strict JAX settings for every test, and one compilation of equal programs."""

import os
from pathlib import Path

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


def pytest_addoption(parser):
    parser.addoption(
        "--method",
        type=Path,
        metavar="FILE",
        help="hold the method of this file alone to tests/test_contract.py, by its "
        "function contract(scalar), see experiments/spherical.py; where the scalar "
        "changes nothing: -k 'not swept'; where nothing is drawn: -k 'not key'",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "methods(names): those that promise it")


def pytest_sessionstart(session):
    """Says what is wrong with --method before anything is collected."""
    if session.config.option.method is None:
        return
    # Late: fcjax is to be imported under jaxtyping's hook.
    from tests.methods import of_file

    try:
        of_file(session.config.option.method)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_collection_modifyitems(config, items):
    """Leaves out what says nothing about the method of --method."""
    if config.option.method is not None:
        items[:] = [x for x in items if "method" in getattr(x, "fixturenames", ())]


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
