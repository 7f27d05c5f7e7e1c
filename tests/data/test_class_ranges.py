"""Dealing by ranges of classes: by properties, by hand, and what is refused."""

import numpy as np
import pytest

from fcjax.data import Partition, class_ranges, federate, thinned
from fcjax.data.partition_by_range import rows_held

TEN = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60)) * 2 - 3
"""Sixty rows of each of ten classes."""


def deal(labels=TEN, num_clients=12, overlap=0.0, *, held=(2, 5), size=20, seed=0):
    return class_ranges(
        labels,
        num_clients,
        overlap,
        class_range=held,
        samples_per_class=size,
        seed=seed,
    )


def counts(labels, partition):
    """[M, K]: how many rows of each class a client holds."""
    classes = np.unique(labels)
    return np.array([[(labels[r] == c).sum() for c in classes] for r in partition[0]])


def shared(labels, partition, c):
    """Of a class: the rows of each holder, and those that all of them hold."""
    each = [set(r[labels[r] == c].tolist()) for r in partition.clients]
    each = [rows for rows in each if rows]
    return each, set.intersection(*each) if each else set()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_clients", [1, 5, 30])
@pytest.mark.parametrize("overlap", [0.0, 0.3, 0.5, 0.95])
def test_properties(num_clients, overlap, seed):
    got = deal(num_clients=num_clients, overlap=overlap, seed=seed)
    found = counts(TEN, got)
    num_held = (found > 0).sum(axis=1)
    assert num_held.min() >= 2
    assert num_held.max() <= 5
    assert got.local_clusters == tuple(num_held)
    sets = {tuple(row) for row in found > 0}
    assert len(sets) == num_clients
    for rows in got.clients:
        assert len(set(rows.tolist())) == len(rows)
    held = np.concatenate(got.clients)
    np.testing.assert_array_equal(got.left_out, np.setdiff1d(np.arange(600), held))
    for c, of_class in zip(np.unique(TEN), found.T, strict=True):
        own = of_class[of_class > 0]
        n = len(own)
        if n == 0:
            continue
        q = min(20, 60 // n)
        each, common = shared(TEN, got, c)
        given = int(np.floor(overlap * q / (n + overlap - n * overlap) + 1e-9))
        assert (own == q + (n - 1) * given).all()
        assert (own == rows_held(q, n, overlap)).all()
        if n > 1:
            assert len(common) == n * given
            # What is not common is one client's alone.
            assert len(set.union(*each)) == n * q
            # One more of each client would be more than is asked for.
            assert len(common) <= overlap * own[0] + 1e-6
            more = n * (given + 1) / (q + (n - 1) * (given + 1))
            assert more > overlap


def test_without_overlap_no_row_is_held_twice():
    got = deal(num_clients=40)
    held = np.concatenate([*got.clients, got.left_out])
    np.testing.assert_array_equal(np.sort(held), np.arange(600))


def test_a_class_that_is_short_is_split_evenly_over_its_holders():
    """Both clients hold both classes: of 7 rows they get 3 each, of 40 five each."""
    labels = np.array([1] * 7 + [4] * 40)
    got = deal(labels, 2, held=(2, 2), size=5)
    np.testing.assert_array_equal(counts(labels, got), [[3, 5], [3, 5]])
    assert (labels[got.left_out] == 1).sum() == 1
    assert (labels[got.left_out] == 4).sum() == 30


@pytest.mark.parametrize(
    ("overlap", "given", "share"),
    [
        # Two holders of 9 rows: floor(9 O / (2 - O)).
        (0.0, 0, 0),
        (0.5, 3, 6 / 12),  # 4.5 / 1.5
        (0.2, 1, 2 / 10),  # 1.8 / 1.8
        (0.4, 2, 4 / 11),  # 3.6 / 1.6 = 2.25
        (0.9, 7, 14 / 16),  # 8.1 / 1.1 = 7.4
    ],
)
def test_the_share_that_is_common_by_hand(overlap, given, share):
    labels = np.array([0] * 18 + [1] * 18)
    got = deal(labels, 2, overlap, held=(2, 2), size=9)
    first, second = got.clients
    for c in (0, 1):
        (one, other), common = shared(labels, got, c)
        assert len(common) == 2 * given
        assert len(one) == len(other) == 9 + given
        assert len(common) / len(one) == share
    # A client's own rows come before those of the other: 9 and then what it gave.
    plain = deal(labels, 2, held=(2, 2), size=9)
    for got_rows, own, others in zip(
        (first, second), plain.clients, reversed(plain.clients), strict=True
    ):
        expected = [own[:9], others[:given], own[9:], others[9 : 9 + given]]
        np.testing.assert_array_equal(got_rows, np.concatenate(expected))


def test_numbers_of_classes_are_uniform():
    """3000 clients of different seeds draw 2, 3, 4 or 5 classes: 750 each, give or take
    five standard deviations of sqrt(3000 / 4 * 3 / 4) = 23.7."""
    drawn = [
        deal(num_clients=3, size=1, seed=seed).local_clusters for seed in range(1000)
    ]
    times = np.bincount(np.ravel(drawn), minlength=6)
    assert times[:2].sum() == 0
    assert np.abs(times[2:] - 750).max() < 118


def test_it_ends_where_there_are_fewer_sets_of_classes_than_clients():
    got = deal(num_clients=4, held=(10, 10), size=5)
    np.testing.assert_array_equal(counts(TEN, got), np.full((4, 10), 5))


def test_the_seed_alone_decides():
    for one, same in zip(deal(seed=3).clients, deal(seed=3).clients, strict=True):
        np.testing.assert_array_equal(one, same)
    other = deal(seed=4)
    assert any(
        not np.array_equal(a, b)
        for a, b in zip(deal(seed=3).clients, other.clients, strict=True)
    )


def test_a_subset_of_shared_rows_leaves_out_what_nobody_holds_any_more():
    whole = deal(num_clients=8, overlap=0.5)
    got = thinned(whole, TEN, 12, seed=1)
    assert got.local_clusters == whole.local_clusters
    for rows, before in zip(got.clients, whole.clients, strict=True):
        assert len(rows) == 12
        assert set(rows.tolist()) <= set(before.tolist())
    held = set(np.concatenate(got.clients).tolist())
    assert set(got.left_out.tolist()) == set(range(600)) - held
    assert (counts(TEN, got) > 0).sum(axis=1).tolist() == list(got.local_clusters)


def test_clients_look_for_as_many_clusters_as_their_partition_says():
    rows = (np.array([0, 1]), np.array([1, 2]))
    partitions = [
        Partition(rows, np.array([3]), (2, 5)),
        Partition(rows, np.array([3])),
    ]
    present = np.ones((2, 1, 2), bool)
    got = federate(np.zeros((4, 1), np.float32), partitions, present, num_clusters=7)
    np.testing.assert_array_equal(got.local_clusters, [[2, 5], [7, 7]])
    np.testing.assert_array_equal(got.indices[0], [[0, 1], [1, 2]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overlap": 1.0}, r"^--overlap must lie in \[0, 1\), got 1.0$"),
        ({"overlap": -0.1}, r"^--overlap must lie in \[0, 1\), got -0.1$"),
        ({"overlap": float("nan")}, r"^--overlap must lie in \[0, 1\), got nan$"),
        ({"held": (0, 2)}, r"^--class-range must be two of 1..10, .* got 0 2$"),
        ({"held": (3, 2)}, r"^--class-range must be two of 1..10, .* got 3 2$"),
        ({"held": (2, 11)}, r"^--class-range must be two of 1..10, .* got 2 11$"),
        ({"size": 0}, r"^--samples-per-class must be at least 1, got 0$"),
        ({"num_clients": 0}, r"^--clients must lie in 1..600"),
        (
            {"num_clients": 70, "held": (10, 10)},
            r"^--class-range 10 10 with --clients 70 has 70 clients share class -3, of "
            r"which there are 60 examples; give fewer of either$",
        ),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        deal(**options)
