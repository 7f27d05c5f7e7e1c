"""How far clusterings agree, by counting pairs."""

import itertools

import numpy as np
import pytest

from fcjax.metrics.agreement import (
    agreement,
    pairwise_agreement,
    pooled_ranks,
)
from fcjax.metrics.external import nmi
from fcjax.metrics.internal import silhouettes

rng = np.random.default_rng(0)


def by_pairs(first, second):
    """The adjusted Rand index, from its definition over all pairs of examples."""
    pairs = list(itertools.combinations(range(len(first)), 2))
    one, two = (np.array([x[i] == x[j] for i, j in pairs]) for x in (first, second))
    both, expected = (one & two).sum(), one.sum() * two.sum() / len(pairs)
    return (both - expected) / ((one.sum() + two.sum()) / 2 - expected)


def test_examples_without_a_cluster_are_left_out():
    first, second = rng.integers(-1, 3, (2, 60))
    both = (first >= 0) & (second >= 0)
    assert 20 < both.sum() < 60
    expected = by_pairs(first[both], second[both])
    assert agreement(first, second) == pytest.approx(expected)
    assert agreement(first, second, measure=nmi) == pytest.approx(
        nmi(first[both], second[both])
    )
    assert np.isnan(agreement(first, np.full(60, -1)))


def test_clients_on_their_own_are_compared_where_one_holds_both():
    """What differs between clients says nothing: only pairs that one client holds in
    both runs count."""
    holders = rng.integers(-1, 2, (2, 80))
    runs = np.where(holders >= 0, rng.integers(3, size=(2, 80)), -1)
    found, total, count = pairwise_agreement(runs, client_of_example=holders), 0.0, 0
    for one, other in itertools.product(range(2), repeat=2):
        rows = (holders[0] == one) & (holders[1] == other)
        total += rows.sum() * by_pairs(*runs[:, rows])
        count += rows.sum()
    assert 20 < count < 80
    assert found[0, 1] == pytest.approx(total / count)


def test_one_clustering_of_all_is_compared_with_those_of_clients():
    """Its holders are one block: within a client both are the same clusters."""
    truth = np.tile([0, 1], 20)
    client = np.repeat([0, 1], 20)
    holders = np.stack([np.full(40, -1), np.full(40, -1), client])
    found = pairwise_agreement(
        np.stack([truth, truth, 2 * client + truth]), client_of_example=holders
    )
    assert found[0, 1] == found[0, 2] == found[1, 2] == 1


def test_an_embedding_has_no_vote_for_its_own_run():
    """Three runs of two blobs; the last packed wrong clusters tightly in its own
    embedding, where they score best, and worst in those of the others."""
    truth = np.repeat([0, 1], 20)
    wrong = np.tile([0, 1], 20)
    runs = np.array([truth, truth, wrong])
    spaces = [
        x[:, None] + 0.1 * rng.normal(size=(40, 1)) for x in (truth, truth, wrong)
    ]
    scores = np.array([silhouettes(z, runs) for z in spaces])
    assert scores[2].argmax() == 2
    assert (scores[:2, 2] < 0.1).all()
    # Nobody else's ranks it above another; with its own vote it would have more than 0.
    assert pooled_ranks(scores)[2] == 0
    assert (pooled_ranks(scores)[:2] > 0.5).all()
