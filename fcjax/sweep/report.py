"""What a session says: what is in force, how far it is, and the table at the end."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from fcjax import engine
from fcjax.data import federation
from fcjax.data.dataset import counted
from fcjax.data.source import short_name
from fcjax.methods import Method
from fcjax.parallel.mesh import all_devices, are_several
from fcjax.results import store, tables
from fcjax.results.results import Results
from fcjax.results.run import INTERNAL_SCORES, below_kmeans
from fcjax.results.store import Folder
from fcjax.settings import Default, as_tuple
from fcjax.sweep import plan
from fcjax.sweep.experiment import Experiment
from fcjax.sweep.plan import Batch
from fcjax.sweep.progress import Progress

log = logging.getLogger("fcjax")

HELP = "docs/methods/which.md has which method does better on which data"


def conclude(folder: Folder, *, labelled: bool) -> None:
    """Says mean and 95 % interval over seeds, beside the paper's figures, writes the
    table to files, and warns of the runs that failed. It also writes the HTML report,
    unless there are no figures.
    """
    rows, directory = folder.requested(folder.rows), folder.directory
    summary = summarize(
        rows,
        folder.settings,
        labelled=labelled,
        reported=folder.config.get("reported", ()),
    )
    log.info("%s", tables.to_text(summary))
    tables.write(summary, directory)
    for row in rows:
        if row["status"] != "ok":
            point = ", ".join(f"{name} {row[name]}" for name in folder.settings)
            log.warning(f"the run with {point}, seed {row['seed']} {row['status']}")
    for text in compare_with_kmeans(rows, folder.settings):
        line = text.removeprefix("warning: ")
        log.log(logging.INFO if line == text else logging.WARNING, line)
    if line := unlikeness(rows, folder.settings):
        log.info(line)
    if not labelled:
        log.info(
            "silhouette and calinski_harabasz: higher is better; davies_bouldin: lower"
        )
    if (directory / "figures").exists():
        try:
            finished = store.read(directory)
            if labelled:  # the report need not read the data a second time
                finished.dataset = folder.dataset
            run = Results([finished]).report(directory)
            log.info(f"report of the run {run.name}: {directory / 'report.html'}")
        except ValueError as error:  # the data has moved, or needs its --data-dir
            log.info(f"no report ({error}): fcjax report {directory} --help")


def compare_with_kmeans(
    rows: Sequence[Mapping[str, Any]], settings: Sequence[str]
) -> list[str]:
    """Returns what k-means of the examples as they are has, where there are labels, and
    a warning of the settings that are below it, or likely are: see `beside`.
    """
    rows = [row for row in rows if row["status"] == "ok"]
    names = ("nmi", "kmeans_nmi", "kmeans_silhouette", "input_silhouette")
    if not rows:
        return []
    summary = tables.summarize(rows, by=settings, values=names)
    found, worse = [], []
    for line in summary.reset_index().to_dict("records"):
        own = {name: x for name in names if not np.isnan(x := line.get(name, np.nan))}
        told = ", ".join(f"{name} {line[name]:g}" for name in settings)
        if "kmeans_nmi" in own:
            found.append(f"{own['kmeans_nmi']:.3f}")
        if by := below_kmeans(own):
            worse.append(f"{told} ({by})")
    what = "k-means of the examples as they are"
    said = []
    if found:
        said.append(f"{what}: NMI {' '.join(dict.fromkeys(found))}")
    if worse:
        likely = "" if found else "likely "
        said.append(f"warning: {likely}below {what}: {'; '.join(worse)}; {HELP}")
    return said


def unlikeness(rows: Sequence[Mapping[str, Any]], settings: Sequence[str]) -> str:
    """Returns a sentence on the measured heterogeneity of the clients, "" if the
    clusters are no common ones.
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
        f"heterogeneity of the clients by these clusters: {'; '.join(values)} "
        "(0: like a random partition, 1: as unlike as possible)"
    )


def summarize(
    rows: Sequence[Mapping[str, Any]],
    settings: Sequence[str],
    *,
    labelled: bool,
    reported: Sequence[str] = (),
) -> pd.DataFrame:
    """Returns the table of some rows of results.csv, one row per setting; where clients
    fail in any of them, with the participation and the NMI of the surviving clients.

    Args:
        rows: one a run.
        settings: what tells the lines apart.
        labelled: whether the data has classes.
        reported: what methods report beside their scores.
    """
    by = ["method", "dataset", *settings, "scope"]
    values = ("nmi", "acc", "kappa") if labelled else INTERNAL_SCORES
    # Of clients on their own, one match for all is another question.
    if any(
        row["scope"] != "global" and row.get("global_acc") is not None for row in rows
    ):
        values = (*values, "global_acc")
    if reported:
        values = (*values, "initial_acc", *reported)
    if any(row["failure_rate"] > 0 for row in rows):
        values = (*values, "participation", "surviving_nmi")
    return tables.format_summary(tables.summarize(rows, by=by, values=values))


def conclude_all(folders: Sequence[Folder], *, out: Path | None) -> None:
    """Says one table of several experiments, and writes it into the folder above
    their own, if there is one.
    """
    settings = dict.fromkeys(name for one in folders for name in one.settings)
    rows = [row for one in folders for row in one.requested(one.rows)]
    # What one method sweeps, another may not have.
    rows = [{**dict.fromkeys(settings), **row} for row in rows]
    reported = dict.fromkeys(
        name for one in folders for name in one.config.get("reported", ())
    )
    summary = summarize(
        rows,
        list(settings),
        labelled=rows[0]["nmi"] is not None,
        reported=list(reported),
    )
    log.info("%s", tables.to_text(summary))
    if out is not None:
        tables.write(summary, out)


def say_header(experiment: Experiment) -> None:
    """Says what is in force: data, devices, precision, padding, calls."""
    task, options = experiment.task, experiment.task.options
    batches = experiment.batches
    partitions = [part for batch in batches for part in batch.partitions]
    dropped = [len(partition.left_out) for partition in partitions]
    devices, others = all_devices(), ""
    if are_several():
        others = f" of {jax.process_count()} processes"
    log.info(
        f"{batches[0].method.name} on {short_name(task.source.dataset)}: "
        f"{len(experiment.dataset.examples)} examples, "
        f"{counted(len(partitions), 'run')}\n"
        f"examples no client holds: {extremes(dropped)}\n"
        f"{len(devices)} x {devices[0].device_kind}{others} through {options.backend}, "
        f"{options.precision} matrix precision, JAX {jax.__version__}"
    )
    chosen = chosen_of(task.method, batches[0].method.settings)
    if chosen:
        told = ", ".join(f"{name} {value}" for name, value in chosen.items())
        log.info(f"chosen: {told}")
    for note in experiment.notes:
        log.info(note)
    shown = ["clients", "clusters", *differing(batches)]
    for batch in batches:
        slots = plan.padded_size(batch)
        padding = [1 - sum(map(len, p.clients)) / slots for p in batch.partitions]
        told = [
            *(f"{name} {batch.points[0][name]}" for name in shown),
            f"{counted(len(batch.points), 'run')}, {batch.side_by_side} a call",
            plan.budget(batch),
            f"padding {np.mean(padding):.1%}"
            + (f" in {len(batch.classes.slots)} size classes" if batch.classes else ""),
        ]
        log.info(", ".join(told))


def say_pace(num_runs: int, seconds: float) -> None:
    """Says how fast the runs of a session were, and what memory they took."""
    log.info(
        f"{counted(num_runs, 'run')} in {seconds:.1f} s, "
        f"{3600 * num_runs / seconds:.0f} an hour; "
        f"at most {federation.readable(federation.peak_memory())} in use"
    )


def chosen_of(method: Method, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that presets or the data have chosen: they were not given,
    and differ from the method's default.
    """
    found = {}
    for name, value in settings.items():
        given = as_tuple(getattr(method, name, value))
        is_open = given in ((), (None,)) or isinstance(given, Default)
        if is_open and as_tuple(value) != given:
            found[name] = as_tuple(value)[0]
    return found


def differing(batches: Sequence[Batch]) -> list[str]:
    """Returns what each batch has one value of, and another batch has another."""
    first = batches[0].points[0]
    each = [{name: {p[name] for p in b.points} for name in first} for b in batches]
    return [
        name
        for name in first
        if name not in ("clients", "clusters")
        and all(len(values[name]) == 1 for values in each)
        and any(values[name] != each[0][name] for values in each)
    ]


def extremes(values: Sequence[int]) -> str:
    return " to ".join(map(str, sorted({min(values), max(values)})))


def shower(progress: Progress, place: str) -> Callable[[engine.Round, int, list], None]:
    """Returns what shows each round of a call: the mean over its runs, and which of the
    grid's they are.
    """
    ended = 0

    def show(round: engine.Round, step: int, rows: list[Mapping[str, Any]]) -> None:
        nonlocal ended
        # Rounds of an earlier session, and of stages that ended early.
        progress.skip((step - ended - 1) * len(rows))
        ended = step
        metrics = {
            name: np.mean([row[name] for row in rows if row[name] is not None])
            for name in ("loss", "nmi", "acc")
            if any(row[name] is not None for row in rows)
        }
        stage, number = round.stage, round.position.round
        label = f"{stage.name} round {number}/{stage.num_rounds}"
        label = ", ".join(filter(None, [label, place]))
        progress.show(label, len(rows), metrics, last=round.is_last)

    return show
