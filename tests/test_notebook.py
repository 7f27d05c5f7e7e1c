"""The notebook of the documentation runs from top to bottom and shows what it says."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.nightly
NOTEBOOK = Path(__file__).parents[1] / "docs" / "tutorials" / "digits.ipynb"


def test_it_has_no_stored_outputs_and_clusters_the_digits():
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    NotebookClient(notebook, timeout=900).execute()
    outputs = [x for cell in notebook.cells for x in cell.get("outputs", [])]
    text = "".join(x.text for x in outputs if x.output_type == "stream")
    ((chosen, mean),) = re.findall(r"NMI ([\d.]+), mean of the seeds: ([\d.]+)", text)
    assert 1 >= float(chosen) > 0.6
    assert 1 >= float(mean) > 0.6
    assert "embedding (1797, 64)" in text
    predicted, labels = re.findall(r"\[(\d+) +(\d+) +(\d+)\]", text)
    assert predicted == labels
    assert sum("image/png" in x.get("data", {}) for x in outputs) == 3
