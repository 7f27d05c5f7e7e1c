"""Whose clusters are the same: what is made of it by hand, and what a session keeps,
scores and prints of a method that finds out."""

import shutil

import numpy as np
import pytest

from fcjax.cli import tools
from fcjax.results import drawing, store
from fcjax.results.store import CommunityAssignments, read
from fcjax.sweep import experiment, train
from fcjax.sweep.plan import Task
from tests.own_clusters import OwnClusters, corners
from tests.sweep.drifting import rows

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
    return CommunityAssignments(ROWS, MASK, CLUSTER, COMMUNITY, graph, CLUSTER)


def test_an_isolated_cluster_is_a_cluster_of_its_own():
    """The community 4; then numbers from 8 on, for 1 of client 0 and 2 of client 1."""
    found = store.global_clusters(CLUSTER, COMMUNITY)
    np.testing.assert_array_equal(found, [[4, 9, 9, -1], [13, 13, 7, 7]])
    nobody = store.global_clusters(CLUSTER, np.full((2, 3), -1))
    np.testing.assert_array_equal(nobody, [[0, 1, 1, -1], [5, 5, 3, 3]])


def test_communities_of_examples_go_through_client_and_cluster():
    client = np.array([0, 0, 1, 1, 0, 1, -1, 1])
    cluster = np.array([0, 1, 1, 2, 1, 0, -1, -1])
    found = store.communities_of_examples(COMMUNITY, client, cluster)
    np.testing.assert_array_equal(found, [4, -1, 4, -1, -1, 7, -1, -1])


@pytest.mark.parametrize(
    ("labels", "groups"),
    [
        # Rows 0 to 3 have the classes 8, 6, 6 and 6, row 4 has class 8, row 5 none:
        # client 0's cluster 1 is of 6 and 8, so it takes 6, and the 8 is cluster 0's.
        ([8, 6, 6, 6, 8], [8, 6, 8, 6]),
        # Of client 0 the larger one has the class, of client 1 the one of rows 2 and 3.
        ([3] * 5, [-1, 3, -1, 3]),
    ],
)
def test_the_graph_is_of_clusters_that_are_not_empty(labels, groups):
    """They are 0 and 1 of client 0, 0 and 2 of client 1."""
    one = by_hand([((0, 1), (1, 2)), ((0, 0), (1, 1))])
    got = drawing.graph(one, np.array(labels))
    np.testing.assert_array_equal(got.sizes, [1, 2, 2, 2])
    np.testing.assert_array_equal(got.groups, groups)
    np.testing.assert_array_equal(np.argwhere(got.edges), [[1, 3], [3, 1]])


def test_without_labels_the_graph_s_parts_are_its_groups():
    got = drawing.graph(by_hand([((0, 1), (1, 2)), ((0, 1), (1, 0))]), None)
    first, *others = got.groups
    assert first == -1
    assert len(set(others)) == 1
    assert others[0] >= 0


# --- a session


def prepare(folder, **flags):
    labels = corners(folder / "corners.npz")
    flags = {"overlap": (0.5,), "class_range": (2, 3), "seed": (0, 1), **flags}
    flags = {"samples_per_class": 6, "runs_per_call": 2, "plot": False, **flags}
    flags |= {"dataset": str(folder / "corners.npz"), "out": folder / "out"}
    return experiment.prepare(Task.of(OwnClusters, clients=4, **flags)), labels


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    prepared, labels = prepare(tmp_path_factory.mktemp("ended"), plot=True)
    train.execute(prepared)
    return prepared, labels


def runs_of(prepared):
    return [
        run
        for batch in prepared.batches
        for run in zip(batch.points, batch.partitions, strict=True)
    ]


def holders_of(partition, labels):
    """By class, how many clients hold it."""
    held = [np.unique(labels[own]) for own in partition.clients]
    return np.bincount(np.concatenate(held), minlength=4)


def table(capsys):
    """The names and the last line of the table that was printed."""
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("|")]
    return [[cell.strip() for cell in x.split("|")] for x in (lines[0], lines[-1])]


def test_clients_that_share_rows_are_scored_and_counted(ended):
    prepared, labels = ended
    for row, (_, partition) in zip(
        rows(prepared.folder.directory / "results.csv"), runs_of(prepared), strict=True
    ):
        numbers = holders_of(partition, labels)
        expected = {
            **dict.fromkeys(("acc", "client_acc", "global_acc", "global_nmi"), 1),
            "communities": (numbers > 1).sum(),
            "isolated": (numbers == 1).sum(),
            "iteration": 2,
            "initial_acc": 1,
            "initial_communities": 0,
            "initial_isolated": sum(partition.local_clusters),
            "left_out": len(partition.left_out),
        }
        assert {name: float(row[name]) for name in expected} == expected
        told = [row[name] for name in ("scope", "status", "initial_iteration")]
        assert told == ["client-mean", "ok", ""]


def test_a_run_s_communities_are_those_of_the_classes(ended):
    prepared, labels = ended
    finished = read(prepared.folder.directory)
    of_runs = np.load(finished.directory / "assignments.npz")["community"]
    for (point, partition), told in zip(runs_of(prepared), of_runs, strict=True):
        got = finished.communities(point)
        held = finished.assignment_arrays(point)  # an example is its first holder's
        expected = store.communities_of_examples(
            got.community, held["client"], held["cluster"]
        )
        np.testing.assert_array_equal(told, expected)
        assert (told >= 0).any()
        numbers = holders_of(partition, labels)
        classes = np.full(got.community.shape, -1)
        for client, held in enumerate(partition.clients):
            own = got.mask[client]
            np.testing.assert_array_equal(got.indices[client, own], held)
            assert (got.cluster[client, ~own] == -1).all()
            classes[client, got.cluster[client, own]] = labels[held]
        np.testing.assert_array_equal(got.graph_cluster, got.cluster)
        same = classes[:, :, None, None] == classes
        same &= (classes >= 0)[:, :, None, None]
        same[np.arange(4), :, np.arange(4)] = False
        np.testing.assert_array_equal(got.edges, same)
        shared = np.isin(classes, np.flatnonzero(numbers > 1))
        np.testing.assert_array_equal(got.community >= 0, shared)
        pairs = np.unique(np.stack([classes, got.community])[:, shared], axis=1)
        for of_one in pairs:  # a class is a community, and the other way round
            assert len(np.unique(of_one)) == (numbers > 1).sum() == pairs.shape[1]


def test_the_same_command_again_reuses_all_and_prints_what_is_reported(ended, capsys):
    again, _ = prepare(ended[0].folder.directory.parent)
    assert again.batches == ()
    before = (again.folder.directory / "results.csv").read_bytes()
    train.execute(again)
    assert (again.folder.directory / "results.csv").read_bytes() == before
    names, line = table(capsys)
    start = names.index("nmi")
    assert names[start : start + 8] == [
        *("nmi", "acc", "kappa", "global_acc", "initial_acc"),
        *("communities", "isolated", "iteration"),
    ]
    assert line[names.index("global_acc")] == "1.000, 1.000"


def test_without_labels_communities_are_kept_and_nothing_is_scored(tmp_path, capsys):
    flags = {"labels": False, "clusters": (4,), "overlap": (), "class_range": None}
    prepared, _ = prepare(tmp_path, **flags, seed=(0,))
    train.execute(prepared)
    (row,) = rows(tmp_path / "out" / "results.csv")
    assert row["global_acc"] == row["client_acc"] == row["initial_acc"] == ""
    assert float(row["communities"]) == 4
    ((point, _),) = runs_of(prepared)
    assert read(tmp_path / "out").communities(point).edges.sum() == 4 * 4 * 3
    names, _ = table(capsys)
    assert "isolated" in names
    assert "global_acc" not in names


def test_shards_become_the_grid_and_collect_prints_it(ended, tmp_path, capsys):
    whole = ended[0].folder.directory
    for index in range(2):
        train.execute(prepare(tmp_path, shard=f"{index}/2")[0])
    capsys.readouterr()
    tools.Collect((tmp_path / "out",), plot=False)()
    assert "initial_acc" in table(capsys)[0]
    got, expected = read(tmp_path / "out"), read(whole)
    for point, _ in runs_of(ended[0]):
        for one, other in zip(
            got.communities(point), expected.communities(point), strict=True
        ):
            # A client is padded to those of its own shard.
            np.testing.assert_array_equal(one, other[..., : one.shape[-1]])
    one, other = (np.load(x / "assignments.npz") for x in (whole, tmp_path / "out"))
    for name in one.files:
        np.testing.assert_array_equal(one[name], other[name])


def test_iterations_are_drawn_from_the_end_of_the_start(ended, tmp_path):
    results = ended[0].folder
    by = results.settings
    rounds = drawing.rounds_after_stage(results.rounds, "begin", by=by)
    found = [(row["stage"], int(row["round"]), row["seed"]) for row in rounds]
    assert sorted(found) == [
        ("refine", number, seed) for number in range(3) for seed in (0, 1)
    ]
    assert float(rounds[0]["isolated"]) > 0
    assert drawing.rounds_after_stage(results.rounds, "", by=by) == results.rounds
    # What reports nothing has the figure of its rounds alone.
    options = {"by": by, "start": "begin", "reported": ("never_measured",)}
    drawing.grid_figures(tmp_path, results.rows, results.rounds, **options)
    assert not (tmp_path / "iterations.png").exists()
    # What a session drew, and what is drawn again.
    tools.Draw(results.directory, out=tmp_path)()
    for folder in (results.directory / "figures", tmp_path):
        assert (folder / "associations.png").exists()
        assert (folder / "iterations.png").exists()


def test_no_resume_removes_what_was_kept(ended, tmp_path):
    shutil.copytree(ended[0].folder.directory, tmp_path / "out")
    folder = tmp_path / "out" / "communities"
    assert len(list(folder.iterdir())) == 2
    prepare(tmp_path, seed=(0,), resume=False)[0].folder.begin()
    assert not folder.exists()
