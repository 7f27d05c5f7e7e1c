"""`Results` and `Run`: the finished runs of a folder or of memory, from Python."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fcjax import metrics
from fcjax.data.dataset import pixels, scaled
from fcjax.data.source import ARRAY
from fcjax.results import exported, tables
from fcjax.results.store import Folder, Point


class Run:
    """One finished run.

    Attributes:
        params: the values that tell it apart from the other runs of its grid.
        result: its row of the results: scores, settings, seconds.

    Examples:
        >>> import fcjax
        >>> run = fcjax.open("runs/spherical")[0]
        >>> run.labels_.shape, run.embedding_.shape
        ((60,), (60, 2))
    """

    def __init__(self, folder: Folder, point: Point):
        self._folder, self.params = folder, dict(point)
        (row,) = folder.of_runs(folder.rows, [point])
        self.result = pd.Series(row)

    @cached_property
    def _columns(self) -> dict[str, np.ndarray]:
        return self._folder.assigned(self.params)

    @property
    def assignments(self) -> pd.DataFrame:
        """One row per example: client and cluster, and where the method finds them the
        community of the cluster."""
        return pd.DataFrame(self._columns)

    @property
    def labels_(self) -> np.ndarray:
        """The cluster of every example, int [P]; -1 where an example has none. Where
        clients cluster on their own, a cluster number holds within its client."""
        return self._columns["cluster"]

    @property
    def clients_(self) -> np.ndarray:
        """The client of every example, int [P], from 0; -1 where no client holds it."""
        return self._columns["client"]

    @property
    def embedding_(self) -> np.ndarray:
        """The embedding of every example by the global model, float [P, D].

        Raises:
            ValueError: the clients have no common model, or the folder was opened and
                its data, an array, is not in it: then `transform` embeds the array.
        """
        if self._folder.dataset is None and self._folder.config["dataset"] == ARRAY:
            raise ValueError("the folder does not hold the array: pass it to transform")
        return self._folder.embedding(None, **self.params)

    @cached_property
    def model(self) -> exported.Frozen:
        """The global model.

        Raises:
            ValueError: the clients have no common model.
        """
        return self._folder.model(**self.params)

    @property
    def history(self) -> pd.DataFrame:
        """One row per round: stage, loss, traffic, and scores where they were taken."""
        return pd.DataFrame(self._folder.of_runs(self._folder.rounds, [self.params]))

    def predict(self, x: Any) -> np.ndarray:
        """Returns the clusters of new examples, int [n].

        Args:
            x: examples of the shape and the scale of those that were clustered.

        Raises:
            ValueError: the clients have no common model, or the shape differs.
        """
        return exported.predict(self.model, self._like(x)).clusters

    def transform(self, x: Any) -> np.ndarray:
        """Returns the embedding of new examples, float [n, D]; see `predict`."""
        return exported.predict(self.model, self._like(x)).embedding

    def _like(self, x: Any) -> np.ndarray:
        """New examples as the model takes them."""
        x, model = np.asarray(x), self.model
        if model.scaling is not None:
            return scaled(x, model.scaling)[0]
        return pixels(x[..., None] if x.ndim == len(model.shape) else x)[0]

    def scores(self, y: Any) -> dict[str, float]:
        """Returns the scores of the clusters against true labels: ACC, NMI, kappa, ARI
        and AMI.

        Args:
            y: true labels, [P]. Examples without a cluster do not count.
        """
        y = np.unique(np.asarray(y), return_inverse=True)[1]
        if y.shape != self.labels_.shape:
            raise ValueError(
                f"y must have one label per example, {len(self.labels_)}, got {y.shape}"
            )
        held = self.labels_ >= 0
        return metrics.scores(y[held], self.labels_[held])

    def save(self, path: str | Path) -> None:
        """Writes the global model into a file, which `fcjax.results.exported.read`
        loads."""
        self._folder.save_model(self.params, Path(path))


class Results:
    """The finished runs of one or several methods, in memory or in folders.

    Examples:
        >>> import fcjax
        >>> results = fcjax.open("runs/spherical")
        >>> results.runs[["method", "p", "seed", "status"]]
              method     p  seed status
        0  spherical  0.25     0     ok
    """

    def __init__(self, folders: Sequence[Folder]):
        self.folders = tuple(folders)

    def __len__(self) -> int:
        return sum(len(self._rows(folder)) for folder in self.folders)

    @staticmethod
    def _rows(folder: Folder) -> list[dict[str, Any]]:
        return folder.asked(folder.rows)

    @property
    def runs(self) -> pd.DataFrame:
        """One row per run, as in results.csv."""
        return pd.concat(
            [pd.DataFrame(self._rows(folder)) for folder in self.folders],
            ignore_index=True,
        )

    @property
    def history(self) -> pd.DataFrame:
        """One row per round of a run, as in history.csv, with the method."""
        return pd.concat(
            [
                pd.DataFrame(folder.asked(folder.rounds)).assign(
                    method=folder.config["method"]
                )
                for folder in self.folders
            ],
            ignore_index=True,
        )

    def where(self, **params: Any) -> "Results":
        """Returns the runs that have these values, of a setting or of `method`.

        Raises:
            ValueError: no run has them.
        """
        method = params.pop("method", None)
        found = []
        for folder in self.folders:
            if method not in (None, folder.config["method"]):
                continue
            if not params.keys() <= {*folder.columns}:
                continue
            points = [
                {name: row[name] for name in folder.names}
                for row in self._rows(folder)
                if all(np.isclose(row[k], v) for k, v in params.items())
            ]
            if points:
                found.append(folder.only(points))
        if not found:
            told = ", ".join(f"{name} {value}" for name, value in params.items())
            raise ValueError(f"no run has {method or ''} {told}".replace("  ", " "))
        return Results(found)

    def run(self, **params: Any) -> Run:
        """Returns the only run that has these values, see `where`.

        Raises:
            ValueError: no run has them, or several: the line names the columns in which
                those differ.
        """
        found = self.where(**params)
        if len(found) > 1:
            runs: Any = found.runs
            axes = (name for folder in found.folders for name in folder.names)
            each = {n: runs[n].unique() for n in dict.fromkeys(("method", *axes))}
            differ = {name: values for name, values in each.items() if len(values) > 1}
            told = " and ".join(
                f"{name} ({', '.join(map(str, each))})" for name, each in differ.items()
            )
            raise ValueError(f"{len(found)} runs are left; choose one by {told}")
        return found[0]

    def __getitem__(self, index: int) -> Run:
        """Returns a run by its place in `runs`."""
        every = [
            (folder, {name: row[name] for name in folder.names})
            for folder in self.folders
            for row in self._rows(folder)
        ]
        return Run(*every[index])

    def summary(self, by: str | Sequence[str] | None = None) -> pd.DataFrame:
        """Returns the mean of each score over seeds, half its 95 % interval where there
        are three seeds or more, and the number of seeds.

        Args:
            by: columns that tell the rows apart besides the method; None takes all that
                vary but the seed.
        """
        axes = dict.fromkeys(name for x in self.folders for name in x.settings)
        by = [*axes] if by is None else [by] if isinstance(by, str) else [*by]
        by = ["method", *by]
        rows = [row for folder in self.folders for row in self._rows(folder)]
        labelled = any(row["nmi"] is not None for row in rows)
        names = ("nmi", "acc", "kappa") if labelled else ("silhouette",)
        # A method may lack an axis that another has.
        rows = [{**dict.fromkeys(by), **row} for row in rows]
        found = tables.summarize(rows, by=by, values=names)
        seeds = found.filter([f"{name}_seeds" for name in names]).max(axis=1)
        widths = [f"{name}_half_width" for name in names]
        table = found.filter([*names, *widths]).assign(seeds=seeds)
        return table.dropna(axis=1, how="all")
