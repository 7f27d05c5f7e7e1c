"""The machine, the code and the data that a result depends on."""

import hashlib
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
PACKAGES = ("fcjax", "jax", "jaxlib", "flax", "optax", "numpy", "scikit-learn")
COMPILER = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_OPTIMIZATION_LEVEL")
"""What of the user's environment says how XLA compiles, and so how it rounds."""


def environment() -> dict[str, Any]:
    """Returns what this process runs with; `changed` is whether tracked files differ
    from the commit, which is None outside a checkout.
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
    """Returns of `COMPILER` what is set."""
    return {name: os.environ[name] for name in COMPILER if name in os.environ}


def processor() -> str:
    """Returns the name of this machine's processor."""
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    named = re.search(r"^model name\s*:(.*)$", text, re.MULTILINE)
    return named[1].strip() if named else platform.processor() or platform.machine()


def digest(array: np.ndarray) -> str:
    """Returns what tells arrays apart: their shape, type and values in 16 digits."""
    found = hashlib.blake2b(f"{array.shape} {array.dtype}".encode(), digest_size=8)
    found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _git(*command: str) -> str | None:
    # Not of a repository that an installed package happens to lie in.
    if not (PACKAGE.parent / ".git").exists():
        return None
    options = {"cwd": PACKAGE, "capture_output": True, "text": True, "check": True}
    own = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        return subprocess.run(["git", *command], env=own, **options).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
