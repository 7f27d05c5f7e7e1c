"""States on disk, written with orbax: FOLDER/STAGE-ROUND.

What a killed grid goes on from, what runs that share leading stages begin with, and
what a figure reads of runs in the end. Each lies in a folder whose name is a digest of
all that decides it.
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

    `Program.run(grid, start=states.restore, on_round=states.save)` goes on after a
    kill; as a context it ends once all that was saved is written.

    Args:
        directory: created at the first save.
        interval: seconds between two saves; a stage's end is always saved. None saves
            and restores nothing.
    """

    def __init__(self, directory: Path, *, interval: float | None = 60.0):
        self._directory = directory.absolute()
        self._interval = interval
        self._last_save = time.monotonic()
        self._pending: ocp.AsyncResponse | None = None
        self._skipped: set[str] = set()  # damaged, and no state to go on from

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def restore(
        self, shapes: ShapesOf, *, is_run: bool = False
    ) -> tuple[Position, PyTree] | None:
        """Loads the newest state that can be read.

        Args:
            shapes: of the state in each stage.
            is_run: whether it is that of one run.

        Returns:
            Where the runs stand and their state; None if nothing can be read.
        """
        if self._interval is None:
            return None
        if processes.is_primary():
            self._remove_partial()
        names = [path.name for path in self._complete()]
        for name in reversed(json.loads(processes.broadcast_text(json.dumps(names)))):
            path = self._directory / name
            position = Position(*(int(part) for part in name.split("-")))
            asked = restore_shardings(shapes(position.stage), is_run=is_run)
            try:
                state = ocp.load(str(path), asked)
            except (MemoryError, jax.errors.JaxRuntimeError):
                raise
            except Exception as error:  # of a damaged one orbax raises almost any type
                log.warning(f"skipping the damaged state {path}: {first_line(error)}")
                self._skipped.add(name)
                continue
            if is_multiprocess():
                return position, state
            # Off the device that orbax chose: the engine spreads and donates it.
            return position, jax.tree.map(lambda x: jnp.array(np.asarray(x)), state)
        return None

    def resume(self, shapes: ShapesOf) -> tuple[Position, PyTree] | None:
        """`restore`, which says from where."""
        found = self.restore(shapes)
        if found is not None:
            log.info(f"going on from checkpoint {self.path_of(found[0])}")
        return found

    def save(self, round: Round) -> None:
        """Saves the state after a round if the interval has passed or the stage ends.

        It is copied before this returns and written after: the engine may donate it.
        Raises what the write before this one raised.
        """
        if self._interval is None:
            return
        if not round.is_last:
            is_due = time.monotonic() - self._last_save >= self._interval
            if processes.broadcast_text(str(is_due)) == "False":
                return
        self.wait()
        self._directory.mkdir(parents=True, exist_ok=True)

        def own(x: jax.Array | np.ndarray | np.generic):
            is_shared = is_multiprocess() and isinstance(x, jax.Array)
            # What device_get returns on a CPU is the donated memory itself.
            return x.copy() if is_shared else np.array(jax.device_get(x))

        copy = jax.tree.map(own, round.state)
        path = self.path_of(round.position)
        self._skipped.discard(path.name)
        self._pending = ocp.save_async(str(path), copy, overwrite=True)
        self._last_save = time.monotonic()

    def path_of(self, position: Position) -> Path:
        """Where the state of a round lies."""
        return self._directory / f"{position.stage:02d}-{position.round:06d}"

    def wait(self) -> None:
        """Returns once all that was saved is on disk; raises what its write raised, and
        OSError where there is no room for it.
        """
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        try:
            pending.result()
        except ValueError as error:  # as tensorstore has it
            full = os.strerror(errno.ENOSPC)
            if full not in str(error):
                raise
            raise OSError(errno.ENOSPC, full, str(self._directory)) from error
        whole = [path for path in self._complete() if path.name not in self._skipped]
        for old in whole[:-2] if processes.is_primary() else ():
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


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
