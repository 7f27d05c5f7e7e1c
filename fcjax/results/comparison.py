"""Comparison of two methods by pairs of runs with the same seed."""

from collections.abc import Collection, Sequence
from typing import Any

import pandas as pd

from fcjax.metrics.agreement import SURE, holm, paired
from fcjax.results.run import Run

PARTITION = (
    *("partition", "partition_seed", "class_range", "samples_per_class"),
    *("max_clients", "min_client_size"),
)
"""Settings in config.json that decide the partition of a seed."""
PARTITION_AXES = ("clients", "client_size", "clusters", "failure_rate")
"""Axes that decide the partition of a seed, besides the heterogeneity."""


def compare_runs(
    first: Sequence[Run],
    second: Sequence[Run],
    *,
    by: Sequence[str] = (),
    scores: Sequence[str] = ("nmi",),
    but: Collection[str] = (),
) -> pd.DataFrame:
    """Compares the runs of two folders that have the same seed and settings.

    Args:
        first: runs of the first folder. Runs without a partner are left out.
        second: runs of the second folder.
        by: columns whose values define a row; empty takes the result of `varied`.
        scores: columns of results.csv, where higher is better.
        but: columns that may differ between the runs of a pair.

    Returns:
        One row per setting and score, see `Results.compare`.

    Raises:
        ValueError: both sides are the same runs, a column or score is missing, two runs
            of a folder have the same keys, or there are no pairs.
    """
    check_same_partition(first[0], second[0])
    both = varied(first, second, but=but)
    by = list(by or both)
    keys = keys_of(first[0], second[0], by=by, but=but, varied=both)
    one, two = (table_of(group, keys, scores) for group in (first, second))
    check_different_runs(first, second)
    pairs: Any = one.merge(two, on=keys, suffixes=("_first", "_second"))
    if pairs.empty:
        raise ValueError(
            f"no run of {first[0].folder.directory} has the same {', '.join(keys)} as "
            f"a run of {second[0].folder.directory}"
        )
    settings = pairs.groupby(by, sort=False) if by else [((), pairs)]
    lines: list[dict[str, Any]] = []
    for setting, group in settings:
        for score in scores:
            x, y = group[f"{score}_first"], group[f"{score}_second"]
            test = paired(x.tolist(), y.tolist())
            lines.append(
                {
                    **dict(zip(by, setting, strict=True)),
                    "score": score,
                    "first": x.mean(),
                    "second": y.mean(),
                    "difference": test.mean,
                    **{k: getattr(test, k) for k in ("low", "high", "probability")},
                    "p_value": test.p_value,
                    "more_seeds": test.more_seeds,
                    "seeds": test.n,
                }
            )
    table = pd.DataFrame(lines)
    table["holm"] = holm([line["p_value"] for line in lines])
    table["better"] = [better(line) for line in table.to_dict("records")]
    return table


def better(line: dict[Any, Any]) -> str:
    """Returns which method is significantly better in a row of `compare_runs`.

    Args:
        line: a row of `compare_runs`, of which `holm` and `difference` are used.

    Returns:
        "the first", "the second", or "no difference seen" for p-values of 0.05 or more.
    """
    if not line["holm"] < SURE:
        return "no difference seen"
    return "the first" if line["difference"] > 0 else "the second"


def keys_of(
    one: Run, other: Run, *, by: Sequence[str], but: Collection[str], varied: list[str]
) -> list[str]:
    """Returns the columns that must be equal for the two runs of a pair.

    Args:
        one: a run of the first folder.
        other: a run of the second folder.
        by: columns whose values define a row of the comparison.
        but: columns that may differ between the runs of a pair.
        varied: columns that vary in either folder.

    Returns:
        The columns.

    Raises:
        ValueError: a folder lacks a column of `by` or the seed, a column is in `by` and
            in `but`, or the folders have different rules of partition.
    """
    for run in (one, other):
        for name in (*by, "seed"):
            if name not in run.folder.names:
                line = (
                    f"`by` {name}: {run.folder.directory} has no setting {name}, only "
                    f"{' '.join(run.folder.names)}"
                )
                if name in {*one.folder.names, *other.folder.names}:
                    line += f"; choose one value of {name} of the other folder"
                raise ValueError(line)
    if both := {*by} & {*but}:
        name = both.pop()
        raise ValueError(
            f"`by` {name} cannot define rows, because `where` selects one value of "
            f"{name}"
        )
    # The runs of a pair have the same partition.
    rule = one.folder.names[0]
    if rule not in other.folder.names:
        raise ValueError(
            f"{one.folder.directory} is partitioned by {rule}, and "
            f"{other.folder.directory} by {other.folder.names[0]}; compare runs with "
            "the same rule"
        )
    same = {*one.folder.columns} & {*other.folder.columns} - {*but}
    names = dict.fromkeys([*by, rule, *PARTITION_AXES, *varied, "seed"])
    return [name for name in names if name in same]


def table_of(
    runs: Sequence[Run], keys: Sequence[str], scores: Sequence[str]
) -> pd.DataFrame:
    """Returns one row per run, with the columns `keys` and the scores.

    Args:
        runs: runs of one folder.
        keys: columns that identify a pair.
        scores: columns of results.csv.

    Returns:
        The table.

    Raises:
        ValueError: a run has no score, or two runs have the same keys.
    """
    for run in runs:
        for score in scores:
            if not isinstance(run.row.get(score), int | float):
                raise ValueError(
                    f"`score` {score}: {run.folder.directory} has no number for "
                    f"{run.name}"
                )
    table: Any = pd.DataFrame([run.row for run in runs])
    (twice,) = table.duplicated(list(keys)).to_numpy().nonzero()
    if len(twice):
        raise ValueError(
            f"{runs[0].folder.directory} has several runs with {runs[twice[0]].name}: "
            "select one of them with `where`"
        )
    return table[[*keys, *scores]].astype(float)


def varied(
    first: Sequence[Run], second: Sequence[Run], *, but: Collection[str]
) -> list[str]:
    """Returns the columns of both folders that vary in at least one of them.

    The seed and the columns of `but` are left out.

    Args:
        first: runs of the first folder.
        second: runs of the second folder.
        but: columns to leave out.

    Returns:
        The columns, in the order of the first folder.
    """
    both = {*first[0].folder.columns} & {*second[0].folder.columns} - {"seed", *but}
    names = dict.fromkeys(
        name
        for group in (first, second)
        for name in group[0].folder.columns
        if len({float(run.row[name]) for run in group}) > 1
    )
    return [name for name in names if name in both]


def check_different_runs(first: Sequence[Run], second: Sequence[Run]) -> None:
    """Checks that the two sides of a comparison are not the same runs.

    Args:
        first: runs of the first side.
        second: runs of the second side.

    Raises:
        ValueError: both sides have the same runs of the same folder.
    """

    def identities(runs: Sequence[Run]) -> set[tuple[Any, ...]]:
        # Grids in memory may have the same path, but they are not the same runs.
        folder = runs[0].folder
        place = id(folder) if folder.in_memory else folder.directory.resolve()
        return {(place, *run.params.values()) for run in runs}

    if identities(first) == identities(second):
        raise ValueError(
            f"both sides are the same runs of {first[0].folder.directory}; choose the "
            "runs of each side by `first_where` and `second_where` (in Python: by "
            "Results.where)"
        )


def check_same_partition(one: Run, other: Run) -> None:
    """Checks that a seed gives the same partition in two folders.

    Args:
        one: a run of the first folder.
        other: a run of the second folder.

    Raises:
        ValueError: a setting of the partition differs.
    """

    def partition_of(run: Run) -> dict[str, Any]:
        settings = {name: run.folder.config.get(name) for name in PARTITION}
        is_given = "client_size" in run.folder.names
        return {**settings, "client_size": "given" if is_given else None}

    first, second = partition_of(one), partition_of(other)
    for name in first:
        if first[name] != second[name]:
            raise ValueError(
                f"{one.folder.directory} and {other.folder.directory} have different "
                f"partitions: `{name}` is {first[name]} and {second[name]}"
            )
