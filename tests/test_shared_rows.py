"""Examples that several clients hold: whose they are, and how often they count."""

import numpy as np
import pytest

from fcjax.methods.base import MethodSpec
from fcjax.results.store import CommunityAssignments
from fcjax.sweep import score
from fcjax.sweep.outcome import Outcome, of_examples

LABELS = np.array([0, 0, 1, 1, 1])
CLIENTS = (np.array([0, 2, 3]), np.array([2, 1, 3, 4, 5]))
"""Rows 2 and 3 are held by both; row 5 is trained on too, and has no label."""
ROWS = np.array([[0, 2, 3, 0, 2], CLIENTS[1]])
MASK = np.array([[True] * 3 + [False] * 2, [True] * 5])
OF_CLIENTS = np.array([[0, 1, 0, -1, -1], [1, 0, 1, 0, 1]])
OF_EXAMPLES = np.array([0, 0, 1, 0, 0, 1])


HOLDERS = np.array([0, 1, 0, 0, 1, 1])
RUN = Outcome({}, ROWS, MASK, OF_CLIENTS, HOLDERS, OF_EXAMPLES)


def score_run(scope, same=None):
    scores = score.label_scores(RUN, LABELS, scope)
    options = {"present": np.ones((1, 2), bool), "embedding": None, "same": same}
    return score.score_end(RUN, LABELS, scope, scores, **options)


def test_the_first_holder_has_an_example():
    numbers = np.array([[0] * 5, [1] * 5])
    found = of_examples(numbers, ROWS, MASK, 7, fill=-1)
    np.testing.assert_array_equal(found, [*HOLDERS, -1])
    found = of_examples(OF_CLIENTS, ROWS, MASK, 7, fill=-1)
    np.testing.assert_array_equal(found, [*OF_EXAMPLES, -1])
    found = of_examples(OF_CLIENTS[..., None] + 0.5, ROWS, MASK, 7, fill=np.nan)
    np.testing.assert_array_equal(found[:, 0], [*(OF_EXAMPLES + 0.5), np.nan])


def test_clients_on_their_own_count_it_each():
    """Client 0 has 2 of 3, its row 3 is wrong; client 1's rows are 1, 0, 1, 1 by class
    and 1, 0, 1, 0 by cluster: 3 of 4."""
    mean = pytest.approx((2 / 3 + 3 / 4) / 2)
    own, pooled = score_run("client-mean"), score_run("client-pooled")
    assert own["acc"] == own["client_acc"] == pooled["client_acc"] == mean
    assert pooled["acc"] == pytest.approx((2 + 3) / 7)
    assert not {"global_acc", "global_nmi"} & set(pooled)


def test_communities_are_clusters_of_all_that_clients_hold():
    """By slot the classes are 0 1 1, 1 0 1 1. Cluster 0 of both is community 0, which
    holds classes 0, 1, 0, 1; cluster 1 of client 1 is community 5, of two 1s; cluster 1
    of client 0 is isolated, of one 1. A match: 2 and 2 of 7."""
    community = np.array([[0, -1], [0, 5]])
    edges = np.zeros((2, 2, 2, 2), bool)
    same = CommunityAssignments(ROWS, MASK, OF_CLIENTS, community, edges, OF_CLIENTS)
    found = score_run("client-mean", same)
    assert found["global_acc"] == pytest.approx(4 / 7)

    def entropy(*counts):
        shares = np.array(counts) / 7
        return -(shares * np.log(shares)).sum()

    # I = H(class) - 4/7 H(1/2).
    shared = entropy(2, 5) - 4 / 7 * np.log(2)
    expected = 2 * shared / (entropy(2, 5) + entropy(4, 2, 1))
    assert found["global_nmi"] == pytest.approx(expected)


def test_a_common_clustering_counts_it_once_and_clients_by_their_own_match():
    """Of rows 0 to 4 with the clusters 0 0 1 0 0: 3 of 5 by one match for all."""
    found = score_run("global")
    assert found["acc"] == found["global_acc"] == pytest.approx(3 / 5)
    assert found["nmi"] == found["global_nmi"]
    assert found["client_acc"] == pytest.approx((2 / 3 + 3 / 4) / 2)


def test_what_is_reported_is_of_the_last_round_and_of_the_start_s():
    history = [
        {"stage": "dec", "acc": 0.5, "isolated": 7, "wrong": None},
        {"stage": "dec", "acc": 0.625, "isolated": 6, "wrong": None},
        {"stage": "refine", "acc": 0.75, "isolated": 3, "wrong": 0.25, "turn": 1},
        {"stage": "refine", "acc": None, "isolated": 2, "wrong": 0.125, "turn": 2},
    ]
    names = ("isolated", "wrong", "turn", "missing")
    plain = MethodSpec("by hand", {}, lambda _: None, "client-mean", {})
    method = plain._replace(reported=names)
    last = {"isolated": 2, "wrong": 0.125, "turn": 2, "missing": None}
    assert score.reported(plain, history) == {}
    assert score.reported(method, history) == last
    first = {"acc": 0.625, "isolated": 6} | dict.fromkeys(names[1:])
    first = {f"initial_{name}": value for name, value in first.items()}
    assert score.reported(method._replace(start="dec"), history) == last | first
