"""Runs methods from Python: arrays or data sets in, frames and arrays out."""

import contextlib
import dataclasses
import io
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from fcjax import data, metrics
from fcjax.data import Dataset, Partition
from fcjax.data.dataset import images_or_vectors, owners, pixels, scaled, validate
from fcjax.data.source import load_source
from fcjax.methods import Method
from fcjax.results import exported, tables
from fcjax.results.store import Folder, Point, read
from fcjax.settings import Default, as_tuple, kind_of
from fcjax.sweep.experiment import Experiment, prepare
from fcjax.sweep.flags import Split, flags_of

ARRAY = "array"
"""The name of a data set that is given as an array."""


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


def run(
    methods: Method | Iterable[Method],
    x: Any,
    *,
    clients: Any = None,
    split: Split | None = None,
    num_clusters: int | Sequence[int] | None = None,
    seeds: int | Sequence[int] = 1,
    out: str | Path | None = None,
    resume: bool = True,
    progress: bool = False,
    data_dir: str | Path | None = None,
    limit: int | None = None,
    evaluate_every: int | None = None,
    precision: Literal["highest", "high", "default"] = "highest",
) -> Results:
    """Runs a grid: methods x values of their settings x partitions x seeds.

    It is the engine of the command line: the same settings give the same results, and a
    folder that one has written the other goes on with.

    Args:
        methods: one or several. A setting with several values spans the grid.
        x: examples [P, F] or images [P, H, W, C], from NumPy, JAX or pandas; a
            `Dataset`; or the name or path of one, as on the command line. Feature
            vectors are scaled to [0, 1] column by column.
        clients: the client of every example, [P] ids of any kind, or a `Partition`.
            None partitions by `split`.
        split: how the examples are partitioned. By default ten clients hold examples
            drawn at random or, with labels, at heterogeneity p = 0.25.
        num_clusters: K; None takes the number of classes of a labelled data set.
        seeds: a number of seeds from 0, or the seeds.
        out: results folder; of several methods each has a folder of its name in it.
            None keeps all results in memory.
        resume: go on with what the folder holds; False writes over it.
        progress: show a progress bar and the summary of the run.
        data_dir: where TFDS data sets are prepared.
        limit: use so many examples, classes in proportion.
        evaluate_every: rounds between two evaluations; None leaves it to the method.
        precision: of the networks' matrix products.

    Raises:
        ValueError: an argument is wrong; one line that names it.

    Examples:
        >>> import fcjax
        >>> from fcjax.methods import KFed, KMeans
        >>> grid = fcjax.run([KMeans(num_init=2), KFed()], "digits", limit=200, seeds=2)
        >>> grid.runs[["method", "seed"]].values.tolist()
        [['km', 0], ['km', 1], ['k-fed', 0], ['k-fed', 1]]
    """
    methods = [methods] if isinstance(methods, Method) else [*methods]
    if len({m.called() for m in methods}) < len(methods):
        raise ValueError("methods must have different names: one method, one folder")
    dataset = partition = None
    name = x if isinstance(x, str | Path) else ARRAY
    if not isinstance(x, str | Path):
        dataset = x if isinstance(x, Dataset) else dataset_of(x)
    if clients is not None:
        dataset = dataset or data.load(str(name), data_dir=data_dir)
        if split is not None and _given(split):
            raise ValueError("give clients or split, not both")
        if isinstance(clients, Partition):
            partition, clients = clients, _ids_of(clients, len(dataset.examples))
        dataset = dataset._replace(clients=ids(clients, len(dataset.examples)))
    if dataset is not None and limit is not None:
        if partition is not None:
            raise ValueError("give limit or a Partition, not both")
        dataset = data.stratified_subset(dataset, limit)
    common = {
        "dataset": str(name),
        "data_dir": data_dir and Path(data_dir),
        "limit": limit,
        "seed": tuple(range(seeds)) if isinstance(seeds, int) else as_tuple(seeds),
        "resume": resume,
        "evaluate_every": evaluate_every,
        "precision": precision,
        "plot": False,
        **_given(split or Split()),
    }
    if dataset is not None:
        common["labels"] = dataset.labels is not None
    if num_clusters is not None:
        common["clusters"] = as_tuple(num_clusters)

    def loaded(args):
        return (dataset, dataset.examples[:0]) if dataset else load_source(args)

    experiments = []
    for method in methods:
        flags, own = flags_of(type(method)), dict(common)
        if out is not None:
            own["out"] = Path(out) / method.called() if len(methods) > 1 else Path(out)
        if len(flags.script.methods) > 1:
            own["methods"] = (method.name,)
        args = method.adapt(flags(**own, **_given(method)))
        options = {"partition": partition, "in_memory": out is None}
        experiments.append(prepare(args, load=loaded, **options))
    for method, experiment in zip(methods, experiments, strict=True):
        _warn_of_unused(method, experiment)
    for experiment in experiments:
        _execute(experiment, progress=progress)
        experiment.folder.dataset = experiment.dataset
    return Results([experiment.folder for experiment in experiments])


def fit(method: Method, x: Any, *, seed: int, **options: Any) -> Run:
    """Runs a method once, see `Method.fit`."""
    results = run(method, x, seeds=[seed], **options)
    if len(results) > 1:
        raise ValueError(
            f"fit takes one value of each setting, got {len(results)} runs"
        )
    return results[0]


def open(directory: str | Path) -> Results:
    """Returns the finished runs of a results folder, or of all folders in it where a
    grid of several methods wrote them.

    Raises:
        ValueError: it holds no finished run, or one that is too old to be read.

    Examples:
        >>> import fcjax
        >>> fcjax.open("runs/spherical").runs[["method", "clients", "rounds"]]
              method  clients  rounds
        0  spherical        4       2
    """
    directory = Path(directory)
    inner = [x.parent for x in sorted(directory.glob("*/config.json"))]
    is_one = (directory / "config.json").exists() or not inner
    return Results(list(map(read, [directory] if is_one else inner)))


def dataset_of(x: Any) -> Dataset:
    """Returns an array as an unlabelled data set.

    Args:
        x: [P, F] feature vectors, [P, H, W] or [P, H, W, C] images: NumPy, JAX, pandas,
            or nested lists.

    Raises:
        ValueError: the shape or the values are not accepted.
    """
    with about("x"):
        values = images_or_vectors(np.asarray(x), None)
        if values.ndim == 2:
            examples, told, scaling = scaled(values)
        else:
            (examples, told), scaling = pixels(values), None
    return validate(Dataset(ARRAY, examples, None, notes=tuple(told), scaling=scaling))


def ids(clients: Any, num_examples: int) -> np.ndarray:
    """Returns the client of every example as a number from 0, in sorted order of the
    ids; -1 where an id is missing or below 0, see `owners`.

    Examples:
        >>> ids(["b", "a", None, "b"], 4)
        array([ 1,  0, -1,  1])
    """
    values, missing = np.asarray(clients), pd.isna(clients)
    if values.shape != (num_examples,):
        raise ValueError(
            f"clients must have one id per example, {num_examples}, got {values.shape}"
        )
    is_number = values.dtype.kind in "biuf"
    named = values if is_number else values.astype(str)
    with about("clients"):
        return owners(np.where(missing, -1 if is_number else "", named))


@contextlib.contextmanager
def about(name: str) -> Iterator[None]:
    """Lets errors about values begin with the name of the argument."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None


def _ids_of(partition: Partition, num_examples: int) -> np.ndarray:
    rows = np.concatenate(partition.clients)
    if len(np.unique(rows)) < len(rows):
        raise ValueError("clients must be a Partition that gives no example twice")
    found = np.full(num_examples, -1)
    for client, own in enumerate(partition.clients):
        found[own] = client
    return found


def _given(settings: Any) -> dict[str, Any]:
    """Returns the fields that differ from their defaults, as the engine has them."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value, default = getattr(settings, field.name), field.default
        # What is given wins over presets, also where it equals what they may replace.
        is_default = not isinstance(default, Default) and np.array_equal(value, default)  # pyright: ignore[reportArgumentType]
        if isinstance(value, Default) or is_default:
            continue
        if kind := kind_of(field.type):
            value = tuple(kind(x) if kind is float else x for x in as_tuple(value))
        found[field.name] = value
    return found


def _warn_of_unused(method: Method, experiment: Experiment) -> None:
    """Warns of settings that were given and have no effect on the method."""
    config = experiment.folder.config
    used = {"preset", *config, *config["swept"], *config["defaults"]}
    for name in _given(method).keys() - used:
        warnings.warn(f"{name} has no effect on {config['method']}", stacklevel=4)


def _execute(experiment: Experiment, *, progress: bool) -> None:
    # Late, as orbax and matplotlib take a second to import.
    from fcjax.sweep.train import execute

    told = contextlib.nullcontext()
    if not progress:
        told = contextlib.redirect_stdout(io.StringIO())
    with experiment.folder.locked(), told:
        execute(experiment)
