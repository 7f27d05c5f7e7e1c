"""From a script's flags to a checked experiment: data, method, and the grid they span.

A script names its method's flags, its defaults and how to build the method;
`fcjax.sweep.command` runs what comes of them here.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fcjax import data
from fcjax.data import placement
from fcjax.sweep import deal, plan, processes, sinks
from fcjax.sweep.flags import Common
from fcjax.sweep.folder import Point, Results
from fcjax.sweep.plan import Describe, Group, Method


class Experiment(NamedTuple):
    """A validated experiment: nothing is compiled or written yet."""

    args: Common
    dataset: data.Dataset
    results: Results
    groups: tuple[Group, ...]
    """Of what is still to be run."""
    pool: data.Pool
    notes: tuple[str, ...]
    """What became of the data on its way, a line each."""


Task = tuple[Common, Describe]
"""Flags, and how to describe their method."""
Loaded = tuple[data.Dataset, np.ndarray]
OF_THE_DATA = (
    "dataset",
    "image_shape",
    "resize",
    "labels",
    "split",
    "limit",
    "extra_split",
)
"""The flags that say which data it is."""


def load(args: Common) -> Loaded:
    """Returns the data that is scored, and further examples to train on."""
    dataset = data.load(
        args.dataset,
        data_dir=args.data_dir,
        split=args.split,
        image_shape=args.image_shape or None,
        labelled=args.labels,
        resize=args.resize,
    )
    if args.limit is not None:
        dataset = data.stratified_subset(dataset, args.limit)
    if args.extra_split is None:
        return dataset, dataset.examples[:0]
    extra = data.load_extra(
        args.dataset, args.extra_split, data_dir=args.data_dir, resize=args.resize
    )
    if extra.shape[1:] != dataset.examples.shape[1:]:
        raise ValueError(
            f"--extra-split {args.extra_split} has images of {extra.shape[1:]}, the "
            f"others are of {dataset.examples.shape[1:]}"
        )
    return dataset, extra


def prepare_all(tasks: Sequence[Task]) -> list[Experiment]:
    """Prepares experiments, of which those of the same data load it once."""
    loaded: dict[tuple, Loaded] = {}

    def load_once(args: Common) -> Loaded:
        source = (args.data_dir, *(getattr(args, name) for name in OF_THE_DATA))
        if source not in loaded:
            loaded[source] = load(args)
        return loaded[source]

    return [prepare(args, describe, load_once) for args, describe in tasks]


def prepare(
    args: Common, describe: Describe, load: Callable[[Common], Loaded] = load
) -> Experiment:
    """Checks everything that can be checked before anything is compiled or written.

    Args:
        args: the flags.
        describe: of the method.
        load: gives the data of the flags.

    Raises:
        ValueError: one line that names the flag and what it accepts.
    """
    for name in ("evaluate_every", "runs_per_call"):
        value = getattr(args, name)
        if value is not None and value < 1:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} must be at least 1, got {value}")
    sinks.check(args.log)
    dataset, extra = load(args)
    # Every run is checked, also those that are reused or another shard's.
    groups = plan.groups(args, dataset, len(extra), describe)
    points = [point for group in groups for point in group.points]
    config = configuration(args, groups[0].method, points[0])
    folder = args.out or default_folder(config)
    if args.shard is not None:
        index, count = processes.share("--shard", args.shard)
        if index >= len(points):
            raise ValueError(f"--shard {args.shard}: the grid has {len(points)} runs")
        points, folder = points[index::count], folder / f"shard-{index}-of-{count}"
    results = Results(folder, config, points, resume=args.resume)

    examples = dataset.examples
    if len(extra):
        examples = np.concatenate([examples, extra])
    for group in groups:
        if sum(plan.num_rounds(group)) < 1:
            raise ValueError(f"{group.method.name} is given no round to run, take one")
    sizes = [plan.state_bytes(group, examples) for group in groups]
    devices = jax.local_devices()[: 1 if args.backend == "loop" else None]
    for group, size in zip(groups, sizes, strict=True):
        if any(map(results.is_pending, group.points)):
            placement.check_state(size - group.method.working_bytes, devices=devices)
    pool, placed = placement.place(
        examples, max(sizes), where=args.pool, devices=devices
    )
    left = []
    for group, size in zip(groups, sizes, strict=True):
        asked = plan.keep(group, results.is_asked)
        if any(map(results.is_pending, asked.points)):
            most = args.runs_per_call
            if most is None:
                most = jax.local_device_count() * placement.runs_that_fit(pool, size)
            runs_per_call = plan.width(len(asked.points), most)
            asked = plan.keep(asked, results.is_pending)
            left.append(asked._replace(runs_per_call=runs_per_call))
    notes = (*dataset.notes, placed)
    return Experiment(args, dataset, results, tuple(left), pool, notes)


def configuration(args: Common, method: Method, point: Point) -> dict[str, Any]:
    """Returns what all runs of the grid share, as a reader of config.json sees it."""
    config = {
        "method": method.name,
        **{k: v for k, v in method.settings.items() if k not in point},
        **{name: getattr(args, name) for name in OF_THE_DATA},
        **deal.configuration(args),
        "partition_seed": args.partition_seed,
        "evaluate_every": args.evaluate_every,
        "precision": args.precision,
        "failures": args.failures,
        "swept": list(point),
    }
    if method.reported:
        config |= {"start_stage": method.start, "reported": method.reported}
    return json.loads(json.dumps(config))


def default_folder(config: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
    return Path("runs") / (
        f"{config['method']}-{short_name(config['dataset'])}-{digest[:8]}"
    )


def short_name(dataset: str) -> str:
    """Returns the name of a data set without its folders and ending."""
    name = Path(dataset).name.partition(".")[0] if Path(dataset).exists() else dataset
    return name.replace("/", "-")
