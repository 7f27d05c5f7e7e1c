"""Prepares an experiment: loads the data, plans the grid, and checks all settings."""

import dataclasses
import hashlib
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fcjax import data
from fcjax.data.federation import check_state, place, runs_that_fit
from fcjax.data.source import LATER, SOURCE, Source, short_name
from fcjax.data.sources import Loaded, load_source
from fcjax.methods.base import Method, MethodSpec
from fcjax.parallel.mesh import all_devices, platform, replicate, shard_pool
from fcjax.results import store
from fcjax.results.store import Folder, InMemory, Point
from fcjax.settings import given
from fcjax.sweep import plan, processes
from fcjax.sweep.options import Machine, Options, Output, share
from fcjax.sweep.plan import Batch, Task
from fcjax.types import Federation, Grid


class Experiment(NamedTuple):
    """A checked experiment. Nothing has been compiled or written."""

    task: Task
    dataset: data.Dataset
    folder: Folder
    batches: tuple[Batch, ...]
    """The pending runs, one batch per program."""
    pool: data.Pool
    """All examples, on the device or on the host."""
    notes: tuple[str, ...]
    """Lines on the preparation of the data, on its memory, and on privacy."""
    warnings: tuple[str, ...]
    """Warnings about the settings of privacy."""

    def grid(self, batch: Batch) -> Grid:
        """Returns the inputs of the program of a batch.

        Args:
            batch: the runs, one of `batches`.

        Returns:
            The grid. Each process has the examples of its own clients.
        """
        if not isinstance(self.pool, np.ndarray):
            return batch.grid(self.pool)
        grid = batch.grid(data.HostPool(self.pool))
        pool = self._shard(self.pool, batch, grid.federations)
        return grid._replace(federations=grid.federations._replace(pool=pool))

    def left_out(self, batch: Batch) -> Federation | None:
        """Returns the examples without a client, if the method can assign them.

        Args:
            batch: the runs, one of `batches`.

        Returns:
            A federation of these examples; None for methods without a global model.
        """
        if not isinstance(self.pool, np.ndarray):
            return batch.left_out(self.pool)
        federation = batch.left_out(data.HostPool(self.pool))
        if federation is None:
            return None
        pool = self._shard(self.pool, batch, federation, is_spread=False)
        return federation._replace(pool=pool)

    def _shard(
        self,
        examples: np.ndarray,
        batch: Batch,
        federation: Federation,
        *,
        is_spread: bool = True,
    ) -> Any:
        """Gives each process the examples of its own clients."""
        if batch.method.sees_all:
            return replicate(examples)
        rows, devices = np.asarray(federation.indices), all_devices()
        return shard_pool(examples, rows, devices=devices, is_spread=is_spread)


def prepare_all(tasks: Sequence[Task]) -> list[Experiment]:
    """Prepares experiments. Tasks with the same data set load it once.

    Args:
        tasks: one per experiment.

    Returns:
        One experiment per task.
    """
    load_once = cache(load_source)
    return [prepare(task, load_once) for task in tasks]


def prepare(
    task: Task,
    load: Callable[[Source], Loaded] = load_source,
    *,
    natural: data.Partition | None = None,
    in_memory: bool = False,
) -> Experiment:
    """Prepares an experiment and checks it, before anything is compiled or written.

    Args:
        task: the method, data, partition and options.
        load: loads the data set of a source.
        natural: the natural partition of the data, see `Split.partitioner`.
        in_memory: whether to keep the results in memory instead of writing files.

    Returns:
        The experiment with its pending runs.

    Raises:
        ValueError: a setting is not accepted. One line names the setting.
    """
    options = task.options
    options.check()
    if options.keep_uploads and task.privacy.epsilon:
        raise ValueError(
            "`keep_uploads` cannot be combined with `epsilon`, because the stored "
            "uploads have no noise"
        )
    dataset, extra = load(task.source)
    original_command, adapted = command(task), task.adapted(dataset)
    flags = command(adapted)["flags"]
    task, dataset = adapted.resolved(dataset)
    on_cpu = platform() == "cpu" and options.on is None
    if options.precision is None:
        options = dataclasses.replace(
            options, precision="highest" if on_cpu else "default"
        )
        task = dataclasses.replace(task, options=options)
    # All runs are checked, including finished runs and the runs of other shards.
    batches = plan.batches(task, dataset, len(extra), natural)
    # On a CPU the results of a run must not depend on the other runs of the grid. On
    # accelerators they do anyway, and few programs are better.
    if on_cpu:
        batches = [part for batch in batches for part in plan.by_size(batch)]
    points = [point for batch in batches for point in batch.points]
    axes = plan.axes(points[0], flags)
    config = {
        **configuration(task, batches[0].method, points[0]),
        "preset": task.method.preset,
        "swept": axes,
        "defaults": sorted(points[0].keys() - {*axes}),
    }
    if in_memory:
        folder = InMemory(config, points, command=original_command)
    else:
        folder = folder_of(options, config, points, original_command)
    check_defaults(folder, task, dataset)
    earlier = store.starts(folder.directory) if options.resume and not in_memory else []
    if earlier:
        store.check_digests(folder.directory, [*earlier, store.digests(dataset)])

    examples = dataset.examples
    if len(extra):
        examples = np.concatenate([examples, extra])
    for batch in batches:
        if sum(plan.num_rounds(batch)) < 1:
            raise ValueError(
                f"{batch.method.name} has no rounds to run; give at least one stage at "
                "least one round"
            )
    sizes = [plan.state_bytes(batch, examples) for batch in batches]
    devices = all_devices()[: 1 if options.backend == "loop" else None]
    for batch, size in zip(batches, sizes, strict=True):
        if options.on is None and any(map(folder.is_pending, batch.points)):
            check_state(size - batch.method.working_bytes, devices=devices)
    pool, memory_note = place(examples, max(sizes), where=options.pool, devices=devices)
    pending_batches = []
    for batch, size in zip(batches, sizes, strict=True):
        requested = batch.keep(folder.is_requested)
        if any(map(folder.is_pending, requested.points)):
            most = options.runs_per_call
            if most is None and on_cpu and task.method.runs_alone:
                most = 1
            if most is None:
                most = len(all_devices()) * runs_that_fit(pool, size)
            num_runs = len(requested.points)
            width = plan.width(num_runs, most)
            pending = requested.keep(folder.is_pending)
            pending_batches.append(
                pending._replace(runs_per_call=width, num_requested=num_runs)
            )
    notes, warnings = [memory_note], []
    if task.privacy.epsilon:
        unit = batches[0].method.settings["privacy_unit"]
        sizes = (len(x.clients) for batch in batches for x in batch.partitions)
        line, warnings = plan.guarantee(task, unit, dataset, num_clients=max(sizes))
        notes.append(line)
    return Experiment(
        *(task, dataset, folder, tuple(pending_batches), pool),
        notes=tuple(notes),
        warnings=tuple(warnings),
    )


def folder_of(
    options: Options,
    config: Mapping[str, Any],
    points: Sequence[Point],
    command: Mapping[str, Any],
) -> Folder:
    """Returns the results folder of a grid, or of a shard of the grid.

    Args:
        options: the folder, the shard, and whether to resume.
        config: the settings that all runs share.
        points: the swept values of all runs.
        command: the command of the grid, see `command`.

    Returns:
        The folder.

    Raises:
        ValueError: the shard has no run.
    """
    directory = options.out or default_folder(config)
    if options.shard is not None:
        index, count = share("shard", options.shard)
        if index >= len(points):
            raise ValueError(
                f"`shard` {options.shard} has no run, since the grid has {len(points)} "
                f"runs; use at most {len(points)} shards"
            )
        points = points[index::count]
        directory = directory / f"shard-{index}-of-{count}"
    resume, writes = options.resume, processes.is_primary()
    return Folder(
        directory, config, points, command=command, resume=resume, writes=writes
    )


def command(task: Task) -> dict[str, Any]:
    """Returns the command that reproduces the results, as config.json stores it.

    Settings of the results folder and of the machine are left out.

    Args:
        task: the task.

    Returns:
        `script`, `method`, and `flags`: the settings that differ from their default.
    """
    flags = given(task.source) | given(task.split) | given(task.options)
    for field in (*dataclasses.fields(Output), *dataclasses.fields(Machine)):
        flags.pop(field.name, None)
    flags |= given(task.privacy) | given(task.method)
    return {
        "script": script_of(type(task.method)),
        "method": task.method.name,
        "flags": {k: str(x) if isinstance(x, Path) else x for k, x in flags.items()},
    }


def script_of(method: type[Method]) -> str:
    """Returns the name of the Python file of a method, without its ending.

    Args:
        method: class of the method.

    Returns:
        The name, for example "ccfc"; "" for a class that is not from a file.
    """
    return Path(getattr(sys.modules.get(method.__module__), "__file__", "")).stem


def check_defaults(folder: Folder, task: Task, dataset: data.Dataset) -> None:
    """Checks that the finished runs of a folder have the defaults of this command.

    A default may depend on an axis of the grid, as a weight on the number of clusters.
    Therefore the defaults are compared at the axis values of each finished run.

    Args:
        folder: the results folder.
        task: the task of this command.
        dataset: the data set of the task.

    Raises:
        ValueError: a finished run has another default. One line names the setting.
    """
    if not folder.rows:
        return
    split = task.split
    names = ["clients", *(["clusters"] if split.clusters else ()), split.rule]
    values = {n: tuple(dict.fromkeys(row[n] for row in folder.rows)) for n in names}
    at = {
        (num_clients, num_clusters, level): method.settings
        for method, num_clients, num_clusters, levels in plan.specs(
            dataclasses.replace(task, split=dataclasses.replace(split, **values)),
            dataset,
        )
        for level in levels
    }
    for row in folder.rows:
        settings = at[row["clients"], row["clusters"], row[split.rule]]
        for name in (settings.keys() & row.keys()) - {*folder.names}:
            value = settings[name]
            if isinstance(value, tuple) and not math.isclose(row[name], value[0]):
                raise ValueError(
                    f"`out` {folder.directory} holds runs whose default {name} is "
                    f"{row[name]:g}, and this command has {value[0]:g}; choose another "
                    "folder, or overwrite it with `resume=False`"
                )


def configuration(task: Task, method: MethodSpec, point: Point) -> dict[str, Any]:
    """Returns the settings that all runs of a grid share, as config.json stores them.

    Args:
        task: the task.
        method: the resolved method.
        point: the swept values of any run. Its settings are left out.

    Returns:
        A JSON-like dictionary.
    """
    config = {
        "method": method.name,
        **{k: v for k, v in method.settings.items() if k not in point},
        **{name: getattr(task.source, name) for name in SOURCE},
        **task.split.config(),
        "partition_seed": task.split.partition_seed,
        "evaluate_every": task.options.evaluate_every,
        "precision": task.options.precision,
        "failures": task.split.failures,
    }
    # Folders of earlier versions do not have the keys of later settings.
    for name in LATER:
        if config[name] == getattr(Source(), name):
            del config[name]
    if method.reported:
        config |= {"start_stage": method.start, "reported": method.reported}
    return json.loads(json.dumps(config))


def effective_settings(experiment: Experiment) -> set[str]:
    """Returns the settings that have an effect on the results.

    Args:
        experiment: the prepared experiment.

    Returns:
        Names of settings, as in config.json.
    """
    config = experiment.folder.config
    return {"preset", *config, *config["swept"], *config["defaults"]}


def default_folder(config: Mapping[str, Any]) -> Path:
    """Returns the default results folder, runs/METHOD-DATASET-HASH.

    Args:
        config: the configuration, which decides the digest in the name.

    Returns:
        The path, relative to the working directory.
    """
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    return Path("runs") / (
        f"{config['method']}-{short_name(config['dataset'])}-{digest[:8]}"
    )
