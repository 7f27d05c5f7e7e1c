"""Runs a grid: stages and rounds.

Rounds are driven from Python around one compiled step a stage, so that each one shows
and a killed grid goes on; the runs of the grid are that step's leading axis.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fcjax.algorithms.rounds import EVERY_ROUND, Scored
from fcjax.parallel.mesh import (
    CLIENTS,
    SERVER,
    STATE,
    Backend,
    Spread,
    on_host,
    over_runs,
)
from fcjax.ragged import Ragged
from fcjax.types import (
    Communities,
    FederatedClustering,
    Grid,
    Now,
    PyTree,
    Stage,
    State,
)


class Position(NamedTuple):
    """Where a grid stands: rounds done in a stage."""

    stage: int
    round: int


Build = Callable[[Any], FederatedClustering]
"""From one run's hyper-parameters to its method."""
ShapesOf = Callable[[int], PyTree]
"""The shapes of the state in a stage: traced, so asked for where a state is read."""
Start = Callable[[ShapesOf], tuple[Position, State] | None]
"""(shapes of the state in a stage) -> where to go on from, if from anywhere, and the
state there; in round 0 of a stage that in which the one before it ended."""


class Round(NamedTuple):
    """One round of a grid, as `on_round` sees it."""

    stage: Stage
    position: Position
    metrics: dict[str, np.ndarray]  # [G, ...] each
    state: State  # [G, ...]; gone when the next round begins
    is_last: bool  # of the stage
    is_evaluated: bool = True  # by the schedule, or as the last round of the stage


class Part(NamedTuple):
    """One of the programs that a grid runs."""

    name: str
    times: int
    """That it is run, at the most; `assign` and `embed` as for a table, once."""
    trace: Callable[[], jax.stages.Traced]


class Program:
    """A method and how its runs are spread, compiled once for many grids.

    A grid of the shapes of an earlier one, whatever its values, compiles nothing, so
    that many runs can be taken some at a time, in bounded memory.

    Args:
        build: makes the method from one run's part of `grid.hyper`. It is called
            inside the compiled step: a further value compiles nothing.
        backend, devices: see `over_runs`.
    """

    def __init__(
        self,
        build: Build,
        *,
        backend: Backend = "shard_map",
        devices: Sequence[jax.Device] | None = None,  # pyright: ignore[reportInvalidTypeForm]
    ):
        def init(hyper, key, federation):
            return build(hyper).init(key, federation)

        def assign(hyper, key, federation, state):
            del key
            return build(hyper).assign(state, federation)

        def embed(hyper, key, federation, state):
            del key
            return build(hyper).embed(state, federation)

        def communities(hyper, key, federation, state):
            del key, federation
            return build(hyper).communities(state)  # pyright: ignore[reportOptionalCall]

        self._build = build
        self._spread = spread = partial(over_runs, backend=backend, devices=devices)
        self._stages: list[_CompiledStage] = []
        self._init = spread(init, results=STATE)
        self._assign = spread(assign, results=CLIENTS)
        self._embed = spread(embed, results=CLIENTS)
        self._communities = spread(communities, results=CLIENTS)

    def run(
        self,
        grid: Grid,
        *,
        start: Start = lambda _: None,
        schedule: Scored = EVERY_ROUND,
        on_round: Callable[[Round], None] = lambda _: None,
    ) -> State:
        """Runs every stage of the method on a grid.

        Args:
            grid: the runs.
            start: where to begin, as `Checkpoints.restore`; nowhere is the beginning.
            schedule: the rounds after which the clusters are evaluated.
            on_round: called after each round, as `Checkpoints.save`.

        Returns:
            The final state, stacked on G.

        Raises:
            ValueError: the parts of the grid are of different numbers of runs.
        """
        check_runs(grid)
        stages = self._compiled_stages(grid)

        @cache
        def shapes(stage: int) -> State:
            if stage < 0:
                return jax.eval_shape(self._init, unread(grid))
            return jax.eval_shape(stages[stage].begin, unread(grid), shapes(stage - 1))

        position, state = start(shapes) or (Position(0, 0), None)
        if state is None:
            state = self._init(at_round(grid, "init"))

        for index in range(position.stage, len(stages)):
            stage, begin, is_done, advance = stages[index]
            earlier = sum(each.stage.num_rounds for each in stages[:index])
            if position.stage != index or position.round == 0:
                position = Position(index, 0)
                at = at_round(grid, stage.name, earlier=earlier)
                state = begin(at, state)
            done = bool(on_host(is_done(grid, state)).all())
            while not done and position.round < stage.num_rounds:
                position = Position(index, position.round + 1)
                number = position.round
                is_evaluated = bool(schedule.has(number, stage.num_rounds))
                at = at_round(
                    grid,
                    stage.name,
                    number=number,
                    earlier=earlier,
                    is_evaluated=is_evaluated,
                )
                state, metrics, finished = advance(at, state)
                metrics, finished = on_host((metrics, finished))
                done = bool(finished.all())
                is_last = done or number == stage.num_rounds
                is_evaluated |= is_last
                on_round(Round(stage, position, metrics, state, is_last, is_evaluated))
        return state

    def parts(self, grid: Grid) -> Iterator["Part"]:
        """Yields what a grid of these shapes runs: `init`, each stage's beginning and
        round, `assign` and `embed`, to be compiled for `devices`.

        Args:
            grid: its federations may be `jax.ShapeDtypeStruct`s: no value is read.
        """
        grid = unread(grid)
        yield Part("init", 1, partial(self._init.traced, grid))
        state = jax.eval_shape(self._init, grid)
        compiled = self._compiled_stages(grid)
        for stage, begin, _, advance in compiled:
            yield Part(f"{stage.name} begin", 1, partial(begin.traced, grid, state))
            state = jax.eval_shape(begin, grid, state)
            alike = [other.stage for other in compiled if other.advance is advance]
            names, times = (
                ", ".join(x.name for x in alike),
                [x.num_rounds for x in alike],
            )
            if stage is alike[0] and any(times):
                yield Part(names, sum(times), partial(advance.traced, grid, state))
        yield Part("assign", 1, partial(self._assign.traced, grid, state))
        yield Part("embed", 1, partial(self._embed.traced, grid, state))

    def assign(self, grid: Grid, state: State) -> Int[Array, "G M N"] | Ragged:
        """Returns the cluster of every example of the grid's federations, which may
        have other clients than those that the state was trained on; ragged as they
        are.
        """
        return self._assign(grid, state)

    def embed(self, grid: Grid, state: State) -> Float[Array, "G M N D"] | Ragged:
        """Returns the latent representation of every example, as `assign` does."""
        return self._embed(grid, state)

    def communities(self, grid: Grid, state: State) -> Communities | None:
        """Returns the communities of each run, [G, ...]; None where the method finds
        none.
        """
        if self._first(grid).communities is None:
            return None
        return self._communities(grid, state)

    def _first(self, grid: Grid) -> FederatedClustering:
        return self._build(jax.tree.map(lambda x: x[0], grid.hyper))

    def _compiled_stages(self, grid: Grid) -> list["_CompiledStage"]:
        if not self._stages:
            for index, stage in enumerate(self._first(grid).stages):
                own = _compile_stage(self._build, self._spread, index, stage)
                for other in self._stages:
                    if (
                        other.stage.round is stage.round
                        and other.stage.done is stage.done
                    ):
                        own = own._replace(is_done=other.is_done, advance=other.advance)
                self._stages.append(own)
        return self._stages


def run(
    build: Build,
    grid: Grid,
    *,
    backend: Backend = "shard_map",
    start: Start = lambda _: None,
    on_round: Callable[[Round], None] = lambda _: None,
) -> State:
    """Runs every stage of a method on one grid: `Program.run` without its program."""
    return Program(build, backend=backend).run(grid, start=start, on_round=on_round)


class _CompiledStage(NamedTuple):
    stage: Stage
    begin: Spread
    """(grid, state) -> state"""
    is_done: Spread
    """(grid, state) -> [G]"""
    advance: Spread
    """(grid, state) -> state, metrics [G, ...] by name, whether it is done [G]"""


def _compile_stage(
    build: Build, spread: Callable[..., Spread], index: int, stage: Stage
) -> _CompiledStage:
    def begin(hyper, key, federation, state):
        return build(hyper).stages[index].begin(key, state, federation)

    def is_done(hyper, key, federation, state):
        return build(hyper).stages[index].done(state)

    def advance(hyper, key, federation, state):
        stage = build(hyper).stages[index]
        done = stage.done(state)
        new, metrics = stage.round(key, state, federation)
        # A finished run stands still while others of its grid go on.
        state = jax.tree.map(lambda new, old: jnp.where(done, old, new), new, state)
        return state, metrics, stage.done(state)

    return _CompiledStage(
        stage,
        spread(begin, results=STATE),
        spread(is_done, results=SERVER),
        spread(advance, results=(STATE, SERVER, SERVER), donate=True),
    )


def check_runs(grid: Grid) -> None:
    """Raises ValueError where keys, federations and hyper-parameters are not of as many
    runs: a shorter one would be repeated, or the rest dropped.
    """
    hyper, _ = jax.tree.flatten_with_path(grid.hyper)
    counts = {
        "keys": grid.keys.shape[:1],
        "federations": grid.federations.present.shape[:1],
        **{f"hyper{jax.tree_util.keystr(k)}": np.shape(x)[:1] for k, x in hyper},
    }
    if len(set(counts.values())) > 1 or () in counts.values():
        told = ", ".join(f"{k} of {v[0] if v else 'none'}" for k, v in counts.items())
        raise ValueError(f"all parts of a grid must be of as many runs, got {told}")


def unread(grid: Grid) -> Grid:
    """Returns the grid in some round, for tracing: no value of the round is read."""
    count = grid.federations.present.shape[:1]
    shapes = (jax.ShapeDtypeStruct(count, kind) for kind in (int, int, bool))
    return grid._replace(federations=grid.federations._replace(now=Now(*shapes)))  # pyright: ignore[reportArgumentType]


def at_round(
    grid: Grid,
    name: str,
    *,
    number: int = 0,
    earlier: int = 0,
    is_evaluated: bool = False,
) -> Grid:
    """Returns the grid with the keys and the number of one round.

    The keys follow from the name of the stage and the number of the round alone.
    Methods that share a first state or a stage therefore draw the same numbers in it,
    and an ablation is paired.

    Args:
        grid: the runs, with their own keys.
        name: of the stage; `init` for the first state.
        number: of the round in the stage, from 1; 0 for the beginning of the stage.
        earlier: rounds of the stages before.
        is_evaluated: whether the clusters are evaluated after the round.
    """
    stage_round = max(number - 1, 0)
    now = (earlier + stage_round, stage_round, is_evaluated)
    position = np.array([crc32(name.encode()), number, *now], np.uint32)
    keys, now = _keys_and_round(grid.keys, position)
    federations = grid.federations._replace(now=now)
    return grid._replace(keys=keys, federations=federations)


@jax.jit  # one small array per round goes to the devices
def _keys_and_round(keys, position):
    def fold(key):
        return jax.random.fold_in(jax.random.fold_in(key, position[0]), position[1])

    round, stage_round, is_evaluated = (jnp.full(len(keys), x) for x in position[2:])
    now = Now(round.astype(int), stage_round.astype(int), is_evaluated.astype(bool))
    return jax.vmap(fold)(keys), now
