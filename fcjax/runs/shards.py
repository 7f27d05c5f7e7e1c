"""The shards of a grid, made one results folder again."""

import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from fcjax.sweep import environment
from fcjax.sweep.folder import Folder, Point, Row, differing, read

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


def missing(folders: Iterable[Path]) -> list[str]:
    """Returns what is not there yet, a line each: shards by their names, and those that
    have no finished run."""
    numbers: dict[tuple[Path, int], set[int]] = {}
    lines = []
    for folder in folders:
        if not (folder / "results.csv").exists():
            lines.append(f"{folder} has no finished run yet")
        if name := re.fullmatch(SHARD, folder.name):
            group = numbers.setdefault((folder.parent, int(name[2])), set())
            group.add(int(name[1]))
    for (parent, count), here in numbers.items():
        lines += [
            f"{parent}/shard-{index}-of-{count} is not there"
            for index in range(count)
            if index not in here
        ]
    return lines


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
    for source in sources[1:]:
        if names := differing(first.config, source.config):
            raise ValueError(
                f"{first.directory} and {source.directory} hold results of different "
                f"configurations ({', '.join(names)} differ)"
            )
    begun = [x for source in sources for x in environment.starts(source.directory)]
    environment.check_digests(out, begun)
    where: dict[tuple, tuple[Folder, Row]] = {}
    for source in sources:
        for row in source.rows:
            key = tuple(float(row[name]) for name in source.names)
            other, known = where.setdefault(key, (source, row))
            if scores(known) != scores(row):
                run = source.told(dict(zip(source.names, key, strict=True)))
                raise ValueError(
                    f"the run with {run} is in {other.directory} and in "
                    f"{source.directory}, with different scores"
                )
    points = [dict(zip(first.names, key, strict=True)) for key in where]
    results = Folder(out, first.config, points, command=first.command)
    with results.locked():
        results.begin()
        for source in sources:
            new = [p for p in results.pending if where[tuple(p.values())][0] is source]
            if new:
                take(results, source, new)
        environment.write(out, begun)
    return results


def take(results: Folder, source: Folder, points: Sequence[Point]) -> None:
    """Copies runs of another folder, in the order in which a session writes them."""
    results.add_rounds(source.of_runs(source.rounds, points))
    results.add_assignments(points, [source.assigned(point) for point in points])
    for point in points:
        for path in (Folder.model_path, Folder.communities_path):
            old, new = path(source, point), path(results, point)
            if old.exists():
                new.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(old, new)
    results.add_rows(source.of_runs(source.rows, points))


def scores(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in TIMES}
