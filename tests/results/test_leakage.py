"""What uploads reveal: by hand, and of real runs in memory."""

import numpy as np
import pandas as pd
import pytest

import fcjax
from fcjax import data
from fcjax.data import Dataset
from fcjax.data.source import Source
from fcjax.methods import CCFC, SDAFCKM, ExactFuzzyCMeans, ExactKMeans, KFed, KMeans
from fcjax.results import leakage
from fcjax.results.exported import Prediction
from fcjax.types import Uploads

NAN = float("nan")

# --- by hand

# Two clients with the examples 0, 1, 10 and 20, 24; the last example has no client.
EXAMPLES = np.array([[0.0], [1.0], [10.0], [20.0], [24.0], [0.2]], np.float32)
CLIENTS = np.array([0, 0, 0, 1, 1, -1])
# Client 0 uploads the mean of 0 and 1, and 10. Client 1 uploads the mean of 20 and 24.
MEANS = Uploads(
    np.array([[[0.5], [10.0]], [[22.0], [NAN]]], np.float32), np.array([[2, 1], [2, 0]])
)


def predict(x):
    """The embedding is the example; the centers are 0 and 20."""
    return Prediction(x, np.zeros(len(x), int), np.abs(x - [[0.0, 20.0]]))


def examine(uploads=MEANS, others=EXAMPLES[5:], min_members=2):
    dataset = Dataset("rows", EXAMPLES, None)
    each = dataset, CLIENTS, others, predict
    return leakage.examine(uploads, *each, min_members=min_members)


def test_counts_and_distances_by_hand():
    """The nearest others of 0, 1, 10 are at 1, 1, 9, and those of 20 and 24 at 4."""
    summary, points = examine()
    assert points.to_numpy().tolist() == [
        [0, 0, 2, 0.5, 0],
        [0, 1, 1, 0.0, 2],
        [1, 0, 2, 2.0, 3],
    ]
    expected = {
        "kind": "centroids",
        "uploading_clients": 2,
        "points": 3,
        "one_member": 1,
        "few_members": 1,
        "min_members": 2,
        "distance": 0.5,
        "neighbor_distance": 4.0,
        "copies": 1,
    }
    assert {**summary, **expected} == summary
    assert examine(min_members=3).summary["few_members"] == 3
    # A single other example has no interval.
    assert (summary["members"], summary["non_members"]) == (5, 1)
    assert "uploads_auc" not in summary


def test_attacks_by_hand():
    """Members are 0.5, 0.5, 0, 2 and 2 from a point; the others are 0.1 and 8 from it.
    From a center, members are 0, 1, 10, 0 and 4, and the others 0.6 and 10."""
    summary = examine(others=np.array([[0.6], [30.0]], np.float32)).summary
    assert summary["uploads_auc"] == pytest.approx((0 + 0 + 1 + 0 + 0 + 5) / 10)
    # 10 and 10 are a tie.
    assert summary["centers_auc"] == pytest.approx((1 + 0 + 0 + 1 + 0 + 4.5) / 10)
    assert 0 <= summary["uploads_low"] < 0.6 < summary["uploads_high"] <= 1


def test_synthetic_examples_by_hand():
    """Client 0 has three of five examples, and its second point lies near client 1's.
    Points are 0.5, 1 and 0 from the nearest member, the held-out examples 0.4 and 6."""
    points = np.array([[[0.5], [19.0]], [[24.0], [NAN]]], np.float32)
    uploads = Uploads(points, np.full((2, 2), -1))
    others = np.array([[0.6], [30.0]], np.float32)
    summary = examine(uploads, others).summary
    assert summary["kind"] == "synthetic examples"
    assert (summary["one_member"], summary["few_members"]) == (None, None)
    assert summary["own_client"] == pytest.approx(2 / 3)
    assert summary["own_client_by_chance"] == pytest.approx((0.6 + 0.6 + 0.4) / 3)
    assert summary["copies"] == 1
    assert summary["copy_probability"] == pytest.approx(4 / 6)
    assert "copy_probability" not in examine(uploads, others[:0]).summary


def test_members_are_those_of_clients_that_have_uploaded():
    uploads = MEANS._replace(points=MEANS.points * [[[1.0]], [[NAN]]])
    summary = examine(uploads, others=np.ones((4, 1), np.float32)).summary
    assert (summary["uploading_clients"], summary["members"]) == (1, 3)
    with pytest.raises(ValueError, match="no client of the run has uploaded a point"):
        examine(MEANS._replace(points=MEANS.points * NAN))


def test_of_a_single_example_there_is_no_neighbour():
    assert np.isnan(leakage.neighbor_distance(np.ones((2, 3)), np.array([0, 1])))


def test_others_are_all_examples_of_the_data_set_that_no_client_has(tmp_path):
    """Of the values 0 to 9, with 3 twice: a run has five, the client of one has left.
    The scaling is that of the run."""
    values = np.append(np.arange(10.0), 3)[:, None] * [[1, 2]]
    path = tmp_path / "rows.npz"
    np.savez(path, x=values)
    source = Source(str(path), labels=False, limit=5)
    dataset = data.load(source)
    clients = np.array([0, 0, 1, 1, -1])
    found = leakage.non_members(source, dataset, clients)
    rows = set(map(tuple, found.tolist()))
    held = set(map(tuple, dataset.examples[:4].tolist()))
    assert len(rows) == len(found)
    whole = {(x, x) for x in (np.arange(10) / 9).astype(np.float32).tolist()}
    assert rows == whole - held
    # The array of a run in memory is all that is known.
    source = Source("array", labels=False)
    found = leakage.non_members(source, dataset, clients)
    np.testing.assert_array_equal(found, dataset.examples[4:])


# --- runs


@pytest.fixture(scope="module")
def runs():
    methods = [KFed(), ExactKMeans(), ExactFuzzyCMeans(), KMeans(num_init=1)]
    split = fcjax.Split(p=[1.0], clients=5)
    options = {"split": split, "limit": 200, "keep_uploads": True}
    return fcjax.run(methods, "digits", **options)


@pytest.mark.parametrize("method", ["k-fed", "exact-km", "exact-fcm"])
def test_a_centroid_of_one_example_is_a_copy_of_it(runs, method):
    run = runs.run(method=method)
    summary, points = run.privacy_report()
    assert (summary["members"], summary["non_members"]) == (200, 1597)
    assert points.members.sum() == 200
    clients = run.clients_[points.example]
    np.testing.assert_array_equal(clients, points.client)
    if method != "exact-fcm":
        of_one = points[points.members == 1]
        assert len(of_one) == summary["one_member"] > 0
        assert (of_one.distance < 1e-3).all()


def test_the_means_of_exact_k_means_are_those_of_the_clusters(runs):
    """The clusters are those of the final centroids, which the last step has moved
    little."""
    run = runs.run(method="exact-km")
    points, members = run.folder.uploads(run.params)
    rows = run.embedding_
    for client in range(5):
        for k in range(10):
            own = (run.clients_ == client) & (run.labels_ == k)
            assert own.sum() == members[client, k]
            mean = rows[own].mean(axis=0) if own.any() else np.full(64, NAN)
            np.testing.assert_allclose(points[client, k], mean, atol=1e-5)


def test_all_points_of_tiny_clients_are_examples():
    """Clients of ten examples with ten clusters: each example is its own centroid."""
    split = fcjax.Split(p=[0.0], clients=20)
    options = {"split": split, "limit": 200, "keep_uploads": True}
    run = fcjax.run(KFed(local_start="kmeans++"), "digits", **options)[0]
    summary = run.privacy_report().summary
    assert [summary[x] for x in ("points", "one_member", "copies")] == [200] * 3
    assert summary["uploads_auc"] > 0.999


def test_networks_and_generators(tmp_path):
    methods = [
        CCFC(preset="smoke", pretrain_rounds=1, cluster_rounds=1),
        CCFC(preset="smoke", pretrain_rounds=1, cluster_rounds=1, cluster_by="ccfc"),
        SDAFCKM(preset="smoke", gan_rounds=1),
    ]
    digits, path = data.load("digits"), tmp_path / "vectors.npz"
    # As vectors, for which networks compile fast.
    np.savez(path, x=digits.examples.reshape(-1, 64), y=digits.labels)
    split = fcjax.Split(p=[0.0], clients=3)
    options = {"split": split, "limit": 150, "keep_uploads": True}
    for method in methods:
        (run,) = fcjax.run(method, str(path), **options)
        summary, points = run.privacy_report(tmp_path / run.name)
        row = pd.read_csv(tmp_path / run.name / "privacy.csv").iloc[0]
        assert row.points == len(points) == summary["points"]
        assert 0 < summary["uploads_auc"] < 1
        if run.row["method"] == "ccfc":
            assert points.members.sum() == 150
            norms = np.linalg.norm(run.folder.uploads(run.params).points, axis=2)
            assert np.nanmax(norms) < 1 + 1e-5
        else:
            assert (summary["points"], summary["kind"]) == (150, "synthetic examples")
            assert summary["own_client_by_chance"] == pytest.approx(1 / 3, abs=0.01)


def test_what_cannot_be_measured_is_said(runs):
    with pytest.raises(ValueError, match="the clients of km upload neither centroids"):
        runs.run(method="km").privacy_report()
    with pytest.raises(ValueError, match="`min_members` must be at least 1, got 0"):
        runs.run(method="k-fed").privacy_report(min_members=0)
    without = fcjax.run(KFed(), "digits", limit=200)[0]
    with pytest.raises(ValueError, match="again with `keep_uploads=True` and `resume"):
        without.privacy_report()
