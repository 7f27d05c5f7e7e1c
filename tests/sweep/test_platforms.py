"""Commands on a machine without the platform that JAX_PLATFORMS names."""

import os
import subprocess
import sys

import jax
import pytest

from fcjax.cli.errors import exit_on_system_error

TOOL = """
import jax
from fcjax.cli.errors import exit_on_error
with exit_on_error():
    jax.numpy.zeros(3)
"""
"""A tool for finished runs first uses JAX somewhere inside of `exit_on_error`."""
HAS_GPU = jax.default_backend() == "gpu"


def ended(*words, platforms):
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "JAX_PLATFORMS": platforms},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "platforms",
    [
        pytest.param("cuda", marks=pytest.mark.skipif(HAS_GPU, reason="has a GPU")),
        "gpuu",
        "cpu,gpuu",
    ],
)
@pytest.mark.parametrize("command", ["script", "tool"])
def test_a_platform_that_is_not_here_is_refused_in_a_line(tmp_path, command, platforms):
    script = ["-m", "fcjax", "ccfc", "--preset", "smoke", "--out", tmp_path / "out"]
    words = ["-c", TOOL] if command == "tool" else script
    status, printed, said = ended(*words, platforms=platforms)
    assert (status, printed) == (2, "")
    (line,) = said.splitlines()
    assert f"error: JAX_PLATFORMS={platforms} is a platform" in line
    available = line.partition("available: ")[2].partition(". ")[0].split(", ")
    assert "cpu" in available
    assert "gpuu" not in available
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [RuntimeError("full"), AssertionError()])
def test_other_errors_keep_their_traceback(error):
    with pytest.raises(type(error)) as raised, exit_on_system_error():
        raise error
    assert raised.value is error
