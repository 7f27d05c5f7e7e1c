"""The Python interface: runs methods on arrays or data sets, and opens results."""

import contextlib
import dataclasses
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from fcjax import data
from fcjax.data import Dataset, Partition
from fcjax.data.dataset import (
    Scale,
    about,
    client_numbers,
    images_or_vectors,
    pixels,
    scaled,
    validate,
)
from fcjax.data.source import ARRAY, Source
from fcjax.data.sources import Loaded, load_source
from fcjax.data.split import Split
from fcjax.methods import Method
from fcjax.privacy.guarantee import Privacy
from fcjax.results.results import Results, Run
from fcjax.results.store import read
from fcjax.settings import as_tuple, given
from fcjax.sweep.experiment import effective_settings, prepare
from fcjax.sweep.options import Options
from fcjax.sweep.plan import Task
from fcjax.sweep.progress import log_to_stdout


def run(
    methods: Method | Iterable[Method],
    x: Any,
    *,
    clients: Any = None,
    split: Split | None = None,
    privacy: Privacy | None = None,
    num_clusters: int | Sequence[int] | None = None,
    seeds: int | Sequence[int] = 1,
    out: str | Path | None = None,
    resume: bool = True,
    progress: bool = False,
    data_dir: str | Path | None = None,
    limit: int | None = None,
    scale_columns: Scale = "minmax",
    evaluate_every: int | None = None,
    keep_uploads: bool = False,
    precision: Literal["highest", "high", "default", "bfloat16"] | None = None,
) -> Results:
    """Runs a grid: all combinations of methods, settings, partitions and seeds.

    The command line uses the same engine. The same settings give the same results, and
    either of them can resume a results folder of the other.

    Args:
        methods: one method or several. A setting with several values spans the grid.
        x: examples [P, F] or images [P, H, W, C], from NumPy, JAX or pandas; a
            `Dataset`; or the name or path of a data set, as on the command line.
        clients: the client of every example, [P] ids of any type, or a `Partition`.
            None partitions by `split`.
        split: the partition of the examples. By default there are ten clients. Their
            heterogeneity is p = 0.25 for data with labels. Data without labels are
            partitioned at random.
        privacy: differential privacy; several epsilons span the grid. None adds no
            noise.
        num_clusters: K; None uses the number of classes of a data set with labels.
        seeds: the number of seeds, counted from 0, or the seeds.
        out: the results folder. Several methods get a subfolder each. None keeps all
            results in memory.
        resume: whether to reuse the runs in the results folder; False overwrites it.
        progress: whether to print the progress and the results. Without it, warnings
            alone go to the logger `fcjax`, and so to standard error by default.
        data_dir: the folder of prepared TFDS data sets.
        limit: the number of examples to use, a subset with the same class proportions.
        scale_columns: the scaling of feature columns: "minmax" to [0, 1], "standard" to
            mean 0 and standard deviation 1, or "none". A `Dataset` is not scaled again.
        evaluate_every: rounds between two evaluations; None uses the method's default.
        keep_uploads: whether to store the last uploads of the clients, for
            `Run.privacy_report`.
        precision: the precision of the matrix products of networks. None is "highest"
            on a CPU, and "default", the tensor cores, on a GPU or TPU. "bfloat16" also
            stores the activations in bfloat16.

    Returns:
        The results of all runs.

    Raises:
        ValueError: an argument is not accepted. One line names it.

    Examples:
        >>> import fcjax
        >>> from fcjax.methods import KFed, KMeans
        >>> grid = fcjax.run([KMeans(num_init=2), KFed()], "digits", limit=200, seeds=2)
        >>> grid.runs[["method", "seed"]].values.tolist()
        [['km', 0], ['km', 1], ['k-fed', 0], ['k-fed', 1]]
    """
    methods = [methods] if isinstance(methods, Method) else [*methods]
    if len({m.full_name() for m in methods}) < len(methods):
        raise ValueError(
            "methods must have different names, because each has its own results folder"
        )
    if isinstance(clients, str):
        raise ValueError(
            f"clients must have one id per example, got the text {clients!r}; for a "
            f"column of a DataFrame use clients=x[{clients!r}] and "
            f"x.drop(columns={clients!r}), or pass data.from_frame(x, "
            f"client_column={clients!r}) as x"
        )
    split, dataset, natural = split or Split(), None, None
    name = x if isinstance(x, str | Path) else ARRAY
    if not isinstance(x, str | Path):
        dataset = x if isinstance(x, Dataset) else dataset_of(x, scale_columns)
    if clients is not None:
        dataset = dataset or data.load(
            str(name), data_dir=data_dir, scale_columns=scale_columns
        )
        if given(split):
            raise ValueError("clients and split exclude each other: set one of them")
        if isinstance(clients, Partition):
            natural, clients = clients, _ids_of(clients, len(dataset.examples))
        dataset = dataset._replace(clients=ids(clients, len(dataset.examples)))
    if dataset is not None and limit is not None:
        if natural is not None:
            raise ValueError(
                "limit cannot be combined with a Partition: set one of them"
            )
        dataset = data.stratified_subset(dataset, limit)
    labels = dataset is None or dataset.labels is not None
    folder = Path(data_dir) if data_dir else None
    source = Source(
        str(name),
        data_dir=folder,
        limit=limit,
        labels=labels,
        scale_columns=scale_columns,
    )
    if num_clusters is not None:
        split = dataclasses.replace(split, clusters=num_clusters)
    options = Options(
        seed=tuple(range(seeds)) if isinstance(seeds, int) else as_tuple(seeds),
        evaluate_every=evaluate_every,
        keep_uploads=keep_uploads,
        precision=precision,
        resume=resume,
        plot=False,
    )

    def load(source: Source) -> Loaded:
        return (dataset, dataset.examples[:0]) if dataset else load_source(source)

    experiments = []
    for method in methods:
        method_options = options
        if out is not None:
            place = Path(out) / method.full_name() if len(methods) > 1 else Path(out)
            method_options = dataclasses.replace(options, out=place)
        task = Task(method, source, split, method_options, privacy or Privacy())
        experiments.append(prepare(task, load, natural=natural, in_memory=out is None))
    for experiment in experiments:
        method = experiment.task.method
        for name in given(method).keys() - effective_settings(experiment):
            warnings.warn(f"{name} has no effect on {method.name}", stacklevel=2)
    # Imported late, because orbax and matplotlib take a second to import.
    from fcjax.sweep.train import execute

    with log_to_stdout() if progress else contextlib.nullcontext():
        for experiment in experiments:
            with experiment.folder.locked():
                execute(experiment, progress=progress)
            experiment.folder.dataset = experiment.dataset
            experiment.folder.data_dir = folder
    return Results([experiment.folder for experiment in experiments])


def fit(method: Method, x: Any, *, seed: int, **options: Any) -> Run:
    """Runs a method once, see `Method.fit`.

    Args:
        method: the method, with one value of each setting.
        x: the examples, see `run`.
        seed: the random seed.
        **options: further arguments of `run`.

    Returns:
        The finished run.

    Raises:
        ValueError: an argument is not accepted, or there are several runs.
    """
    results = run(method, x, seeds=[seed], **options)
    if len(results) > 1:
        raise ValueError(
            f"fit takes one value of each setting, got {len(results)} runs; use "
            "fcjax.run for a grid"
        )
    return results[0]


def open(directory: str | Path, *, data_dir: Path | None = None) -> Results:
    """Opens a results folder, or all results folders within a folder.

    Args:
        directory: the results folder, or the folder above the results folders of
            several methods.
        data_dir: the folder of prepared TFDS data sets; None uses the folder that the
            runs used.

    Returns:
        The finished runs.

    Raises:
        ValueError: there is no finished run, or this version cannot read the folder.

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


def dataset_of(x: Any, scale: Scale = "minmax") -> Dataset:
    """Makes a data set without labels from an array.

    Args:
        x: feature vectors [P, F] or images [P, H, W] or [P, H, W, C], from NumPy, JAX,
            pandas or nested lists. All columns of a DataFrame are features, except for
            columns that number the rows or are called like that, such as "id"; use
            `data.from_frame` for labels, text and missing values.
        scale: how feature columns are scaled, see `run`.

    Returns:
        The data set, with scaled features.

    Raises:
        ValueError: the shape or the values are not accepted.
    """
    if isinstance(x, pd.DataFrame):
        try:
            return data.from_frame(x, labels=False, scale_columns=scale)
        except ValueError as error:
            if "`" not in str(error):  # It names no setting.
                raise
            raise ValueError(
                f"{error}. These are arguments of data.from_frame, whose result can be "
                "passed as x; x.drop(columns=[...]) also leaves columns out"
            ) from None
    with about("x"):
        values = images_or_vectors(np.asarray(x), None)
        if values.ndim == 2:
            examples, notes, scaling = scaled(values, scale)
        else:
            (examples, notes), scaling = pixels(values), None
    return validate(Dataset(ARRAY, examples, None, notes=tuple(notes), scaling=scaling))


def ids(clients: Any, num_examples: int) -> np.ndarray:
    """Numbers the clients from 0, in the sorted order of their ids.

    Args:
        clients: one id per example, [P]: numbers or text.
        num_examples: P.

    Returns:
        The number of every example's client, [P]; -1 if its id is missing or negative.

    Raises:
        ValueError: the number of ids is not P, or no example has a client.

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
        return client_numbers(np.where(missing, -1 if is_number else "", named))[0]


def _ids_of(partition: Partition, num_examples: int) -> np.ndarray:
    """Returns the client of every example in a partition; -1 without a client."""
    rows = np.concatenate(partition.clients)
    if len(np.unique(rows)) < len(rows):
        raise ValueError(
            "clients must be a Partition that gives every example to at most one client"
        )
    ids = np.full(num_examples, -1)
    for client, indices in enumerate(partition.clients):
        ids[indices] = client
    return ids
