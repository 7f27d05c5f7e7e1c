"""Trains the runs of a figure, for what no results folder keeps: their last states."""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from fcjax import data, engine
from fcjax.sweep import experiment, plan
from fcjax.sweep.flags import Common
from fcjax.sweep.progress import Progress
from fcjax.sweep.session import enable_compilation_cache
from fcjax.sweep.states import Checkpoints

T = TypeVar("T")
Read = Callable[[plan.Call, engine.Program, Any], list[T]]
"""(some runs, what ran them, their state in the end) -> what is kept, one a run."""


def train(
    args: Common,
    describe: plan.Describe,
    dataset: data.Dataset,
    folder: Path,
    read: Read[T],
) -> list[T]:
    """Trains the runs of a grid and reads what is wanted of their last states.

    Args:
        args: the flags; those of data, files, shards and backends are not looked at.
        describe: of the method.
        dataset: that is dealt to the clients.
        folder: holds `checkpoints`, from which the same call goes on; once finished,
            it trains no more.
        read: see `Read`.

    Returns:
        What was read, in the order of the grid.

    Raises:
        ValueError: one line that names the flag and what it accepts.
    """
    enable_compilation_cache()
    # A folder without results: every run is to be trained, and none is written there.
    asked = replace(args, out=folder / "runs", shard=None)
    loaded = dataset, dataset.examples[:0]
    prepared = experiment.prepare(asked, describe, lambda _: loaded)
    groups, found = prepared.groups, []
    total = sum(len(group.points) * sum(plan.num_rounds(group)) for group in groups)
    with jax.default_matmul_precision(args.precision), Progress(total) as progress:
        for group in groups:
            program = engine.Program(group.build)
            for call in plan.calls(group, prepared.pool):
                saved = folder / "checkpoints" / name_of(args, dataset, call)
                if not args.resume:
                    shutil.rmtree(saved, ignore_errors=True)
                checkpoints = Checkpoints(saved, interval=args.checkpoint_interval)
                show = partial(show_round, progress, len(call.points))
                state = program.run(call.grid, on_round=show, checkpoints=checkpoints)
                found += read(call, program, state)
    return found


def name_of(args: Common, dataset: data.Dataset, call: plan.Call) -> str:
    """Returns a name of all that decides what the runs of a call end in."""
    config = experiment.configuration(args, call.group.method, call.points[0])
    told = hashlib.sha256(json.dumps([config, call.points], sort_keys=True).encode())
    told.update(dataset.examples.tobytes() + np.asarray(dataset.labels).tobytes())
    return told.hexdigest()[:8]


def show_round(progress: Progress, count: int, round: engine.Round) -> None:
    label = f"{round.stage.name} round {round.position.round}/{round.stage.num_rounds}"
    loss = {"loss": np.mean(round.metrics["loss"])}
    progress.show(label, count, loss, last=round.is_last)


def load(args: Common, *, several: tuple[str, ...] = ()) -> data.Dataset:
    """Returns the data of a figure, once every flag but `several` has one value."""
    for name, value in vars(args).items():
        swept = isinstance(value, tuple) and name not in ("image_shape", "log")
        if swept and len(value) > 1 and name not in several:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} takes one value for a figure, got {value}")
    dataset, extra = experiment.load(args)
    if dataset.labels is None or len(extra):
        raise ValueError("figures need labels: no --extra-split, and not --no-labels")
    return dataset
