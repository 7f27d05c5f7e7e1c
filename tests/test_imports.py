"""Who imports whom, read from the files: one way, without a circle."""

import ast
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(
        ".__init__"
    ): path
    for path in (ROOT / "fcjax").rglob("*.py")
}
LAYERS = (
    {"types", "ragged", "settings", "shapes"},
    {"parallel"},
    {"losses", "cluster", "nn", "data", "metrics", "federated", "privacy"}
    | {"results.tables", "results.figures"},
    {"algorithms"},
    {"engine", "methods"},
    {"results"},
    {"sweep"},
    {"sweep.report", "sweep.train"},
    {"deploy"},
    {"api"},
    {"evaluation", "models"},
    {"cli", "__main__"},
)
"""Files and folders of the package, the lowest first."""


def imported(name: str) -> set[str]:
    """The modules that a file names in its imports, those inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            each = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {x if x in FILES else str(node.module) for x in each}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


GRAPH = {name: imported(name) for name in FILES}


def height(name: str) -> int:
    """Returns the layer of a file, by the longest entry that names it or its folder."""
    file = name.removeprefix("fcjax.")
    places = {x: i for i, rooms in enumerate(LAYERS) for x in rooms}
    named = [x for x in places if file == x or file.startswith(x + ".")]
    return places[max(named, key=len)]


def test_there_is_no_circle():
    # A package's front imports its files, and they may import others of its front.
    # The front of all, `fcjax`, imports when a name of it is first used.
    graph = {
        name: needs & FILES.keys() - {name, "fcjax"}
        for name, needs in GRAPH.items()
        if name != "fcjax"
    }
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("name", [name for name in FILES if name != "fcjax"])
def test_a_file_imports_nothing_above_it(name):
    needs = GRAPH[name] & FILES.keys() - {"fcjax"}
    assert not {x for x in needs if height(x) > height(name)}


def test_results_are_read_without_code_that_trains():
    rooms = ("sweep", "algorithms", "methods", "cli")
    above = tuple(f"fcjax.{room}" for room in rooms)
    files = (name for name in GRAPH if name.startswith("fcjax.results"))
    assert not {x for name in files for x in GRAPH[name] if x.startswith(above)}


def test_networks_alone_import_flax():
    users = {
        name
        for name, needs in GRAPH.items()
        if any(x.split(".")[0] == "flax" for x in needs)
    }
    assert users
    assert all(name.startswith("fcjax.nn") for name in users)
