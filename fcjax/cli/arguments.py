"""The command-line arguments of a method, by tyro: a view of its dataclass and of the
dataclasses of `Task`.
"""

import dataclasses
import difflib
import inspect
import io
import json
import math
import re
import types
from collections.abc import Sequence
from contextlib import redirect_stderr
from decimal import Decimal
from functools import cache
from pathlib import Path
from types import NoneType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
)

from fcjax.cli.errors import exit_with_error, flag_of, name_of_command
from fcjax.data.partition import RULES
from fcjax.data.source import Source
from fcjax.data.split import Split
from fcjax.methods import Method, Script, script_with
from fcjax.settings import default, given, kind_of, shown
from fcjax.sweep.experiment import script_of
from fcjax.sweep.options import Options
from fcjax.sweep.plan import Task
from fcjax.sweep.processes import Processes

T = TypeVar("T")

# --- Ranges of numbers

MOST = 10_000
"""Values of one range."""
ACCEPTED = {
    int: "whole numbers, or START:END without END as 0:16",
    float: "numbers, or START:END:STEP with END as 0:1:0.25",
}
REGISTRY = ConstructorRegistry()


@REGISTRY.primitive_rule
def several_numbers(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Lets a setting of several numbers take ranges of them."""
    kind = kind_of(info.type)
    if kind not in ACCEPTED:
        return None

    def parse(words: list[str]) -> tuple:
        if not words:
            raise ValueError(f"takes {ACCEPTED[kind]}, got nothing")
        return tuple(number for word in words for number in numbers(word, kind))

    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="N ..." if kind is int else "X ...",
        instance_from_str=parse,
        is_instance=lambda _: True,
        str_from_instance=lambda values: [f"{x:g}" for x in values],
    )


@REGISTRY.primitive_rule
def optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Keeps None, which stands for a flag that is not given, from being an argument."""
    kinds = get_args(info.type)
    if get_origin(info.type) not in (Union, types.UnionType) or NoneType not in kinds:
        return None
    kinds = tuple(x for x in kinds if x is not NoneType)
    rest: Any = Union[kinds]  # noqa: UP007
    if all(get_origin(x) is Literal for x in kinds):
        # tyro lists the choices of several Literals in random order.
        rest = Literal[tuple(value for kind in kinds for value in get_args(kind))]
    spec = ConstructorRegistry.get_primitive_spec(
        PrimitiveTypeInfo.make(rest, info.markers)
    )
    if not isinstance(spec, PrimitiveConstructorSpec):
        return None
    return dataclasses.replace(
        spec,
        instance_from_str=lambda x: (
            None if x == ["None"] else spec.instance_from_str(x)
        ),
        is_instance=lambda x: x is None or spec.is_instance(x),
        str_from_instance=lambda x: [] if x is None else spec.str_from_instance(x),
    )


def numbers(text: str, kind: type) -> list[int | float]:
    """Returns the numbers that one word stands for.

    Raises:
        ValueError: one line that says what is accepted.

    Examples:
        >>> numbers("0:1:0.5", float), numbers("0:3", int), numbers("7", int)
        ([0.0, 0.5, 1.0], [0, 1, 2], [7])
    """
    parts, count = text.split(":"), 0
    try:
        first, *rest = (Decimal(str(kind(part))) for part in parts)
        if not rest:
            return [kind(text)]
        last, step = [*rest, Decimal(1)] if kind is int and not rest[1:] else rest
        steps = (last - first) / step
        # A range of whole numbers leaves out its exit_with_error, as in Python.
        count = math.ceil(steps) if kind is int else math.floor(steps) + 1
    except (ValueError, ArithmeticError):
        pass
    if not 0 < count <= MOST:
        told = f"{ACCEPTED[kind]}, at most {MOST:,} of them"
        raise ValueError(f"takes {told}, got {text!r}")
    return [kind(first + place * step) for place in range(count)]


# --- The arguments of a command


@dataclasses.dataclass(frozen=True)
class Several:
    """Which methods run, and with which settings."""

    methods: tuple[str, ...] = ()
    """Which methods to run, each into a results folder of its own."""


@cache
def arguments_of(script: Script) -> type:
    """Returns the dataclass of all arguments of a command, in groups."""
    first, is_one = script.methods[0], len(script.methods) == 1
    # In Python's order of inheritance a class stands before its bases.
    every = sorted(script.methods[::-1], key=lambda x: -len(x.__mro__))
    space: dict[str, Any] = {"__annotations__": {}, "__module__": first.__module__}
    if not is_one:
        names: Any = Literal[tuple(x.name for x in script.methods)]
        space["__annotations__"]["methods"] = tuple[names, ...]
        space["methods"] = tuple(x.name for x in script.default)
    bases = (*every, *(() if is_one else (Several,)))
    settings = dataclasses.dataclass(frozen=True)(type("Settings", bases, space))
    groups = {
        "method": settings,
        "data": Source,
        "clients": split_of(first),
        "run": Options,
        "processes": Processes,
    }
    text = "The config.json of a run: its flags, which the ones given here replace."
    config = Annotated[Path | None, shown("none"), tyro.conf.arg(help=text)]
    return dataclasses.make_dataclass(
        "Arguments",
        [
            *(
                (name, tyro.conf.OmitArgPrefixes[group], group())
                for name, group in groups.items()
            ),
            ("config", config, None),
        ],
        frozen=True,
    )


def split_of(method: type[Method]) -> type[Split]:
    """Returns `Split` with the defaults of a method, which help then shows."""
    hints = get_type_hints(Split)
    space: dict[str, Any] = {"__annotations__": {}, "__doc__": Split.__doc__}
    for name, value in method.partition_defaults.items():
        space["__annotations__"][name] = hints[name]
        space[name] = value if value == () else default(value)
    return dataclasses.dataclass(frozen=True)(type("Split", (Split,), space))


class CommandLine(NamedTuple):
    """A parsed command line."""

    tasks: list[Task]
    """One per method."""
    processes: Processes
    named: list[str]
    """The settings of methods that were given."""


def read(script: Script | type[Method], words: Sequence[str]) -> CommandLine:
    """Returns what a command line asks for.

    Ends the process where it asks for help, and with one line where it is wrong.
    """
    if not isinstance(script, Script):
        script = script_with(script)
    arguments = arguments_of(script)
    try:
        if path := last_value(words, "--config"):
            words = [*words_of(Path(path), script, words), *words]
        found: Any = parse(arguments, words, description=about(script))
        named = [name for name in given(found.method) if name != "methods"]
        return CommandLine(tasks(script, found), found.processes, named)
    except ValueError as error:
        exit_with_error(str(error))


def tasks(script: Script, found: Any) -> list[Task]:
    methods = {x.name: x for x in script.methods}
    names = getattr(found.method, "methods", tuple(methods))
    if len(set(names)) != len(names) or not names:
        raise ValueError(f"--methods takes different methods, got {names}")
    result = []
    for name in names:
        cls, options = methods[name], found.run
        own = {x.name: getattr(found.method, x.name) for x in dataclasses.fields(cls)}
        method = cls(**own)
        if len(methods) > 1 and options.out is not None:
            options = dataclasses.replace(options, out=options.out / method.full_name())
        result.append(Task(method, found.data, found.clients, options))
    return result


def about(script: Script) -> str:
    """Returns the description of a command: that of its methods' family."""
    shared = [set(x.__mro__) for x in script.methods]
    family = next(
        x for x in script.methods[0].__mro__ if all(x in each for each in shared)
    )
    module = inspect.getmodule(script.methods[0]).__doc__ or ""
    own = inspect.cleandoc(family.__doc__ or "").partition("\n\nExamples:")[0]
    return module.partition("\n\n")[0] + "\n\n" + own


# --- What tyro does


def parse(
    arguments: type[T],
    words: Sequence[str] | None = None,
    *,
    description: str = "",
) -> T:
    """Returns the arguments of a command by tyro. An error, which tyro frames, ends the
    process with one line.

    Args:
        arguments: a dataclass.
        words: of the command line; None is that of the process.
        description: the beginning of `--help`, if not the docstring of the class.
    """
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return tyro.cli(
                arguments,
                args=words,
                prog=name_of_command(),
                registry=REGISTRY,
                description=description or None,
            )
    except SystemExit:
        if not said.getvalue():
            raise
    exit_with_error(line_of(said.getvalue(), flags_in(arguments)))


def line_of(framed: str, flags: Sequence[str]) -> str:
    """Returns an error of tyro without its frame, as one line. It names the one of the
    flags that is nearest to an unknown flag.
    """
    _, first, *_ = re.split("[─-]{10,}", re.sub("[│╭╮╰╯]", " ", framed))
    told = " ".join(first.split()).rstrip(".")
    told = re.sub(r"^Error parsing (--[\w-]+):", r"\1", told)
    told = re.sub(r"^Error parsing \w+: ", "", told)
    told = re.sub(r"invalid literal for int.*:", "takes a whole number, got", told)
    told = told.replace("could not convert string to float:", "takes a number, got")
    unknown = re.match(r"Unrecognized options: (--[\w-]+)", told)
    near = difflib.get_close_matches(unknown[1], flags, n=1) if unknown else ()
    return f"{told}; did you mean {near[0]}?" if near else told


def flags_in(arguments: type) -> list[str]:
    """Returns the flags of a dataclass, and of the dataclasses in it."""
    found = []
    for field in dataclasses.fields(arguments):
        if dataclasses.is_dataclass(field.default):
            found += flags_in(type(field.default))
        elif field.name != "natural":  # is none
            found.append(flag_of(field.name))
    return found


def words_of(path: Path, script: Script, words: Sequence[str]) -> list[str]:
    """Returns the arguments of the run that wrote a config.json. If the command line
    gives a rule of partition, the one of the file and its settings are left out.

    Raises:
        ValueError: it is no config.json, or one of another command.
    """
    try:
        command = json.loads(path.read_text())["command"]
        name, own = command["script"], dict(command["flags"])
    except OSError as error:
        raise ValueError(f"--config {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--config {path} is no config.json of a run") from error
    here = script_of(script.methods[0])
    if name != here:
        raise ValueError(f"--config {path} is of a run of {name}, and this is {here}")
    if len(script.methods) > 1 and "method" in command:
        own.setdefault("methods", [command["method"]])
    flags = {word.partition("=")[0] for word in words}
    if flags & {*map(flag_of, RULES)}:
        of_rules = {*RULES, "class_range", "max_clients", "min_client_size"}
        own = {k: x for k, x in own.items() if k not in of_rules}
    if own.keys() & {*RULES} - {"p"}:  # of before p was refused beside another rule
        own.pop("p", None)
    hints: dict[str, Any] = {}
    for field in dataclasses.fields(arguments_of(script)):
        if dataclasses.is_dataclass(field.default):
            hints |= get_type_hints(type(field.default))
    if unknown := own.keys() - hints.keys():
        raise ValueError(
            f"--config {path} has settings that are none: {sorted(unknown)}"
        )
    found = []
    for name, value in own.items():
        flag = flag_of(name)
        if hints[name] is bool:
            found.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            values = value if isinstance(value, list) else [value]
            found += [flag, *map(str, values)]
    return found


def last_value(words: Sequence[str], flag: str) -> str:
    """Returns the last value of a flag, nothing where there is none."""
    found, name = "", ""
    for word in words:
        if name == flag:
            found = word
        name = word
        if word.startswith(f"{flag}="):
            found = word.partition("=")[2]
    return found
