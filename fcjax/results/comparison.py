"""Whether one method is better than another, from runs paired by their seeds."""

from collections.abc import Collection, Sequence
from typing import Any

import pandas as pd

from fcjax.metrics.agreement import SURE, holm, paired
from fcjax.results.run import Run

PARTITION = (
    *("partition", "partition_seed", "class_range", "samples_per_class"),
    *("max_clients", "min_client_size"),
)
"""The settings of config.json that decide which examples a seed gives to a client."""
PARTITION_AXES = ("clients", "client_size", "clusters", "failure_rate")


def compare_runs(
    ours: Sequence[Run],
    others: Sequence[Run],
    *,
    by: Sequence[str] = (),
    scores: Sequence[str] = ("nmi",),
    but: Collection[str] = (),
) -> pd.DataFrame:
    """Returns one row per setting of `by` and score, see `Results.compare`.

    Args:
        ours: runs of one folder.
        others: runs of one folder. Runs without a partner are left out.
        by: columns that make a row; empty takes the varied ones, see `varied`.
        scores: columns of results.csv, the larger the better.
        but: columns in which two partners may differ.

    Raises:
        ValueError: a column or score is missing, two runs of one have the same values
            of all columns that partners share, or no two runs are partners.
    """
    check_same_partition(ours[0], others[0])
    both = varied(ours, others, but=but)
    by = list(by or both)
    keys = keys_of(ours[0], others[0], by=by, but=but, varied=both)
    one, two = (table_of(group, keys, scores) for group in (ours, others))
    pairs: Any = one.merge(two, on=keys, suffixes=("_first", "_second"))
    if pairs.empty:
        raise ValueError(
            f"no run of {ours[0].folder.directory} has the {', '.join(keys)} of one of "
            f"{others[0].folder.directory}"
        )
    settings = pairs.groupby(by, sort=False) if by else [((), pairs)]
    lines: list[dict[str, Any]] = []
    for setting, group in settings:
        for score in scores:
            first, second = group[f"{score}_first"], group[f"{score}_second"]
            found = paired(first.tolist(), second.tolist())
            lines.append(
                {
                    **dict(zip(by, setting, strict=True)),
                    "score": score,
                    "first": first.mean(),
                    "second": second.mean(),
                    "difference": found.mean,
                    **{k: getattr(found, k) for k in ("low", "high", "probability")},
                    "p_value": found.p_value,
                    "more_seeds": found.more_seeds,
                    "seeds": found.n,
                }
            )
    table = pd.DataFrame(lines)
    table["holm"] = holm([line["p_value"] for line in lines])
    table["better"] = [better(line) for line in table.to_dict("records")]
    return table


def better(line: dict[Any, Any]) -> str:
    if not line["holm"] < SURE:
        return "no difference seen"
    return "the first" if line["difference"] > 0 else "the second"


def keys_of(
    one: Run, other: Run, *, by: Sequence[str], but: Collection[str], varied: list[str]
) -> list[str]:
    """Returns the columns in which two partners are alike, or raises ValueError."""
    for run in (one, other):
        for name in (*by, "seed"):
            if name not in run.folder.names:
                raise ValueError(
                    f"`by` {name}: {run.folder.directory} varies "
                    f"{' '.join(run.folder.names)}"
                )
    if both := {*by} & {*but}:
        raise ValueError(f"`by` {both.pop()} makes no rows: `where` chooses one value")
    # Partners have the same partition in any case.
    rule = one.folder.names[0]
    if rule not in other.folder.names:
        raise ValueError(
            f"{one.folder.directory} is partitioned by {rule}, "
            f"{other.folder.directory} by {other.folder.names[0]}"
        )
    same = {*one.folder.columns} & {*other.folder.columns} - {*but}
    each = dict.fromkeys([*by, rule, *PARTITION_AXES, *varied, "seed"])
    return [name for name in each if name in same]


def table_of(
    runs: Sequence[Run], keys: Sequence[str], scores: Sequence[str]
) -> pd.DataFrame:
    """Returns one row per run: the values that partners share, and the scores."""
    for run in runs:
        for score in scores:
            if not isinstance(run.row.get(score), int | float):
                raise ValueError(
                    f"`score` {score}: {run.folder.directory} has none for {run.name}"
                )
    table: Any = pd.DataFrame([run.row for run in runs])
    (twice,) = table.duplicated(list(keys)).to_numpy().nonzero()
    if len(twice):
        raise ValueError(
            f"{runs[0].folder.directory} has several runs with {runs[twice[0]].name}: "
            "choose one by `where`"
        )
    return table[[*keys, *scores]].astype(float)


def varied(
    ours: Sequence[Run], others: Sequence[Run], *, but: Collection[str]
) -> list[str]:
    """Returns the columns that both folders have and that vary within either, without
    the seed and those of `but`.
    """
    both = {*ours[0].folder.columns} & {*others[0].folder.columns} - {"seed", *but}
    names = dict.fromkeys(
        name
        for group in (ours, others)
        for name in group[0].folder.columns
        if len({float(run.row[name]) for run in group}) > 1
    )
    return [name for name in names if name in both]


def check_same_partition(one: Run, other: Run) -> None:
    """Raises ValueError where a seed partitions the examples otherwise."""

    def partition_of(run: Run) -> dict[str, Any]:
        found = {name: run.folder.config.get(name) for name in PARTITION}
        is_given = "client_size" in run.folder.names
        return {**found, "client_size": "given" if is_given else None}

    first, second = partition_of(one), partition_of(other)
    for name in first:
        if first[name] != second[name]:
            raise ValueError(
                f"{one.folder.directory} and {other.folder.directory} are partitioned "
                f"otherwise: `{name}` is {first[name]} and {second[name]}"
            )
