import itertools
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics

from fcjax.evaluation import (
    accuracy,
    ami,
    ari,
    client_mean,
    client_pooled,
    imbalance_ratio,
    kappa,
    match,
    nmi,
    per_client,
    scores,
)

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


def test_permuted_names_are_a_perfect_clustering():
    assignments = np.array([7, 7, 7, -3, -3, 40, 40, 40])
    np.testing.assert_array_equal(match(LABELS, assignments), LABELS)
    assert scores(LABELS, assignments) == pytest.approx(dict.fromkeys(KEYS, 1.0))


def test_by_hand():
    # Overlaps [[2, 1, 0], [0, 1, 1], [0, 0, 3]]: the diagonal holds 6 of 8.
    assignments = np.array([5, 5, 6, 6, 7, 7, 7, 7])
    assert accuracy(LABELS, assignments) == 6 / 8
    # pe = (3 * 2 + 2 * 2 + 3 * 4) / 64 = 22 / 64.
    assert kappa(LABELS, assignments) == pytest.approx((48 - 22) / (64 - 22))


def test_more_clusters_than_classes():
    # Cluster 1 is left over: its one example is wrong.
    labels = np.array([0, 0, 0, 1, 1])
    assignments = np.array([0, 0, 1, 2, 2])
    np.testing.assert_array_equal(match(labels, assignments), [0, 0, 3, 1, 1])
    assert accuracy(labels, assignments) == 4 / 5
    # pe = (3 * 2 + 2 * 2) / 25.
    assert kappa(labels, assignments) == pytest.approx((20 - 10) / (25 - 10))


def test_fewer_clusters_than_classes():
    assignments = np.array([0, 0, 0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(match(LABELS, assignments), [0] * 5 + [2] * 3)
    assert accuracy(LABELS, assignments) == 6 / 8
    # pe = (3 * 5 + 3 * 3) / 64 = 24 / 64.
    assert kappa(LABELS, assignments) == pytest.approx((48 - 24) / (64 - 24))


def test_one_cluster_is_the_largest_class_and_no_better_than_chance():
    collapsed = np.zeros_like(LABELS)
    assert accuracy(LABELS, collapsed) == 3 / 8
    for score in (kappa, nmi, ari, ami):
        assert score(LABELS, collapsed) == pytest.approx(0, abs=1e-12)


def test_one_class_in_one_cluster_is_perfect():
    expected = dict.fromkeys(KEYS, 1.0)
    assert scores(np.full(4, 9), np.full(4, 2)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("num_classes", "num_clusters"), [(2, 2), (3, 2), (2, 3), (3, 3), (2, 4), (4, 1)]
)
def test_against_brute_force(num_classes, num_clusters):
    rng = np.random.default_rng(10 * num_classes + num_clusters)
    for _ in range(20):
        labels = rng.integers(0, num_classes, 12)
        assignments = rng.integers(0, num_clusters, 12)
        everything = list(renamings(labels, assignments))
        best = max(np.mean(labels == renamed) for renamed in everything)
        assert accuracy(labels, assignments) == best
        # Of the best matches, the one that owes least to chance has the largest kappa.
        assert kappa(labels, assignments) == pytest.approx(
            max(
                metrics.cohen_kappa_score(labels, renamed)
                for renamed in everything
                if np.mean(labels == renamed) == best
            )
        )


def test_scores_do_not_depend_on_cluster_names():
    rng = np.random.default_rng(1)
    for _ in range(50):
        labels, assignments = rng.integers(0, 4, 10), rng.integers(0, 5, 10)
        renamed = rng.permutation(5)[assignments]
        assert scores(labels, renamed) == pytest.approx(scores(labels, assignments))


def test_matched_clusters_go_to_different_classes():
    rng = np.random.default_rng(2)
    labels, assignments = rng.integers(0, 5, 60), rng.integers(0, 8, 60)
    pairs = set(zip(assignments, match(labels, assignments), strict=True))
    assert len(pairs) == len({new for _, new in pairs}) == 8
    assert len({new for _, new in pairs if new <= labels.max()}) == 5


def test_the_rest_is_scikit_learn():
    rng = np.random.default_rng(3)
    labels, assignments = rng.integers(0, 5, 200), rng.integers(0, 4, 200)
    assert nmi(labels, assignments) == pytest.approx(
        metrics.normalized_mutual_info_score(
            labels, assignments, average_method="arithmetic"
        )
    )
    assert ari(labels, assignments) == metrics.adjusted_rand_score(labels, assignments)
    assert ami(labels, assignments) == metrics.adjusted_mutual_info_score(
        labels, assignments
    )


def test_any_integer_type():
    labels = np.array([255, 255, 254], np.uint8)
    assignments = np.array([0, 1, 2], np.int32)
    np.testing.assert_array_equal(np.sort(match(labels, assignments))[:1], [254])
    assert accuracy(labels, assignments) == pytest.approx(2 / 3)
    assert scores(jnp.asarray(LABELS), jnp.asarray(LABELS))["kappa"] == 1.0


@pytest.mark.parametrize("score", [accuracy, kappa, nmi, ari, ami, match, scores])
def test_bad_input(score):
    with pytest.raises(ValueError, match=r"^3 labels but 2 assignments$"):
        score(np.arange(3), np.arange(2))
    with pytest.raises(ValueError, match=r"^no examples to score$"):
        score(np.arange(0), np.arange(0))


def test_per_client_uses_own_matches_and_ignores_padding():
    labels = np.array([[0, 0, 1, 1], [0, 1, 1, 1]])
    assignments = np.array([[0, 0, 1, 1], [1, 0, 1, 0]])
    mask = np.array([[True] * 4, [True, True, True, False]])
    result = per_client(labels, assignments, mask)
    assert list(result) == KEYS
    np.testing.assert_allclose(result["acc"], [1, 2 / 3])
    alone = scores(labels[1, :3], assignments[1, :3])
    assert {name: values[1] for name, values in result.items()} == alone
    assert client_mean(result)["acc"] == pytest.approx((1 + 2 / 3) / 2)
    assert client_pooled(result, mask)["acc"] == pytest.approx((4 + 2) / 7)
    assert client_pooled(result, mask)["nmi"] == pytest.approx(
        (4 * 1 + 3 * alone["nmi"]) / 7
    )


def test_imbalance_ratio():
    labels = np.array([[0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 0, 1], [1, 1, 1, 1, 0, 0]])
    mask = np.ones((3, 6), bool)
    mask[1, 5] = False
    mask[2, 4:] = False
    np.testing.assert_array_equal(imbalance_ratio(labels, mask), [1, 4, np.inf])


def test_bad_clients():
    labels, mask = np.zeros((2, 3), int), np.ones((2, 3), bool)
    with pytest.raises(ValueError, match="differ"):
        per_client(labels, labels[:, :2], mask)
    with pytest.raises(ValueError, match="differ"):
        imbalance_ratio(labels[:1], mask)
    mask[1] = False
    with pytest.raises(ValueError, match=r"^clients without examples: \[1\]$"):
        per_client(labels, labels, mask)
    with pytest.raises(ValueError, match=r"^no clients to score$"):
        imbalance_ratio(labels[:0], mask[:0])


def test_import_is_light():
    code = (
        "import sys, fcjax.evaluation\n"
        "heavy = {'flax', 'optax', 'orbax', 'tensorflow_datasets', 'matplotlib'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
