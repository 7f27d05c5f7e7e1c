"""What every script does: flags in, results on disk, one line where a flag is wrong."""

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import jax

from fcjax.methods import Method, Script
from fcjax.parallel.exact import take_cores
from fcjax.parallel.mesh import are_several
from fcjax.results.store import Folder
from fcjax.sweep import processes, words
from fcjax.sweep.costs import absent_devices
from fcjax.sweep.ending import FAILED, end, in_a_line
from fcjax.sweep.experiment import Experiment, Task, prepare_all, tasks
from fcjax.sweep.flags import flags_of


def main(script: Script | type[Method]) -> None:
    """Runs a command: reads its flags, checks them, runs the grid of each method, and
    prints the table.

    Args:
        script: the methods of the command, or its only one.
    """
    args = words.read(flags_of(script), sys.argv[1:])
    folders = run(lambda: tasks(processes.join(args)))
    if len(folders) > 1:
        from fcjax.sweep import report

        report.conclude_all(folders, out=args.out)


@in_a_line()
def run(make: Callable[[], Sequence[Task]]) -> list[Folder]:
    """Checks all experiments, then runs one after another.

    Ends the process with one line where a flag is wrong, before anything is compiled
    or written, where a run is too large for the device, and where the system has no
    room for what is written or someone interrupts: then the same command goes on.

    Args:
        make: makes their tasks; it may raise a ValueError of one line.

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
        asked = [task.args.on for task in made if task.args.on is not None]
        if asked:  # what they are compiled for is not this machine's
            jax.config.update("jax_platforms", "cpu")
        targets = {topology: absent_devices(topology) for topology in asked}
        experiments = prepare_all(made)
    except ValueError as error:
        problem = str(error)
    if problem := processes.first_error(problem):
        end(problem)
    # Late, so that a wrong flag is answered before orbax and matplotlib are imported.
    from fcjax.sweep.fit import fit, is_too_large
    from fcjax.sweep.train import enable_compilation_cache, execute

    if asked:
        for topology, experiment in zip(asked, experiments, strict=True):
            fit(experiment, topology, *targets[topology])
        return [experiment.folder for experiment in experiments]

    with ExitStack() as locks:
        try:
            for experiment in experiments if processes.is_primary() else ():
                locks.enter_context(experiment.folder.locked())
        except ValueError as error:
            problem = str(error)
        problem = processes.first_error(problem)
        if not problem and are_several():
            problem = processes.first_error(differing(experiments))
        if problem:
            end(problem)
        locks.enter_context(in_a_line(begun=True))
        locks.enter_context(processes.ending_together())
        try:
            enable_compilation_cache()
            for experiment in experiments:
                execute(experiment)
        except jax.errors.JaxRuntimeError as error:
            if not is_too_large(error):
                raise
            message = str(error).partition("\n")[0]
            end(f"one run alone is too large for the device: {message}", FAILED)
    return [experiment.folder for experiment in experiments]


def differing(experiments: Sequence[Experiment]) -> str:
    """Returns where this process does not see the folder that the first one writes,
    which has locked it."""
    for folder in (experiment.folder for experiment in experiments):
        seen = f"{(folder.directory / '.lock').exists()} {folder.pending}"
        if seen != processes.broadcast_text(seen):
            return f"--out {folder.directory} must be one folder for all processes"
    return ""
