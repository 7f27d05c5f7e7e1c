"""What leading stages ended in, kept so that runs which share them train them once.

    OUT/../stages/HASH.npz   a file a run: its state after them, and their rounds

Methods that differ in later stages alone, values of a setting of those, and commands of
another day find the files, which may be deleted at any time.
"""

import hashlib
import json
import os
import zipfile
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fcjax.data import Pool
from fcjax.engine import Round, Start
from fcjax.sweep import deal, plan
from fcjax.sweep.experiment import Experiment, configuration
from fcjax.sweep.folder import Point
from fcjax.sweep.plan import Call, Group
from fcjax.sweep.states import Position, first_line
from fcjax.types import PyTree

Rows = list[dict[str, Any]]


class Kept:
    """The leading stages of an experiment's runs, where their method shares them.

    Args:
        experiment: whose results folder lies beside them.
    """

    def __init__(self, experiment: Experiment):
        self._experiment = experiment
        folder = experiment.results.directory
        if experiment.args.shard is not None:
            folder = folder.parent
        self.folder = folder.parent / "stages"

    def start(self, call: Call) -> Start | None:
        """Returns what lets a call begin after the stages it shares, if all its runs
        are there: their rounds are added to its history."""
        if call.group.method.shared is None or not self._experiment.args.resume:
            return None
        return partial(self._start, call, call.group.method.shared.num_stages)

    def _start(self, call, num_stages, shapes) -> tuple[Position, PyTree] | None:
        if not self.folder.exists():
            return None
        structure = shapes(num_stages - 1)
        paths = self._paths(call, structure)
        if not all(path.exists() for path in paths):
            return None
        try:
            states, histories = zip(*map(read, paths), strict=True)
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
            print(f"skipping unreadable stages in {self.folder}: {first_line(error)}")
            return None
        rows = [
            {**dict.fromkeys(("stage_index", "round", "stage")), **point, **row}
            for point, history in zip(call.points, histories, strict=True)
            for row in history
        ]
        # As a session writes them: round by round, the runs of a call side by side.
        rows.sort(key=lambda row: (int(row["stage_index"]), int(row["round"])))
        self._experiment.results.add_rounds(rows)
        print(
            f"{len(paths)} runs go on from stages that were trained before "
            f"({self.folder})"
        )
        leaves = [jnp.array(np.stack(each)) for each in zip(*states, strict=True)]
        state = jax.tree.unflatten(jax.tree.structure(structure), leaves)
        return Position(num_stages, 0), state

    def write(self, call: Call, round: Round) -> None:
        """Keeps the runs of a call if the last of the stages they share has just ended
        and its round is in their history."""
        shared, results = call.group.method.shared, self._experiment.results
        if shared is None or not round.is_last:
            return
        if round.position.stage != shared.num_stages - 1:
            return
        state = [np.asarray(leaf) for leaf in jax.tree.leaves(round.state)]
        paths = self._paths(call, round.state)
        for run, history in enumerate(results.history_of(call.points)):
            # Read back from a file, a row has the columns of all stages.
            fresh = history[-1]
            rows = [
                {
                    name: value
                    for name, value in row.items()
                    if name not in results.names and (value != "" or name in fresh)
                }
                for row in history
            ]
            write(paths[run], [np.asarray(leaf[run]) for leaf in state], rows)

    def _paths(self, call: Call, state: PyTree) -> list[Path]:
        """Where each run of a call is kept that ends in a state of such shapes."""
        shapes = [
            (jax.tree_util.keystr(path), leaf.shape[1:], leaf.dtype.name)
            for path, leaf in jax.tree_util.tree_leaves_with_path(state)
        ]
        paths = []
        for point in call.points:
            told = json.dumps([self._deciding(call.group, point), shapes, self._data])
            name = hashlib.sha256(told.encode()).hexdigest()[:16]
            paths.append(self.folder / f"{name}.npz")
        return paths

    def _deciding(self, group: Group, point: Point) -> list:
        """All flags that the leading stages of a run, and their scores, depend on."""
        args, shared = self._experiment.args, group.method.shared
        assert shared is not None
        alone = group.method._replace(name=shared.name, settings={})
        names = (deal.rule_of(args), "clients", "clusters", "failure_rate", "seed")
        return [
            sorted(configuration(args, alone, {}).items()),
            [point[name] for name in names],
            plan.num_rounds(group)[: shared.num_stages],
            sorted((k, point.get(k, value)) for k, value in shared.settings.items()),
        ]

    @cached_property
    def _data(self) -> str:
        """What a path leads to may change."""
        dataset = self._experiment.dataset
        told = hashlib.sha256(np.ascontiguousarray(dataset.examples).data)
        if dataset.labels is not None:
            told.update(np.ascontiguousarray(dataset.labels).data)
        return told.hexdigest()


def calls(group: Group, pool: Pool) -> Iterator[Call]:
    """Yields the calls of a group as `plan.calls`, but where its method shares stages
    first the runs that have the first value of whatever later stages alone depend on:
    the others then find what those have trained."""
    shared = group.method.shared
    later = {
        name: values[0]
        for name, values in group.traced.items()
        if shared is not None and name not in shared.settings
    }

    def leads(point: Point) -> bool:
        return all(point[name] == value for name, value in later.items())

    for part in (leads, lambda point: not leads(point)):
        if any(map(part, group.points)):
            yield from plan.calls(plan.keep(group, part), pool)


def write(path: Path, leaves: list[np.ndarray], rows: Rows) -> None:
    """Writes what `read` reads, whole or not at all: a run's state and its rounds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Commands that run at the same time may write the same run.
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        np.savez(file, *leaves, history=np.array(json.dumps(rows)))
    temporary.replace(path)


def read(path: Path) -> tuple[list[np.ndarray], Rows]:
    """Returns the leaves of a run's state in the tree's order, and its rounds."""
    with np.load(path) as file:
        leaves = [file[f"arr_{i}"] for i in range(len(file.files) - 1)]
        return leaves, json.loads(file["history"].item())
