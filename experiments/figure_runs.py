"""Trains the runs of a figure and reads their final states.

A results folder has scores, assignments and models, but no client states. Figures that
need a client state train their own runs with this module.
"""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import jax
import numpy as np

from fcjax import data, engine
from fcjax.data.sources import load_source
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
"""Function (call, final state of its runs) -> one result per run."""


def train(
    task: Task,
    dataset: data.Dataset,
    folder: Path,
    read: Read[T],
) -> list[T]:
    """Trains the runs of a grid and reads a result from each final state.

    Args:
        task: the method and its options. The options of the data source, the output
            files, the shards and the backend have no effect.
        dataset: the data set that is partitioned over the clients.
        folder: folder for `checkpoints`. The same call resumes from these checkpoints.
            A finished call trains nothing.
        read: function that reads the results, see `Read`.

    Returns:
        One result per run, in the order of the grid.

    Raises:
        ValueError: an option is wrong. The message is one line that names the flag and
            the accepted values.
    """
    enable_compilation_cache()
    # The folder has no results, so every run is trained. Nothing is written to it.
    planned = task.replace(out=folder / "runs", shard=None)
    loaded = dataset, dataset.examples[:0]
    prepared = experiment.prepare(planned, load=lambda _: loaded)
    batches, results = prepared.batches, []
    total = sum(len(batch.points) * sum(plan.num_rounds(batch)) for batch in batches)
    content = dataset.examples.tobytes() + np.asarray(dataset.labels).tobytes()
    with (
        jax.default_matmul_precision(prepared.task.options.precision),
        log_to_stdout(),
        Progress(total) as progress,
    ):
        for batch in batches:
            program = engine.Program(batch.build)
            for part in batch.split():
                # The checkpoint name depends on everything that decides the result.
                config = experiment.configuration(
                    prepared.task, part.method, part.points[0]
                )
                name = fingerprint(
                    config, part.points, hashlib.sha256(content).hexdigest()
                )
                saved = folder / "checkpoints" / name
                if not task.options.resume:
                    shutil.rmtree(saved, ignore_errors=True)
                call = Call(program, part, part.grid(prepared.pool), None)
                results += read(call, run(task, call, saved, progress))
    return results


def run(task: Task, call: Call, saved: Path, progress: Progress) -> State:
    """Trains runs in one batch (vmapped), and resumes from their last checkpoint.

    Args:
        task: the options. Only the interval of the checkpoints is read.
        call: the compiled program and its runs.
        saved: folder of the checkpoints.
        progress: the progress display.

    Returns:
        The final state of the runs.
    """

    def on_round(round: engine.Round) -> None:
        stage, number = round.stage, round.position.round
        label = f"{stage.name} round {number}/{stage.num_rounds}"
        loss = {"loss": np.mean(round.metrics["loss"])}
        progress.show(label, len(call.batch.points), loss, last=round.is_last)
        states.save(round)

    with Checkpoints(saved, interval=task.options.checkpoint_interval) as states:
        return call.program.run(call.grid, start=states.resume, on_round=on_round)


def load_one(task: Task, *, several: tuple[str, ...] = ()) -> data.Dataset:
    """Loads the data set of a figure, which must have labels.

    Args:
        task: the options of the figure.
        several: the options that may have more than one value.

    Returns:
        The data set.

    Raises:
        ValueError: another option has several values, or the data has no labels.
    """
    check_single(task, several=several)
    dataset, extra = load_source(task.source)
    if dataset.labels is None or len(extra):
        raise ValueError(
            "a figure needs a label for every example: remove --no-labels and "
            "--extra-split"
        )
    return dataset


def check_single(task: Task, *, several: tuple[str, ...] = ()) -> None:
    """Checks that the options of a figure have one value each.

    Args:
        task: the method, data, partition and options.
        several: names of the options that may have several values.

    Raises:
        ValueError: another option has several values.
    """
    for part in (task.method, task.split, task.options):
        for name, value in given(part).items():
            is_swept = isinstance(value, tuple) and name not in ("log", *several)
            if is_swept and len(value) > 1:
                raise ValueError(f"`{name}` takes one value for a figure, got {value}")
