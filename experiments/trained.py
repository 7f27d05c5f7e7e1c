"""Trains the runs of a figure, for what no results folder keeps: their last states."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np

from fcjax import data, engine
from fcjax.data.source import load_source
from fcjax.results.store import fingerprint
from fcjax.settings import given
from fcjax.sweep import experiment, plan
from fcjax.sweep.checkpoints import Checkpoints
from fcjax.sweep.plan import Task
from fcjax.sweep.progress import Progress, log_to_stdout
from fcjax.sweep.train import Call, enable_compilation_cache
from fcjax.types import State

T = TypeVar("T")
Read = Callable[[Call, State], list[T]]
"""(some runs, their state in the end) -> what is kept, one a run."""


def train(
    task: Task,
    dataset: data.Dataset,
    folder: Path,
    read: Read[T],
) -> list[T]:
    """Trains the runs of a grid and reads what is wanted of their last states.

    Args:
        task: the flags; those of data, files, shards and backends are not looked at.
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
    asked = task.replace(out=folder / "runs", shard=None)
    loaded = dataset, dataset.examples[:0]
    prepared = experiment.prepare(asked, load=lambda _: loaded)
    batches, found = prepared.batches, []
    total = sum(len(batch.points) * sum(plan.num_rounds(batch)) for batch in batches)
    held = dataset.examples.tobytes() + np.asarray(dataset.labels).tobytes()
    with (
        jax.default_matmul_precision(task.options.precision),
        log_to_stdout(),
        Progress(total) as progress,
    ):
        for batch in batches:
            program = engine.Program(batch.build)
            for part in batch.split():
                # All that decides what these runs end in.
                config = experiment.configuration(task, part.method, part.points[0])
                name = fingerprint(
                    config, part.points, hashlib.sha256(held).hexdigest()
                )
                saved = folder / "checkpoints" / name
                if not task.options.resume:
                    shutil.rmtree(saved, ignore_errors=True)
                call = Call(program, part, part.grid(prepared.pool), None)
                found += read(call, run(task, call, saved, progress))
    return found


def run(task: Task, call: Call, saved: Path, progress: Progress) -> State:
    """Trains runs side by side, from where they were left."""

    def on_round(round: engine.Round) -> None:
        stage, number = round.stage, round.position.round
        label = f"{stage.name} round {number}/{stage.num_rounds}"
        loss = {"loss": np.mean(round.metrics["loss"])}
        progress.show(label, len(call.batch.points), loss, last=round.is_last)
        states.save(round)

    with Checkpoints(saved, interval=task.options.checkpoint_interval) as states:
        return call.program.run(call.grid, start=states.resume, on_round=on_round)


def load_one(task: Task, *, several: tuple[str, ...] = ()) -> data.Dataset:
    """Returns the data of a figure, once every flag but `several` has one value."""
    check_single(task, several=several)
    dataset, extra = load_source(task.source)
    if dataset.labels is None or len(extra):
        raise ValueError("figures need labels: no --extra-split, and not --no-labels")
    return dataset


def check_single(task: Task, *, several: tuple[str, ...] = ()) -> None:
    """Raises ValueError where a setting other than `several` has several values."""
    for part in (task.method, task.split, task.options):
        for name, value in given(part).items():
            swept = isinstance(value, tuple) and name not in ("log", *several)
            if swept and len(value) > 1:
                raise ValueError(f"`{name}` takes one value for a figure, got {value}")
