"""Partitions by hand and by properties; padding; failures."""

import numpy as np
import pytest

from fcjax.data import (
    Partition,
    deal,
    dirichlet,
    failures,
    federate,
    federate_left_out,
    heterogeneous,
)


def permuted(rows, seed):
    return np.random.default_rng(seed).permutation(np.array(rows))


def unbalanced(num_examples, num_classes, seed):
    """Labels 3, 6, 9, ... with a geometric imbalance; every class occurs."""
    rng = np.random.default_rng(seed)
    shares = 0.6 ** np.arange(num_classes)
    drawn = rng.choice(num_classes, num_examples, p=shares / shares.sum())
    drawn[:num_classes] = np.arange(num_classes)
    return 3 * rng.permutation(drawn) + 3


def check_rows_once(partition, num_examples):
    held = np.concatenate([*partition.clients, partition.left_out])
    np.testing.assert_array_equal(np.sort(held), np.arange(num_examples))
    assert all(len(rows) for rows in partition.clients)


def test_the_papers_rule_by_hand():
    labels = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2])
    rest = permuted([3, 6, 4, 7, 5, 8], seed=20)
    got = heterogeneous(labels, 3, 1 / 3, seed=20)
    np.testing.assert_array_equal(got.clients[0], [0, *rest[:2]])
    np.testing.assert_array_equal(got.clients[1], [1, *rest[2:4]])
    np.testing.assert_array_equal(got.clients[2], [2, *rest[4:]])
    assert len(got.left_out) == 0


def test_full_heterogeneity_gives_each_client_its_whole_class():
    labels = np.array([9, -4, 9, 0, -4, 9])
    got = heterogeneous(labels, 3, 1.0, seed=0)
    for rows, expected in zip(got.clients, ([1, 4], [3], [0, 2, 5]), strict=True):
        np.testing.assert_array_equal(rows, expected)
    assert len(got.left_out) == 0


def test_more_clients_than_classes_share_a_class_by_consecutive_heads():
    labels = np.array([5, 5, 5, 5, 5, 9, 9, 9, 9])
    rest = permuted([2, 3, 4, 7, 8], seed=1)
    got = heterogeneous(labels, 4, 0.5, seed=1)
    for client, head in enumerate([0, 5, 1, 6]):
        np.testing.assert_array_equal(got.clients[client], [head, rest[client]])
    np.testing.assert_array_equal(got.left_out, rest[4:])

    got = heterogeneous(labels, 6, 1.0, seed=1)
    shares = [[0, 1], [5, 6], [2, 3], [7], [4], [8]]
    for rows, expected in zip(got.clients, shares, strict=True):
        np.testing.assert_array_equal(rows, expected)


def test_fewer_clients_than_classes_split_the_head_over_their_classes():
    labels = np.array([0, 1, 2] * 4)
    rest = permuted([6, 9, 10, 5, 8, 11], seed=2)
    got = heterogeneous(labels, 2, 0.5, seed=2)
    np.testing.assert_array_equal(got.clients[0], [0, 3, 2, *rest[:3]])
    np.testing.assert_array_equal(got.clients[1], [1, 4, 7, *rest[3:]])

    got = heterogeneous(labels, 2, 1.0, seed=2)
    np.testing.assert_array_equal(got.clients[0], [0, 3, 6, 9, 2, 5, 8, 11])
    np.testing.assert_array_equal(got.clients[1], [1, 4, 7, 10])


def test_a_home_class_that_runs_out_is_made_up_from_the_pool():
    labels = np.array([0, 0, 0, 0, 0, 0, 0, 1])
    rest = permuted([3, 4, 5, 6], seed=3)
    got = heterogeneous(labels, 2, 0.75, seed=3)
    np.testing.assert_array_equal(got.clients[0], [0, 1, 2, rest[0]])
    np.testing.assert_array_equal(got.clients[1], [7, *rest[1:]])


@pytest.mark.parametrize(
    ("num_examples", "p", "head", "tail", "num_left_out"),
    [
        (70_000, 0.25, 1750, 5250, 0),
        (70_000, 0.5, 3500, 3500, 0),
        (70_000, 0.75, 5250, 1750, 0),
        (60_000, 0.25, 1500, 4500, 0),
        (60_000, 0.5, 3000, 3000, 0),
        (60_000, 0.75, 4500, 1500, 0),
        (13_000, 0.25, 325, 975, 0),
        (13_000, 0.5, 650, 650, 0),
        (13_000, 0.75, 975, 325, 0),
        (10_992, 0.25, 275, 824, 2),
        (10_992, 0.75, 824, 275, 2),
    ],
)
def test_published_sizes(num_examples, p, head, tail, num_left_out):
    labels = np.arange(num_examples) % 10
    got = heterogeneous(labels, 10, p, seed=20)
    # Row j of class i is row 10 j + i of the pool.
    pool = [np.arange(10 * head + i, num_examples, 10) for i in range(10)]
    rest = permuted(np.concatenate(pool), seed=20)
    for i, rows in enumerate(got.clients):
        np.testing.assert_array_equal(rows[:head], 10 * np.arange(head) + i)
        np.testing.assert_array_equal(rows[head:], rest[i * tail : (i + 1) * tail])
    assert len(got.left_out) == num_left_out


def test_pendigits_halves_round_up_and_the_last_client_gets_fewer():
    got = heterogeneous(np.arange(10_992) % 10, 10, 0.5, seed=20)
    assert [len(rows) for rows in got.clients] == [1100] * 9 + [1092]
    assert len(got.left_out) == 0
    assert all((rows[:550] % 10 == i).all() for i, rows in enumerate(got.clients))


@pytest.mark.parametrize("seed", [0, 20])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize(
    ("num_examples", "num_classes", "num_clients"),
    [(100, 10, 10), (103, 10, 10), (97, 4, 9), (120, 7, 3), (50, 5, 1), (64, 1, 4)],
)
def test_heterogeneous_properties(num_examples, num_classes, num_clients, p, seed):
    labels = np.arange(num_examples) % num_classes
    got = heterogeneous(labels, num_clients, p, seed=seed)
    check_rows_once(got, num_examples)
    if p == 1:
        assert len(got.left_out) == 0
        for client, rows in enumerate(got.clients):
            homes = {client % num_classes, *range(client, num_classes, num_clients)}
            assert set(labels[rows]) == homes
    else:
        sizes = np.array([len(rows) for rows in got.clients])
        size = num_examples // num_clients
        assert (abs(sizes - size) <= 1).all() or sizes.sum() == num_examples
        assert (sizes[:-1] == sizes[0]).all() or sizes.sum() == num_examples


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 0.8, 0.99])
@pytest.mark.parametrize("num_clients", [1, 3, 8, 20])
def test_heterogeneous_with_unbalanced_classes(num_clients, p, seed):
    labels = unbalanced(400, 8, seed)
    got = heterogeneous(labels, num_clients, p, seed=seed)
    check_rows_once(got, 400)
    sizes = np.array([len(rows) for rows in got.clients])
    size = 400 // num_clients
    assert (abs(sizes[:-1] - size) <= 1).all()
    assert size - num_clients <= sizes[-1] <= size + 1


@pytest.mark.parametrize("num_clients", [1, 7, 100])
@pytest.mark.parametrize("alpha", [1e-300, 1e-3, 0.1, 1.0, 1e6])
@pytest.mark.parametrize("seed", [0, 5])
def test_dirichlet_holds_every_row_and_leaves_no_client_empty(num_clients, alpha, seed):
    labels = unbalanced(500, 6, seed)
    got = dirichlet(labels, num_clients, alpha, seed=seed)
    check_rows_once(got, 500)
    assert len(got.clients) == num_clients
    assert len(got.left_out) == 0


def test_dirichlet_with_as_many_clients_as_rows():
    got = dirichlet(np.zeros(100, int), 100, 1e-3, seed=0)
    assert [len(rows) for rows in got.clients] == [1] * 100


def test_dirichlet_concentration():
    labels = np.repeat(np.arange(10), 1000)
    even = dirichlet(labels, 10, 1e8, seed=0).clients
    counts = np.array([np.bincount(labels[rows], minlength=10) for rows in even])
    assert abs(counts - 100).max() <= 2
    skewed = dirichlet(labels, 10, 1e-3, seed=0).clients
    counts = np.array([np.bincount(labels[rows], minlength=10) for rows in skewed])
    assert counts.max(axis=0).mean() > 900


@pytest.mark.parametrize("make", [heterogeneous, dirichlet])
def test_partitions_follow_from_their_seed(make):
    labels = np.arange(300) % 10
    first, again, other = (make(labels, 10, 0.5, seed=seed) for seed in (1, 1, 2))
    same = [np.array_equal(a, b) for a, b in zip(first[0], again[0], strict=True)]
    assert all(same)
    differ = [np.array_equal(a, b) for a, b in zip(first[0], other[0], strict=True)]
    assert not any(differ)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda y: heterogeneous(y, 2, 1.2, seed=0), r"--p must lie in \[0, 1\].*1\.2"),
        (lambda y: heterogeneous(y, 2, float("nan"), seed=0), r"--p must .* got nan"),
        (lambda y: heterogeneous(y, 0, 0.5, seed=0), r"--clients must lie in 1\.\.6"),
        (lambda y: heterogeneous(y, 7, 0.5, seed=0), r"--clients must .* got 7"),
        (lambda y: heterogeneous(y, 5, 1.0, seed=0), r"--clients 5 leaves client 3"),
        # One row a client rounds to head 0 and tail 0.
        (lambda y: heterogeneous(y, 6, 0.5, seed=0), r"--clients 6 leaves client 0"),
        (lambda y: dirichlet(y, 2, 0.0, seed=0), r"--alpha must be positive .* got 0"),
        (lambda y: dirichlet(y, 2, float("inf"), seed=0), r"--alpha must .* finite"),
        (lambda y: dirichlet(y, 7, 1.0, seed=0), r"--clients must lie in 1\.\.6"),
        (lambda y: failures(4, 1.5, seed=0), r"--failure-rate must lie in \[0, 1\]"),
        (lambda y: failures(4, -0.5, seed=0), r"--failure-rate must .* got -0\.5"),
        (lambda y: failures(4, 1.0, seed=0), r"--failure-rate 1\.0 fails all 4"),
        (lambda y: failures(4, 0.9, seed=0), r"--failure-rate 0\.9 fails all 4"),
        (
            lambda y: failures(4, 0.9, seed=0, num_rounds=2),
            r"--failure-rate 0\.9 fails all 4",
        ),
    ],
)
def test_bad_input_names_the_flag_in_one_line(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call(np.array([0, 0, 0, 0, 0, 1]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("rate", "num_absent"), [(0, 0), (0.25, 2), (0.5, 5), (0.9, 9)]
)
def test_failures_count(rate, num_absent):
    present = failures(10, float(rate), seed=3)
    assert present.shape == (1, 10)
    assert present.dtype == bool
    assert (~present).sum() == num_absent


def test_failures_are_nested_and_follow_from_the_seed():
    few, many = failures(50, 0.2, seed=0), failures(50, 0.6, seed=0)
    assert (few | ~many).all()
    np.testing.assert_array_equal(few, failures(50, 0.2, seed=0))
    assert (few != failures(50, 0.2, seed=1)).any()


@pytest.mark.parametrize(
    ("rate", "num_absent"),
    # Halves to even: 2.5 of ten is 2, 3.5 is 4.
    [(0.0, 0), (0.25, 2), (0.35, 4), (0.9, 9)],
)
def test_as_many_fail_in_every_round(rate, num_absent):
    present = failures(10, rate, seed=3, num_rounds=40)
    assert present.shape == (40, 10)
    assert present.dtype == bool
    np.testing.assert_array_equal((~present).sum(axis=1), [num_absent] * 40)


def test_each_round_draws_anew_and_spares_nobody():
    """A client is absent in a round with probability 0.3; 400 rounds, five sigma."""
    present = failures(10, 0.3, seed=0, num_rounds=400)
    assert len(np.unique(present, axis=0)) > 50
    expected, sigma = 400 * 0.7, np.sqrt(400 * 0.3 * 0.7)
    assert (abs(present.sum(axis=0) - expected) < 5 * sigma).all()


def test_failures_of_a_round_are_nested_and_follow_from_the_seed():
    few = failures(50, 0.2, seed=0, num_rounds=6)
    many = failures(50, 0.6, seed=0, num_rounds=6)
    assert (few | ~many).all()
    other = failures(50, 0.2, seed=1, num_rounds=6)
    assert (few != other).any(axis=1).all()
    # Whatever the number of rounds, the first ones are the same.
    np.testing.assert_array_equal(few[:4], failures(50, 0.2, seed=0, num_rounds=4))
    np.testing.assert_array_equal(few[:1], failures(50, 0.2, seed=0))


def grid():
    one = Partition((np.array([4, 1, 3]), np.array([0])), np.array([2, 5]))
    two = Partition((np.array([5]), np.array([2, 0, 1, 4, 3])), np.array([], int))
    present = [np.array([[True, False]]), np.array([[True, True]])]
    return [one, two], present


def test_federate_repeats_a_short_clients_own_rows():
    pool = np.arange(6 * 4, dtype=np.uint8).reshape(6, 2, 2, 1)
    partitions, present = grid()
    got = federate(pool, partitions, present, num_clusters=7)
    np.testing.assert_array_equal(
        got.indices,
        [[[4, 1, 3, 4, 1], [0, 0, 0, 0, 0]], [[5, 5, 5, 5, 5], [2, 0, 1, 4, 3]]],
    )
    mask = [[[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], [[1, 0, 0, 0, 0], [1, 1, 1, 1, 1]]]
    np.testing.assert_array_equal(got.mask, np.array(mask, bool))
    np.testing.assert_array_equal(got.present, [[[True, False]], [[True, True]]])
    np.testing.assert_array_equal(got.local_clusters, [[7, 7], [7, 7]])
    np.testing.assert_array_equal(got.pool, pool)
    assert [str(a.dtype) for a in got] == ["uint8", "int32", "bool", "bool", "int32"]


def test_federate_keeps_the_rows_of_every_partition():
    labels = unbalanced(90, 5, seed=0)
    partitions = [
        heterogeneous(labels, 4, p, seed=s) for p in (0.2, 1.0) for s in (0, 1)
    ]
    present = np.ones((4, 3, 4), bool)
    got = federate(labels.astype(np.float32), partitions, present, num_clusters=5)
    assert got.present.shape == (4, 3, 4)
    for run, partition in enumerate(partitions):
        for client, rows in enumerate(partition.clients):
            indices = np.asarray(got.indices[run, client])
            mask = np.asarray(got.mask[run, client])
            np.testing.assert_array_equal(indices[mask], rows)
            assert set(indices) == set(rows)


def test_left_out_rows_are_one_client():
    pool = np.zeros((6, 1), np.float32)
    partitions, _ = grid()
    got = federate_left_out(pool, partitions, num_clusters=3)
    assert got is not None
    np.testing.assert_array_equal(got.indices, [[[2, 5]], [[0, 0]]])
    np.testing.assert_array_equal(got.mask, [[[True, True]], [[False, False]]])
    np.testing.assert_array_equal(got.present, [[[True]], [[True]]])
    np.testing.assert_array_equal(got.local_clusters, [[3], [3]])
    assert federate_left_out(pool, partitions[1:], num_clusters=3) is None


def test_a_grid_that_does_not_fit_together_is_refused():
    pool = np.zeros((6, 1), np.float32)
    (one, two), present = grid()
    short = Partition(two.clients[:1], two.left_out)
    with pytest.raises(ValueError, match=r"same --clients, got \[2, 1\]"):
        federate(pool, [one, short], present, num_clusters=2)
    with pytest.raises(ValueError, match=r"same --clients, got \[\]"):
        federate(pool, [], present, num_clusters=2)
    with pytest.raises(ValueError, match=r"`present` is for 1 runs of 2 clients"):
        federate(pool, [one, two], present[:1], num_clusters=2)
    with pytest.raises(ValueError, match=r"same rounds in `present`"):
        federate(pool, [one, two], [present[0], np.ones((2, 2), bool)], num_clusters=2)
    with pytest.raises(ValueError, match=r"row 5 of a partition is not in the pool"):
        federate(pool[:5], [one, two], present, num_clusters=2)


def test_further_rows_are_dealt_evenly_and_once():
    partition = Partition((np.array([0, 2]), np.array([1])), np.array([3]))
    got = deal(partition, np.arange(4, 9), seed=3)
    drawn = permuted([4, 5, 6, 7, 8], seed=3)
    np.testing.assert_array_equal(got.clients[0], [0, 2, *drawn[:3]])
    np.testing.assert_array_equal(got.clients[1], [1, *drawn[3:]])
    np.testing.assert_array_equal(got.left_out, [3])


def test_no_further_rows_change_nothing():
    partition = heterogeneous(np.array([0, 1, 0, 1]), 2, 0.0, seed=0)
    assert deal(partition, np.arange(0), seed=0) is partition
