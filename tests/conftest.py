"""Four devices and strict settings for every test, and programs compiled cheaply and
once for all processes."""

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
    # Each worker on a core of its own: XLA's threads of several would fight for all.
    _cores = sorted(os.sched_getaffinity(0))
    _number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    os.sched_setaffinity(0, {_cores[_number % len(_cores)]})
# Of two runs the clients are then spread over two devices each. Tests compile much and
# compute little: code that is made soon is the faster one for them.
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_force_host_platform_device_count=4",
        "--xla_backend_optimization_level=0",
        "--xla_cpu_parallel_codegen_split_count=1",
        # Later ones refuse to start with it.
        "--xla_cpu_use_fusion_emitters=false"
        if Version(version("jaxlib")) < Version("0.11.1")
        else "",
        os.environ.get("XLA_FLAGS", ""),
    ]
)
os.environ["NPROC"] = os.environ.get(
    "NPROC", "5"
)  # see fcjax.parallel.exact.take_cores
# In the environment, for all workers and for processes that tests start.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="fcjax-tests-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], True)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"

import jax
import numpy as np
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
    config.addinivalue_line("markers", "nightly: run by .ci/nightly alone")


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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leaves out what says nothing about the method of --method; tests that no mark
    puts into a group go to one worker by files."""
    if config.option.method is not None:
        items[:] = [x for x in items if "method" in getattr(x, "fixturenames", ())]
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture(autouse=True)
def _printed():
    """What a session says is printed."""
    from fcjax.sweep.progress import log_to_stdout

    with log_to_stdout():
        yield


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The results folder of experiments/ccfc.py, trained once for all processes: who
    changes it copies it. Two seeds; 80 rows of 12 numbers in four classes, which are in
    rows.npz beside it, as printed.txt is; three clients, of which one never answers."""
    # Late: fcjax is to be imported under jaxtyping's hook.
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
