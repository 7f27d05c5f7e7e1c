"""One session of a script: trains what is pending, scores every round, reports."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fcjax import engine, evaluation, server
from fcjax.backends import over_runs
from fcjax.checkpoints import Checkpoints
from fcjax.data import Partition
from fcjax.engine import Build
from fcjax.evaluation import figures, tables
from fcjax.experiment import Experiment

SCORES = ("acc", "nmi", "kappa", "ari", "ami")


def execute(experiment: Experiment) -> None:
    """Runs what is pending, writes the results and prints the table."""
    results = experiment.results
    if results.rows:
        print(f"reusing {len(results.rows)} finished runs of {results.directory}")
    if results.pending:
        enable_compilation_cache()
        results.begin()
        print_header(experiment)
        with jax.default_matmul_precision(experiment.args.precision):
            train(experiment)
    show_table(experiment)
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
            row |= score_round(cluster, experiment, run)
            row["seconds"] = round_off((now - clock) / len(points))
            rows.append(row)
        results.add_history(round.position, rows)
        if round.is_last or now - printed > 5:
            print(progress(round, rows), flush=True)
            printed = now
        clock = now

    state = engine.run(
        build,
        experiment.grid,
        backend=args.backend,
        on_round=on_round,
        checkpoints=Checkpoints(results.checkpoints, interval=args.checkpoint_interval),
    )
    clusters = clusters_of(state)
    num_examples = clusters.shape[1]
    holders = [holder(part, num_examples) for part in experiment.partitions]
    if args.plot:
        draw(experiment, build, state, clusters[0])
    results.add_assignments(points, np.stack(holders), clusters)
    results.add_rows(
        result_row(experiment, run, clusters[run], round_off(sum(compile_seconds)))
        for run in range(len(points))
    )


def clusterer(build: Build, experiment: Experiment) -> Callable[[Any], np.ndarray]:
    """Returns a function from the grid's state to the cluster [G, P] of every example,
    -1 where the method gives it none."""
    grid, left_out = experiment.grid, experiment.left_out
    num_examples = len(experiment.dataset.examples)

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


def score_round(
    clusters: np.ndarray | None, experiment: Experiment, run: int
) -> dict[str, Any]:
    """The scores of one run's round; empty cells where it was not evaluated."""
    names = ("acc", "nmi", "kappa", "occupied_clusters", "largest_share")
    if clusters is None:
        return dict.fromkeys(names, "")
    found = evaluation.collapse(
        clusters[clusters >= 0], num_clusters=experiment.num_clusters
    )
    values = {**score(clusters, experiment, run), **found}
    return {name: round_off(values[name]) if name in values else "" for name in names}


def score(clusters: np.ndarray, experiment: Experiment, run: int) -> dict[str, float]:
    """Scores one run: over all examples, or the mean of its clients' own scores."""
    labels = experiment.dataset.labels
    if labels is None:
        return {}
    if experiment.method.scope == "global":
        counted = clusters >= 0
        return evaluation.scores(labels[counted], clusters[counted])
    federations = experiment.grid.federations
    rows = np.asarray(federations.indices[run])
    mask = np.asarray(federations.mask[run])
    each = evaluation.per_client(labels[rows], clusters[rows], mask)
    return evaluation.client_mean(each, mask)


def result_row(
    experiment: Experiment, run: int, clusters: np.ndarray, compile_seconds: float
) -> dict[str, Any]:
    """One row of results.csv: the last round's scores, and the best NMI beside them."""
    args, results = experiment.args, experiment.results
    point, partition = results.pending[run], experiment.partitions[run]
    history = results.history_of(point)
    scores = score(clusters, experiment, run)
    nmi = [float(row["nmi"]) for row in history if row["nmi"] != ""]
    return {
        "method": experiment.method.name,
        "dataset": args.dataset,
        "samples": len(clusters),
        "left_out": len(partition.left_out),
        "clients": args.clients,
        "clusters": experiment.num_clusters,
        **point,
        "scope": experiment.method.scope,
        **{name: round_off(scores[name]) if scores else "" for name in SCORES},
        "best_nmi": max(nmi, default=""),
        "rounds": len(history),
        "status": status(history, experiment.num_clusters),
        "seconds": round_off(sum(float(row["seconds"]) for row in history)),
        "compile_seconds": compile_seconds,
    }


def status(history: list[dict[str, Any]], num_clusters: int) -> str:
    """ok, collapsed, or diverged with the round in which the loss stopped being one."""
    for row in history:
        if not np.isfinite(float(row["loss"])):
            return f"diverged in round {row['round']} of {row['stage']}"
    last = {
        name: float(history[-1][name])
        for name in ("occupied_clusters", "largest_share", "embedding_spread")
    }
    return evaluation.status(last, num_clusters=num_clusters)


def holder(partition: Partition, num_examples: int) -> np.ndarray:
    """Which client holds each example [P]; -1 where none does."""
    holders = np.full(num_examples, -1)
    for client, rows in enumerate(partition.clients):
        holders[rows] = client
    return holders


def draw(
    experiment: Experiment, build: Build, state: Any, clusters: np.ndarray
) -> None:
    """Draws the learning curves of all runs and the embedding of the first pending."""
    results, labels = experiment.results, experiment.dataset.labels
    folder = results.directory / "figures"
    folder.mkdir(exist_ok=True)
    history = results.asked(results.history)
    curves = folder / "learning_curves.png"
    figures.learning_curves(history, curves, by=results.settings)

    def embed(hyper, key, federation, state):
        del key
        return build(hyper).embed(state, federation)

    first = jax.tree.map(lambda x: x[:1], state)
    grid, pool = experiment.grid, experiment.grid.federations.pool
    federations = jax.tree.map(lambda x: x[:1], grid.federations._replace(pool=None))
    grid = grid._replace(
        hyper=jax.tree.map(lambda x: x[:1], grid.hyper),
        keys=grid.keys[:1],
        federations=federations._replace(pool=pool),
    )
    embedding = np.asarray(over_runs(embed, experiment.args.backend)(grid, first))[0]
    mask = np.asarray(federations.mask[0])
    if not np.isfinite(embedding).all():
        return
    rows = np.asarray(federations.indices[0])[mask]
    figures.tsne(
        embedding[mask],
        None if labels is None else labels[rows],
        np.nonzero(mask)[0],
        folder / "embedding.png",
        assignments=clusters[rows],
    )


def show_table(experiment: Experiment) -> None:
    """Prints mean and 95 % interval over seeds, beside the paper's figures."""
    args, results = experiment.args, experiment.results
    rows = results.asked(results.rows)
    by = ["method", "dataset", *results.settings, "scope"]
    paper = {}
    if args.limit is None and args.split == "all" and args.clients == 10:
        for row in rows:
            scores = experiment.method.paper.get(float(row.get("p", "nan")))
            if scores and float(row["failure_rate"]) == 0:
                paper[tables.setting_of(row, by)] = scores
    summary = tables.summarize(rows, by=by, values=("nmi", "acc", "kappa"), paper=paper)
    tables.show(summary)
    for row in rows:
        if row["status"] != "ok":
            point = ", ".join(f"{name} {row[name]}" for name in results.names)
            print(f"warning: the run with {point} {row['status']}")


def print_header(experiment: Experiment) -> None:
    """Prints what is in force: data, devices, precision, padding."""
    args, mask = experiment.args, experiment.grid.federations.mask
    dropped = {len(partition.left_out) for partition in experiment.partitions}
    device = jax.devices()[0]
    print(
        f"{experiment.method.name} on {args.dataset}: "
        f"{len(experiment.dataset.examples)} examples, {args.clients} clients, "
        f"{experiment.num_clusters} clusters, {len(experiment.partitions)} runs\n"
        f"examples no client holds: {' to '.join(map(str, span(dropped)))}; "
        f"padding: {1 - float(mask.mean()):.1%} of the slots\n"
        f"{jax.device_count()} x {device.device_kind} through {args.backend}, "
        f"{args.precision} matrix precision, JAX {jax.__version__}",
        flush=True,
    )


def span(values: set[int]) -> list[int]:
    return sorted({min(values), max(values)})


def progress(round: engine.Round, rows: list[Mapping[str, Any]]) -> str:
    """One line on a round: the mean over the runs of the grid."""
    shown = {
        name: np.mean([float(row[name]) for row in rows if row[name] != ""])
        for name in ("loss", "nmi", "acc")
        if any(row[name] != "" for row in rows)
    }
    values = ", ".join(f"{name} {value:.3f}" for name, value in shown.items())
    stage = round.stage
    return f"{stage.name} round {round.position.round}/{stage.num_rounds}: {values}"


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


def round_off(value: float) -> float:
    return round(float(value), 6)
