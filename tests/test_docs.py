"""What the documentation shows: its Python runs, its commands parse, its links hold.

A fenced block of docs/ that is tagged `python` is run, after those above it on its
page. One tagged `{.python .norun}` needs what a page cannot bring, and is parsed alone.
Of the README the last block is run; the others are excerpts, whose imports are.
"""

import ast
import contextlib
import importlib
import io
import re
import shlex
from pathlib import Path

import jax
import pytest

import fcjax
from experiments.spherical import Spherical
from fcjax.cli import arguments
from fcjax.cli.commands import PLANNING, programs
from fcjax.cli.tools import TOOLS
from fcjax.methods import SCRIPTS

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TEXTS = [*PAGES, *sorted(ROOT.glob("*.md"))]
FENCE = re.compile(r"^( *)(`{3,})([^\n`]*)\n(.*?)^\1\2 *$", re.M | re.S)
COMMAND = re.compile(
    r"(?:\w+=\S+ )*(python experiments/[\w/]+\.py|fcjax [a-z][a-z-]+ \S)"
)
LINK = re.compile(r"\]\(([^()\s]+)\)")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, *tags: str) -> list[str]:
    return [m[4] for m in FENCE.finditer(path.read_text()) if m[3].strip() in tags]


def commands(path: Path) -> list[str]:
    """Command lines in fenced blocks, continued ones joined, and in backticks."""
    text = path.read_text()
    fenced = "\n".join(m[4] for m in FENCE.finditer(text)).replace("\\\n", " ")
    inline = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    shown = [line.strip() for line in [*fenced.splitlines(), *inline]]
    return [line for line in shown if COMMAND.match(line)]


# Those of the figures in docs/benchmarks/ are of the commits beside them.
GUIDES = [path for path in PAGES if path.parent.name != "benchmarks"]
COMMANDS = {line for path in [*GUIDES, ROOT / "README.md"] for line in commands(path)}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_python_of_a_page_runs(path):
    names = {"__name__": name_of(path)}
    for block in blocks(path, "python"):
        exec(compile(block, name_of(path), "exec"), names)
    for block in blocks(path, "{.python .norun}"):
        ast.parse(block)


def test_no_block_is_python_by_another_tag():
    tags = {m[3].strip() for path in PAGES for m in FENCE.finditer(path.read_text())}
    assert tags <= {"", "bash", "text", "python", "{.python .norun}"}


def test_python_of_the_readme_runs():
    *excerpts, whole = blocks(ROOT / "README.md", "python")
    names = {}
    exec(compile(whole, "README.md", "exec"), names)
    start = names["network"].init(jax.random.key(0), names["x"])
    assert names["value"] < names["loss"](start, names["clusters"])  # it learns
    for node in ast.parse("\n".join(excerpts)).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(ast.unparse(node), {})


def test_figures_of_the_readme_stand_in_the_benchmarks():
    def figures(path: Path) -> set[str]:
        text, *_ = path.read_text().split("## Speed")
        rows = re.findall(r"^\|.*$", text, re.M)
        return {*re.findall(r"\b\d\.\d{3}\b", "".join(rows))}

    runs = (ROOT / "docs" / "benchmarks" / "runs").iterdir()
    known = set().union(*map(figures, [ROOT / "BENCHMARKS.md", *runs]))
    shown = figures(ROOT / "README.md")
    assert set() != shown <= known


def test_the_version_is_one():
    places = {"pyproject.toml": "version = ", "CITATION.cff": "version: "}
    for name, before in places.items():
        lines = (ROOT / name).read_text().replace('"', "").splitlines()
        assert f"{before}{fcjax.__version__}" in lines, name


@pytest.mark.parametrize("line", sorted(COMMANDS))
def test_a_command_parses(line):
    """By the flags of its script, which is not run. What the reader is to fill in (DIR,
    METHOD) stands for itself where any word will do."""
    words = shlex.split(line, comments=True)
    while words[0] not in ("python", "fcjax"):
        words = words[1:]
    if words[1] == "fit" or (words[1] == "deploy" and words[2] in SCRIPTS):
        del words[1]
    _, name, *flags = words
    path, name = Path(name), Path(name).stem.replace("_", "-")
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            if name in SCRIPTS or name == "spherical":
                arguments.read(SCRIPTS.get(name, Spherical), flags)
            elif name in TOOLS | PLANNING:
                arguments.parse((TOOLS | PLANNING)[name], flags)
            else:
                if path.suffix != ".py":
                    folder = ROOT / "experiments"
                    paths = programs(folder) | programs(folder / "benchmarks")
                    path = paths[name].relative_to(ROOT)
                module = ".".join(path.with_suffix("").parts)
                arguments.parse(importlib.import_module(module).Args, flags)
        except SystemExit as error:
            if error.code != 0:  # that of --help
                pytest.fail(said.getvalue())


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_relative_links_have_files(path):
    text = FENCE.sub("", path.read_text())
    targets = [t for t in LINK.findall(text) if not re.match(r"[a-z]+:|#", t)]
    missing = [t for t in targets if not (path.parent / t.split("#")[0]).exists()]
    # The build of the site makes these (docs/hooks.py), and checks the links to them.
    made = {"matrix/matrix.html", "matrix/matrix.parquet"}
    assert set(missing) <= (made if path.name == "matrix.md" else set())


def test_pictures_are_small_and_shown_and_pages_are_in_the_navigation():
    shown = {
        (path.parent / target).resolve()
        for path in PAGES
        for target in LINK.findall(path.read_text())
    }
    pictures = {*(ROOT / "docs" / "images").glob("*.png")}
    assert all(picture.stat().st_size < 150_000 for picture in pictures)
    assert set() != pictures <= shown
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert all(str(p.relative_to(ROOT / "docs")) in navigation for p in PAGES)


@pytest.mark.parametrize("name", ["losses", "cluster", "nn", "data", "metrics"])
def test_public_names_that_modules_have_too_are_in_the_reference(name):
    # `::: fcjax.losses` shows all of `__all__` but those: there the module is seen.
    page = (ROOT / "docs" / "reference" / f"{name}.md").read_text()
    package = importlib.import_module(f"fcjax.{name}")
    modules = {path.stem for path in (ROOT / "fcjax" / name).glob("*.py")}
    shown = [f"::: fcjax.{name}.{x}.{x}" for x in modules & set(package.__all__)]
    assert set(shown) <= set(page.splitlines())
