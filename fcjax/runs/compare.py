"""Whether one method is better than another: `fcjax compare A B --by p`.

comparison.csv   a line a setting: the difference, its interval, what it says
comparison.png   the same as a figure
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
    """Compares the finished runs of two folders that have the same seed, and the same
    of whatever else both vary: a seed decides the partition and all draws.

    Of every line the difference of the scores and its bootstrap interval, the chance
    that the first is ahead with a further seed, the p-value of the paired t-test after
    Holm's correction for all lines, and how many more seeds would decide.
    """

    first: tyro.conf.Positional[Path]
    """Results folder of the one."""
    second: tyro.conf.Positional[Path]
    """Of the other; the same folder, where --first-where and --second-where tell them
    apart."""
    by: Annotated[tuple[str, ...], shown("what both vary but the seed")] = ()
    """What makes a line: p clusters."""
    score: tuple[str, ...] = ("nmi",)
    """Columns of results.csv; the larger the better."""
    first_where: Annotated[tuple[str, ...], shown("all its runs")] = ()
    """Only these runs of the first: model_weight=0.1."""
    second_where: Annotated[tuple[str, ...], shown("all its runs")] = ()
    """Only these runs of the second."""
    out: Annotated[Path | None, shown("the first folder")] = None
    """Folder of comparison.csv and comparison.png; written over."""


def main(args: Args) -> None:
    """Raises ValueError with one line where there is nothing to compare."""
    wheres = args.first_where, args.second_where
    folders = args.first, args.second
    one, two = (
        gather([folder], parsed(where))
        for folder, where in zip(folders, wheres, strict=True)
    )
    out = args.out or args.first
    but = {*parsed(args.first_where), *parsed(args.second_where)}
    table = one.compare(two, args.by, scores=args.score, but=but, out=out)
    named = [
        f"{runs.runs.method[0]} of {folder} {' '.join(where)}".rstrip()
        for runs, folder, where in zip((one, two), folders, wheres, strict=True)
    ]
    print(f"the first, {named[0]}, less the second, {named[1]}")
    tables.show(table, ".3f")
    used = table.groupby("score").seeds.sum().max()
    for runs, name in zip((one, two), named, strict=True):
        if left := len(runs) - used:
            print(f"runs without a partner: {left} of {len(runs)} runs of {name}")
    if table.seeds.max() == 1:
        print("a single seed decides nothing: run more seeds, with --seed 0 1 2 3 4")
    print(f"the differences with their intervals: {out / 'comparison.png'}")


if __name__ == "__main__":
    with refusing():
        main(flags_in(Args))
