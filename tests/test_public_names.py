"""The front of each folder: what it names is there once, and shows itself."""

import ast
import doctest
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import get_origin

import pytest

import fcjax

FOLDERS = [found.name for found in pkgutil.iter_modules(fcjax.__path__) if found.ispkg]
FRONTS = ["fcjax", *(f"fcjax.{folder}" for folder in FOLDERS)]
NAMES = [(front, name) for front in FRONTS for name in import_module(front).__all__]


def tree(module: str) -> ast.Module:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def string_below(front: str, name: str) -> str:
    """The string below an assignment, which Python itself does not keep."""
    imports = [node for node in tree(front).body if isinstance(node, ast.ImportFrom)]
    (home,) = [x.module for x in imports if name in [alias.name for alias in x.names]]
    for node, after in pairwise(tree(str(home)).body):
        is_given = re.match(rf"{name} ?[:=]", ast.unparse(node))
        if is_given and isinstance(after, ast.Expr):
            return ast.literal_eval(after.value)
    return ""


def test_the_folders_of_pieces_have_a_front():
    assert {"losses", "cluster", "nn", "data", "metrics"} <= set(FOLDERS)
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize(("front", "name"), NAMES)
def test_a_name_is_there_and_shows_itself(front, name):
    value = getattr(import_module(front), name)
    if not callable(value) or get_origin(value):  # a constant or alias of a type
        assert string_below(front, name).strip()
        return
    assert value.__doc__.strip()
    found = doctest.DocTestFinder(recurse=False).find(value, name)
    examples = [example for test in found for example in test.examples]
    assert [x for x in examples if not x.options.get(doctest.SKIP)]


def test_old_modules_work_and_warn_in_the_line_that_imports_them():
    old = {"evaluation": "metrics", "models": "nn"}
    lines = [f"from fcjax.{name} import *" for name in old]
    code = "\n".join([*lines, "print(nmi.__module__, MLP.__module__)"])
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert (
        process.stdout == f"{fcjax.metrics.nmi.__module__} {fcjax.nn.MLP.__module__}\n"
    )
    warned = [x for x in process.stderr.splitlines() if "Warning" in x]
    for number, (line, (name, new)) in enumerate(
        zip(warned, old.items(), strict=True), 1
    ):
        assert line.startswith(f"<string>:{number}: DeprecationWarning: fcjax.{name}")
        assert f"is now fcjax.{new};" in line
