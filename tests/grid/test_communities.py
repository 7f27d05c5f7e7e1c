"""Whose clusters are the same: what is made of it by hand, and what a session keeps,
scores and prints of a method that finds out."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fcjax import session
from fcjax.grid import communities, experiment
from fcjax.grid.communities import Kept
from fcjax.runs import draw, shards
from fcjax.runs.finished import Finished
from tests.own_clusters import Args, corners, describe

COLLECT = Path(__file__).parents[2] / "experiments" / "collect.py"


# --- by hand

# Two clients of two clusters, of a third that is empty; row 4 is both clients'.
ROWS = np.array([[0, 1, 4, 0], [2, 3, 4, 5]])
MASK = np.array([[True, True, True, False], [True] * 4])
CLUSTER = np.array([[0, 1, 1, -1], [2, 2, 0, 0]])
COMMUNITY = np.array([[4, -1, -1], [7, 4, -1]])


def by_hand(edges=()):
    graph = np.zeros((2, 3, 2, 3), bool)
    for one, other in edges:
        graph[one + other] = graph[other + one] = True
    return Kept(ROWS, MASK, CLUSTER, COMMUNITY, graph, CLUSTER)


def test_an_isolated_cluster_is_a_cluster_of_its_own():
    """The community 4; then numbers from 8 on, for 1 of client 0 and 2 of client 1."""
    found = communities.taken_globally(CLUSTER, COMMUNITY)
    np.testing.assert_array_equal(found, [[4, 9, 9, -1], [13, 13, 7, 7]])
    nobody = communities.taken_globally(CLUSTER, np.full((2, 3), -1))
    np.testing.assert_array_equal(nobody, [[0, 1, 1, -1], [5, 5, 3, 3]])


def test_communities_of_examples_go_through_client_and_cluster():
    client = np.array([0, 0, 1, 1, 0, 1, -1, 1])
    cluster = np.array([0, 1, 1, 2, 1, 0, -1, -1])
    found = communities.of_examples(COMMUNITY, client, cluster)
    np.testing.assert_array_equal(found, [4, -1, 4, -1, -1, 7, -1, -1])


def test_the_graph_is_of_clusters_that_are_not_empty():
    """They are 0 and 1 of client 0, 0 and 2 of client 1. Rows 0 to 3 have the classes
    8, 6, 6 and 6, row 4 has class 8, row 5 none: client 0's cluster 1 is of 6 and 8,
    so it takes 6, and the 8 is cluster 0's."""
    one = by_hand([((0, 1), (1, 2)), ((0, 0), (1, 1))])
    got = communities.graph(one, np.array([8, 6, 6, 6, 8]))
    np.testing.assert_array_equal(got.sizes, [1, 2, 2, 2])
    np.testing.assert_array_equal(got.groups, [8, 6, 8, 6])
    expected = np.zeros((4, 4), bool)
    expected[1, 3] = expected[3, 1] = True
    np.testing.assert_array_equal(got.edges, expected)


def test_a_cluster_beyond_the_classes_matches_none():
    got = communities.graph(by_hand(), np.full(5, 3))
    # Of client 0 the larger one has the class, of client 1 the one of rows 2 and 3.
    np.testing.assert_array_equal(got.groups, [-1, 3, -1, 3])


def test_without_labels_the_graph_s_parts_are_its_groups():
    got = communities.graph(by_hand([((0, 1), (1, 2)), ((0, 1), (1, 0))]), None)
    first, *others = got.groups
    assert first == -1
    assert len(set(others)) == 1
    assert others[0] >= 0


# --- a session


def prepare(folder, **flags):
    labels = corners(folder / "corners.npz")
    flags = {
        "dataset": str(folder / "corners.npz"),
        "clients": (4,),
        "overlap": (0.5,),
        "class_range": (2, 3),
        "samples_per_class": 6,
        "seed": (0, 1),
        "out": folder / "out",
        "plot": False,
        "runs_per_call": 2,
        **flags,
    }
    return experiment.prepare(Args(**flags), describe), labels


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ended")
    prepared, labels = prepare(folder)
    session.execute(prepared)
    return prepared, labels, folder


def rows_of(folder, name="results.csv"):
    with (folder / name).open(newline="") as file:
        return list(csv.DictReader(file))


def runs_of(prepared):
    (group,) = prepared.groups
    return list(zip(group.points, group.partitions, strict=True))


def holders_of(partition, labels):
    """By class, how many clients hold it."""
    held = [np.unique(labels[rows]) for rows in partition.clients]
    return np.bincount(np.concatenate(held), minlength=4)


def test_clients_that_share_rows_are_scored_and_counted(ended):
    prepared, labels, _ = ended
    for row, (_, partition) in zip(
        rows_of(prepared.results.directory), runs_of(prepared), strict=True
    ):
        numbers = holders_of(partition, labels)
        assert row["scope"] == "client-mean"
        for name in ("acc", "client_acc", "global_acc", "global_nmi", "initial_acc"):
            assert float(row[name]) == 1
        assert float(row["communities"]) == (numbers > 1).sum()
        assert float(row["isolated"]) == (numbers == 1).sum()
        assert float(row["iteration"]) == 2
        assert float(row["initial_communities"]) == 0
        assert float(row["initial_isolated"]) == sum(partition.local_clusters)
        assert row["initial_iteration"] == ""
        assert float(row["left_out"]) == len(partition.left_out)
        assert row["status"] == "ok"


def test_a_run_s_communities_are_those_of_the_classes(ended):
    prepared, labels, _ = ended
    finished = Finished(prepared.results.directory)
    for point, partition in runs_of(prepared):
        got = finished.communities(point)
        numbers = holders_of(partition, labels)
        classes = np.full(got.community.shape, -1)
        for client, rows in enumerate(partition.clients):
            own = got.mask[client]
            np.testing.assert_array_equal(got.indices[client, own], rows)
            np.testing.assert_array_equal(
                got.graph_cluster[client, own], got.cluster[client, own]
            )
            assert (got.cluster[client, ~own] == -1).all()
            assert (got.graph_cluster[client, ~own] == -1).all()
            classes[client, got.cluster[client, own]] = labels[rows]
        same = classes[:, :, None, None] == classes
        same &= (classes >= 0)[:, :, None, None]
        clients = np.arange(4)
        same &= (clients[:, None] != clients)[:, None, :, None]
        np.testing.assert_array_equal(got.edges, same)
        shared = np.isin(classes, np.flatnonzero(numbers > 1))
        np.testing.assert_array_equal(got.community >= 0, shared)
        for c in np.flatnonzero(numbers > 1):
            assert len(np.unique(got.community[classes == c])) == 1
        assert len(np.unique(got.community[shared])) == (numbers > 1).sum()


def test_assignments_tell_the_first_holder_and_the_community(ended):
    prepared, labels, _ = ended
    finished = Finished(prepared.results.directory)
    with np.load(prepared.results.directory / "assignments.npz") as file:
        of_runs = file["community"]
    for (point, partition), found in zip(runs_of(prepared), of_runs, strict=True):
        client, cluster = finished.assignments(point)
        for row in range(len(labels)):
            holders = [i for i, rows in enumerate(partition.clients) if row in rows]
            assert client[row] == (holders[0] if holders else -1)
        numbers = holders_of(partition, labels)
        held = client >= 0
        np.testing.assert_array_equal(cluster >= 0, held)
        np.testing.assert_array_equal(found >= 0, held & (numbers[labels] > 1))
        for c in np.flatnonzero(numbers > 1):
            assert len(np.unique(found[held & (labels == c)])) == 1


def test_the_same_command_again_reuses_all_and_prints_what_is_reported(ended, capsys):
    folder = ended[-1]
    again, _ = prepare(folder)
    assert again.groups == ()
    before = (again.results.directory / "results.csv").read_bytes()
    session.execute(again)
    assert (again.results.directory / "results.csv").read_bytes() == before
    header, _, line = (
        text for text in capsys.readouterr().out.splitlines() if text.startswith("|")
    )
    names = [name.strip() for name in header.split("|")]
    start = names.index("nmi")
    assert names[start : start + 8] == [
        *("nmi", "acc", "kappa", "global_acc", "initial_acc"),
        *("communities", "isolated", "iteration"),
    ]
    shown = dict(zip(names, map(str.strip, line.split("|")), strict=True))
    assert shown["global_acc"] == "1.000 ± 0.000"


def test_without_an_edge_each_cluster_stands_for_itself(tmp_path):
    """Of a class that n clients hold, each 9 rows or so, one cluster is a match."""
    prepared, labels = prepare(tmp_path, near=(0.0,), overlap=(0.0,), seed=(3,))
    session.execute(prepared)
    ((_, partition),) = runs_of(prepared)
    (row,) = rows_of(tmp_path / "out")
    each = [np.bincount(labels[rows], minlength=4) for rows in partition.clients]
    expected = np.max(each, axis=0).sum() / np.sum(each)
    assert expected < 0.8
    assert float(row["global_acc"]) == pytest.approx(expected, abs=1e-6)
    assert float(row["acc"]) == float(row["client_acc"]) == 1
    assert float(row["communities"]) == 0
    assert float(row["isolated"]) == float(row["initial_isolated"])


def test_without_labels_communities_are_kept_and_nothing_is_scored(tmp_path, capsys):
    prepared, _ = prepare(
        tmp_path,
        **{"labels": False, "clusters": (4,), "overlap": (), "class_range": None},
        seed=(0,),
    )
    session.execute(prepared)
    (row,) = rows_of(tmp_path / "out")
    assert row["global_acc"] == row["client_acc"] == row["initial_acc"] == ""
    assert float(row["communities"]) == 4
    ((point, _),) = runs_of(prepared)
    assert Finished(tmp_path / "out").communities(point).edges.sum() == 4 * 4 * 3
    header = next(
        text for text in capsys.readouterr().out.splitlines() if text.startswith("|")
    )
    assert "isolated" in header
    assert "global_acc" not in header


def contents(folder):
    return {p.name: p.read_bytes() for p in sorted(folder.glob("*"))}


def test_shards_become_the_grid_and_collect_prints_it(ended, tmp_path):
    whole = ended[0].results.directory
    for index in range(2):
        session.execute(prepare(tmp_path, shard=f"{index}/2")[0])
    merged = shards.merge(shards.find([tmp_path / "out"]), tmp_path / "merged")
    got, expected = Finished(merged.directory), Finished(whole)
    for point, _ in runs_of(ended[0]):
        for one, other in zip(
            got.communities(point), expected.communities(point), strict=True
        ):
            width = one.shape[-1]  # a client is padded to those of its own shard
            np.testing.assert_array_equal(one, other[..., :width])
    with (
        np.load(whole / "assignments.npz") as one,
        np.load(merged.directory / "assignments.npz") as other,
    ):
        for name in one.files:
            np.testing.assert_array_equal(one[name], other[name])
    run = subprocess.run(
        [sys.executable, COLLECT, tmp_path / "out", "--no-plot"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert "initial_acc" in run.stdout


def test_no_resume_removes_what_was_kept(tmp_path):
    prepared, _ = prepare(tmp_path)
    session.execute(prepared)
    folder = tmp_path / "out" / "communities"
    assert len(list(folder.iterdir())) == 2
    prepare(tmp_path, seed=(0,), resume=False)[0].results.begin()
    assert not folder.exists()


def test_iterations_are_drawn_from_the_end_of_the_start(ended, tmp_path):
    results = ended[0].results
    options = {"by": results.settings, "start": "begin"}
    rounds = draw.since(results.history, "begin", by=results.settings)
    assert [(row["stage"], int(row["round"]), row["seed"]) for row in rounds] == [
        *(("refine", 0, 0), ("refine", 0, 1)),
        *(("refine", 1, 0), ("refine", 1, 1), ("refine", 2, 0), ("refine", 2, 1)),
    ]
    assert float(rounds[0]["isolated"]) > 0
    draw.grid_figures(
        tmp_path,
        results.rows,
        results.history,
        **options,
        reported=("isolated", "never_measured"),
    )
    assert (tmp_path / "iterations.png").exists()
    assert draw.since(results.history, "", by=["overlap"]) == results.history


def test_what_reports_nothing_has_one_figure_of_its_rounds(ended, tmp_path):
    results = ended[0].results
    draw.grid_figures(tmp_path, results.rows, results.history, by=results.settings)
    assert not (tmp_path / "iterations.png").exists()


def test_a_session_draws_the_graph_and_a_finished_run_is_drawn_again(tmp_path):
    session.execute(prepare(tmp_path, plot=True, seed=(0,))[0])
    names = ["associations.png", "iterations.png"]
    assert all((tmp_path / "out" / "figures" / name).exists() for name in names)
    draw.main(draw.Args(tmp_path / "out", out=tmp_path / "again"))
    assert all((tmp_path / "again" / name).exists() for name in names)
