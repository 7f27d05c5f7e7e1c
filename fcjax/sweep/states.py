"""Checkpoints of a grid, written with orbax."""

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from orbax.checkpoint import v1 as ocp

from fcjax.types import PyTree

ShapesOf = Callable[[int], PyTree]
"""The shapes of the state in a stage: traced, so asked for where a state is read."""


class Position(NamedTuple):
    """Where a grid stands: rounds done in a stage."""

    stage: int
    round: int


class Checkpoints:
    """The last two states of a grid on disk, written while the next rounds run.

    Args:
        directory: created at the first save.
        interval: seconds between two saves; a stage's end is always saved.
    """

    def __init__(self, directory: Path, *, interval: float = 60.0):
        self._directory = directory.absolute()
        self._interval = interval
        self._last_save = time.monotonic()
        self._pending: ocp.AsyncResponse | None = None

    def restore(
        self, shapes: ShapesOf
    ) -> tuple[Position, PyTree] | tuple[Position, None]:
        """Loads the newest checkpoint that can be read.

        Args:
            shapes: of the state in each stage.

        Returns:
            Where the grid stands and its state; the beginning and None if there is
            nothing to go on from.
        """
        self._remove_partial()
        for path in reversed(self._complete()):
            position = Position(*(int(part) for part in path.name.split("-")))
            try:
                state = ocp.load(str(path), _on_one_device(shapes(position.stage)))
            except (ValueError, OSError, KeyError) as error:
                print(f"skipping the damaged checkpoint {path}: {first_line(error)}")
                continue
            print(f"going on from checkpoint {path}")
            # Off the device that orbax chose: the engine spreads and donates it.
            return position, jax.tree.map(lambda x: jnp.array(np.asarray(x)), state)
        return Position(0, 0), None

    def save(self, position: Position, state: PyTree, *, force: bool) -> None:
        """Saves the state if `force` or if the interval has passed.

        It is copied before this returns and written after: the caller may donate it.
        Raises what the write before this one raised.
        """
        if not force and time.monotonic() - self._last_save < self._interval:
            return
        self.wait()
        self._directory.mkdir(parents=True, exist_ok=True)
        name = f"{position.stage:02d}-{position.round:06d}"
        # What device_get returns on a CPU is the donated memory itself.
        copy = jax.tree.map(np.array, jax.device_get(state))
        self._pending = ocp.save_async(
            str(self._directory / name), copy, overwrite=True
        )
        self._last_save = time.monotonic()

    def wait(self) -> None:
        """Returns once all that was saved is on disk; raises what its write raised."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        pending.result()
        for old in self._complete()[:-2]:
            shutil.rmtree(old)

    def _complete(self) -> list[Path]:
        """What was written to its end, oldest first: orbax names it so at last."""
        found = self._directory.glob("*")
        return sorted(x for x in found if re.fullmatch(r"\d{2}-\d{6}", x.name))

    def _remove_partial(self) -> None:
        """Removes what a killed process left unfinished."""
        for path in self._directory.glob("*"):
            if re.fullmatch(r"\d{2}-\d{6}\.orbax-checkpoint-tmp.*", path.name):
                shutil.rmtree(path)


def _on_one_device(structure: PyTree) -> PyTree:
    device = SingleDeviceSharding(jax.local_devices()[0])
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), structure
    )


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
