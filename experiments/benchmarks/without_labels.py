"""Measures which criterion best chooses a run without labels.

    python experiments/benchmarks/without_labels.py RUN [RUN ...] --out DIR

RUN is a results folder of data with labels. The labels give the NMI of each run, and
the regret of a criterion: the NMI of the best run minus the NMI of the chosen run. A
group of runs differs only in the seed. Its data set, method and partition are the same.
The result is the mean regret over groups. For each data set, the best criterion of all
other data sets is tested as well.

study.csv      one row per group and criterion: rank correlation with NMI, and regret
consensus.csv  one row per group: NMI of the consensus clustering and of the runs
beside.csv     one row per run: NMI of the run and of k-means, and the silhouette of the
               run divided by the silhouette of k-means, which decides the warning
study.png      mean regret of each criterion
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tyro

from fcjax.cli.errors import exit_on_error
from fcjax.metrics import nmi, silhouettes
from fcjax.results import figures, tables
from fcjax.results.results import gather
from fcjax.results.run import LIKELY_WORSE
from fcjax.results.selection import (
    Ensemble,
    consensus_of,
    correlation,
    criteria,
    regret,
)
from fcjax.sweep import score

RANDOM = "(random)"


@dataclasses.dataclass(frozen=True)
class Args:
    """Measures the criteria of `fcjax choose` and the consensus clustering."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Results folders of data with labels."""
    out: Path = Path("runs/without-labels")
    """Folder for the tables and the figure."""
    data_dir: Path | None = None
    """Folder with the prepared TFDS data sets."""


def main(args: Args) -> None:
    """Measures the criteria, prints the tables and writes the files.

    Args:
        args: the command-line arguments.

    Raises:
        ValueError: the data of a results folder has no labels.
    """
    rows, consensus_rows, kmeans_rows = [], [], []
    for folder in args.runs:
        ensemble = gather([folder], data_dir=args.data_dir).ensemble()
        if not ensemble.is_labelled:
            raise ValueError(
                f"{folder}: its data has no labels; this benchmark needs labels"
            )
        for runs in groups_of(ensemble):
            criterion_rows, consensus_row = measure_criteria(runs)
            rows += criterion_rows
            consensus_rows.append(consensus_row)
            kmeans_rows += compare_with_kmeans(runs)
    table = pd.DataFrame(rows)
    args.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(args.out / "study.csv", index=False, float_format="%.4g")
    by = ["dataset", "method", "level"]
    regrets = table.pivot_table("regret", by, "criterion", sort=False)
    rhos = table.pivot_table("rho", by, "criterion", sort=False)
    for name, values in (("regret", regrets), ("rank correlation", rhos)):
        print(f"\n{name} by group and criterion\n{values.round(3).to_string()}")
        print(f"mean over groups\n{values.mean().round(3).to_string()}")
    print("\nNMI of the consensus clustering, and of the runs:")
    tables.show(consensus_rows)
    pd.DataFrame(consensus_rows).to_csv(args.out / "consensus.csv", index=False)
    comparison = pd.DataFrame(kmeans_rows)
    comparison.to_csv(args.out / "beside.csv", index=False, float_format="%.4g")
    comparison["below k-means"] = comparison.nmi < comparison.kmeans_nmi
    comparison["warning"] = comparison.share < LIKELY_WORSE
    by_warning = ["dataset", "method", "below k-means", "warning"]
    counts = comparison.groupby(by_warning, sort=False).size()
    print(f"\nruns by NMI below k-means, and by warning\n{counts.to_string()}")
    print("\nregret of the criterion that is best on all other data sets:")
    tables.show(left_out(table))
    summary = tables.summarize(table, by=["criterion"], values=["regret"])
    columns = ["regret", "regret_half_width"]
    summary = summary.sort_values("regret").dropna(subset=columns)
    figures.intervals(
        {
            name: (mean, mean - half, mean + half, name != RANDOM)
            for (name,), mean, half in summary[
                ["regret", "regret_half_width"]
            ].itertuples()
        },
        args.out / "study.png",
        xlabel="regret (NMI)",
        title=f"regret: NMI lost to the best run, {len(consensus_rows)} groups of runs",
    )


def groups_of(runs: Ensemble) -> list[Ensemble]:
    """Returns the groups of runs that differ only in their seed."""
    settings = runs.runs[0].folder.settings
    keys = [tuple(float(m.row[name]) for name in settings) for m in runs.runs]
    return [
        runs.take([i for i, other in enumerate(keys) if other == key])
        for key in dict.fromkeys(keys)
    ]


def measure_criteria(runs: Ensemble) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Measures every criterion, and the consensus clustering, on a group of runs.

    Args:
        runs: the group of runs.

    Returns:
        One row per criterion, and one row for the consensus.
    """
    first, scores = runs.runs[0], runs.values("nmi")
    level = first.folder.names[0]
    group = {
        "dataset": first.row["dataset"],
        "samples": first.row["samples"],
        "method": first.row["method"],
        "level": f"{level} {float(first.row[level]):g}",
        "runs": len(scores),
    }
    values_by_criterion = criteria(runs)
    rows = [
        {
            **group,
            "criterion": name,
            "rho": correlation(values[known], scores[known]),
            "regret": regret(values, scores),
        }
        for name, values in values_by_criterion.items()
        if (known := ~np.isnan(values)).any()
    ]
    mean_regret = float(scores.max() - scores.mean())
    rows.append({**group, "criterion": RANDOM, "rho": 0.0, "regret": mean_regret})
    consensus = consensus_of(runs.voters)
    labels = runs.dataset.labels
    assert labels is not None
    is_assigned = consensus.clusters >= 0
    consensus_row = {
        **group,
        "consensus": f"{nmi(labels[is_assigned], consensus.clusters[is_assigned]):.3f}",
        "mean": f"{scores.mean():.3f}",
        "best": f"{scores.max():.3f}",
    }
    return rows, consensus_row


def compare_with_kmeans(runs: Ensemble) -> list[dict[str, Any]]:
    """Compares the runs of a group with k-means, one row per run.

    Args:
        runs: the group of runs.

    Returns:
        The rows of beside.csv. Empty for methods with a separate clustering per client.
    """
    if runs.clients is not None:
        return []
    dataset, first = runs.dataset, runs.runs[0]
    baseline = score.kmeans_baseline(
        dataset.examples, dataset.labels, num_clusters=int(first.row["clusters"])
    )
    silhouettes_of_runs = silhouettes(baseline.points, runs.clusters[:, baseline.few])
    return [
        {
            **{name: member.row[name] for name in ("dataset", "method", "seed", "nmi")},
            "kmeans_nmi": baseline.scores["kmeans_nmi"],
            "share": silhouette / baseline.scores["kmeans_silhouette"],
        }
        for member, silhouette in zip(runs.runs, silhouettes_of_runs, strict=True)
    ]


def left_out(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Tests on each data set the criterion that is best on the other data sets.

    Args:
        table: the rows of study.csv.

    Returns:
        One row per data set: the criterion and its regret, with two other regrets.
    """
    rows, criteria_rows = [], table.query("criterion != @RANDOM")
    for dataset in table.dataset.unique():
        other_regrets = (
            criteria_rows.query("dataset != @dataset")
            .groupby("criterion")
            .regret.mean()
        )
        if other_regrets.empty:
            continue
        best = other_regrets.idxmin()
        regrets = table.query("dataset == @dataset").groupby("criterion").regret.mean()
        texts = {
            k: f"{regrets.get(k, np.nan):.3f}" for k in (best, "silhouette", RANDOM)
        }
        rows.append(
            {
                "dataset": dataset,
                "chosen": best,
                "regret": texts[best],
                "silhouette": texts["silhouette"],
                "random": texts[RANDOM],
            }
        )
    return rows


if __name__ == "__main__":
    with exit_on_error():
        main(tyro.cli(Args))
