"""Whether one method is better than another: `fcjax compare A B --by p`.

comparison.csv   a line a setting: the difference, its interval, what it says
comparison.png   the same as a figure
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import tyro

from fcjax.evaluation import figures, tables
from fcjax.evaluation.differences import Paired, holm, paired
from fcjax.runs.together import Member, check_same_data, gather
from fcjax.sweep.flags import shown

SURE = 0.05


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
    ours = gather([args.first], args.first_where).members
    others = gather([args.second], args.second_where).members
    check_same_data([ours[0], others[0]])
    chosen = [parsed_names(x) for x in (args.first_where, args.second_where)]
    by = args.by or shared(ours, others, but={*chosen[0], *chosen[1]})
    lines = compared(ours, others, by=by, scores=args.score)
    tables.show([shown_line(line) for line in lines])
    print(f"{called(ours, args.first_where)} less {called(others, args.second_where)}")
    if len({line["seeds"] for line in lines}) == 1 and lines[0]["seeds"] == 1:
        print("a single seed decides nothing: more of them, with --seed 0 1 2 3 4")
    out = args.out or args.first
    out.mkdir(parents=True, exist_ok=True)
    path = out / "comparison.csv"
    pd.DataFrame(lines).to_csv(path, index=False, float_format="%.6g")
    figures.intervals(
        {
            name_of(line, by): (
                *(line["difference"], line["low"], line["high"]),
                line["holm"] < SURE,
            )
            for line in lines
        },
        out / "comparison.png",
        title=f"{' and '.join(args.score)}: the first less the second",
    )
    print(f"{path} and comparison.png")


def compared(
    ours: Sequence[Member],
    others: Sequence[Member],
    *,
    by: Sequence[str],
    scores: Sequence[str],
) -> list[dict[str, Any]]:
    """Returns a line for each setting of `by` and each score.

    Raises:
        ValueError: a column or score is not there, a run has no partner of its own, or
            no two runs have the same seed.
    """
    for member in (ours[0], others[0]):
        for name in (*by, "seed"):
            if name not in member.folder.names:
                raise ValueError(
                    f"--by {name}: {member.folder.directory} varies "
                    f"{' '.join(member.folder.names)}"
                )
    same = [n for n in ours[0].folder.names if n in others[0].folder.names]
    keys = [*dict.fromkeys([*by, *shared(ours, others, but=()), "seed"])]
    keys = [name for name in keys if name in same]
    one, two = (partners(members, keys) for members in (ours, others))
    common = [key for key in one if key in two]
    if not common:
        raise ValueError(
            f"no run of {ours[0].folder.directory} has the {', '.join(keys)} of one of "
            f"{others[0].folder.directory}"
        )
    settings: dict[tuple, list[tuple]] = {}
    for key in common:
        setting = tuple(key[keys.index(name)] for name in by)
        settings.setdefault(setting, []).append(key)
    lines: list[dict[str, Any]] = []
    for setting, pairs in settings.items():
        for score in scores:
            each = [[scored(x[key], score) for key in pairs] for x in (one, two)]
            found: Paired = paired(*each)
            lines.append(
                {
                    **dict(zip(by, setting, strict=True)),
                    "score": score,
                    "first": float(np.mean(each[0])),
                    "second": float(np.mean(each[1])),
                    "difference": found.mean,
                    **{k: getattr(found, k) for k in ("low", "high", "probability")},
                    "p_value": found.p_value,
                    "more_seeds": found.more_seeds,
                    "seeds": found.n,
                }
            )
    for line, value in zip(
        lines, holm([line["p_value"] for line in lines]), strict=True
    ):
        line["holm"] = value
    return lines


def shared(ours: Sequence[Member], others: Sequence[Member], *, but: Any) -> list[str]:
    """Returns what both folders vary, but the seed and what `but` names."""

    def varied(members: Sequence[Member]) -> list[str]:
        names = members[0].folder.names
        return [n for n in names if len({float(m.row[n]) for m in members}) > 1]

    found = dict.fromkeys([*varied(ours), *varied(others)])
    return [
        name
        for name in found
        if name in ours[0].folder.names
        and name in others[0].folder.names
        and name != "seed"
        and name not in but
    ]


def partners(
    members: Sequence[Member], keys: Sequence[str]
) -> dict[tuple[float, ...], Member]:
    """Returns the runs by their values; raises ValueError where two have the same."""
    found: dict[tuple[float, ...], Member] = {}
    for member in members:
        key = tuple(float(member.row[name]) for name in keys)
        if key in found:
            raise ValueError(
                f"{member.folder.directory} has several runs with {member.told}: "
                "say which by --first-where or --second-where"
            )
        found[key] = member
    return found


def scored(member: Member, score: str) -> float:
    value = member.row.get(score)
    if not isinstance(value, int | float):
        raise ValueError(
            f"--score {score}: {member.folder.directory} has none of {member.told}"
        )
    return float(value)


def shown_line(line: Mapping[str, Any]) -> dict[str, str]:
    """Returns a line as it is printed."""

    def cell(name: str, value: Any) -> str:
        if value is None or (isinstance(value, float) and np.isnan(value)):
            return "over 1,000" if name == "more_seeds" and line["seeds"] > 1 else ""
        if name in ("difference", "low", "high"):
            return f"{value:+.3f}"
        if name in ("first", "second", "probability", "p_value", "holm"):
            return f"{value:.3f}"
        return f"{value:g}" if isinstance(value, float) else str(value)

    found = {name: cell(name, value) for name, value in line.items()}
    verdict = "no difference seen"
    if line["holm"] < SURE:
        verdict = "the first" if line["difference"] > 0 else "the second"
    return {**found, "better": verdict}


def name_of(line: Mapping[str, Any], by: Sequence[str]) -> str:
    return ", ".join([*(f"{name} {line[name]:g}" for name in by), line["score"]])


def called(members: Sequence[Member], where: Sequence[str]) -> str:
    told = f"{members[0].row['method']} of {members[0].folder.directory}"
    return f"{told} ({' '.join(where)})" if where else told


def parsed_names(where: Sequence[str]) -> list[str]:
    return [text.partition("=")[0] for text in where]


if __name__ == "__main__":
    try:
        main(tyro.cli(Args))
    except ValueError as error:
        sys.exit(f"fcjax compare: error: {error}")
