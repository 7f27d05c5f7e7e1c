"""A results folder is one experiment: what a second command may add to it."""

import csv

import pytest

from fcjax.methods.base import MethodSpec
from fcjax.results import store
from tests.sweep import drifting
from tests.sweep.drifting import prepare, run, vectors


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return vectors(tmp_path_factory.mktemp("data"))


def columns(folder, *names):
    with (folder / "results.csv").open(newline="") as file:
        return [tuple(float(row[n]) for n in names) for row in csv.DictReader(file)]


def by_clients(args, dataset, num_clients, num_clusters) -> MethodSpec:
    """The default rate follows from the number of clients."""
    method = drifting.describe(args, dataset, num_clients, num_clusters)
    settings = {**method.settings, "rate": (num_clients / 100,)}
    return method._replace(settings=settings)


def test_values_of_axes_and_seeds_may_be_added(data, tmp_path):
    out = run(tmp_path / "out", data, rate=(0.5,))
    run(out, data, rate=(0.25,), p=(1.0,), seed=(1,))
    expected = [(0.25, 0.5, 0), (1, 0.25, 1)]
    assert columns(out, "p", "rate", "seed") == expected


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ({}, {"rate": (0.5,)}, r"\(only this command gives rate\)"),
        ({"rate": (0.5,)}, {}, r"\(only the earlier command gives rate\)"),
        ({}, {"preset": "smoke"}, r"\(preset: default there, smoke here\)"),
        ({}, {"failure_rate": (0.0,)}, "only this command gives failure_rate"),
        ({}, {"alpha": (1.0,)}, "partition: p there, alpha here"),
    ],
)
def test_another_experiment_is_refused(data, tmp_path, first, second, told):
    out = run(tmp_path / "out", data, **first)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    with pytest.raises(ValueError, match=told) as error:
        prepare(out, data, **second)
    assert "\n" not in str(error.value)
    after = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert after == before


def test_a_default_that_follows_from_an_axis_is_reported_and_is_no_axis(data, tmp_path):
    out = run(tmp_path / "out", data, describe=by_clients, clients=(2, 3))
    run(out, data, describe=by_clients, clients=(4,), seed=(0, 1))
    expected = [(2, 0.02, 0), (3, 0.03, 0), (4, 0.04, 0), (4, 0.04, 1)]
    assert sorted(columns(out, "clients", "rate", "seed")) == expected
    folder = store.read(out)
    assert folder.names == ("p", "clients", "seed")
    assert folder.settings == ["p", "clients"]
    with pytest.raises(ValueError, match="takes p=VALUE clients=VALUE seed=VALUE"):
        folder.point(rate=0.03)


def test_a_default_that_changes_at_the_same_axis_values_is_refused(data, tmp_path):
    out = run(tmp_path / "out", data, describe=by_clients)
    told = "holds runs whose default rate is 0.03, and this command has 0.3;"
    with pytest.raises(ValueError, match=told):
        prepare(out, data, seed=(1,))  # its default is 0.3 for any number of clients


def test_a_selection_that_leaves_several_runs_names_what_they_differ_in(data, tmp_path):
    out = run(tmp_path / "out", data, rate=(0.5, 0.25), seed=(0, 1))
    folder = store.read(out)
    told = r"has 2 runs with seed=0; choose one by its value of rate \(0.25, 0.5\)"
    for select in (folder.assignments, folder.model, folder.point):
        with pytest.raises(ValueError, match=told):
            select(seed=0)
    told = (
        r"has 4 runs; choose one by its value of rate \(0.25, 0.5\) and seed \(0, 1\)"
    )
    with pytest.raises(ValueError, match=told):
        folder.point()
    assert folder.point(seed=0, rate="0.5") == {
        **{"p": 0.25, "clients": 3, "rate": 0.5, "seed": 0}
    }


def test_a_folder_of_an_earlier_version_is_read_and_not_added_to(data, tmp_path):
    out = run(tmp_path / "out", data)
    path = out / "config.json"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"preset"' not in line))
    assert len(store.read(out).rows) == 1
    with pytest.raises(ValueError, match="holds results of an earlier fcjax"):
        prepare(out, data)
