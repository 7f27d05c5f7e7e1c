"""In processes of their own: JAX decides once how many devices it has."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from fcjax.parallel.exact import SMALL, compiler_options, num_cores

FIRST = "from fcjax.parallel.exact import take_cores; take_cores(); import jax;"
LATE = (
    "from fcjax.parallel.exact import take_cores; import jax; jax.devices();"
    "take_cores();"
)
UNOPTIMISED = "--xla_backend_optimization_level=0"
FORCED = "--xla_force_host_platform_device_count=4"


@pytest.mark.parametrize(
    ("program", "asked", "expected"),
    [
        (FIRST, {}, num_cores()),
        (FIRST, {"JAX_NUM_CPU_DEVICES": "3"}, 3),
        (FIRST, {"XLA_FLAGS": FORCED}, 4),
        (LATE, {}, 1),
    ],
    ids=["a core each", "asked of JAX", "asked of XLA", "too late"],
)
def test_devices_of_a_process(program, asked, expected):
    unasked = ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS")
    env = {name: x for name, x in os.environ.items() if name not in unasked}
    run = subprocess.run(
        [sys.executable, "-c", f"{program} print(jax.local_device_count())"],
        env={**env, **asked, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(run.stdout) == expected


@pytest.mark.parametrize(
    ("size", "asked", "is_fewer"),
    [(SMALL - 1, "", True), (SMALL, "", False), (0, UNOPTIMISED, False)],
)
def test_a_small_program_is_compiled_for_fewer_passes_unless_asked_otherwise(
    monkeypatch, size, asked, is_fewer
):
    monkeypatch.setenv("XLA_FLAGS", asked)
    options = compiler_options("cpu", num_bytes=size)
    assert ("xla_backend_optimization_level" in options) == is_fewer
    assert options["xla_cpu_multi_thread_eigen"] is False
    double = jax.jit(lambda x: 2 * x, compiler_options=options or None)
    assert double(3.0) == 6


def test_lapack_on_as_many_devices_as_cores_does_not_wait_for_ever(tmp_path):
    # With as many threads as devices jaxlib 0.10 stood still in one of its first calls.
    command = ["experiments/baselines.py", "--methods", "k-fed", "--no-plot"]
    seeds = ["--seed", *map(str, range(24)), "--runs-per-call", "2"]
    run = subprocess.run(
        [sys.executable, *command, *seeds, "--out", str(tmp_path)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert "k-fed" in run.stdout
