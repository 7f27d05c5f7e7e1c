"""Merges the shards of a grid into one results folder, and prints its table.

python experiments/ccfc.py --seed 0 1 2 3 --shard 0/2 --out runs/grid
python experiments/ccfc.py --seed 0 1 2 3 --shard 1/2 --out runs/grid
python experiments/collect.py runs/grid
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from fcjax.results import drawing, shards
from fcjax.sweep import report
from fcjax.sweep.ending import refusing
from fcjax.sweep.flags import shown
from fcjax.sweep.words import flags_in


@dataclasses.dataclass(frozen=True)
class Args:
    """Merges shards of one grid; refuses those of different configurations."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Results folders, or folders that hold shards of a grid."""
    out: Annotated[
        Path | None, shown("where the shards are, if that is one folder")
    ] = None
    """The merged results folder."""
    plot: bool = True
    """Draw learning curves and scores against what varies."""


def main(args: Args) -> None:
    """Raises ValueError where the folders do not go together."""
    if not args.folders:
        raise ValueError("which folders? see --help")
    folders = shards.find(args.folders)
    parents = {folder.parent for folder in folders if folder.name.startswith("shard-")}
    if args.out is None and len(parents) != 1:
        raise ValueError(
            "--out is required where the folders are no shards of one grid"
        )
    out = args.out or parents.pop()
    results = shards.merge(folders, out)
    for line in shards.missing(folders):
        print(f"warning: {line}")
    labelled = any(row["nmi"] is not None for row in results.rows)
    report.conclude(results, labelled=labelled)
    if args.plot:
        drawing.grid_figures(
            out / "figures", results.rows, results.rounds, by=results.settings
        )
    print(f"{len(results.rows)} runs in {out}")


if __name__ == "__main__":
    with refusing():
        main(flags_in(Args))
