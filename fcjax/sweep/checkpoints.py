"""Checkpoints on disk: the states of runs, written by orbax to FOLDER/STAGE-ROUND.

A killed grid resumes from its checkpoints. The stage cache stores the end of shared
stages as checkpoints, and figures of finished runs read them. The name of FOLDER
contains a digest of all settings that decide the state.
"""

import errno
import json
import logging
import os
import re
import shutil
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp

from fcjax.engine import Position, Round, ShapesOf
from fcjax.parallel.mesh import is_multiprocess, restore_shardings
from fcjax.sweep import processes
from fcjax.types import PyTree

log = logging.getLogger("fcjax")


class Checkpoints:
    """The last two states of some runs on disk, written while the next rounds run.

    `Program.run(grid, start=checkpoints.restore, on_round=checkpoints.save)` resumes
    after a kill. As a context manager it ends when all saved states are written.

    Args:
        directory: the folder of the checkpoints, created at the first save.
        interval: seconds between two saves. The end of a stage is always saved. None
            saves and restores nothing.
    """

    def __init__(self, directory: Path, *, interval: float | None = 60.0):
        self._directory = directory.absolute()
        self._interval = interval
        self._last_save = time.monotonic()
        self._pending: ocp.AsyncResponse | None = None
        self._damaged: set[str] = set()  # names that `restore` could not read

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def restore(
        self, shapes: ShapesOf, *, is_run: bool = False
    ) -> tuple[Position, PyTree] | None:
        """Loads the newest checkpoint that can be read.

        Args:
            shapes: (stage) -> the shapes of the state in this stage.
            is_run: whether the checkpoint holds one run, without a leading axis G.

        Returns:
            The position of the runs (stage and round) and their state; None if there is
            no readable checkpoint.

        Raises:
            MemoryError: the state does not fit in memory. A device without enough
                memory raises `jax.errors.JaxRuntimeError`.
        """
        if self._interval is None:
            return None
        if processes.is_primary():
            self._remove_partial()
        names = [path.name for path in self._complete()]
        for name in reversed(json.loads(processes.broadcast_text(json.dumps(names)))):
            path = self._directory / name
            position = Position(*(int(part) for part in name.split("-")))
            structure = restore_shardings(shapes(position.stage), is_run=is_run)
            try:
                state = ocp.load(str(path), structure)
            except (MemoryError, jax.errors.JaxRuntimeError):
                raise
            except Exception as error:  # orbax raises almost any type for damaged files
                log.warning(f"skipping the damaged checkpoint {path}: {_line(error)}")
                self._damaged.add(name)
                continue
            if is_multiprocess():
                return position, state
            # The engine spreads the state over devices and donates it. Therefore it
            # must not stay on the device that orbax chose.
            return position, jax.tree.map(lambda x: jnp.array(np.asarray(x)), state)
        return None

    def resume(self, shapes: ShapesOf) -> tuple[Position, PyTree] | None:
        """Loads the newest checkpoint as `restore`, and logs its path.

        Args:
            shapes: (stage) -> the shapes of the state in this stage.

        Returns:
            The position of the runs and their state; None without a checkpoint.
        """
        result = self.restore(shapes)
        if result is not None:
            log.info(f"resuming from checkpoint {self.path_of(result[0])}")
        return result

    def save(self, round: Round) -> None:
        """Saves the state after a round if the interval has passed or the stage ends.

        The state is copied before this function returns, because the engine may donate
        it, and is written in the background. An error of the previous write is raised
        here.

        Args:
            round: the round that has just ended.
        """
        if self._interval is None:
            return
        if not round.is_last:
            is_due = time.monotonic() - self._last_save >= self._interval
            if processes.broadcast_text(str(is_due)) == "False":
                return
        self.wait()
        self._directory.mkdir(parents=True, exist_ok=True)

        def copy(x: jax.Array | np.ndarray | np.generic):
            is_shared = is_multiprocess() and isinstance(x, jax.Array)
            # On a CPU `device_get` returns the memory that is about to be donated.
            return x.copy() if is_shared else np.array(jax.device_get(x))

        state = jax.tree.map(copy, round.state)
        path = self.path_of(round.position)
        self._damaged.discard(path.name)
        self._pending = ocp.save_async(str(path), state, overwrite=True)
        self._last_save = time.monotonic()

    def path_of(self, position: Position) -> Path:
        """Returns the path of the checkpoint of a round.

        Args:
            position: stage and number of the round.

        Returns:
            The path, directory/STAGE-ROUND.
        """
        return self._directory / f"{position.stage:02d}-{position.round:06d}"

    def wait(self) -> None:
        """Waits until all saved states are on disk, and removes older checkpoints.

        Raises:
            OSError: the disk is full. Other errors of the write are raised as they are.
        """
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        try:
            pending.result()
        except ValueError as error:  # tensorstore reports a full disk as ValueError
            full = os.strerror(errno.ENOSPC)
            if full not in str(error):
                raise
            raise OSError(errno.ENOSPC, full, str(self._directory)) from error
        intact = [path for path in self._complete() if path.name not in self._damaged]
        for old in intact[:-2] if processes.is_primary() else ():
            shutil.rmtree(old)

    def _complete(self) -> list[Path]:
        """Returns the complete checkpoints, oldest first.

        Orbax renames a checkpoint to its final name when it is complete.
        """
        paths = self._directory.glob("*")
        return sorted(x for x in paths if re.fullmatch(r"\d{2}-\d{6}", x.name))

    def _remove_partial(self) -> None:
        """Removes the incomplete checkpoints of a killed process."""
        for path in self._directory.glob("*"):
            if re.fullmatch(r"\d{2}-\d{6}\.orbax-checkpoint-tmp.*", path.name):
                shutil.rmtree(path)


def _line(error: Exception) -> str:
    """Returns the first line of an error message."""
    return str(error).partition("\n")[0]
