"""Partitions by hand and by properties; padding; failures."""

import numpy as np
import pytest

from fcjax import data
from fcjax.data import Partition, dirichlet, failures, heterogeneous

TEN = np.arange(100) % 10
"""Ten rows of each of ten classes."""


def permuted(rows, seed):
    return np.random.default_rng(seed).permutation(np.array(rows, int))


def unbalanced(num_examples, num_classes, seed=0):
    """Labels 3, 6, 9, ... with a geometric imbalance; every class occurs."""
    rng = np.random.default_rng(seed)
    shares = 0.6 ** np.arange(num_classes)
    drawn = rng.choice(num_classes, num_examples, p=shares / shares.sum())
    drawn[:num_classes] = np.arange(num_classes)
    return 3 * rng.permutation(drawn) + 3


def counts(labels, partition):
    """[M, K]: how many rows of each class a client holds."""
    classes = np.unique(labels)
    return np.array([[(labels[r] == c).sum() for c in classes] for r in partition[0]])


def check_rows(partition, expected):
    for rows, own in zip(partition.clients, expected, strict=True):
        np.testing.assert_array_equal(rows, own)


def check_rows_once(partition, num_examples):
    held = np.concatenate([*partition.clients, partition.left_out])
    np.testing.assert_array_equal(np.sort(held), np.arange(num_examples))
    assert all(len(rows) for rows in partition.clients)
    assert (np.diff(partition.left_out) > 0).all()


THREE, FIVE_FOUR, LAST = [0, 1, 2], [5] * 5 + [9] * 4, [0] * 7 + [1]
# ~k is row k of the pool, permuted.
BY_HAND = [
    # The paper's rule.
    (THREE * 3, 3, 1 / 3, [3, 6, 4, 7, 5, 8], [[0, ~0, ~1], [1, ~2, ~3], [2, ~4, ~5]]),
    ([9, -4, 9, 0, -4, 9], 3, 1.0, [], [[1, 4], [3], [0, 2, 5]]),
    # More clients than classes share a class by consecutive heads.
    (FIVE_FOUR, 4, 0.5, [2, 3, 4, 7, 8], [[0, ~0], [5, ~1], [1, ~2], [6, ~3]]),
    (FIVE_FOUR, 6, 1.0, [], [[0, 1], [5, 6], [2, 3], [7], [4], [8]]),
    # Fewer clients than classes split the head over their classes.
    (
        *(THREE * 4, 2, 0.5, [6, 9, 10, 5, 8, 11]),
        [[0, 3, 2, ~0, ~1, ~2], [1, 4, 7, ~3, ~4, ~5]],
    ),
    (THREE * 4, 2, 1.0, [], [[0, 3, 6, 9, 2, 5, 8, 11], [1, 4, 7, 10]]),
    # A home class that runs out is made up from the pool.
    (LAST, 2, 0.75, [3, 4, 5, 6], [[0, 1, 2, ~0], [7, ~1, ~2, ~3]]),
]


@pytest.mark.parametrize(("labels", "num_clients", "p", "pool", "expected"), BY_HAND)
def test_the_rule_of_p_by_hand(labels, num_clients, p, pool, expected):
    got = heterogeneous(np.array(labels), num_clients, p, seed=20)
    rest = permuted(pool, seed=20)
    check_rows(got, [[rest[~r] if r < 0 else r for r in own] for own in expected])
    check_rows_once(got, len(labels))


@pytest.mark.parametrize(
    ("num_examples", "p", "head", "tail"),
    [
        (70_000, 0.25, 1750, 5250),
        (60_000, 0.5, 3000, 3000),
        (13_000, 0.75, 975, 325),
        (10_992, 0.25, 275, 824),
        (10_992, 0.75, 824, 275),
        # Both halves round up, and the last client gets 1092 in place of 1100.
        (10_992, 0.5, 550, 550),
    ],
)
def test_published_sizes(num_examples, p, head, tail):
    labels = np.arange(num_examples) % 10
    got = heterogeneous(labels, 10, p, seed=20)
    # Row j of class i is row 10 j + i of the pool.
    pool = [np.arange(10 * head + i, num_examples, 10) for i in range(10)]
    rest = permuted(np.concatenate(pool), seed=20)
    for i, rows in enumerate(got.clients):
        np.testing.assert_array_equal(rows[:head], 10 * np.arange(head) + i)
        np.testing.assert_array_equal(rows[head:], rest[i * tail : (i + 1) * tail])


@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 0.9])
@pytest.mark.parametrize(
    ("labels", "num_clients"),
    [
        (np.arange(103) % 10, 10),
        (np.arange(97) % 4, 9),
        (np.arange(120) % 7, 3),
        (np.zeros(64, int), 4),
        *((unbalanced(400, 8), num_clients) for num_clients in (1, 3, 8, 20)),
    ],
)
def test_the_rule_of_p_deals_every_row_once_and_evenly(labels, num_clients, p):
    got = heterogeneous(labels, num_clients, p, seed=20)
    check_rows_once(got, len(labels))
    sizes = np.array([len(rows) for rows in got.clients])
    size = len(labels) // num_clients
    assert (abs(sizes[:-1] - size) <= 1).all()
    assert size - num_clients <= sizes[-1] <= size + 1


@pytest.mark.parametrize("num_clients", [1, 7, 100])
@pytest.mark.parametrize("alpha", [1e-300, 0.1, 1e6])
def test_dirichlet_holds_every_row_and_leaves_no_client_empty(num_clients, alpha):
    got = dirichlet(unbalanced(500, 6), num_clients, alpha, seed=0)
    check_rows_once(got, 500)
    assert (len(got.clients), len(got.left_out)) == (num_clients, 0)
    got = dirichlet(np.zeros(num_clients, int), num_clients, alpha, seed=0)
    assert [len(rows) for rows in got.clients] == [1] * num_clients


def test_dirichlet_concentration():
    labels = np.repeat(np.arange(10), 1000)
    even = counts(labels, dirichlet(labels, 10, 1e8, seed=0))
    assert abs(even - 100).max() <= 2
    skewed = counts(labels, dirichlet(labels, 10, 1e-3, seed=0))
    assert skewed.max(axis=0).mean() > 900


RANGES = {"class_range": (2, 5), "samples_per_class": 3}


@pytest.mark.parametrize(
    "rule",
    [
        lambda seed: heterogeneous(TEN, 5, 0.5, seed=seed),
        lambda seed: dirichlet(TEN, 5, 0.5, seed=seed),
        lambda seed: data.class_blocks(TEN, 5, 0.4, seed=seed),
        lambda seed: data.drawn_classes(TEN, 5, 4, seed=seed),
        lambda seed: data.class_ranges(TEN, 5, 0.0, **RANGES, seed=seed),
    ],
)
def test_partitions_follow_from_their_seed(rule):
    first, again, other = (rule(seed).clients for seed in (1, 1, 2))
    for one, same, differs in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(one, same)
        assert sorted(one) != sorted(differs)


def test_as_many_fail_in_every_round():
    # Halves to even: 2.5 of ten is 2, 3.5 is 4.
    for rate, num_absent in ((0.0, 0), (0.25, 2), (0.35, 4), (0.9, 9)):
        present = failures(10, rate, seed=3, num_rounds=40)
        assert ((~present).sum(axis=1) == num_absent).all()


def test_each_round_draws_anew_and_spares_nobody():
    """A client is absent in a round with probability 0.3; 400 rounds, five sigma."""
    present = failures(10, 0.3, seed=0, num_rounds=400)
    expected, sigma = 400 * 0.7, np.sqrt(400 * 0.3 * 0.7)
    assert (abs(present.sum(axis=0) - expected) < 5 * sigma).all()


def test_failures_of_a_round_are_nested_and_follow_from_the_seed():
    few = failures(50, 0.2, seed=0, num_rounds=6)
    many = failures(50, 0.6, seed=0, num_rounds=6)
    assert (few | ~many).all()
    # Whatever the number of rounds, the first ones are the same.
    np.testing.assert_array_equal(few[:4], failures(50, 0.2, seed=0, num_rounds=4))


ONE = Partition((np.array([4, 1, 3]), np.array([0])), np.array([2, 5]), (2, 5))
TWO = Partition((np.array([5]), np.array([2, 0, 1, 4, 3])), np.array([], int))
PRESENT = np.array([[[True, False], [True, True]], [[True, True], [False, True]]])


def test_federate_repeats_a_short_clients_own_rows():
    pool = np.arange(6 * 4, dtype=np.uint8).reshape(6, 2, 2, 1)
    got = data.federate(pool, [ONE, TWO], list(PRESENT), num_clusters=7)
    rows = [[[4, 1, 3, 4, 1], [0, 0, 0, 0, 0]], [[5, 5, 5, 5, 5], [2, 0, 1, 4, 3]]]
    np.testing.assert_array_equal(got.indices, rows)
    mask = [[[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], [[1, 0, 0, 0, 0], [1, 1, 1, 1, 1]]]
    np.testing.assert_array_equal(got.mask, np.array(mask, bool))
    np.testing.assert_array_equal(got.present, PRESENT)
    # As many clusters as the partition says, where it does.
    np.testing.assert_array_equal(got.local_clusters, [[2, 5], [7, 7]])


def test_left_out_rows_are_one_client():
    pool = np.zeros((6, 1), np.float32)
    got = data.federate_left_out(pool, [ONE, TWO], num_clusters=3)
    np.testing.assert_array_equal(got.indices, [[[2, 5]], [[0, 0]]])
    np.testing.assert_array_equal(got.mask, [[[True, True]], [[False, False]]])
    np.testing.assert_array_equal(got.present, [[[True]], [[True]]])
    np.testing.assert_array_equal(got.local_clusters, [[3], [3]])
    assert data.federate_left_out(pool, [TWO], num_clusters=3) is None


def test_further_rows_are_dealt_evenly_and_once():
    partition = Partition((np.array([0, 2]), np.array([1])), np.array([3]))
    got = data.add_evenly(partition, np.arange(4, 9), seed=3)
    drawn = permuted([4, 5, 6, 7, 8], seed=3)
    check_rows(got, [[0, 2, *drawn[:3]], [1, *drawn[3:]]])
    np.testing.assert_array_equal(got.left_out, [3])
    assert data.add_evenly(partition, np.arange(0), seed=0) is partition
