"""What a command leaves on disk, for the session that writes it and for who reads it.

config.json       the configuration without the swept values, and the command
results.csv       a row a run
history.csv       a row a run a round
environment.json  commit, versions, machine and seconds of every start
assignments.npz   the cluster of every example in every run
models/           the global model of every run
communities/      which clients' clusters are the same, where the method finds out
checkpoints/      the state to go on from
figures/
tensorboard/, wandb/   with --log
.lock             held while a command writes
"""

import csv
import io
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import numpy as np

from fcjax.engine import Position
from fcjax.sweep import communities, frozen
from fcjax.sweep.flags import Common
from fcjax.sweep.load import FLAGS, load
from fcjax.sweep.states import name_of

if TYPE_CHECKING:
    import pandas as pd

FILES = ("results.csv", "history.csv", "environment.json", "assignments.npz")
FOLDERS = ("models", "communities", "checkpoints", "figures", "tensorboard")
DERIVED_FILES = (
    *("table.md", "table.tex", "page.html", "assignments.csv", "embeddings.npz"),
    *("choice.csv", "choice.png", "how_many.csv", "how_many.png"),
    *("comparison.csv", "comparison.png", "predictions.csv"),
)
DERIVED_FOLDERS = ("consensus", "export", "fit")
"""What the commands for finished runs make of them."""

Point = Mapping[str, float | int]
"""One run's values by flag: {"p": 0.25, "seed": 0, ...}. A session has those of all
flags that take several values; a reader has those of the axes."""
Row = dict[str, Any]
"""A run, or a round of one, by column; None is a cell that is empty in the table."""


class Folder:
    """A results folder; opening one writes nothing.

    Args:
        directory: created by the first write.
        config: what all its runs share.
        points: the swept values of the runs that are asked for; None is all that have
            ended.
        command: the script and flags that ask for them, see `flags.command`; None is
            the one that ran into it last.
        resume: reuse what is there; otherwise it is written over.
        writes: whether what is added to it is written, too: one process does.

    Raises:
        ValueError: the folder holds results of another configuration, or is damaged.
    """

    def __init__(
        self,
        directory: Path,
        config: Mapping[str, Any],
        points: Sequence[Point] | None = None,
        *,
        command: Mapping[str, Any] | None = None,
        resume: bool = True,
        writes: bool = True,
    ):
        self.writes = writes
        self.directory = directory
        self.config = {k: v for k, v in config.items() if k != "command"}
        self.command = command or config.get("command")
        self.names: tuple[str, ...] = tuple(config["swept"])
        """The axes: what tells runs apart. The first is the heterogeneity, the last the
        seed."""
        self.columns = (*self.names, *config.get("defaults", ()))
        """The axes, and the settings with a default that may follow from an axis."""
        self._resume = resume
        if resume:
            self._check()
        self._seen = _bytes(directory / "results.csv")
        self.rows = read_rows(directory / "results.csv") if resume else []
        self.rounds = read_rows(directory / "history.csv") if resume else []
        """Of history.csv, in the order in which they were run."""
        self._points = tuple(map(self._point, self.rows) if points is None else points)
        self._asked = set(map(self.key, self._points))
        self._finished = set(map(self.key, self.rows))
        self._running: set[tuple] = set()  # whose history this session has begun
        self._columns: list[str] = []  # of history.csv, once this session wrote it
        if points is not None and self.rows and self.pending:
            self._check_assignments()

    def _check(self) -> None:
        if not (self.directory / "config.json").exists():
            if (self.directory / "results.csv").exists():
                raise ValueError(
                    f"--out {self.directory} holds results without their config.json; "
                    "choose another folder, or pass --no-resume to write over it"
                )
            return
        kept = read_config(self.directory)
        if "preset" not in kept and "preset" in self.config:
            raise ValueError(
                f"--out {self.directory} holds results of an earlier fcjax, to which "
                "this version adds none; choose another folder, or pass --no-resume to "
                "write over it"
            )
        if names := differing(kept, self.config):
            each = [
                f"{'flags that are given' if name == 'swept' else name}: "
                f"{_shown(kept.get(name))} there, {_shown(self.config.get(name))} here"
                for name in names
                if name != "defaults"  # all that is not given
            ]
            raise ValueError(
                f"--out {self.directory} holds results of another configuration "
                f"({'; '.join(each)}); choose another folder, or pass --no-resume to "
                "write over it"
            )

    def _check_assignments(self) -> None:
        """Raises ValueError where what runs will be added to cannot be read."""
        if (self.directory / "assignments.npz").exists():
            _ = self._arrays

    # What it holds.

    @property
    def results(self) -> "pd.DataFrame":
        """A line a run that has ended, as in results.csv; NaN where a cell is empty.

        Examples:
            >>> import fcjax
            >>> run = fcjax.open("runs/spherical")
            >>> run.results[["p", "seed", "status"]]
                  p  seed status
            0  0.25     0     ok
        """
        import pandas as pd

        return pd.DataFrame(self.rows)

    @property
    def history(self) -> "pd.DataFrame":
        """A line a run a round, as in history.csv; NaN where a cell is empty.

        Examples:
            >>> import fcjax
            >>> run = fcjax.open("runs/spherical")
            >>> run.history[["stage", "round", "participants"]]
                 stage  round  participants
            0  cluster      1             4
            1  cluster      2             4
        """
        import pandas as pd

        return pd.DataFrame(self.rounds)

    def point(self, /, **where: float | int | str) -> Point:
        """Returns the axis values of the run that has these of them.

        Args:
            where: axis values, as numbers or as their text.

        Raises:
            ValueError: one is no axis or no number, no run has them, or several runs
                have them. The line names the axes in which those differ.
        """
        rows = self.rows_of(**where)
        if len(rows) > 1:
            each = {
                name: dict.fromkeys(f"{r[name]:g}" for r in rows) for name in self.names
            }
            several = [f"{k} ({', '.join(x)})" for k, x in each.items() if len(x) > 1]
            told = "".join(f" with {k}={v}" for k, v in where.items())
            raise ValueError(
                f"{self.directory} has {len(rows)} runs{told}; choose one by its value "
                f"of {' and '.join(several)}"
            )
        return self._point(rows[0])

    def rows_of(self, /, **where: float | int | str) -> list[Row]:
        """Returns the rows of all runs that have these axis values.

        Raises:
            ValueError: one is no axis or no number, or no run has them.
        """
        for name, value in where.items():
            if name not in self.names or isinstance(value_of(str(value)), str | None):
                accepted = " ".join(f"{name}=VALUE" for name in self.names)
                told = f"{name}={value}"
                raise ValueError(f"where takes {accepted}, got {told!r}")
        found = [
            row
            for row in self.rows
            if all(float(row[k]) == float(value) for k, value in where.items())
        ]
        if found:
            return found
        told = " ".join(f"{name}={value}" for name, value in where.items())
        held = {name: dict.fromkeys(str(r[name]) for r in self.rows) for name in where}
        there = "; ".join(f"{k} is {', '.join(held[k])}" for k in held)
        raise ValueError(f"no run of {self.directory} has {told}: {there}")

    def assignments(self, **where: float | int | str) -> "pd.DataFrame":
        """Returns what a run made of every example, in the order of the data set, with
        those of an extra split behind it: `client`, who holds it, -1 where nobody does;
        `cluster`, -1 where it has none; and `community` where the method finds them.

        Args:
            where: axis values that one run alone has, see `point`.

        Examples:
            >>> import fcjax
            >>> run = fcjax.open("runs/spherical")
            >>> run.assignments(seed=0).head(2)
               client  cluster
            0       0        0
            1       0        0
        """
        import pandas as pd

        return pd.DataFrame(self.assigned(self.point(**where)))

    def embedding(
        self, data_dir: Path | None = None, **where: float | int | str
    ) -> np.ndarray:
        """Returns the embedding [P, D] of the data set by a run's global model.

        Args:
            data_dir: where TFDS data sets are prepared, by default where the run
                found them.
            where: as in `assignments`.

        Raises:
            ValueError: the clients are on their own, or the data cannot be read.

        Examples:
            >>> import fcjax
            >>> run = fcjax.open("runs/spherical")
            >>> run.embedding().shape
            (60, 2)
        """
        dataset, _ = load(self.flags(data_dir=data_dir))
        return frozen.predict(self.model(**where), dataset.examples).embedding

    def model(self, **where: float | int | str) -> frozen.Frozen:
        """Returns the global model of a run, which `frozen.predict` applies.

        Args:
            where: as in `assignments`.

        Raises:
            ValueError: the clients of the run are on their own.

        Examples:
            >>> import fcjax
            >>> run = fcjax.open("runs/spherical")
            >>> run.model(seed=0).centers.shape
            (3, 2)
        """
        path = self.model_path(self.point(**where))
        if not path.exists():
            raise ValueError(
                f"{self.directory} kept no model that all its clients share"
            )
        return frozen.read(path)

    def communities(self, point: Point) -> communities.Kept | None:
        """Returns which clients' clusters are the same in a run; None where its method
        does not find out."""
        path = self.communities_path(point)
        return communities.read(path) if path.exists() else None

    def assigned(self, point: Point) -> dict[str, np.ndarray]:
        """Returns the columns of `assignments`, [P] each."""
        same = [np.isclose(self._arrays[name], point[name]) for name in self.names]
        run = int(np.flatnonzero(np.all(same, axis=0))[0])
        columns = ("client", "cluster", "community")
        return {k: self._arrays[k][run] for k in columns if k in self._arrays}

    @cached_property
    def _arrays(self) -> dict[str, np.ndarray]:
        # Unpacked once: a file of the archive is all runs.
        path = self.directory / "assignments.npz"
        try:
            with np.load(path) as file:
                return dict(file)
        except Exception as error:  # of a damaged archive almost any type
            raise ValueError(f"{path} cannot be read ({error})") from error

    def flags(self, *, data_dir: Path | None) -> Common:
        """Returns the flags that the data of the runs came from.

        Args:
            data_dir: where TFDS data sets are prepared. None is the directory of the
                last start, if that directory still exists.
        """
        last = starts(self.directory)[-1:]
        known = last[0].get("data_dir") if last else None
        if data_dir is None and known is not None and Path(known).is_dir():
            data_dir = Path(known)
        # Folders of before a flag was one have none of it.
        flags = {name: self.config[name] for name in FLAGS if name in self.config}
        flags["image_shape"] = tuple(flags["image_shape"])
        return Common(**flags, data_dir=data_dir)

    # Which runs.

    def is_asked(self, point: Point) -> bool:
        return self.key(point) in self._asked

    def is_pending(self, point: Point) -> bool:
        return self.is_asked(point) and self.key(point) not in self._finished

    @property
    def pending(self) -> list[Point]:
        return [point for point in self._points if self.is_pending(point)]

    @property
    def first(self) -> Point:
        """The run whose figures are drawn."""
        return self._points[0]

    @property
    def settings(self) -> list[str]:
        """What tells the settings of the grid apart: what it is dealt by, such as p,
        and what varies but for the seed."""
        level, *others = self.names
        varied = [n for n in others if len({float(p[n]) for p in self._points}) > 1]
        return [level, *(name for name in varied if name != "seed")]

    def asked(self, rows: Iterable[Row]) -> list[Row]:
        """Returns the rows, of `rows` or `rounds`, of the runs that were asked for."""
        return [row for row in rows if self.key(row) in self._asked]

    def of_runs(self, rows: Iterable[Row], points: Iterable[Point]) -> list[Row]:
        """Returns those rows that are of these runs."""
        runs = set(map(self.key, points))
        return [row for row in rows if self.key(row) in runs]

    def told(self, point: Point) -> str:
        return ", ".join(f"{name} {point[name]:g}" for name in [*self.settings, "seed"])

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

    def log_name(self, point: Point) -> str:
        """What a run is called where its rounds are logged: by what varies."""
        return self._file_name(point, [*self.settings, "seed"])

    def model_path(self, point: Point) -> Path:
        """Where the global model of a run is kept."""
        # All swept values may be too long for the name of a file.
        name = self._file_name(point, [self.names[0], self.names[-1]])
        return self.directory / "models" / f"{name}.npz"

    def communities_path(self, point: Point) -> Path:
        """Where the communities of a run are kept."""
        return self.directory / "communities" / self.model_path(point).name

    def _file_name(self, point: Point, shown: Sequence[str]) -> str:
        values = {name: float(point[name]) for name in self.names}
        digest = sha256(repr(values).encode()).hexdigest()[:8]
        return ",".join([*(f"{name}={values[name]:g}" for name in shown), digest])

    # What a session writes.

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other commands out of the folder.

        Raises:
            ValueError: another one is in it, or has changed it since it was opened.
        """
        # The system lets go of it when a process dies.
        lock = filelock.FileLock(self.directory / ".lock", is_singleton=True)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise ValueError(
                f"--out {self.directory} is in use by another command: wait for it, or "
                "choose another folder"
            ) from None
        except OSError as error:
            raise ValueError(
                f"--out {self.directory} cannot be written into ({error.strerror})"
            ) from error
        try:
            if _bytes(self.directory / "results.csv") != self._seen:
                raise ValueError(
                    f"another command has just ended in --out {self.directory}: start "
                    "this one again"
                )
            yield
        finally:
            lock.release()

    def begin(self) -> None:
        """Creates the folder and writes the configuration."""
        if not self.writes:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        kept = (self.directory / name for name in ("config.json", "results.csv"))
        if not self._resume and any(path.exists() for path in kept):
            # First of all: a kill in between must not leave the rows of another
            # configuration beside the new one.
            for name in (*FILES, *DERIVED_FILES):
                (self.directory / name).unlink(missing_ok=True)
            for name in (*FOLDERS, *DERIVED_FOLDERS):
                shutil.rmtree(self.directory / name, ignore_errors=True)
        told = self.config | ({"command": self.command} if self.command else {})
        text = json.dumps(told, indent=2, sort_keys=True) + "\n"
        write_whole(self.directory / "config.json", text)

    def begin_runs(self, points: Sequence[Point]) -> Path:
        """Returns where runs that go side by side save their state, and drops what
        others saved: had those run on, it would leave a gap in their history."""
        name = name_of(*map(self.key, points))
        folder = self.directory / "checkpoints" / name
        for other in folder.parent.glob("*"):
            if other != folder and self.writes:
                shutil.rmtree(other)
        return folder

    def add_history(self, position: Position, rows: Sequence[Row]) -> None:
        """Appends a round of some runs.

        A killed grid goes on from its last checkpoint, which may lie some rounds before
        the last row: what follows it is dropped when the first round arrives.
        """
        path = self.directory / "history.csv"
        rows = [
            {"stage_index": position.stage, "round": position.round, **r} for r in rows
        ]
        begun = set(map(self.key, rows)) - self._running
        if begun:
            self._running |= begun
            self.rounds = [
                row
                for row in self.rounds
                if self.key(row) not in begun
                or (row["stage_index"], row["round"]) < position
            ]
        self.rounds += rows
        if not self.writes:
            return
        if begun or not set().union(*rows) <= set(self._columns):
            self._columns = columns_of(self.rounds)
            write_whole(path, _csv(self.rounds, self._columns))
        else:
            with path.open("a") as file:
                file.write(_csv(rows, self._columns, header=False))
                file.flush()
                os.fsync(file.fileno())

    def add_rounds(self, rows: Sequence[Row]) -> None:
        """Adds rounds of finished runs that another folder held; what a session or a
        merge wrote of them here before it was killed gives way."""
        runs = set(map(self.key, rows))
        self.rounds = [r for r in self.rounds if self.key(r) not in runs] + [*rows]
        if self.writes:
            write_whole(self.directory / "history.csv", _csv(self.rounds))

    def history_of(self, points: Sequence[Point]) -> list[list[Row]]:
        """Returns the rounds of each of these runs, in order."""
        found = {self.key(point): [] for point in points}
        for row in self.rounds:
            if self.key(row) in found:
                found[self.key(row)].append(row)
        return list(found.values())

    def add_rows(self, rows: Iterable[Row]) -> None:
        """Adds finished runs to `results.csv`, sorted by their swept values."""
        self.rows = sorted([*self.rows, *rows], key=self.key)
        self._finished = set(map(self.key, self.rows))
        if self.writes:
            write_whole(self.directory / "results.csv", _csv(self.rows))

    def add_assignments(
        self, points: Sequence[Point], found: Sequence[Mapping[str, np.ndarray]]
    ) -> None:
        """Adds runs to `assignments.npz`, with the columns of `assigned`; communities
        only where all have them."""
        path = self.directory / "assignments.npz"
        new = {name: np.array([p[name] for p in points]) for name in self.names}
        for name in found[0]:
            if all(name in each for each in found):
                new[name] = np.stack([each[name] for each in found])
        if path.exists() and self.rows:
            # Only finished runs: a kill right after this file leaves others in it.
            old = self._arrays
            keys = zip(*(old[name] for name in self.names), strict=True)
            kept = [tuple(map(float, key)) in self._finished for key in keys]
            new = {k: np.concatenate([old[k][kept], new[k]]) for k in new}
        new["example"] = np.arange(new["cluster"].shape[1])
        temporary = path.with_suffix(".tmp.npz")
        np.savez_compressed(temporary, **new)  # pyright: ignore[reportArgumentType]
        temporary.replace(path)
        self.__dict__.pop("_arrays", None)

    def key(self, row: Mapping[str, Any]) -> tuple[float, ...]:
        """Returns the swept values of a row: which run it is of."""
        return tuple(float(row[name]) for name in self.names)

    def _point(self, row: Row) -> Point:
        return {name: row[name] for name in self.names}


def read(directory: str | Path) -> Folder:
    """Returns what a command left in a folder: `fcjax.open`.

    Raises:
        ValueError: it holds no finished run, or one that is too old to be read.
    """
    folder = Folder(Path(directory), read_config(Path(directory)))
    if not folder.rows:
        raise ValueError(f"{directory} holds no finished run yet")
    return folder


def parsed(where: Sequence[str]) -> dict[str, str]:
    """Returns what --where holds, NAME=VALUE each, for `Folder.point`; raises
    ValueError where a name comes twice."""
    parts = [text.partition("=") for text in where]
    found = {name: value for name, _, value in parts}
    if len(found) < len(parts):
        raise ValueError(f"--where takes a name once, got {' '.join(where)}")
    return found


def starts(directory: Path) -> list[dict[str, Any]]:
    """Returns the starts in a folder's environment.json, oldest first; none for folders
    of an earlier fcjax.

    Raises:
        ValueError: the file is damaged.
    """
    path = directory / "environment.json"
    try:
        return json.loads(text_of(path) or "[]")
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it is no JSON") from error


def read_config(directory: Path) -> dict[str, Any]:
    """Returns config.json; raises ValueError where there is none, a damaged or an old
    one."""
    path = directory / "config.json"
    if not path.exists():
        raise ValueError(f"{directory} holds no run: it has no config.json")
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it is no JSON") from error
    if "swept" not in config:
        raise ValueError(
            f"{directory} is of an earlier fcjax, whose config.json does not say what "
            "is swept: it is read by the version that wrote it"
        )
    return config


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Returns what two configurations have different values of, or only one has,
    whatever commands asked for their runs."""
    missing = object()
    names = {**one, **other}.keys() - {"command"}
    return sorted(k for k in names if one.get(k, missing) != other.get(k, missing))


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def text_of(path: Path) -> str:
    """Returns what a file holds, nothing where there is none; raises ValueError where
    that is no text."""
    try:
        return path.read_text() if path.exists() else ""
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is damaged: it is no text") from error


def read_rows(path: Path) -> list[Row]:
    """Returns the rows of a table, none where the file is missing."""
    rows = list(csv.DictReader(io.StringIO(text_of(path))))
    # A kill in the middle of a write leaves a last row that is cut short.
    whole = (row for row in rows if None not in row.values())
    return [{name: value_of(text) for name, text in row.items()} for row in whole]


def value_of(text: str) -> int | float | str | None:
    """Returns a cell as it was before it was written."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None


def columns_of(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _csv(
    rows: Sequence[Row], columns: Sequence[str] = (), *, header: bool = True
) -> str:
    text = io.StringIO()
    names = columns or columns_of(rows)
    writer = csv.DictWriter(text, names, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_whole(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_suffix(path.suffix + ".tmp")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
