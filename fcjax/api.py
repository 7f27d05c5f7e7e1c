"""Runs methods from Python: arrays or data sets in, frames and arrays out."""

import contextlib
import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from fcjax import data
from fcjax.data import Dataset, Partition
from fcjax.data.dataset import images_or_vectors, owners, pixels, scaled, validate
from fcjax.data.source import ARRAY, Loaded, Source, load_source
from fcjax.data.split import Split
from fcjax.methods import Method
from fcjax.results.results import Results, Run
from fcjax.results.store import read
from fcjax.settings import as_tuple, given
from fcjax.sweep.experiment import prepare, used
from fcjax.sweep.options import Options
from fcjax.sweep.plan import Task
from fcjax.sweep.progress import printed


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
    if len({m.full_name() for m in methods}) < len(methods):
        raise ValueError("methods must have different names: one method, one folder")
    split, dataset, natural = split or Split(), None, None
    name = x if isinstance(x, str | Path) else ARRAY
    if not isinstance(x, str | Path):
        dataset = x if isinstance(x, Dataset) else dataset_of(x)
    if clients is not None:
        dataset = dataset or data.load(str(name), data_dir=data_dir)
        if given(split):
            raise ValueError("give clients or split, not both")
        if isinstance(clients, Partition):
            natural, clients = clients, _ids_of(clients, len(dataset.examples))
        dataset = dataset._replace(clients=ids(clients, len(dataset.examples)))
    if dataset is not None and limit is not None:
        if natural is not None:
            raise ValueError("give limit or a Partition, not both")
        dataset = data.stratified_subset(dataset, limit)
    labels = dataset is None or dataset.labels is not None
    folder = Path(data_dir) if data_dir else None
    source = Source(str(name), data_dir=folder, limit=limit, labels=labels)
    if num_clusters is not None:
        split = dataclasses.replace(split, clusters=num_clusters)
    options = Options(
        seed=tuple(range(seeds)) if isinstance(seeds, int) else as_tuple(seeds),
        evaluate_every=evaluate_every,
        precision=precision,
        resume=resume,
        plot=False,
    )

    def load(source: Source) -> Loaded:
        return (dataset, dataset.examples[:0]) if dataset else load_source(source)

    experiments = []
    for method in methods:
        own = options
        if out is not None:
            place = Path(out) / method.full_name() if len(methods) > 1 else Path(out)
            own = dataclasses.replace(options, out=place)
        task = Task(method, source, split, own)
        experiments.append(prepare(task, load, natural=natural, in_memory=out is None))
    for experiment in experiments:
        method = experiment.task.method
        for name in given(method).keys() - used(experiment):
            warnings.warn(f"{name} has no effect on {method.name}", stacklevel=2)
    # Late, as orbax and matplotlib take a second to import.
    from fcjax.sweep.train import execute

    with printed() if progress else contextlib.nullcontext():
        for experiment in experiments:
            with experiment.folder.locked():
                execute(experiment, progress=progress)
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


def open(directory: str | Path, *, data_dir: Path | None = None) -> Results:
    """Returns the finished runs of a results folder, or of all folders in it where a
    grid of several methods wrote them.

    Args:
        directory: results folder, or the folder of several.
        data_dir: where TFDS data sets are prepared. None looks where the runs had them.

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
    folders = [directory] if is_one else inner
    return Results([read(folder, data_dir=data_dir) for folder in folders])


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
