"""Which runs a grid has, which of them share a program, and which a call."""

import jax
import numpy as np
import pytest

from fcjax.data import Dataset, Partition
from fcjax.grid import plan
from fcjax.grid.flags import Common
from fcjax.grid.plan import Group, Method, Shared
from fcjax.types import FederatedClustering, Stage

LABELS = np.array([0] * 6 + [1] * 2 + [2] * 3)
NAMES = ["p", "clients", "clusters", "batch_size", "rate", "failure_rate", "seed"]
ONE = {"batch_size": 4}
"""Settings of one program."""


def dataset(labels=LABELS):
    examples = np.arange(2.0 * len(LABELS), dtype=np.float32).reshape(-1, 2)
    return Dataset("by hand", examples, labels)


def never(settings):
    raise AssertionError("nothing is built to make a plan")


def describe(args, dataset, num_clients, num_clusters, **settings):
    chosen = {"batch_size": (4, 8), "rate": (0.1, 0.2), "rounds": 3, **settings}
    return Method("by hand", chosen, never, "global", {})


def groups(labels=LABELS, *, settings=None, num_extra=0, **flags):
    def method(*args):
        return describe(*args, **(settings or {}))

    flags = {"clients": (2,), "clusters": (3,), **flags}
    return plan.groups(Common(**flags), dataset(labels), num_extra, method)


def calls(group, runs_per_call):
    pool = jax.numpy.asarray(dataset().examples)
    return list(plan.calls(group._replace(runs_per_call=runs_per_call), pool))


def plain_group(num_runs):
    """Runs that differ in their seed alone, of one client each."""
    partition = Partition((np.arange(3),), np.arange(0))
    return Group(
        describe(None, None, 1, 2, batch_size=4),
        num_clients=1,
        num_clusters=2,
        points=tuple({"rate": 0.5, "seed": seed} for seed in range(num_runs)),
        partitions=(partition,) * num_runs,
        present=(np.ones((1, 1), bool),) * num_runs,
        num_slots=3,
        num_left_out=0,
    )


def seeds(found):
    return [[point["seed"] for point in call.points] for call in found]


# --- calls


@pytest.mark.parametrize(
    ("num_runs", "most", "expected"),
    [
        (15, 4, 3),  # 5 equal calls, not 4 + 4 + 4 + 3
        (10, 4, 2),  # 5 equal calls, fewer than twice the 3 that are needed
        (7, 3, 3),  # 7 calls of 1 are too many: 3 + 2 + 2
        (5, 2, 1),
        (8, 4, 4),
        (8, 1, 1),
        (1, 9, 1),
        (6, 100, 6),
    ],
)
def test_a_call_is_as_wide_as_fits_or_a_near_divisor(num_runs, most, expected):
    assert plan.width(num_runs, most) == expected


def test_the_width_bounds_memory_and_at_most_doubles_the_calls():
    for num_runs in range(1, 80):
        for most in range(1, 80):
            width = plan.width(num_runs, most)
            assert 1 <= width <= most
            assert -(-num_runs // width) < 2 * -(-num_runs // most)


@pytest.mark.parametrize("num_runs", [1, 7, 10])
def test_a_killed_grid_finds_the_calls_that_are_left(num_runs):
    """A session keeps the width of the whole grid and divides the runs that are left:
    were its calls others, their checkpoint would not be found."""
    group = plain_group(num_runs)
    for width in {plan.width(num_runs, most) for most in range(1, num_runs + 1)}:
        whole = seeds(calls(group, width))
        assert max(map(len, whole)) == len(whole[0]) == width
        assert [seed for call in whole for seed in call] == list(range(num_runs))
        for ended in range(1, len(whole)):
            first = whole[ended][0]
            left = plan.keep(group, lambda point, n=first: point["seed"] >= n)
            assert seeds(calls(left, width)) == whole[ended:]


def test_the_calls_of_a_group_have_the_same_shapes():
    """The largest client has 5 rows at p = 0, 9 at p = 1; 1 or no row is left out."""
    group, _ = groups(p=(0.0, 1.0), seed=(3, 5))
    found = calls(group, 4)
    assert [{point["p"] for point in call.points} for call in found] == [{0}, {1}]
    for call, sizes, num_left in zip(found, ([5, 5], [9, 2]), (1, 0), strict=True):
        federations, left_out = call.grid.federations, call.left_out
        assert federations.indices.shape == federations.mask.shape == (4, 2, 9)
        assert left_out.indices.shape == left_out.mask.shape == (4, 1, 1)
        np.testing.assert_array_equal(np.sum(federations.mask, -1), [sizes] * 4)
        np.testing.assert_array_equal(np.sum(left_out.mask, -1), [[num_left]] * 4)
        # Floats and seeds are arrays.
        rates = np.float32([0.1, 0.1, 0.2, 0.2])
        np.testing.assert_array_equal(call.grid.hyper.pop("rate"), rates)
        assert call.grid.hyper == {}
        keys = [jax.random.key_data(jax.random.key(seed)) for seed in (3, 5, 3, 5)]
        np.testing.assert_array_equal(jax.random.key_data(call.grid.keys), keys)
    # Methods without a common model leave out what nobody holds.
    alone = group._replace(method=group.method._replace(scope="client-mean"))
    assert calls(alone, 4)[0].left_out is None


# --- groups


def test_whole_numbers_have_a_group_each():
    found = groups(clients=(2, 3), clusters=(2, 3), p=(0.0, 1.0), seed=(0, 1))
    fixed = [
        (group.num_clients, group.num_clusters, group.method.settings["batch_size"])
        for group in found
    ]
    assert fixed == [(m, k, b) for m in (2, 3) for k in (2, 3) for b in (4, 8)]
    dealt = {}
    for group, (clients, clusters, batch_size) in zip(found, fixed, strict=True):
        assert group.method.settings["rate"] == (0.1, 0.2)
        assert group.method.settings["rounds"] == 3
        assert list(group.points) == [
            dict(zip(NAMES, values, strict=True))
            for values in [
                (p, clients, clusters, batch_size, rate, 0.0, seed)
                for p in (0.0, 1.0)
                for rate in (0.1, 0.2)
                for seed in (0, 1)
            ]
        ]
        assert all(list(point) == NAMES for point in group.points)
        for point, partition in zip(group.points, group.partitions, strict=True):
            key = (clients, point["p"], point["seed"])
            dealt.setdefault(key, set()).add(id(partition))
    # Runs that are dealt alike share a partition.
    assert len(dealt) == len(set.union(*dealt.values())) == 8
    assert all(len(same) == 1 for same in dealt.values())


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        ("alpha", (0.1, 1.0)),
        ("class_share", (0.5, 1.0)),
        ("classes_per_client", (2, 3)),
    ],
)
def test_another_rule_takes_the_place_of_p(rule, values):
    group, _ = groups(**{rule: values})
    assert all(list(point) == [rule, *NAMES[1:]] for point in group.points)
    assert [point[rule] for point in group.points] == [v for v in values for _ in "ab"]
    assert all(type(point[rule]) is type(values[0]) for point in group.points)


def test_class_share_deals_by_blocks_of_classes():
    """Six, two and three rows; client 0 has class 0, client 1 the others, or both have
    three, one and one or two."""
    group, _ = groups(class_share=(0.5, 1.0), settings={"rate": 0.1})
    sizes = [
        [np.bincount(LABELS[r], minlength=3).tolist() for r in part.clients]
        for part in group.partitions
    ]
    assert sizes == [[[6, 0, 0], [0, 2, 3]], [[3, 1, 2], [3, 1, 1]]]


def test_data_without_labels_is_dealt_at_random():
    group, _ = groups(None)
    assert {point["p"] for point in group.points} == {0.0}
    first, second = group.partitions[0].clients
    rows = sorted([*first, *second, *group.partitions[0].left_out])
    assert rows == list(range(11))
    assert (len(first), len(second)) == (5, 5)
    group, _ = groups(None, client_size=(3,))
    assert [len(rows) for rows in group.partitions[0].clients] == [3, 3]


# --- classes drawn for each client


def local(args, dataset, num_clients, num_clusters):
    """Clients that cluster on their own; the method says what it was described for."""
    settings = {"described": f"{num_clusters} of {num_clients}", "rate": (0.1, 0.2)}
    return Method("by hand", settings, never, "client-mean", {})


def in_common(*args):
    return local(*args)._replace(scope="global")


def drawn(describe, labels=LABELS, **flags):
    flags = {"clients": (2,), "classes_per_client": (2, 3), **flags}
    return plan.groups(Common(**flags), dataset(labels), 0, describe)


@pytest.mark.parametrize(
    ("describe", "flags", "expected"),
    [
        # On their own they look for as many clusters as they hold classes.
        (local, {}, [(2, "2 of 2", [2]), (3, "3 of 2", [3])]),
        (
            local,
            {"clients": (1, 2), "classes_per_client": (3, 2)},
            [
                *((3, "3 of 1", [3]), (2, "2 of 1", [2])),
                *((3, "3 of 2", [3]), (2, "2 of 2", [2])),
            ],
        ),
        # In common for all classes, however they are dealt.
        (in_common, {}, [(3, "3 of 2", [2, 3])]),
        (in_common, {"classes_per_client": (1,)}, [(3, "3 of 2", [1])]),
        # A given number holds for all levels.
        (local, {"clusters": (2,)}, [(2, "2 of 2", [2, 3])]),
        (in_common, {"clusters": (2,)}, [(2, "2 of 2", [2, 3])]),
        (local, {"clusters": (4,), "classes_per_client": (1,)}, [(4, "4 of 2", [1])]),
        # Of the 11 examples four clients of two clusters take 8.
        (
            local,
            {"clients": (4,), "classes_per_client": (1,), "clusters": (2,)},
            [(2, "2 of 4", [1])],
        ),
    ],
)
def test_how_many_clusters_clients_of_drawn_classes_look_for(describe, flags, expected):
    found = drawn(describe, **flags, seed=(0, 1))
    assert expected == [
        (
            group.num_clusters,
            group.method.settings["described"],
            sorted({point["classes_per_client"] for point in group.points}),
        )
        for group in found
    ]
    for group in found:
        for point, partition in zip(group.points, group.partitions, strict=True):
            assert point["clusters"] == group.num_clusters
            held = {len(set(LABELS[rows])) for rows in partition.clients}
            assert held == {point["classes_per_client"]}


def test_few_examples_are_refused_for_the_clusters_that_are_looked_for():
    message = "--clusters 3 with --clients 4 take at least 12 examples, digits has 11"
    with pytest.raises(ValueError, match=message):
        drawn(in_common, clients=(4,), classes_per_client=(1,))
    wide = np.repeat(np.arange(4), 4)
    (group,) = drawn(local, wide, clients=(5,), classes_per_client=(2,))
    assert group.num_clusters == 2  # 10 of 16; all four classes would take 20


# --- a subset of what clients are dealt


def test_sizes_of_clients_are_groups_of_their_own():
    """At p = 0 each client has 5 of the 11 rows."""
    found = groups(p=(0.0,), client_size=(3, 4, 9), settings=ONE)
    names = ["p", "clients", "clusters", "client_size", *NAMES[4:]]
    for group, size in zip(found, (3, 4, 9), strict=True):
        assert all(list(point) == names for point in group.points)
        assert {point["client_size"] for point in group.points} == {size}
        assert group.num_slots == min(size, 5)
        assert group.num_left_out == 11 - 2 * min(size, 5)
        for partition in group.partitions:
            held = np.concatenate([*partition.clients, partition.left_out])
            assert sorted(held) == list(range(11))


def test_a_size_of_clients_is_on_top_of_any_rule():
    for flags in ({"alpha": (9.0,)}, {"class_share": (1.0,)}, {"p": (1.0,)}):
        (group,) = groups(**flags, client_size=(3,), settings=ONE)
        assert max(map(len, group.partitions[0].clients)) == 3
    # Class 0, which has 6 rows, and 3 of them; classes 1 and 2: 2 and 3 rows.
    group, _ = groups(class_share=(0.5,), client_size=(3,))
    first, second = group.partitions[0].clients
    assert LABELS[first].tolist() == [0, 0, 0]
    assert sorted(LABELS[second]) == [1, 2, 2]  # of shares 1.2 and 1.8


def test_a_subset_has_no_scores_of_the_paper_and_shares_its_own_stages():
    def with_shared(*args):
        shared = Shared("first", 1, {"rate": 0.1})
        method = describe(*args, rate=0.1, batch_size=4)
        return method._replace(shared=shared, paper={0.0: {"nmi": 0.5}})

    flags = {"clients": (2,), "clusters": (3,), "p": (0.0,)}
    paper = {0.0: {"nmi": 0.5}}
    for sizes, expected in (
        ((), [({"rate": 0.1}, paper)]),
        ((3, 4), [({"rate": 0.1, "client_size": size}, {}) for size in (3, 4)]),
    ):
        args = Common(**flags, client_size=sizes)
        found = plan.groups(args, dataset(), 0, with_shared)
        assert expected == [(x.method.shared.settings, x.method.paper) for x in found]


# --- slots, seeds, failures


@pytest.mark.parametrize(
    ("clients", "p", "num_slots", "num_left_out"),
    [
        # 2 clients get 5 each, 1 is left; or classes 0 and 2 (6 + 3), and class 1 (2).
        (2, (0.0,), 5, 1),
        (2, (1.0,), 9, 0),
        (2, (0.0, 1.0), 9, 1),
        # 3 clients get 3 each, 2 are left; or one class each: 6, 2 and 3.
        (3, (1.0, 0.0), 6, 2),
    ],
)
def test_a_group_is_padded_to_its_largest_client(clients, p, num_slots, num_left_out):
    for group in groups(clients=(clients,), p=p):
        assert (group.num_slots, group.num_left_out) == (num_slots, num_left_out)


def test_extra_rows_are_dealt_evenly_behind_the_others():
    group, _ = groups(p=(0.0,), num_extra=3)
    assert group.num_slots == 5 + 2
    first, second = group.partitions[0].clients
    assert sorted([*first[5:], *second[5:]]) == [11, 12, 13]
    # To a subset they are one class more: each of two clients has 5 of the 11 rows and
    # 5 of 10 extra ones, and of 6 it keeps 3 extra ones.
    group, _ = groups(p=(0.0,), num_extra=10, client_size=(6,))
    for rows in group.partitions[0].clients:
        assert len(rows) == 6
        assert sum(rows >= 11) == 3
    assert group.num_left_out == 1 + 2 * 4


def test_a_partition_seed_stands_for_all_seeds():
    flags = {"p": (0.0,), "failure_rate": (0.5,), "settings": {**ONE, "rate": 0.1}}
    (group,) = groups(seed=(0, 1), partition_seed=7, **flags)
    (other,) = groups(seed=(7,), **flags)
    for partition, present in zip(group.partitions, group.present, strict=True):
        np.testing.assert_array_equal(
            partition.clients, np.array(other.partitions[0].clients)
        )
        np.testing.assert_array_equal(present, other.present[0])


def two_stages(settings):
    """A method of 2 rounds and then `rounds`, of which a plan knows nothing else."""
    stages = [
        Stage("by hand", never, never, count, never)
        for count in (2, settings["rounds"])
    ]
    return FederatedClustering(never, tuple(stages), never, never)


def test_failures_are_one_row_or_a_row_for_every_round_of_all_stages():
    def describe_rounds(args, dataset, num_clients, num_clusters):
        settings = {"rounds": (1, 3), "rate": (0.1, 0.2)}
        return Method("by hand", settings, two_stages, "global", {})

    def present(**flags):
        flags = {"clusters": (2,), "p": (0.0,), "failure_rate": (0.0, 0.5), **flags}
        flags["clients"] = (4,)
        found = plan.groups(Common(**flags), dataset(), 0, describe_rounds)
        return [np.stack(group.present) for group in found]

    # Two rates of learning, then two of failing.
    fixed = present()
    assert [here.shape for here in fixed] == [(4, 1, 4)] * 2
    redrawn = present(failures="per-round")
    assert [here.shape for here in redrawn] == [(4, 2 + 1, 4), (4, 2 + 3, 4)]
    for here in (*fixed, *redrawn):
        absent = (~here).sum(axis=-1)
        np.testing.assert_array_equal(absent, np.array([[0], [2]] * 2) + 0 * absent)


def test_keep_leaves_runs_with_what_is_theirs():
    group, _ = groups(p=(0.0, 1.0), seed=(0, 1))
    kept = plan.keep(group, lambda x: x["p"] == 1 and x["seed"] == 0)
    # p, then rate, then seed: the runs 4 to 7 are at p = 1.
    assert kept.points == (group.points[4], group.points[6])
    assert kept.partitions == (group.partitions[4], group.partitions[6])
    assert all(
        one is group.present[i] for one, i in zip(kept.present, (4, 6), strict=True)
    )
    # The largest client and what is left out are those of the whole grid still.
    assert plan.keep(group, lambda x: x["p"] == 0).num_slots == 9
    assert kept.num_left_out == 1
