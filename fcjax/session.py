"""One session of a script: trains what is pending, scores every round, reports."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fcjax import draw, engine, frozen, report, scoring, server
from fcjax.backends import Grid, over_runs
from fcjax.checkpoints import Checkpoints
from fcjax.data import Partition
from fcjax.engine import Build
from fcjax.experiment import Experiment
from fcjax.scoring import round_off


def execute(experiment: Experiment) -> None:
    """Runs what is pending, writes the results and prints the table."""
    results = experiment.results
    if results.rows:
        print(f"reusing {len(results.rows)} finished runs of {results.directory}")
    if results.pending:
        enable_compilation_cache()
        results.begin()
        report.print_header(experiment)
        with jax.default_matmul_precision(experiment.args.precision):
            train(experiment)
    report.show_table(experiment)
    print(f"results in {results.directory}")


def train(experiment: Experiment) -> None:
    """Trains and scores the pending runs of the grid."""
    args, method, results = experiment.args, experiment.method, experiment.results
    points = results.pending

    def build(hyper):
        return method.build({**method.settings, **hyper})

    clusters_of = clusterer(build, experiment)
    compile_seconds = listen_to_compiler()
    clock = printed = time.perf_counter()

    def on_round(round: engine.Round) -> None:
        nonlocal clock, printed
        number = round.position.round
        evaluated = round.is_last or number % args.evaluate_every == 0
        clusters = clusters_of(round.state) if evaluated else None
        now = time.perf_counter()
        rows = []
        for run, point in enumerate(points):
            row = {"stage": round.stage.name, **point}
            for name, value in round.metrics.items():
                if name.startswith(("up_", "down_")):
                    value = server.total_bytes(value)
                row[name] = value[run].item()
            cluster = None if clusters is None else clusters[run]
            row |= scoring.score_round(cluster, experiment, run)
            row["seconds"] = round_off((now - clock) / len(points))
            rows.append(row)
        results.add_history(round.position, rows)
        if round.is_last or now - printed > 5:
            print(report.progress(round, rows), flush=True)
            printed = now
        clock = now

    state = engine.run(
        build,
        experiment.grid,
        backend=args.backend,
        on_round=on_round,
        checkpoints=Checkpoints(results.checkpoints, interval=args.checkpoint_interval),
    )
    finish(
        build, experiment, state, clusters_of(state), round_off(sum(compile_seconds))
    )


def finish(
    build: Build,
    experiment: Experiment,
    state: Any,
    clusters: np.ndarray,
    compile_seconds: float,
) -> None:
    """Scores and keeps the runs that have ended, and draws the first of them.

    Args:
        build: makes a run's method.
        experiment: whose runs they are.
        state: of the grid, [G, ...].
        clusters: [G, P].
        compile_seconds: of the grid.
    """
    args, results = experiment.args, experiment.results
    holders = [holder(part, clusters.shape[1]) for part in experiment.partitions]
    rows = []
    for run, embedding in enumerate(embeddings(build, experiment, state)):
        if run == 0 and args.plot:
            draw.run_figures(
                results.directory / "figures",
                experiment.dataset,
                holders[run],
                clusters[run],
                embedding,
            )
        if experiment.method.scope == "global":
            keep_model(build, experiment, state, run, clusters[run], embedding)
        else:  # every client has an embedding of its own: nothing to compare them in
            embedding = None
        rows.append(
            scoring.result_row(
                experiment, run, clusters[run], embedding, compile_seconds
            )
        )
    results.add_assignments(results.pending, np.stack(holders), clusters)
    results.add_rows(rows)
    if args.plot:
        draw.grid_figures(
            results.directory / "figures",
            results.asked(results.rows),
            results.asked(results.history),
            by=results.settings,
        )


def clusterer(build: Build, experiment: Experiment) -> Callable[[Any], np.ndarray]:
    """Returns a function from the grid's state to the cluster [G, P] of every example,
    -1 where the method gives it none."""
    grid, left_out = experiment.grid, experiment.left_out
    num_examples = grid.federations.pool.shape[0]

    def assign(hyper, key, federation, state):
        del key
        return build(hyper).assign(state, federation)

    compiled = over_runs(assign, experiment.args.backend)

    def clusters_of(state) -> np.ndarray:
        clusters = np.full((len(grid.keys), num_examples), -1)
        for part in (grid.federations, left_out):
            if part is None:
                continue
            found = np.asarray(compiled(grid._replace(federations=part), state))
            rows, mask = np.asarray(part.indices), np.asarray(part.mask)
            for run in range(len(clusters)):
                clusters[run, rows[run][mask[run]]] = found[run][mask[run]]
        return clusters

    return clusters_of


def embeddings(build: Build, experiment: Experiment, state: Any) -> Iterator:
    """Yields each run's embedding [P, D] in turn; NaN where no client holds a row."""

    def embed(hyper, key, federation, state):
        del key
        return build(hyper).embed(state, federation)

    compiled = over_runs(embed, experiment.args.backend)
    num_examples = experiment.grid.federations.pool.shape[0]
    for run in range(len(experiment.partitions)):
        grid = run_of(experiment.grid, run)
        z = np.asarray(compiled(grid, one_of(state, run)))[0]
        rows = np.asarray(grid.federations.indices)[0]
        mask = np.asarray(grid.federations.mask)[0]
        embedding = np.full((num_examples, z.shape[-1]), np.nan, np.float32)
        embedding[rows[mask]] = z[mask]
        yield embedding


def keep_model(
    build: Build,
    experiment: Experiment,
    state: Any,
    run: int,
    clusters: np.ndarray,
    embedding: np.ndarray,
) -> None:
    """Writes the run's global model, for examples that come later."""
    grid, results = experiment.grid, experiment.results
    if run == 0:
        hyper, one = jax.eval_shape(
            lambda grid: jax.tree.map(lambda x: x[0], grid), (grid.hyper, state)
        )
        program = frozen.freeze(
            build,
            hyper,
            one,
            shape=grid.federations.pool.shape[1:],
            num_clusters=experiment.num_clusters,
        )
    else:  # exporting takes seconds where writing weights does not
        program = frozen.read_program(results.model_path(results.pending[0]))
    leaves = frozen.pick(program, grid.hyper, state)
    weights = {name: np.asarray(leaf[run]) for name, leaf in leaves.items()}
    held = ~np.isnan(embedding).any(axis=1)
    centers = frozen.cluster_centers(
        embedding[held], clusters[held], num_clusters=experiment.num_clusters
    )
    path = results.model_path(results.pending[run])
    frozen.write(path, program, weights, centers, experiment.dataset.scaling)


def run_of(grid: Grid, run: int) -> Grid:
    """Returns the grid of one run; the pool stays whole."""
    pool = grid.federations.pool
    grid = grid._replace(federations=grid.federations._replace(pool=None))  # pyright: ignore[reportArgumentType]
    grid = one_of(grid, run)
    return grid._replace(federations=grid.federations._replace(pool=pool))


def one_of(tree: Any, run: int) -> Any:
    return jax.tree.map(lambda x: x[run : run + 1], tree)


def holder(partition: Partition, num_examples: int) -> np.ndarray:
    """Which client holds each example [P]; -1 where none does."""
    holders = np.full(num_examples, -1)
    for client, rows in enumerate(partition.clients):
        holders[rows] = client
    return holders


def listen_to_compiler() -> list[float]:
    """Returns a list that grows by the seconds of every compilation from now on; a
    program found in the cache counts what loading it takes."""
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
