"""A page that shows the clusters of a run: `fcjax page RUN`.

page.html         opens in any browser, without a network and without JavaScript
assignments.csv   of the run that it shows: example, client, cluster, distance
embeddings.npz    of the same run, as `fcjax export` writes it
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from fcjax.results.results import gather
from fcjax.results.store import parsed
from fcjax.sweep.ending import refusing
from fcjax.sweep.flags import shown
from fcjax.sweep.words import flags_in


@dataclasses.dataclass(frozen=True)
class Args:
    """Writes page.html, which shows what a folder run found: its scores beside those
    of the other runs, a sheet of examples for each cluster, and a map of them all."""

    run: tyro.conf.Positional[Path]
    """The results folder, --out of the run."""
    where: Annotated[tuple[str, ...], shown("that of fcjax choose")] = ()
    """Which run of a grid: p=0.25 clusters=10 seed=3."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    out: Annotated[Path | None, shown("RUN")] = None
    """Folder of page.html, assignments.csv and embeddings.npz; written over."""


def main(args: Args) -> None:
    """Writes the page; raises ValueError where the folder is not a results folder."""
    out = args.out or args.run
    results = gather([args.run], parsed(args.where), data_dir=args.data_dir)
    print(f"page of the run {results.page(out).name}: {out / 'page.html'}")


if __name__ == "__main__":
    with refusing():
        main(flags_in(Args))
