"""Writes the parts of the documentation that are made from code and results.

A line `<!-- settings: CCFC -->` of a page becomes a table of the settings of
`fcjax.methods.CCFC`: its flags, defaults and documentation. The table of all methods
for the browser is made from benchmarks/matrix/matrix.csv.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any, get_type_hints

import pandas as pd
from mkdocs.structure.files import File

from experiments.matrix import page
from fcjax import methods

PLACEHOLDER = re.compile(r"^<!-- settings: (\w+) -->$", re.M)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces the placeholders of a page. MkDocs calls it for every page."""
    return PLACEHOLDER.sub(lambda x: settings_table(getattr(methods, x[1])), markdown)


def on_files(files: Any, config: Any) -> None:
    """Adds matrix.html and matrix.parquet. MkDocs calls it after it found the files."""
    folder = Path(config["docs_dir"]) / "benchmarks" / "matrix"
    frame = pd.read_csv(folder / "matrix.csv")
    made = {
        "matrix.html": page.html(frame, folder),
        "matrix.parquet": frame.to_parquet(index=False),
    }
    for name, content in made.items():
        path = f"benchmarks/matrix/{name}"
        files.append(File.generated(config, path, content=content))


def settings_table(method: type) -> str:
    """Returns a Markdown table with one row per setting of a method."""
    hints, texts = get_type_hints(method, include_extras=True), field_texts(method)
    rows = ["| flag | default | meaning |", "| --- | --- | --- |"]
    for field in dataclasses.fields(method):
        flag = "--" + field.name.replace("_", "-")
        default = default_of(field, hints[field.name])
        rows.append(f"| `{flag}` | {default} | {texts.get(field.name, '')} |")
    return "\n".join(rows)


def field_texts(cls: type) -> dict[str, str]:
    """Returns the string under each field of a dataclass and of its bases."""
    texts = {}
    for base in reversed(cls.__mro__[:-1]):
        tree = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                name, value = ast.unparse(field.target), ast.literal_eval(text.value)
                texts[name] = " ".join(value.split()).replace("|", "\\|")
    return texts


def default_of(field: dataclasses.Field, hint: Any) -> str:
    """Returns the default that `--help` shows."""
    for mark in getattr(hint, "__metadata__", ()):
        text = getattr(mark, "help_behavior_hint", None)
        if text:
            return text.removeprefix("(default: ").removesuffix(")")
    value = field.default
    values = value if isinstance(value, tuple) else (value,)
    return ", ".join(str(x) for x in values) or "none"
