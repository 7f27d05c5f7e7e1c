"""How a command ends that cannot go on: in one line."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

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


def end(line: str, status: int = REFUSED) -> NoReturn:
    """Ends the process with a line behind the name of its command."""
    print(f"{name_of_command()}: error: {' '.join(line.split())}", file=sys.stderr)
    sys.exit(status)


def name_of_command() -> str:
    return Path(sys.argv[0]).name


@contextmanager
def in_a_line(*, begun: bool = False) -> Iterator[None]:
    """Ends the process with one line where what is inside is refused a file or memory
    by the system, or is interrupted; what it has written until then stays.

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
    except KeyboardInterrupt:
        end(f"interrupted; {AGAIN}", INTERRUPTED)


@contextmanager
def refusing() -> Iterator[None]:
    """`in_a_line`, also where what is inside raises ValueError, as tools do where a
    flag or what it names is wrong."""
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
