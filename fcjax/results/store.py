"""The results folder: tables, environment, communities, shards.

Which clients' clusters are the same: what is kept of it, and what is made of it.

RUN.npz of a results folder's communities/ holds the arrays of `Kept`.

What a command leaves on disk, for the session that writes it and for who reads it.

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

import copy
import csv
import dataclasses
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import filelock
import jax
import numpy as np
import pandas as pd
from jaxtyping import Bool, Int, Integer
from scipy.sparse.csgraph import connected_components

from fcjax import metrics
from fcjax.data import Dataset, Scaling, stratified_subset
from fcjax.data.images import image_files
from fcjax.data.source import ARRAY, SOURCE, Source, load_source
from fcjax.engine import Position
from fcjax.parallel.exact import num_cores
from fcjax.parallel.mesh import all_devices
from fcjax.results import exported

# --- Communities


class Kept(NamedTuple):
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


class Graph(NamedTuple):
    """The association graph of the clusters that are not empty, V of them."""

    edges: Bool[np.ndarray, "V V"]
    sizes: Integer[np.ndarray, "V"]
    """Examples of each."""
    groups: Integer[np.ndarray, "V"]
    """The class that each matches on its client, or without labels the connected
    component that it is in; -1 where there is none, as of a cluster without an edge."""


def write_communities(path: Path, kept: Kept) -> None:
    """Writes what `read` reads, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp.npz")
    np.savez_compressed(temporary, **kept._asdict())
    temporary.replace(path)


def read_communities(path: Path) -> Kept:
    with np.load(path) as file:
        return Kept(**file)


def taken_globally(
    cluster: Integer[np.ndarray, "M N"], community: Integer[np.ndarray, "M K"]
) -> Int[np.ndarray, "M N"]:
    """Returns communities as clusters of all clients: a cluster without one is one of
    its own. -1 where an example has no cluster."""
    number = np.arange(community.size).reshape(community.shape)
    names = np.where(community >= 0, community, community.max() + 1 + number)
    found = np.take_along_axis(names, np.maximum(cluster, 0), axis=1)
    return np.where(cluster >= 0, found, -1)


def of_examples(
    community: Integer[np.ndarray, "M K"],
    client: Integer[np.ndarray, "P"],
    cluster: Integer[np.ndarray, "P"],
) -> Integer[np.ndarray, "P"]:
    """Returns the community of every example through its client and its cluster; -1
    where one of the three is missing."""
    return np.where((client >= 0) & (cluster >= 0), community[client, cluster], -1)


def columns(
    holders: Integer[np.ndarray, "P"],
    clusters: Integer[np.ndarray, "P"],
    same: Kept | None,
) -> dict[str, np.ndarray]:
    """Returns what assignments.npz keeps of a run, see `Folder.assignments`."""
    found = {"client": holders, "cluster": clusters}
    if same is not None:
        found["community"] = of_examples(same.community, holders, clusters)
    return found


def graph(kept: Kept, labels: Integer[np.ndarray, "L"] | None) -> Graph:
    """Returns the graph of a run as it is drawn.

    Args:
        kept: of the run.
        labels: of the first L examples of the pool, if they have any.
    """
    num_clients, num_clusters = kept.community.shape
    sizes = np.zeros((num_clients, num_clusters), int)
    groups = np.full((num_clients, num_clusters), -1)
    for client, clusters in enumerate(kept.graph_cluster):
        own = clusters >= 0
        sizes[client] = np.bincount(clusters[own], minlength=num_clusters)
        if labels is None:
            continue
        own &= kept.indices[client] < len(labels)
        if own.any():
            classes = labels[kept.indices[client, own]]
            names = metrics.match(classes, clusters[own])
            # Clusters that match no class have names above all of them.
            names = np.where(np.isin(names, classes), names, -1)
            groups[client, clusters[own]] = names
    shown = sizes.ravel() > 0
    edges = kept.edges.reshape(shown.size, shown.size)[shown][:, shown]
    groups = groups.ravel()[shown]
    if labels is None:
        _, components = connected_components(edges, directed=False)
        groups = np.where(edges.any(axis=1), components, -1)
    return Graph(edges, sizes.ravel()[shown], groups)


# --- Results folder

if TYPE_CHECKING:
    pass

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


class Examples(NamedTuple):
    """The scored examples of a folder's runs."""

    dataset: Dataset
    names: list[str]
    """The files of a folder of images, or row numbers of the whole data set."""


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
        self._asked = set(map(self.key, self._points))
        self._finished = set(map(self.key, self.rows))
        self._running: set[tuple] = set()  # whose history this session has begun
        self._columns: list[str] = []  # of history.csv, once this session wrote it
        if points is not None and self.rows and self.pending:
            self._check_assignments()

    @property
    def saves(self) -> bool:
        """Whether the results are on disk, and this process writes them."""
        return self.writes and not self.in_memory

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

    def assignments(self, **where: float | int | str) -> pd.DataFrame:
        """Returns the client and cluster of every example in the only run that has
        these axis values, see `assigned` and `point`."""
        return pd.DataFrame(self.assigned(self.point(**where)))

    @cached_property
    def examples(self) -> Examples:
        """The data set of the runs, with the names of its examples.

        Raises:
            ValueError: it cannot be read, or it was an array.
        """
        source, dataset = self.source(), self.dataset
        is_array = source.dataset == ARRAY
        if dataset is not None and (is_array or source.limit is None):
            names = example_names(source.dataset, len(dataset.examples))
            return Examples(dataset, names)
        if is_array:
            raise ValueError("the folder does not hold the array: pass it to transform")
        whole = dataclasses.replace(source, limit=None, extra_split=None)
        dataset, _ = load_source(whole)
        options = {"split": source.split, "client_folders": source.client_folders}
        files = example_names(source.dataset, len(dataset.examples), **options)
        names = np.array(files)
        if source.limit is not None:
            rows = dataset._replace(examples=np.arange(len(names)))
            part = stratified_subset(rows, source.limit)
            names = names[part.examples]
            dataset = part._replace(examples=dataset.examples[part.examples])
        return Examples(dataset, names.tolist())

    def model(self, **where: float | int | str) -> exported.Frozen:
        """Returns the global model of a run, which `frozen.predict` applies.

        Args:
            where: as in `assignments`.

        Raises:
            ValueError: the clients of the run are on their own.

        Examples:
            >>> run = read("runs/spherical")
            >>> run.model(seed=0).centers.shape
            (3, 2)
        """
        path = self.model_path(self.point(**where))
        if not path.exists():
            raise ValueError(
                f"{self.directory} kept no model that all its clients share"
            )
        return exported.read(path)

    def has_model(self, point: Point) -> bool:
        """Whether the clients of a run share a global model."""
        return self.model_path(point).exists()

    def add_model(
        self,
        point: Point,
        program: exported.Program,
        weights: Mapping[str, np.ndarray],
        centers: np.ndarray,
        scaling: Scaling | None,
    ) -> None:
        """Writes the global model of a run."""
        exported.write(self.model_path(point), program, weights, centers, scaling)

    def save_model(self, point: Point, path: Path) -> None:
        """Copies the global model of a run.

        Raises:
            ValueError: the clients of the run are on their own.
        """
        self.model(**point)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self.model_path(point), path)

    def add_communities(self, point: Point, same: Kept) -> None:
        """Writes which clients' clusters are the same in a run."""
        write_communities(self.communities_path(point), same)

    def communities(self, point: Point) -> Kept | None:
        """Returns which clients' clusters are the same in a run; None where its method
        does not find out."""
        path = self.communities_path(point)
        return read_communities(path) if path.exists() else None

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
        if not path.exists():
            raise ValueError(f"{self.directory} kept no assignments")
        try:
            with np.load(path) as file:
                return dict(file)
        except Exception as error:  # of a damaged archive almost any type
            raise ValueError(f"{path} cannot be read ({error})") from error

    def source(self) -> Source:
        """Returns the data set of the runs, for `load_source`. Without `data_dir` it
        lies where the last start had it, if that directory still exists."""
        data_dir, last = self.data_dir, starts(self.directory)[-1:]
        known = last[0].get("data_dir") if last else None
        if data_dir is None and known is not None and Path(known).is_dir():
            data_dir = Path(known)
        # The config.json of an older fcjax lacks settings that are newer.
        settings = {name: self.config[name] for name in SOURCE if name in self.config}
        settings["image_shape"] = tuple(settings["image_shape"])
        return Source(**settings, data_dir=data_dir)

    def digests(self) -> dict[str, str]:
        """Returns the digests of the data of the last start, by their names; an older
        fcjax and runs in memory have none."""
        last = starts(self.directory)[-1:]
        return {
            f"the digest of its {name}": start[name]
            for start in last
            for name in DIGESTS
            if name in start
        }

    # Which runs.

    def only(self, points: Sequence[Point]) -> "Folder":
        """Returns the results of these runs alone."""
        found = copy.copy(self)
        found._points, found._asked = tuple(points), set(map(self.key, points))
        return found

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
        if not self.saves:
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
        if not self.saves:
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
        if self.saves:
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
        if self.saves:
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
        self._kept: dict[tuple, dict[str, Any]] = {key: {} for key in self._asked}

    def locked(self) -> AbstractContextManager[None]:
        return nullcontext()

    def add_assignments(
        self, points: Sequence[Point], found: Sequence[Mapping[str, np.ndarray]]
    ) -> None:
        for point, columns in zip(points, found, strict=True):
            self._kept[self.key(point)]["assigned"] = dict(columns)

    def assigned(self, point: Point) -> dict[str, np.ndarray]:
        return self._kept[self.key(point)]["assigned"]

    def add_model(
        self,
        point: Point,
        program: exported.Program,
        weights: Mapping[str, np.ndarray],
        centers: np.ndarray,
        scaling: Scaling | None,
    ) -> None:
        self._kept[self.key(point)]["model"] = program, weights, centers, scaling

    def has_model(self, point: Point) -> bool:
        return "model" in self._kept[self.key(point)]

    def save_model(self, point: Point, path: Path) -> None:
        if "model" not in (kept := self._kept[self.key(point)]):
            raise ValueError("the run has no model that all its clients share")
        exported.write(path, *kept["model"])

    def model(self, **where: float | int | str) -> exported.Frozen:
        kept = self._kept[self.key(self.point(**where))]
        if "model" not in kept:
            raise ValueError("the run has no model that all its clients share")
        return exported.loaded(*kept["model"])

    def add_communities(self, point: Point, same: Kept) -> None:
        self._kept[self.key(point)]["communities"] = same

    def communities(self, point: Point) -> Kept | None:
        return self._kept[self.key(point)].get("communities")


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


def fingerprint(*parts: Any) -> str:
    """Returns the digest of JSON-like values, which names what depends on them."""
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def write_whole(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    temporary = path.with_suffix(path.suffix + ".tmp")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


# --- Environment

PACKAGE = Path(__file__).parents[1]
PACKAGES = ("fcjax", "jax", "jaxlib", "flax", "optax", "numpy", "scikit-learn")
COMPILER = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_OPTIMIZATION_LEVEL")
"""What of the user's environment says how XLA compiles, and so how it rounds."""
DIGESTS = ("examples", "labels", "clients")
"""What a start has a digest of, where the data has it."""


@contextmanager
def recorded(
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
        seconds = (_last_round(folder) - killed).total_seconds()
        earlier[-1]["seconds"] = max(0, round(seconds))  # a clock may be set back
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
    and owners where there are some."""
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


def write_environment(directory: Path, starts: Sequence[dict[str, Any]]) -> None:
    text = json.dumps(starts, indent=2) + "\n"
    write_whole(directory / "environment.json", text)


def environment() -> dict[str, Any]:
    """Returns what this process runs with; `changed` is whether tracked files differ
    from the commit, which is None outside a checkout."""
    devices = all_devices()
    commit = _git("rev-parse", "HEAD")
    return {
        "commit": commit,
        "changed": bool(commit and _git("status", "--porcelain", "-uno")),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
        "processor": processor(),
        "cores": num_cores(),
        "devices": f"{len(devices)} x {devices[0].device_kind}",
        "backend": jax.default_backend(),
        "compiler": asked_of_compiler(),
    }


def asked_of_compiler() -> dict[str, str]:
    """Returns of `COMPILER` what is set."""
    return {name: os.environ[name] for name in COMPILER if name in os.environ}


def digest(array: np.ndarray) -> str:
    """Returns what tells arrays apart: their shape, type and values in 16 digits."""
    found = hashlib.blake2b(f"{array.shape} {array.dtype}".encode(), digest_size=8)
    found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def processor() -> str:
    """Returns the name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2] for line in lines if line.startswith("model name")]
    return names[0].strip() if names else platform.machine()


def _git(*command: str) -> str | None:
    # Not of a repository that an installed package happens to lie in.
    if not (PACKAGE.parent / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", *command],
            cwd=PACKAGE,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


def _last_round(folder: Folder) -> datetime:
    history = folder.directory / "history.csv"
    seen = history if history.exists() else folder.directory / "environment.json"
    return datetime.fromtimestamp(seen.stat().st_mtime, UTC)


# --- Shards

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
    begun = [x for source in sources for x in starts(source.directory)]
    check_digests(out, begun)
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
        write_environment(out, begun)
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
