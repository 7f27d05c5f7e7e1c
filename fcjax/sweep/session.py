"""One session of a script: trains what is pending, scores every round, reports."""

import itertools
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fcjax import engine, server
from fcjax.data import Dataset
from fcjax.runs import draw
from fcjax.sweep import communities, frozen, plan, report, score, sinks, stages
from fcjax.sweep.experiment import Experiment
from fcjax.sweep.plan import Call, Group
from fcjax.sweep.progress import Progress
from fcjax.sweep.run import clusters_of, embedding_of, holder
from fcjax.sweep.score import round_off
from fcjax.sweep.states import Checkpoints


def execute(experiment: Experiment) -> None:
    """Runs what is pending, writes the results and prints the table."""
    results = experiment.results
    if results.rows:
        print(f"reusing {len(results.rows)} finished runs of {results.directory}")
    if experiment.groups:
        enable_compilation_cache()
        results.begin()
        report.print_header(experiment)
        num_runs, start = len(results.pending), time.perf_counter()
        with jax.default_matmul_precision(experiment.args.precision):
            train(experiment)
        report.print_pace(num_runs, time.perf_counter() - start)
    report.conclude(results, labelled=experiment.dataset.labels is not None)
    print(f"results in {results.directory}")


def train(experiment: Experiment) -> None:
    """Trains and scores the pending runs of the grid, group by group."""
    args, results = experiment.args, experiment.results
    compile_seconds, kept = listen_to_compiler(), stages.Kept(experiment)
    total = sum(
        len(group.points) * sum(plan.num_rounds(group)) for group in experiment.groups
    )
    with Progress(total) as progress:
        for group in experiment.groups:
            while group.points:
                most = group.runs_per_call
                try:
                    train_group(experiment, group, kept, progress, compile_seconds)
                except jax.errors.JaxRuntimeError as error:
                    if "RESOURCE_EXHAUSTED" not in str(error) or most == 1:
                        raise
                    print(f"out of memory with {most} runs a call: now {most // 2}")
                    group = group._replace(runs_per_call=most // 2)
                group = plan.keep(group, results.is_pending)
    if args.plot:
        draw.grid_figures(
            results.directory / "figures",
            results.asked(results.rows),
            results.asked(results.history),
            by=results.settings,
            start=results.config.get("start_stage", ""),
            reported=results.config.get("reported", ()),
        )


def train_group(
    experiment: Experiment,
    group: Group,
    kept: stages.Kept,
    progress: Progress,
    compile_seconds: Sequence[float],
) -> None:
    """Runs a group, call by call."""
    program, model = engine.Program(group.build, backend=experiment.args.backend), None
    for call in stages.calls(group, experiment.pool):
        compiled = sum(compile_seconds)
        state = run_call(experiment, call, program, kept, progress)
        compiled = round_off(sum(compile_seconds) - compiled)
        model = model or freeze(call, state)
        finish(experiment, call, program, state, model, compile_seconds=compiled)


def run_call(
    experiment: Experiment,
    call: Call,
    program: engine.Program,
    kept: stages.Kept,
    progress: Progress,
) -> Any:
    """Returns the state [G, ...] in which the runs of a call end."""
    args, results = experiment.args, experiment.results
    checkpoints = Checkpoints(
        results.begin_call(call.points), interval=args.checkpoint_interval
    )
    show = report.shower(progress, results.place_of(call.points))
    runs = {results.log_name(point): point for point in call.points}
    with sinks.open_logs(
        args.log, results.directory, runs, results.config, resume=args.resume
    ) as logs:
        return program.run(
            call.grid,
            on_round=recorder(experiment, call, program, kept, show, logs),
            checkpoints=checkpoints,
            start=kept.start(call),
        )


def recorder(
    experiment: Experiment,
    call: Call,
    program: engine.Program,
    kept: stages.Kept,
    show: Callable[[engine.Round, int, list], None],
    logs: Sequence[sinks.Log],
) -> Callable[[engine.Round], None]:
    """Returns what is done after each round of a call: score, write, show, log."""
    args, results = experiment.args, experiment.results
    starts = list(itertools.accumulate(plan.num_rounds(call.group), initial=0))
    clock = time.perf_counter()

    def on_round(round: engine.Round) -> None:
        nonlocal clock
        number = round.position.round
        step = starts[round.position.stage] + number
        evaluated = round.is_last or number % args.evaluate_every == 0
        clusters = clusters_of(program, call, round.state) if evaluated else None
        now = time.perf_counter()
        metrics = {
            name: server.total_bytes(x) if name.startswith(("up_", "down_")) else x
            for name, x in round.metrics.items()
        }
        rows = []
        for run, point in enumerate(call.points):
            values = {name: each[run].item() for name, each in metrics.items()}
            cluster = None if clusters is None else clusters[run]
            values |= score.score_round(cluster, experiment.dataset, call, run)
            values["seconds"] = round_off((now - clock) / len(call.points))
            rows.append({"stage": round.stage.name, **point, **values})
            if args.log:
                logs[run](step, values)
        results.add_history(round.position, rows)
        kept.write(call, round)
        show(round, step, rows)
        clock = now

    return on_round


def finish(
    experiment: Experiment,
    call: Call,
    program: engine.Program,
    state: Any,
    model: frozen.Program | None,
    *,
    compile_seconds: float,
) -> None:
    """Scores and keeps the runs of a call that has ended, and draws the grid's first.

    Args:
        experiment: whose runs they are.
        call: the runs.
        program: what ran them.
        state: where they ended, [G, ...].
        model: of `freeze`.
        compile_seconds: of the call.
    """
    args, dataset, results = experiment.args, experiment.dataset, experiment.results
    clusters = clusters_of(program, call, state)
    holders = [holder(part, len(clusters[0].of_examples)) for part in call.partitions]
    histories = results.history_of(call.points)
    same = communities.of_runs(call, clusters, program.communities(call.grid, state))
    rows = []
    for run, (point, found) in enumerate(zip(call.points, same, strict=True)):
        embedding = embedding_of(program, call, state, run)
        shown = clusters[run].of_examples
        if found is not None:
            communities.write(results.communities_path(point), found)
        if args.plot and point == results.first:
            folder = results.directory / "figures"
            if model is None:
                shown = draw.matched_by_client(dataset, holders[run], shown)
            draw.run_figures(folder, dataset, holders[run], shown, embedding, found)
        if model is None:  # every client has an embedding of its own: none to compare
            embedding = None
        else:
            path = results.model_path(point)
            keep_model(path, model, dataset, call, state, run, shown, embedding)
        scores = score.score_run(
            dataset,
            call,
            run,
            clusters[run],
            embedding,
            num_rounds=len(histories[run]),
            same=found,
        )
        rows.append(
            score.result_row(
                args,
                dataset,
                call,
                run,
                histories[run],
                scores,
                compile_seconds=compile_seconds,
            )
        )
    results.add_assignments(
        call.points,
        *communities.assignments(holders, [x.of_examples for x in clusters], same),
    )
    results.add_rows(rows)


def freeze(call: Call, state: Any) -> frozen.Program | None:
    """Exports how the models of the call's group embed and assign; None where clients
    have models of their own."""
    group = call.group
    if group.method.scope != "global":
        return None
    runs = (call.grid.hyper, state)
    hyper, one = jax.eval_shape(partial(jax.tree.map, lambda x: x[0]), runs)
    return frozen.freeze(
        group.build,
        hyper,
        one,
        shape=call.grid.federations.pool.shape[1:],
        num_clusters=group.num_clusters,
    )


def keep_model(
    path: Path,
    model: frozen.Program,
    dataset: Dataset,
    call: Call,
    state: Any,
    run: int,
    clusters: np.ndarray,
    embedding: np.ndarray,
) -> None:
    """Writes the run's global model, for examples that come later."""
    leaves = frozen.pick(model, call.grid.hyper, state)
    weights = {name: np.asarray(leaf[run]) for name, leaf in leaves.items()}
    held = ~np.isnan(embedding).any(axis=1)
    centers = frozen.cluster_centers(
        embedding[held], clusters[held], num_clusters=call.group.num_clusters
    )
    frozen.write(path, model, weights, centers, dataset.scaling)


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
