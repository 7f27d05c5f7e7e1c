"""The machine, the code and the data that results depend on."""

import hashlib
import inspect
import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fcjax.parallel.exact import num_cores
from fcjax.parallel.mesh import all_devices

PACKAGE = Path(__file__).parents[1]
"""Folder of the package fcjax."""
PACKAGES = ("fcjax", "jax", "jaxlib", "flax", "optax", "numpy", "scikit-learn")
"""Packages whose versions are recorded."""
COMPILER = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_OPTIMIZATION_LEVEL")
"""Environment variables with options of the XLA compiler, which affect rounding."""


def environment() -> dict[str, Any]:
    """Returns commit, versions and machine of this process.

    `commit` is None outside a git checkout. `changed` is whether tracked files differ
    from the commit.
    """
    devices = all_devices()
    commit = _git("rev-parse", "HEAD")
    return {
        "commit": commit,
        "changed": bool(commit and _git("status", "--porcelain", "-uno")),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "processor": processor(),
        "cores": num_cores(),
        "devices": f"{len(devices)} x {devices[0].device_kind}",
        "backend": jax.default_backend(),
        "compiler": compiler_options(),
    }


def compiler_options() -> dict[str, str]:
    """Returns those variables of `COMPILER` that are set."""
    return {name: os.environ[name] for name in COMPILER if name in os.environ}


def processor() -> str:
    """Returns the name of this machine's processor."""
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    match = re.search(r"^model name\s*:(.*)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def digest(array: np.ndarray) -> str:
    """Returns a digest of shape, type and values of an array, 16 hexadecimal digits.

    Args:
        array: the array.

    Returns:
        The digest.
    """
    result = hashlib.blake2b(f"{array.shape} {array.dtype}".encode(), digest_size=8)
    result.update(np.ascontiguousarray(array).data)
    return result.hexdigest()


def method_file(method: type) -> dict[str, str]:
    """Returns a digest of the file of a method that is not part of fcjax.

    The commit does not cover the file of a user's method, which git may not track.

    Args:
        method: the class of the method.

    Returns:
        The digest under the name `method_file`, 16 hexadecimal digits. Empty for the
        methods of fcjax, and for a class that is defined in no file.
    """
    try:
        path = Path(inspect.getfile(method)).resolve()
    except (OSError, TypeError):
        return {}
    if not path.is_file() or path.is_relative_to(PACKAGE):
        return {}
    return {
        "method_file": hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
    }


def _git(*command: str) -> str | None:
    """Returns the output of a git command; None outside a checkout of fcjax."""
    # An installed package may lie inside another repository.
    if not (PACKAGE.parent / ".git").exists():
        return None
    options = {"cwd": PACKAGE, "capture_output": True, "text": True, "check": True}
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        return subprocess.run(["git", *command], env=env, **options).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
