"""Shards of a grid: which are there, and their runs in one results folder."""

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
TIMES = {"seconds", "compile_seconds"}


def find(folders: Iterable[Path]) -> list[Path]:
    """Returns the results folders among these and the shards inside them.

    Raises:
        ValueError: a folder holds neither.
    """
    found = []
    for folder in folders:
        here = [folder] if (folder / "results.csv").exists() else []
        here += sorted(folder.glob("shard-*-of-*"))
        if not here and not (folder / "config.json").exists():
            raise ValueError(f"{folder} holds neither results nor shards of a grid")
        found += here or [folder]
    return list(dict.fromkeys(found))


def missing(folders: Sequence[Path]) -> list[str]:
    """Returns what is not there yet, a line each: shards by their names, and those that
    have no finished run.
    """
    named = [(x.parent, re.fullmatch(SHARD, x.name)) for x in folders]
    grids = dict.fromkeys((parent, int(name[2])) for parent, name in named if name)
    whole = [
        parent / f"shard-{index}-of-{count}"
        for parent, count in grids
        for index in range(count)
    ]
    begun = [x for x in folders if not (x / "results.csv").exists()]
    return [
        *(f"{folder} has no finished run yet" for folder in begun),
        *(f"{folder} is not there" for folder in whole if folder not in folders),
    ]


def merge(folders: Sequence[Path], out: Path) -> Folder:
    """Writes the finished runs of some results folders into one.

    Args:
        folders: results folders; those without a finished run are passed over.
        out: where to; runs that it holds already stay.

    Returns:
        What `out` holds now.

    Raises:
        ValueError: the folders are of different configurations, a run is in two of them
            with different scores, or none has a finished run. Then nothing is written.
    """
    sources = [read(f) for f in folders if (f / "results.csv").exists()]
    if not sources:
        raise ValueError("none of these folders holds a finished run")
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
                    f"the run with {source.describe(row)} is in {other.directory} and in "
                    f"{source.directory}, with different scores"
                )
    begun = [x for source in sources for x in starts(source.directory)]
    check_digests(out, begun)
    points = [{name: row[name] for name in first.names} for _, row in runs.values()]
    results = Folder(out, first.config, points, command=first.command)
    with results.locked():
        results.begin()
        for source in sources:
            new = [p for p in results.pending if runs[results.key(p)][0] is source]
            if new:
                copy_runs(results, source, new)
        write_environment(out, begun)
    return results


def copy_runs(results: Folder, source: Folder, points: Sequence[Point]) -> None:
    """Copies runs of another folder, in the order in which a session writes them."""
    results.add_rounds(source.of_runs(source.rounds, points))
    results.add_assignments(
        points, [source.assignment_arrays(point) for point in points]
    )
    for point in points:
        for path in (Folder.model_path, Folder.communities_path):
            old, new = path(source, point), path(results, point)
            if old.exists():
                new.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(old, new)
    results.add_rows(source.of_runs(source.rows, points))


def scores(row: Row) -> Row:
    """Returns a row without the times, in which two runs of the same may differ."""
    return {name: value for name, value in row.items() if name not in TIMES}
