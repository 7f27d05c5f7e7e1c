"""The command of a method: parses the arguments, trains the grid, prints a table.

A wrong argument ends the command with one line.
"""

import logging
import os
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack

import jax

from fcjax.cli import arguments
from fcjax.cli.errors import (
    RUNTIME_ERROR,
    exit_at_once_on_error,
    exit_on_system_error,
    exit_with_error,
    flag_of,
    with_quoted_flags,
)
from fcjax.methods import Method, Script
from fcjax.parallel.exact import take_cores
from fcjax.parallel.mesh import is_multiprocess
from fcjax.results.store import Folder
from fcjax.settings import given
from fcjax.sweep import processes
from fcjax.sweep.costs import absent_devices
from fcjax.sweep.experiment import (
    Experiment,
    effective_settings,
    prepare,
    prepare_all,
)
from fcjax.sweep.plan import Task
from fcjax.sweep.progress import log_to_stdout
from fcjax.sweep.report import log_header


def main(script: Script | type[Method], args: Sequence[str] | None = None) -> None:
    """Runs a command: parses its arguments and runs the grid of each method.

    The process ends with one line if an argument is wrong.

    Args:
        script: the methods of the command, or its only method.
        args: the command-line arguments without the command's name; None takes the
            arguments of the process.
    """
    command_line = arguments.read(script, sys.argv[1:] if args is None else args)

    def join_processes() -> Sequence[Task]:
        processes.join(command_line.processes, command_line.tasks)
        if not processes.is_primary():
            sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        return command_line.tasks

    folders = run(join_processes, named=command_line.named)
    if len(folders) > 1:
        from fcjax.sweep import report

        out = command_line.tasks[0].options.out
        with log_to_stdout():
            report.log_all_results(folders, out=out and out.parent)


@exit_on_system_error()
def run(
    make: Callable[[], Sequence[Task]], *, named: Collection[str] = ()
) -> list[Folder]:
    """Checks all experiments, then runs one after another.

    The process ends with one line if a flag is wrong, if a single run does not fit the
    memory of the device, if a file cannot be written, and on Ctrl-C. A wrong flag is
    reported before anything is compiled or written. In the other cases the same command
    continues from the files that are already written.

    Args:
        make: returns the tasks; it may raise a ValueError with a message of one line.
        named: the settings on the command line. A warning names those that no method
            uses.

    Returns:
        The results folder of each task.
    """
    take_cores()
    # orbax logs every error that it raises with its traceback, also through asyncio.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    problem, topologies, experiments, devices = "", [], [], {}
    try:
        tasks = make()
        topologies = [x.options.on for x in tasks if x.options.on is not None]
        if topologies:  # The programs are compiled for other devices than the local.
            jax.config.update("jax_platforms", "cpu")
        devices = {topology: absent_devices(topology) for topology in topologies}
        if any(task.options.to for task in tasks):
            with log_to_stdout(with_quoted_flags):
                deploy(tasks)
            return []
        experiments = prepare_all(tasks)
    except ValueError as error:
        problem = str(error)
    if problem := processes.first_error(problem):
        exit_with_error(problem)
    # A late import: a wrong flag is reported without loading orbax and matplotlib.
    from fcjax.sweep.fit import fit, is_out_of_memory
    from fcjax.sweep.train import enable_compilation_cache, execute

    if topologies:
        with log_to_stdout():
            for topology, experiment in zip(topologies, experiments, strict=True):
                fit(experiment, topology, *devices[topology])
        return [experiment.folder for experiment in experiments]

    if any(experiment.task.options.dry_run for experiment in experiments):
        with log_to_stdout(with_quoted_flags):
            for experiment in experiments:
                log_header(experiment)
            print("dry run: nothing was trained or written")
        return [experiment.folder for experiment in experiments]

    with ExitStack() as stack:
        try:
            for experiment in experiments if processes.is_primary() else ():
                stack.enter_context(experiment.folder.locked())
        except ValueError as error:
            problem = str(error)
        problem = processes.first_error(problem)
        if not problem and is_multiprocess():
            problem = processes.first_error(problem_of_folders(experiments))
        if problem:
            exit_with_error(problem)
        stack.enter_context(exit_on_system_error(checked=True))
        stack.enter_context(exit_at_once_on_error())
        try:
            enable_compilation_cache()
            stack.enter_context(log_to_stdout(with_quoted_flags))
            for line in warnings_of_unused(experiments, named):
                print(line)
            for experiment in experiments:
                execute(experiment)
        except jax.errors.JaxRuntimeError as error:
            if not is_out_of_memory(error):
                raise
            message = str(error).partition("\n")[0]
            exit_with_error(
                f"a single run does not fit the memory of the device: {message}",
                RUNTIME_ERROR,
            )
    return [experiment.folder for experiment in experiments]


def deploy(tasks: Sequence[Task]) -> None:
    """Writes the Flower app of the only task.

    Args:
        tasks: the tasks of a command with --to.

    Raises:
        ValueError: there are several methods or runs, or the method cannot be deployed.
    """
    # Loaded here, because no other command needs it.
    from fcjax.deploy import app

    if len(tasks) > 1:
        raise ValueError(f"--to takes one method, got {len(tasks)}")
    (task,) = tasks
    assert task.options.to is not None
    experiment = prepare(task, in_memory=True)
    log_header(experiment)
    content = app.app_of(experiment)
    app.write(content, task.options.to)
    for line in app.next_steps(content, task.options.to):
        print(line)


def warnings_of_unused(
    experiments: Sequence[Experiment], named: Collection[str]
) -> list[str]:
    """Returns one line per given setting that no method of the command uses.

    Args:
        experiments: the experiments of the command.
        named: names of the settings that the command line names.

    Returns:
        The warnings.
    """
    settings = [{*given(x.task.method)} for x in experiments]
    unused = {*named}.union(*settings).difference(*map(effective_settings, experiments))
    methods = list(dict.fromkeys(x.task.method.name for x in experiments))
    verb = "do" if len(methods) > 1 else "does"
    reason = f"{' and '.join(methods)} {verb} not use it"
    return [
        f"warning: {flag_of(name)} has no effect, because {reason}"
        for name in sorted(unused)
    ]


def problem_of_folders(experiments: Sequence[Experiment]) -> str:
    """Returns an error message if the processes do not share one results folder.

    The first process has locked its folder, so every process must see this lock.

    Args:
        experiments: the experiments of the command, one per method.

    Returns:
        The message; "" if all processes share each folder.
    """
    for folder in (experiment.folder for experiment in experiments):
        view = f"{(folder.directory / '.lock').exists()} {folder.pending}"
        if view != processes.broadcast_text(view):
            return f"--out {folder.directory} must be the same folder for all processes"
    return ""
