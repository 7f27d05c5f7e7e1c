"""The script of the baselines: a folder a method, one table, one line of error."""

import numpy as np
import pytest
from sklearn.cluster import KMeans

from experiments.reproduce import task_of
from fcjax.cli import main
from fcjax.sweep import report
from tests.experiments.blobs import rows, write_blobs


@pytest.fixture(scope="module")
def data_file(tmp_path_factory):
    """Four blobs of 30 rows."""
    folder = tmp_path_factory.mktemp("data")
    return write_blobs(folder, (30,) * 4, width=6, apart=12.0)


METHODS = ("km", "k-fed", "ffcm", "exact-fcm")


def run(data_file, out, **changes):
    flags = {"dataset": str(data_file), "clients": (4,), "plot": False, **changes}
    tasks = [
        task_of("baselines", {**flags, "methods": (name,), "out": out / name})
        for name in METHODS
    ]
    report.log_all_results(main.run(lambda: tasks), out=out)


@pytest.fixture(scope="module")
def all_methods(data_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    run(data_file, out, p=(0.0, 1.0), seed=(0, 1))
    return out


def test_each_method_has_a_folder_and_the_table_has_all(all_methods):
    table = (all_methods / "table.md").read_text()
    for name in METHODS:
        found = rows(all_methods / name / "results.csv")
        central = name == "km"
        # Central ones do not depend on p: two seeds, not two seeds at two p.
        assert len(found) == (2 if central else 4)
        assert table.count(f"| {name} ") == (1 if central else 2)
        for row in found:
            assert row["status"] == "ok"
            assert float(row["participation"]) == 1
            if name != "k-fed":  # which blobs of one class undo
                assert float(row["nmi"]) > 0.99


def test_the_loss_of_km_is_scikit_learns_inertia(data_file, all_methods):
    x = np.load(data_file)["x"]
    x = (x - x.min(axis=0)) / np.ptp(x, axis=0)  # as feature vectors are scaled
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    best = KMeans(4, n_init=10, random_state=0, tol=0).fit(x).inertia_ / 120
    losses = [float(r["loss"]) for r in rows(all_methods / "km" / "history.csv")]
    assert losses == pytest.approx([best, best], rel=1e-4)
