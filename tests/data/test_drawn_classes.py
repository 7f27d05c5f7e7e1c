"""Dealing by drawn classes, and a subset of what is dealt: by hand, by properties, and
what is refused."""

import re

import numpy as np
import pytest

from fcjax.data import Partition, drawn_classes, heterogeneous, thinned

TEN = np.arange(100) % 10
"""Ten rows of each of ten classes."""


def counts(labels, partition):
    """[M, K]: how many rows of each class a client holds."""
    classes = np.unique(labels)
    return np.array([[(labels[r] == c).sum() for c in classes] for r in partition[0]])


def check_rows_once(partition, num_examples):
    held = np.concatenate([*partition.clients, partition.left_out])
    np.testing.assert_array_equal(np.sort(held), np.arange(num_examples))
    assert (np.diff(partition.left_out) > 0).all()


# --- drawn classes


@pytest.mark.parametrize("seed", [0, 1, 7])
@pytest.mark.parametrize("num_clients", [1, 2, 3, 8, 20])
@pytest.mark.parametrize("held", [1, 2, 5, 9, 10])
def test_properties_with_unbalanced_classes(num_clients, held, seed):
    rng = np.random.default_rng(100 + seed)
    labels = 3 * rng.permutation(np.repeat(np.arange(10), np.arange(20, 70, 5))) - 7
    got = drawn_classes(labels, num_clients, held, seed=seed)
    check_rows_once(got, len(labels))
    found = counts(labels, got)
    assert ((found > 0).sum(axis=1) == held).all()
    num_holders = (found > 0).sum(axis=0)
    assert num_holders.sum() == held * num_clients
    assert num_holders.max() - num_holders.min() <= 1
    for of_class in found.T:
        own = of_class[of_class > 0]
        assert len(own) == 0 or own.max() - own.min() <= 1
    nobodys = np.unique(labels)[num_holders == 0]
    np.testing.assert_array_equal(
        got.left_out, np.flatnonzero(np.isin(labels, nobodys))
    )
    if held * num_clients >= 10:
        assert len(got.left_out) == 0


def test_with_all_classes_it_is_even_in_every_class():
    got = drawn_classes(TEN, 5, 10, seed=3)
    np.testing.assert_array_equal(counts(TEN, got), np.full((5, 10), 2))


def test_two_clients_of_half_the_classes_are_complementary():
    """The second client draws from those classes that the first one left."""
    for seed in range(20):
        first, second = counts(TEN, drawn_classes(TEN, 2, 5, seed=seed))
        assert sorted(first) == sorted(second) == [0] * 5 + [10] * 5
        np.testing.assert_array_equal(first + second, 10)


def test_which_classes_are_drawn_is_random_and_even():
    """One client, three of ten classes, 600 seeds: each 180 times, give or take four
    standard deviations of sqrt(600 * 0.3 * 0.7) = 11.2."""
    times = np.zeros(10)
    for seed in range(600):
        times += counts(TEN, drawn_classes(TEN, 1, 3, seed=seed))[0] > 0
    assert times.sum() == 1800
    assert np.abs(times - 180).max() < 45


def test_rows_by_hand():
    """Both clients hold both classes: class 4 is permuted first, then class 9; its odd
    row goes to client 1, who has fewer rows so far. Two draws come before."""
    labels = np.array([4, 9, 4, 4, 9, 9])
    rng = np.random.default_rng(5)
    rng.permutation(2), rng.permutation(2)
    four, nine = rng.permutation(np.array([0, 2, 3])), rng.permutation([1, 4, 5])
    got = drawn_classes(labels, 2, 2, seed=5)
    np.testing.assert_array_equal(got.clients[0], [four[0], four[1], nine[2]])
    np.testing.assert_array_equal(got.clients[1], [four[2], nine[0], nine[1]])


def test_it_follows_from_its_seed():
    first, again, other = (drawn_classes(TEN, 5, 4, seed=s) for s in (1, 1, 2))
    for one, same, differs in zip(first[0], again[0], other[0], strict=True):
        np.testing.assert_array_equal(one, same)
        assert sorted(one) != sorted(differs)


@pytest.mark.parametrize(
    ("num_clients", "held", "message"),
    [
        (2, 0, "--classes-per-client must lie in 1..2, the number of classes, got 0"),
        (2, 3, "--classes-per-client must lie in 1..2, the number of classes, got 3"),
        (0, 1, "--clients must lie in 1..6, the number of examples, got 0"),
        (7, 1, "--clients must lie in 1..6, the number of examples, got 7"),
        (
            3,
            2,
            "--classes-per-client 2 with --clients 3 has 3 clients share class 8, of "
            "which there are 2 examples; give fewer of either",
        ),
    ],
)
def test_bad_input_names_the_flag_in_one_line(num_clients, held, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        drawn_classes(np.array([5, 5, 8, 5, 5, 8]), num_clients, held, seed=0)


# --- thinned


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
    got = thinned(partition, labels, size, seed=0)
    found = np.bincount(labels[got.clients[0]], minlength=len(sizes))
    np.testing.assert_array_equal(found, expected)
    check_rows_once(got, len(labels))
    assert got.left_out[0] == 0
    assert (np.diff(got.clients[0]) < 0).all()  # in the order in which they were dealt


@pytest.mark.parametrize("seed", [0, 4])
@pytest.mark.parametrize("size", [1, 7, 10, 23, 60, 500])
def test_properties_of_subsets(size, seed):
    rng = np.random.default_rng(seed)
    labels = 2 * rng.choice(
        10, 400, p=np.array([30, 20, 20, 10, 5, 5, 4, 3, 2, 1]) / 100
    )
    whole = heterogeneous(labels, 7, 0.5, seed=seed)
    got = thinned(whole, labels, size, seed=seed)
    check_rows_once(got, 400)
    before, after = counts(labels, whole), counts(labels, got)
    for own, all_of_it in zip(got.clients, whole.clients, strict=True):
        assert len(own) == min(size, len(all_of_it))
        assert set(own.tolist()) <= set(all_of_it.tolist())
    for many, few in zip(before, after, strict=True):
        share = many * min(1, size / many.sum())
        if size >= (many > 0).sum():
            assert ((few > 0) == (many > 0)).all()
        if (share[many > 0] >= 1).all():
            assert (np.abs(few - share) < 1).all()
    assert set(whole.left_out.tolist()) <= set(got.left_out.tolist())


def test_subsets_are_drawn_at_random_and_follow_from_their_seed():
    """Half of 100 rows: a row is in about half of the subsets of 400 seeds, 200 give or
    take four standard deviations of 10."""
    labels, partition = by_hand(60, 40)
    times = np.zeros(101)
    for seed in range(400):
        times[thinned(partition, labels, 50, seed=seed).clients[0]] += 1
    assert times[0] == 0
    assert np.abs(times[1:] - 200).max() < 45
    one, same = (thinned(partition, labels, 50, seed=3) for _ in "ab")
    np.testing.assert_array_equal(one.clients[0], same.clients[0])


def test_a_smaller_subset_lies_within_a_larger_one():
    labels = np.arange(60) % 3
    whole = drawn_classes(labels, 4, 2, seed=0)
    few, more = (thinned(whole, labels, size, seed=9) for size in (4, 8))
    for small, large in zip(few.clients, more.clients, strict=True):
        assert set(small.tolist()) < set(large.tolist())


def test_no_rows_are_no_subset():
    labels, partition = by_hand(3, 2)
    with pytest.raises(ValueError, match=r"^--client-size must be at least 1, got 0$"):
        thinned(partition, labels, 0, seed=0)
