"""What a run leaves on disk, and what is reused of it.

config.json       the configuration without the swept values
results.csv       a row a run
history.csv       a row a run a round
assignments.npz   the cluster of every example in every run
models/           the global model of every run
checkpoints/      the state to go on from
figures/
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

from fcjax.checkpoints import Position

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
        self._config = dict(config)
        self.names = tuple(points[0])
        self._points = tuple(points)
        self._resume = resume
        self._check(resume)
        self.rows = read_rows(directory / "results.csv") if resume else []
        self.history = read_rows(directory / "history.csv") if resume else []
        finished = {self._key(row) for row in self.rows}
        self.pending = [p for p in points if self._key(p) not in finished]
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
        if resume and found != self._config:
            missing = object()
            names = [
                k
                for k in found | self._config
                if found.get(k, missing) != self._config.get(k, missing)
            ]
            raise ValueError(
                f"--out {self.directory} holds results of another configuration "
                f"({', '.join(sorted(names))} differ); choose another folder, or pass "
                "--no-resume to write over it"
            )

    def begin(self) -> None:
        """Creates the folder and writes the configuration."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self._resume:
            # First of all: a kill in between must not leave the rows of another
            # configuration beside the new one.
            for name in ("results.csv", "history.csv", "assignments.npz"):
                (self.directory / name).unlink(missing_ok=True)
            shutil.rmtree(self.directory / "models", ignore_errors=True)
        # Nobody else's: a later grid of the same runs would leave a gap in the history.
        for folder in self.checkpoints.parent.glob("*"):
            if not self._resume or folder != self.checkpoints:
                shutil.rmtree(folder)
        text = json.dumps(self._config, indent=2, sort_keys=True) + "\n"
        _replace(self.directory / "config.json", text)

    def add_history(
        self, position: Position, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Appends a round of all pending runs.

        A killed grid goes on from its last checkpoint, which may lie some rounds before
        the last row: what follows it is dropped when the first round arrives.
        """
        path = self.directory / "history.csv"
        rows = [
            {"stage_index": position.stage, "round": position.round, **r} for r in rows
        ]
        if not self._columns:
            pending = {self._key(point) for point in self.pending}
            self.history = [
                row
                for row in self.history
                if self._key(row) not in pending or _position(row) < position
            ]
        self.history += rows
        if not set().union(*rows) <= set(self._columns):
            self._columns = _columns(self.history)
            _replace(path, _csv(self.history))
        else:
            with path.open("a") as file:
                file.write(_csv(rows, header=False, names=self._columns))
                file.flush()
                os.fsync(file.fileno())

    @property
    def checkpoints(self) -> Path:
        """Where the pending runs save: a folder of their own, since a grid that asks
        for other runs has another state."""
        keys = repr([self._key(point) for point in self.pending])
        return self.directory / "checkpoints" / sha256(keys.encode()).hexdigest()[:8]

    @property
    def settings(self) -> list[str]:
        """See `settings_of`."""
        return settings_of(self.names, self._points)

    def model_path(self, point: Point) -> Path:
        """Where the global model of a run is kept."""
        return self.directory / "models" / model_name(point, self.names)

    def asked(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the rows of the runs that were asked for."""
        keys = {self._key(point) for point in self._points}
        return [row for row in rows if self._key(row) in keys]

    def history_of(self, point: Point) -> list[dict[str, Any]]:
        """Returns the rounds of one run, in order."""
        return [row for row in self.history if self._key(row) == self._key(point)]

    def add_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds finished runs to `results.csv`, sorted by their swept values."""
        self.rows = sorted([*self.rows, *map(dict, rows)], key=self._key)
        _replace(self.directory / "results.csv", _csv(self.rows))

    def add_assignments(
        self,
        points: Sequence[Point],
        clients: np.ndarray,
        clusters: np.ndarray,
    ) -> None:
        """Adds runs to `assignments.npz`.

        Args:
            points: G runs.
            clients: [G, P], who holds an example; -1 where nobody does.
            clusters: [G, P], its cluster; -1 where the method gives it none.
        """
        path = self.directory / "assignments.npz"
        values = {name: np.array([p[name] for p in points]) for name in self.names}
        new = {**values, "client": clients, "cluster": clusters}
        if path.exists() and self.rows:
            # Only finished runs: a kill right after this file leaves others in it.
            finished = {self._key(row) for row in self.rows}
            with np.load(path) as old:
                keys = zip(*(old[name] for name in self.names), strict=True)
                kept = [tuple(map(float, key)) in finished for key in keys]
                new = {
                    name: np.concatenate([old[name][kept], new[name]]) for name in new
                }
        new["example"] = np.arange(clusters.shape[1])
        temporary = path.with_suffix(".tmp.npz")
        np.savez_compressed(temporary, **new)  # pyright: ignore[reportArgumentType]
        temporary.replace(path)

    def _key(self, row: Mapping[str, Any]) -> tuple[float, ...]:
        return tuple(float(row[name]) for name in self.names)


def model_name(point: Point, names: Sequence[str]) -> str:
    return ",".join(f"{name}={float(point[name]):.10g}" for name in names) + ".npz"


def settings_of(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns what tells the settings of a grid apart: p or alpha, and what varies but
    for the seed."""
    level, *others = names
    varied = [n for n in others if len({float(row[n]) for row in rows}) > 1]
    return [level, *(name for name in varied if name != "seed")]


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
