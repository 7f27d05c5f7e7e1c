"""Trains the runs of an experiment, with a cache of leading stages.

Runs with the same leading stages train these stages once. The stage cache stores:

    OUT/../stages/NAME/   for one run: its state after the stages (`Checkpoints`) and
                          its rounds, history.json

Three kinds of runs use the cache: runs of other methods with the same leading stages,
runs with other values of later settings, and runs of later commands. The folder may be
deleted at any time.
"""

import dataclasses
import itertools
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fcjax import engine
from fcjax.algorithms.rounds import evaluation_schedule
from fcjax.data import federation
from fcjax.data.dataset import counted
from fcjax.data.source import short_name
from fcjax.engine import Position, Round, ShapesOf, Start
from fcjax.federated import server
from fcjax.parallel.mesh import LocalPool, is_multiprocess, on_host
from fcjax.results import drawing, exported, store
from fcjax.results.environment import method_file
from fcjax.results.store import Point, Row, fingerprint
from fcjax.sweep import fit, plan, processes, report, score, sinks
from fcjax.sweep.checkpoints import Checkpoints
from fcjax.sweep.experiment import Experiment, configuration
from fcjax.sweep.outcome import (
    Embedding,
    Outcome,
    communities_of,
    embeddings_of,
    outcomes_of,
    sample_note,
)
from fcjax.sweep.plan import Batch
from fcjax.sweep.progress import Progress
from fcjax.sweep.score import round_off
from fcjax.types import Federation, Grid, State, Uploads

log = logging.getLogger("fcjax")

# --- Stage cache


class StageCache:
    """The cache of trained leading stages, for methods that share stages.

    Args:
        experiment: the experiment. The cache is next to its results folder.
    """

    def __init__(self, experiment: Experiment):
        self._experiment = experiment
        folder = experiment.folder.directory
        if experiment.task.options.shard is not None:
            folder = folder.parent
        self.folder = folder.parent / "stages"

    def start(self, batch: Batch) -> Start:
        """Returns the function that lets runs begin after their shared stages.

        It finds nothing unless the cache has the stages of all runs. Otherwise it also
        adds the rounds of these stages to the history.

        Args:
            batch: the runs of a call.

        Returns:
            The argument `start` of `Program.run`.
        """
        in_memory = self._experiment.folder.in_memory
        is_used = self._experiment.task.options.resume and not in_memory
        if batch.method.shared is None or not is_used:
            return lambda _: None
        return partial(self._start, batch, batch.method.shared.num_stages)

    def _start(
        self, batch: Batch, num_stages: int, shapes: ShapesOf
    ) -> tuple[Position, State] | None:
        if not self.folder.exists():
            return None
        structure = shapes(num_stages - 1)
        run_structure = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), structure
        )
        paths = self._paths(batch, structure)
        states, rows = [], []
        for point, path in zip(batch.points, paths, strict=True):
            # `restore` removes incomplete checkpoints, which another command may be
            # writing now.
            with processes.locked(self.folder / ".lock"):
                checkpoint = Checkpoints(path).restore(
                    lambda _: run_structure, is_run=True
                )
            history = path / "history.json"
            if checkpoint is None or not history.exists():
                return None
            states.append(checkpoint[1])
            first = dict.fromkeys(("stage_index", "round", "stage"))
            rows += [
                {**first, **point, **row} for row in json.loads(history.read_text())
            ]
        # The order in which a session writes them: by round, then by run.
        rows.sort(key=lambda row: (row["stage_index"], row["round"]))
        self._experiment.folder.add_rounds(rows)
        log.info(
            f"{counted(len(paths), 'run')}: leading stages loaded from the stage cache "
            f"{self.folder}"
        )
        state = jax.tree.map(lambda *xs: jnp.stack(xs), *states)
        return Position(num_stages, 0), state

    def write(self, batch: Batch, round: Round) -> None:
        """Writes runs to the cache if the last of their shared stages has just ended.

        Args:
            batch: the runs of a call.
            round: the round that has ended, already in the history of the runs.
        """
        shared, folder = batch.method.shared, self._experiment.folder
        if shared is None or not round.is_last or folder.in_memory:
            return
        if round.position.stage != shared.num_stages - 1:
            return
        state = on_host(round.state)
        paths = self._paths(batch, round.state)
        self.folder.mkdir(parents=True, exist_ok=True)
        for run, history in enumerate(folder.history_of(batch.points)):
            # Rows that were read from history.csv also have the columns of the later
            # stages. They are empty, and the newest row does not have them.
            newest = history[-1]
            rows = [
                {
                    name: value
                    for name, value in row.items()
                    if name not in batch.points[run]
                    and (value is not None or name in newest)
                }
                for row in history
            ]
            run_round = round._replace(
                state=jax.tree.map(lambda x, run=run: x[run], state)
            )
            # Another command may write the same run at the same time.
            with (
                processes.locked(self.folder / ".lock"),
                Checkpoints(paths[run]) as checkpoints,
            ):
                paths[run].mkdir(exist_ok=True)
                if processes.is_primary():
                    (paths[run] / "history.json").write_text(json.dumps(rows))
                checkpoints.save(run_round)

    def _paths(self, batch: Batch, state: State) -> list[Path]:
        """Returns the folder of each run, for a state of these shapes."""
        shapes = [
            (jax.tree_util.keystr(path), leaf.shape[1:], leaf.dtype.name)
            for path, leaf in jax.tree_util.tree_leaves_with_path(state)
        ]
        return [
            self.folder / fingerprint(self._settings(batch, point), shapes, self._data)
            for point in batch.points
        ]

    def _settings(self, batch: Batch, point: Point) -> list:
        """Returns all settings that decide the leading stages and their scores."""
        task, shared = self._experiment.task, batch.method.shared
        assert shared is not None
        stages = batch.method._replace(name=shared.name, settings={})
        names = (task.split.rule, "clients", "clusters", "failure_rate", "seed")
        return [
            configuration(task, stages, {}),
            [point[name] for name in names],
            plan.num_rounds(batch)[: shared.num_stages],
            {k: point.get(k, value) for k, value in shared.settings.items()},
        ]

    @cached_property
    def _data(self) -> str:
        """The digests of the data set, since the files of its path may change."""
        dataset = self._experiment.dataset
        arrays = (dataset.examples, dataset.labels, dataset.clients)
        arrays = [x for x in arrays if x is not None]
        return " ".join(map(store.digest, arrays))


def ordered_calls(batch: Batch) -> Iterator[Batch]:
    """Yields the runs of each call, in an order that makes use of the stage cache.

    Runs that differ only in settings of later stages have the same leading stages.
    Therefore the first value of these settings comes first. Its runs train the leading
    stages, and the other runs load them.

    Args:
        batch: all runs.

    Yields:
        Batch: the runs of a call, see `Batch.split`.
    """
    shared = batch.method.shared
    later = {
        name: values[0]
        for name, values in batch.traced.items()
        if shared is not None and name not in shared.settings
    }

    def trains_shared(point: Point) -> bool:
        return all(point[name] == value for name, value in later.items())

    for part in (trains_shared, lambda point: not trains_shared(point)):
        if any(map(part, batch.points)):
            yield from batch.keep(part).split()


# --- Training


def execute(experiment: Experiment, *, progress: bool = True) -> None:
    """Runs the pending runs of a grid, writes their results and logs the table.

    Messages go to the logger `fcjax`.

    Args:
        experiment: the grid.
        progress: whether to show a progress bar, or lines if there is no terminal.
    """
    folder = experiment.folder
    if folder.rows:
        log.info(
            f"reusing {counted(len(folder.rows), 'finished run')} in {folder.directory}"
        )
    method = type(experiment.task.method)
    if experiment.task.options.resume and not folder.in_memory:
        current = method_file(method)
        earlier = (x.get("method_file") for x in store.starts(folder.directory))
        if current and {*earlier} - {None, current["method_file"]}:
            log.warning(
                f"the file of the method has changed since the runs in "
                f"{folder.directory}; `resume=False` runs them again"
            )
    if experiment.batches:
        experiment = fit.with_measured_width(experiment)
        folder.begin()
        report.log_header(experiment)
        log.info(
            "progress: stage and round; loss, nmi and acc are means over the runs of a "
            "line; the time left is for all runs"
        )
        num_runs, start = len(folder.pending), time.perf_counter()
        precision = jax.default_matmul_precision(experiment.task.options.precision)
        recorded = nullcontext()
        if not folder.in_memory:
            recorded = store.record_environment(
                folder,
                experiment.dataset,
                method,
                data_dir=experiment.task.source.data_dir,
            )
        with recorded, precision:
            train(experiment, progress=progress)
        report.log_pace(num_runs, time.perf_counter() - start)
    if folder.saves:
        report.log_results(folder, experiment.dataset)
        report.log_files(folder.directory)
    elif folder.writes:
        report.log_findings(folder)


def train(experiment: Experiment, *, progress: bool) -> None:
    """Trains and scores the pending runs of a grid, batch by batch.

    If a call does not fit in memory, the batch continues with half as many runs per
    call.

    Args:
        experiment: the grid.
        progress: whether to show the progress.
    """
    folder = experiment.folder
    stages, compile_seconds = StageCache(experiment), listen_to_compiler()
    dataset = experiment.dataset
    kmeans = cache(partial(score.kmeans_baseline, dataset.examples, dataset.labels))
    total = sum(
        len(batch.points) * sum(plan.num_rounds(batch)) for batch in experiment.batches
    )
    with Progress(total, enabled=progress) as bar:
        for batch in experiment.batches:
            while batch.points:
                width = batch.runs_per_call
                try:
                    train_batch(experiment, batch, stages, kmeans, bar, compile_seconds)
                except jax.errors.JaxRuntimeError as error:
                    # With several processes, perhaps only one had too little memory.
                    # The others cannot know.
                    if (
                        not fit.is_out_of_memory(error)
                        or width == 1
                        or is_multiprocess()
                    ):
                        raise
                    half = width // 2
                    log.info(
                        f"out of memory with {width} runs at a time: trying {half}"
                    )
                    batch = batch._replace(runs_per_call=half)
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
    """Trains and scores the runs of a batch, call by call.

    Args:
        experiment: the grid.
        batch: the pending runs of one program.
        stages: the cache of leading stages.
        kmeans: (num_clusters) -> the k-means baseline.
        progress: shows the rounds.
        compile_seconds: the list of `listen_to_compiler`.
    """
    program, model = program_of(experiment, batch), None
    for part in ordered_calls(batch):
        compiled = sum(compile_seconds)
        call = Call(
            program,
            part,
            experiment.grid(part),
            experiment.left_out(part),
        )
        if model is None and isinstance(pool := call.grid.federations.pool, LocalPool):
            size = federation.readable(pool.local_bytes)
            log.info(f"memory: each process holds {size} of the data set")
        is_first = model is None and batch.method.scope == "global"
        if is_first and (note := sample_note(call.grid.federations)):
            log.info(note)
        state, last = run(experiment, call, stages, progress)
        compiled = round_off(sum(compile_seconds) - compiled)
        model = model or export_model(call, state)
        finish(experiment, call, kmeans, state, last, model, compile_seconds=compiled)


def program_of(experiment: Experiment, batch: Batch) -> engine.Program:
    """Returns the programs of a batch, compiled or to be compiled.

    Calls of `fit` on the same examples share them if only the seed, traced settings or
    the partition differ, so that only the first call compiles. A partition whose
    clients are padded to another size compiles again. Methods outside of fcjax share
    nothing: a notebook may have changed a function that they call.

    Args:
        experiment: the grid.
        batch: the pending runs of one program.

    Returns:
        The programs, perhaps of an earlier grid.
    """
    task, dataset = experiment.task, experiment.dataset
    build = batch._replace(points=(), partitions=(), present=()).build
    backend = task.options.backend
    fixed = {x: y for x, y in batch.method.settings.items() if x not in batch.traced}
    is_shared = (
        type(task.method).__module__.startswith("fcjax.")
        and all(isinstance(x, str | int | float | None) for x in fixed.values())
        # Examples on the host are a constant of the program.
        and not isinstance(experiment.pool, np.ndarray)
    )
    if not is_shared:
        return engine.Program(build, backend=backend)
    at_level = task.split.at(batch.points[0][task.split.rule])
    problem = dataclasses.replace(task, split=at_level).problem(
        dataset, batch.num_clients, batch.num_clusters
    )
    described = (
        *(type(task.method), batch.method.name, task.privacy),
        *(x for x in problem if x is not dataset),
        # The clients of the data decide the partition, which is an input.
        *store.digests(dataset._replace(clients=None)).items(),
        *(tuple(batch.traced), *fixed.items()),
    )
    return programs(Described(described, build), backend)


@dataclasses.dataclass(frozen=True)
class Described:
    """A builder and all that it builds from, but for the values of traced settings.

    Builders of methods of fcjax with the same description build the same algorithm.
    """

    description: tuple[Any, ...]
    build: engine.Build = dataclasses.field(compare=False)


@lru_cache(maxsize=8)
def programs(described: Described, backend: engine.Backend) -> engine.Program:
    """Returns the programs of a builder, and keeps the last eight with their data.

    Args:
        described: the builder.
        backend: the JAX transformation that spreads the runs over devices.

    Returns:
        The programs, the same for the same description.
    """
    return engine.Program(described.build, backend=backend)


class Call(NamedTuple):
    """The runs that are trained at the same time, and the program that trains them."""

    program: engine.Program
    batch: Batch
    grid: Grid
    left_out: Federation | None
    """The examples without a client, if the method can assign them."""

    def runs(self, state: State) -> list[Outcome]:
        """Returns the clusters of each run.

        Args:
            state: the state of all runs, [G, ...].

        Returns:
            One outcome per run.
        """
        return outcomes_of(
            self.program, self.batch.points, self.grid, self.left_out, state
        )


Last = tuple[list[Outcome], list[dict[str, float | int]]]
"""The clusters of each run after its last round, and their scores."""


def run(
    experiment: Experiment, call: Call, stages: StageCache, progress: Progress
) -> tuple[State, Last]:
    """Trains the runs of a call, and scores, writes, shows and logs every round.

    Args:
        experiment: the grid.
        call: the runs.
        stages: the cache of leading stages.
        progress: shows the rounds.

    Returns:
        The final state [G, ...], and the final clusters with their scores.
    """
    options, folder, batch = experiment.task.options, experiment.folder, call.batch
    labels, method = experiment.dataset.labels, batch.method
    interval = None if folder.in_memory else options.checkpoint_interval
    checkpoints = Checkpoints(folder.begin_runs(batch.points), interval=interval)
    before = [0, *itertools.accumulate(plan.num_rounds(batch))]
    place = folder.place_of(batch.points)
    show = report.progress_callback(progress, place, before[-1])
    names = {folder.log_name(point): point for point in batch.points}
    schedule = evaluation_schedule(options.evaluate_every, method.evaluate_every)
    clock, last, steps = time.perf_counter(), None, 0

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
        return checkpoints.resume(shapes) or stages.start(batch)(shapes)

    def on_round(round: engine.Round) -> None:
        nonlocal clock, last, steps
        stage, number = round.position
        steps = step = before[stage] + number
        is_end = round.is_last and stage == len(before) - 2
        scores: list[dict[str, float | int]] = [{}] * len(batch.points)
        if is_end:
            last = scored(round.state, score.SCORES)
            scores = last[1]
        elif round.is_evaluated:
            scores = scored(round.state, score.ROUND_SCORES)[1]
        now = time.perf_counter()
        seconds = round_off((now - clock) / len(batch.points))
        rows = rows_of(round, batch.points, scores, seconds)
        constant = ("stage", *batch.points[0])
        for log, row in zip(logs, rows, strict=True):
            log(step, {k: v for k, v in row.items() if k not in constant})
        folder.add_history(round.position, rows)
        stages.write(batch, round)
        show(round, step, rows)
        clock = now
        checkpoints.save(round)

    with (
        checkpoints,
        sinks.open_logs(
            options.log if folder.saves else (),
            *(folder.directory, names, folder.config),
            resume=options.resume,
        ) as logs,
    ):
        state = call.program.run(
            call.grid, start=start, schedule=schedule, on_round=on_round
        )
    progress.skip((before[-1] - steps) * len(batch.points), early=steps > 0)
    return state, last or scored(state, score.SCORES)


def rows_of(
    round: engine.Round,
    points: Sequence[Point],
    scores: Sequence[Mapping[str, float | int]],
    seconds: float,
) -> list[Row]:
    """Returns the rows of a round in history.csv, one per run.

    Args:
        round: the round.
        points: the swept values of each run.
        scores: the scores of each run; empty if the round was not evaluated.
        seconds: the wall time per run.

    Returns:
        One row per run.
    """
    metrics = metrics_of(round, len(points))
    return [
        {
            **{"stage": round.stage.name, **point, **metric},
            **score.history_cells(run_scores),
            "seconds": seconds,
        }
        for point, metric, run_scores in zip(points, metrics, scores, strict=True)
    ]


def metrics_of(round: engine.Round, num_runs: int) -> list[Row]:
    """Returns the metrics of each run in a round.

    Args:
        round: the round.
        num_runs: G.

    Returns:
        One dictionary per run. The metrics `up_*` and `down_*` are bytes, summed over
        the clients.
    """
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
    """Scores and stores finished runs, and draws the figures of the grid's first run.

    Args:
        experiment: the grid.
        call: the finished runs.
        kmeans: (num_clusters) -> the k-means baseline.
        state: the final state of the runs, [G, ...].
        last: the final clusters of the runs and their scores.
        model: the program of `export_model`.
        compile_seconds: the seconds that the call spent compiling.
    """
    task, folder, dataset = experiment.task, experiment.folder, experiment.dataset
    batch = call.batch
    communities = on_host(call.program.communities(call.grid, state))
    leaves = model and exported.select_weights(model, call.grid.hyper, state)
    leaves = on_host(leaves or {})
    keeps_uploads, uploads = task.options.keep_uploads, None
    if keeps_uploads:
        uploads = on_host(call.program.uploads(call.grid, state))
    embeddings = embeddings_of(call.program, call.grid, state)
    if not folder.writes:
        for _ in embeddings:  # every process must take part in the computation
            pass
        folder.add_rows(list(map(dict, batch.points)))
        return
    histories, rows, assignments = folder.history_of(batch.points), [], []
    each_community = communities_of(last[0], communities)
    each = zip(*last, each_community, embeddings, strict=True)
    for i, (run, scores, same, embedding) in enumerate(each):
        if same is not None:
            folder.add_communities(run.point, same)
        if keeps_uploads:
            folder.add_uploads(run.point, uploads_of_run(uploads, i))
        if task.options.plot and run.point == folder.first:
            row = {"method": batch.method.name, **run.point}
            row["dataset"] = short_name(task.source.dataset)
            drawing.figures_of_run(
                folder.directory / "figures",
                dataset,
                run.client_of_example,
                run.clusters,
                embedding.points,
                same,
                examples=embedding.examples,
                scope=batch.method.scope,
                title=drawing.figure_title([row], [*folder.settings, "seed"]),
            )
        # Embeddings of different local models cannot be compared.
        if model is None:
            embedding = None
        else:
            weights = {name: leaf[i] for name, leaf in leaves.items()}
            if task.privacy.epsilon:  # The mean of one example is this example.
                shape = batch.num_clusters, embedding.points.shape[1]
                centers = np.full(shape, np.nan)
            else:
                centers = centers_of(embedding, run, batch.num_clusters)
            folder.add_model(run.point, model, weights, centers, dataset.scaling)
        final = score.score_end(
            run,
            dataset.labels,
            batch.method.scope,
            scores,
            present=batch.present[i][: len(histories[i])],
            embedding=embedding,
            same=same,
        )
        if batch.method.scope == "global":
            final |= kmeans(num_clusters=batch.num_clusters).of_run(run)
        assignments.append(
            store.assignment_columns(run.client_of_example, run.clusters, same)
        )
        rows.append(
            score.result_row(
                task.source,
                batch,
                i,
                histories[i],
                final,
                num_examples=len(dataset.examples),
                compile_seconds=compile_seconds,
            )
        )
    names, rows_of_data = dataset.names, None
    # Names of files are no rows, and examples of `extra_split` have no names.
    if (
        names is not None
        and len(names) == len(assignments[0]["cluster"])
        and all(name.isdecimal() and len(name) < 19 for name in names.tolist())
    ):
        rows_of_data = names.astype(int)
    folder.add_assignments(batch.points, assignments, rows_of_data)
    folder.add_rows(rows)


def uploads_of_run(uploads: Uploads | None, run: int) -> Uploads:
    """Returns the last uploads of the clients of one run.

    Args:
        uploads: the uploads of all runs as NumPy arrays, [G, ...]; None for methods
            without uploads.
        run: the index of the run.

    Returns:
        The uploads of the run. Methods without uploads have no points.
    """
    if uploads is None:
        return Uploads(np.zeros((0, 0, 0), np.float32), np.zeros((0, 0), int))
    return Uploads(*(x[run] for x in uploads))


def export_model(call: Call, state: State) -> exported.Program | None:
    """Exports the program that embeds and assigns examples by the model of a run.

    Args:
        call: the runs.
        state: their state, [G, ...].

    Returns:
        The program; None if the clients have models of their own.
    """
    batch = call.batch
    if batch.method.scope != "global":
        return None
    runs = (call.grid.hyper, state)
    hyper, run_state = jax.eval_shape(partial(jax.tree.map, lambda x: x[0]), runs)
    return exported.export_model(
        batch.build,
        hyper,
        run_state,
        shape=call.grid.federations.pool.shape[1:],
        num_clusters=batch.num_clusters,
    )


def centers_of(embedding: Embedding, run: Outcome, num_clusters: int) -> np.ndarray:
    """Returns the cluster centers of a run, for the assignment of new examples.

    Args:
        embedding: the embedding of the run.
        run: the clusters of the run.
        num_clusters: K.

    Returns:
        The centers, [K, D].
    """
    known = ~np.isnan(embedding.points).any(axis=1)
    points, examples = embedding.points, embedding.examples
    if not known.all():
        points, examples = points[known], examples[known]
    return exported.cluster_centers(
        points, run.clusters[examples], num_clusters=num_clusters
    )


@cache
def listen_to_compiler() -> list[float]:
    """Starts to measure compile times.

    Returns:
        A list to which JAX adds the seconds of every compilation from now on. If the
        compilation cache has the program, they are the seconds of loading it.
    """
    seconds: list[float] = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            seconds.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return seconds


def enable_compilation_cache() -> None:
    """Enables JAX's persistent compilation cache, in the user's cache folder."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "fcjax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
