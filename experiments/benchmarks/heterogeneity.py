"""Compares the heterogeneity that runs measure without labels with the true one.

    python experiments/benchmarks/heterogeneity.py runs/digits runs/pendigits
        --out heterogeneity.png

Prints one row per folder and value of the partition's parameter. The figure has one
point per run. Its vertical position is the column `heterogeneity` of results.csv,
measured on the clusters. Its horizontal position is the same measure of the true
classes. A point below the diagonal has clusters that mix classes.
"""

import dataclasses
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import tyro
from sklearn.metrics.cluster import contingency_matrix

import fcjax
from fcjax.cli.errors import exit_on_error
from fcjax.federated.kmeans import UNLIKE, heterogeneity

LEVELS = ("p", "alpha", "class_share", "classes_per_client")
"""Columns of results.csv with the parameter of the partition."""


@dataclasses.dataclass(frozen=True)
class Args:
    """Draws measured against true heterogeneity."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Results folders with assignments, of data with labels."""
    out: Path = Path("heterogeneity.png")
    """File of the figure. An existing file is replaced."""
    data_dir: Path | None = None
    """Folder with the prepared TFDS data sets."""


def rows_of(folder: Path, args: Args) -> list[dict[str, Any]]:
    """Returns the measured and the true heterogeneity of each run of a folder.

    Args:
        folder: the results folder.
        args: the command-line arguments.

    Returns:
        One row per run.

    Raises:
        ValueError: the partition of the runs has none of the parameters in LEVELS.
    """
    results, rows = fcjax.open(folder, data_dir=args.data_dir), []
    for row in results.runs.to_dict("records"):
        parameter = next((name for name in LEVELS if name in row), None)
        if parameter is None:
            raise ValueError(
                f"{folder}: its results.csv has no column for the partition; it needs "
                f"one of {', '.join(LEVELS)}"
            )
        run = results.run(**{parameter: row[parameter], "seed": row["seed"]})
        clients, labels = np.asarray(run.clients_), np.asarray(run.dataset.labels)
        has_client = clients >= 0
        class_counts: Any = contingency_matrix(clients[has_client], labels[has_client])
        rows.append(
            {
                "data": f"{row['dataset']}, {row['samples']:,} examples",
                "partition": f"{parameter} {row[parameter]:g}",
                "true": float(heterogeneity(class_counts.astype(float))),
                "measured": row["heterogeneity"],
            }
        )
    return rows


def main(args: Args) -> None:
    """Prints the table and writes the figure.

    Args:
        args: the command-line arguments.
    """
    rows = [row for folder in args.runs for row in rows_of(folder, args)]
    frame: Any = pd.DataFrame(rows)
    table = frame.groupby(["data", "partition"], sort=False, as_index=False).mean()
    print(table.round(2).to_markdown(index=False))
    figure, axes = plt.subplots(figsize=(5.4, 5), layout="constrained")
    axes.plot([0, 1], [0, 1], color="0.7", linestyle=":", label="clusters = classes")
    axes.axhline(UNLIKE, color="0.7", label=f"threshold of the defaults, {UNLIKE}")
    for name, group in frame.groupby("data", sort=False):
        axes.scatter(group["true"], group["measured"], s=18, label=name)
    axes.set_xlabel("heterogeneity of the true classes")
    axes.set_ylabel("heterogeneity of the clusters (without labels)")
    axes.set_title("Heterogeneity of the clients, measured and true")
    axes.legend()
    figure.savefig(args.out, dpi=130)
    print(f"figure: {args.out}")


if __name__ == "__main__":
    with exit_on_error():
        main(tyro.cli(Args, description=__doc__))
