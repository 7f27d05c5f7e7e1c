"""What the documentation shows: its Python runs, its commands parse, its links hold.

A fenced block of docs/ that is tagged `python` is run, after those above it on its
page. One tagged `{.python .norun}` needs what a page cannot bring, and is parsed alone.
Of the README, whose blocks are excerpts, GIVEN says what an excerpt takes as given:
those that then have all they name are run, of the others the imports are.
"""

import ast
import builtins
import contextlib
import importlib
import io
import re
import shlex
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import tyro

from fcjax.__main__ import programs

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TEXTS = [
    *PAGES,
    *(
        ROOT / name
        for name in ("README.md", "BENCHMARKS.md", "CHANGELOG.md", "CONTRIBUTING.md")
        if (ROOT / name).exists()
    ),
]
FENCE = re.compile(r"^( *)(`{3,})([^\n`]*)\n(.*?)^\1\2 *$", re.M | re.S)
COMMAND = re.compile(
    r"^(?:\w+=\S+ )*(python experiments/\w+\.py|fcjax [a-z][a-z-]+ \S)"
)
LINK = re.compile(r"\]\(([^()\s]+)\)")
MAX_PICTURE = 150_000


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, *tags: str) -> list[str]:
    return [m[4] for m in FENCE.finditer(path.read_text()) if m[3].strip() in tags]


def bound(code: str) -> set[str]:
    """Names that the code gives a value anywhere, or takes as parameters."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
    return found


def needed(code: str) -> set[str]:
    """Names that the code reads and neither it nor Python has."""
    read = {
        node.id
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    return read - bound(code) - set(dir(builtins))


def commands(path: Path) -> list[str]:
    """Command lines in fenced blocks, continued ones joined, and in backticks."""
    text = path.read_text()
    fenced = "\n".join(m[4] for m in FENCE.finditer(text)).replace("\\\n", " ")
    inline = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    shown = [line.strip() for line in [*fenced.splitlines(), *inline]]
    return [line for line in shown if COMMAND.match(line)]


SHOWN = [*PAGES, ROOT / "README.md"]
COMMANDS = [(name_of(path), line) for path in SHOWN for line in commands(path)]


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_python_of_a_page_runs(path):
    names = {"__name__": name_of(path)}
    for block in blocks(path, "python"):
        exec(compile(block, name_of(path), "exec"), names)
    for block in blocks(path, "{.python .norun}"):
        ast.parse(block)


def test_no_block_is_python_by_another_tag():
    """Such a block would be shown as Python and not run."""
    tags = {m[3].strip() for path in PAGES for m in FENCE.finditer(path.read_text())}
    assert tags <= {"", "bash", "text", "python", "{.python .norun}"}


GIVEN = {
    "key": jax.random.key(0),
    "embedding": jax.random.normal(jax.random.key(1), (30, 4)),
    "predictions": jnp.ones((30, 4)),
    "projections": jnp.ones((30, 4)),
}
"""What the README's reader has: a key and outputs of a network."""


@pytest.mark.parametrize("code", blocks(ROOT / "README.md", "python"))
def test_python_of_the_readme_runs(code):
    is_whole = needed(code) <= set(GIVEN)
    reads_files = "export/" in code  # what `fcjax export` has written
    if is_whole and not reads_files:
        exec(compile(code, "README.md", "exec"), dict(GIVEN))
        return
    for node in ast.parse(code).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            if "torch" in ast.unparse(node):
                pytest.importorskip("torch")
            exec(ast.unparse(node), {})


def test_the_readme_has_an_example_that_is_whole():
    codes = blocks(ROOT / "README.md", "python")
    assert any(needed(code) <= set(GIVEN) and "export/" not in code for code in codes)


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_parses(page, line):
    """By the flags of its script, which is not run. What the reader is to fill in (DIR,
    METHOD) stands for itself where any word will do."""
    del page
    words = shlex.split(line, comments=True)
    while words[0] not in ("python", "fcjax"):
        words = words[1:]
    tools = programs(ROOT / "fcjax" / "runs")
    if words[0] == "fcjax" and words[1] in tools:
        name = f"fcjax.runs.{tools[words[1]].stem}"
    elif words[0] == "fcjax":
        name = programs(ROOT / "experiments")[words[1]].stem
    else:
        assert (ROOT / words[1]).exists()
        name = Path(words[1]).stem
    module = importlib.import_module(name)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            tyro.cli(module.Args, args=words[2:])
        except SystemExit as error:
            if error.code != 0:  # that of --help
                pytest.fail(said.getvalue())


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_relative_links_have_files(path):
    text = FENCE.sub("", path.read_text())
    targets = [t for t in LINK.findall(text) if not re.match(r"[a-z]+:|#", t)]
    missing = [t for t in targets if not (path.parent / t.split("#")[0]).exists()]
    assert not missing


def test_pictures_are_small_and_shown():
    shown = {
        (path.parent / target).resolve()
        for path in PAGES
        for target in LINK.findall(path.read_text())
    }
    pictures = list((ROOT / "docs" / "images").iterdir())
    assert pictures
    assert all(picture.stat().st_size < MAX_PICTURE for picture in pictures)
    assert set(pictures) <= shown


def test_pages_are_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    missing = [p for p in PAGES if str(p.relative_to(ROOT / "docs")) not in navigation]
    assert not missing


@pytest.mark.parametrize("name", ["losses", "cluster", "models", "data", "evaluation"])
def test_public_names_that_modules_have_too_are_in_the_reference(name):
    """`::: fcjax.losses` shows all of `__all__` but those: there the module is seen."""
    page = (ROOT / "docs" / "reference" / f"{name}.md").read_text()
    package = importlib.import_module(f"fcjax.{name}")
    modules = {path.stem for path in (ROOT / "fcjax" / name).glob("*.py")}
    shown = [f"::: fcjax.{name}.{x}.{x}" for x in modules & set(package.__all__)]
    assert set(shown) <= set(page.splitlines())
