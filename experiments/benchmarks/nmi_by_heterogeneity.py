"""Draws the NMI of CCFC against the heterogeneity p, stage by stage.

Each curve is a mean over seeds with its 95% confidence interval: CCFC's default, CCFC
with the paper's clustering, and the paper's clustering after pre-training. A line shows
k-means of the raw examples. The runs are in the ledger.

    python experiments/benchmarks/nmi_by_heterogeneity.py --out when_clients_differ.png
"""

import dataclasses
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tyro
from scipy import stats

from fcjax.cli.errors import exit_on_error

LEDGER = Path(__file__).parents[1] / "results" / "ccfc"


@dataclasses.dataclass(frozen=True)
class Args:
    """Draws NMI against p from two results folders with the same data."""

    default: Path = LEDGER / "digits-p-k-means"
    """Results folder of CCFC's default."""
    paper: Path = LEDGER / "digits-p"
    """Results folder of CCFC with the paper's clustering."""
    out: Path = Path("when_clients_differ.png")
    """File to write the figure to. An existing file is replaced."""


def after_pretraining(folder: Path) -> Any:
    """Returns one row per run: the scores after its last round of pre-training."""
    history: Any = pd.read_csv(folder / "history.csv")
    scored = history[(history["stage"] == "pretrain") & history["nmi"].notna()]
    return scored.sort_values("round").groupby(["p", "seed"], as_index=False).last()


def draw(axes: Any, runs: Any, label: str) -> None:
    """Draws the mean NMI of `runs` for each p, with a 95% interval over seeds."""
    nmi = runs.groupby("p")["nmi"].agg(["mean", "sem", "count"])
    half = nmi["sem"] * stats.t.ppf(0.975, nmi["count"] - 1)
    (line,) = axes.plot(nmi.index, nmi["mean"], marker="o", label=label)
    low, high = nmi["mean"] - half, nmi["mean"] + half
    axes.fill_between(nmi.index, low, high, color=line.get_color(), alpha=0.2)


def main(args: Args) -> None:
    """Prints the table of the figure and writes the figure.

    Args:
        args: the command-line arguments.
    """
    default: Any = pd.read_csv(args.default / "results.csv")
    paper: Any = pd.read_csv(args.paper / "results.csv")
    curves = {
        "CCFC's default": default,
        "the paper's clustering (--cluster-by ccfc)": paper,
        "the paper's clustering after pre-training": after_pretraining(args.paper),
    }
    figure, axes = plt.subplots(figsize=(7, 4.8), layout="constrained")
    for label, runs in curves.items():
        draw(axes, runs, label)
    kmeans = float(default["kmeans_nmi"].mean())
    label = "k-means of the raw examples"
    axes.axhline(kmeans, color="0.5", linestyle=":", label=label)
    axes.set_xlabel("heterogeneity p (0: random partition, 1: one class per client)")
    axes.set_ylabel("NMI")
    axes.set_xticks(np.unique(default["p"]))
    axes.set_ylim(0, 1)
    data = default["dataset"].iloc[0]
    clients, seeds = default["clients"].iloc[0], default["seed"].nunique()
    axes.set_title(f"CCFC on {data}, {clients} clients, {seeds} seeds")
    axes.legend(loc="lower left")
    figure.savefig(args.out, dpi=130)
    means = {label: runs.groupby("p")["nmi"].mean() for label, runs in curves.items()}
    print(pd.DataFrame(means).round(3).to_markdown())
    print(f"k-means of the raw examples: NMI {kmeans:.3f}")
    print(f"figure: {args.out}")


if __name__ == "__main__":
    with exit_on_error():
        main(tyro.cli(Args, description=__doc__))
