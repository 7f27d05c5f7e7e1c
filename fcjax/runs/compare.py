"""Whether one method is better than another: `fcjax compare A B --by p`.

comparison.csv   a line a setting: the difference, its interval, what it says
comparison.png   the same as a figure
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import tyro

from fcjax.metrics.agreement import SURE, Paired, holm, paired
from fcjax.results import figures, tables
from fcjax.results.store import parsed
from fcjax.runs.together import Member, check_same_data, members
from fcjax.sweep.ending import refusing
from fcjax.sweep.flags import shown
from fcjax.sweep.plan import BELONGING
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
    ours = members([args.first], args.first_where)
    others = members([args.second], args.second_where)
    check_same_data([ours[0], others[0]])
    check_same_deal(ours[0], others[0])
    chosen = {*parsed(args.first_where), *parsed(args.second_where)}
    by = args.by or varied(ours, others, but=chosen)
    scores = tuple(dict.fromkeys(args.score))
    lines = compared(ours, others, by=by, scores=scores, but=chosen)
    tables.show([shown_line(line) for line in lines])
    print(f"{called(ours, args.first_where)} less {called(others, args.second_where)}")
    used = sum(line["seeds"] for line in lines if line["score"] == args.score[0])
    for group, where in (ours, args.first_where), (others, args.second_where):
        if left := len(group) - used:
            told = f"{left} of {len(group)} runs of {called(group, where)}"
            print(f"left out, as they have no partner: {told}")
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
    but: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Returns a line for each setting of `by` and each score.

    Args:
        ours: runs of the one.
        others: of the other. Runs without a partner are left out.
        by: what makes a line.
        scores: columns of results.csv.
        but: in what two partners differ.

    Raises:
        ValueError: a column or score is not there, two runs of one have the same of
            all that partners share, or no two runs are partners.
    """
    for member in (ours[0], others[0]):
        for name in (*by, "seed"):
            if name not in member.folder.names:
                raise ValueError(
                    f"--by {name}: {member.folder.directory} varies "
                    f"{' '.join(member.folder.names)}"
                )
    if both := {*by} & {*but}:
        raise ValueError(f"--by {both.pop()} makes no lines: --...-where chooses one")
    # In what it is dealt by, and by whom, partners are alike in any case.
    level = ours[0].folder.names[0]
    dealt = [level, "clients", "client_size", "clusters", "failure_rate"]
    same = {*ours[0].folder.columns} & {*others[0].folder.columns} - {*but}
    if level not in others[0].folder.names:
        raise ValueError(
            f"{ours[0].folder.directory} is dealt by {level}, "
            f"{others[0].folder.directory} by {others[0].folder.names[0]}"
        )
    each = [*by, *dealt, *varied(ours, others, but=but), "seed"]
    keys = [name for name in dict.fromkeys(each) if name in same]
    one, two = (partners(group, keys) for group in (ours, others))
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


def varied(
    ours: Sequence[Member], others: Sequence[Member], *, but: Collection[str]
) -> list[str]:
    """Returns what varies within either folder and both have, but the seed and what
    `but` names."""
    found = dict.fromkeys(
        name
        for group in (ours, others)
        for name in group[0].folder.columns
        if len({float(member.row[name]) for member in group}) > 1
    )
    both = {*ours[0].folder.columns} & {*others[0].folder.columns}
    return [name for name in found if name in both - {"seed", *but}]


def check_same_deal(one: Member, other: Member) -> None:
    """Raises ValueError where a seed deals the examples otherwise."""

    def dealing(member: Member) -> dict[str, Any]:
        config, names = member.folder.config, member.folder.names
        found = {name: config.get(name) for name in ("partition", "partition_seed")}
        found |= {x: config.get(x) for own in BELONGING.values() for x in own}
        return {**found, "client_size": "given" if "client_size" in names else None}

    first, second = dealing(one), dealing(other)
    for name in first:
        values = first[name], second[name]
        if values[0] != values[1]:
            raise ValueError(
                f"{one.folder.directory} and {other.folder.directory} are dealt "
                f"otherwise: {name} is {values[0]} and {values[1]}"
            )


def partners(
    runs: Sequence[Member], keys: Sequence[str]
) -> dict[tuple[float, ...], Member]:
    """Returns the runs by their values; raises ValueError where two have the same."""
    found: dict[tuple[float, ...], Member] = {}
    for member in runs:
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


def called(runs: Sequence[Member], where: Sequence[str]) -> str:
    told = f"{runs[0].row['method']} of {runs[0].folder.directory}"
    return f"{told} ({' '.join(where)})" if where else told


if __name__ == "__main__":
    with refusing():
        main(flags_in(Args))
