"""Sessions that meet something a test cannot make happen for real."""

import jax
import numpy as np
import pytest

from fcjax import data, engine
from fcjax.results import drawing
from tests.sweep.drifting import prepare, run, vectors


def test_calls_that_do_not_fit_are_halved(tmp_path, capsys, monkeypatch):
    """On a device that takes two runs at a time."""
    run_call, sizes = engine.Program.run, []

    def limited(program, grid, **options):
        sizes.append(len(grid.keys))
        if sizes[-1] > 2:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return run_call(program, grid, **options)

    monkeypatch.setattr(engine.Program, "run", limited)
    path, seeds = vectors(tmp_path), {"seed": (0, 1, 2, 3)}
    out = run(tmp_path / "out", path, **seeds, runs_per_call=4)
    assert sizes == [4, 2, 2]
    assert "out of memory with 4 runs at a time: trying 2" in capsys.readouterr().out
    assert prepare(out, path, **seeds).batches == ()


def test_an_error_that_smaller_calls_do_not_mend_is_raised(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise jax.errors.JaxRuntimeError("INTERNAL: no")

    monkeypatch.setattr(engine.Program, "run", broken)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        run(tmp_path / "out", vectors(tmp_path), seed=(0, 1))


def test_clusters_of_each_client_have_the_names_of_its_classes():
    """In figures, where clients have clusters of their own; -1 stays nobody's."""
    labels = np.array([3, 3, 5, 5, 3, 3, 5, 5])
    dataset = data.Dataset("made", np.zeros((8, 2), np.float32), labels)
    holders = np.array([0, 0, 0, 0, 1, 1, 1, -1])
    clusters = np.array([0, 0, 1, 1, 1, 1, 0, -1])
    found = drawing.match_by_client(dataset, holders, clusters)
    np.testing.assert_array_equal(found, [3, 3, 5, 5, 3, 3, 5, -1])
