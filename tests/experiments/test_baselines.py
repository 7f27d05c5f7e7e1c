"""The script of the baselines: a folder a method, one table, one line of error."""

import csv

import baselines
import numpy as np
import pytest
from sklearn.cluster import KMeans

from fcjax import report, script
from tests.experiments.blobs import write_blobs


@pytest.fixture(scope="module")
def data_file(tmp_path_factory):
    """Four blobs of 30 rows."""
    folder = tmp_path_factory.mktemp("data")
    return write_blobs(folder, (30,) * 4, width=6, apart=12.0)


def run(data_file, out, **changes):
    args = baselines.Args(
        dataset=str(data_file), clients=(4,), plot=False, out=out, **changes
    )
    results = script.run(lambda: baselines.split(args))
    report.conclude_all(results, folder=out)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def all_methods(data_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    run(data_file, out, methods=tuple(baselines.BASELINES), p=(0.0, 1.0), seed=(0, 1))
    return out


def test_every_method_has_a_folder_and_the_table_has_all(all_methods):
    table = (all_methods / "table.md").read_text()
    for name in baselines.BASELINES:
        found = rows(all_methods / name / "results.csv")
        central = name in ("km", "fcm")
        # Central ones do not depend on p: two seeds, not two seeds at two p.
        assert len(found) == (2 if central else 4)
        assert table.count(f"| {name} ") == (1 if central else 2)
        for row in found:
            assert row["status"] == "ok"
            assert float(row["participation"]) == 1
            if name not in ("k-fed", "ffcm-mean"):  # which blobs of one class undo
                assert float(row["nmi"]) > 0.99


def test_the_loss_of_km_is_scikit_learns_inertia(data_file, all_methods):
    x = np.load(data_file)["x"]
    x = (x - x.min(axis=0)) / np.ptp(x, axis=0)  # as feature vectors are scaled
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    best = KMeans(4, n_init=10, random_state=0, tol=0).fit(x).inertia_ / 120
    losses = [float(r["loss"]) for r in rows(all_methods / "km" / "history.csv")]
    assert losses == pytest.approx([best, best], rel=1e-4)


def test_a_central_method_sees_what_is_left_where_clients_fail(data_file, tmp_path):
    flags = {"p": (0.0, 1.0), "failure_rate": (0.0, 0.5), "num_init": (2,)}
    run(data_file, tmp_path, methods=("km",), **flags)
    found = {
        (float(row["p"]), float(row["failure_rate"])): row
        for row in rows(tmp_path / "km" / "results.csv")
    }
    assert len(found) == 4
    assert {float(row["participation"]) for row in found.values()} == {0.5, 1.0}
    assert float(found[0.0, 0.5]["nmi"]) > 0.99
    # Two of four classes are left: four clusters share them, and the others join.
    assert float(found[1.0, 0.5]["nmi"]) < 0.95
    assert "surviving_nmi" in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("km", "km")}, "--methods takes different methods"),
        # Of several methods, before the first runs.
        ({"fuzzifier": (1.0,)}, "--fuzzifier must be above 1"),
        ({"local_clusters": (5,)}, "--local-clusters must be at most --clusters 4"),
        ({"methods": ("ffcm",), "num_rounds": (0,)}, "ffcm is given no round to run"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_written(
    data_file, tmp_path, changes, message
):
    with pytest.raises(SystemExit) as error:
        run(data_file, tmp_path, **changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []
