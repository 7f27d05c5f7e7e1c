"""Sessions that meet something a test cannot make happen for real."""

import ccfc
import jax
import numpy as np
import pytest
import tyro

from fcjax import data, engine, session
from fcjax.grid import experiment
from fcjax.runs import draw

TINY = [
    "--limit=120",
    "--clients=3",
    "--pretrain-rounds=1",
    "--cluster-rounds=1",
    "--local-epochs=1",
    "--batch-size=20",
    "--latent-size=8",
    "--no-plot",
]


def prepare(out, *flags):
    args = tyro.cli(ccfc.Args, args=[f"--out={out}", *TINY, *flags])
    return experiment.prepare(args, ccfc.describe)


@pytest.fixture
def small_device(monkeypatch):
    """A device that takes two runs at a time; returns the sizes of the calls."""
    run, sizes = engine.Program.run, []

    def limited(program, grid, **options):
        sizes.append(len(grid.keys))
        if sizes[-1] > 2:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        return run(program, grid, **options)

    monkeypatch.setattr(engine.Program, "run", limited)
    return sizes


def test_calls_that_do_not_fit_are_halved(tmp_path, capsys, small_device):
    seeds = ["--seed", *map(str, range(4))]
    session.execute(prepare(tmp_path / "out", *seeds, "--runs-per-call=4"))
    assert small_device == [4, 2, 2]
    assert "out of memory with 4 runs a call: now 2" in capsys.readouterr().out
    assert prepare(tmp_path / "out", *seeds).groups == ()


def test_an_error_that_smaller_calls_do_not_mend_is_raised(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise jax.errors.JaxRuntimeError("INTERNAL: no")

    monkeypatch.setattr(engine.Program, "run", broken)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        session.execute(prepare(tmp_path / "out", "--seed", "0", "1"))


def test_clusters_of_each_client_have_the_names_of_its_classes():
    """In figures, where clients have clusters of their own; -1 stays nobody's."""
    labels = np.array([3, 3, 5, 5, 3, 3, 5, 5])
    dataset = data.Dataset("made", np.zeros((8, 2), np.float32), labels)
    holders = np.array([0, 0, 0, 0, 1, 1, 1, -1])
    clusters = np.array([0, 0, 1, 1, 1, 1, 0, -1])
    found = draw.matched_by_client(dataset, holders, clusters)
    np.testing.assert_array_equal(found, [3, 3, 5, 5, 3, 3, 5, -1])
