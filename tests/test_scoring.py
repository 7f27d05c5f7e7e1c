import pytest

from fcjax import scoring
from fcjax.evaluation import MAX_WEIGHT

HEALTHY = {
    "stage": "train",
    "loss": "-0.5",
    "weight_size": "0.07",
    "occupied_clusters": "10",
    "largest_share": "0.2",
    "embedding_spread": "0.9",
}


def history(**changes):
    """Three rounds, as history.csv has them; the second one changed."""
    rows = [{**HEALTHY, "round": number} for number in (1, 2, 3)]
    rows[1] |= changes
    return rows


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "ok"),
        ({"loss": "nan"}, "diverged in round 2 of train"),
        ({"loss": "inf"}, "diverged in round 2 of train"),
        ({"weight_size": "4971.8"}, "diverged in round 2 of train"),
        ({"weight_size": "nan"}, "diverged in round 2 of train"),
        ({"weight_size": str(MAX_WEIGHT)}, "ok"),
        # Of a method that does not measure it, and of a round without it.
        ({"weight_size": ""}, "ok"),
        # What passes is no collapse.
        ({"largest_share": "1.0"}, "ok"),
    ],
)
def test_status_names_the_first_round_that_diverged(changes, status):
    assert scoring.status(history(**changes), num_clusters=10) == status


def test_status_without_a_size_of_weights():
    rows = history()
    for row in rows:
        del row["weight_size"]
    assert scoring.status(rows, num_clusters=10) == "ok"


def test_the_last_round_tells_a_collapse():
    rows = history()
    rows[-1]["largest_share"] = "0.95"
    assert scoring.status(rows, num_clusters=10) == "collapsed"
