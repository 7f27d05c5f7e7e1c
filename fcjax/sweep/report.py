"""What a session prints: what is in force, how far it is, and the table at the end."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fcjax import engine
from fcjax.data import placement
from fcjax.data.conversion import counted
from fcjax.evaluation import tables
from fcjax.runs import page
from fcjax.sweep.experiment import Experiment, short_name
from fcjax.sweep.folder import Results
from fcjax.sweep.plan import Group
from fcjax.sweep.progress import Progress
from fcjax.sweep.score import INTERNAL_SCORES


def conclude(results: Results, *, labelled: bool) -> None:
    """Prints mean and 95 % interval over seeds, beside the paper's figures, writes the
    table to files, and warns of the runs that failed. Without labels, where the sheets
    say more than any score, it also writes the page that shows them, unless there are
    no figures either."""
    rows = results.asked(results.rows)
    summary = summarize(
        rows,
        results.settings,
        labelled=labelled,
        reported=results.config.get("reported", ()),
    )
    tables.show(summary)
    tables.write(summary, results.directory)
    for row in rows:
        if row["status"] != "ok":
            point = ", ".join(f"{name} {row[name]}" for name in results.settings)
            print(f"warning: the run with {point}, seed {row['seed']} {row['status']}")
    if labelled:
        return
    print("silhouette and calinski_harabasz: higher is better; davies_bouldin: lower")
    if (results.directory / "figures").exists():
        try:
            page.main(page.Args(results.directory))
        except ValueError as error:  # the data has moved, or needs its --data-dir
            print(f"no page ({error}): fcjax page {results.directory} --help")


def summarize(
    rows: Sequence[Mapping[str, Any]],
    settings: Sequence[str],
    *,
    labelled: bool,
    reported: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Returns the table of some rows of results.csv, a line a setting; where clients
    fail in any of them, with who took part and the NMI of those that ever did.

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
        row["scope"] != "global" and row.get("global_acc") not in ("", None)
        for row in rows
    ):
        values = (*values, "global_acc")
    if reported:
        values = (*values, "initial_acc", *reported)
    if any(float(row["failure_rate"]) > 0 for row in rows):
        values = (*values, "participation", "surviving_nmi")
    paper = tables.paper_scores(rows, by=by, values=values)
    return tables.summarize(rows, by=by, values=values, paper=paper)


def conclude_all(results: Sequence[Results], *, folder: Path | None) -> None:
    """Prints one table of several experiments, and writes it into the folder above
    their own, if there is one."""
    settings = dict.fromkeys(name for one in results for name in one.settings)
    rows = [row for one in results for row in one.asked(one.rows)]
    # What one method sweeps, another may not have.
    rows = [{**dict.fromkeys(settings, ""), **row} for row in rows]
    reported = dict.fromkeys(
        name for one in results for name in one.config.get("reported", ())
    )
    summary = summarize(
        rows,
        list(settings),
        labelled=rows[0]["nmi"] != "",
        reported=list(reported),
    )
    tables.show(summary)
    if folder is not None:
        tables.write(summary, folder)


def print_header(experiment: Experiment) -> None:
    """Prints what is in force: data, devices, precision, padding, calls."""
    args, groups = experiment.args, experiment.groups
    partitions = [part for group in groups for part in group.partitions]
    dropped = [len(partition.left_out) for partition in partitions]
    device = jax.local_devices()[0]
    print(
        f"{groups[0].method.name} on {short_name(args.dataset)}: "
        f"{len(experiment.dataset.examples)} examples, "
        f"{counted(len(partitions), 'run')}\n"
        f"examples no client holds: {extremes(dropped)}\n"
        f"{jax.local_device_count()} x {device.device_kind} through {args.backend}, "
        f"{args.precision} matrix precision, JAX {jax.__version__}"
    )
    print(*experiment.notes, sep="\n")
    shown = ["clients", "clusters", *differing(groups)]
    for group in groups:
        slots = group.num_clients * group.num_slots
        padding = [1 - sum(map(len, p.clients)) / slots for p in group.partitions]
        print(
            *(f"{name} {group.points[0][name]}" for name in shown),
            f"{counted(len(group.points), 'run')}, {group.runs_per_call} a call",
            f"padding {np.mean(padding):.1%}",
            sep=", ",
            flush=True,
        )


def print_pace(num_runs: int, seconds: float) -> None:
    """Prints how fast the runs of a session were, and what memory they took."""
    print(
        f"{counted(num_runs, 'run')} in {seconds:.1f} s, "
        f"{3600 * num_runs / seconds:.0f} an hour; "
        f"at most {placement.readable(placement.peak_memory())} in use"
    )


def differing(groups: Sequence[Group]) -> list[str]:
    """Returns what each group has one value of, and another group has another."""
    first = groups[0].points[0]
    each = [{name: {p[name] for p in g.points} for name in first} for g in groups]
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
    grid's they are."""
    ended = 0

    def show(round: engine.Round, step: int, rows: list[Mapping[str, Any]]) -> None:
        nonlocal ended
        # Rounds of an earlier session, and of stages that ended early.
        progress.skip((step - ended - 1) * len(rows))
        ended = step
        metrics = {
            name: np.mean([float(row[name]) for row in rows if row[name] != ""])
            for name in ("loss", "nmi", "acc")
            if any(row[name] != "" for row in rows)
        }
        stage, number = round.stage, round.position.round
        label = f"{stage.name} round {number}/{stage.num_rounds}"
        label = ", ".join(filter(None, [label, place]))
        progress.show(label, len(rows), metrics, last=round.is_last)

    return show
