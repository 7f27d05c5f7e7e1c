"""The notebook runs from top to bottom, and finds what it says."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.nightly
NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "digits.ipynb"


def test_it_is_kept_without_outputs_and_finds_the_digits():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    options = {"metadata": {"path": str(NOTEBOOK.parent)}}
    NotebookClient(notebook, timeout=900, resources=options).execute()
    outputs = [x for cell in notebook.cells for x in cell.get("outputs", [])]
    text = "".join(x.text for x in outputs if x.output_type == "stream")

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
    assert sum("image/png" in x.get("data", {}) for x in outputs) == 4
