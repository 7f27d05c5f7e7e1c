"""From a task to a checked experiment: data, method, and the grid that they span."""

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
from fcjax.data.source import SOURCE, Loaded, Source, load_source, short_name
from fcjax.methods.base import Method, MethodSpec
from fcjax.parallel.mesh import all_devices, deal_pool, on_all, platform
from fcjax.results import store
from fcjax.results.store import Folder, InMemory, Point
from fcjax.settings import given
from fcjax.sweep import plan, processes
from fcjax.sweep.options import Machine, Options, Output, share
from fcjax.sweep.plan import Batch, Task
from fcjax.types import Federation, Grid


class Experiment(NamedTuple):
    """A validated experiment: nothing is compiled or written yet."""

    task: Task
    dataset: data.Dataset
    folder: Folder
    batches: tuple[Batch, ...]
    """Of what is still to be run."""
    pool: data.Pool
    notes: tuple[str, ...]
    """What became of the data on its way, a line each."""

    def grid(self, batch: Batch) -> Grid:
        """Returns what the program of a batch takes."""
        if not isinstance(self.pool, np.ndarray):
            return batch.grid(self.pool)
        grid = batch.grid(data.HostPool(self.pool))
        pool = self._dealt(self.pool, batch, grid.federations)
        return grid._replace(federations=grid.federations._replace(pool=pool))

    def left_out(self, batch: Batch) -> Federation | None:
        """Returns the rows that no client holds, where the method can assign them."""
        if not isinstance(self.pool, np.ndarray):
            return batch.left_out(self.pool)
        found = batch.left_out(data.HostPool(self.pool))
        if found is None:
            return None
        pool = self._dealt(self.pool, batch, found, is_spread=False)
        return found._replace(pool=pool)

    def _dealt(
        self,
        examples: np.ndarray,
        batch: Batch,
        federation: Federation,
        *,
        is_spread: bool = True,
    ) -> Any:
        """Of several processes each has the examples of its own clients."""
        if batch.method.sees_all:
            return on_all(examples)
        rows, devices = np.asarray(federation.indices), all_devices()
        return deal_pool(examples, rows, devices=devices, is_spread=is_spread)


def prepare_all(tasks: Sequence[Task]) -> list[Experiment]:
    """Prepares experiments. Those of the same data load it once."""
    load_once = cache(load_source)
    return [prepare(task, load_once) for task in tasks]


def prepare(
    task: Task,
    load: Callable[[Source], Loaded] = load_source,
    *,
    natural: data.Partition | None = None,
    in_memory: bool = False,
) -> Experiment:
    """Checks everything that can be checked before anything is compiled or written.

    Args:
        task: what is run.
        load: loads its data.
        natural: the data's own clients, see `Split.partitioner`.
        in_memory: keep the results in memory, and write nothing.

    Raises:
        ValueError: one line that names the setting and what it accepts.
    """
    options = task.options
    options.check()
    dataset, extra = load(task.source)
    asked, adapted = command(task), task.adapted(dataset)
    named = command(adapted)["flags"]
    task, dataset = adapted.resolved(dataset)
    # Every run is checked, also those that are reused or another shard's.
    batches = plan.batches(task, dataset, len(extra), natural)
    on_cpu = platform() == "cpu" and options.on is None
    if on_cpu:  # on accelerators bits depend on more, and runs share a program
        batches = [own for batch in batches for own in plan.by_size(batch)]
    points = [point for batch in batches for point in batch.points]
    axes = plan.axes(points[0], named)
    config = {
        **configuration(task, batches[0].method, points[0]),
        "preset": task.method.preset,
        "swept": axes,
        "defaults": sorted(points[0].keys() - {*axes}),
    }
    if in_memory:
        folder = InMemory(config, points, command=asked)
    else:
        folder = folder_of(options, config, points, asked)
    check_defaults(folder, task, dataset)
    earlier = store.starts(folder.directory) if options.resume and not in_memory else []
    if earlier:
        store.check_digests(folder.directory, [*earlier, store.digests(dataset)])

    examples = dataset.examples
    if len(extra):
        examples = np.concatenate([examples, extra])
    for batch in batches:
        if sum(plan.num_rounds(batch)) < 1:
            raise ValueError(f"{batch.method.name} is given no round to run, take one")
    sizes = [plan.state_bytes(batch, examples) for batch in batches]
    devices = all_devices()[: 1 if options.backend == "loop" else None]
    for batch, size in zip(batches, sizes, strict=True):
        if options.on is None and any(map(folder.is_pending, batch.points)):
            check_state(size - batch.method.working_bytes, devices=devices)
    pool, placed = place(examples, max(sizes), where=options.pool, devices=devices)
    left = []
    for batch, size in zip(batches, sizes, strict=True):
        own = batch.keep(folder.is_requested)
        if any(map(folder.is_pending, own.points)):
            most = options.runs_per_call
            if most is None and on_cpu and task.method.runs_alone:
                most = 1
            if most is None:
                most = len(all_devices()) * runs_that_fit(pool, size)
            width = plan.width(len(own.points), most)
            pending = own.keep(folder.is_pending)
            left.append(pending._replace(side_by_side=width, num_asked=len(own.points)))
    notes = (*dataset.notes, placed)
    return Experiment(task, dataset, folder, tuple(left), pool, notes)


def folder_of(
    options: Options,
    config: Mapping[str, Any],
    points: Sequence[Point],
    command: Mapping[str, Any],
) -> Folder:
    """Returns the results folder of a grid, or of the shard that is asked for."""
    directory = options.out or default_folder(config)
    if options.shard is not None:
        index, count = share("shard", options.shard)
        if index >= len(points):
            told = f"the grid has {len(points)} runs"
            raise ValueError(f"`shard` {options.shard}: {told}")
        points = points[index::count]
        directory = directory / f"shard-{index}-of-{count}"
    resume, writes = options.resume, processes.is_primary()
    how = {"command": command, "resume": resume, "writes": writes}
    return Folder(directory, config, points, **how)


def command(task: Task) -> dict[str, Any]:
    """Returns the settings that were given and decide the results, as config.json holds
    them for `--config`: neither where results go nor on what they are computed.
    """
    named = given(task.source) | given(task.split) | given(task.options)
    for field in (*dataclasses.fields(Output), *dataclasses.fields(Machine)):
        named.pop(field.name, None)
    named |= given(task.method)
    return {
        "script": script_of(type(task.method)),
        "method": task.method.name,
        "flags": {k: str(x) if isinstance(x, Path) else x for k, x in named.items()},
    }


def script_of(method: type[Method]) -> str:
    """Returns the name of the file that a method is written in, which config.json has
    for the command.
    """
    return Path(getattr(sys.modules.get(method.__module__), "__file__", "")).stem


def check_defaults(folder: Folder, task: Task, dataset: data.Dataset) -> None:
    """Checks that the finished runs of a folder have this command's defaults.

    A default may follow from an axis, as a weight from the number of clusters. It is
    compared at the axis values of each finished run.

    Raises:
        ValueError: a finished run has another default. The line names the setting.
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
            here = settings[name]
            if isinstance(here, tuple) and not math.isclose(row[name], here[0]):
                raise ValueError(
                    f"`out` {folder.directory} holds runs whose default {name} is "
                    f"{row[name]:g}, and this command has {here[0]:g}; choose another "
                    "folder, or `resume=False` to write over it"
                )


def configuration(task: Task, method: MethodSpec, point: Point) -> dict[str, Any]:
    """Returns what all runs of the grid share, but for its axes and defaults."""
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
    # As in folders of before these were flags.
    for name in ("client_column", "client_folders", "keep_index"):
        if not config[name]:
            del config[name]
    if method.reported:
        config |= {"start_stage": method.start, "reported": method.reported}
    return json.loads(json.dumps(config))


def used(experiment: Experiment) -> set[str]:
    """Returns the settings that have an effect."""
    config = experiment.folder.config
    return {"preset", *config, *config["swept"], *config["defaults"]}


def default_folder(config: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    return Path("runs") / (
        f"{config['method']}-{short_name(config['dataset'])}-{digest[:8]}"
    )
