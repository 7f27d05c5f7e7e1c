"""The results folder of an experiment: what a command writes, and what is read of it.

config.json       the configuration without the swept values, and the command
results.csv       one row per run
history.csv       one row per round of a run
environment.json  commit, versions, machine and seconds of every start
assignments.npz   the cluster of every example in every run
models/           the global model of every run
communities/      which clients' clusters are the same, where the method finds out
checkpoints/      the state to go on from
figures/
tensorboard/, wandb/   with --log
.lock             held while a command writes
"""

import dataclasses
import io
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, NamedTuple

import filelock
import numpy as np
import pandas as pd
from jaxtyping import Bool, Int, Integer

from fcjax.data import Dataset, Scaling, stratified_subset
from fcjax.data.images import image_files
from fcjax.data.source import ARRAY, SOURCE, Source, load_source
from fcjax.engine import Position
from fcjax.results import exported
from fcjax.results.environment import digest, environment

CONTENTS = (
    *("results.csv", "history.csv", "environment.json", "assignments.npz"),
    *("table.md", "table.tex", "report.html", "assignments.csv", "embeddings.npz"),
    *("choice.csv", "choice.png", "how_many.csv", "how_many.png"),
    *("comparison.csv", "comparison.png", "predictions.csv"),
    *("models", "communities", "checkpoints", "figures", "tensorboard"),
    *("consensus", "export", "fit"),
)
"""What a folder may hold besides config.json: of the command that runs the grid, and of
the commands for finished runs. --no-resume removes all of it, the rows first."""
DIGESTS = ("examples", "labels", "clients")
"""The parts of the data that a start has a digest of, where the data has them."""

Point = Mapping[str, float | int]
"""One run's values by flag: {"p": 0.25, "seed": 0, ...}. A session has those of all
flags that take several values; a reader has those of the axes."""
Row = dict[str, Any]
"""A run, or a round of one, by column; None is a cell that is empty in the table."""


class Examples(NamedTuple):
    """The scored examples of a folder's runs."""

    dataset: Dataset
    names: list[str]
    """The files of a folder of images, or row numbers of the whole data set."""


# --- Communities


class CommunityAssignments(NamedTuple):
    """The communities of one run, with the examples that they are of."""

    indices: Integer[np.ndarray, "M N"]
    """Examples that each client holds; one that several hold is there several times."""
    mask: Bool[np.ndarray, "M N"]
    """False where one of them is repeated."""
    cluster: Integer[np.ndarray, "M N"]
    """What each client found in the end; -1 where one is repeated."""
    community: Integer[np.ndarray, "M K"]
    """Of each client's cluster; -1 where it has none."""
    edges: Bool[np.ndarray, "M K M K"]
    """The association graph of the last round."""
    graph_cluster: Integer[np.ndarray, "M N"]
    """The clusters that it is a graph of; -1 where an example is repeated."""


def global_clusters(
    cluster: Integer[np.ndarray, "M N"], community: Integer[np.ndarray, "M K"]
) -> Int[np.ndarray, "M N"]:
    """Returns communities as clusters of all clients: a cluster without one is one of
    its own. -1 where an example has no cluster.
    """
    number = np.arange(community.size).reshape(community.shape)
    names = np.where(community >= 0, community, community.max() + 1 + number)
    found = np.take_along_axis(names, np.maximum(cluster, 0), axis=1)
    return np.where(cluster >= 0, found, -1)


def communities_of_examples(
    community: Integer[np.ndarray, "M K"],
    client: Integer[np.ndarray, "P"],
    cluster: Integer[np.ndarray, "P"],
) -> Integer[np.ndarray, "P"]:
    """Returns the community of every example through its client and its cluster; -1
    where one of the three is missing.
    """
    return np.where((client >= 0) & (cluster >= 0), community[client, cluster], -1)


def assignment_columns(
    holders: Integer[np.ndarray, "P"],
    clusters: Integer[np.ndarray, "P"],
    same: CommunityAssignments | None,
) -> dict[str, np.ndarray]:
    """Returns what assignments.npz keeps of a run, see `Folder.assignments`."""
    found = {"client": holders, "cluster": clusters}
    if same is not None:
        found["community"] = communities_of_examples(same.community, holders, clusters)
    return found


# --- Results folder


class Folder:
    """A results folder; opening one writes nothing.

    Args:
        directory: created by the first write.
        config: what all its runs share.
        points: the swept values of the runs that are asked for; None is all that have
            ended.
        command: the script and the settings that ask for them, see
            `sweep.experiment.command`; None is the one that ran into it last.
        resume: reuse what is there; otherwise it is written over.
        writes: whether what is added to it is written, too: one process does.

    Raises:
        ValueError: the folder holds results of another configuration, or is damaged.
    """

    in_memory = False

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
        self.dataset: Dataset | None = None
        """The data of the runs, where the process that made them still has it."""
        self.data_dir: Path | None = None
        """Where TFDS data sets are prepared, if it is not where the runs had them."""
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
        self._requested = set(map(self.key, self._points))
        self._finished = set(map(self.key, self.rows))
        self._running: set[tuple] = set()  # whose history this session has begun
        self._columns: list[str] = []  # of history.csv, once this session wrote it
        self._memory: dict[Path, dict[str, np.ndarray]] = {}
        """The arrays of each file of a folder in memory."""
        if points is not None and self.rows and self.pending:
            _ = self._assignments  # to which those of the pending runs will be added

    @property
    def saves(self) -> bool:
        """Whether the results are on disk, and this process writes them."""
        return self.writes and not self.in_memory

    def _check(self) -> None:
        """Raises ValueError where runs of this configuration cannot be added."""
        has = {
            n for n in ("config.json", "results.csv") if (self.directory / n).exists()
        }
        if not has:
            return
        kept = read_config(self.directory) if "config.json" in has else {}
        if not kept:
            reason = "results without their config.json"
        elif "preset" not in kept and "preset" in self.config:
            reason = "results of an earlier fcjax, to which this version adds none"
        elif names := differing(kept, self.config):
            each = (
                f"{'flags that are given' if name == 'swept' else name}: "
                f"{_shown(kept.get(name))} there, {_shown(self.config.get(name))} here"
                for name in names
                if name != "defaults"  # all that is not given
            )
            reason = f"results of another configuration ({'; '.join(each)})"
        else:
            return
        raise ValueError(
            f"--out {self.directory} holds {reason}; choose another folder, or pass "
            "--no-resume to write over it"
        )

    # The runs that it has.

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
            each = {n: dict.fromkeys(f"{r[n]:g}" for r in rows) for n in self.names}
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
        values = {name: value_of(str(value)) for name, value in where.items()}
        for name, value in values.items():
            if name not in self.names or isinstance(value, str | None):
                accepted = " ".join(f"{name}=VALUE" for name in self.names)
                raise ValueError(f"where takes {accepted}, got '{name}={where[name]}'")
        found = [
            row for row in self.rows if all(row[k] == v for k, v in values.items())
        ]
        if not found:
            told = " ".join(f"{name}={value}" for name, value in where.items())
            there = "; ".join(
                f"{n} is {', '.join(dict.fromkeys(str(r[n]) for r in self.rows))}"
                for n in where
            )
            raise ValueError(f"no run of {self.directory} has {told}: {there}")
        return found

    def is_requested(self, point: Point) -> bool:
        return self.key(point) in self._requested

    def is_pending(self, point: Point) -> bool:
        return self.is_requested(point) and self.key(point) not in self._finished

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
        and what varies but for the seed.
        """
        level, *others = self.names
        varied = [n for n in others if len({float(p[n]) for p in self._points}) > 1]
        return [level, *(name for name in varied if name != "seed")]

    def requested(self, rows: Iterable[Row]) -> list[Row]:
        """Returns the rows, of `rows` or `rounds`, of the runs that were asked for."""
        return self.of_runs(rows, self._points)

    def of_runs(self, rows: Iterable[Row], points: Iterable[Point]) -> list[Row]:
        """Returns those rows that are of these runs."""
        runs = set(map(self.key, points))
        return [row for row in rows if self.key(row) in runs]

    def history_of(self, points: Sequence[Point]) -> list[list[Row]]:
        """Returns the rounds of each of these runs, in order."""
        found: dict[tuple, list[Row]] = {self.key(point): [] for point in points}
        for row in self.of_runs(self.rounds, points):
            found[self.key(row)].append(row)
        return list(found.values())

    def key(self, row: Mapping[str, Any]) -> tuple[float, ...]:
        """Returns the swept values of a row: which run it is of."""
        return tuple(float(row[name]) for name in self.names)

    def _point(self, row: Row) -> Point:
        return {name: row[name] for name in self.names}

    # What runs are called.

    def describe(self, point: Point) -> str:
        return ", ".join(f"{name} {point[name]:g}" for name in [*self.settings, "seed"])

    def place_of(self, points: Sequence[Point]) -> str:
        """Returns which of the runs these are, "run 3 of 9" or "runs 4 to 6 of 9", and
        nothing where there is but one.
        """
        first, last = (self._points.index(points[i]) + 1 for i in (0, -1))
        which = f"run {first}" if first == last else f"runs {first} to {last}"
        return f"{which} of {count}" if (count := len(self._points)) > 1 else ""

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

    # The data of the runs.

    def source(self) -> Source:
        """Returns the data set of the runs, for `load_source`. Without `data_dir` it
        lies where the last start had it, if that directory still exists.
        """
        known = Path(self._last_start.get("data_dir") or os.devnull)
        there = known if known.is_dir() else None
        # The config.json of an older fcjax lacks settings that are newer.
        settings = {name: self.config[name] for name in SOURCE if name in self.config}
        settings["image_shape"] = tuple(settings["image_shape"])
        return Source(**settings, data_dir=self.data_dir or there)

    def digests(self) -> dict[str, str]:
        """Returns the digests of the data of the last start, by their names; an older
        fcjax and runs in memory have none.
        """
        last = self._last_start
        return {f"the digest of its {x}": last[x] for x in DIGESTS if x in last}

    @property
    def _last_start(self) -> dict[str, Any]:
        return (starts(self.directory) or [{}])[-1]

    @cached_property
    def examples(self) -> Examples:
        """The data set of the runs, with the names of its examples.

        Raises:
            ValueError: it cannot be read, or it was an array.
        """
        source, dataset = self.source(), self.dataset
        limit = None if source.dataset == ARRAY else source.limit
        if dataset is None and source.dataset == ARRAY:
            raise ValueError("the folder does not hold the array: pass it to transform")
        if dataset is None or limit is not None:
            whole = dataclasses.replace(source, limit=None, extra_split=None)
            dataset, _ = load_source(whole)
        options = {"split": source.split, "client_folders": source.client_folders}
        names = example_names(source.dataset, len(dataset.examples), **options)
        if limit is not None:
            places = dataset._replace(examples=np.arange(len(names)))
            part = stratified_subset(places, limit)
            names = [names[i] for i in part.examples]
            dataset = part._replace(examples=dataset.examples[part.examples])
        return Examples(dataset, names)

    # The arrays of the runs: clusters, models, communities.

    def assignments(self, **where: float | int | str) -> pd.DataFrame:
        """Returns the client and cluster of every example in the only run that has
        these axis values, see `assignment_arrays` and `point`.
        """
        return pd.DataFrame(self.assignment_arrays(self.point(**where)))

    def assignment_arrays(self, point: Point) -> dict[str, np.ndarray]:
        """Returns the columns of `assignments`, [P] each."""
        found = self._assignments
        if not found:
            raise ValueError(f"{self.directory} kept no assignments")
        same = [np.isclose(found[name], point[name]) for name in self.names]
        run = int(np.flatnonzero(np.all(same, axis=0))[0])
        columns = ("client", "cluster", "community")
        return {name: found[name][run] for name in columns if name in found}

    def add_assignments(
        self, points: Sequence[Point], found: Sequence[Mapping[str, np.ndarray]]
    ) -> None:
        """Adds runs to `assignments.npz`, with the columns of `assignment_arrays`; communities
        only where all have them.
        """
        new = {name: np.array([p[name] for p in points]) for name in self.names}
        for name in found[0]:
            if all(name in each for each in found):
                new[name] = np.stack([each[name] for each in found])
        if self.rows and (old := self._assignments):
            # Only finished runs: a kill right after this file leaves others in it.
            keys = zip(*(old[name] for name in self.names), strict=True)
            kept = [tuple(map(float, key)) in self._finished for key in keys]
            new = {k: np.concatenate([old[k][kept], new[k]]) for k in new}
        new["example"] = np.arange(new["cluster"].shape[1])
        self._write(self.directory / "assignments.npz", new)
        self.__dict__.pop("_assignments", None)

    @cached_property
    def _assignments(self) -> dict[str, np.ndarray]:
        # Unpacked once: a file of the archive is all runs.
        return self._read(self.directory / "assignments.npz")

    def model(self, **where: float | int | str) -> exported.ExportedModel:
        """Returns the global model of a run, which `exported.predict` applies.

        Args:
            where: as in `assignments`.

        Raises:
            ValueError: the clients of the run are on their own.

        Examples:
            >>> run = read("runs/spherical")
            >>> run.model(seed=0).centers.shape
            (3, 2)
        """
        point = self.point(**where)
        if not self.has_model(point):
            run = self.describe(point)
            raise ValueError(
                f"the run with {run} has no model that all its clients share"
            )
        path = self.model_path(point)
        return exported.read(self._memory[path] if self.in_memory else path)

    def has_model(self, point: Point) -> bool:
        """Whether the clients of a run share a global model."""
        path = self.model_path(point)
        return path in self._memory or path.exists()

    def add_model(
        self,
        point: Point,
        program: exported.Program,
        weights: Mapping[str, np.ndarray],
        centers: np.ndarray,
        scaling: Scaling | None,
    ) -> None:
        """Writes the global model of a run."""
        arrays = exported.to_arrays(program, weights, centers, scaling)
        self._write(self.model_path(point), arrays, compressed=False)

    def save_model(self, point: Point, path: Path) -> None:
        """Copies the global model of a run.

        Raises:
            ValueError: the clients of the run are on their own.
        """
        self.model(**point)
        write_arrays(path, self._read(self.model_path(point)), compressed=False)

    def add_communities(self, point: Point, same: CommunityAssignments) -> None:
        """Writes which clients' clusters are the same in a run."""
        self._write(self.communities_path(point), same._asdict())

    def communities(self, point: Point) -> CommunityAssignments | None:
        """Returns which clients' clusters are the same in a run; None where its method
        does not find out.
        """
        found = self._read(self.communities_path(point))
        return CommunityAssignments(**found) if found else None

    def _write(self, path: Path, arrays: Mapping[str, np.ndarray], **options) -> None:
        if self.in_memory:
            self._memory[path] = dict(arrays)
        else:
            write_arrays(path, arrays, **options)

    def _read(self, path: Path) -> dict[str, np.ndarray]:
        """Returns the arrays of a file, none where there is none."""
        if self.in_memory or not path.exists():
            return self._memory.get(path, {})
        try:
            with np.load(path) as file:
                return dict(file)
        except Exception as error:  # of a damaged archive almost any type
            raise ValueError(f"{path} cannot be read ({error})") from error

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
        if not self.saves:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        kept = (self.directory / name for name in ("config.json", "results.csv"))
        if not self._resume and any(path.exists() for path in kept):
            # First of all: a kill in between must not leave the rows of another
            # configuration beside the new one.
            for path in (self.directory / name for name in CONTENTS):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        told = self.config | ({"command": self.command} if self.command else {})
        text = json.dumps(told, indent=2, sort_keys=True) + "\n"
        write_whole(self.directory / "config.json", text)

    def begin_runs(self, points: Sequence[Point]) -> Path:
        """Returns where runs that go side by side save their state, and drops what
        others saved: had those run on, it would leave a gap in their history.
        """
        name = fingerprint(*map(self.key, points))
        folder = self.directory / "checkpoints" / name
        for other in folder.parent.glob("*"):
            if other != folder and self.saves:
                shutil.rmtree(other)
        return folder

    def add_history(self, position: Position, rows: Sequence[Row]) -> None:
        """Appends a round of some runs.

        A killed grid goes on from its last checkpoint, which may lie some rounds before
        the last row: what follows it is dropped when the first round arrives.
        """
        place = {"stage_index": position.stage, "round": position.round}
        rows = [{**place, **row} for row in rows]
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
        if not self.saves:
            return
        if begun or not set().union(*rows) <= set(self._columns):
            self._columns = write_rows(self.directory / "history.csv", self.rounds)
        else:
            with (self.directory / "history.csv").open("a") as file:
                _flush(file, _csv(rows, columns=self._columns, header=False))

    def add_rounds(self, rows: Sequence[Row]) -> None:
        """Adds rounds of finished runs that another folder held; what a session or a
        merge wrote of them here before it was killed gives way.
        """
        runs = set(map(self.key, rows))
        self.rounds = [r for r in self.rounds if self.key(r) not in runs] + [*rows]
        if self.saves:
            write_rows(self.directory / "history.csv", self.rounds)

    def add_rows(self, rows: Iterable[Row]) -> None:
        """Adds finished runs to `results.csv`, sorted by their swept values."""
        self.rows = sorted([*self.rows, *rows], key=self.key)
        self._finished = set(map(self.key, self.rows))
        if self.saves:
            write_rows(self.directory / "results.csv", self.rows)


class InMemory(Folder):
    """Results that are kept in memory: the same tables, clusters and models.

    Args:
        config, points, command: as in `Folder`.
    """

    in_memory = True

    def __init__(
        self,
        config: Mapping[str, Any],
        points: Sequence[Point],
        *,
        command: Mapping[str, Any] | None = None,
    ):
        nowhere = Path(os.devnull)
        super().__init__(nowhere, config, points, command=command, resume=False)

    def locked(self) -> AbstractContextManager[None]:
        return nullcontext()


def read(directory: str | Path, *, data_dir: Path | None = None) -> Folder:
    """Opens the results folder of a command.

    Raises:
        ValueError: it holds no finished run, or one that is too old to be read.
    """
    folder = Folder(Path(directory), read_config(Path(directory)))
    folder.data_dir = data_dir
    if not folder.rows:
        raise ValueError(f"{directory} holds no finished run yet")
    return folder


def example_names(
    dataset: str, count: int, *, split: str = "all", client_folders: bool = False
) -> list[str]:
    """Returns the files of a folder of images, or the row numbers of the examples."""
    folder = Path(dataset)
    if folder.is_dir():
        files = image_files(folder, split=split, client_folders=client_folders).files
        if len(files) == count:
            return [str(file.relative_to(folder)) for file in files]
    return [str(i) for i in range(count)]


def parse_where(where: Sequence[str]) -> dict[str, str]:
    """Returns what --where holds, NAME=VALUE each, for `Folder.point`; raises
    ValueError where a name comes twice.
    """
    parts = [text.partition("=") for text in where]
    found = {name: value for name, _, value in parts}
    if len(found) < len(where):
        raise ValueError(f"--where takes a name once, got {' '.join(where)}")
    return found


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Returns what two configurations have different values of, or only one has,
    whatever commands asked for their runs.
    """
    missing = object()
    names = {**one, **other}.keys() - {"command"}
    return sorted(k for k in names if one.get(k, missing) != other.get(k, missing))


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def fingerprint(*parts: Any) -> str:
    """Returns the digest of JSON-like values, which names what depends on them."""
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


# --- Files


def read_config(directory: Path) -> dict[str, Any]:
    """Returns config.json; raises ValueError where there is none, a damaged or an old
    one.
    """
    path = directory / "config.json"
    if not path.exists():
        raise ValueError(f"{directory} holds no run: it has no config.json")
    config = _json(path)
    if "swept" not in config:
        raise ValueError(
            f"{directory} is of an earlier fcjax, whose config.json does not say what "
            "is swept: it is read by the version that wrote it"
        )
    return config


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it is no JSON") from error


def read_rows(path: Path) -> list[Row]:
    """Returns the rows of a table, none where the file is missing."""
    try:
        text = path.read_text() if path.exists() else ""
        # A kill in the middle of a write leaves a last line that is cut short.
        if not (whole := text[: text.rfind("\n") + 1]):
            return []
        # As text: pandas makes floats of integers, and NaN of an empty cell.
        table = pd.read_csv(io.StringIO(whole), dtype=str, keep_default_na=False)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it is no table") from error
    return [
        {str(name): value_of(text) for name, text in row.items()}
        for row in table.to_dict("records")
    ]


def value_of(text: str) -> int | float | str | None:
    """Returns a cell as it was before it was written."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None


def write_rows(path: Path, rows: Sequence[Row]) -> list[str]:
    """Writes a table whole or not at all, and returns its columns."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    write_whole(path, _csv(rows, columns))
    return columns


def _csv(rows: Sequence[Row], columns: Sequence[str], *, header: bool = True) -> str:
    # As text: NaN is no empty cell.
    cells = [{k: "" if x is None else str(x) for k, x in row.items()} for row in rows]
    table = pd.DataFrame(cells, columns=list(columns), dtype=object)
    return table.to_csv(index=False, header=header, lineterminator="\n")


def write_whole(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_suffix(path.suffix + ".tmp")
    with temporary.open("w") as file:
        _flush(file, text)
    temporary.replace(path)


def _flush(file: IO[str], text: str) -> None:
    """Writes text that is on the disk when this returns."""
    file.write(text)
    file.flush()
    os.fsync(file.fileno())


def write_arrays(
    path: Path, arrays: Mapping[str, np.ndarray], *, compressed: bool = True
) -> None:
    """Writes a file of arrays whole or not at all; creates its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        save = np.savez_compressed if compressed else np.savez
        save(file, **arrays)  # pyright: ignore[reportArgumentType]
    temporary.replace(path)


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


# --- Starts


def starts(directory: Path) -> list[dict[str, Any]]:
    """Returns the starts in a folder's environment.json, oldest first; none for folders
    of an earlier fcjax.

    Raises:
        ValueError: the file is damaged.
    """
    path = directory / "environment.json"
    return _json(path) if path.exists() else []


def write_environment(directory: Path, starts: Sequence[dict[str, Any]]) -> None:
    text = json.dumps(starts, indent=2) + "\n"
    write_whole(directory / "environment.json", text)


@contextmanager
def record_environment(
    folder: Folder, dataset: Dataset, *, data_dir: Path | None
) -> Iterator[None]:
    """Adds a start to the folder's environment.json, and in the end its seconds.

    One that was killed has those until its last round.

    Args:
        folder: of the results.
        dataset: that is scored.
        data_dir: where the command looked for TFDS data sets, if it said so. The
            commands for finished runs look there again.
    """
    if not folder.writes:
        yield
        return
    began, earlier = datetime.now(UTC), starts(folder.directory)
    start = time.monotonic()  # which no setting of the clock changes
    if earlier and earlier[-1]["seconds"] is None:
        killed = datetime.fromisoformat(earlier[-1]["began"])
        files = (folder.directory / x for x in ("history.csv", "environment.json"))
        last = next(file for file in files if file.exists()).stat().st_mtime
        # A clock may be set back.
        earlier[-1]["seconds"] = max(0, round(last - killed.timestamp()))
    own = {
        **environment(),
        **digests(dataset),
        **({} if data_dir is None else {"data_dir": str(data_dir.resolve())}),
        "began": began.isoformat(" ", "seconds"),
        "seconds": None,
    }
    write_environment(folder.directory, [*earlier, own])
    try:
        yield
    finally:
        own["seconds"] = round(time.monotonic() - start)
        write_environment(folder.directory, [*earlier, own])


def digests(dataset: Dataset) -> dict[str, str]:
    """Returns what tells data sets apart: digests of the examples, and of the labels
    and owners where there are some.
    """
    each = dataset.examples, dataset.labels, dataset.clients
    named = zip(DIGESTS, each, strict=True)
    return {name: digest(x) for name, x in named if x is not None}


def check_digests(directory: Path, found: Sequence[dict[str, Any]]) -> None:
    """Raises ValueError where starts are not all of the same data, as far as they say.

    Args:
        directory: of the results.
        found: starts, or `digests`.
    """
    for name in DIGESTS:
        if len({start[name] for start in found if name in start}) > 1:
            raise ValueError(
                f"{directory} holds results of other {name}: the data, or how it is "
                "read, has changed since; choose another --out, or remove this folder"
            )
