"""From a script's flags to a checked experiment: data, method, and the grid they span.

A script names its method's flags, its defaults and how to build the method;
`fcjax.sweep.command` runs what comes of them here.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fcjax import data
from fcjax.data.federation import check_state, place, runs_that_fit
from fcjax.data.source import SOURCE, Loaded, load_source, short_name
from fcjax.parallel.mesh import all_devices, deal_pool, on_all, platform
from fcjax.results import store
from fcjax.results.store import Folder, InMemory, Point
from fcjax.sweep import plan, processes, sinks
from fcjax.sweep.flags import Common, command, flag_of, of_method, own_names
from fcjax.sweep.plan import Batch, Describe, MethodSpec
from fcjax.types import Federation, Grid

LEAST = {
    "limit": 2,
    "max_clients": 1,
    "min_client_size": 1,
    "partition_seed": 0,
    "evaluate_every": 1,
    "runs_per_call": 1,
    "checkpoint_interval": 0,
    "coordinator_timeout": 0,
}
"""By flag of one number, of those that are given."""


class Experiment(NamedTuple):
    """A validated experiment: nothing is compiled or written yet."""

    args: Common
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


class Task(NamedTuple):
    """One experiment to prepare."""

    args: Common
    """All flags."""
    describe: Describe = plan.describe
    asked: Common | None = None
    """The flags as they were given, for several methods."""


def tasks(args: Any) -> list[Task]:
    """Returns an experiment for each method that the flags ask for.

    Raises:
        ValueError: no method is asked for, or one twice.
    """
    methods = getattr(args, "methods", (args.name,))
    if len(set(methods)) != len(methods) or not methods:
        raise ValueError(f"--methods takes different methods, got {methods}")
    return [Task(only(args, name), asked=args) for name in methods]


def only(args: Any, name: str) -> Any:
    """Returns the flags of one method. Of several methods each has a results folder of
    its own."""
    own = of_method(args, name)
    own = own.adapt(own)
    if len(args.script.methods) == 1:
        return own
    out = args.out and args.out / own.called()
    return dataclasses.replace(own, methods=(name,), out=out)


def prepare_all(tasks: Sequence[Task]) -> list[Experiment]:
    """Prepares experiments, of which those of the same data load it once, and the first
    one notes which flags are of none of them."""
    loaded: dict[tuple, Loaded] = {}

    def load_once(args: Common) -> Loaded:
        source = (args.data_dir, *(getattr(args, name) for name in SOURCE))
        if source not in loaded:
            loaded[source] = load_source(args)
        return loaded[source]

    found = [prepare(task.args, task.describe, load_once) for task in tasks]
    said = tuple(of_none(found, [task.asked or task.args for task in tasks]))
    return [x._replace(notes=x.notes + said) for x in found[:1]] + found[1:]


def of_none(
    experiments: Sequence[Experiment], flags: Sequence[Common]
) -> Iterator[str]:
    """Yields a line for each flag that was given to a script and that none of its
    methods has which run."""
    for script in dict.fromkeys(map(type, flags)):
        asked = zip(experiments, flags, strict=True)
        asked = [(x, args) for x, args in asked if type(args) is script]
        configs = [x.folder.config for x, _ in asked]
        given = {name for _, args in asked for name in command(args)["flags"]}
        had = {name for config in configs for name in (*config, *config["swept"])}
        methods = ", ".join(dict.fromkeys(config["method"] for config in configs))
        for name in own_names(script):
            if name in given - had:
                yield f"{flag_of(name)} does nothing: no flag of {methods}"


def prepare(
    args: Common,
    describe: Describe = plan.describe,
    load: Callable[[Common], Loaded] = load_source,
    *,
    partition: data.Partition | None = None,
    in_memory: bool = False,
) -> Experiment:
    """Checks everything that can be checked before anything is compiled or written.

    Args:
        args: the flags.
        describe: of the method.
        load: gives the data of the flags.
        partition: of data that has clients of its own, in place of their ids.
        in_memory: keep the results in memory, and write nothing.

    Raises:
        ValueError: one line that names the flag and what it accepts.
    """
    for name, least in LEAST.items():
        value = getattr(args, name)
        if value is not None and not value >= least:
            flag = flag_of(name)
            raise ValueError(f"{flag} must be at least {least}, got {value}")
    sinks.check(args.log)
    dataset, extra = load(args)
    given = command(args)
    args, dataset = plan.owned(args, dataset)
    # Every run is checked, also those that are reused or another shard's.
    batches = plan.batches(args, dataset, len(extra), describe, partition)
    # On accelerators bits depend on more, and runs share a program.
    if platform() == "cpu" and args.on is None:
        batches = [own for batch in batches for own in plan.by_size(batch)]
    points = [point for batch in batches for point in batch.points]
    axes = plan.axes(points[0], given["flags"])
    config = {
        **configuration(args, batches[0].method, points[0]),
        "preset": args.preset,
        "swept": axes,
        "defaults": sorted(points[0].keys() - {*axes}),
    }
    directory = args.out or default_folder(config)
    if args.shard is not None:
        index, count = processes.share("--shard", args.shard)
        if index >= len(points):
            raise ValueError(f"--shard {args.shard}: the grid has {len(points)} runs")
        points = points[index::count]
        directory = directory / f"shard-{index}-of-{count}"
    if in_memory:
        folder = InMemory(config, points, command=given)
    else:
        folder = Folder(
            directory,
            config,
            points,
            command=given,
            resume=args.resume,
            writes=processes.is_primary(),
        )
    check_defaults(folder, args, dataset, describe)
    if args.resume and not in_memory and (earlier := store.starts(directory)):
        store.check_digests(directory, [*earlier, store.digests(dataset)])

    examples = dataset.examples
    if len(extra):
        examples = np.concatenate([examples, extra])
    for batch in batches:
        if sum(plan.num_rounds(batch)) < 1:
            raise ValueError(f"{batch.method.name} is given no round to run, take one")
    sizes = [plan.state_bytes(batch, examples) for batch in batches]
    devices = all_devices()[: 1 if args.backend == "loop" else None]
    for batch, size in zip(batches, sizes, strict=True):
        if args.on is None and any(map(folder.is_pending, batch.points)):
            check_state(size - batch.method.working_bytes, devices=devices)
    pool, placed = place(examples, max(sizes), where=args.pool, devices=devices)
    left = []
    for batch, size in zip(batches, sizes, strict=True):
        asked = batch.keep(folder.is_asked)
        if any(map(folder.is_pending, asked.points)):
            most = args.runs_per_call
            if most is None:
                most = len(all_devices()) * runs_that_fit(pool, size)
            width = plan.width(len(asked.points), most)
            pending = asked.keep(folder.is_pending)
            left.append(
                pending._replace(side_by_side=width, num_asked=len(asked.points))
            )
    notes = (*dataset.notes, placed)
    return Experiment(args, dataset, folder, tuple(left), pool, notes)


def check_defaults(
    folder: Folder, args: Common, dataset: data.Dataset, describe: Describe
) -> None:
    """Checks that the finished runs of a folder have this command's defaults.

    A default may follow from an axis, as a weight from the number of clusters. It is
    compared at the axis values of each finished run.

    Raises:
        ValueError: a finished run has another default. The line names the setting.
    """
    if not folder.rows:
        return
    names = ["clients", *(["clusters"] if args.clusters else ()), plan.rule_of(args)]
    values = {n: tuple(dict.fromkeys(row[n] for row in folder.rows)) for n in names}
    at = {
        (num_clients, num_clusters, level): method.settings
        for method, num_clients, num_clusters, levels in plan.described(
            dataclasses.replace(args, **values), dataset, describe
        )
        for level in levels
    }
    for row in folder.rows:
        settings = at[row["clients"], row["clusters"], row[plan.rule_of(args)]]
        for name in (settings.keys() & row.keys()) - {*folder.names}:
            here = settings[name]
            if isinstance(here, tuple) and not math.isclose(row[name], here[0]):
                raise ValueError(
                    f"--out {folder.directory} holds runs whose default {name} is "
                    f"{row[name]:g}, and this command has {here[0]:g}; choose another "
                    "folder, or pass --no-resume to write over it"
                )


def configuration(args: Common, method: MethodSpec, point: Point) -> dict[str, Any]:
    """Returns what all runs of the grid share, but for its axes and defaults."""
    config = {
        "method": method.name,
        **{k: v for k, v in method.settings.items() if k not in point},
        **{name: getattr(args, name) for name in SOURCE},
        **plan.configuration(args),
        "partition_seed": args.partition_seed,
        "evaluate_every": args.evaluate_every,
        "precision": args.precision,
        "failures": args.failures,
    }
    # As in folders of before these were flags.
    for name in ("client_column", "client_folders", "keep_index"):
        if not config[name]:
            del config[name]
    if method.reported:
        config |= {"start_stage": method.start, "reported": method.reported}
    return json.loads(json.dumps(config))


def default_folder(config: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    return Path("runs") / (
        f"{config['method']}-{short_name(config['dataset'])}-{digest[:8]}"
    )
