"""What FedCRef's experiments know by the labels: a dirty start, true associations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from fcjax.methods import simulated as fedcref_simulated
from tests.algorithms.federations import federate

SETS = ((0, 2, 3, 5), (1, 4), (3,))
EACH = 1500


@jax.jit
def dirty(labels, dirtiness, federation):
    start = fedcref_simulated.dirty(labels, dirtiness, num_classes=6)
    return start(jax.random.key(3), federation)


def started(dirtiness, *, longer=0):
    """Of clients of four, two and one of six classes the clusters that each starts with
    and its classes as numbers; a further client is so much longer."""
    labels = np.concatenate([np.repeat(own, EACH) for own in SETS])
    labels = np.append(labels, np.zeros(longer, int))
    bounds = np.cumsum([EACH * len(own) for own in SETS])
    rng = np.random.default_rng(0)
    rows = [rng.permutation(own) for own in np.split(np.arange(len(labels)), bounds)]
    federation = federate(np.zeros((len(labels), 1)), [own for own in rows if len(own)])
    clusters = np.asarray(dirty(jnp.asarray(labels), dirtiness, federation))
    return [
        (own[: len(held)], np.unique(labels[held], return_inverse=True)[1])
        for own, held in zip(clusters, rows[:3], strict=False)
    ]


def test_none_or_all_leave_but_of_a_client_of_one_class():
    """Clusters are the client's classes in ascending order."""
    for clusters, truth in started(0.0):
        np.testing.assert_array_equal(clusters, truth)
    four, two, one = started(1.0)
    assert (four[0] != four[1]).all()
    np.testing.assert_array_equal(two[0], 1 - two[1])
    np.testing.assert_array_equal(one[0], 0)


def test_so_many_examples_leave_each_for_any_other_cluster_of_the_client():
    found = started(0.3)
    for clusters, truth in found[:2]:
        count = truth.max() + 1
        shares = np.zeros((count, count))
        np.add.at(shares, (truth, clusters), 1 / EACH)
        expected = np.full((count, count), 0.3 / (count - 1))
        np.fill_diagonal(expected, 0.7)
        sigma = np.sqrt(expected * (1 - expected) / EACH)
        assert (np.abs(shares - expected) < 4 * sigma).all()
    # Padding moves none.
    jax.tree.map(np.testing.assert_array_equal, found, started(0.3, longer=7000))


@pytest.mark.parametrize(("num_clusters", "num_classes"), [(3, 6), (5, 3)])
def test_clusters_are_matched_as_scipy_matches_them(num_clusters, num_classes):
    rng = np.random.default_rng(1)
    sizes = (70, 40, 2)
    labels = rng.integers(num_classes, size=sum(sizes))
    rows = np.split(np.arange(len(labels)), np.cumsum(sizes)[:-1])
    federation = federate(np.zeros((len(labels), 1)), rows)
    clusters = rng.integers(num_clusters, size=federation.indices.shape)
    options = {"num_clusters": num_clusters, "num_classes": num_classes}
    classes_of = jax.jit(lambda *args: fedcref_simulated.classes_of(*args, **options))
    found = classes_of(jnp.asarray(labels), federation, jnp.asarray(clusters))
    for client, own in enumerate(rows):
        counts = np.zeros((num_clusters, num_classes), int)
        np.add.at(counts, (clusters[client, : len(own)], labels[own]), 1)
        expected = np.full(num_clusters, -1)
        for q, c in zip(*linear_sum_assignment(-counts), strict=True):
            expected[q] = c if counts[q, c] else -1
        np.testing.assert_array_equal(found[client], expected)


# Three clients of clusters 0 and 1: {0, 1}, {1, 2}, and class 0 alone.
LABELS = jnp.array([0, 0, 1, 1, 1, 1, 2, 2, 0, 0])
CLUSTERS = jnp.array([[0, 0, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]])
BY_HAND = federate(np.zeros((10, 1)), [np.arange(4), np.arange(4, 8), np.arange(8, 10)])
SIZES = {"num_clusters": 2, "num_classes": 3}
perfect = jax.jit(fedcref_simulated.perfect(LABELS, **SIZES))
wrong_associations = jax.jit(fedcref_simulated.wrong_associations(LABELS, **SIZES))


def edges(*pairs):
    found = np.zeros((3, 2, 3, 2), bool)
    for (i, q), (j, p) in pairs:
        found[i, q, j, p] = found[j, p, i, q] = True
    return jnp.asarray(found)


def test_true_associations_join_what_matches_one_class():
    # Cluster 1 of the second client is class 1; that of the third is empty.
    expected = edges(
        ((0, 0), (2, 0)),
        ((0, 1), (1, 1)),
        *((own, own) for own in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0))),
    )
    np.testing.assert_array_equal(perfect(BY_HAND, CLUSTERS), expected)
    # An example of another class does not change the match.
    one_wrong = CLUSTERS.at[0].set(jnp.array([0, 0, 0, 1]))
    np.testing.assert_array_equal(perfect(BY_HAND, one_wrong), expected)


@pytest.mark.parametrize(
    ("pairs", "share"),
    [
        ([], 0),
        ([((0, 0), (2, 0)), ((0, 1), (1, 1))], 0),
        ([((0, 0), (2, 0)), ((0, 1), (1, 1)), ((0, 1), (1, 0))], 1 / 3),
        ([((0, 0), (1, 0)), ((1, 1), (2, 0))], 1),
        ([((0, 0), (2, 0)), ((0, 0), (2, 1))], 1 / 2),  # to an empty one
    ],
)
def test_wrong_associations_are_a_share_of_the_edges(pairs, share):
    found = wrong_associations(BY_HAND, CLUSTERS, edges(*pairs))
    assert float(found["wrong_associations"]) == pytest.approx(share)
