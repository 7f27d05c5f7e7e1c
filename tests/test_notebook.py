"""The notebook runs from top to bottom, and finds what it says."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "digits.ipynb"


def printed(notebook) -> str:
    """All that its cells printed."""
    return "".join(
        output.text
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "stream"
    )


@pytest.fixture(scope="module")
def notebook():
    return nbformat.read(NOTEBOOK, as_version=4)


def test_it_is_kept_without_outputs(notebook):
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_it_runs_and_finds_the_digits(notebook):
    options = {"metadata": {"path": str(NOTEBOOK.parent)}}
    NotebookClient(notebook, timeout=900, resources=options).execute()
    text = printed(notebook)

    def numbers(pattern: str) -> list[float]:
        return [float(x) for x in re.findall(pattern, text)]

    assert "tight -1.000" in text
    (random,) = numbers(r"random (-?[\d.]+)")
    (trained,) = numbers(r"after 50 steps (-?[\d.]+)")
    assert trained < random
    (nmi,) = numbers(r"CCFC: .*nmi ([\d.]+)")
    assert nmi > 0.6
    swept = numbers(r"fuzzifier [\d.]+: nmi ([\d.]+)")
    assert len(swept) == 5
    # A fuzzifier of 2 draws all centroids to the mean.
    assert max(swept) > 0.6 > swept[-1]
    assert len(numbers(r"4 runs, (\d+) rounds")) == 1
    (again,) = numbers(r"nmi ([\d.]+) of \d+ clients")
    assert again > 0.6
    images = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(images) == 4
