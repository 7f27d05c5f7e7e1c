"""Dealing by consecutive classes, drawn ones and ranges of them, and a subset of what
is dealt: by hand and by properties."""

import numpy as np
import pytest

from fcjax.data import (
    Partition,
    class_blocks,
    class_ranges,
    drawn_classes,
    subsample_clients,
)
from tests.data.test_partition import TEN, check_rows, check_rows_once, counts


def check_holders_share_evenly(held):
    for of_class in held.T:
        own = of_class[of_class > 0]
        assert len(own) == 0 or own.max() - own.min() <= 1


def test_rows_by_hand():
    """Both clients hold both classes: class 4 is permuted first, then class 9, whose
    odd row goes to client 1, who has fewer rows so far."""
    labels = np.array([4, 9, 4, 4, 9, 9])
    for draws, got in (
        (0, class_blocks(labels, 2, 1.0, seed=5)),
        (2, drawn_classes(labels, 2, 2, seed=5)),  # the classes of each client
    ):
        rng = np.random.default_rng(5)
        for _ in range(draws):
            rng.permutation(2)
        four, nine = rng.permutation(np.array([0, 2, 3])), rng.permutation([1, 4, 5])
        check_rows(got, [[four[0], four[1], nine[2]], [four[2], nine[0], nine[1]]])


# --- consecutive classes


@pytest.mark.parametrize(
    ("num_classes", "num_clients", "share", "expected"),
    [
        # The paper's.
        (10, 2, 0.5, [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]),
        (10, 2, 1.0, [list(range(10))] * 2),
        # Starts 0, 3, 6: the last block has what is left over.
        (10, 3, 0.333, [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]),
        # 11 / 4 rounds to 3, which would make blocks overlap: starts 0, 2, 5, 8.
        (11, 4, 0.25, [[0, 1], [2, 3, 4], [5, 6, 7], [8, 9, 10]]),
        (10, 6, 0.167, [[0], [1, 2], [3, 4], [5], [6, 7], [8, 9]]),
        # A block is held whole, though round(0.34 * 10) = 3 is fewer than 4.
        (10, 3, 0.34, [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]),
        # Windows overlap and go on at the first class.
        (3, 3, 0.67, [[0, 1], [1, 2], [0, 2]]),
        # Halves to even: 2.5 is 2, 3.5 is 4.
        (5, 4, 0.5, [[0, 1], [1, 2], [2, 3], [3, 4]]),
        (5, 4, 0.7, [[0, 1, 2, 3], [1, 2, 3, 4], [0, 2, 3, 4], [0, 1, 3, 4]]),
        # More clients than classes: starts 0, 0, 0, 1, 1.
        (2, 5, 0.2, [[0], [0], [0], [1], [1]]),
        (2, 5, 0.5, [[0], [0], [0], [1], [1]]),
        (2, 5, 1.0, [[0, 1]] * 5),
    ],
)
def test_who_holds_which_classes(num_classes, num_clients, share, expected):
    labels = 3 * (np.arange(41 * num_classes - 1) % num_classes) - 7
    got = class_blocks(labels, num_clients, share, seed=1)
    check_rows_once(got, len(labels))
    assert len(got.left_out) == 0
    held = counts(labels, got)
    assert [np.flatnonzero(own).tolist() for own in held] == expected
    check_holders_share_evenly(held)


# --- drawn classes


@pytest.mark.parametrize("num_clients", [1, 2, 3, 20])
@pytest.mark.parametrize("q", [1, 5, 9, 10])
def test_drawn_of_unbalanced_classes(num_clients, q):
    rng = np.random.default_rng(100)
    labels = 3 * rng.permutation(np.repeat(np.arange(10), np.arange(20, 70, 5))) - 7
    got = drawn_classes(labels, num_clients, q, seed=0)
    check_rows_once(got, len(labels))
    held = counts(labels, got)
    check_holders_share_evenly(held)
    assert ((held > 0).sum(axis=1) == q).all()
    num_holders = (held > 0).sum(axis=0)
    assert np.ptp(num_holders) <= 1
    nobodys = np.isin(labels, np.unique(labels)[num_holders == 0])
    np.testing.assert_array_equal(got.left_out, np.flatnonzero(nobodys))


def test_which_classes_are_drawn_is_random_and_even():
    """One client, three of ten classes, 600 seeds: each 180 times, give or take four
    standard deviations of sqrt(600 * 0.3 * 0.7) = 11.2."""
    times = np.zeros(10)
    for seed in range(600):
        times += counts(TEN, drawn_classes(TEN, 1, 3, seed=seed))[0] > 0
    assert np.abs(times - 180).max() < 45


# --- ranges of classes

SIXTY = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60)) * 2 - 3
"""Sixty rows of each of ten classes."""


def deal(labels=SIXTY, num_clients=12, overlap=0.0, *, held=(2, 5), size=20, seed=0):
    options = {"class_range": held, "samples_per_class": size, "seed": seed}
    return class_ranges(labels, num_clients, overlap, **options)


@pytest.mark.parametrize("num_clients", [1, 5, 30])
@pytest.mark.parametrize("overlap", [0.0, 0.3, 0.95])
def test_ranges_who_holds_what_and_how_much_is_common(num_clients, overlap):
    got = deal(num_clients=num_clients, overlap=overlap)
    found = counts(SIXTY, got)
    num_held = (found > 0).sum(axis=1)
    assert got.local_clusters == tuple(num_held)
    assert len({tuple(row) for row in found > 0}) == num_clients
    held = np.concatenate(got.clients)
    np.testing.assert_array_equal(got.left_out, np.setdiff1d(np.arange(600), held))
    for c, of_class in zip(np.unique(SIXTY), found.T, strict=True):
        own = of_class[of_class > 0]
        if (n := len(own)) > 1:
            q = min(20, 60 // n)
            each = [{*rows[SIXTY[rows] == c]} for rows in got.clients]
            each = [rows for rows in each if rows]
            common = set.intersection(*each)
            given = len(common) // n
            assert (own == q + (n - 1) * given).all()
            # What is not common is one client's alone.
            assert len(set.union(*each)) == n * q
            # One more of each client would be more than is asked for.
            assert len(common) <= overlap * own[0] + 1e-6
            more = n * (given + 1) / (q + (n - 1) * (given + 1))
            assert more > overlap


def test_a_class_that_is_short_is_split_evenly_over_its_holders():
    """Both clients hold both classes: of 7 rows they get 3 each, of 40 five each."""
    labels = np.array([1] * 7 + [4] * 40)
    got = deal(labels, 2, held=(2, 2), size=5)
    np.testing.assert_array_equal(counts(labels, got), [[3, 5], [3, 5]])
    assert np.bincount(labels[got.left_out]).tolist() == [0, 1, 0, 0, 30]


# Two holders of 9 rows: floor(9 O / (2 - O)), of 4.5 / 1.5, 1.8 / 1.8 and 8.1 / 1.1.
@pytest.mark.parametrize(("overlap", "given"), [(0.5, 3), (0.2, 1), (0.9, 7)])
def test_own_rows_come_before_those_that_others_give(overlap, given):
    labels = np.array([0] * 18 + [1] * 18)
    got = deal(labels, 2, overlap, held=(2, 2), size=9).clients
    plain = deal(labels, 2, held=(2, 2), size=9).clients
    for rows, own, others in zip(got, plain, plain[::-1], strict=True):
        expected = [own[:9], others[:given], own[9:], others[9 : 9 + given]]
        np.testing.assert_array_equal(rows, np.concatenate(expected))


def test_numbers_of_classes_are_uniform():
    """3000 clients of different seeds draw 2, 3, 4 or 5 classes: 750 each, give or take
    five standard deviations of sqrt(3000 / 4 * 3 / 4) = 23.7."""
    few = np.arange(30) % 10
    drawn = [deal(few, 3, size=1, seed=seed).local_clusters for seed in range(1000)]
    times = np.bincount(np.ravel(drawn), minlength=6)
    assert np.abs(times[2:] - 750).max() < 118


def test_it_ends_where_there_are_fewer_sets_of_classes_than_clients():
    got = deal(num_clients=4, held=(10, 10), size=5)
    np.testing.assert_array_equal(counts(SIXTY, got), np.full((4, 10), 5))


def test_a_subset_of_shared_rows_leaves_out_what_nobody_holds_any_more():
    whole = deal(num_clients=8, overlap=0.5)
    got = subsample_clients(whole, SIXTY, 12, seed=1)
    assert got.local_clusters == whole.local_clusters
    for rows, before in zip(got.clients, whole.clients, strict=True):
        assert len(rows) == 12
        assert set(rows) <= set(before)
    held = np.concatenate(got.clients)
    np.testing.assert_array_equal(got.left_out, np.setdiff1d(np.arange(600), held))
    assert (counts(SIXTY, got) > 0).sum(axis=1).tolist() == list(got.local_clusters)


# --- subsample_clients


def by_hand(*sizes):
    """A single client that holds so many rows of classes 0, 1, ...; row 0 is nobody's.
    The rows are held in descending order."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.arange(len(labels), 0, -1)
    return np.concatenate([[0], labels]), Partition((rows,), np.array([0]))


@pytest.mark.parametrize(
    ("sizes", "size", "expected"),
    [
        ((6, 3, 3), 4, [2, 1, 1]),
        # Shares 3.33, 1.25 and 0.42: the last remainder is the largest.
        ((8, 3, 1), 5, [3, 1, 1]),
        # Shares 2.5 and 2.5: the first class at a tie.
        ((4, 4), 5, [3, 2]),
        # Shares 4.0, 0.5 and 0.5: class 2 would vanish and takes one of class 0.
        ((8, 1, 1), 5, [3, 1, 1]),
        # Shares 5.7 and 0.06 five times: all but class 0 would vanish.
        ((90, 1, 1, 1, 1, 1), 6, [1, 1, 1, 1, 1, 1]),
        # Fewer than classes: the largest remainders, 0.67 each, the first at a tie.
        ((2, 2, 2), 2, [1, 1, 0]),
        ((1, 5), 1, [0, 1]),
        ((3, 2), 5, [3, 2]),
        ((3, 2), 99, [3, 2]),
    ],
)
def test_how_many_of_each_class_are_kept(sizes, size, expected):
    labels, partition = by_hand(*sizes)
    got = subsample_clients(partition, labels, size, seed=0)
    found = np.bincount(labels[got.clients[0]], minlength=len(sizes))
    np.testing.assert_array_equal(found, expected)
    check_rows_once(got, len(labels))
    assert got.left_out[0] == 0
    assert (np.diff(got.clients[0]) < 0).all()  # in the order in which they were dealt


def test_subsets_are_drawn_at_random():
    """Half of 100 rows: a row is in about half of the subsets of 400 seeds, 200 give or
    take four standard deviations of 10."""
    labels, partition = by_hand(60, 40)
    times = np.zeros(101)
    for seed in range(400):
        times[subsample_clients(partition, labels, 50, seed=seed).clients[0]] += 1
    assert times[0] == 0
    assert np.abs(times[1:] - 200).max() < 45


def test_a_smaller_subset_lies_within_a_larger_one():
    labels = np.arange(60) % 3
    whole = drawn_classes(labels, 4, 2, seed=0)
    few, more = (subsample_clients(whole, labels, size, seed=9) for size in (4, 8))
    for small, large in zip(few.clients, more.clients, strict=True):
        assert set(small) < set(large)
