"""What a run leaves on disk, and what is reused of it.

config.json       the configuration without the swept values
results.csv       a row a run
history.csv       a row a run a round
assignments.npz   the cluster of every example in every run
models/           the global model of every run
communities/      which clients' clusters are the same, where the method finds out
checkpoints/      the state to go on from
figures/
tensorboard/, wandb/   with --log
"""

import csv
import io
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from fcjax.sweep.states import Position

Point = Mapping[str, float | int]
"""One run's swept values, by flag: {"p": 0.25, "seed": 0, ...}."""


class Results:
    """A results folder; opening one writes nothing.

    Args:
        directory: the folder, created by the first write.
        config: what all its runs share.
        points: the swept values of the runs that are asked for.
        resume: reuse what is there; otherwise it is written over.

    Raises:
        ValueError: the folder holds results of another configuration.
    """

    def __init__(
        self,
        directory: Path,
        config: Mapping[str, Any],
        points: Sequence[Point],
        *,
        resume: bool,
    ):
        self.directory = directory
        self.config = dict(config)
        self.names = tuple(points[0])
        self._points = tuple(points)
        self._resume = resume
        self._check(resume)
        self.rows = read_rows(directory / "results.csv") if resume else []
        self.history = read_rows(directory / "history.csv") if resume else []
        self._asked = {self._key(point) for point in points}
        self._finished = {self._key(row) for row in self.rows}
        self._running: set[tuple] = set()  # whose history this session has begun
        self._columns: list[str] = []  # of history.csv, once this session wrote it

    def _check(self, resume: bool) -> None:
        path = self.directory / "config.json"
        if not path.exists():
            if resume and (self.directory / "results.csv").exists():
                raise ValueError(
                    f"--out {self.directory} holds results without their config.json; "
                    "choose another folder, or pass --no-resume to write over it"
                )
            return
        found = json.loads(path.read_text())
        names = differing(found, self.config)
        if resume and names:
            raise ValueError(
                f"--out {self.directory} holds results of another configuration "
                f"({', '.join(names)} differ); choose another folder, or pass "
                "--no-resume to write over it"
            )

    def place_of(self, points: Sequence[Point]) -> str:
        """Returns which of the runs these are, "run 3 of 9" or "runs 4 to 6 of 9", and
        nothing where there is but one."""
        places = [self._points.index(point) + 1 for point in points]
        if len(self._points) == 1:
            return ""
        first = f"run {places[0]}"
        if len(places) > 1:
            first = f"runs {places[0]} to {places[-1]}"
        return f"{first} of {len(self._points)}"

    def is_asked(self, point: Point) -> bool:
        return self._key(point) in self._asked

    def is_pending(self, point: Point) -> bool:
        return self.is_asked(point) and self._key(point) not in self._finished

    @property
    def first(self) -> Point:
        """The run whose figures are drawn."""
        return self._points[0]

    @property
    def pending(self) -> list[Point]:
        return [point for point in self._points if self.is_pending(point)]

    def begin(self) -> None:
        """Creates the folder and writes the configuration."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self._resume:
            # First of all: a kill in between must not leave the rows of another
            # configuration beside the new one.
            for name in ("results.csv", "history.csv", "assignments.npz"):
                (self.directory / name).unlink(missing_ok=True)
            for name in ("models", "communities", "checkpoints", "tensorboard"):
                shutil.rmtree(self.directory / name, ignore_errors=True)
        text = json.dumps(self.config, indent=2, sort_keys=True) + "\n"
        _replace(self.directory / "config.json", text)

    def begin_call(self, points: Sequence[Point]) -> Path:
        """Returns where runs that go side by side save their state, and drops what
        others saved: had those run on, it would leave a gap in their history."""
        keys = repr([self._key(point) for point in points])
        folder = self.directory / "checkpoints" / sha256(keys.encode()).hexdigest()[:8]
        for other in folder.parent.glob("*"):
            if other != folder:
                shutil.rmtree(other)
        return folder

    def add_history(
        self, position: Position, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Appends a round of some runs.

        A killed grid goes on from its last checkpoint, which may lie some rounds before
        the last row: what follows it is dropped when the first round arrives.
        """
        path = self.directory / "history.csv"
        rows = [
            {"stage_index": position.stage, "round": position.round, **r} for r in rows
        ]
        begun = {self._key(row) for row in rows} - self._running
        if begun:
            self._running |= begun
            self.history = [
                row
                for row in self.history
                if self._key(row) not in begun or _position(row) < position
            ]
        self.history += rows
        if begun or not set().union(*rows) <= set(self._columns):
            self._columns = _columns(self.history)
            _replace(path, _csv(self.history))
        else:
            with path.open("a") as file:
                file.write(_csv(rows, header=False, names=self._columns))
                file.flush()
                os.fsync(file.fileno())

    def add_rounds(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rounds of finished runs that another folder held; what a session or a
        merge wrote of them here before it was killed gives way."""
        runs = {self._key(row) for row in rows}
        kept = [row for row in self.history if self._key(row) not in runs]
        self.history = [*kept, *map(dict, rows)]
        _replace(self.directory / "history.csv", _csv(self.history))

    @property
    def settings(self) -> list[str]:
        """See `settings_of`."""
        return settings_of(self.names, self._points)

    def model_path(self, point: Point) -> Path:
        """Where the global model of a run is kept."""
        return self.directory / "models" / f"{run_name(point, self.names)}.npz"

    def communities_path(self, point: Point) -> Path:
        """Where the communities of a run are kept."""
        return self.directory / "communities" / self.model_path(point).name

    def log_name(self, point: Point) -> str:
        """What a run is called where its rounds are logged: by what varies."""
        shown = [f"{name}={point[name]:g}" for name in [*self.settings, "seed"]]
        return ",".join([*shown, digest(point, self.names)])

    def asked(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the rows of the runs that were asked for."""
        return [row for row in rows if self._key(row) in self._asked]

    def history_of(self, points: Sequence[Point]) -> list[list[dict[str, Any]]]:
        """Returns the rounds of each of these runs, in order."""
        found = {self._key(point): [] for point in points}
        for row in self.history:
            if self._key(row) in found:
                found[self._key(row)].append(row)
        return list(found.values())

    def add_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds finished runs to `results.csv`, sorted by their swept values."""
        self.rows = sorted([*self.rows, *map(dict, rows)], key=self._key)
        self._finished = {self._key(row) for row in self.rows}
        _replace(self.directory / "results.csv", _csv(self.rows))

    def add_assignments(
        self,
        points: Sequence[Point],
        clients: np.ndarray,
        clusters: np.ndarray,
        communities: np.ndarray | None = None,
    ) -> None:
        """Adds runs to `assignments.npz`.

        Args:
            points: G runs.
            clients: [G, P], who holds an example; -1 where nobody does.
            clusters: [G, P], its cluster; -1 where the method gives it none.
            communities: [G, P], its cluster's community, where the method finds them;
                -1 where it has none.
        """
        path = self.directory / "assignments.npz"
        values = {name: np.array([p[name] for p in points]) for name in self.names}
        new = {**values, "client": clients, "cluster": clusters}
        if communities is not None:
            new["community"] = communities
        if path.exists() and self.rows:
            # Only finished runs: a kill right after this file leaves others in it.
            with np.load(path) as old:
                keys = zip(*(old[name] for name in self.names), strict=True)
                kept = [tuple(map(float, key)) in self._finished for key in keys]
                new = {
                    name: np.concatenate([old[name][kept], new[name]]) for name in new
                }
        new["example"] = np.arange(clusters.shape[1])
        temporary = path.with_suffix(".tmp.npz")
        np.savez_compressed(temporary, **new)  # pyright: ignore[reportArgumentType]
        temporary.replace(path)

    def _key(self, row: Mapping[str, Any]) -> tuple[float, ...]:
        return tuple(float(row[name]) for name in self.names)


def run_name(point: Point, names: Sequence[str]) -> str:
    """Returns a name for the files of a run: its first and last swept value, p and
    seed, and a digest of all of them, whose names may be too long for a file."""
    shown = [f"{name}={float(point[name]):g}" for name in (names[0], names[-1])]
    return ",".join([*shown, digest(point, names)])


def digest(point: Point, names: Sequence[str]) -> str:
    values = {name: float(point[name]) for name in names}
    return sha256(repr(values).encode()).hexdigest()[:8]


def settings_of(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns what tells the settings of a grid apart: what it is dealt by, such as p,
    and what varies but for the seed."""
    level, *others = names
    varied = [n for n in others if len({float(row[n]) for row in rows}) > 1]
    return [level, *(name for name in varied if name != "seed")]


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Returns what two configurations have different values of, or only one has."""
    missing = object()
    names = {**one, **other}
    return sorted(k for k in names if one.get(k, missing) != other.get(k, missing))


def _position(row: Mapping[str, Any]) -> Position:
    return Position(int(row["stage_index"]), int(row["round"]))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a table, none where the file is missing."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    # A kill in the middle of a write leaves a last row that is cut short.
    return [row for row in rows if None not in row.values()]


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _csv(rows: Sequence[Mapping[str, Any]], *, header: bool = True, names=None) -> str:
    names = names or _columns(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _replace(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_suffix(path.suffix + ".tmp")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
