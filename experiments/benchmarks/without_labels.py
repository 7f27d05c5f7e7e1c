"""Which criterion chooses a run without labels, measured on finished runs that have
them: `python experiments/benchmarks/without_labels.py RUN [RUN ...] --out DIR`.

A line is the runs of one folder at one level of what it is dealt by, p or another,
which differ in their seed alone. The mean over the lines is that of a criterion; with
all data sets but one a criterion is chosen, and shown on that one.

study.csv   a line a line and criterion: rank correlation with NMI and regret
beside.csv  a line a run: its NMI and that of k-means of the examples, and its share of
            k-means' silhouette among these, by which it is warned of
study.png   the mean regret of each criterion
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
    """Measures the criteria of `fcjax choose`, and the consensus."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Results folders of data with labels."""
    out: Path = Path("runs/without-labels")
    """Folder of what is written."""
    data_dir: Path | None = None
    """Where TFDS data sets are prepared."""


def main(args: Args) -> None:
    rows, together, shares = [], [], []
    for folder in args.runs:
        every = gather([folder], data_dir=args.data_dir).ensemble()
        if not every.is_labelled:
            raise ValueError(f"{folder} has no labels to measure by")
        for runs in lines_of(every):
            own, both = measured(runs)
            rows += own
            together.append(both)
            shares += compare_with_kmeans(runs)
    table = pd.DataFrame(rows)
    args.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(args.out / "study.csv", index=False, float_format="%.4g")
    by = ["dataset", "method", "level"]
    regrets = table.pivot_table("regret", by, "criterion", sort=False)
    rhos = table.pivot_table("rho", by, "criterion", sort=False)
    for name, found in (("regret", regrets), ("rank correlation", rhos)):
        print(f"\n{name}, and its mean\n{found.round(3).to_string()}")
        print(found.mean().round(3).to_string())
    print()
    tables.show(together)
    pd.DataFrame(together).to_csv(args.out / "consensus.csv", index=False)
    plain = pd.DataFrame(shares)
    plain.to_csv(args.out / "beside.csv", index=False, float_format="%.4g")
    plain["below"] = plain.nmi < plain.kmeans_nmi
    plain["warned of"] = plain.share < LIKELY_WORSE
    told = plain.groupby(["dataset", "method", "below", "warned of"], sort=False)
    print(f"\nbelow k-means, and warned of\n{told.size().to_string()}")
    print("\nchosen without the data set that it is shown on:")
    tables.show(left_out(table))
    each = tables.summarize(table, by=["criterion"], values=["regret"])
    columns = ["regret", "regret_half_width"]
    each = each.sort_values("regret").dropna(subset=columns)
    figures.intervals(
        {
            name: (mean, mean - half, mean + half, name != RANDOM)
            for (name,), mean, half in each[
                ["regret", "regret_half_width"]
            ].itertuples()
        },
        args.out / "study.png",
        xlabel=f"NMI lost to the best run, mean of {len(together)} lines",
    )


def lines_of(runs: Ensemble) -> list[Ensemble]:
    """Returns the runs of each setting, that differ in their seed alone."""
    settings = runs.runs[0].folder.settings
    keys = [tuple(float(m.row[name]) for name in settings) for m in runs.runs]
    return [
        runs.take([i for i, other in enumerate(keys) if other == key])
        for key in dict.fromkeys(keys)
    ]


def measured(runs: Ensemble) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns a row a criterion, and what the consensus is beside the runs."""
    first, scores = runs.runs[0], runs.values("nmi")
    level = first.folder.names[0]
    line = {
        "dataset": first.row["dataset"],
        "samples": first.row["samples"],
        "method": first.row["method"],
        "level": f"{level} {float(first.row[level]):g}",
        "runs": len(scores),
    }
    found = criteria(runs)
    rows = [
        {
            **line,
            "criterion": name,
            "rho": correlation(values[known], scores[known]),
            "regret": regret(values, scores),
        }
        for name, values in found.items()
        if (known := ~np.isnan(values)).any()
    ]
    by_chance = float(scores.max() - scores.mean())
    rows.append({**line, "criterion": RANDOM, "rho": 0.0, "regret": by_chance})
    whole = consensus_of(runs.voters)
    labels = runs.dataset.labels
    assert labels is not None
    held = whole.clusters >= 0
    both = {
        **line,
        "consensus": f"{nmi(labels[held], whole.clusters[held]):.3f}",
        "mean": f"{scores.mean():.3f}",
        "best": f"{scores.max():.3f}",
    }
    return rows, both


def compare_with_kmeans(runs: Ensemble) -> list[dict[str, Any]]:
    """Returns a row a run of one clustering, as beside.csv has them."""
    if runs.clients is not None:
        return []
    dataset, first = runs.dataset, runs.runs[0]
    plain = score.kmeans_baseline(
        dataset.examples, dataset.labels, num_clusters=int(first.row["clusters"])
    )
    own = silhouettes(plain.points, runs.clusters[:, plain.few])
    return [
        {
            **{name: member.row[name] for name in ("dataset", "method", "seed", "nmi")},
            "kmeans_nmi": plain.scores["kmeans_nmi"],
            "share": silhouette / plain.scores["kmeans_silhouette"],
        }
        for member, silhouette in zip(runs.runs, own, strict=True)
    ]


def left_out(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Returns for each data set the criterion that has the least regret on the others,
    and what it has there.
    """
    found, known = [], table.query("criterion != @RANDOM")
    for dataset in table.dataset.unique():
        others = known.query("dataset != @dataset").groupby("criterion").regret.mean()
        if others.empty:
            continue
        best = others.idxmin()
        here = table.query("dataset == @dataset").groupby("criterion").regret.mean()
        own = {k: f"{here.get(k, np.nan):.3f}" for k in (best, "silhouette", RANDOM)}
        found.append(
            {
                "dataset": dataset,
                "chosen": best,
                "regret": own[best],
                "own silhouette": own["silhouette"],
                "random": own[RANDOM],
            }
        )
    return found


if __name__ == "__main__":
    with exit_on_error():
        main(tyro.cli(Args))
