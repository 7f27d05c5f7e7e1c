"""How many clusters there are, without labels: `fcjax how-many RUN [RUN ...]`.

how_many.csv   a line a number of clusters
how_many.png   the same as curves, with their bands
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import tyro

from fcjax.evaluation import figures, tables
from fcjax.evaluation.stability import Stability, stability
from fcjax.runs.together import Together, drawn, gather
from fcjax.sweep.flags import shown


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


class Suggestion(NamedTuple):
    """How many clusters."""

    number: int | None
    """None where no number stands out."""
    told: str
    """Why, in a sentence."""


def main(args: Args) -> None:
    """Raises ValueError with one line where the runs do not tell."""
    found = measured(gather(args.runs, args.where), data_dir=args.data_dir)
    suggestion = suggested(found)
    tables.show([line(number, each) for number, each in found.items()])
    print(suggestion.told)
    out = args.out or args.runs[0]
    out.mkdir(parents=True, exist_ok=True)
    rows = rows_of(found)
    table = pd.DataFrame([line(number, each) for number, each in found.items()])
    table.to_csv(out / "how_many.csv", index=False)
    figures.against(
        *(rows, out / "how_many.png"),
        level="clusters",
        by=(),
        values=("between", "within", "trade-off"),
    )
    print(f"{out / 'how_many.csv'} and how_many.png")


def measured(runs: Together, *, data_dir: Path | None) -> dict[int, Stability]:
    """Returns the stability of each number of clusters.

    Raises:
        ValueError: there is one number alone, a number has one run alone, the runs
            differ in more, or clients have no embedding in common.
    """
    runs = runs.take(runs.ok)
    for name in {name for member in runs.members for name in member.folder.settings}:
        levels = sorted({member.row.get(name) for member in runs.members}, key=str)
        if name not in ("clusters", "seed") and len(levels) > 1:
            raise ValueError(
                f"the runs differ in {name}, too: choose by --where {name}={levels[0]}"
            )
    numbers = np.array([int(member.row["clusters"]) for member in runs.members])
    values, counts = np.unique(numbers, return_counts=True)
    if len(values) < 2:
        raise ValueError(
            f"all runs look for {values[0]} clusters: try several, with --clusters "
            f"{max(2, values[0] - 2)} {values[0]} {values[0] + 2} --seed 0 1 2"
        )
    if counts.min() < 2:
        few = values[counts.argmin()]
        raise ValueError(
            f"one run alone looks for {few} clusters and ended well: two seeds or more "
            "tell how stable it is, with --seed 0 1 2"
        )
    rows = drawn(runs.clusters.shape[1])
    embeddings = runs.embedded(runs.dataset(data_dir).examples[rows])
    known = [z for z in embeddings if z is not None]
    if len(known) < len(embeddings):
        raise ValueError(
            "clients cluster on their own here: they have no embedding in common that "
            "clusters could be taken apart in"
        )
    found = {}
    for number in values:
        (own,) = np.nonzero(numbers == number)
        clusters = runs.clusters[np.ix_(own, rows)]
        found[int(number)] = stability(clusters, [known[i] for i in own])
    return found


def suggested(found: Mapping[int, Stability]) -> Suggestion:
    """Returns the number with the best trade-off, if it stands out from the next one by
    more than the spread of both."""
    means = {k: float(np.mean(each.trade_off)) for k, each in found.items()}
    order = sorted(means, key=lambda k: -means[k])
    best, second = order[:2]
    errors = [error_of(found[k].trade_off) for k in (best, second)]
    spread = float(np.linalg.norm(errors))
    gain = means[best] - means[second]
    told = (
        f"{best} clusters come out most alike for what is in them ({means[best]:.2f}; "
        f"next {second}, {means[second]:.2f})"
    )
    if means[best] <= 0 or gain <= spread:
        return Suggestion(
            None,
            f"no number stands out: {best} has {means[best]:.2f}, {second} has "
            f"{means[second]:.2f}, and pairs of seeds differ by {spread:.2f}",
        )
    ends = {min(found): "fewer", max(found): "more"}
    if best in ends:
        told += f"; it is the end of what was tried: try {ends[best]}, too"
    return Suggestion(best, told)


def error_of(values: Sequence[float]) -> float:
    """Returns the standard error of a mean, as if pairs were independent."""
    return (
        float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0
    )


def rows_of(found: Mapping[int, Stability]) -> list[dict[str, float | int]]:
    """Returns a row a pair of runs."""
    return [
        {"clusters": k, "between": one, "within": other, "trade-off": one - other}
        for k, each in found.items()
        for one, other in zip(each.between, each.within, strict=True)
    ]


def line(number: int, each: Stability) -> dict[str, Any]:
    means = {k: np.mean(getattr(each, k)) for k in ("between", "within", "trade_off")}
    told = {name: f"{value:.3f}" for name, value in means.items()}
    return {"clusters": number, **told, "pairs": len(each.between)}


if __name__ == "__main__":
    try:
        main(tyro.cli(Args))
    except ValueError as error:
        sys.exit(f"fcjax how-many: error: {error}")
