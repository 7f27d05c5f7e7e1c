"""How a command ends that cannot go on: in one line."""

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

REFUSED = 2
"""The exit status of a command that is wrong: nothing has been written."""
FAILED = 1
"""That of a right one which ran into a full disk, or too little memory."""
INTERRUPTED = 130
AGAIN = "what has ended is kept, and the same command goes on"
PLACES = (
    *(FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError),
    PermissionError,
)
"""What the system says where a flag names a wrong place."""


def flag_of(name: str) -> str:
    """Returns a parameter as it is written on a command line.

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
    **{"num_examples": "--limit", "local_clusters": "--local-clusters"},
    **{"labelled=False": "--no-labels", "resume=False": "--no-resume"},
    "least_size": "--min-client-size",
}
"""From the parameters that the library's errors name to the flags of a command."""


def with_flags(line: str) -> str:
    """Writes the parameters that an error of the library names as flags.

    These are a parameter at the beginning, before "must", "takes" or a value; every
    parameter of several words; and every parameter in backquotes.

    Examples:
        >>> with_flags("p must lie in [0, 1], got 2")
        '--p must lie in [0, 1], got 2'
        >>> with_flags("class_share 0.1 with num_clients 3 leaves clients empty")
        '--class-share 0.1 with --clients 3 leaves clients empty'
        >>> with_flags("clients of the data have no examples")
        'clients of the data have no examples'
        >>> with_flags("size must be at least 1, got 0")  # no name of a flag
        'size must be at least 1, got 0'
        >>> with_flags("dataset x has images of two sizes; `resize` gives them one")
        '--dataset x has images of two sizes; --resize gives them one'
    """

    def flag(match: re.Match[str]) -> str:
        return FLAGS.get(match[0], match[0])

    line = re.sub(r"^(dataset\b|[a-z]+(?= (must|takes|[\d.\[(])))", flag, line)
    line = with_quoted_flags(line)
    return re.sub(r"(?<![\w/.-])[a-z]+(_[a-z]+)+(?![\w/.=-])", flag, line)


def with_quoted_flags(line: str) -> str:
    """Writes only the parameters in backquotes as flags: the rest of the line may hold
    words of the user, such as the header of a table.
    """

    def flag(match: re.Match[str]) -> str:
        name = match[1]
        is_name = re.fullmatch(r"[a-z_]+", name)
        return FLAGS.get(name, flag_of(name) if is_name else match[0])

    return re.sub(r"`([^`]+)`", flag, line)


def end(line: str, status: int = REFUSED) -> NoReturn:
    """Ends the process with a line behind the name of its command."""
    line = with_flags(" ".join(line.split()))
    print(f"{name_of_command()}: error: {line}", file=sys.stderr)
    sys.exit(status)


def name_of_command() -> str:
    return Path(sys.argv[0]).name


@contextmanager
def in_a_line(*, begun: bool = False) -> Iterator[None]:
    """Ends the process with one line where what is inside is refused a file or memory
    by the system, or is interrupted; what it has written until then stays. The same
    where JAX cannot start its devices, at whichever first use of them.

    Args:
        begun: what is inside has been checked, and a wrong place is no wrong flag.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, PLACES) and not begun:
            end(told(error))
        end(f"{told(error)}; {AGAIN}", FAILED)
    except MemoryError as error:
        end(f"too little memory: {error}", FAILED)
    except (RuntimeError, AssertionError) as error:
        if problem := platform_problem(error):
            end(problem)
        raise
    except KeyboardInterrupt:
        end(f"interrupted; {AGAIN}", INTERRUPTED)


@contextmanager
def exit_on_error() -> Iterator[None]:
    """`in_a_line`, also where what is inside raises ValueError, as tools do where a
    flag or what it names is wrong.
    """
    try:
        with in_a_line():
            yield
    except ValueError as error:
        end(str(error))


def told(error: OSError) -> str:
    """Returns what the system said, and of which file.

    Examples:
        >>> told(PermissionError(13, "Permission denied", "runs/x"))
        'runs/x: Permission denied'
    """
    why = error.strerror or str(error).partition("\n")[0]
    return f"{error.filename}: {why}" if error.filename else why


@contextmanager
def ending_together() -> Iterator[None]:
    """Ends this process at once if it fails. The other processes wait for it in vain,
    and JAX ends them after `HEARTBEAT_TIMEOUT`.
    """
    try:
        yield
    except BaseException as error:
        if not is_multiprocess():
            raise
        if isinstance(error, OSError) and not isinstance(error, TimeoutError):
            print(f"{name_of_command()}: error: {told(error)}", file=sys.stderr)
        elif not isinstance(error, SystemExit):  # its message is printed
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)  # at a normal exit, orbax and JAX wait for the others
