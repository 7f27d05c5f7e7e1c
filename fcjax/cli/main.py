"""Runs the command of a method: reads its arguments, trains the grid, prints a table. A
wrong argument ends it with one line.
"""

import logging
import os
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack

import jax

from fcjax.cli import arguments
from fcjax.cli.errors import (
    FAILED,
    end,
    ending_together,
    flag_of,
    in_a_line,
    with_quoted_flags,
)
from fcjax.methods import Method, Script
from fcjax.parallel.exact import take_cores
from fcjax.parallel.mesh import is_multiprocess
from fcjax.results.store import Folder
from fcjax.settings import given
from fcjax.sweep import processes
from fcjax.sweep.costs import absent_devices
from fcjax.sweep.experiment import Experiment, effective_settings, prepare_all
from fcjax.sweep.plan import Task
from fcjax.sweep.progress import log_to_stdout


def main(script: Script | type[Method], words: Sequence[str] | None = None) -> None:
    """Runs a command: reads its arguments, checks them, runs the grid of each method,
    and prints the table.

    Args:
        script: the methods of the command, or its only one.
        words: the command line without its name; None is that of the process.
    """
    asked = arguments.read(script, sys.argv[1:] if words is None else words)

    def joined() -> Sequence[Task]:
        processes.join(asked.processes, asked.tasks)
        if not processes.is_primary():
            sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        return asked.tasks

    folders = run(joined, named=asked.named)
    if len(folders) > 1:
        from fcjax.sweep import report

        out = asked.tasks[0].options.out
        with log_to_stdout():
            report.log_all_results(folders, out=out and out.parent)


@in_a_line()
def run(
    make: Callable[[], Sequence[Task]], *, named: Collection[str] = ()
) -> list[Folder]:
    """Checks all experiments, then runs one after another.

    Ends the process with one line where a flag is wrong, before anything is compiled
    or written, where a run is too large for the device, and where the system has no
    room for what is written or someone interrupts: then the same command goes on.

    Args:
        make: makes their tasks; it may raise a ValueError of one line.
        named: settings of methods that were given. A note tells those that no method
            uses.

    Returns:
        What each of them left on disk.
    """
    take_cores()
    # orbax logs, with all that led to it, what it raises as well, also by asyncio.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    problem, asked, experiments, targets = "", [], [], {}
    try:
        made = make()
        asked = [x.options.on for x in made if x.options.on is not None]
        if asked:  # what they are compiled for is not this machine's
            jax.config.update("jax_platforms", "cpu")
        targets = {topology: absent_devices(topology) for topology in asked}
        experiments = prepare_all(made)
    except ValueError as error:
        problem = str(error)
    if problem := processes.first_error(problem):
        end(problem)
    # Late, so that a wrong flag is answered before orbax and matplotlib are imported.
    from fcjax.sweep.fit import fit, is_out_of_memory
    from fcjax.sweep.train import enable_compilation_cache, execute

    if asked:
        with log_to_stdout():
            for topology, experiment in zip(asked, experiments, strict=True):
                fit(experiment, topology, *targets[topology])
        return [experiment.folder for experiment in experiments]

    each = [{*given(x.task.method)} for x in experiments]
    unused = {*named}.union(*each).difference(*map(effective_settings, experiments))
    methods = ", ".join(dict.fromkeys(x.task.method.name for x in experiments))
    notes = [f"{flag_of(name)} has no effect on {methods}" for name in sorted(unused)]
    with ExitStack() as locks:
        try:
            for experiment in experiments if processes.is_primary() else ():
                locks.enter_context(experiment.folder.locked())
        except ValueError as error:
            problem = str(error)
        problem = processes.first_error(problem)
        if not problem and is_multiprocess():
            problem = processes.first_error(differing(experiments))
        if problem:
            end(problem)
        locks.enter_context(in_a_line(begun=True))
        locks.enter_context(ending_together())
        try:
            enable_compilation_cache()
            locks.enter_context(log_to_stdout(with_quoted_flags))
            print(*notes, sep="\n", end="\n" if notes else "")
            for experiment in experiments:
                execute(experiment)
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            message = str(error).partition("\n")[0]
            end(f"one run alone is too large for the device: {message}", FAILED)
    return [experiment.folder for experiment in experiments]


def differing(experiments: Sequence[Experiment]) -> str:
    """Returns where this process does not see the folder that the first one writes,
    which has locked it.
    """
    for folder in (experiment.folder for experiment in experiments):
        seen = f"{(folder.directory / '.lock').exists()} {folder.pending}"
        if seen != processes.broadcast_text(seen):
            return f"--out {folder.directory} must be one folder for all processes"
    return ""
