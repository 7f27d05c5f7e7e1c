"""What becomes of a run's clusters in results.csv."""

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
    cohen_kappa_score,
    normalized_mutual_info_score,
)

from fcjax.metrics.internal import MAX_WEIGHT
from fcjax.sweep import score
from fcjax.sweep.outcome import Outcome

HEALTHY = {"stage": "train", "loss": -0.5, "weight_size": 0.07}
HEALTHY |= {"occupied_clusters": 10, "largest_share": 0.2, "embedding_spread": 0.9}


def history(**changes):
    """Three rounds, as history.csv has them; the second one changed."""
    rows = [{**HEALTHY, "round": number} for number in (1, 2, 3)]
    rows[1] |= changes
    return rows


@pytest.mark.parametrize(
    ("changes", "diverged"),
    [
        ({}, False),
        ({"loss": np.nan}, True),
        ({"loss": np.inf}, True),
        ({"weight_size": 4971.8}, True),
        ({"weight_size": np.nan}, True),
        ({"weight_size": MAX_WEIGHT}, False),
        ({"weight_size": None}, False),  # a round without it
        ({"largest_share": 1.0}, False),  # what passes is no collapse
    ],
)
def test_status_names_the_first_round_that_diverged(changes, diverged):
    expected = "diverged in round 2 of train" if diverged else "ok"
    assert score.status(history(**changes), num_clusters=10) == expected


def test_the_last_round_tells_a_collapse_also_without_a_size_of_weights():
    rows = [{k: v for k, v in row.items() if k != "weight_size"} for row in history()]
    assert score.status(rows, num_clusters=10) == "ok"
    rows[-1]["largest_share"] = 0.95
    assert score.status(rows, num_clusters=10) == "collapsed"


# --- failures

LABELS = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 0])
CLUSTERS = np.array([0, 0, 1, 1, 1, 1, 2, 2, 0, 2, 1, 0])
SKLEARN = {
    "nmi": normalized_mutual_info_score,
    # Clusters match the classes of their numbers in every subset that is scored.
    "acc": accuracy_score,
    "kappa": cohen_kappa_score,
}


ROWS = np.array([[0, 1, 3, 10], [2, 4, 5, 11], [6, 7, 8, 6]])
"""Row 9 is nobody's; rows 10 and 11 are trained on too, and have no label."""
MASK = np.array([[True] * 4, [True] * 4, [True, True, True, False]])
HOLDERS = np.array([0, 0, 1, 0, 1, 1, 2, 2, 2, -1, 0, 1])
RUN = Outcome({}, ROWS, MASK, np.where(MASK, CLUSTERS[ROWS], -1), HOLDERS, CLUSTERS)


def score_run(present, scope, *, num_rounds, labels=LABELS):
    scores = score.label_scores(RUN, labels, scope)
    present = np.array(present, bool)[:num_rounds]
    options = {"present": present, "embedding": None}
    return score.score_end(RUN, labels, scope, scores, **options)


@pytest.mark.parametrize(
    ("present", "num_rounds", "survivors"),
    [
        # A fixed failure, whose one row stands for all rounds.
        ([[1, 0, 1]], 5, [0, 1, 3, 6, 7, 8]),
        # Whoever answers once survives.
        ([[1, 0, 0], [1, 0, 0], [0, 1, 0]], 3, [0, 1, 2, 3, 4, 5]),
        # The run ended before the round in which the second client would have answered.
        ([[1, 0, 1], [1, 0, 1], [0, 1, 0]], 2, [0, 1, 3, 6, 7, 8]),
        # Nobody fails, but nobody holds row 9.
        ([[1, 1, 1]], 1, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_surviving_scores_are_over_who_answered(present, num_rounds, survivors):
    found = score_run(present, "global", num_rounds=num_rounds)
    for name, oracle in SKLEARN.items():
        expected = oracle(LABELS[survivors], CLUSTERS[survivors])
        assert found[f"surviving_{name}"] == pytest.approx(expected)
        assert found[name] == pytest.approx(oracle(LABELS, CLUSTERS[:10]))
    # By hand: 7 of 10 fit, the others are the rows 2, 8 and 9.
    assert found["acc"] == pytest.approx(0.7)


def test_surviving_clients_on_their_own_are_averaged_by_their_examples():
    found = score_run([[1, 0, 1]], "client-pooled", num_rounds=1)
    # Rows 0, 1, 3: all fit; rows 6, 7, 8: one class in two clusters, of which one fits.
    assert found["surviving_acc"] == pytest.approx((3 * 1 + 3 * 2 / 3) / 6)
    # And rows 2, 4, 5: one cluster for two classes.
    assert found["acc"] == pytest.approx((3 * 1 + 3 * 2 / 3 + 3 * 2 / 3) / 9)
    assert found["surviving_nmi"] == pytest.approx((1 + 0) / 2)
    assert found["nmi"] == pytest.approx((1 + 0 + 0) / 3)


def test_without_labels_nobody_survives_to_be_scored():
    found = score_run([[1, 0, 1]], "global", num_rounds=1, labels=None)
    assert found.keys() == {"heterogeneity"}
    assert 0 <= found["heterogeneity"] <= 1


def test_participation_by_hand():
    counts = [{"participants": n} for n in (4, 2, 2, 3)]
    assert score.participation(counts, num_clients=5) == 0.55


# --- a round


@pytest.mark.parametrize(
    ("scope", "share"),
    # Cluster 1 has five rows of twelve; of those that clients hold, all but row 9.
    [("global", 5 / 12), ("client-pooled", 5 / 11), ("client-mean", 5 / 11)],
)
def test_collapse_is_told_of_the_clusters_that_are_shared(scope, share):
    row = score.score_round(RUN, LABELS, scope, num_clusters=3)
    assert row["largest_share"] == pytest.approx(share, abs=1e-6)
    assert row["occupied_clusters"] == 3


def test_a_round_that_was_not_evaluated_or_has_no_clusters_yet_is_empty():
    nothing = RUN._replace(clusters=np.full(12, -1))
    scores = score.score_round(nothing, LABELS, "global", num_clusters=3)
    assert scores == {}
    assert set(score.history_cells(scores).values()) == {None}
