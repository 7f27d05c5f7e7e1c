"""The script of the baselines: a folder a method, one table, one line of error."""

import csv
import dataclasses
import json

import baselines
import numpy as np
import pytest
from sklearn.cluster import KMeans

from fcjax import report, script


@pytest.fixture(scope="module")
def data_file(tmp_path_factory):
    """Four blobs of 30 rows in the positive quadrant."""
    labels = np.repeat(np.arange(4), 30)
    noise = np.random.default_rng(0).normal(size=(120, 6))
    file = tmp_path_factory.mktemp("data") / "blobs.npz"
    np.savez(file, x=20 + noise + 12 * np.eye(6)[labels], y=labels)
    return file


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


def test_the_configuration_holds_the_flags_of_the_method_alone(all_methods):
    config = json.loads((all_methods / "k-fed" / "config.json").read_text())
    assert config["unit_length"] is True
    assert config["inherit"] is True
    assert "fuzzifier" not in config
    assert "local_clusters" in config["swept"]
    assert config["method"] == "k-fed"


def test_the_same_command_again_runs_nothing(data_file, all_methods, capsys):
    before = (all_methods / "ffcm" / "history.csv").read_text()
    run(data_file, all_methods, methods=("ffcm",), p=(0.0, 1.0), seed=(0, 1))
    assert "reusing 4 finished runs" in capsys.readouterr().out
    assert (all_methods / "ffcm" / "history.csv").read_text() == before


def test_a_central_method_sees_what_is_left_where_clients_fail(data_file, tmp_path):
    run(
        data_file,
        tmp_path,
        methods=("km",),
        p=(0.0, 1.0),
        failure_rate=(0.0, 0.5),
        num_init=(2,),
    )
    found = {
        (float(row["p"]), float(row["failure_rate"])): row
        for row in rows(tmp_path / "km" / "results.csv")
    }
    assert len(found) == 4
    assert {float(row["participation"]) for row in found.values()} == {0.5, 1.0}
    assert float(found[0.0, 0.5]["nmi"]) > 0.99
    # Two of four classes are left: four clusters share them, and the others join.
    assert float(found[1.0, 0.5]["nmi"]) < 0.95
    table = (tmp_path / "table.md").read_text()
    assert "surviving_nmi" in table


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("km", "km")}, "--methods takes different methods"),
        ({"methods": ()}, "--methods takes different methods"),
        ({"methods": ("fcm",), "fuzzifier": (1.0,)}, "--fuzzifier must be above 1"),
        (
            {"methods": ("k-fed",), "local_clusters": (5,)},
            "--local-clusters must be at most --clusters 4, got 5",
        ),
        ({"methods": ("ffcm",), "num_rounds": (0,)}, "ffcm is given no round to run"),
        ({"methods": ("km",), "num_init": (0,)}, "--num-init must be at least 1"),
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


def test_one_wrong_method_stops_all_before_the_first_runs(data_file, tmp_path):
    with pytest.raises(SystemExit, match="--fuzzifier must be above 1"):
        run(data_file, tmp_path, methods=("km", "ffcm"), fuzzifier=(0.5,))
    assert list(tmp_path.iterdir()) == []


def test_flags_of_a_method_are_those_of_the_script():
    names = {field.name for field in dataclasses.fields(baselines.Args)}
    for baseline in baselines.BASELINES.values():
        assert set(baseline.defaults) <= names
