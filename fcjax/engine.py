"""Runs a grid: stages, rounds, progress and checkpoints.

Rounds are driven from Python around one compiled step a stage, so that each one shows
and a killed grid goes on; the runs of the grid are that step's leading axis.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcjax.backends import Backend, Grid, over_runs
from fcjax.checkpoints import Checkpoints, Position
from fcjax.types import FederatedClustering, PyTree, Stage

Build = Callable[[Any], FederatedClustering]
"""From one run's hyper-parameters to its method."""


class Round(NamedTuple):
    """One round of a grid, as `on_round` sees it."""

    stage: Stage
    position: Position
    metrics: dict[str, np.ndarray]  # [G, ...] each
    state: PyTree  # [G, ...]; gone when the next round begins
    is_last: bool  # of the stage


def run(
    build: Build,
    grid: Grid,
    *,
    backend: Backend = "shard_map",
    on_round: Callable[[Round], None] = lambda _: None,
    checkpoints: Checkpoints | None = None,
) -> PyTree:
    """Runs every stage of a method on a grid.

    Args:
        build: makes the method from one run's part of `grid.hyper`. It is called
            inside the compiled step: a further value compiles nothing.
        grid: the runs.
        backend: see `over_runs`.
        on_round: called after each round, before its checkpoint is written.
        checkpoints: where to save, and to go on from what was saved.

    Returns:
        The final state, stacked on G.
    """
    stages = build(jax.tree.map(lambda x: x[0], grid.hyper)).stages

    def initialize(hyper, key, federation):
        return build(hyper).init(key, federation)

    def begin(index):
        def function(hyper, key, federation, state):
            return build(hyper).stages[index].begin(key, state, federation)

        return over_runs(function, backend)

    def is_done(index):
        def function(hyper, key, federation, state):
            return build(hyper).stages[index].done(state)

        return over_runs(function, backend)

    def advance(index):
        def function(hyper, key, federation, state):
            stage = build(hyper).stages[index]
            done = stage.done(state)
            new, metrics = stage.round(key, state, federation)
            # A finished run stands still while others of its grid go on.
            state = jax.tree.map(lambda new, old: jnp.where(done, old, new), new, state)
            return state, metrics, stage.done(state)

        return over_runs(function, backend, donate=True)

    init = over_runs(initialize, backend)
    position, state = Position(0, 0), None
    if checkpoints is not None:
        structures = [jax.eval_shape(init, grid)]
        for index in range(len(stages)):
            structures.append(jax.eval_shape(begin(index), grid, structures[-1]))
        position, state = checkpoints.restore(structures[1:])
    if state is None:
        state = init(_at(grid, len(stages), 0))

    for index in range(position.stage, len(stages)):
        if position.stage != index or position.round == 0:
            position = Position(index, 0)
            state = begin(index)(_at(grid, *position), state)
        step = advance(index)
        done = bool(np.all(is_done(index)(grid, state)))
        while not done and position.round < stages[index].num_rounds:
            position = Position(index, position.round + 1)
            state, metrics, finished = step(_at(grid, *position), state)
            done = bool(np.all(finished))
            is_last = done or position.round == stages[index].num_rounds
            metrics = jax.device_get(metrics)
            on_round(Round(stages[index], position, metrics, state, is_last))
            if checkpoints is not None:
                checkpoints.save(position, state, force=is_last)
    return state


def _at(grid: Grid, stage: int, number: int) -> Grid:
    """The grid with the keys of one round: folds of what it is, not of what was run."""

    def fold(key):
        return jax.random.fold_in(jax.random.fold_in(key, stage), number)

    return grid._replace(keys=jax.vmap(fold)(grid.keys))
