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
        (match,) = re.findall(pattern, text)
        return [float(x) for x in match]

    chosen, mean = numbers(r"seed \d: nmi ([\d.]+) where the seeds have ([\d.]+)")
    assert chosen >= mean > 0.6
    first, second = numbers(r"\| nmi +\| ([\d.]+) +\| ([\d.]+) .*\| the first \|")
    assert first > second + 0.05
    assert "embedding (1797, 64)" in text
    shapes = next(
        x.data
        for x in outputs
        if x.output_type == "execute_result" and "'centers'" in x.data["text/plain"]
    )
    assert "'embedding': (1797, 64)" in shapes["text/plain"]
    assert "'centers': (10, 64)" in shapes["text/plain"]
    assert sum("image/png" in x.get("data", {}) for x in outputs) == 3
