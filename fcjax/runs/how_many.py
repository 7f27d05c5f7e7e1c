"""How many clusters there are, without labels: `fcjax how-many RUN [RUN ...]`.

how_many.csv   a line a number of clusters
how_many.png   the same as curves, with their bands
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
import tyro

from fcjax.metrics.agreement import Stability, stability
from fcjax.results import figures, tables
from fcjax.results.store import differing
from fcjax.runs.together import Together, drawn, gather
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


LEAST = 0.01
"""A difference of trade-offs that is none, however alike the seeds are."""


class Suggestion(NamedTuple):
    """How many clusters."""

    number: int | None
    """None where no number stands out."""
    told: str
    """Why, in a sentence."""


def main(args: Args) -> None:
    """Raises ValueError with one line where the runs do not tell."""
    runs = gather(args.runs, args.where)
    found, left_out = measured(runs, data_dir=args.data_dir)
    suggestion = suggested(found)
    lines = [line(number, each) for number, each in found.items()]
    tables.show(lines)
    print("\n".join(x for x in (suggestion.told, left_out) if x))
    out = args.out or args.runs[0]
    out.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(lines).to_csv(out / "how_many.csv", index=False)
    figures.against(
        *(rows_of(found), out / "how_many.png"),
        level="clusters",
        by=(),
        values=("between", "within", "trade-off"),
        title="stability of each number of clusters",
    )
    print(f"{out / 'how_many.csv'} and how_many.png")


def measured(
    runs: Together, *, data_dir: Path | None
) -> tuple[dict[int, Stability], str]:
    """Returns the stability of each number of clusters that two runs or more of look
    for and end well, and a sentence on the other numbers if there are any.

    Raises:
        ValueError: fewer than two numbers are left, the runs differ in more, or clients
            have no embedding in common.
    """
    runs = runs.voters
    check_alike(runs)
    numbers = runs.values("clusters").astype(int)
    values, counts = np.unique(numbers, return_counts=True)
    if len(values) < 2:
        raise ValueError(
            f"all runs look for {values[0]} clusters: try several, with --clusters "
            f"{max(2, values[0] - 2)} {values[0]} {values[0] + 2} --seed 0 1 2"
        )
    if np.sum(counts > 1) < 2:
        raise ValueError(
            "two seeds or more tell how stable a number of clusters is, with --seed 0 "
            f"1 2; {values[counts.argmin()]} has one run that ended well"
        )
    rows = drawn(runs.clusters.shape[1])
    embeddings = runs.embedded(runs.dataset(data_dir)[0].examples[rows])
    known = [z for z in embeddings if z is not None]
    if len(known) < len(embeddings):
        raise ValueError(
            "clients cluster on their own here: they have no embedding in common that "
            "clusters could be taken apart in"
        )
    found, left_out = {}, []
    for number, count in zip(values.tolist(), counts, strict=True):
        (own,) = np.nonzero(numbers == number)
        clusters = runs.clusters[np.ix_(own, rows)]
        if count > 1:
            found[number] = stability(clusters, [known[i] for i in own])
        if count == 1 or np.isnan(found[number].within).any():
            found.pop(number, None)
            left_out.append(str(number))
    if len(found) < 2:
        raise ValueError(
            f"{', '.join(left_out)} clusters have one run that ended well, or too few "
            "examples to be taken apart"
        )
    others = ", ".join(left_out)
    said = "one run that ended well, or too few examples to be taken apart"
    return found, f"left out: {others} clusters ({said})" if others else ""


def check_alike(runs: Together) -> None:
    """Raises ValueError where runs of one number of clusters differ in more than their
    seed, or numbers are of different methods or settings."""
    for name in ("method", *runs.members[0].folder.columns):
        if name in ("clusters", "seed"):
            continue
        by_number: dict[int, set] = {}
        for member in runs.members:
            number = int(member.row["clusters"])
            by_number.setdefault(number, set()).add(member.row.get(name))
        several = [sorted(x, key=str) for x in by_number.values() if len(x) > 1]
        if several:
            raise ValueError(
                f"the runs differ in {name}, too: choose by --where {name}="
                f"{several[0][0]}"
            )
    settled = ("dataset", "labels", "preset", "swept", "defaults")
    first, *others = (member.folder for member in runs.members)
    for other in others:
        names = [x for x in differing(first.config, other.config) if x not in settled]
        if names:
            raise ValueError(
                f"{first.directory} and {other.directory} differ in {names[0]}, too"
            )


def suggested(found: Mapping[int, Stability]) -> Suggestion:
    """Returns the number with the best trade-off, if it stands out from the next one by
    more than the standard error of their difference."""
    means = {k: float(np.mean(each.trade_off)) for k, each in found.items()}
    order = sorted(means, key=lambda k: -means[k])
    best, second = order[:2]
    errors = [error_of(found[k]) for k in (best, second)]
    error = float(np.linalg.norm(errors))
    if means[best] <= 0 or means[best] - means[second] <= max(error, LEAST):
        return Suggestion(
            None,
            f"no number stands out: {best} has {means[best]:.2f}, {second} has "
            f"{means[second]:.2f}, with a standard error of {error:.2f} between them",
        )
    told = (
        f"{best} clusters come out most alike for what is in them ({means[best]:.2f}; "
        f"next {second}, {means[second]:.2f})"
    )
    ends = {min(found): "fewer", max(found): "more"}
    if best in ends:
        told += f"; it is the end of what was tried: try {ends[best]}, too"
    return Suggestion(best, told)


def error_of(each: Stability) -> float:
    """Returns the standard error of the mean trade-off: as if there were as many values
    as runs, since a run is in several pairs."""
    return float(np.std(each.trade_off, ddof=1) / np.sqrt(each.num_runs))


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
    with refusing():
        main(flags_in(Args))
