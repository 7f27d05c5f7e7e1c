"""A finished run, read back from its folder."""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fcjax.sweep import communities
from fcjax.sweep.flags import Common
from fcjax.sweep.folder import Point, read_rows, run_name, settings_of


class Finished:
    """What a results folder holds.

    Args:
        directory: --out of a run.

    Raises:
        ValueError: it holds no finished run.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        if not (directory / "config.json").exists():
            raise ValueError(f"{directory} holds no run: it has no config.json")
        self.config = json.loads((directory / "config.json").read_text())
        self.rows = read_rows(directory / "results.csv")
        self.history = read_rows(directory / "history.csv")
        if not self.rows:
            raise ValueError(f"{directory} holds no finished run yet")
        self.names: list[str] = self.config["swept"]

    @property
    def settings(self) -> list[str]:
        return settings_of(self.names, self.rows)

    def point(self, where: Sequence[str]) -> Point:
        """Returns the first run whose swept values are those of `where`, NAME=VALUE.

        Raises:
            ValueError: a value is misspelled, or no run has them.
        """
        accepted = " ".join(f"{name}=VALUE" for name in self.names)
        wanted = {}
        for text in where:
            name, _, value = text.partition("=")
            try:
                wanted[name] = float(value)
            except ValueError:
                name = ""
            if name not in self.names:
                raise ValueError(f"--where takes {accepted}, got {text!r}")
        for row in self.rows:
            if all(float(row[name]) == value for name, value in wanted.items()):
                return {name: float(row[name]) for name in self.names}
        raise ValueError(f"no run of {self.directory} has {' '.join(where)}")

    def of_runs(
        self, rows: Iterable[dict[str, Any]], points: Iterable[Point]
    ) -> list[dict[str, Any]]:
        """Returns those rows, of results.csv or history.csv, that are of these runs."""
        runs = {self._key(point) for point in points}
        return [row for row in rows if self._key(row) in runs]

    def _key(self, row: Mapping[str, Any]) -> tuple[float, ...]:
        return tuple(float(row[name]) for name in self.names)

    def told(self, point: Point) -> str:
        return ", ".join(f"{name} {point[name]:g}" for name in [*self.settings, "seed"])

    def model_path(self, point: Point) -> Path:
        return self.directory / "models" / f"{run_name(point, self.names)}.npz"

    def communities_path(self, point: Point) -> Path:
        return self.directory / "communities" / self.model_path(point).name

    def communities(self, point: Point) -> communities.Kept | None:
        """Returns which clients' clusters are the same in a run; None where its method
        does not find out."""
        path = self.communities_path(point)
        return communities.read(path) if path.exists() else None

    def flags(self, *, data_dir: Path | None) -> Common:
        """Returns the flags that the data of the run came from."""
        names = ("dataset", "labels", "split", "limit", "extra_split")
        flags = {name: self.config[name] for name in names}
        shape = tuple(self.config["image_shape"])
        return Common(**flags, image_shape=shape, resize=self.resize, data_dir=data_dir)

    @property
    def resize(self) -> int | None:
        """What --resize was; folders of before it was a flag have none."""
        return self.config.get("resize")

    def assignments(self, point: Point) -> tuple[np.ndarray, np.ndarray]:
        """Returns the client [P] and the cluster [P] of every example in a run."""
        same = [np.isclose(self._arrays[name], point[name]) for name in self.names]
        run = int(np.flatnonzero(np.all(same, axis=0))[0])
        return self._arrays["client"][run], self._arrays["cluster"][run]

    @cached_property
    def _arrays(self) -> dict[str, np.ndarray]:
        # Unpacked once: a file of the archive is all runs.
        with np.load(self.directory / "assignments.npz") as file:
            return dict(file)
