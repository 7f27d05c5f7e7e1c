"""Shards of a grid: find them, and merge their runs into one results folder."""

import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from fcjax.results.store import (
    Folder,
    Point,
    Row,
    check_digests,
    differing,
    read,
    starts,
    write_environment,
)

SHARD = r"shard-(\d+)-of-(\d+)"
"""Name of the folder of a shard: its index and the number of shards."""
TIMES = {"seconds", "compile_seconds"}
"""Columns of results.csv that differ between two executions of the same run."""


def find(folders: Iterable[Path]) -> list[Path]:
    """Returns the results folders among some folders, and the shards inside them.

    Args:
        folders: results folders, or folders with shards.

    Returns:
        The results folders, without duplicates.

    Raises:
        ValueError: a folder has neither results nor shards.
    """
    results = []
    for folder in folders:
        parts = [folder] if (folder / "results.csv").exists() else []
        parts += sorted(folder.glob("shard-*-of-*"))
        if not parts and not (folder / "config.json").exists():
            raise ValueError(f"{folder} holds neither results nor shards of a grid")
        results += parts or [folder]
    return list(dict.fromkeys(results))


def missing(folders: Sequence[Path]) -> list[str]:
    """Returns one line per missing shard and per folder without a finished run.

    Args:
        folders: the results folders of the shards.

    Returns:
        The lines; an empty list if nothing is missing.
    """
    names = [(x.parent, re.fullmatch(SHARD, x.name)) for x in folders]
    grids = dict.fromkeys((parent, int(name[2])) for parent, name in names if name)
    expected = [
        parent / f"shard-{index}-of-{count}"
        for parent, count in grids
        for index in range(count)
    ]
    unfinished = [x for x in folders if not (x / "results.csv").exists()]
    return [
        *(f"{folder} has no finished run yet" for folder in unfinished),
        *(f"{folder} is missing" for folder in expected if folder not in folders),
    ]


def merge(folders: Sequence[Path], out: Path) -> Folder:
    """Merges the finished runs of some results folders into one folder.

    Args:
        folders: results folders. Folders without a finished run are ignored.
        out: the merged results folder. Its earlier runs stay.

    Returns:
        The merged results.

    Raises:
        ValueError: the configurations differ, two folders have the same run with
            different scores, or no folder has a finished run. Nothing is written then.
    """
    sources = [read(f) for f in folders if (f / "results.csv").exists()]
    if not sources:
        raise ValueError("none of these folders has a finished run; wait for one")
    first = sources[0]
    runs: dict[tuple, tuple[Folder, Row]] = {}
    for source in sources:
        if names := differing(first.config, source.config):
            raise ValueError(
                f"{first.directory} and {source.directory} hold results of different "
                f"configurations ({', '.join(names)} differ)"
            )
        for row in source.rows:
            other, known = runs.setdefault(source.key(row), (source, row))
            if scores(known) != scores(row):
                raise ValueError(
                    f"{other.directory} and {source.directory} have different scores "
                    f"for the run with {source.describe(row)}"
                )
    entries = [x for source in sources for x in starts(source.directory)]
    check_digests(out, entries)
    points = [{name: row[name] for name in first.names} for _, row in runs.values()]
    results = Folder(out, first.config, points, command=first.command)
    with results.locked():
        results.begin()
        for source in sources:
            new = [p for p in results.pending if runs[results.key(p)][0] is source]
            if new:
                copy_runs(results, source, new)
        write_environment(out, entries)
    return results


def copy_runs(results: Folder, source: Folder, points: Sequence[Point]) -> None:
    """Copies runs of another folder, in the order in which training writes them.

    Args:
        results: the folder that gets the runs.
        source: the folder that has the runs.
        points: axis values of the runs.
    """
    results.add_rounds(source.of_runs(source.rounds, points))
    results.add_assignments(
        points,
        [source.assignment_arrays(point) for point in points],
        source.rows_of_examples,
    )
    for point in points:
        for path in (Folder.model_path, Folder.communities_path, Folder.uploads_path):
            old, new = path(source, point), path(results, point)
            if old.exists():
                new.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(old, new)
    results.add_rows(source.of_runs(source.rows, points))


def scores(row: Row) -> Row:
    """Returns a row without the columns of time.

    Args:
        row: a row of results.csv.

    Returns:
        The other columns.
    """
    return {name: value for name, value in row.items() if name not in TIMES}
