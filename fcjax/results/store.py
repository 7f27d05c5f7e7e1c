"""The results folder of an experiment: its files, and how to read and write them.

config.json       configuration without the swept values, and the command
results.csv       one row per run
history.csv       one row per run and round
environment.json  commit, versions, machine and seconds of each start of the command
assignments.npz   cluster of each example in each run
models/           exported global model of each run
communities/      communities of the clients' clusters, for methods that find them
uploads/          last uploads of the clients of each run, with --keep-uploads
checkpoints/      state of unfinished runs
figures/          figures of the first run and of the grid
tensorboard/, wandb/   logs, with --log
.lock             lock of the command that writes into the folder
"""

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

from fcjax.data import Dataset, Scaling, Source, load
from fcjax.data.source import ARRAY, SOURCE
from fcjax.engine import Position
from fcjax.results import exported
from fcjax.results.environment import digest, environment, method_file
from fcjax.types import Uploads

CONTENTS = (
    *("results.csv", "history.csv", "environment.json", "assignments.npz"),
    *("table.md", "table.tex", "report.html", "assignments.csv", "embeddings.npz"),
    *("choice.csv", "choice.png", "how_many.csv", "how_many.png"),
    *("comparison.csv", "comparison.png", "predictions.csv"),
    *("privacy.csv", "privacy_points.csv", "privacy.png"),
    *("models", "communities", "uploads", "checkpoints", "figures", "tensorboard"),
    *("consensus", "export", "fit"),
)
"""Files and folders besides config.json that commands write. --no-resume removes them,
the tables first."""
DIGESTS = ("examples", "labels", "clients")
"""The parts of a data set that have a digest in environment.json."""

Point = Mapping[str, float | int]
"""The values of one run by flag, such as {"p": 0.25, "seed": 0}. A command that runs a
grid has the values of all flags that take several values. A reader has those of the
axes."""
Row = dict[str, Any]
"""One row of results.csv or history.csv by column; None is an empty cell."""


class Examples(NamedTuple):
    """The scored examples of the runs of a results folder."""

    dataset: Dataset
    """The data set."""
    names: list[str]
    """Name of each example: its file in a folder of images, or its index in the whole
    data set."""


# --- Communities


class CommunityAssignments(NamedTuple):
    """The communities of the clients' clusters in one run, with their examples."""

    indices: Integer[np.ndarray, "M N"]
    """Indices into the pool of the examples of each client. An example of several
    clients has several entries."""
    mask: Bool[np.ndarray, "M N"]
    """False for padding, which repeats an example."""
    cluster: Integer[np.ndarray, "M N"]
    """Final cluster of each example within its client; -1 for padding."""
    community: Integer[np.ndarray, "M K"]
    """Community of each client's cluster; -1 for none."""
    edges: Bool[np.ndarray, "M K M K"]
    """Association graph of the last round: whether two clusters are associated."""
    graph_cluster: Integer[np.ndarray, "M N"]
    """The cluster of each example that the graph was computed from; -1 for padding."""


def global_clusters(
    cluster: Integer[np.ndarray, "M N"], community: Integer[np.ndarray, "M K"]
) -> Int[np.ndarray, "M N"]:
    """Returns the clusters of all clients as clusters with global numbers.

    Args:
        cluster: [M, N] cluster of each example within its client, -1 for none.
        community: [M, K] community of each client's cluster, -1 for none.

    Returns:
        [M, N] the community of each example. A cluster without a community has a number
        of its own. -1 for examples without a cluster.
    """
    index = np.arange(community.size).reshape(community.shape)
    numbers = np.where(community >= 0, community, community.max() + 1 + index)
    result = np.take_along_axis(numbers, np.maximum(cluster, 0), axis=1)
    return np.where(cluster >= 0, result, -1)


def communities_of_examples(
    community: Integer[np.ndarray, "M K"],
    client: Integer[np.ndarray, "P"],
    cluster: Integer[np.ndarray, "P"],
) -> Integer[np.ndarray, "P"]:
    """Returns the community of each example.

    Args:
        community: [M, K] community of each client's cluster, -1 for none.
        client: [P] client of each example, -1 for none.
        cluster: [P] cluster of each example within its client, -1 for none.

    Returns:
        [P] the communities, -1 for none.
    """
    return np.where((client >= 0) & (cluster >= 0), community[client, cluster], -1)


def assignment_columns(
    clients: Integer[np.ndarray, "P"],
    clusters: Integer[np.ndarray, "P"],
    communities: CommunityAssignments | None,
) -> dict[str, np.ndarray]:
    """Returns the arrays [P] of a run for assignments.npz.

    Args:
        clients: [P] client of each example, -1 for none.
        clusters: [P] cluster of each example, -1 for none.
        communities: the communities of the run; None for methods without communities.

    Returns:
        `client`, `cluster`, and `community` for methods with communities.
    """
    arrays = {"client": clients, "cluster": clusters}
    if communities is not None:
        arrays["community"] = communities_of_examples(
            communities.community, clients, clusters
        )
    return arrays


# --- Results folder


class Folder:
    """A results folder. Opening a folder does not write to it.

    Args:
        directory: path of the folder; the first write creates it.
        config: configuration that all runs share.
        points: swept values of the requested runs; None requests all finished runs.
        command: script and settings of the command, see `sweep.experiment.command`;
            None takes the last command of the folder.
        resume: whether to keep the results in the folder. False overwrites them.
        writes: whether this process writes files. Of several processes only one does.

    Raises:
        ValueError: the folder has results of another configuration, or is damaged.
    """

    in_memory = False
    """Whether the results are in memory instead of in files."""

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
        """The data set of the runs, if this process ran them; None otherwise."""
        self.data_dir: Path | None = None
        """Folder of prepared TFDS data sets, if it differs from that of the runs."""
        self.config = {k: v for k, v in config.items() if k != "command"}
        self.command = command or config.get("command")
        self.names: tuple[str, ...] = tuple(config["swept"])
        """The axes: the columns that identify a run. The first axis is the
        heterogeneity, the last axis is the seed."""
        self.columns = (*self.names, *config.get("defaults", ()))
        """The axes, and the settings whose default may depend on an axis."""
        self._resume = resume
        if resume:
            self._check()
        self._seen = _bytes(directory / "results.csv")
        self.rows = read_rows(directory / "results.csv") if resume else []
        self.rounds = read_rows(directory / "history.csv") if resume else []
        """The rows of history.csv, in the order of training."""
        self._points = tuple(map(self._point, self.rows) if points is None else points)
        self._requested = set(map(self.key, self._points))
        self._finished = set(map(self.key, self.rows))
        self._running: set[tuple] = set()
        """Keys of the runs whose history this process has begun."""
        self._columns: list[str] = []
        """Columns of history.csv, once this process has written it."""
        self._memory: dict[Path, dict[str, np.ndarray]] = {}
        """By path, the arrays of a folder in memory."""
        if points is not None and self.rows and self.pending:
            # The assignments of the pending runs will be added to these.
            _ = self._assignments

    @property
    def saves(self) -> bool:
        """Whether this process writes the results to files."""
        return self.writes and not self.in_memory

    def _check(self) -> None:
        """Checks that runs of this configuration can be added to the folder.

        Raises:
            ValueError: the folder has results of another configuration.
        """
        files = {
            n for n in ("config.json", "results.csv") if (self.directory / n).exists()
        }
        if not files:
            return
        old = read_config(self.directory) if "config.json" in files else {}
        if not old:
            reason = "results without their config.json"
        elif "preset" not in old and "preset" in self.config:
            reason = "results of an earlier fcjax, to which this version adds no runs"
        elif names := differing(old, self.config):
            differences = (
                only_in_one(old.get("swept", []), self.config["swept"])
                if name == "swept"
                else f"{name}: {_text(old.get(name))} there, "
                f"{_text(self.config.get(name))} here"
                for name in names
                # "defaults" is the complement of "swept".
                if name != "defaults"
            )
            reason = f"results of another configuration ({'; '.join(differences)})"
        else:
            return
        raise ValueError(
            f"--out {self.directory} holds {reason}; choose another folder, or pass "
            "--no-resume to overwrite this one"
        )

    # --- Runs

    def point(self, /, **where: float | int | str) -> Point:
        """Returns the axis values of the only run with the given axis values.

        Args:
            **where: axis values, as numbers or as text.

        Returns:
            The values of all axes.

        Raises:
            ValueError: a name is not an axis, a value is not a number, or no run or
                several runs have the values.
        """
        rows = self.rows_of(**where)
        if len(rows) > 1:
            values = {n: dict.fromkeys(f"{r[n]:g}" for r in rows) for n in self.names}
            varied = [f"{k} ({', '.join(x)})" for k, x in values.items() if len(x) > 1]
            text = "".join(f" with {k}={v}" for k, v in where.items())
            raise ValueError(
                f"{self.directory} has {len(rows)} runs{text}; choose one by its value "
                f"of {' and '.join(varied)}"
            )
        return self._point(rows[0])

    def rows_of(self, /, **where: float | int | str) -> list[Row]:
        """Returns the rows of all runs with the given axis values.

        Args:
            **where: axis values, as numbers or as text.

        Returns:
            Rows of results.csv.

        Raises:
            ValueError: a name is not an axis, a value is not a number, or no run has
                the values.
        """
        values = {name: value_of(str(value)) for name, value in where.items()}
        for name, value in values.items():
            if name not in self.names or isinstance(value, str | None):
                accepted = " ".join(f"{name}=VALUE" for name in self.names)
                raise ValueError(f"where takes {accepted}, got '{name}={where[name]}'")
        rows = [row for row in self.rows if all(row[k] == v for k, v in values.items())]
        if not rows:
            text = " ".join(f"{name}={value}" for name, value in where.items())
            existing = "; ".join(
                f"{n} is {', '.join(dict.fromkeys(str(r[n]) for r in self.rows))}"
                for n in where
            )
            raise ValueError(f"no run of {self.directory} has {text}: {existing}")
        return rows

    def is_requested(self, point: Point) -> bool:
        """Returns whether the command asks for this run.

        Args:
            point: axis values of the run.

        Returns:
            True for a requested run, finished or not.
        """
        return self.key(point) in self._requested

    def is_pending(self, point: Point) -> bool:
        """Returns whether the command asks for this run, and the run has not ended.

        Args:
            point: axis values of the run.

        Returns:
            True for a requested run without a row in results.csv.
        """
        return self.is_requested(point) and self.key(point) not in self._finished

    @property
    def pending(self) -> list[Point]:
        """The requested runs that have not ended."""
        return [point for point in self._points if self.is_pending(point)]

    @property
    def first(self) -> Point:
        """The first requested run, whose figures are drawn."""
        return self._points[0]

    @property
    def settings(self) -> list[str]:
        """The columns that define a setting of the grid.

        These are the heterogeneity, such as p, and all columns that vary except for the
        seed.
        """
        level, *others = self.names
        varied = [n for n in others if len({float(p[n]) for p in self._points}) > 1]
        return [level, *(name for name in varied if name != "seed")]

    def requested(self, rows: Iterable[Row]) -> list[Row]:
        """Returns the rows of the requested runs.

        Args:
            rows: rows of results.csv or history.csv.

        Returns:
            The rows of these runs, in the same order.
        """
        return self.of_runs(rows, self._points)

    def of_runs(self, rows: Iterable[Row], points: Iterable[Point]) -> list[Row]:
        """Returns the rows of some runs.

        Args:
            rows: rows of results.csv or history.csv.
            points: axis values of the runs.

        Returns:
            The rows of these runs, in the same order.
        """
        runs = set(map(self.key, points))
        return [row for row in rows if self.key(row) in runs]

    def history_of(self, points: Sequence[Point]) -> list[list[Row]]:
        """Returns one list of rounds per run, in order.

        Args:
            points: axis values of the runs.

        Returns:
            One list per run. Its rows of history.csv are in the order of training.
        """
        histories: dict[tuple, list[Row]] = {self.key(point): [] for point in points}
        for row in self.of_runs(self.rounds, points):
            histories[self.key(row)].append(row)
        return list(histories.values())

    def key(self, row: Mapping[str, Any]) -> tuple[float, ...]:
        """Returns the axis values of a row, which identify its run.

        Args:
            row: a row of results.csv or history.csv, or a point.

        Returns:
            The values in the order of `names`.
        """
        return tuple(float(row[name]) for name in self.names)

    def _point(self, row: Row) -> Point:
        return {name: row[name] for name in self.names}

    # --- Names of runs

    def describe(self, point: Point) -> str:
        """Returns the settings and the seed of a run, such as "p 0.25, seed 0".

        Args:
            point: axis values of the run.

        Returns:
            Names and values.
        """
        values = ", ".join(f"{name} {point[name]:g}" for name in self.settings)
        return f"{values}, seed {point['seed']:.0f}"

    def place_of(self, points: Sequence[Point]) -> str:
        """Returns the position of runs in the grid, such as "runs 4 to 6 of 9".

        The text is "" if the grid has one run.

        Args:
            points: axis values of consecutive runs.

        Returns:
            The position, from 1.
        """
        first, last = (self._points.index(points[i]) + 1 for i in (0, -1))
        which = f"run {first}" if first == last else f"runs {first} to {last}"
        return f"{which} of {count}" if (count := len(self._points)) > 1 else ""

    def log_name(self, point: Point) -> str:
        """Returns the name of a run in logs: its settings and its seed.

        Args:
            point: axis values of the run.

        Returns:
            The name, with a digest of all axis values.
        """
        return self._file_name(point, [*self.settings, "seed"])

    def model_path(self, point: Point) -> Path:
        """Returns the path of the exported model of a run.

        Args:
            point: axis values of the run.

        Returns:
            The path of an .npz file in models/. The file need not exist.
        """
        # All axis values together may be too long for the name of a file.
        # A budget is among the others, so that nobody confuses two of them.
        budget = [name for name in self.names if name == "epsilon"]
        name = self._file_name(point, [self.names[0], *budget, self.names[-1]])
        return self.directory / "models" / f"{name}.npz"

    def communities_path(self, point: Point) -> Path:
        """Returns the path of the communities of a run.

        Args:
            point: axis values of the run.

        Returns:
            The path of an .npz file in communities/. The file need not exist.
        """
        return self.directory / "communities" / self.model_path(point).name

    def uploads_path(self, point: Point) -> Path:
        """Returns the path of the uploads of a run.

        Args:
            point: axis values of the run.

        Returns:
            The path of an .npz file in uploads/. The file need not exist.
        """
        return self.directory / "uploads" / self.model_path(point).name

    def _file_name(self, point: Point, names: Sequence[str]) -> str:
        """Returns the values of some axes, and a digest of the values of all axes."""
        values = {name: float(point[name]) for name in self.names}
        digest = sha256(repr(values).encode()).hexdigest()[:8]
        return ",".join([*(f"{name}={values[name]:g}" for name in names), digest])

    # --- Data of the runs

    def source(self) -> Source:
        """Returns the source of the data set of the runs, for `load`.

        Without `data_dir`, the source has the directory of the last start, if this
        directory still exists.
        """
        last = Path(self._last_start.get("data_dir") or os.devnull)
        existing = last if last.is_dir() else None
        # The config.json of an older fcjax lacks newer settings.
        settings = {name: self.config[name] for name in SOURCE if name in self.config}
        for name in ("image_shape", "drop_columns"):
            settings[name] = tuple(settings.get(name, ()))
        return Source(**settings, data_dir=self.data_dir or existing)

    def digests(self) -> dict[str, str]:
        """Returns the digests of the data of the last start, by name.

        The result is empty for runs in memory and for folders of an older fcjax.
        """
        last = self._last_start
        return {f"the digest of its {x}": last[x] for x in DIGESTS if x in last}

    @property
    def _last_start(self) -> dict[str, Any]:
        """The last entry of environment.json."""
        return (starts(self.directory) or [{}])[-1]

    @cached_property
    def examples(self) -> Examples:
        """The data set of the runs, with the names of the examples.

        Returns:
            The examples, read at the first call.

        Raises:
            ValueError: the data set cannot be read, or it was an array in memory.
        """
        source, dataset = self.source(), self.dataset
        if dataset is None and source.dataset == ARRAY:
            raise ValueError(
                f"the data of {self.directory} was an array or a DataFrame, which the "
                "folder does not store; use the results of fcjax.run with the same "
                "arguments, which reuses finished runs, or save the data to a file and "
                "train from its path; predict and transform work in any case"
            )
        if dataset is None:
            dataset = load(source)
        return Examples(dataset, example_names(dataset))

    # --- Arrays of the runs: clusters, models, communities

    def assignments(self, **where: float | int | str) -> pd.DataFrame:
        """Returns the client and cluster of each example in one run.

        Args:
            **where: axis values of the run, see `point`.

        Returns:
            One row per example, with the columns of `assignment_arrays`.
        """
        return pd.DataFrame(self.assignment_arrays(self.point(**where)))

    def assignment_arrays(self, point: Point) -> dict[str, np.ndarray]:
        """Returns the clients, clusters and communities of a run.

        Args:
            point: axis values of the run.

        Returns:
            Arrays [P]: `client`, `cluster`, and `community` for methods with
            communities.

        Raises:
            ValueError: the folder has no assignments.npz.
        """
        arrays = self._assignments
        if not arrays:
            raise ValueError(f"{self.directory} has no assignments.npz")
        same = [np.isclose(arrays[name], point[name]) for name in self.names]
        run = int(np.flatnonzero(np.all(same, axis=0))[0])
        columns = ("client", "cluster", "community")
        return {name: arrays[name][run] for name in columns if name in arrays}

    def add_assignments(
        self,
        points: Sequence[Point],
        arrays: Sequence[Mapping[str, np.ndarray]],
        rows: np.ndarray | None = None,
    ) -> None:
        """Adds runs to assignments.npz.

        Args:
            points: axis values of the runs.
            arrays: per run, the arrays of `assignment_arrays`. Communities are added
                only if all runs have them.
            rows: [P] the row of each example in the data; None counts from 0.
        """
        new = {name: np.array([p[name] for p in points]) for name in self.names}
        for name in arrays[0]:
            if all(name in each for each in arrays):
                new[name] = np.stack([each[name] for each in arrays])
        if self.rows and (old := self._assignments):
            # If a command is killed after this write, the file has unfinished runs.
            keys = zip(*(old[name] for name in self.names), strict=True)
            is_finished = [tuple(map(float, key)) in self._finished for key in keys]
            new = {k: np.concatenate([old[k][is_finished], new[k]]) for k in new}
        new["example"] = np.arange(new["cluster"].shape[1]) if rows is None else rows
        self._write(self.directory / "assignments.npz", new)
        self.__dict__.pop("_assignments", None)

    @property
    def rows_of_examples(self) -> np.ndarray:
        """The row of each example in the data, from 0, [P]."""
        return self._assignments["example"]

    @cached_property
    def _assignments(self) -> dict[str, np.ndarray]:
        """The arrays of assignments.npz for all runs, read once."""
        return self._read(self.directory / "assignments.npz")

    def model(self, **where: float | int | str) -> exported.ExportedModel:
        """Returns the exported global model of a run, for `exported.predict`.

        Args:
            **where: axis values of the run, see `point`.

        Returns:
            The model.

        Raises:
            ValueError: the clients of the run have no common model.

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
        """Returns whether the clients of a run have a common model.

        Args:
            point: axis values of the run.

        Returns:
            True if the model is in memory or in a file.
        """
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
        """Writes the exported global model of a run.

        Args:
            point: axis values of the run.
            program: exported program, which all runs of a batch share.
            weights: weights of the run.
            centers: [K, D] mean embedding of each cluster.
            scaling: scaling of feature vectors; None for images.
        """
        arrays = exported.to_arrays(program, weights, centers, scaling)
        self._write(self.model_path(point), arrays, compressed=False)

    def save_model(self, point: Point, path: Path) -> None:
        """Copies the exported global model of a run.

        Args:
            point: axis values of the run.
            path: file to write.

        Raises:
            ValueError: the clients of the run have no common model.
        """
        self.model(**point)
        write_arrays(path, self._read(self.model_path(point)), compressed=False)

    def add_communities(self, point: Point, communities: CommunityAssignments) -> None:
        """Writes the communities of a run.

        Args:
            point: axis values of the run.
            communities: the communities of the clients' clusters.
        """
        self._write(self.communities_path(point), communities._asdict())

    def communities(self, point: Point) -> CommunityAssignments | None:
        """Returns the communities of a run; None for methods without communities.

        Args:
            point: axis values of the run.

        Returns:
            The communities of the clients' clusters.

        Raises:
            ValueError: the file cannot be read.
        """
        arrays = self._read(self.communities_path(point))
        return CommunityAssignments(**arrays) if arrays else None

    def add_uploads(self, point: Point, uploads: Uploads) -> None:
        """Writes the last uploads of the clients of a run.

        Args:
            point: axis values of the run.
            uploads: the uploads as NumPy arrays. Methods without uploads have no
                points.
        """
        self._write(self.uploads_path(point), uploads._asdict())

    def uploads(self, point: Point) -> Uploads | None:
        """Returns the last uploads of the clients of a run; None if there is no file.

        Args:
            point: axis values of the run.

        Returns:
            The uploads. Methods without uploads have no points.

        Raises:
            ValueError: the file cannot be read.
        """
        arrays = self._read(self.uploads_path(point))
        return Uploads(**arrays) if arrays else None

    def _write(self, path: Path, arrays: Mapping[str, np.ndarray], **options) -> None:
        """Writes arrays to a file, or keeps them in memory."""
        if self.in_memory:
            self._memory[path] = dict(arrays)
        else:
            write_arrays(path, arrays, **options)

    def _read(self, path: Path) -> dict[str, np.ndarray]:
        """Returns the arrays of a file; {} without a file."""
        if self.in_memory or not path.exists():
            return self._memory.get(path, {})
        try:
            with np.load(path) as file:
                return dict(file)
        except Exception as error:  # a damaged archive raises almost any type
            raise ValueError(f"{path} cannot be read ({error})") from error

    # --- Writing

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the folder against other commands.

        Raises:
            ValueError: another command has the lock, has changed the folder since it
                was opened, or the folder cannot be written.
        """
        # The operating system releases the lock when the process ends.
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
                f"--out {self.directory} cannot be written ({error.strerror})"
            ) from error
        try:
            if _bytes(self.directory / "results.csv") != self._seen:
                raise ValueError(
                    f"--out {self.directory} was changed by another command: start "
                    "this command again"
                )
            yield
        finally:
            lock.release()

    def begin(self) -> None:
        """Creates the folder, and writes config.json.

        Without `resume`, earlier results are removed.
        """
        if not self.saves:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        tables = (self.directory / name for name in ("config.json", "results.csv"))
        if not self._resume and any(path.exists() for path in tables):
            # Old results are removed before config.json is written. Otherwise a killed
            # command could leave rows of another configuration.
            for path in (self.directory / name for name in CONTENTS):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        config = self.config | ({"command": self.command} if self.command else {})
        text = json.dumps(config, indent=2, sort_keys=True) + "\n"
        write_whole(self.directory / "config.json", text)

    def begin_runs(self, points: Sequence[Point]) -> Path:
        """Returns the checkpoint folder of a batch of runs, and removes all others.

        A run that resumed from an outdated checkpoint would leave a gap in its history.

        Args:
            points: axis values of the runs.

        Returns:
            The path, which need not exist. A digest of the axis values is its name.
        """
        name = fingerprint(*map(self.key, points))
        folder = self.directory / "checkpoints" / name
        for other in folder.parent.glob("*"):
            if other != folder and self.saves:
                shutil.rmtree(other)
        return folder

    def add_history(self, position: Position, rows: Sequence[Row]) -> None:
        """Appends one round of some runs to the history.

        A killed grid resumes from its last checkpoint, which may be several rounds
        before the last row. The first round after a resume removes these later rows.

        Args:
            position: stage and number of the round.
            rows: one row per run.
        """
        numbers = {"stage_index": position.stage, "round": position.round}
        rows = [{**numbers, **row} for row in rows]
        started = set(map(self.key, rows)) - self._running
        if started:
            self._running |= started
            self.rounds = [
                row
                for row in self.rounds
                if self.key(row) not in started
                or (row["stage_index"], row["round"]) < position
            ]
        self.rounds += rows
        if not self.saves:
            return
        if started or not set().union(*rows) <= set(self._columns):
            self._columns = write_rows(self.directory / "history.csv", self.rounds)
        else:
            with (self.directory / "history.csv").open("a") as file:
                _flush(file, _csv(rows, columns=self._columns, header=False))

    def add_rounds(self, rows: Sequence[Row]) -> None:
        """Adds rounds of finished runs from another folder.

        Rounds of the same runs that a killed command left here are replaced.

        Args:
            rows: rows of history.csv.
        """
        runs = set(map(self.key, rows))
        self.rounds = [r for r in self.rounds if self.key(r) not in runs] + [*rows]
        if self.saves:
            write_rows(self.directory / "history.csv", self.rounds)

    def add_rows(self, rows: Iterable[Row]) -> None:
        """Adds finished runs to results.csv, sorted by their axis values.

        Args:
            rows: rows of results.csv.
        """
        self.rows = sorted([*self.rows, *rows], key=self.key)
        self._finished = set(map(self.key, self.rows))
        if self.saves:
            write_rows(self.directory / "results.csv", self.rows)


class InMemory(Folder):
    """Results in memory: the same tables, clusters and models, without files.

    Args:
        config: configuration that all runs share.
        points: swept values of the requested runs.
        command: script and settings of the command.
    """

    in_memory = True
    """Whether the results are in memory instead of in files."""

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
        """Returns a context without a lock: no other command can change the results."""
        return nullcontext()


def read(directory: str | Path, *, data_dir: Path | None = None) -> Folder:
    """Opens a results folder.

    Args:
        directory: path of the folder.
        data_dir: folder of prepared TFDS data sets; None takes that of the runs.

    Returns:
        The folder, with all its finished runs.

    Raises:
        ValueError: there is no finished run, or an earlier fcjax wrote the folder.
    """
    folder = Folder(Path(directory), read_config(Path(directory)))
    folder.data_dir = data_dir
    if not folder.rows:
        raise ValueError(f"{directory} holds no finished run yet")
    return folder


def example_names(dataset: Dataset) -> list[str]:
    """Returns the name of each example: its file in a folder of images, or its index.

    Args:
        dataset: the data set of P examples.

    Returns:
        P names.
    """
    names = range(len(dataset.examples)) if dataset.names is None else dataset.names
    return list(map(str, names))


def parse_where(where: Sequence[str]) -> dict[str, str]:
    """Returns the values of --where by name.

    Args:
        where: texts NAME=VALUE.

    Returns:
        By name, the value as text.

    Raises:
        ValueError: a name occurs twice.
    """
    parts = [text.partition("=") for text in where]
    values = {name: value for name, _, value in parts}
    if len(values) < len(where):
        raise ValueError(f"--where takes each name once, got {' '.join(where)}")
    return values


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Returns the settings that differ between two configurations.

    These include settings that only one of them has. The command is ignored.

    Args:
        one: the first configuration, as in config.json.
        other: the second configuration.

    Returns:
        The names of the settings, in alphabetical order.
    """
    missing = object()
    names = {**one, **other}.keys() - {"command"}
    return sorted(k for k in names if one.get(k, missing) != other.get(k, missing))


def only_in_one(there: Sequence[str], here: Sequence[str]) -> str:
    """Describes the flags that only one of two commands has.

    Args:
        there: the flags of the earlier command.
        here: the flags of this command.

    Returns:
        Such as "only this command gives blend".
    """
    parts = [("this command gives", {*here} - {*there})]
    parts += [("the earlier command gives", {*there} - {*here})]
    return ", ".join(
        f"only {text} {' '.join(sorted(names))}" for text, names in parts if names
    )


def _text(value: Any) -> str:
    """Returns a setting as text, a list with spaces between its values."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def fingerprint(*parts: Any) -> str:
    """Returns a digest of 16 hexadecimal digits of JSON-like values."""
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


# --- Files


def read_config(directory: Path) -> dict[str, Any]:
    """Reads config.json.

    Args:
        directory: results folder.

    Returns:
        The configuration.

    Raises:
        ValueError: the file is missing or damaged, or an earlier fcjax wrote it.
    """
    path = directory / "config.json"
    if not path.exists():
        below = sorted(directory.glob("*/config.json"))
        hint = f"; did you mean {below[0].parent}?" if below else ""
        raise ValueError(f"{directory} holds no run: config.json is missing{hint}")
    config = _json(path)
    if "swept" not in config:
        raise ValueError(
            f"{directory} is of an earlier fcjax: its config.json does not name the "
            "swept settings; read the folder with the version that wrote it"
        )
    return config


def _json(path: Path) -> Any:
    """Returns the content of a JSON file."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it is not JSON") from error


def read_rows(path: Path) -> list[Row]:
    """Reads a CSV file.

    Args:
        path: the file.

    Returns:
        The rows without an incomplete last line; [] if the file is missing.

    Raises:
        ValueError: the file is not a table.
    """
    try:
        text = path.read_text() if path.exists() else ""
        # A killed command may leave an incomplete last line.
        if not (whole := text[: text.rfind("\n") + 1]):
            return []
        # Otherwise pandas would turn integers into floats, and empty cells into NaN.
        table = pd.read_csv(io.StringIO(whole), dtype=str, keep_default_na=False)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it is not a table") from error
    return [
        {str(name): value_of(text) for name, text in row.items()}
        for row in table.to_dict("records")
    ]


def value_of(text: str) -> int | float | str | None:
    """Returns the value of a cell: an integer, a float, a text, or None if empty.

    Args:
        text: the text of a cell in a CSV file.

    Returns:
        The value.
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None


def write_rows(path: Path, rows: Sequence[Row]) -> list[str]:
    """Writes a CSV file atomically, and returns its columns.

    Args:
        path: file to write.
        rows: the rows. A column that a row lacks is an empty cell.

    Returns:
        The columns, in the order of their first appearance.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    write_whole(path, _csv(rows, columns))
    return columns


def _csv(rows: Sequence[Row], columns: Sequence[str], *, header: bool = True) -> str:
    """Returns rows as CSV text."""
    # NaN is written as text, because an empty cell means None.
    cells = [{k: "" if x is None else str(x) for k, x in row.items()} for row in rows]
    table = pd.DataFrame(cells, columns=list(columns), dtype=object)
    return table.to_csv(index=False, header=header, lineterminator="\n")


def write_whole(path: Path, text: str) -> None:
    """Writes a text file atomically: complete or not at all.

    Args:
        path: file to write.
        text: the content of the file.
    """
    temporary = path.with_suffix(path.suffix + ".tmp")
    with temporary.open("w") as file:
        _flush(file, text)
    temporary.replace(path)


def _flush(file: IO[str], text: str) -> None:
    """Writes text, and waits until it is on the disk."""
    file.write(text)
    file.flush()
    os.fsync(file.fileno())


def write_arrays(
    path: Path, arrays: Mapping[str, np.ndarray], *, compressed: bool = True
) -> None:
    """Writes an npz file atomically; creates its folder if it is missing.

    Args:
        path: file to write.
        arrays: the arrays by name.
        compressed: whether to compress the arrays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        save = np.savez_compressed if compressed else np.savez
        save(file, **arrays)  # pyright: ignore[reportArgumentType]
    temporary.replace(path)


def _bytes(path: Path) -> bytes:
    """Returns the content of a file; empty without a file."""
    return path.read_bytes() if path.exists() else b""


# --- Environment


def starts(directory: Path) -> list[dict[str, Any]]:
    """Returns the entries of environment.json, one per start of the command.

    Args:
        directory: results folder.

    Returns:
        The entries, oldest first; [] for folders of an earlier fcjax.

    Raises:
        ValueError: the file is damaged.
    """
    path = directory / "environment.json"
    return _json(path) if path.exists() else []


def write_environment(directory: Path, starts: Sequence[dict[str, Any]]) -> None:
    """Writes environment.json, with one entry per start of the command.

    Args:
        directory: the results folder.
        starts: the entries, the first start first.
    """
    text = json.dumps(starts, indent=2) + "\n"
    write_whole(directory / "environment.json", text)


@contextmanager
def record_environment(
    folder: Folder, dataset: Dataset, method: type, *, data_dir: Path | None
) -> Iterator[None]:
    """Adds an entry to environment.json, and the elapsed seconds at the end.

    The entry of a killed command gets its seconds at the next start: they last until
    its last round.

    Args:
        folder: results folder.
        dataset: the scored data set.
        method: the class of the method, see `environment.method_file`.
        data_dir: folder of prepared TFDS data sets, if the command names it. Commands
            for finished runs read the data set from there.
    """
    if not folder.writes:
        yield
        return
    began, earlier = datetime.now(UTC), starts(folder.directory)
    start = time.monotonic()
    if earlier and earlier[-1]["seconds"] is None:
        killed = datetime.fromisoformat(earlier[-1]["began"])
        files = (folder.directory / x for x in ("history.csv", "environment.json"))
        last = next(file for file in files if file.exists()).stat().st_mtime
        # The clock of the machine may have been set back.
        earlier[-1]["seconds"] = max(0, round(last - killed.timestamp()))
    entry = {
        **environment(),
        **method_file(method),
        **digests(dataset),
        **({} if data_dir is None else {"data_dir": str(data_dir.resolve())}),
        "began": began.isoformat(" ", "seconds"),
        "seconds": None,
    }
    write_environment(folder.directory, [*earlier, entry])
    try:
        yield
    finally:
        entry["seconds"] = round(time.monotonic() - start)
        write_environment(folder.directory, [*earlier, entry])


def digests(dataset: Dataset) -> dict[str, str]:
    """Returns digests of the examples, labels and clients of a data set, by name.

    Args:
        dataset: the data set.

    Returns:
        The digests under the names in `DIGESTS`. Missing arrays have none.
    """
    arrays = dataset.examples, dataset.labels, dataset.clients
    items = zip(DIGESTS, arrays, strict=True)
    return {name: digest(x) for name, x in items if x is not None}


def check_digests(directory: Path, entries: Sequence[dict[str, Any]]) -> None:
    """Checks that all entries have the same digests of the data.

    Args:
        directory: results folder.
        entries: entries of environment.json, or results of `digests`. A missing digest
            is ignored.

    Raises:
        ValueError: two digests differ.
    """
    for name in DIGESTS:
        if len({entry[name] for entry in entries if name in entry}) > 1:
            raise ValueError(
                f"{directory} holds results of other {name}: the data, or how fcjax "
                "reads it, has changed; choose another --out, or remove this folder"
            )
