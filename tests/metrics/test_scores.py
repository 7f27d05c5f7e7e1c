import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics

from fcjax import metrics as e

LABELS = np.array([0, 0, 0, 1, 1, 2, 2, 2])
KEYS = ["acc", "nmi", "kappa", "ari", "ami"]


def renamings(labels, assignments):
    """Every one-to-one renaming that uses as many names of classes as it can."""
    classes, clusters = np.unique(labels), np.unique(assignments)
    spare = labels.max() + 1 + np.arange(max(len(clusters) - len(classes), 0))
    names = np.concatenate([classes, spare])
    for chosen in itertools.permutations(names, len(clusters)):
        if len(set(chosen) & set(classes)) == min(len(classes), len(clusters)):
            yield np.array(chosen)[np.searchsorted(clusters, assignments)]


@pytest.mark.parametrize(
    ("assignments", "expected", "by_chance"),
    [
        # Overlaps [[2, 1, 0], [0, 1, 1], [0, 0, 3]]: the diagonal holds 6 of 8.
        ([5, 5, 6, 6, 7, 7, 7, 7], [0, 0, 1, 1, 2, 2, 2, 2], 3 * 2 + 2 * 2 + 3 * 4),
        # Cluster 1 is left over: its one example is wrong.
        ([0, 0, 1, 2, 2, 4, 4, 4], [0, 0, 4, 1, 1, 2, 2, 2], 3 * 2 + 2 * 2 + 3 * 3),
        ([0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 2, 2, 2], 3 * 5 + 3 * 3),
    ],
    ids=["as many clusters", "more", "fewer"],
)
def test_by_hand(assignments, expected, by_chance):
    assignments, expected = np.array(assignments), np.array(expected)
    np.testing.assert_array_equal(e.match(LABELS, assignments), expected)
    agreement, by_chance = np.mean(expected == LABELS), by_chance / 64
    assert e.accuracy(LABELS, assignments) == agreement
    assert e.kappa(LABELS, assignments) == pytest.approx(
        (agreement - by_chance) / (1 - by_chance)
    )


def test_other_names_and_one_class_in_one_cluster_are_perfect():
    assignments = np.array([7, 7, 7, -3, -3, 40, 40, 40])
    np.testing.assert_array_equal(e.match(LABELS, assignments), LABELS)
    perfect = pytest.approx(dict.fromkeys(KEYS, 1.0))
    assert e.scores(LABELS, assignments) == perfect
    assert e.scores(np.full(4, 9), np.full(4, 2)) == perfect


@pytest.mark.parametrize(
    ("num_classes", "num_clusters"), [(3, 2), (2, 3), (3, 3), (2, 4), (4, 1)]
)
def test_against_brute_force(num_classes, num_clusters):
    rng = np.random.default_rng(10 * num_classes + num_clusters)
    for _ in range(20):
        labels = rng.integers(0, num_classes, 12)
        assignments = rng.integers(0, num_clusters, 12)
        everything = list(renamings(labels, assignments))
        best = max(np.mean(labels == renamed) for renamed in everything)
        assert e.accuracy(labels, assignments) == best
        # Of the best matches, the one that owes least to chance has the largest kappa.
        assert e.kappa(labels, assignments) == pytest.approx(
            max(
                metrics.cohen_kappa_score(labels, renamed)
                for renamed in everything
                if np.mean(labels == renamed) == best
            )
        )


def test_any_integer_type():
    labels = np.array([255, 255, 254], np.uint8)
    assert e.accuracy(labels, np.array([0, 1, 2], np.int32)) == pytest.approx(2 / 3)
    assert e.scores(jnp.asarray(LABELS), jnp.asarray(LABELS))["kappa"] == 1.0


def test_per_client_uses_own_matches_and_ignores_padding():
    labels = np.array([[0, 0, 1, 1], [0, 1, 1, 1]])
    assignments = np.array([[0, 0, 1, 1], [1, 0, 1, 0]])
    mask = np.array([[True] * 4, [True, True, True, False]])
    result = e.per_client(labels, assignments, mask)
    assert list(result) == KEYS
    np.testing.assert_allclose(result["acc"], [1, 2 / 3])
    alone = e.scores(labels[1, :3], assignments[1, :3])
    assert e.client_mean(result)["acc"] == pytest.approx((1 + 2 / 3) / 2)
    pooled = e.client_pooled(result, mask)
    assert pooled["acc"] == pytest.approx((4 + 2) / 7)
    assert pooled["nmi"] == pytest.approx((4 * 1 + 3 * alone["nmi"]) / 7)


def test_imbalance_ratio():
    labels = np.array([[0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 0, 1], [1, 1, 1, 1, 0, 0]])
    mask = np.ones((3, 6), bool)
    mask[1, 5] = False
    mask[2, 4:] = False
    np.testing.assert_array_equal(e.imbalance_ratio(labels, mask), [1, 4, np.inf])
