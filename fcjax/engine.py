"""Runs a grid: all stages and rounds of its runs.

A Python loop over rounds calls one compiled step per stage. It can therefore report
every round and resume a killed grid. The runs of the grid are the leading axis of the
arrays of this step.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fcjax.algorithms.rounds import EVERY_ROUND, EvaluationSchedule
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
    Uploads,
)


class Position(NamedTuple):
    """The progress of a grid: the current stage and its number of finished rounds."""

    stage: int
    """Index of the stage."""
    round: int
    """Number of finished rounds in the stage."""


Build = Callable[[Any], FederatedClustering]
"""(hyper-parameters of one run) -> its method."""
ShapesOf = Callable[[int], PyTree]
"""(stage) -> the shapes of the state. They are traced, hence computed on demand."""
Start = Callable[[ShapesOf], tuple[Position, State] | None]
"""(`ShapesOf`) -> the position to resume from and the state there; None starts from the
beginning. For round 0 of a stage, it is the final state of the previous stage."""


class Round(NamedTuple):
    """The result of one round of a grid, the argument of `on_round`."""

    stage: Stage
    position: Position
    metrics: dict[str, np.ndarray]
    """Metrics by name, [G, ...] each."""
    state: State
    """The state after the round, [G, ...]. The next round overwrites its memory."""
    is_last: bool
    """Whether it is the last round of the stage."""
    is_evaluated: bool = True
    """Whether the clusters are evaluated: by the schedule, or in the last round."""


class Part(NamedTuple):
    """One of the compiled programs of a grid."""

    name: str
    times: int
    """Upper bound on the number of executions. `assign` and `embed` count once."""
    trace: Callable[[], jax.stages.Traced]
    """Traces the program."""


class Program:
    """The compiled programs of a method, for many grids.

    A grid with the shapes of an earlier grid compiles nothing, whatever its values. A
    large grid can therefore be run in several calls with bounded memory.

    Args:
        build: builds the method from the hyper-parameters of one run. It is called
            within the compiled step, so that new values do not compile again.
        backend: the JAX transformation that spreads the runs over devices, see
            `over_runs`.
        devices: the devices for `shard_map`; None uses all.
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

        def uploads(hyper, key, federation, state):
            return build(hyper).uploads(key, state, federation)  # pyright: ignore[reportOptionalCall]

        self._build = build
        self._spread = spread = partial(over_runs, backend=backend, devices=devices)
        self._stages: list[_CompiledStage] = []
        self._init = spread(init, results=STATE)
        self._assign = spread(assign, results=CLIENTS)
        self._embed = spread(embed, results=CLIENTS)
        self._communities = spread(communities, results=CLIENTS)
        self._uploads = spread(uploads, results=CLIENTS)

    def run(
        self,
        grid: Grid,
        *,
        start: Start = lambda _: None,
        schedule: EvaluationSchedule = EVERY_ROUND,
        on_round: Callable[[Round], None] = lambda _: None,
    ) -> State:
        """Runs all stages of the method on a grid.

        Args:
            grid: the inputs of the runs.
            start: returns the position and state to resume from, such as
                `Checkpoints.restore`; by default the runs start from the beginning.
            schedule: the rounds after which the clusters are evaluated.
            on_round: called after each round, such as `Checkpoints.save`.

        Returns:
            The final state, [G, ...].

        Raises:
            ValueError: the parts of the grid have different numbers of runs.
        """
        check_runs(grid)
        stages = self._compiled_stages(grid)

        @cache
        def shapes(stage: int) -> State:
            if stage < 0:
                return jax.eval_shape(self._init, with_abstract_round(grid))
            return jax.eval_shape(
                stages[stage].begin, with_abstract_round(grid), shapes(stage - 1)
            )

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
                is_evaluated = bool(schedule.includes(number, stage.num_rounds))
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
        """Lists the programs of a grid: `init`, all stages, `assign` and `embed`.

        Args:
            grid: a grid. Its federations may consist of `jax.ShapeDtypeStruct`, because
                no value is read.

        Yields:
            Part: a program, to be traced and compiled for the devices.
        """
        grid = with_abstract_round(grid)
        yield Part("init", 1, partial(self._init.traced, grid))
        state = jax.eval_shape(self._init, grid)
        compiled = self._compiled_stages(grid)
        for stage, begin, _, advance in compiled:
            yield Part(f"{stage.name} begin", 1, partial(begin.traced, grid, state))
            state = jax.eval_shape(begin, grid, state)
            # Stages with the same round function share one program.
            sharing = [other.stage for other in compiled if other.advance is advance]
            names = ", ".join(x.name for x in sharing)
            times = [x.num_rounds for x in sharing]
            if stage is sharing[0] and any(times):
                yield Part(names, sum(times), partial(advance.traced, grid, state))
        yield Part("assign", 1, partial(self._assign.traced, grid, state))
        yield Part("embed", 1, partial(self._embed.traced, grid, state))

    def assign(self, grid: Grid, state: State) -> Int[Array, "G M N"] | Ragged:
        """Assigns the examples of a grid to clusters.

        Args:
            grid: the inputs of the runs. Their clients may be others than in training.
            state: the state of the runs, [G, ...].

        Returns:
            The cluster of every example, `Ragged` if the indices of the grid are.
        """
        return self._assign(grid, state)

    def embed(self, grid: Grid, state: State) -> Float[Array, "G M N D"] | Ragged:
        """Embeds the examples of a grid.

        Args:
            grid: the inputs of the runs. Their clients may be others than in training.
            state: the state of the runs, [G, ...].

        Returns:
            The embedding of every example, `Ragged` if the indices of the grid are.
        """
        return self._embed(grid, state)

    def communities(self, grid: Grid, state: State) -> Communities | None:
        """Returns the communities of the clients' clusters.

        Args:
            grid: the inputs of the runs.
            state: the state of the runs, [G, ...].

        Returns:
            The communities, [G, ...]; None for methods without communities.
        """
        if self._first(grid).communities is None:
            return None
        return self._communities(grid, state)

    def uploads(self, grid: Grid, state: State) -> Uploads | None:
        """Returns the last uploads of the clients.

        Args:
            grid: the inputs of the runs.
            state: the final state of the runs, [G, ...].

        Returns:
            The uploads, [G, ...]; None for methods without `uploads`.
        """
        if self._first(grid).uploads is None:
            return None
        return self._uploads(at_round(grid, "uploads"), state)

    def _first(self, grid: Grid) -> FederatedClustering:
        return self._build(jax.tree.map(lambda x: x[0], grid.hyper))

    def _compiled_stages(self, grid: Grid) -> list["_CompiledStage"]:
        if self._stages:
            return self._stages
        stages: list[_CompiledStage] = []
        for index, stage in enumerate(self._first(grid).stages):
            compiled = _compile_stage(self._build, self._spread, index, stage)
            for other in stages:
                if other.stage.round is stage.round and other.stage.done is stage.done:
                    compiled = compiled._replace(
                        is_done=other.is_done, advance=other.advance
                    )
            stages.append(compiled)
        self._stages = stages  # at once: an interrupted call must not leave a part
        return self._stages


def run(
    build: Build,
    grid: Grid,
    *,
    backend: Backend = "shard_map",
    start: Start = lambda _: None,
    on_round: Callable[[Round], None] = lambda _: None,
) -> State:
    """Runs all stages of a method on one grid, see `Program.run`.

    Args:
        build: builds the method from the hyper-parameters of one run.
        grid: the inputs of the runs.
        backend: the JAX transformation that spreads the runs over devices.
        start: returns the position and state to resume from.
        on_round: called after each round.

    Returns:
        The final state, [G, ...].
    """
    return Program(build, backend=backend).run(grid, start=start, on_round=on_round)


class _CompiledStage(NamedTuple):
    stage: Stage
    begin: Spread
    """(grid, state) -> state"""
    is_done: Spread
    """(grid, state) -> [G]"""
    advance: Spread
    """(grid, state) -> (state, metrics [G, ...] by name, is_done [G])"""


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
        check_state(stage.name, state, new)
        # A finished run keeps its state while other runs of the grid continue.
        state = jax.tree.map(lambda new, old: jnp.where(done, old, new), new, state)
        return state, metrics, stage.done(state)

    return _CompiledStage(
        stage,
        spread(begin, results=STATE),
        spread(is_done, results=SERVER),
        spread(advance, results=(STATE, SERVER, SERVER), donate=True),
    )


def check_state(name: str, before: State, after: State) -> None:
    """Checks that a round keeps the arrays of the state and their shapes.

    Otherwise the error would appear later, in another function of the method.

    Args:
        name: the name of the stage.
        before: the state before the round.
        after: the state after the round.

    Raises:
        ValueError: the states differ. The message names the stage and the array.

    Examples:
        >>> before, after = State(jnp.ones(3)), State(jnp.ones(4))
        >>> check_state("cluster", before, after)
        Traceback (most recent call last):
        ValueError: stage cluster: `round` changed state.server from shape (3,) to (4,)
    """
    left, right = (
        {f"state{jax.tree_util.keystr(path)}": jnp.shape(x) for path, x in leaves}
        for leaves in map(jax.tree_util.tree_leaves_with_path, (before, after))
    )
    if names := sorted(left.keys() ^ right.keys()):
        raise ValueError(
            f"stage {name}: the states before and after `round` need the same arrays, "
            f"but only one has {', '.join(names)}"
        )
    for path, shape in left.items():
        if right[path] != shape:
            raise ValueError(
                f"stage {name}: `round` changed {path} from shape {shape} to "
                f"{right[path]}"
            )


def check_runs(grid: Grid) -> None:
    """Checks that all parts of a grid have the same number of runs.

    Otherwise JAX would repeat the shorter parts or drop runs.

    Args:
        grid: the grid.

    Raises:
        ValueError: keys, federations and hyper-parameters have different lengths.
    """
    hyper, _ = jax.tree.flatten_with_path(grid.hyper)
    counts = {
        "keys": grid.keys.shape[:1],
        "federations": grid.federations.present.shape[:1],
        **{f"hyper{jax.tree_util.keystr(k)}": np.shape(x)[:1] for k, x in hyper},
    }
    if len(set(counts.values())) > 1 or () in counts.values():
        text = ", ".join(f"{k} of {v[0] if v else 'none'}" for k, v in counts.items())
        raise ValueError(
            f"all parts of a grid must have the same number of runs, got {text}"
        )


def with_abstract_round(grid: Grid) -> Grid:
    """Returns the grid with only the shapes of the round's number, for tracing.

    Args:
        grid: the inputs of the runs.

    Returns:
        The grid. Its `now` has three `jax.ShapeDtypeStruct` objects of shape [G].
    """
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
    """Returns the grid with the random keys and the number of one round.

    The keys depend only on the key of the run, the name of the stage and the number of
    the round. Methods with the same first state or the same stage therefore draw the
    same random numbers in it, so that ablations are paired.

    Args:
        grid: the inputs of the runs, with their own keys.
        name: the name of the stage; `init` for the first state.
        number: the number of the round in the stage, from 1; 0 for the beginning of the
            stage.
        earlier: the number of rounds of all previous stages.
        is_evaluated: whether the clusters are evaluated after the round.

    Returns:
        The grid of the round.
    """
    stage_round = max(number - 1, 0)
    now = (earlier + stage_round, stage_round, is_evaluated)
    position = np.array([crc32(name.encode()), number, *now], np.uint32)
    keys, now = _keys_and_round(grid.keys, position)
    federations = grid.federations._replace(now=now)
    return grid._replace(keys=keys, federations=federations)


@jax.jit  # only one small array per round is transferred to the devices
def _keys_and_round(keys, position):
    def fold(key):
        return jax.random.fold_in(jax.random.fold_in(key, position[0]), position[1])

    round, stage_round, is_evaluated = (jnp.full(len(keys), x) for x in position[2:])
    now = Now(round.astype(int), stage_round.astype(int), is_evaluated.astype(bool))
    return jax.vmap(fold)(keys), now
