"""Sets up all tests: four devices, strict settings and a shared compilation cache."""

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

from packaging.version import Version

if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    # Each worker gets one core. Otherwise the XLA threads of all workers compete.
    _cores = sorted(os.sched_getaffinity(0))
    _number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    os.sched_setaffinity(0, {_cores[_number % len(_cores)]})
# With four devices, two runs spread their clients over two devices each. Tests compile
# much and compute little, so fast compilation matters more than fast code.
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_force_host_platform_device_count=4",
        "--xla_backend_optimization_level=0",
        "--xla_cpu_parallel_codegen_split_count=1",
        # Later versions of jaxlib do not know this flag and refuse to start.
        "--xla_cpu_use_fusion_emitters=false"
        if Version(version("jaxlib")) < Version("0.11.1")
        else "",
        os.environ.get("XLA_FLAGS", ""),
    ]
)
os.environ["NPROC"] = os.environ.get(
    "NPROC", "5"
)  # see fcjax.parallel.exact.take_cores
# The environment reaches all workers and the processes that tests start.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="fcjax-tests-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], True)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"

import jax
import numpy as np
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_addoption(parser):
    """Adds the option --method."""
    parser.addoption(
        "--method",
        type=Path,
        metavar="FILE",
        help="run tests/test_contract.py for the method in this file only; the file "
        "needs a function contract(scalar), as in experiments/spherical.py; use "
        "-k 'not swept' if the scalar changes nothing, -k 'not key' if the method has "
        "no randomness",
    )


def pytest_configure(config):
    """Registers the markers of the tests."""
    config.addinivalue_line(
        "markers", "methods(names): the methods that have the tested property"
    )
    config.addinivalue_line("markers", "nightly: runs only in .ci/nightly")


def pytest_sessionstart(session):
    """Reports an error in --method before tests are collected."""
    if session.config.option.method is None:
        return
    # A late import: jaxtyping's hook must be active when fcjax is imported.
    from tests.methods import of_file

    try:
        of_file(session.config.option.method)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """With --method, keeps only the tests that use a method. Groups tests by file.

    A worker of pytest-xdist runs all tests of a group. A mark can set another group.
    The tests of nightly.txt get the marker nightly.
    """
    lines = Path(__file__).with_name("nightly.txt").read_text().splitlines()
    slow = {line for line in lines if line and not line.startswith("#")}
    for item in items:
        if item.nodeid in slow:
            item.add_marker("nightly")
    if config.option.method is not None:
        items[:] = [x for x in items if "method" in getattr(x, "fixturenames", ())]
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture(autouse=True)
def _printed():
    """Prints the log messages of each test."""
    from fcjax.sweep.progress import log_to_stdout

    with log_to_stdout():
        yield


@pytest.fixture(autouse=True)
def _own_programs(request):
    """Lets a test with a patch compile its own programs, which no other test gets."""
    is_patched = "monkeypatch" in request.fixturenames
    if is_patched:
        from fcjax.sweep import train

        train.programs.cache_clear()
    yield
    if is_patched:
        train.programs.cache_clear()


@pytest.fixture
def key():
    """Returns the random key of seed 0."""
    return jax.random.key(0)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Returns the results folder of a finished run of experiments/ccfc.py.

    All processes share the folder, so a test that changes it makes a copy first. It has
    two seeds and three clients, of which one never participates. The data is 80 vectors
    of 12 numbers in four classes, in the file rows.npz next to the folder. The output
    of the script is in the file printed.txt.
    """
    # Late imports: jaxtyping's hook must be active when fcjax is imported.
    from sklearn.datasets import load_digits

    from fcjax.cli.arguments import read
    from fcjax.methods import SCRIPTS
    from fcjax.sweep import experiment, train
    from fcjax.sweep.progress import log_to_stdout as shown

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder = folder / "finished"
    folder.mkdir(exist_ok=True)
    out, data, printed = (folder / x for x in ("out", "rows.npz", "printed.txt"))
    flags = ["--clients=3", "--p=0", "--seed", "0", "1", "--failure-rate=0.34"]
    flags += ["--pretrain-rounds=2", "--cluster-rounds=2", "--local-epochs=1"]
    flags += ["--batch-size=20", "--latent-size=8"]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (out / "results.csv").exists():
            values, labels = load_digits(n_class=4, return_X_y=True)
            np.savez(data, x=values[:80, 10:22] * 3.7 - 40, y=labels[:80])
            args = [f"--out={out}", f"--dataset={data}", *flags]
            (task,) = read(SCRIPTS["ccfc"], args).tasks
            prepared = experiment.prepare(task)
            to_file = contextlib.redirect_stdout(printed.open("w"))
            with to_file, shown():
                train.execute(prepared)
    return out
