"""What the words of a command line stand for: a script's flags."""

import dataclasses
import difflib
import io
import json
import math
import re
import sys
from collections.abc import Collection, Sequence
from contextlib import redirect_stderr
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import tyro

from fcjax.data.partition import RULES
from fcjax.settings import kind_of
from fcjax.sweep import screen
from fcjax.sweep.ending import end
from fcjax.sweep.flags import Common, flag_of, script_of

Args = TypeVar("Args", bound=Common)
MOST = 10_000
"""Values of one range."""


def read(flags: type[Args], words: Sequence[str]) -> Args:
    """Returns the flags of a script that the words of its command line give.

    Ends the process where they ask for help, and with one line where they are wrong.

    Args:
        flags: the script's dataclass of flags.
        words: of the command line, without its name.
    """
    try:
        if asked := screen.asked(words):
            screen.show(flags, asked)
            sys.exit()
        words = spelled(flags, words)
        path = given(words, "--config")
        if path:
            of_config = spelled_in(Path(path), flags, but=rules(words))
            words = [*of_config, *words]
    except ValueError as error:
        end(str(error))
    return flags_in(flags, words)


def flags_in(
    flags: type[Any], words: Sequence[str] | None = None, about: str = ""
) -> Any:
    """Returns the flags of a script or tool by tyro, whose frame round what is wrong
    becomes a line.

    Args:
        flags: the dataclass of flags.
        words: of the command line; None is that of the process.
        about: what `--help` begins with, if not the words of the class.
    """
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return tyro.cli(flags, args=words, description=about or None)
    except SystemExit:
        if not said.getvalue():
            raise
    names = [flag_of(field.name) for field in dataclasses.fields(flags)]
    end(line_of(said.getvalue(), names))


def line_of(framed: str, names: Sequence[str]) -> str:
    """Returns an error of tyro without its frame, as one line.

    Args:
        framed: what tyro printed. Its second part, below the title, is the error.
        names: the flags that there are. The line names the one that is nearest to an
            unknown flag, where one is near.
    """
    _, first, *_ = re.split("[─-]{10,}", re.sub("[│╭╮╰╯]", " ", framed))
    told = " ".join(first.partition("Got errors")[0].split()).rstrip(".")
    told = re.sub(r"(?<=one of )\(.*'None'.*\)", without_none, told)
    unknown = re.match(r"Unrecognized options: (--[\w-]+)", told)
    near = difflib.get_close_matches(unknown[1], names, n=1) if unknown else ()
    return f"{told}; did you mean {near[0]}?" if near else told


def without_none(choices: re.Match[str]) -> str:
    """Returns choices of which None stands for a flag that is not given, in an order of
    their own: tyro's is that of a set."""
    return str(tuple(sorted({*re.findall(r"'([^']+)'", choices[0])} - {"None"})))


def spelled(flags: type, words: Sequence[str]) -> list[str]:
    """Returns the words of a command line, with numbers for each range of them.

    Args:
        flags: the dataclass of flags.
        words: of the command line.

    Raises:
        ValueError: one line that names a flag of several numbers whose value is none.

    Examples:
        >>> spelled(Common, ["--p", "0:1:0.5", "--seed=0:3", "7"])
        ['--p', '0.0', '0.5', '1.0', '--seed', '0', '1', '2', '7']
    """
    hints = get_type_hints(flags).items()
    kinds: Any = {flag_of(name): kind_of(hint) for name, hint in hints}
    kinds = {flag: kind for flag, kind in kinds.items() if kind in (int, float)}
    found, flag = [], ""
    for word in [*words, "--"]:
        if word.startswith("--"):
            if flag in kinds and found[-1] == flag:
                raise ValueError(f"{flag} takes {ACCEPTED[kinds[flag]]}, got nothing")
            name, is_one, value = word.partition("=")
            flag = name.replace("_", "-")
            is_grid = is_one and flag in kinds
            found += [flag, *numbers(flag, value, kinds[flag])] if is_grid else [word]
        else:
            found += numbers(flag, word, kinds[flag]) if flag in kinds else [word]
    return found[:-1]


ACCEPTED = {
    int: "whole numbers, or START:END without END as 0:16",
    float: "numbers, or START:END:STEP with END as 0:1:0.25",
}


def numbers(flag: str, text: str, kind: type) -> list[str]:
    """Returns the numbers that a value of a flag stands for.

    Raises:
        ValueError: one line that says what is accepted.
    """
    parts, count = text.split(":"), 0
    try:
        first, *rest = (Decimal(str(kind(part))) for part in parts)
        if not rest:
            return [text]
        last, step = [*rest, Decimal(1)] if kind is int and not rest[1:] else rest
        steps = (last - first) / step
        # Of whole numbers the last is left out, as in Python's range.
        count = math.ceil(steps) if kind is int else math.floor(steps) + 1
    except (ValueError, ArithmeticError):
        pass
    if not 0 < count <= MOST:
        told = f"{ACCEPTED[kind]}, at most {MOST:,} of them"
        raise ValueError(f"{flag} takes {told}, got {text!r}")
    return [str(kind(first + place * step)) for place in range(count)]


def given(words: Sequence[str], flag: str) -> str:
    """Returns the last value of a flag, nothing where there is none."""
    found, name = "", ""
    for word in words:
        if name == flag:
            found = word
        name = word
        if word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found


def rules(words: Sequence[str]) -> set[str]:
    """Returns the rules of dealing and what belongs to one, if a command line gives a
    rule: one of a config.json would go beside it."""
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    own = {flag[2:].replace("-", "_") for flag in flags}
    belonging = {"class_range", "max_clients", "min_client_size"}
    return {*RULES, *belonging} if own & {*RULES} else set()


def spelled_in(path: Path, flags: type, *, but: Collection[str]) -> list[str]:
    """Returns the words of the command whose run wrote a config.json.

    Args:
        path: of the file.
        flags: the dataclass of flags.
        but: the names of flags that are left out.

    Raises:
        ValueError: it is none, or one of another script.
    """
    try:
        config = json.loads(path.read_text())
        script, own = config["command"]["script"], dict(config["command"]["flags"])
    except OSError as error:
        raise ValueError(f"--config {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"--config {path} is no config.json that says its command; those of "
            "before there was --config, and of experiments/results, do not"
        ) from error
    if script != script_of(flags):
        raise ValueError(
            f"--config {path} is of a run of {script}, and this is {script_of(flags)}"
        )
    hints = get_type_hints(flags)
    if unknown := own.keys() - hints.keys():
        raise ValueError(f"--config {path} has flags that are none: {sorted(unknown)}")
    kept = own.keys() - set(but)
    if kept & {*RULES} - {"p"}:  # of before --p was refused beside another rule
        kept -= {"p"}
    return [x for name in kept for x in _words(name, own[name], hints[name])]


def _words(name: str, value: Any, hint: Any) -> list[str]:
    flag = name.replace("_", "-")
    if hint is bool:
        return [f"--{flag}" if value else f"--no-{flag}"]
    values = value if isinstance(value, list) else [value]
    return [f"--{flag}", *map(str, values)]
