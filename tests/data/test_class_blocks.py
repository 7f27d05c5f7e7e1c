"""Dealing by consecutive classes: by hand, by properties, and what is refused."""

import re

import numpy as np
import pytest

from fcjax.data import class_blocks

TEN = np.arange(100) % 10
"""Ten rows of each of ten classes."""


def classes_of(labels, partition):
    return [sorted({int(label) for label in labels[rows]}) for rows in partition[0]]


def counts(labels, partition):
    """[M, K]: how many rows of each class a client holds."""
    classes = np.unique(labels)
    return np.array([[(labels[r] == c).sum() for c in classes] for r in partition[0]])


def check_every_row_is_held_once(partition, num_examples):
    held = np.concatenate(partition.clients)
    np.testing.assert_array_equal(np.sort(held), np.arange(num_examples))
    assert len(partition.left_out) == 0
    assert all(len(rows) for rows in partition.clients)


def test_the_papers_two_clients_of_ten_classes():
    disjoint = class_blocks(TEN, 2, 0.5, seed=0)
    assert classes_of(TEN, disjoint) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    np.testing.assert_array_equal(
        counts(TEN, disjoint), [[10] * 5 + [0] * 5, [0] * 5 + [10] * 5]
    )
    even = class_blocks(TEN, 2, 1.0, seed=0)
    np.testing.assert_array_equal(counts(TEN, even), np.full((2, 10), 5))


def test_windows_that_overlap_go_on_at_the_first_class():
    # Five clients begin at 0, 2, 4, 6, 8 and hold round(0.4 * 10) = 4 classes.
    got = class_blocks(TEN, 5, 0.4, seed=0)
    assert classes_of(TEN, got) == [
        [0, 1, 2, 3],
        [2, 3, 4, 5],
        [4, 5, 6, 7],
        [6, 7, 8, 9],
        [0, 1, 8, 9],
    ]
    # Every class has two holders.
    assert set(counts(TEN, got).ravel().tolist()) == {0, 5}
    # Ascending classes, whatever they are called.
    names = np.array([-7, 3, 11])[np.arange(9) % 3]
    assert classes_of(names, class_blocks(names, 3, 0.67, seed=0)) == [
        [-7, 3],
        [3, 11],
        [-7, 11],
    ]


def test_rows_by_hand():
    """Class 4 is permuted first, then class 9; the odd row of class 9 goes to client 1,
    who has fewer rows so far."""
    labels = np.array([4, 9, 4, 4, 9, 9])
    rng = np.random.default_rng(5)
    four, nine = rng.permutation(np.array([0, 2, 3])), rng.permutation([1, 4, 5])
    got = class_blocks(labels, 2, 1.0, seed=5)
    np.testing.assert_array_equal(got.clients[0], [four[0], four[1], nine[2]])
    np.testing.assert_array_equal(got.clients[1], [four[2], nine[0], nine[1]])


@pytest.mark.parametrize(
    ("num_classes", "num_clients", "share", "expected"),
    [
        # Starts 0, 3, 6: the last block has what is left over.
        (10, 3, 1 / 3, [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]),
        (10, 3, 0.333, [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]),
        (10, 3, 0.3333, [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]),
        # 11 / 4 rounds to 3, which would make blocks overlap: starts 0, 2, 5, 8.
        (11, 4, 0.25, [[0, 1], [2, 3, 4], [5, 6, 7], [8, 9, 10]]),
        (10, 6, 1 / 6, [[0], [1, 2], [3, 4], [5], [6, 7], [8, 9]]),
        (10, 6, 0.167, [[0], [1, 2], [3, 4], [5], [6, 7], [8, 9]]),
        # A block is held whole, though round(0.34 * 10) = 3 is fewer than 4.
        (10, 3, 0.34, [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]),
        # Halves to even: 2.5 is 2, 3.5 is 4.
        (5, 4, 0.5, [[0, 1], [1, 2], [2, 3], [3, 4]]),
        (5, 4, 0.7, [[0, 1, 2, 3], [1, 2, 3, 4], [0, 2, 3, 4], [0, 1, 3, 4]]),
        # More clients than classes: starts 0, 0, 0, 1, 1.
        (2, 5, 0.2, [[0], [0], [0], [1], [1]]),
        (2, 5, 0.5, [[0], [0], [0], [1], [1]]),
        (2, 5, 1.0, [[0, 1]] * 5),
        (4, 1, 1.0, [[0, 1, 2, 3]]),
        (1, 3, 1 / 3, [[0]] * 3),
    ],
)
def test_who_holds_which_classes(num_classes, num_clients, share, expected):
    labels = np.arange(40 * num_classes) % num_classes
    got = class_blocks(labels, num_clients, share, seed=1)
    assert classes_of(labels, got) == expected
    check_every_row_is_held_once(got, len(labels))


def test_clients_that_share_a_class_share_it_evenly():
    labels = np.array([0] * 7 + [1] * 5)
    got = class_blocks(labels, 5, 0.2, seed=0)
    np.testing.assert_array_equal(
        counts(labels, got), [[3, 0], [2, 0], [2, 0], [0, 3], [0, 2]]
    )


def test_odd_rows_go_to_those_with_the_fewest_rows():
    """Six rows of each of ten classes among ten clients: were the first ones always
    preferred, four clients would get nothing."""
    labels = np.arange(60) % 10
    got = class_blocks(labels, 10, 1.0, seed=0)
    assert [len(rows) for rows in got.clients] == [6] * 10


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("num_clients", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.8, 1.0])
def test_properties_with_unbalanced_classes(num_clients, share, seed):
    """`share` is how far from disjoint to even."""
    rng = np.random.default_rng(seed)
    labels = 2 * rng.choice(7, 500, p=np.array([30, 20, 20, 10, 10, 5, 5]) / 100) - 3
    share = 1 / num_clients + share * (1 - 1 / num_clients)
    got = class_blocks(labels, num_clients, share, seed=seed)
    check_every_row_is_held_once(got, 500)
    held = counts(labels, got)
    for of_class in held.T:
        holders = of_class[of_class > 0]
        assert holders.max() - holders.min() <= 1
    if share == 1:
        assert (held > 0).all()
        assert held.sum(axis=1).max() - held.sum(axis=1).min() <= 1
    if share == 1 / num_clients and num_clients <= 7:
        assert ((held > 0).sum(axis=0) == 1).all()


def test_it_follows_from_its_seed():
    first, again, other = (class_blocks(TEN, 5, 0.4, seed=s) for s in (1, 1, 2))
    for one, same, differs in zip(first[0], again[0], other[0], strict=True):
        np.testing.assert_array_equal(one, same)
        assert sorted(one) != sorted(differs)


@pytest.mark.parametrize(
    ("num_clients", "share", "message"),
    [
        (
            3,
            0.33,
            "--class-share must lie in [1/CLIENTS, 1], which is [0.333, 1] for "
            "--clients 3, got 0.33",
        ),
        (
            2,
            1.001,
            "--class-share must lie in [1/CLIENTS, 1], which is [0.5, 1] for "
            "--clients 2, got 1.001",
        ),
        (
            1,
            0.5,
            "--class-share must lie in [1/CLIENTS, 1], which is [1, 1] for "
            "--clients 1, got 0.5",
        ),
        (
            2,
            float("nan"),
            "--class-share must lie in [1/CLIENTS, 1], which is [0.5, 1] for "
            "--clients 2, got nan",
        ),
        (0, 1.0, "--clients must lie in 1..6, the number of examples, got 0"),
        (7, 1.0, "--clients must lie in 1..6, the number of examples, got 7"),
        (
            # Clients 3 and 4 hold class 1, of which there is one row.
            5,
            0.2,
            "--clients 5 leaves client 4 with no examples at --class-share 0.2; give "
            "fewer clients or more examples than 6",
        ),
    ],
)
def test_bad_input_names_the_flag_in_one_line(num_clients, share, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        class_blocks(np.array([0, 0, 0, 0, 0, 1]), num_clients, share, seed=0)
