"""What the scripts share that take several methods, each into a folder of its own."""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from fcjax.sweep import command, experiment, plan, processes, report, words
from fcjax.sweep.flags import Common

Args = TypeVar("Args", bound=Common)


def only(args: Any, name: str, called: str = "") -> Any:
    """Returns the flags of one method, whose results go into a folder of its own."""
    out = args.out and args.out / (called or name)
    return dataclasses.replace(args, methods=(name,), out=out)


def main(
    flags: type[Args], describe: Any, only: Callable[[Any, Any], Any] = only
) -> None:
    """Runs a script: reads its flags, runs the experiment of each method, and prints a
    table of all.

    Args:
        flags: the script's dataclass of flags.
        describe: of the first of the methods, see `plan.Describe`.
        only: (flags, method) -> the flags of that method.
    """
    args: Any = words.read(flags, sys.argv[1:])
    results = command.run(lambda: tasks(processes.join(args), describe, only))
    if len(results) > 1:
        report.conclude_all(results, out=args.out)


def tasks(
    args: Any, describe: Any, only: Callable[[Any, Any], Any] = only
) -> list[experiment.Task]:
    """Returns an experiment for each of `args.methods`.

    Raises:
        ValueError: none is given, or one twice.
    """
    if len(set(args.methods)) != len(args.methods) or not args.methods:
        raise ValueError(f"--methods takes different methods, got {args.methods}")
    return [(only(args, name), describe) for name in args.methods]


def dealt_once(args: Any) -> Any:
    """Returns the flags of a method that sees all data however it is dealt: unless
    clients fail, it runs at the first --p alone."""
    if any(args.failure_rate):
        return args
    first = {rule: getattr(args, rule)[:1] for rule in plan.RULES}
    return dataclasses.replace(args, **first)
