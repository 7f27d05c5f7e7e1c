"""The heterogeneity that runs measured without labels, beside that of the true classes.

    python experiments/benchmarks/heterogeneity.py runs/digits runs/pendigits
        --out heterogeneity.png

Prints a row for each folder and level of the partition, and draws a point for each run:
its column `heterogeneity`, of the clusters that it found, against the same measure of
the clients' true classes. Below the diagonal, clusters mix classes.
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
"""Columns of results.csv that say how the data was dealt."""


@dataclasses.dataclass(frozen=True)
class Args:
    """Draws measured against true heterogeneity."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Results folders of data with labels, with their assignments."""
    out: Path = Path("heterogeneity.png")
    """The figure; written over."""
    data_dir: Path | None = None
    """Where TFDS data sets are prepared."""


def rows_of(folder: Path, args: Args) -> list[dict[str, Any]]:
    """Returns the measured and the true heterogeneity of each run of a folder."""
    results, rows = fcjax.open(folder, data_dir=args.data_dir), []
    for row in results.runs.to_dict("records"):
        dealt = next((name for name in LEVELS if name in row), None)
        if dealt is None:
            raise ValueError(f"{folder}: its data is dealt by none of {LEVELS}")
        run = results.run(**{dealt: row[dealt], "seed": row["seed"]})
        clients, labels = np.asarray(run.clients_), np.asarray(run.dataset.labels)
        held = clients >= 0  # the others are left out
        of_classes: Any = contingency_matrix(clients[held], labels[held])
        rows.append(
            {
                "data": f"{row['dataset']}, {row['samples']:,} examples",
                "dealt": f"{dealt} {row[dealt]:g}",
                "true": float(heterogeneity(of_classes.astype(float))),
                "measured": row["heterogeneity"],
            }
        )
    return rows


def main(args: Args) -> None:
    """Prints the table and writes the figure."""
    rows = [row for folder in args.runs for row in rows_of(folder, args)]
    frame: Any = pd.DataFrame(rows)
    table = frame.groupby(["data", "dealt"], sort=False, as_index=False).mean()
    print(table.round(2).to_markdown(index=False))
    figure, axes = plt.subplots(figsize=(5.4, 5), layout="constrained")
    axes.plot([0, 1], [0, 1], color="0.7", linestyle=":", label="no class is mixed")
    axes.axhline(UNLIKE, color="0.7", label=f"limit of the defaults, {UNLIKE}")
    for name, group in frame.groupby("data", sort=False):
        axes.scatter(group["true"], group["measured"], s=18, label=name)
    axes.set_xlabel("heterogeneity of the true classes")
    axes.set_ylabel("heterogeneity of the clusters found, no labels")
    axes.set_title("How unlike the clients are: measured without labels")
    axes.legend()
    figure.savefig(args.out, dpi=130)


if __name__ == "__main__":
    with exit_on_error():
        main(tyro.cli(Args, description=__doc__))
