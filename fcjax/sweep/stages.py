"""What leading stages ended in, kept so that runs which share them train them once.

    OUT/../stages/NAME/   of a run: its state after them, see `states`, and its rounds,
                          history.json

Methods that differ in later stages alone, values of a setting of those, and commands of
another day find them. They may be deleted at any time.
"""

import json
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path

import jax
import jax.numpy as jnp

from fcjax.devices import on_host
from fcjax.engine import Position, Round, ShapesOf, Start
from fcjax.sweep import deal, environment, plan, processes
from fcjax.sweep.experiment import Experiment, configuration
from fcjax.sweep.folder import Point
from fcjax.sweep.plan import Batch
from fcjax.sweep.states import States, name_of
from fcjax.types import State


class Kept:
    """The leading stages of an experiment's runs, where their method shares them.

    Args:
        experiment: whose results folder lies beside them.
    """

    def __init__(self, experiment: Experiment):
        self._experiment = experiment
        folder = experiment.folder.directory
        if experiment.args.shard is not None:
            folder = folder.parent
        self.folder = folder.parent / "stages"

    def start(self, batch: Batch) -> Start:
        """Returns what lets runs begin after the stages that they share, if all of them
        are there: their rounds are added to the history."""
        if batch.method.shared is None or not self._experiment.args.resume:
            return lambda _: None
        return partial(self._start, batch, batch.method.shared.num_stages)

    def _start(
        self, batch: Batch, num_stages: int, shapes: ShapesOf
    ) -> tuple[Position, State] | None:
        if not self.folder.exists():
            return None
        structure = shapes(num_stages - 1)
        one = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), structure
        )
        places = self._places(batch, structure)
        states, rows = [], []
        for point, place in zip(batch.points, places, strict=True):
            # It clears away what looks unfinished, as what another command now writes.
            with processes.locked(self.folder / ".lock"):
                found = States(place).restore(lambda _: one, is_run=True)
            path = place / "history.json"
            if found is None or not path.exists():
                return None
            states.append(found[1])
            first = dict.fromkeys(("stage_index", "round", "stage"))
            rows += [{**first, **point, **row} for row in json.loads(path.read_text())]
        # As a session writes them: round by round, the runs side by side.
        rows.sort(key=lambda row: (row["stage_index"], row["round"]))
        self._experiment.folder.add_rounds(rows)
        print(
            f"{len(places)} runs go on from stages that were trained before "
            f"({self.folder})"
        )
        state = jax.tree.map(lambda *xs: jnp.stack(xs), *states)
        return Position(num_stages, 0), state

    def write(self, batch: Batch, round: Round) -> None:
        """Keeps the runs if the last of the stages they share has just ended and its
        round is in their history."""
        shared, folder = batch.method.shared, self._experiment.folder
        if shared is None or not round.is_last:
            return
        if round.position.stage != shared.num_stages - 1:
            return
        state = on_host(round.state)
        places = self._places(batch, round.state)
        self.folder.mkdir(parents=True, exist_ok=True)
        for run, history in enumerate(folder.history_of(batch.points)):
            # Read back from a file, a row has the columns of all stages.
            fresh = history[-1]
            rows = [
                {
                    name: value
                    for name, value in row.items()
                    if name not in batch.points[run]
                    and (value is not None or name in fresh)
                }
                for row in history
            ]
            own = round._replace(state=jax.tree.map(lambda x, run=run: x[run], state))
            # Commands that run at the same time may keep the same run.
            with processes.locked(self.folder / ".lock"), States(places[run]) as kept:
                places[run].mkdir(exist_ok=True)
                if processes.leads():
                    (places[run] / "history.json").write_text(json.dumps(rows))
                kept.save(own)

    def _places(self, batch: Batch, state: State) -> list[Path]:
        """Where each of the runs is kept that end in a state of such shapes."""
        shapes = [
            (jax.tree_util.keystr(path), leaf.shape[1:], leaf.dtype.name)
            for path, leaf in jax.tree_util.tree_leaves_with_path(state)
        ]
        return [
            self.folder / name_of(self._deciding(batch, point), shapes, self._data)
            for point in batch.points
        ]

    def _deciding(self, batch: Batch, point: Point) -> list:
        """All flags that the leading stages of a run, and their scores, depend on."""
        args, shared = self._experiment.args, batch.method.shared
        assert shared is not None
        alone = batch.method._replace(name=shared.name, settings={})
        names = (deal.rule_of(args), "clients", "clusters", "failure_rate", "seed")
        return [
            configuration(args, alone, {}),
            [point[name] for name in names],
            plan.num_rounds(batch)[: shared.num_stages],
            {k: point.get(k, value) for k, value in shared.settings.items()},
        ]

    @cached_property
    def _data(self) -> str:
        """What a path leads to may change."""
        dataset = self._experiment.dataset
        each = (dataset.examples, dataset.labels, dataset.clients)
        each = [x for x in each if x is not None]
        return " ".join(map(environment.digest, each))


def in_turn(batch: Batch) -> Iterator[Batch]:
    """Yields the runs that go side by side as `Batch.split`, but where the method
    shares stages first those that have the first value of whatever later stages alone
    depend on: the others then find what those have trained."""
    shared = batch.method.shared
    later = {
        name: values[0]
        for name, values in batch.traced.items()
        if shared is not None and name not in shared.settings
    }

    def leads(point: Point) -> bool:
        return all(point[name] == value for name, value in later.items())

    for part in (leads, lambda point: not leads(point)):
        if any(map(part, batch.points)):
            yield from batch.keep(part).split()
