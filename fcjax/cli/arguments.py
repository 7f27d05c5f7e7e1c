"""Parsers of the command-line arguments, made by tyro from dataclasses.

The flags of a method are the fields of its dataclass and of the dataclasses of `Task`.
"""

import ast
import dataclasses
import difflib
import inspect
import io
import json
import math
import re
import shutil
import sys
import textwrap
import types
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from decimal import Decimal
from functools import cache
from itertools import pairwise
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
from fcjax.privacy.guarantee import Privacy
from fcjax.settings import default, given, kind_of, shown
from fcjax.sweep.experiment import script_of
from fcjax.sweep.options import Options
from fcjax.sweep.plan import Task
from fcjax.sweep.processes import Processes

T = TypeVar("T")

# --- Ranges of numbers

MAX_NUMBERS = 10_000
"""The largest number of values of one range."""
ACCEPTED = {
    int: "whole numbers or ranges START:END without END, such as 0:16",
    float: "numbers or ranges START:END:STEP with END, such as 0:1:0.25",
}
"""The accepted values of a flag that takes several numbers, by type."""
REGISTRY = ConstructorRegistry()


@REGISTRY.primitive_rule
def several_numbers(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Lets a flag that takes several numbers also take ranges of numbers.

    Args:
        info: tyro's description of a flag.

    Returns:
        The parser of the flag; None leaves other flags to tyro.
    """
    kind = kind_of(info.type)
    if kind not in ACCEPTED:
        return None

    def parse(args: list[str]) -> tuple:
        if not args:
            raise ValueError(f"takes {ACCEPTED[kind]}, got nothing")
        return tuple(number for arg in args for number in numbers(arg, kind))

    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="N ..." if kind is int else "X ...",
        instance_from_str=parse,
        is_instance=lambda _: True,
        str_from_instance=lambda values: [f"{x:g}" for x in values],
    )


@REGISTRY.primitive_rule
def optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Removes None from the choices of a flag: None means that the flag is absent.

    Args:
        info: tyro's description of a flag.

    Returns:
        The parser of the flag; None leaves flags that do not accept None to tyro.
    """
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
    """Parses one number or one range of numbers.

    Args:
        text: one command-line argument, such as "7", "0:16" or "0:1:0.25".
        kind: int or float.

    Returns:
        The numbers.

    Raises:
        ValueError: the text is not a number or a range; the message says what is
            accepted.

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
        # A range of whole numbers excludes its end, as in Python.
        count = math.ceil(steps) if kind is int else math.floor(steps) + 1
    except (ValueError, ArithmeticError):
        pass
    if not 0 < count <= MAX_NUMBERS:
        raise ValueError(
            f"takes {ACCEPTED[kind]}, at most {MAX_NUMBERS:,} numbers; got {text!r}"
        )
    return [kind(first + i * step) for i in range(count)]


# --- The arguments of a command


@dataclasses.dataclass(frozen=True)
class MethodNames:
    """The choice of methods in a command that has several."""

    methods: tuple[str, ...] = ()
    """The methods to run. Each method writes into its own results folder."""


@cache
def arguments_of(script: Script) -> type:
    """Returns the dataclass of all arguments of a command, in groups.

    Args:
        script: the command with its methods.

    Returns:
        A dataclass with one field per group of arguments, and the field `config`.
    """
    first, is_single = script.methods[0], len(script.methods) == 1
    # Python requires that a class stands before its bases.
    classes = sorted(script.methods[::-1], key=lambda x: -len(x.__mro__))
    space: dict[str, Any] = {"__annotations__": {}, "__module__": first.__module__}
    if not is_single:
        names: Any = Literal[tuple(x.name for x in script.methods)]
        space["__annotations__"]["methods"] = tuple[names, ...]
        space["methods"] = tuple(x.name for x in script.default)
    bases = (*classes, *(() if is_single else (MethodNames,)))
    settings = dataclasses.dataclass(frozen=True)(type("Settings", bases, space))
    groups = {
        "method": settings,
        "data": Source,
        "clients": split_of(first),
        "privacy": Privacy,
        "run": Options,
        "processes": Processes,
    }
    text = (
        "The config.json of an earlier run. Its flags are used again; flags on this "
        "command line replace them."
    )
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
    """Returns `Split` with the defaults of a method, which `--help` then shows.

    Args:
        method: class of the method.

    Returns:
        A subclass of `Split`.
    """
    hints = get_type_hints(Split)
    space: dict[str, Any] = {"__annotations__": {}, "__doc__": Split.__doc__}
    for name, value in method.partition_defaults.items():
        space["__annotations__"][name] = hints[name]
        space[name] = value if value == () else default(value)
    return dataclasses.dataclass(frozen=True)(type("Split", (Split,), space))


class CommandLine(NamedTuple):
    """A parsed command line."""

    tasks: list[Task]
    """One task per method."""
    processes: Processes
    """The process that this is, if several processes run one program."""
    named: list[str]
    """The settings of methods that the command line names."""


def read(script: Script | type[Method], args: Sequence[str]) -> CommandLine:
    """Parses the command-line arguments of a method.

    The process ends after `--help`, and with one line if an argument is wrong.

    Args:
        script: the methods of the command, or its only method.
        args: the arguments without the command's name.

    Returns:
        The tasks, and the settings that were named.
    """
    if not isinstance(script, Script):
        script = script_with(script)
    arguments = arguments_of(script)
    try:
        if path := last_value(args, "--config"):
            args = [*config_arguments(Path(path), script, args), *args]
        values: Any = parse(arguments, args, description=about(script))
        named = [name for name in given(values.method) if name != "methods"]
        return CommandLine(tasks(script, values), values.processes, named)
    except ValueError as error:
        exit_with_error(str(error))


def tasks(script: Script, values: Any) -> list[Task]:
    """Returns one task per method that the parsed arguments name.

    Args:
        script: the command with its methods.
        values: parsed arguments, an instance of the dataclass of `arguments_of`.

    Returns:
        The tasks. With several methods, each task has its own folder in `out`.

    Raises:
        ValueError: no method is named, or a method is named twice.
    """
    methods = {x.name: x for x in script.methods}
    names = getattr(values.method, "methods", tuple(methods))
    if not names:
        raise ValueError(f"--methods needs at least one of {', '.join(methods)}")
    if len(set(names)) != len(names):
        raise ValueError(f"--methods takes each method once, got {' '.join(names)}")
    result = []
    for name in names:
        cls, options = methods[name], values.run
        settings = {
            x.name: getattr(values.method, x.name) for x in dataclasses.fields(cls)
        }
        method = cls(**settings)
        if len(methods) > 1 and options.out is not None:
            out = options.out / method.full_name()
            options = dataclasses.replace(options, out=out)
        result.append(
            Task(method, values.data, values.clients, options, values.privacy)
        )
    return result


def about(script: Script) -> str:
    """Returns the description of a command: the docstring of its methods' base class.

    The summary of the module comes first.

    Args:
        script: the command with its methods.

    Returns:
        The description as text with paragraphs.
    """
    shared = [set(x.__mro__) for x in script.methods]
    family = next(
        x for x in script.methods[0].__mro__ if all(x in each for each in shared)
    )
    module = inspect.getmodule(script.methods[0]).__doc__ or ""
    return module.partition("\n\n")[0] + "\n\n" + description_of(family)


def description_of(cls: type) -> str:
    """Returns the docstring of a class without its examples."""
    return inspect.cleandoc(cls.__doc__ or "").partition("\n\nExamples:")[0]


# --- Parsing and help texts by tyro


def parse(
    arguments: type[T],
    args: Sequence[str] | None = None,
    *,
    description: str = "",
) -> T:
    """Parses command-line arguments with tyro.

    After `--help` the process ends. After an error it ends with one line, instead of
    the framed message of tyro.

    Args:
        arguments: a dataclass whose fields are the flags.
        args: the command-line arguments; None takes the arguments of the process.
        description: the first paragraphs of the help text, by default the docstring of
            the dataclass.

    Returns:
        The dataclass with the values of the flags.
    """
    args = sys.argv[1:] if args is None else args
    if {"-h", "--help"} & {*args}:
        set_help(arguments)
    stdout, stderr = Screen(), io.StringIO()
    try:
        with redirect_stdout(stdout), redirect_stderr(stderr):
            return tyro.cli(
                arguments,
                args=args,
                prog=name_of_command(),
                registry=REGISTRY,
                description=joined(description or description_of(arguments)),
            )
    except SystemExit:
        if not stderr.getvalue():
            print(wrapped(stdout.getvalue()), end="")
            raise
    exit_with_error(line_of(stderr.getvalue(), flags_in(arguments)))


class Screen(io.StringIO):
    """A buffer for the help text that tyro formats as for the real standard output."""

    def __init__(self):
        super().__init__()
        self._stdout = sys.stdout

    @property
    def encoding(self) -> str:
        """The encoding of the standard output, which decides how boxes are drawn."""
        return self._stdout.encoding or "ascii"

    def isatty(self) -> bool:
        """Whether the standard output is a terminal, which decides about colours."""
        return self._stdout.isatty()


def set_help(arguments: type) -> None:
    """Sets the help text of each flag: the docstring under the field, on one line.

    A field in backquotes becomes a flag. tyro reads these docstrings, too, but it keeps
    their line breaks.

    Args:
        arguments: a dataclass of arguments. Dataclasses in its fields are changed as
            well.
    """
    texts: dict[str, str] = {}
    for cls in reversed(arguments.__mro__):
        try:
            source = textwrap.dedent(inspect.getsource(cls))
        except (OSError, TypeError):  # The class is made by this module.
            continue
        statements = getattr(ast.parse(source).body[0], "body", [])
        for field, text in pairwise(statements):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                docstring = getattr(text.value, "value", "")
                texts[ast.unparse(field.target)] = " ".join(str(docstring).split())

    def flag(match: re.Match[str]) -> str:
        return flag_of(match[1]) if match[1] in texts else match[0]

    for field in dataclasses.fields(arguments):  # pyright: ignore[reportArgumentType]
        if dataclasses.is_dataclass(field.default):
            set_help(type(field.default))
        elif field.name in texts:
            text = re.sub(r"`(\w+)`", flag, texts[field.name])
            field.metadata = types.MappingProxyType({"help": text})


def joined(text: str) -> str:
    """Returns a text with one line per paragraph, and one line per item of a list.

    The items are indented by two spaces, and their further lines by more.

    Args:
        text: the text, with an empty line between paragraphs.

    Returns:
        The text.
    """

    def joined_block(block: str) -> str:
        if "\n  " not in block:
            return " ".join(block.split())
        return re.sub(r"\n {3,}", " ", block)

    return "\n\n".join(map(joined_block, text.split("\n\n")))


def wrapped(text: str) -> str:
    """Returns a help text with long lines wrapped at the width of the terminal.

    Args:
        text: the help text, which may have colour codes.

    Returns:
        The text, without repeated empty lines.
    """
    width, lines = shutil.get_terminal_size().columns, []
    for line in re.sub(r"\n{3,}", "\n\n", text).split("\n"):
        if len(re.sub(r"\x1b\[[\d;]*m", "", line)) <= width:  # without colour codes
            lines.append(line)
            continue
        # In a list of files, the description of a file keeps its column.
        name = re.match(r" +\S+  +| +|usage: |", line)
        indent = " " * len(name[0] if name else "")
        lines += textwrap.wrap(
            line,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def line_of(framed: str, flags: Sequence[str]) -> str:
    """Returns an error message of tyro as one line without its frame.

    Args:
        framed: the message of tyro.
        flags: the flags of the command. For an unknown flag, the line names the flag
            with the most similar spelling.

    Returns:
        The error message.
    """
    _, first, *_ = re.split("[─-]{10,}", re.sub("[│╭╮╰╯]", " ", framed))
    line = " ".join(first.split()).rstrip(".")
    line = re.sub(r"^Error parsing (--[\w-]+):", r"\1", line)
    line = re.sub(r"^Error parsing \w+: ", "", line)
    line = re.sub(r"^Missing from .*?: (\S+).*", r"\1 is missing; see --help", line)
    line = re.sub(r"invalid literal for int.*:", "takes a whole number, got", line)
    line = line.replace("could not convert string to float:", "takes a number, got")
    if choice := re.match(
        r"invalid choice (.*) for argument '(.*)'\. .*\((.*)\)", line
    ):
        value, argument, choices = choice.groups()
        *others, last = choices.replace("'", "").rstrip(",").split(", ")
        accepted = f"{', '.join(others)} or {last}" if others else last
        return f"{argument} takes {accepted}, got {value}"
    if unknown := re.match("Unrecognized options: ([^, ]+)", line):
        if not unknown[1].startswith("-"):
            return (
                f"'{unknown[1]}' belongs to no flag, because flags such as --resume "
                "take no value; see --help"
            )
        near = difflib.get_close_matches(unknown[1], flags, n=1)
        hint = f"did you mean {near[0]}?" if near else "see --help"
        return f"unknown flag {unknown[1]}; {hint}"
    return line


def flags_in(arguments: type) -> list[str]:
    """Returns the flags of a dataclass, and of the dataclasses in it.

    Args:
        arguments: a dataclass of arguments.

    Returns:
        The flags in the order of the fields, for example "--num-rounds".
    """
    flags = []
    for field in dataclasses.fields(arguments):
        if dataclasses.is_dataclass(field.default):
            flags += flags_in(type(field.default))
        elif field.name != "natural":  # This field has no flag.
            flags.append(flag_of(field.name))
    return flags


def config_arguments(path: Path, script: Script, args: Sequence[str]) -> list[str]:
    """Returns the command-line arguments of the run that wrote a config.json.

    If the command line gives a rule of partition, the rule in the file and the settings
    of this rule are left out.

    Args:
        path: the config.json.
        script: the methods of the command.
        args: the command-line arguments, which take precedence.

    Returns:
        Flags and their values.

    Raises:
        ValueError: the file is not a config.json, or another command wrote it.
    """
    try:
        command = json.loads(path.read_text())["command"]
        name, settings = command["script"], dict(command["flags"])
    except OSError as error:
        raise ValueError(f"--config {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--config {path} is not the config.json of a run") from error
    expected = script_of(script.methods[0])
    if name != expected:
        raise ValueError(
            f"--config {path} belongs to a run of {name}, not of {expected}"
        )
    if len(script.methods) > 1 and "method" in command:
        settings.setdefault("methods", [command["method"]])
    flags = {arg.partition("=")[0] for arg in args}
    if flags & {*map(flag_of, RULES)}:
        of_rules = {*RULES, "class_range", "max_clients", "min_client_size"}
        settings = {k: x for k, x in settings.items() if k not in of_rules}
    if settings.keys() & {*RULES} - {"p"}:
        # Old files may hold both p and another rule, which is an error today.
        settings.pop("p", None)
    hints: dict[str, Any] = {}
    for field in dataclasses.fields(arguments_of(script)):
        if dataclasses.is_dataclass(field.default):
            hints |= get_type_hints(type(field.default))
    if unknown := settings.keys() - hints.keys():
        raise ValueError(
            f"--config {path} has unknown settings: {', '.join(sorted(unknown))}"
        )
    result = []
    for name, value in settings.items():
        flag = flag_of(name)
        if hints[name] is bool:
            result.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            values = value if isinstance(value, list) else [value]
            result += [flag, *map(str, values)]
    return result


def last_value(args: Sequence[str], flag: str) -> str:
    """Returns the last value of a flag in the arguments; "" if the flag is absent.

    Args:
        args: command-line arguments, without the name of the command.
        flag: the flag, for example "--config".

    Returns:
        The value, from "--config VALUE" or "--config=VALUE".
    """
    value, previous = "", ""
    for arg in args:
        if previous == flag:
            value = arg
        previous = arg
        if arg.startswith(f"{flag}="):
            value = arg.partition("=")[2]
    return value
