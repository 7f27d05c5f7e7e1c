"""K-means beside a run: what it has of blobs, and what is said of runs below it."""

from pathlib import Path

import numpy as np
import pytest

from fcjax.results import store
from fcjax.sweep import report
from fcjax.sweep.outcome import Outcome
from fcjax.sweep.score import kmeans_baseline

RESULTS = Path(__file__).parents[2] / "experiments" / "results"
LABELS = np.repeat([0, 1, 2], 20)
EXAMPLES = np.eye(3)[LABELS] + 0.05 * np.random.default_rng(0).random((60, 3))


def run_of(clusters) -> Outcome:
    """Of one client that holds all."""
    rows, clusters = np.arange(60)[None], np.asarray(clusters)
    held = np.zeros(60, int)
    return Outcome({}, rows, rows >= 0, clusters[None], held, clusters)


def test_it_finds_blobs_and_a_run_that_does_is_its_equal():
    found = kmeans_baseline(EXAMPLES, LABELS, num_clusters=3).of_run(
        run_of((LABELS + 1) % 3)
    )
    for name in ("kmeans_nmi", "kmeans_acc", "kmeans_agreement"):
        assert found[name] == pytest.approx(1)
    assert found["input_silhouette"] == found["kmeans_silhouette"] > 0.9


def test_a_run_by_chance_agrees_with_it_in_nothing():
    """An example without a cluster counts in neither."""
    clusters = np.tile([0, 1, 2], 20)
    found = kmeans_baseline(EXAMPLES, None, num_clusters=3).of_run(run_of(clusters))
    assert {*found} == {"kmeans_silhouette", "kmeans_agreement", "input_silhouette"}
    assert abs(found["kmeans_agreement"]) < 0.1
    assert found["input_silhouette"] < 0
    right = np.where(np.arange(60) % 2, LABELS, -1)
    some = kmeans_baseline(EXAMPLES, None, num_clusters=3).of_run(run_of(right))
    assert some["kmeans_agreement"] == 1


def test_equal_examples_and_more_clusters_than_examples_have_what_there_is():
    found = kmeans_baseline(np.ones((60, 2)), None, num_clusters=2).of_run(
        run_of(LABELS)
    )
    assert found == {"kmeans_agreement": 0}
    kmeans_baseline(np.eye(3), None, num_clusters=5)


def row(p, status="ok", **scores):
    return {"p": p, "status": status, **scores}


def test_what_is_said_with_labels():
    """The mean of a setting counts; a run that diverged does not."""
    rows = [
        row(0.0, nmi=0.9, kmeans_nmi=0.7),
        row(0.5, nmi=0.8, kmeans_nmi=0.7),
        row(0.5, nmi=0.5, kmeans_nmi=0.7),
        row(1.0, "diverged", nmi=0.1, kmeans_nmi=0.7),
    ]
    what = report.BASELINE
    first, second = report.compare_with_kmeans(rows, ["p"])
    assert first == "baseline: k-means on the raw examples has NMI 0.700"
    below = "p 0.5 (NMI 0.650, k-means 0.700)"
    assert second == f"warning: scores below {what}: {below}; {report.HELP}"
    assert report.compare_with_kmeans(rows[:1], ["p"]) == [first]


def test_what_is_said_without_labels():
    """Of 0.3 the limit is 0.21."""
    rows = [
        row(p, nmi=None, kmeans_nmi=None, kmeans_silhouette=0.3, input_silhouette=s)
        for p, s in ((0.0, 0.22), (1.0, 0.2))
    ]
    (line,) = report.compare_with_kmeans(rows, ["p"])
    assert line.startswith(f"warning: scores likely below {report.BASELINE}: ")
    assert "p 1 (silhouette on the raw examples 0.20, k-means 0.30); " in line
    assert "p 0" not in line


def test_clients_on_their_own_and_older_folders_have_nothing_beside_them():
    assert report.compare_with_kmeans([row(0.0, nmi=0.9, kmeans_nmi=None)], ["p"]) == []
    assert report.compare_with_kmeans([row(0.0, nmi=0.9)], ["p"]) == []


def test_runs_without_cluster_contrast_are_named():
    """By their last round: what other runs measured before their contrast is no
    reason, and neither is a run for which no contrast was asked."""

    def run(limit, rounds, status="ok"):
        return {"max_heterogeneity": limit, "cluster_rounds": rounds, "status": status}

    def ending(*stages, value=None):
        rounds = [{"stage": x, "heterogeneity": None} for x in stages]
        return [*rounds[:-1], {**rounds[-1], "heterogeneity": value}]

    skipped = "pretrain", "k-means"
    runs = {
        "below": (run(0.3, 5), ending(*skipped, "cluster", value=None)),
        "above": (run(0.3, 5), ending(*skipped, value=0.381)),
        "higher": (run(0.3, 5), ending(*skipped, value=0.41)),
        "without rounds": (run(0.3, 0), ending(*skipped, value=0.9)),
        "without the rule": (run(None, 5), ending(*skipped, value=0.9)),
        "diverged": (run(0.3, 5, "diverged"), ending(*skipped, value=0.9)),
        "settled": (run(0.3, 5), ending(*skipped, value=0.2)),
    }
    assert report.skipped_contrast(*zip(*runs.values(), strict=True)) == (
        "cluster contrast was skipped in 2 of 5 runs, because the measured "
        "heterogeneity (0.38 to 0.41) is above 0.3: `cluster_rounds` had no effect "
        "there; see `max_heterogeneity`"
    )
    (one, rounds), (other, _) = runs["above"], runs["below"]
    assert "1 of 1 run, because the measured heterogeneity (0.38) is" in (
        report.skipped_contrast([one], [rounds])
    )
    assert report.skipped_contrast([other], [runs["below"][1]]) == ""


@pytest.mark.parametrize(
    ("name", "expected"),
    [("ccfc/mnist-2000-16px-p", "in 9 of 15 runs"), ("ccfc/mnist-paper-p0", "")],
)
def test_the_ledger_has_runs_without_cluster_contrast(name, expected):
    folder = store.read(RESULTS / name)
    points = [{x: row[x] for x in folder.names} for row in folder.rows]
    runs = [{**folder.config, **row} for row in folder.rows]
    assert expected in report.skipped_contrast(runs, folder.history_of(points))
