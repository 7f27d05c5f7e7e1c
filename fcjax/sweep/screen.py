"""What `--help` shows of a script: its own flags, and where the common ones are."""

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro
from rich.console import Console
from rich.table import Table

from fcjax.settings import kind_of
from fcjax.sweep.ending import name_of_command
from fcjax.sweep.flags import GROUPS, Common, flag_of

SHORT, OWN, ALL = "short", "own", "all"
CALLED = {int: "N", float: "X", Path: "PATH", str: "TEXT"}
"""What stands for a value."""
WIDEST = 34
"""Columns of a flag; the more is left to what is said."""


def asked(words: Sequence[str]) -> str:
    """Returns what a command line asks to be told of: all flags, those of a group, the
    script's own, or those in short; nothing where it does not ask.

    Raises:
        ValueError: there is no such group.
    """
    for word, name in pairwise([*words, "-"]):
        if word not in ("-h", "--help"):
            continue
        if name.startswith("-"):
            return SHORT
        if name not in (OWN, *GROUPS, ALL):
            accepted = ", ".join((OWN, *GROUPS, ALL))
            raise ValueError(f"--help takes {accepted}, or nothing, got {name!r}")
        return name
    return ""


def show(flags: type[Common], which: str) -> None:
    """Prints what `asked` returns of a script's dataclass of flags."""
    bases = flags.__mro__[: flags.__mro__.index(Common)]
    fields = {x.name for x in dataclasses.fields(flags)} - {"preset"}
    own = {name for cls in bases for name in names(cls)} & fields
    about = [" ".join(x.split()) for x in told(flags).split("\n\n")]
    console = Console(highlight=False, markup=False)
    with console.capture() as captured:
        console.print(f"usage: {name_of_command()} FLAGS\n")
        if which == SHORT:
            console.print(about[0], "\n")
            console.print(in_short(flags, own, console.width))
            console.print(
                "\nEvery script has these, too. `--help own` says more of those above, "
                f"`--help {next(iter(GROUPS))}` of a group, `--help all` of all:\n"
            )
            console.print(groups())
        if which in (OWN, ALL):
            console.print(*about, sep="\n\n", end="\n\n")
            console.print(in_full(flags, own))
        for name, group in GROUPS.items():
            if which in (name, ALL):
                console.print(f"\n{name}: {first_line(group)}\n")
                console.print(in_full(flags, names(group)))
    print(re.sub(r" +$", "", captured.get(), flags=re.MULTILINE), end="")


def first_line(group: type) -> str:
    return (group.__doc__ or "").partition("\n")[0]


def told(flags: type) -> str:
    """Returns what a script says of itself: its file's first words, and those of its
    flags' class where they have any."""
    first = (sys.modules[flags.__module__].__doc__ or "").partition("\n\n")[0]
    own = inspect.cleandoc(flags.__doc__ or "")
    is_made = own.startswith(f"{flags.__name__}(")  # by dataclass, of the fields
    return first if is_made else f"{first}\n\n{own}"


def in_short(flags: type[Common], wanted: Collection[str], width: int) -> str:
    """Returns a line for each flag that is wanted, cut where it is too long."""
    hints, texts = get_type_hints(flags, include_extras=True), said(flags)
    rows = []
    for field in dataclasses.fields(flags):
        if field.name in wanted:
            hint = hints[field.name]
            flag = flag_of(field.name, is_switch=hint is bool)
            default = cut(stands_for(hint, field.default), 12)
            rows.append((flag, default, texts.get(field.name, "")))
    first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
    lines = (f"  {a:{first}}  {b:{second}}  {c}" for a, b, c in rows)
    return "\n".join(cut(line, width) for line in lines)


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def groups() -> Table:
    """Returns the groups of the flags of every script, what each is for, and its
    flags."""
    lines = Table.grid(padding=(0, 2))
    for name, group in GROUPS.items():
        listed = " ".join(map(flag_of, names(group)))
        lines.add_row("", name, f"{first_line(group)} {listed}")
    return lines


def in_full(flags: type[Common], wanted: Collection[str]) -> Table:
    """Returns all that is said of each flag that is wanted."""
    hints, texts = get_type_hints(flags, include_extras=True), said(flags)
    lines = Table.grid("", "", "", padding=(0, 2))
    lines.columns[1].max_width = WIDEST
    for field in dataclasses.fields(flags):
        if field.name not in wanted:
            continue
        hint = hints[field.name]
        called, choices = signature(hint)
        default = stands_for(hint, field.default)
        about = [
            texts.get(field.name, ""),
            choices,
            default and f"(default: {default})",
        ]
        flag = flag_of(field.name, is_switch=hint is bool)
        lines.add_row("", f"{flag} {called}", " ".join(filter(None, about)))
    return lines


def names(cls: type) -> list[str]:
    """Returns the flags that a class itself declares, but for those that are none."""
    hints = inspect.get_annotations(cls).items()
    none = tyro.conf.Fixed
    return [name for name, x in hints if none not in getattr(x, "__metadata__", ())]


def signature(hint: Any) -> tuple[str, str]:
    """Returns what stands for the value of a flag, and its choices where they are too
    many for that.

    Examples:
        >>> signature(tuple[int, ...]), signature(Literal["a", "b"] | None)
        (('N ...', ''), ('a|b', ''))
    """
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, types.UnionType) and kind_of(hint):
        return signature(tuple[kind_of(hint), ...])  # pyright: ignore[reportInvalidTypeForm]
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [x for x in get_args(hint) if get_origin(x) is Literal]
        every = tuple(value for kind in kinds for value in get_args(kind))
        return signature(Literal[every] if every else get_args(hint)[0])
    if get_origin(hint) is tuple:
        first, second = get_args(hint)
        called, choices = signature(first)
        return f"{called} {'...' if second is ... else called}", choices
    if get_origin(hint) is Literal:
        every = list(map(str, get_args(hint)))
        short = "|".join(every)
        return (
            (short, "") if len(short) < 20 else ("NAME", f"One of {', '.join(every)}.")
        )
    return CALLED.get(hint, "yes|no" if hint is not bool else ""), ""


def stands_for(hint: Any, default: Any) -> str:
    """Returns what a flag that is not given stands for, nothing where that is none."""
    for extra in getattr(hint, "__metadata__", ()):
        if told := getattr(extra, "help_behavior_hint", None):
            return told.removeprefix("(default: ").removesuffix(")")
    if isinstance(default, bool):
        default = "yes" if default else "no"
    values = default if isinstance(default, tuple) else (default,)
    told = " ".join(f"{x:g}" if isinstance(x, float) else str(x) for x in values)
    return "" if told == "None" else told


def said(cls: type) -> dict[str, str]:
    """Returns what the source of a class, and of those that it is made of, says of its
    fields: in a string below, or in comments that begin with #: above."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):  # it was made from others
            continue
        if not dataclasses.is_dataclass(base):
            continue
        lines, (tree,) = source.splitlines(), ast.parse(source).body
        assert isinstance(tree, ast.ClassDef)
        for node, after in pairwise([*tree.body, ast.Pass()]):
            if not isinstance(node, ast.AnnAssign):
                continue
            name, above = ast.unparse(node.target), node.lineno - 1
            while lines[above - 1].strip().startswith("#:"):
                above -= 1
            told = " ".join(x.strip()[2:] for x in lines[above : node.lineno - 1])
            if isinstance(after, ast.Expr):
                told = ast.literal_eval(after.value)
            found[name] = " ".join(told.split())
    return found
