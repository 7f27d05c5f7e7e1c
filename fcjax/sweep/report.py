"""Lines that a command prints: the header, the progress, and the results at the end."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from fcjax import engine
from fcjax.data import federation
from fcjax.data.dataset import Dataset, counted
from fcjax.data.source import short_name
from fcjax.methods import Method
from fcjax.metrics.internal import INTERNAL_SCORES
from fcjax.parallel.mesh import all_devices, is_multiprocess
from fcjax.privacy.guarantee import spent
from fcjax.results import store, tables
from fcjax.results.results import Results
from fcjax.results.run import below_kmeans
from fcjax.results.store import Folder
from fcjax.settings import Default, as_tuple
from fcjax.sweep import plan
from fcjax.sweep.experiment import Experiment
from fcjax.sweep.plan import Batch
from fcjax.sweep.progress import Progress

log = logging.getLogger("fcjax")

BASELINE = "the k-means baseline (k-means on the raw examples)"
HELP = "docs/methods/which.md compares the methods by kind of data"

COLUMNS = {
    "p": "heterogeneity of the partition (0: random, 1: one class per client)",
    "alpha": "concentration of the Dirichlet partition (small: heterogeneous clients)",
    "nmi": "normalized mutual information with the classes (0 to 1, higher is better)",
    "acc": "accuracy with clusters matched to classes (0 to 1, higher is better)",
    "kappa": "acc corrected for chance, Cohen's kappa (-1 to 1, higher is better)",
    "global_acc": "acc with one matching for all clients (0 to 1, higher is better)",
    "initial_acc": "acc before the method's own rounds (0 to 1, higher is better)",
    "participation": "mean share of participating clients per round (0 to 1)",
    "surviving_nmi": "nmi over the clients that participated at least once",
    "silhouette": "separation of the clusters (-1 to 1, higher is better)",
    "davies_bouldin": "similarity of close clusters (0 or more, lower is better)",
    "calinski_harabasz": (
        "between-cluster over within-cluster variance (0 or more, higher is better)"
    ),
    "failed": "number of runs that collapsed or diverged; the means include them",
}
"""The meaning of the columns of the printed table, for its legend."""
SCOPES = {
    "global": "one clustering of all clients is scored",
    "client-pooled": "every client's clustering is scored, weighted by its examples",
    "client-mean": "every client's clustering is scored, all clients with equal weight",
}
"""The meaning of the values of the column `scope`."""
FILES = {
    "results.csv": "all scores, one row per run",
    "table.md": "the table above as a file",
    "table.tex": "the same for LaTeX",
    "figures": "learning curves, embedding, scores against each setting",
    "report.html": "HTML report, open it in a browser",
}
"""The files of a results folder that a command names at its end."""


def log_results(folder: Folder, dataset: Dataset | None = None) -> None:
    """Logs the results of a grid: the table, the failed runs and the baseline.

    The table has one row per setting, averaged over the seeds. It is also written to
    `table.md` and `table.tex`. The HTML report is written too, if there are figures.

    Args:
        folder: the results folder of the grid.
        dataset: the data set of the runs for the HTML report; None reads it again.
    """
    rows, directory = folder.requested(folder.rows), folder.directory
    summary = summarize(
        rows,
        folder.settings,
        labelled=any(row["nmi"] is not None for row in rows),
        reported=folder.config.get("reported", ()),
    )
    log_table(summary)
    budgets = spent(folder.rows)
    if budgets:
        log.info(budgets)
    tables.write(summary, directory, [budgets] if budgets else [])
    log_findings(folder)
    if (directory / "figures").exists():
        log.info("writing the HTML report; its map of the examples takes a while")
        try:
            finished = store.read(directory)
            finished.dataset = dataset
            run = Results([finished]).report(directory)
            log.info(
                f"HTML report shows the run {run.name}: {directory / 'report.html'}"
            )
        except ValueError as error:  # the data has moved, or needs its --data-dir
            log.info(
                f"HTML report: not written, because {error}; "
                f"write it with: fcjax report {directory}"
            )


def log_findings(folder: Folder) -> None:
    """Logs the failed runs, the baseline, the heterogeneity and skipped stages.

    Args:
        folder: the results of the grid, in a folder or in memory.
    """
    rows = folder.requested(folder.rows)
    for row in rows:
        if row["status"] != "ok":
            point = ", ".join(f"{name} {row[name]}" for name in folder.settings)
            log.warning(
                f"run {point}, seed {row['seed']} {row['status']} (docs/faq.md)"
            )
    for text in compare_with_kmeans(rows, folder.settings):
        line = text.removeprefix("warning: ")
        log.log(logging.INFO if line == text else logging.WARNING, line)
    if line := measured_heterogeneity(rows, folder.settings):
        log.info(line)
    points = [{name: row[name] for name in folder.names} for row in rows]
    runs = [{**folder.config, **row} for row in rows]
    if line := skipped_contrast(runs, folder.history_of(points)):
        log.warning(line)


def log_files(directory: Path) -> None:
    """Logs the results folder and the files in it to open next.

    Args:
        directory: the results folder.
    """
    log.info(f"results folder: {directory}")
    for name, content in FILES.items():
        if (directory / name).exists():
            log.info(f"open next: {directory / name} ({content})")


def log_table(table: pd.DataFrame) -> None:
    """Logs a table of `summarize` and the legend of its columns.

    Args:
        table: the table of texts, with one row per setting.
    """
    log.info("%s", tables.to_text(table))
    for name in table.columns:
        if name in COLUMNS:
            log.info(f"  {name}: {COLUMNS[name]}")
        elif name == "scope":
            for scope in dict.fromkeys(table["scope"]):
                log.info(f"  scope {scope}: {SCOPES[scope]}")
    log.info(
        "  scores: mean ± half-width of the 95 % confidence interval over the seeds; "
        "one or two seeds: the values themselves"
    )


def compare_with_kmeans(
    rows: Sequence[Mapping[str, Any]], settings: Sequence[str]
) -> list[str]:
    """Compares runs with the k-means baseline, setting by setting.

    Args:
        rows: rows of results.csv.
        settings: the columns that distinguish the settings of the grid.

    Returns:
        Up to two lines. The first is the NMI of the baseline, for data with labels. The
        second begins with "warning: " and names the settings below the baseline; for
        data without labels it compares silhouettes, see `below_kmeans`.
    """
    rows = [row for row in rows if row["status"] == "ok"]
    names = ("nmi", "kmeans_nmi", "kmeans_silhouette", "input_silhouette")
    if not rows:
        return []
    summary = tables.summarize(rows, by=settings, values=names)
    baselines, worse = [], []
    for line in summary.reset_index().to_dict("records"):
        scores = {x: y for x in names if not np.isnan(y := line.get(x, np.nan))}
        setting = ", ".join(f"{name} {line[name]:g}" for name in settings)
        if "kmeans_nmi" in scores:
            baselines.append(f"{scores['kmeans_nmi']:.3f}")
        if difference := below_kmeans(scores):
            worse.append(f"{setting} ({difference})")
    lines = []
    if baselines:
        lines.append(
            "baseline: k-means on the raw examples has NMI "
            f"{', '.join(dict.fromkeys(baselines))}"
        )
    if worse:
        likely = "" if baselines else "likely "
        lines.append(
            f"warning: scores {likely}below {BASELINE}: {'; '.join(worse)}; {HELP}"
        )
    return lines


def measured_heterogeneity(
    rows: Sequence[Mapping[str, Any]], settings: Sequence[str]
) -> str:
    """Describes the heterogeneity of the clients, measured on the clusters of the runs.

    Args:
        rows: rows of results.csv.
        settings: the columns that distinguish the settings of the grid.

    Returns:
        One line with the mean per setting; empty if the clients share no clusters. The
        measure is `fcjax.federated.kmeans.heterogeneity`.
    """
    rows = [row for row in rows if row.get("heterogeneity") is not None]
    if not rows:
        return ""
    summary = tables.summarize(rows, by=settings, values=["heterogeneity"])
    values = [
        f"{line['heterogeneity']:.2f}"
        + (f" at {', '.join(f'{x} {line[x]:g}' for x in settings)}" if settings else "")
        for line in summary.reset_index().to_dict("records")
    ]
    return (
        "heterogeneity of the clients, measured from the clusters: "
        f"{'; '.join(values)} (0: random partition, 1: no two clients share a cluster)"
    )


def skipped_contrast(
    runs: Sequence[Mapping[str, Any]], histories: Sequence[Sequence[Mapping[str, Any]]]
) -> str:
    """Describes the runs without cluster contrast, because their clients differ.

    CCFC and FedMCC's family end after federated k-means if the heterogeneity, as
    federated k-means measures it, is above the setting `max_heterogeneity`.

    Args:
        runs: settings and status of each run, by name.
        histories: the rows of history.csv of each run, in the order of training.

    Returns:
        One line for the grid; empty if no run skipped cluster contrast.
    """
    num_runs, skipped = 0, []
    for run, rounds in zip(runs, histories, strict=True):
        limit = run.get("max_heterogeneity")
        if limit is None or not run.get("cluster_rounds") or not rounds:
            continue
        num_runs += 1
        value = rounds[-1].get("heterogeneity")
        is_last = rounds[-1]["stage"] == "k-means" and run["status"] != "diverged"
        if is_last and value is not None and value > limit:
            skipped.append((value, limit))
    if not skipped:
        return ""
    values, limits = zip(*skipped, strict=True)
    ends = dict.fromkeys(f"{x:.2f}" for x in (min(values), max(values)))
    return (
        f"cluster contrast was skipped in {len(skipped)} of {counted(num_runs, 'run')}"
        f", because the measured heterogeneity ({' to '.join(ends)}) is above "
        f"{' or '.join(f'{x:g}' for x in sorted({*limits}))}: `cluster_rounds` had no "
        "effect there; see `max_heterogeneity`"
    )


def summarize(
    rows: Sequence[Mapping[str, Any]],
    settings: Sequence[str],
    *,
    labelled: bool,
    reported: Sequence[str] = (),
) -> pd.DataFrame:
    """Summarizes rows of results.csv in the table that a command prints.

    Args:
        rows: one per run.
        settings: the columns that distinguish the settings of the grid.
        labelled: whether the data set has labels; otherwise the table has internal
            scores, such as the silhouette.
        reported: further columns that the method reports, see `MethodSpec.reported`.

    Returns:
        One row per setting. If clients fail in a run, the table also has the
        participation and the NMI of the surviving clients.
    """
    by = ["method", "dataset", *settings, "scope"]
    values = ("nmi", "acc", "kappa") if labelled else INTERNAL_SCORES
    # For clients with clusterings of their own, one matching for all clients is another
    # question than one matching per client.
    if any(
        row["scope"] != "global" and row.get("global_acc") is not None for row in rows
    ):
        values = (*values, "global_acc")
    if reported:
        values = (*values, "initial_acc", *reported)
    if any(row["failure_rate"] > 0 for row in rows):
        values = (*values, "participation", "surviving_nmi")
    summary = tables.summarize(rows, by=by, values=values)
    table = tables.format_summary(summary)
    frame = pd.DataFrame([{"status": "ok", **row} for row in rows])
    groups = frame.groupby(by, sort=False, dropna=False)["status"]
    failed = groups.agg(lambda status: (status != "ok").sum()).to_numpy()
    if failed.any():
        table["failed"] = failed
    return table


def log_all_results(folders: Sequence[Folder], *, out: Path | None) -> None:
    """Logs one table of the results of several methods.

    Args:
        folders: the results folder of each method.
        out: the folder above them, where the table is written; None writes nothing.
    """
    settings = dict.fromkeys(name for folder in folders for name in folder.settings)
    rows = [row for folder in folders for row in folder.requested(folder.rows)]
    # One method may sweep a setting that another method does not have.
    rows = [{**dict.fromkeys(settings), **row} for row in rows]
    reported = dict.fromkeys(
        name for folder in folders for name in folder.config.get("reported", ())
    )
    summary = summarize(
        rows,
        list(settings),
        labelled=rows[0]["nmi"] is not None,
        reported=list(reported),
    )
    log.info(f"all {len(folders)} methods:")
    log_table(summary)
    budgets = spent([row for folder in folders for row in folder.rows])
    if budgets:
        log.info(budgets)
    for folder in folders:
        log.info(f"results folder: {folder.directory}")
    if out is not None:
        tables.write(summary, out, [budgets] if budgets else [])
        log.info(f"open next: {out / 'table.md'} (the table above)")


def log_header(experiment: Experiment) -> None:
    """Logs the experiment before it runs: data set, devices, settings and batches.

    Args:
        experiment: the prepared experiment, with its pending runs.
    """
    task, options = experiment.task, experiment.task.options
    batches = experiment.batches
    if not batches:
        log.info(f"experiment: all runs are finished\n{experiment.dataset.describe()}")
        return
    partitions = [part for batch in batches for part in batch.partitions]
    num_left_out = [len(partition.left_out) for partition in partitions]
    devices, processes = all_devices(), ""
    if is_multiprocess():
        processes = f" in {jax.process_count()} processes"
    log.info(
        f"experiment: {batches[0].method.name} on {short_name(task.source.dataset)}, "
        f"{counted(len(partitions), 'run')} to do\n"
        f"{experiment.dataset.describe()}\n"
        f"examples without a client: {value_range(num_left_out)} per run\n"
        f"devices: {len(devices)} x {devices[0].device_kind}{processes}, "
        f"backend {options.backend}, matrix precision {options.precision}, "
        f"JAX {jax.__version__}"
    )
    chosen = chosen_settings(task.method, batches[0].method.settings)
    if chosen:
        text = ", ".join(f"{name} {value}" for name, value in chosen.items())
        log.info(
            f"settings that you did not give, from the preset and the data: {text}"
        )
    for note in experiment.notes:
        log.info(note)
    for line in (*experiment.warnings, *warnings_of(batches)):
        log.warning(line)
    names = ["clients", "clusters", *varying_settings(batches)]
    for batch in batches:
        total = plan.padded_size(batch)
        padding = [1 - sum(map(len, p.clients)) / total for p in batch.partitions]
        parts = [
            *(f"{name} {batch.points[0][name]}" for name in names),
            f"{counted(len(batch.points), 'run')} ({batch.runs_per_call} at a time)",
            plan.budget(batch),
            f"padding {np.mean(padding):.1%} of the clients' arrays"
            + (
                f" in {len(batch.classes.padded_sizes)} size classes"
                if batch.classes
                else ""
            ),
        ]
        log.info(f"compiled program: {', '.join(parts)}")


def warnings_of(batches: Sequence[Batch]) -> list[str]:
    """Returns the methods' warnings about the partitions, see `MethodSpec.warning`.

    Args:
        batches: the pending runs.

    Returns:
        One line per different warning.
    """
    lines = {
        batch.method.warning(
            batch.points[0],
            [list(map(len, partition.clients)) for partition in batch.partitions],
        ): None
        for batch in batches
        if batch.method.warning is not None
    }
    return list(filter(None, lines))


def log_pace(num_runs: int, seconds: float) -> None:
    """Logs how long the runs of a session took, and their peak memory.

    Args:
        num_runs: the number of runs.
        seconds: the wall time of all of them.
    """
    log.info(
        f"finished {counted(num_runs, 'run')} in {seconds:.1f} s "
        f"({3600 * num_runs / seconds:.0f} runs/hour), "
        f"peak memory {federation.readable(federation.peak_memory())}"
    )


def chosen_settings(method: Method, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that were chosen by a preset or from the data.

    Args:
        method: the method as the user gave it.
        settings: the resolved settings of its runs.

    Returns:
        The settings that the user did not give and that differ from the default of the
        method, with their first value.
    """
    chosen = {}
    for name, value in settings.items():
        setting = as_tuple(getattr(method, name, value))
        is_open = setting in ((), (None,)) or isinstance(setting, Default)
        if is_open and as_tuple(value) != setting:
            chosen[name] = as_tuple(value)[0]
    return chosen


def varying_settings(batches: Sequence[Batch]) -> list[str]:
    """Returns the settings that are constant in every batch but vary between batches.

    Args:
        batches: the batches of an experiment, at least one.

    Returns:
        The names of the settings, without the numbers of clients and clusters.
    """
    first = batches[0].points[0]
    each = [{name: {p[name] for p in b.points} for name in first} for b in batches]
    return [
        name
        for name in first
        if name not in ("clients", "clusters")
        and all(len(values[name]) == 1 for values in each)
        and any(values[name] != each[0][name] for values in each)
    ]


def value_range(values: Sequence[int]) -> str:
    """Returns the range of whole numbers as text.

    Args:
        values: the numbers, at least one.

    Returns:
        "3" if all numbers are 3, otherwise "MINIMUM to MAXIMUM".
    """
    return " to ".join(map(str, sorted({min(values), max(values)})))


def progress_callback(
    progress: Progress, place: str, num_rounds: int
) -> Callable[[engine.Round, int, list], None]:
    """Returns the function that shows the rounds of a call.

    Args:
        progress: shows the lines.
        place: the runs of the call within the grid, such as "runs 1 to 4 of 15".
        num_rounds: number of rounds over all stages, if none ends early.

    Returns:
        (round, step, rows) -> None, with the number of rounds over all stages and the
        rows of history.csv, one per run. The shown metrics are means over the runs.
    """
    last_step = 0

    def show(round: engine.Round, step: int, rows: list[Mapping[str, Any]]) -> None:
        nonlocal last_step
        # Rounds of an earlier session, and of stages that ended early, take no time.
        progress.skip((step - last_step - 1) * len(rows), early=last_step > 0)
        rest = (num_rounds - step) * len(rows)
        last_step = step
        metrics = {
            name: np.mean([row[name] for row in rows if row[name] is not None])
            for name in ("loss", "nmi", "acc")
            if any(row[name] is not None for row in rows)
        }
        stage, number = round.stage, round.position.round
        label = f"{stage.name} round {number}/{stage.num_rounds}"
        label = ", ".join(filter(None, [label, place]))
        progress.show(label, len(rows), metrics, last=round.is_last, rest=rest)

    return show
