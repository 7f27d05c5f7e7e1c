"""The consensus against the co-association matrix itself, and sums over clients."""

import numpy as np
import pytest

from fcjax.metrics import ari
from fcjax.metrics.agreement import _embedding, confidence, consensus, memberships

rng = np.random.default_rng(0)


def co_association(runs):
    """A, from its definition: the number of runs in which two examples are together."""
    together = (runs[:, :, None] == runs[:, None]) & (runs >= 0)[:, :, None]
    return together.sum(axis=0)


def noisy(truth, *, wrong, num_runs):
    """Runs that name the clusters anew, each with a share of examples drawn anew."""
    count = truth.max() + 1
    runs = np.array([rng.permutation(count)[truth] for _ in range(num_runs)])
    drawn = rng.random(runs.shape) < wrong
    return np.where(drawn, rng.integers(count, size=runs.shape), runs)


def test_eigenvectors_are_those_of_the_large_matrix():
    runs = noisy(np.repeat([0, 1, 2], 15), wrong=0.3, num_runs=4)
    runs[0, :5] = -1
    a = co_association(runs)
    scale = 1 / np.sqrt(a.sum(axis=1))
    _, vectors = np.linalg.eigh(scale[:, None] * a * scale)
    expected = vectors[:, :-4:-1]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    # Three of a kind as one row that counts three times.
    found = _embedding(memberships(runs), np.ones(45, int), 3)
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-6)
    tripled = np.repeat(runs, 3, axis=1)
    found = _embedding(memberships(tripled), np.ones(135, int), 3)[::3]
    weighted = _embedding(memberships(runs), np.full(45, 3), 3)
    np.testing.assert_allclose(found @ found.T, weighted @ weighted.T, atol=1e-6)


def test_many_runs_are_better_than_each():
    truth = np.repeat(np.arange(5), 40)
    runs = noisy(truth, wrong=0.4, num_runs=9)
    found = consensus(runs, 5)
    assert ari(truth, found.clusters) > max(ari(truth, run) for run in runs) + 0.2
    # Who is wrong is unsure.
    names = np.array(
        [np.bincount(truth[found.clusters == k]).argmax() for k in range(5)]
    )
    right = names[found.clusters] == truth
    assert found.confidence[right].mean() > found.confidence[~right].mean() + 0.1


def test_confidence_is_the_mean_co_association_with_the_others():
    runs = noisy(np.repeat([0, 1, 2], 12), wrong=0.3, num_runs=5)
    runs[1, 3] = -1
    clusters = np.repeat([1, 0, 2], 12)
    clusters[7] = -1
    found = confidence(runs, clusters)
    for i in (0, 3, 20):
        others = [j for j in range(36) if clusters[j] == clusters[i] and j != i]
        each = []
        for run in runs:
            known = [j for j in others if run[j] >= 0]
            if run[i] >= 0 and known:
                each.append(np.mean([run[j] == run[i] for j in known]))
        assert found[i] == pytest.approx(np.mean(each))
    assert np.isnan(found[7])
    np.testing.assert_array_equal(confidence(runs[:, :1], np.array([0])), [1])


def test_clients_that_cannot_put_two_together_make_nobody_less_sure():
    """Perfect clients, to whom examples are dealt anew in each run."""
    truth = np.repeat(np.arange(4), 50)
    holders = rng.integers(5, size=(6, 200))
    runs = 4 * holders + truth
    found = consensus(runs, 4, client_of_example=holders)
    assert ari(truth, found.clusters) == 1
    np.testing.assert_array_equal(found.confidence, 1)
    assert confidence(runs, found.clusters).max() < 0.5


def test_clusters_of_different_number_and_examples_of_nobody():
    truth = np.repeat(np.arange(4), 30)
    finer = 2 * truth + rng.integers(2, size=120)
    coarser = truth // 2
    runs = np.stack([truth, finer, coarser, truth])
    runs[:, 5] = -1
    runs[2, 60:] = -1
    found = consensus(runs, 4)
    assert found.clusters[5] == -1
    assert np.isnan(found.confidence[5])
    held = np.arange(120) != 5
    assert ari(truth[held], found.clusters[held]) == 1
    with pytest.raises(ValueError, match=r"num_clusters must be at most 1, .*, got 2"):
        consensus(np.array([[0, -1, -1]]), 2)
