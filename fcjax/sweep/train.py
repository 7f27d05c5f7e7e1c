"""Trains the runs of an experiment, with a cache of leading stages.

Runs that share their leading stages train them once. The cache keeps the end of them:

    OUT/../stages/NAME/   one run: its state after the stages (`checkpoints.States`) and
                          its rounds, history.json

Other methods with the same leading stages, other values of later settings, and later
commands find these entries. They may be deleted at any time.
"""

import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, cached_property, partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcjax import engine
from fcjax.algorithms.rounds import scored_rounds
from fcjax.data import federation
from fcjax.data.source import short_name
from fcjax.engine import Position, Round, ShapesOf, Start
from fcjax.federated import server
from fcjax.parallel.mesh import LocalPool, are_several, on_host
from fcjax.results import drawing, exported, store
from fcjax.results.store import Point, Row, fingerprint
from fcjax.sweep import fit, plan, processes, report, score, sinks
from fcjax.sweep.checkpoints import States
from fcjax.sweep.experiment import Experiment, configuration
from fcjax.sweep.outcome import Outcome, communities_of, embeddings_of, outcomes_of
from fcjax.sweep.plan import Batch
from fcjax.sweep.progress import Progress
from fcjax.sweep.score import round_off
from fcjax.types import Federation, Grid, State

log = logging.getLogger("fcjax")

# --- Stage cache


class StageCache:
    """The leading stages of an experiment's runs, where their method shares them.

    Args:
        experiment: whose results folder lies beside them.
    """

    def __init__(self, experiment: Experiment):
        self._experiment = experiment
        folder = experiment.folder.directory
        if experiment.task.options.shard is not None:
            folder = folder.parent
        self.folder = folder.parent / "stages"

    def start(self, batch: Batch) -> Start:
        """Returns what lets runs begin after the stages that they share, if all of them
        are there: their rounds are added to the history.
        """
        in_memory = self._experiment.folder.in_memory
        is_asked = self._experiment.task.options.resume and not in_memory
        if batch.method.shared is None or not is_asked:
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
        log.info(
            f"{len(places)} runs go on from stages that were trained before "
            f"({self.folder})"
        )
        state = jax.tree.map(lambda *xs: jnp.stack(xs), *states)
        return Position(num_stages, 0), state

    def write(self, batch: Batch, round: Round) -> None:
        """Keeps the runs if the last of the stages they share has just ended and its
        round is in their history.
        """
        shared, folder = batch.method.shared, self._experiment.folder
        if shared is None or not round.is_last or folder.in_memory:
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
            with processes.locked(self.folder / ".lock"), States(places[run]) as states:
                places[run].mkdir(exist_ok=True)
                if processes.is_primary():
                    (places[run] / "history.json").write_text(json.dumps(rows))
                states.save(own)

    def _places(self, batch: Batch, state: State) -> list[Path]:
        """Where each of the runs is kept that end in a state of such shapes."""
        shapes = [
            (jax.tree_util.keystr(path), leaf.shape[1:], leaf.dtype.name)
            for path, leaf in jax.tree_util.tree_leaves_with_path(state)
        ]
        return [
            self.folder / fingerprint(self._deciding(batch, point), shapes, self._data)
            for point in batch.points
        ]

    def _deciding(self, batch: Batch, point: Point) -> list:
        """All flags that the leading stages of a run, and their scores, depend on."""
        task, shared = self._experiment.task, batch.method.shared
        assert shared is not None
        alone = batch.method._replace(name=shared.name, settings={})
        names = (task.split.rule, "clients", "clusters", "failure_rate", "seed")
        return [
            configuration(task, alone, {}),
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
        return " ".join(map(store.digest, each))


def in_turn(batch: Batch) -> Iterator[Batch]:
    """Yields the runs that go side by side as `Batch.split`, but where the method
    shares stages first those that have the first value of whatever later stages alone
    depend on: the others then find what those have trained.
    """
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


# --- Training


def execute(experiment: Experiment, *, progress: bool = True) -> None:
    """Runs what is pending, writes the results and logs the table. What it says goes to
    the logger `fcjax`.

    Args:
        experiment: what is run.
        progress: show a bar, or a line now and then where there is no terminal.
    """
    folder = experiment.folder
    if folder.rows:
        log.info(f"reusing {len(folder.rows)} finished runs of {folder.directory}")
    if experiment.batches:
        experiment = fit.widened(experiment)
        folder.begin()
        report.say_header(experiment)
        num_runs, start = len(folder.pending), time.perf_counter()
        precision = jax.default_matmul_precision(experiment.task.options.precision)
        recorded = nullcontext()
        if not folder.in_memory:
            recorded = store.record_environment(
                folder, experiment.dataset, data_dir=experiment.task.source.data_dir
            )
        with recorded, precision:
            train(experiment, progress=progress)
        report.say_pace(num_runs, time.perf_counter() - start)
    if folder.saves:
        folder.dataset = experiment.dataset
        report.conclude(folder, labelled=experiment.dataset.labels is not None)
        log.info(f"results in {folder.directory}")


def train(experiment: Experiment, *, progress: bool) -> None:
    """Trains and scores the pending runs of the grid, batch by batch."""
    folder = experiment.folder
    stages, compile_seconds = StageCache(experiment), listen_to_compiler()
    dataset = experiment.dataset
    kmeans = cache(partial(score.kmeans_baseline, dataset.examples, dataset.labels))
    total = sum(
        len(batch.points) * sum(plan.num_rounds(batch)) for batch in experiment.batches
    )
    with Progress(total, shown=progress) as shown:
        for batch in experiment.batches:
            while batch.points:
                most = batch.side_by_side
                try:
                    train_batch(
                        experiment, batch, stages, kmeans, shown, compile_seconds
                    )
                except jax.errors.JaxRuntimeError as error:
                    # Of several processes one may have been short of memory.
                    if not fit.is_too_large(error) or most == 1 or are_several():
                        raise
                    log.info(f"out of memory with {most} runs a call: now {most // 2}")
                    batch = batch._replace(side_by_side=most // 2)
                batch = batch.keep(folder.is_pending)
    if experiment.task.options.plot and folder.saves:
        drawing.figures_of_grid(folder, folder.directory / "figures")


def train_batch(
    experiment: Experiment,
    batch: Batch,
    stages: StageCache,
    kmeans: Callable[..., score.Baseline],
    progress: Progress,
    compile_seconds: Sequence[float],
) -> None:
    """Trains a batch, as many runs at a time as go side by side."""
    program, model = (
        engine.Program(batch.build, backend=experiment.task.options.backend),
        None,
    )
    for part in in_turn(batch):
        compiled = sum(compile_seconds)
        call = Call(
            program,
            part,
            experiment.grid(part),
            experiment.left_out(part),
        )
        if model is None and isinstance(pool := call.grid.federations.pool, LocalPool):
            held = federation.readable(pool.bytes_here)
            log.info(f"{held} of the examples in each process")
        state, last = run(experiment, call, stages, progress)
        compiled = round_off(sum(compile_seconds) - compiled)
        model = model or export_model(call, state)
        finish(experiment, call, kmeans, state, last, model, compile_seconds=compiled)


class Call(NamedTuple):
    """Runs that go side by side, with what runs them."""

    program: engine.Program
    batch: Batch
    grid: Grid
    left_out: Federation | None

    def runs(self, state: State) -> list[Outcome]:
        return outcomes_of(
            self.program, self.batch.points, self.grid, self.left_out, state
        )


Last = tuple[list[Outcome], list[dict[str, float | int]]]
"""What each run has found in its last round, and its scores."""


def run(
    experiment: Experiment, call: Call, stages: StageCache, progress: Progress
) -> tuple[State, Last]:
    """Trains runs side by side; after each round it scores, writes, shows, logs.

    Returns:
        The state [G, ...] in which they end, and what they have found by then.
    """
    options, folder, batch = experiment.task.options, experiment.folder, call.batch
    labels, method = experiment.dataset.labels, batch.method
    interval = None if folder.in_memory else options.checkpoint_interval
    states = States(folder.begin_runs(batch.points), interval=interval)
    show = report.shower(progress, folder.place_of(batch.points))
    before = [0, *itertools.accumulate(plan.num_rounds(batch))]
    names = {folder.log_name(point): point for point in batch.points}
    schedule = scored_rounds(options.evaluate_every, method.evaluate_every)
    clock, last = time.perf_counter(), None

    def scored(state: State, names: Sequence[str]) -> Last:
        runs = call.runs(state)
        if not folder.writes:
            return runs, [{}] * len(runs)
        number = batch.num_clusters
        return runs, [
            score.score_round(
                run, labels, method.scope, num_clusters=number, names=names
            )
            for run in runs
        ]

    def start(shapes: engine.ShapesOf) -> tuple[engine.Position, State] | None:
        return states.go_on(shapes) or stages.start(batch)(shapes)

    def on_round(round: engine.Round) -> None:
        nonlocal clock, last
        stage, number = round.position
        step = before[stage] + number
        is_end = round.is_last and stage == len(before) - 2
        found: list[dict[str, float | int]] = [{}] * len(batch.points)
        if is_end:
            last = scored(round.state, score.SCORES)
            found = last[1]
        elif round.is_evaluated:
            found = scored(round.state, score.ROUND_SCORES)[1]
        now = time.perf_counter()
        seconds = round_off((now - clock) / len(batch.points))
        rows = rows_of(round, batch.points, found, seconds)
        own = ("stage", *batch.points[0])
        for log, row in zip(logs, rows, strict=True):
            log(step, {k: v for k, v in row.items() if k not in own})
        folder.add_history(round.position, rows)
        stages.write(batch, round)
        show(round, step, rows)
        clock = now
        states.save(round)

    with (
        states,
        sinks.open_logs(
            options.log if folder.saves else (),
            *(folder.directory, names, folder.config),
            resume=options.resume,
        ) as logs,
    ):
        state = call.program.run(
            call.grid, start=start, schedule=schedule, on_round=on_round
        )
    return state, last or scored(state, score.SCORES)


def rows_of(
    round: engine.Round,
    points: Sequence[Point],
    scores: Sequence[Mapping[str, float | int]],
    seconds: float,
) -> list[Row]:
    """Returns the rows of a round in history.csv, one per run."""
    metrics = metrics_of(round, len(points))
    return [
        {
            **{"stage": round.stage.name, **point, **measured},
            **score.cells(found),
            "seconds": seconds,
        }
        for point, measured, found in zip(points, metrics, scores, strict=True)
    ]


def metrics_of(round: engine.Round, num_runs: int) -> list[Row]:
    """Returns the metrics of each run, with the bytes that crossed in all."""
    each = {
        name: server.total_bytes(x) if name.startswith(("up_", "down_")) else x
        for name, x in round.metrics.items()
    }
    return [{k: x[run].item() for k, x in each.items()} for run in range(num_runs)]


def finish(
    experiment: Experiment,
    call: Call,
    kmeans: Callable[..., score.Baseline],
    state: State,
    last: Last,
    model: exported.Program | None,
    *,
    compile_seconds: float,
) -> None:
    """Scores and keeps runs that have ended, and draws the grid's first.

    Args:
        experiment: whose runs they are.
        call: the runs.
        kmeans: (num_clusters) -> what stands beside them.
        state: where they ended, [G, ...].
        last: what they have found.
        model: of `export_model`.
        compile_seconds: of the call.
    """
    task, folder, dataset = experiment.task, experiment.folder, experiment.dataset
    batch, found = call.batch, on_host(call.program.communities(call.grid, state))
    leaves = model and exported.select_weights(model, call.grid.hyper, state)
    leaves = on_host(leaves or {})
    embeddings = embeddings_of(call.program, call.grid, state)
    if not folder.writes:
        for _ in embeddings:  # all take part in it
            pass
        folder.add_rows(list(map(dict, batch.points)))
        return
    histories, rows, assigned = folder.history_of(batch.points), [], []
    communities = communities_of(last[0], found)
    each = zip(*last, communities, embeddings, strict=True)
    for i, (run, scores, same, embedding) in enumerate(each):
        if same is not None:
            folder.add_communities(run.point, same)
        if task.options.plot and run.point == folder.first:
            row = {"method": batch.method.name, **run.point}
            row["dataset"] = short_name(task.source.dataset)
            drawing.figures_of_run(
                folder.directory / "figures",
                dataset,
                run.holders,
                run.clusters,
                embedding,
                same,
                scope=batch.method.scope,
                title=drawing.figure_title([row], [*folder.settings, "seed"]),
            )
        if model is None:  # every client has an embedding of its own: none to compare
            embedding = None
        else:
            weights = {name: leaf[i] for name, leaf in leaves.items()}
            centers = centers_of(embedding, run, batch.num_clusters)
            folder.add_model(run.point, model, weights, centers, dataset.scaling)
        ended = score.score_end(
            run,
            dataset.labels,
            batch.method.scope,
            scores,
            present=batch.present[i][: len(histories[i])],
            embedding=embedding,
            same=same,
        )
        if batch.method.scope == "global":
            ended |= kmeans(num_clusters=batch.num_clusters).of_run(run)
        assigned.append(store.assignment_columns(run.holders, run.clusters, same))
        rows.append(
            score.result_row(
                task.source,
                batch,
                i,
                histories[i],
                ended,
                num_examples=len(dataset.examples),
                compile_seconds=compile_seconds,
            )
        )
    folder.add_assignments(batch.points, assigned)
    folder.add_rows(rows)


def export_model(call: Call, state: State) -> exported.Program | None:
    """Exports how the models of the runs embed and assign; None where clients have
    models of their own.
    """
    batch = call.batch
    if batch.method.scope != "global":
        return None
    runs = (call.grid.hyper, state)
    hyper, one = jax.eval_shape(partial(jax.tree.map, lambda x: x[0]), runs)
    return exported.export_model(
        batch.build,
        hyper,
        one,
        shape=call.grid.federations.pool.shape[1:],
        num_clusters=batch.num_clusters,
    )


def centers_of(embedding: np.ndarray, run: Outcome, num_clusters: int) -> np.ndarray:
    """Returns where the clusters of a run lie, for examples that come later."""
    held = ~np.isnan(embedding).any(axis=1)
    return exported.cluster_centers(
        embedding[held], run.clusters[held], num_clusters=num_clusters
    )


@cache
def listen_to_compiler() -> list[float]:
    """Returns the list that grows by the seconds of every compilation; a program found
    in the cache counts what loading it takes.
    """
    seconds: list[float] = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            seconds.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return seconds


def enable_compilation_cache() -> None:
    """Keeps compiled programs over processes, in the user's cache folder."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "fcjax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
