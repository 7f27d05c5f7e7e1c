"""Communities of runs whose clients are spread over devices.

What is here needs eight devices; the last test runs the file again with as many.
"""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax import data, engine
from fcjax.backends import Grid
from tests.own_clusters import build

eight_devices = pytest.mark.skipif(
    jax.device_count() != 8, reason="run with eight devices by the last test"
)


def grid(num_runs, num_clients):
    """Clients of two of three places each, 0 and 1, 1 and 2 or 2 and 0; 1 is absent."""
    pool = np.repeat(np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), 4, axis=0)
    rows = [np.arange(4 * i, 4 * i + 8) % 12 for i in range(num_clients)]
    present = np.arange(num_clients) != 1
    federations = data.federate(
        pool.astype(np.float32),
        [data.Partition(tuple(rows), np.arange(0))] * num_runs,
        [present[None]] * num_runs,
        num_clusters=2,
    )
    # In the last run nothing is near enough.
    near = jnp.array([0.5] * (num_runs - 1) + [0.0])
    return Grid(
        {"near": near}, jax.random.split(jax.random.key(0), num_runs), federations
    )


def found(backend, runs):
    program = engine.Program(partial(build, num_clusters=2), backend=backend)
    return program.communities(runs, program.run(runs))


@eight_devices
@pytest.mark.parametrize(
    ("num_runs", "num_clients"),
    [
        (2, 8),  # two clients a device
        (2, 5),  # and a client of padding
        (3, 11),  # two devices a run, and two are left over
    ],
)
def test_communities_are_the_loop_s(num_runs, num_clients):
    runs = grid(num_runs, num_clients)
    looped, spread = found("loop", runs), found("shard_map", runs)
    assert spread.edges.shape == (num_runs, num_clients, 2, num_clients, 2)
    for one, other in zip(spread, looped, strict=True):
        np.testing.assert_array_equal(one, other)
    first, last = np.asarray(looped.edges[0]), np.asarray(looped.edges[-1])
    # Client i has the places i and i + 1 (mod 3); whom the first one shares them with.
    others = np.arange(num_clients)[2:]
    expected = (others % 3 == 0) * 2 + (others % 3 != 0)
    np.testing.assert_array_equal(first[0].sum(axis=(0, 2))[2:], expected)
    assert not first[1].any()
    assert not last.any()


def test_all_of_this_with_eight_devices():
    flag = "--xla_force_host_platform_device_count=8"
    if flag in os.environ.get("XLA_FLAGS", ""):
        assert jax.device_count() == 8
        return
    options = ["-q", "-o", "addopts=", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, __file__],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "XLA_FLAGS": flag, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
