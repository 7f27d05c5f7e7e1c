"""What a process says when JAX's service ends it, as one line: a program of its own.

The service ends a process at once where another one has died, and all that it leaves is
a page of XLA's log. This program reads the process's log, outlives it, and passes on
what is no part of that.
"""

import re
import sys
from collections.abc import Iterable, Iterator

FATAL = "JAX distributed service detected fatal errors"
HEADER = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ (\w+)\.\w+:\d+\]")
LEADER = "Failed to send RPC to coordination service"
"""However the connection ended: closed, reset or refused."""
OF_SERVICE = ("coordination_service", "preemption", "client")


def passed_on(lines: Iterable[str], name: str) -> Iterator[str]:
    r"""Yields the lines that are none of the service's, and in the end who has died, if
    it said so.

    Args:
        lines: of the log.
        name: of the script.

    Examples:
        >>> log = ["I0101 10:00:00.000001 7 cpu_client.cc:1] as usual", "ptxas: a note"]
        >>> log += ["F0101 10:00:01.000001 7 client.h:80] " + FATAL + ": unhealthy"]
        >>> log += ["(stopped sending heartbeats):", "3", "The tasks have crashed."]
        >>> log = [line + "\n" for line in log]
        >>> print(*passed_on(log, "ccfc.py"), sep="", end="")
        I0101 10:00:00.000001 7 cpu_client.cc:1] as usual
        ptxas: a note
        ccfc.py: error: process 3 has died; start all again to go on
    """
    is_of_service, last = False, ""
    for line in lines:
        if header := HEADER.match(line):
            is_of_service = header[1].startswith(OF_SERVICE)
        if FATAL in line or last:
            last += line
        elif not is_of_service:
            yield line
    if last:
        yield f"{name}: error: {who(last)} has died; start all again to go on\n"


def who(last: str) -> str:
    """Returns whom the last lines of a log name; process 0 where it is the service that
    does not answer."""
    found = re.search(r"stopped sending heartbeats\):\n((?:\d+\n)+)", last)
    if found:
        return " and ".join(f"process {number}" for number in found[1].split())
    return "process 0" if LEADER in last else "another process"


if __name__ == "__main__":
    for line in passed_on(sys.stdin, sys.argv[1]):
        sys.stderr.write(line)
        sys.stderr.flush()
