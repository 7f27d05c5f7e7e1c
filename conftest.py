"""Fixtures for doctests: a finished run of experiments/spherical.py."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Returns a folder with the results folder runs/spherical.

    The run has 60 vectors and four clients.
    """
    from experiments import spherical
    from fcjax.sweep import experiment, train
    from fcjax.sweep.plan import Task

    folder = tmp_path_factory.mktemp("examples")
    labels = np.repeat([0, 1, 2], 20)
    noise = np.random.default_rng(0).normal(scale=0.1, size=(60, 2))
    x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])[labels] + noise
    np.savez(folder / "rows.npz", x=x, y=labels)
    flags = {"dataset": str(folder / "rows.npz"), "clients": (4,), "plot": False}
    flags |= {"p": (0.25,), "out": folder / "runs" / "spherical"}
    train.execute(experiment.prepare(Task.of(spherical.Spherical, **flags)))
    return folder


@pytest.fixture(autouse=True)
def _change_to_runs(request):
    """Runs a doctest that reads runs/spherical in the folder of that run."""
    if isinstance(request.node, pytest.DoctestItem) and "runs/spherical" in "".join(
        example.source for example in request.node.dtest.examples
    ):
        folder = request.getfixturevalue("runs")
        request.getfixturevalue("monkeypatch").chdir(folder)
