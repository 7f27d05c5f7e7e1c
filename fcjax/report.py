"""What a session prints: what is in force, how far it is, and the table at the end."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fcjax import engine
from fcjax.evaluation import tables
from fcjax.experiment import Experiment, short_name
from fcjax.scoring import INTERNAL_SCORES


def show_table(experiment: Experiment) -> None:
    """Prints mean and 95 % interval over seeds, beside the paper's figures."""
    results = experiment.results
    rows = results.asked(results.rows)
    by = ["method", "dataset", *results.settings, "scope"]
    paper = paper_scores(experiment, rows, by)
    labelled = experiment.dataset.labels is not None
    values = ("nmi", "acc", "kappa") if labelled else INTERNAL_SCORES
    summary = tables.summarize(rows, by=by, values=values, paper=paper)
    tables.show(summary)
    for row in rows:
        if row["status"] != "ok":
            point = ", ".join(f"{name} {row[name]}" for name in results.names)
            print(f"warning: the run with {point} {row['status']}")


def paper_scores(
    experiment: Experiment, rows: list[dict[str, Any]], by: list[str]
) -> dict[tuple, Mapping[str, float]]:
    """Returns the paper's scores of the settings of these rows that it reports."""
    args = experiment.args
    if args.limit is not None or args.split != "all" or args.clients != 10:
        return {}
    known = {}
    for row in rows:
        scores = experiment.method.paper.get(float(row.get("p", "nan")))
        if scores and float(row["failure_rate"]) == 0:
            known[tables.setting_of(row, by)] = scores
    return known


def print_header(experiment: Experiment) -> None:
    """Prints what is in force: data, devices, precision, padding."""
    args, mask = experiment.args, experiment.grid.federations.mask
    dropped = {len(partition.left_out) for partition in experiment.partitions}
    device = jax.devices()[0]
    print(
        f"{experiment.method.name} on {short_name(args.dataset)}: "
        f"{len(experiment.dataset.examples)} examples, {args.clients} clients, "
        f"{experiment.num_clusters} clusters, {len(experiment.partitions)} runs\n"
        f"examples no client holds: {' to '.join(map(str, span(dropped)))}; "
        f"padding: {1 - float(mask.mean()):.1%} of the slots\n"
        f"{jax.device_count()} x {device.device_kind} through {args.backend}, "
        f"{args.precision} matrix precision, JAX {jax.__version__}"
    )
    print(*experiment.notes, sep="\n", flush=True)


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
