"""Error handling of the command line: every error is one line on standard error."""

import dataclasses
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from fcjax.data.source import Source
from fcjax.data.split import Split
from fcjax.parallel.mesh import is_multiprocess, platform_problem
from fcjax.sweep.options import Options
from fcjax.sweep.processes import Processes

USAGE_ERROR = 2
"""Exit status for a wrong command line. Nothing has been written."""
RUNTIME_ERROR = 1
"""Exit status for a correct command that failed, for example because of a full disk."""
INTERRUPTED = 130
"""Exit status after Ctrl-C."""
RESUME_HINT = "finished runs are kept; run the same command again to continue"
PATH_ERRORS = (
    *(FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError),
    PermissionError,
)
"""Errors of the operating system that mean that a flag names a wrong path."""


def flag_of(name: str) -> str:
    """Returns the command-line flag of a parameter.

    Args:
        name: the name of the parameter in Python.

    Returns:
        The flag.

    Examples:
        >>> flag_of("num_rounds")
        '--num-rounds'
    """
    return "--" + name.replace("_", "-")


FLAGS = {
    **{
        x.name: flag_of(x.name)
        for part in (Source, Split, Options, Processes)
        for x in dataclasses.fields(part)
        if x.name != "process"
    },
    **{"num_clients": "--clients", "num_clusters": "--clusters", "where": "--where"},
    "num_examples": "--limit",
    **{
        name: flag_of(name)
        for name in ("local_clusters", "cluster_rounds", "max_heterogeneity")
    },
    **{"labels=False": "--no-labels", "resume=False": "--no-resume"},
    "keep_uploads=True": "--keep-uploads",
    "least_size": "--min-client-size",
}
"""The flag of each parameter that the error messages of the library name."""


def with_flags(line: str) -> str:
    """Replaces the parameters in an error message of the library by their flags.

    Three kinds of words are replaced: a parameter at the beginning of the line that is
    followed by "must", "takes" or a value; a parameter whose name has an underscore;
    and a parameter in backquotes. A line about a data set may hold words of the user,
    such as names of columns. There, only flags in backquotes are replaced.

    Args:
        line: the error message.

    Returns:
        The message with flags.

    Examples:
        >>> with_flags("p must lie in [0, 1], got 2")
        '--p must lie in [0, 1], got 2'
        >>> with_flags("class_share 0.1 with num_clients 3 leaves clients empty")
        '--class-share 0.1 with --clients 3 leaves clients empty'
        >>> with_flags("clients of the data have no examples")
        'clients of the data have no examples'
        >>> with_flags("size must be at least 1, got 0")  # There is no flag --size.
        'size must be at least 1, got 0'
        >>> with_flags("dataset x has images of two sizes; `resize` gives them one")
        '--dataset x has images of two sizes; --resize gives them one'
        >>> with_flags("dataset x has text in the columns client_size, `age`")
        '--dataset x has text in the columns client_size, `age`'
    """

    def flag(match: re.Match[str]) -> str:
        return FLAGS.get(match[0], match[0])

    line = re.sub(r"^(dataset\b|[a-z]+(?= (must|takes|[\d.\[(])))", flag, line)
    line = with_quoted_flags(line)
    if line.startswith("--dataset "):
        return line
    # The library also quotes settings of methods, of which there is no list here.
    line = re.sub(r"`([a-z_]+)`", lambda match: flag_of(match[1]), line)
    return re.sub(r"(?<![\w/.-])[a-z]+(_[a-z]+)+(?![\w/.=-])", flag, line)


def with_quoted_flags(line: str) -> str:
    """Replaces the parameters in backquotes by their flags, see `FLAGS`.

    The rest of the line stays, because it may hold words of the user, for example a
    column name of a table. Backquotes inside of a path belong to the path.

    Args:
        line: the error message.

    Returns:
        The message with flags.
    """

    def flag(match: re.Match[str]) -> str:
        return FLAGS.get(match[1], match[0])

    return re.sub(r"(?<![\w/.-])`([^`]+)`(?![\w/-]|\.\w)", flag, line)


def exit_with_error(message: str, status: int = USAGE_ERROR) -> NoReturn:
    """Prints an error message as one line and ends the process.

    Args:
        message: the message, in one or more lines.
        status: exit status of the process.

    Raises:
        SystemExit: always.
    """
    line = with_flags(" ".join(message.split()))
    print(f"{name_of_command()}: error: {line}", file=sys.stderr)
    sys.exit(status)


def name_of_command() -> str:
    """Returns the name of the running command, for example "fcjax ccfc"."""
    return Path(sys.argv[0]).name


@contextmanager
def exit_on_system_error(*, checked: bool = False) -> Iterator[None]:
    """Turns errors of the operating system inside a `with` block into one line.

    The process ends with this line when the system refuses a file or memory, when JAX
    cannot start its devices, and on Ctrl-C. Files that are already written stay.

    Args:
        checked: whether all paths of the command line have been checked. Then a wrong
            path is a failure at run time, not a wrong flag.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, PATH_ERRORS) and not checked:
            exit_with_error(system_message(error))
        exit_with_error(f"{system_message(error)}; {RESUME_HINT}", RUNTIME_ERROR)
    except MemoryError as error:
        exit_with_error(f"out of memory: {error}", RUNTIME_ERROR)
    except (RuntimeError, AssertionError) as error:
        if problem := platform_problem(error):
            exit_with_error(problem)
        raise
    except KeyboardInterrupt:
        exit_with_error(f"interrupted; {RESUME_HINT}", INTERRUPTED)


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turns a ValueError or an error of the system in a `with` block into one line.

    Commands raise a ValueError when a flag, or the file that a flag names, is wrong.
    """
    try:
        with exit_on_system_error():
            yield
    except ValueError as error:
        exit_with_error(str(error))


def system_message(error: OSError) -> str:
    """Returns the message of the operating system and the file that it is about.

    Args:
        error: the error.

    Returns:
        One line.

    Examples:
        >>> system_message(PermissionError(13, "Permission denied", "runs/x"))
        'runs/x: Permission denied'
    """
    reason = error.strerror or str(error).partition("\n")[0]
    return f"{error.filename}: {reason}" if error.filename else reason


@contextmanager
def exit_at_once_on_error() -> Iterator[None]:
    """Ends one of several processes at once if it fails inside a `with` block.

    The other processes then wait for this process, and JAX ends them after
    `HEARTBEAT_TIMEOUT` seconds. A single process raises its errors as usual.
    """
    try:
        yield
    except BaseException as error:
        if not is_multiprocess():
            raise
        if isinstance(error, OSError) and not isinstance(error, TimeoutError):
            line = f"{name_of_command()}: error: {system_message(error)}"
            print(line, file=sys.stderr)
        elif not isinstance(error, SystemExit):  # Its message is already printed.
            traceback.print_exc()
        sys.stdout.flush()
        # At a normal exit, orbax and JAX would wait for the other processes.
        os._exit(1)
