"""What results were made with: commit, versions, processor, devices, and how long each
start took, in environment.json of a results folder."""

import hashlib
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fcjax.data import Dataset
from fcjax.devices import all_devices, num_cores
from fcjax.sweep.folder import Folder, starts, write_whole

PACKAGE = Path(__file__).parents[1]
PACKAGES = ("fcjax", "jax", "jaxlib", "flax", "optax", "numpy", "scikit-learn")
COMPILER = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_OPTIMIZATION_LEVEL")
"""What of the user's environment says how XLA compiles, and so how it rounds."""
DIGESTS = ("examples", "labels", "clients")
"""What a start has a digest of, where the data has it."""


@contextmanager
def recorded(
    folder: Folder, dataset: Dataset, *, data_dir: Path | None
) -> Iterator[None]:
    """Adds a start to the folder's environment.json, and in the end its seconds.

    One that was killed has those until its last round.

    Args:
        folder: of the results.
        dataset: that is scored.
        data_dir: where the command looked for TFDS data sets, if it said so. The
            commands for finished runs look there again.
    """
    if not folder.writes:
        yield
        return
    began, earlier = datetime.now(UTC), starts(folder.directory)
    start = time.monotonic()  # which no setting of the clock changes
    if earlier and earlier[-1]["seconds"] is None:
        killed = datetime.fromisoformat(earlier[-1]["began"])
        seconds = (_last_round(folder) - killed).total_seconds()
        earlier[-1]["seconds"] = max(0, round(seconds))  # a clock may be set back
    own = {
        **environment(),
        **digests(dataset),
        **({} if data_dir is None else {"data_dir": str(data_dir.resolve())}),
        "began": began.isoformat(" ", "seconds"),
        "seconds": None,
    }
    write(folder.directory, [*earlier, own])
    try:
        yield
    finally:
        own["seconds"] = round(time.monotonic() - start)
        write(folder.directory, [*earlier, own])


def digests(dataset: Dataset) -> dict[str, str]:
    """Returns what tells data sets apart: digests of the examples, and of the labels
    and owners where there are some."""
    each = dataset.examples, dataset.labels, dataset.clients
    named = zip(DIGESTS, each, strict=True)
    return {name: digest(x) for name, x in named if x is not None}


def check_digests(directory: Path, found: Sequence[dict[str, Any]]) -> None:
    """Raises ValueError where starts are not all of the same data, as far as they say.

    Args:
        directory: of the results.
        found: starts, or `digests`.
    """
    for name in DIGESTS:
        if len({start[name] for start in found if name in start}) > 1:
            raise ValueError(
                f"{directory} holds results of other {name}: the data, or how it is "
                "read, has changed since; choose another --out, or remove this folder"
            )


def write(directory: Path, starts: Sequence[dict[str, Any]]) -> None:
    text = json.dumps(starts, indent=2) + "\n"
    write_whole(directory / "environment.json", text)


def environment() -> dict[str, Any]:
    """Returns what this process runs with; `changed` is whether tracked files differ
    from the commit, which is None outside a checkout."""
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
        "compiler": asked_of_compiler(),
    }


def asked_of_compiler() -> dict[str, str]:
    """Returns of `COMPILER` what is set."""
    return {name: os.environ[name] for name in COMPILER if name in os.environ}


def digest(array: np.ndarray) -> str:
    """Returns what tells arrays apart: their shape, type and values in 16 digits."""
    found = hashlib.blake2b(f"{array.shape} {array.dtype}".encode(), digest_size=8)
    found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def processor() -> str:
    """Returns the name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    return names[0].strip() if names else platform.machine()


def _git(*command: str) -> str | None:
    # Not of a repository that an installed package happens to lie in.
    if not (PACKAGE.parent / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", *command],
            cwd=PACKAGE,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def _last_round(folder: Folder) -> datetime:
    history = folder.directory / "history.csv"
    seen = history if history.exists() else folder.directory / "environment.json"
    return datetime.fromtimestamp(seen.stat().st_mtime, UTC)
