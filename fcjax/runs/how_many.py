"""How many clusters there are, without labels: `fcjax how-many RUN [RUN ...]`.

how_many.csv   a line a number of clusters
how_many.png   the same as curves, with their bands
"""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from fcjax.results import tables
from fcjax.results.results import gather
from fcjax.results.store import parsed
from fcjax.sweep.ending import refusing
from fcjax.sweep.flags import shown
from fcjax.sweep.words import flags_in


@dataclasses.dataclass(frozen=True)
class Args:
    """Says for which number of clusters finished runs come out alike with every seed,
    and have no parts that do, too.

    It takes runs of several --clusters and at least two seeds each, that are alike in
    all else. Runs that collapsed or diverged do not count.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Results folders, --out of the runs."""
    where: Annotated[tuple[str, ...], shown("all runs")] = ()
    """Only runs with these values: p=0.25."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    out: Annotated[Path | None, shown("the first folder")] = None
    """Folder of how_many.csv and how_many.png; written over."""


def main(args: Args) -> None:
    """Raises ValueError with one line where the runs cannot be compared."""
    out = args.out or args.runs[0]
    results = gather(args.runs, parsed(args.where), data_dir=args.data_dir)
    suggestion = results.how_many(out)
    print(suggestion.reason)
    tables.show(suggestion.table, ".3f")
    if suggestion.left_out:
        print(suggestion.left_out)
    print(f"the same as curves: {out / 'how_many.png'}")


if __name__ == "__main__":
    with refusing():
        main(flags_in(Args))
