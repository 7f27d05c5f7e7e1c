"""Which runs a grid has, which of them share a program, and which a call."""

import itertools

import jax
import numpy as np
import pytest

from fcjax import data
from fcjax.algorithms.rounds import evaluation_schedule
from fcjax.data import Dataset, Partition
from fcjax.data.split import Split
from fcjax.methods import CCFC
from fcjax.methods.base import Method, MethodSpec, Shared
from fcjax.sweep import experiment, plan
from fcjax.sweep.plan import Batch, Task
from fcjax.types import FederatedClustering, Stage
from tests.sweep.drifting import described_by

LABELS = np.array([0] * 6 + [1] * 2 + [2] * 3)
NAMES = ["p", "clients", "clusters", "batch_size", "rate", "failure_rate", "seed"]
ONE = {"batch_size": 4}
"""Settings of one program."""


def dataset(labels=LABELS):
    count = len(LABELS if labels is None else labels)
    examples = np.arange(2.0 * count, dtype=np.float32).reshape(-1, 2)
    return Dataset("by hand", examples, labels)


def never(settings):
    raise AssertionError("nothing is built to make a plan")


def describe(args, dataset, num_clients, num_clusters, **settings):
    chosen = {"batch_size": (4, 8), "rate": (0.1, 0.2), "rounds": 3, **settings}
    return MethodSpec("by hand", chosen, never, "global", {})


def task(describe, **flags):
    return Task.of(described_by(describe), **flags)


def batches(labels=LABELS, *, settings=None, num_extra=0, **flags):
    def method(*args):
        return describe(*args, **(settings or {}))

    flags = {"clients": (2,), "clusters": (3,), **flags}
    return plan.batches(task(method, **flags), dataset(labels), num_extra)


def split(batch, runs_per_call):
    return list(batch._replace(runs_per_call=runs_per_call).split())


def pool_of(labels=LABELS):
    return jax.numpy.asarray(dataset(labels).examples)


def seeds(found):
    return [[point["seed"] for point in call.points] for call in found]


# --- calls


def test_a_call_is_as_wide_as_fits_or_a_near_divisor():
    for num_runs, most, expected in (
        (15, 4, 3),  # 5 equal calls, not 4 + 4 + 4 + 3
        (10, 4, 2),  # 5 equal calls, fewer than twice the 3 that are needed
        (7, 3, 3),  # 7 calls of 1 are too many: 3 + 2 + 2
        (8, 4, 4),
        (6, 100, 6),
    ):
        assert plan.width(num_runs, most) == expected
    for num_runs, most in itertools.product(range(1, 80), range(1, 80)):
        width = plan.width(num_runs, most)
        assert 1 <= width <= most
        assert -(-num_runs // width) < 2 * -(-num_runs // most)


@pytest.mark.parametrize("num_runs", [1, 7, 10])
def test_a_killed_grid_finds_the_calls_that_are_left(num_runs):
    """A session keeps the width of the whole grid and divides the runs that are left:
    were its calls others, their checkpoint would not be found."""
    batch = Batch(
        describe(None, None, 1, 2, batch_size=4),
        num_clients=1,
        num_clusters=2,
        points=tuple({"rate": 0.5, "seed": seed} for seed in range(num_runs)),
        partitions=(Partition((np.arange(3),), np.arange(0)),) * num_runs,
        present=(np.ones((1, 1), bool),) * num_runs,
        padded_size=3,
        num_left_out=0,
    )
    for width in {plan.width(num_runs, most) for most in range(1, num_runs + 1)}:
        whole = seeds(split(batch, width))
        assert max(map(len, whole)) == len(whole[0]) == width
        assert [seed for call in whole for seed in call] == list(range(num_runs))
        for ended in range(1, len(whole)):
            first = whole[ended][0]
            left = batch.keep(lambda point, n=first: point["seed"] >= n)
            assert seeds(split(left, width)) == whole[ended:]


def test_the_calls_of_a_group_have_the_same_shapes():
    """The largest client has 5 rows at p = 0, 9 at p = 1; 1 or no row is left out."""
    batch, _ = batches(p=(0.0, 1.0), seed=(3, 5))
    found = split(batch, 4)
    assert [{point["p"] for point in call.points} for call in found] == [{0}, {1}]
    for part, sizes, num_left in zip(found, ([5, 5], [9, 2]), (1, 0), strict=True):
        grid, left_out = part.grid(pool_of()), part.left_out(pool_of())
        federations = grid.federations
        assert federations.indices.shape == federations.mask.shape == (4, 2, 9)
        assert left_out.indices.shape == left_out.mask.shape == (4, 1, 1)
        np.testing.assert_array_equal(np.sum(federations.mask, -1), [sizes] * 4)
        np.testing.assert_array_equal(np.sum(left_out.mask, -1), [[num_left]] * 4)
        # Floats and seeds are arrays.
        rates = np.float32([0.1, 0.1, 0.2, 0.2])
        np.testing.assert_array_equal(grid.hyper.pop("rate"), rates)
        assert grid.hyper == {}
        keys = [jax.random.key_data(jax.random.key(seed)) for seed in (3, 5, 3, 5)]
        np.testing.assert_array_equal(jax.random.key_data(grid.keys), keys)
    # Methods without a common model leave out what nobody holds.
    alone = batch._replace(method=batch.method._replace(scope="client-mean"))
    assert alone.left_out(pool_of()) is None


# --- groups


def test_whole_numbers_have_a_group_each():
    found = batches(clients=(2, 3), clusters=(2, 3), p=(0.0, 1.0), seed=(0, 1))
    fixed = [
        (batch.num_clients, batch.num_clusters, batch.method.settings["batch_size"])
        for batch in found
    ]
    assert fixed == list(itertools.product((2, 3), (2, 3), (4, 8)))
    dealt = {}
    for batch, (clients, clusters, batch_size) in zip(found, fixed, strict=True):
        assert batch.method.settings["rate"] == (0.1, 0.2)
        assert batch.method.settings["rounds"] == 3
        assert [list(point.items()) for point in batch.points] == [
            list(zip(NAMES, (p, clients, clusters, batch_size, *rest), strict=True))
            for p, *rest in itertools.product((0.0, 1.0), (0.1, 0.2), (0.0,), (0, 1))
        ]
        for point, partition in zip(batch.points, batch.partitions, strict=True):
            key = (clients, point["p"], point["seed"])
            dealt.setdefault(key, set()).add(id(partition))
    # Runs that are dealt alike share a partition.
    assert len(dealt) == len(set.union(*dealt.values())) == 8


@pytest.mark.parametrize(
    ("rule", "values", "deal"),
    [
        ("alpha", (0.1, 1.0), data.dirichlet),
        ("class_share", (0.5, 1.0), data.class_blocks),
        ("classes_per_client", (2, 3), data.drawn_classes),
    ],
)
def test_another_rule_takes_the_place_of_p(rule, values, deal):
    batch, _ = batches(**{rule: values}, settings={"rate": 0.1})
    names = [name for name in NAMES[1:] if name != "rate"]
    for point, partition, value in zip(
        batch.points, batch.partitions, values, strict=True
    ):
        assert list(point) == [rule, *names]
        assert point[rule] == value
        assert type(point[rule]) is type(value)
        expected = deal(LABELS, 2, value, seed=0).clients
        for own, rows in zip(partition.clients, expected, strict=True):
            np.testing.assert_array_equal(own, rows)


def test_data_without_labels_is_dealt_at_random():
    batch, _ = batches(None)
    assert {point["p"] for point in batch.points} == {0.0}
    first, second = batch.partitions[0].clients
    rows = sorted([*first, *second, *batch.partitions[0].left_out])
    assert rows == list(range(11))
    assert (len(first), len(second)) == (5, 5)
    batch, _ = batches(None, client_size=(3,))
    assert [len(rows) for rows in batch.partitions[0].clients] == [3, 3]


# --- classes drawn for each client


def local(args, dataset, num_clients, num_clusters):
    """Clients that cluster on their own; the method says what it was described for."""
    settings = {"described": f"{num_clusters} of {num_clients}"}
    return MethodSpec("by hand", settings, never, "client-mean", {})


def in_common(*args):
    return local(*args)._replace(scope="global")


def drawn(describe, labels=LABELS, **flags):
    flags = {"clients": (2,), "classes_per_client": (2, 3), **flags}
    return plan.batches(task(describe, **flags), dataset(labels))


@pytest.mark.parametrize(
    ("describe", "flags", "expected"),
    [
        # On their own they look for as many clusters as they hold classes.
        (
            local,
            {"clients": (1, 2)},
            [
                *((2, "2 of 1", [2]), (3, "3 of 1", [3])),
                *((2, "2 of 2", [2]), (3, "3 of 2", [3])),
            ],
        ),
        # In common for all classes, however they are dealt.
        (in_common, {}, [(3, "3 of 2", [2, 3])]),
        (in_common, {"classes_per_client": (1,)}, [(3, "3 of 2", [1])]),
        # A given number holds for all levels.
        (local, {"clusters": (2,)}, [(2, "2 of 2", [2, 3])]),
        (in_common, {"clusters": (2,)}, [(2, "2 of 2", [2, 3])]),
        (local, {"clusters": (4,), "classes_per_client": (1,)}, [(4, "4 of 2", [1])]),
    ],
)
def test_how_many_clusters_clients_of_drawn_classes_look_for(describe, flags, expected):
    found = drawn(describe, **flags, seed=(0, 1))
    for batch, (num_clusters, described, levels) in zip(found, expected, strict=True):
        assert batch.num_clusters == num_clusters
        assert batch.method.settings["described"] == described
        assert sorted({x["classes_per_client"] for x in batch.points}) == levels
        for point, partition in zip(batch.points, batch.partitions, strict=True):
            assert point["clusters"] == batch.num_clusters
            held = {len(set(LABELS[rows])) for rows in partition.clients}
            assert held == {point["classes_per_client"]}


def test_few_examples_are_refused_for_the_clusters_that_are_looked_for():
    message = "`clients` 4 require at least 12 examples, but by hand has 11"
    with pytest.raises(ValueError, match=message):
        drawn(in_common, clients=(4,), classes_per_client=(1,))
    wide = np.repeat(np.arange(4), 4)
    (batch,) = drawn(local, wide, clients=(5,), classes_per_client=(2,))
    assert batch.num_clusters == 2  # 10 of 16; all four classes would take 20


# --- ranges of classes for each client

SIXES = np.repeat(np.arange(6), 20)


def ranged(**flags):
    flags = {"clients": (4,), "overlap": (0.0, 0.5), "samples_per_class": 5, **flags}
    return plan.batches(task(local, **flags), dataset(SIXES))


def test_clients_on_their_own_look_for_what_they_hold_at_most_the_upper_end():
    (batch,) = ranged(class_range=(2, 4), seed=(0, 1))
    assert batch.num_clusters == 4
    assert batch.method.settings["described"] == "4 of 4"
    assert [point["overlap"] for point in batch.points] == [0.0, 0.0, 0.5, 0.5]
    assert {point["clusters"] for point in batch.points} == {4}
    parts = batch.partitions
    for part in parts:
        held = [len(np.unique(SIXES[rows])) for rows in part.clients]
        assert list(part.local_clusters) == held
    # Runs of one seed hold the same classes, and at an overlap more rows of them.
    for plain, overlapping in zip(parts[:2], parts[2:], strict=True):
        assert plain.local_clusters == overlapping.local_clusters
        assert [*map(len, plain.clients)] == [5 * k for k in plain.local_clusters]
        for own, more in zip(plain.clients, overlapping.clients, strict=True):
            assert set(own.tolist()) <= set(more.tolist())
    found = batch.grid(pool_of(SIXES)).federations.local_clusters
    np.testing.assert_array_equal(found, [part.local_clusters for part in parts])


def test_a_given_number_is_every_clients_and_else_it_is_two_to_half_of_the_classes():
    found = ranged(class_range=(2, 4), clusters=(3, 5))
    assert [batch.num_clusters for batch in found] == [3, 5]
    assert {p.local_clusters for batch in found for p in batch.partitions} == {None}
    (batch,) = ranged(clients=(40,), overlap=(0.0,), samples_per_class=1)
    assert batch.num_clusters == 3
    assert set(batch.partitions[0].local_clusters) == {2, 3}


def test_a_subset_of_what_is_shared():
    (batch,) = ranged(class_range=(3, 3), client_size=(6,), overlap=(0.5,))
    (partition,) = batch.partitions
    assert [*map(len, partition.clients)] == [6] * 4
    left_out = set(range(120)).difference(*map(np.ndarray.tolist, partition.clients))
    assert partition.left_out.tolist() == sorted(left_out)
    assert batch.num_left_out == len(left_out)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, 30.0),
        ({"client_size": (5, 20)}, 20.0),
        ({"client_size": (400,)}, 30.0),
        ({"natural": (1,)}, 20.0),  # 100 are nobody's
        ({"clients": (1000,)}, 1.0),
        # 2.5 of four classes each: 6 hold each, of 75.
        ({"overlap": (0.0,), "class_range": (2, 3)}, 2.5 * 12),
    ],
)
def test_how_many_examples_a_client_has(flags, expected):
    owners = np.where(np.arange(300) < 200, np.arange(300) % 10, -1)
    made = Dataset("any", np.zeros((300, 2)), np.arange(300) % 4, clients=owners)
    split = Split(**{"clients": (10,), **flags})
    assert split.examples_per_client(made, split.clients[0]) == expected


def test_a_level_has_the_settings_that_it_has_alone():
    """By how many examples a client has, which --overlap changes."""
    images = np.zeros((1797, 8, 8, 1), np.uint8)
    made = Dataset("grey", images, np.arange(1797) % 10)

    def settings(*levels):
        task = Task(CCFC(), split=Split(clusters=(40,), clients=10, overlap=levels))
        found = plan.specs(task, made)
        return {level: m.settings for m, _, _, same in found for level in same}

    both = settings(0.0, 0.1)
    assert both == settings(0.0) | settings(0.1)
    assert both[0.0] != both[0.1]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        # 20 clients of 3.5 of 10 classes: 7 hold each, which has 600 examples.
        ({"samples_per_class": 40}, 40),
        ({"samples_per_class": 40, "overlap": (0.5,)}, 40 + 6 * 5),  # 20 / 4
        ({"samples_per_class": 500, "overlap": (0.3,)}, 85 + 6 * 4),  # 25.5 / 5.2
        ({"samples_per_class": 40, "client_size": (35,)}, 10),  # of 140
        ({"samples_per_class": 40, "clusters": (7,)}, 20),  # 140 in seven
        ({"overlap": (), "class_range": None}, 30),  # 300 in ten
        ({"overlap": (), "class_range": None, "client_size": (50, 100)}, 10),
    ],
)
def test_how_many_examples_a_cluster_has_is_what_the_rule_deals(flags, expected):
    flags = {"clients": (20,), "class_range": (2, 5), "overlap": (0.0,), **flags}
    made = Dataset("by hand", np.zeros((6000, 2)), np.repeat(np.arange(10), 600))
    split = Split(**flags)
    number = split.clusters[0] if split.clusters else 10
    assert split.examples_per_cluster(made, 20, number) == expected
    partition = split.partitioner(made)
    point = {split.rule: split.levels(made)[0], "clients": 20}
    point["client_size"] = split.client_size[-1] if split.client_size else None
    rows = own = 0
    for seed in range(10):
        part = partition({**point, "seed": seed})
        rows += sum(map(len, part.clients))
        own += sum(part.local_clusters or [number] * 20)
    assert rows / own == pytest.approx(expected, rel=0.15)


def test_levels_are_a_group_of_their_own_where_their_settings_differ():
    flags = {"clients": (4,), "samples_per_class": 5}
    few = Split(**flags, overlap=0.3).examples_per_client(dataset(SIXES), 4)

    class ByLevel(Method):
        name = "by level"

        def resolve(self, problem):
            settings = {"epochs": 3 if problem.examples_per_client <= few else 2}
            return MethodSpec("by hand", settings, never, "client-mean", {})

    task = Task.of(ByLevel, **flags, overlap=(0.0, 0.3, 0.5))
    found = plan.batches(task, dataset(SIXES))
    levels = [[point["overlap"] for point in batch.points] for batch in found]
    assert levels == [[0.0, 0.3], [0.5]]
    assert [batch.method.settings["epochs"] for batch in found] == [3, 2]


def test_the_configuration_says_nothing_of_other_rules():
    """Folders without --out have names that are made of it."""
    assert Split().config() == {"partition": "p"}
    method, plain = local(None, None, 2, 3), task(local)
    config = experiment.configuration(plain, method, {"p": 0.0})
    assert not {"class_range", "samples_per_class", "reported"} & set(config)
    reporting = method._replace(start="begin", reported=("communities",))
    ranged = plain.replace(overlap=(0.0, 0.3), class_range=(2, 5))
    config = experiment.configuration(ranged, reporting, {"overlap": 0.0})
    names = ("partition", "class_range", "samples_per_class", "start_stage", "reported")
    expected = ["overlap", [2, 5], 500, "begin", ["communities"]]
    assert [config[name] for name in names] == expected


# --- a subset of what clients are dealt


def test_sizes_of_clients_are_groups_of_their_own_and_on_top_of_any_rule():
    """At p = 0 each client has 5 of the 11 rows."""
    found = batches(p=(0.0,), client_size=(3, 4, 9), settings=ONE)
    for batch, size in zip(found, (3, 4, 9), strict=True):
        for point, partition in zip(batch.points, batch.partitions, strict=True):
            assert list(point) == [*NAMES[:3], "client_size", *NAMES[4:]]
            assert point["client_size"] == size
            held = np.concatenate([*partition.clients, partition.left_out])
            assert sorted(held) == list(range(11))
        assert batch.padded_size == min(size, 5)
        assert batch.num_left_out == 11 - 2 * min(size, 5)
    # Class 0, which has 6 rows, and 3 of them; classes 1 and 2: 2 and 3 rows.
    (batch,) = batches(class_share=(0.5,), client_size=(3,), settings=ONE)
    first, second = batch.partitions[0].clients
    assert LABELS[first].tolist() == [0, 0, 0]
    assert sorted(LABELS[second]) == [1, 2, 2]  # of shares 1.2 and 1.8


def test_a_subset_has_no_scores_of_the_paper_and_shares_its_own_stages():
    paper = {0.0: {"nmi": 0.5}}

    def with_shared(*args):
        method = describe(*args, rate=0.1, batch_size=4)
        return method._replace(shared=Shared("first", 1, {"rate": 0.1}), paper=paper)

    flags = {"clients": (2,), "clusters": (3,), "p": (0.0,)}
    for sizes, expected in (
        ((), [({"rate": 0.1}, paper)]),
        ((3, 4), [({"rate": 0.1, "client_size": size}, {}) for size in (3, 4)]),
    ):
        found = plan.batches(task(with_shared, **flags, client_size=sizes), dataset())
        assert expected == [(x.method.shared.settings, x.method.paper) for x in found]


# --- slots, seeds, failures


def test_a_group_is_padded_to_its_largest_client():
    for clients, p, *expected in (
        # 2 clients get 5 each, 1 is left; or classes 0 and 2 (6 + 3), and class 1 (2).
        (2, (0.0,), 5, 1),
        (2, (1.0,), 9, 0),
        (2, (0.0, 1.0), 9, 1),
        # 3 clients get 3 each, 2 are left; or one class each: 6, 2 and 3.
        (3, (1.0, 0.0), 6, 2),
    ):
        for batch in batches(clients=(clients,), p=p):
            assert [batch.padded_size, batch.num_left_out] == expected


def test_unequal_clients_are_padded_in_steps_of_an_eighth_of_a_power_of_two():
    """Of 32 for 33 to 63 rows, so that seeds share programs."""
    sizes = [(40, 17), (33, 12), (36, 1), (35, 35), (5, 15), (37, 36), (31, 1), (35, 2)]
    rows = [tuple(np.arange(n) for n in pair) for pair in sizes]
    partitions = tuple(data.Partition(own, np.arange(0)) for own in rows)
    points = tuple({"seed": i} for i in range(len(sizes)))
    (batch,) = batches(p=(0.0,), settings=ONE)
    whole = batch._replace(points=points, partitions=partitions, present=points)
    found = {
        batch.padded_size: [point["seed"] for point in batch.points]
        for batch in plan.by_size(whole)
    }
    assert found == {40: [0, 5], 36: [1, 2, 7], 35: [3], 15: [4], 32: [6]}


def test_extra_rows_are_dealt_evenly_behind_the_others():
    batch, _ = batches(p=(0.0,), num_extra=3)
    assert batch.padded_size == 5 + 2
    first, second = batch.partitions[0].clients
    assert sorted([*first[5:], *second[5:]]) == [11, 12, 13]
    # To a subset they are one class more: each of two clients has 5 of the 11 rows and
    # 5 of 10 extra ones, and of 6 it keeps 3 extra ones.
    batch, _ = batches(p=(0.0,), num_extra=10, client_size=(6,))
    for rows in batch.partitions[0].clients:
        assert len(rows) == 6
        assert sum(rows >= 11) == 3
    assert batch.num_left_out == 1 + 2 * 4


def test_a_partition_seed_stands_for_all_seeds():
    flags = {"p": (0.0,), "failure_rate": (0.5,), "settings": {**ONE, "rate": 0.1}}
    (batch,) = batches(seed=(0, 1), partition_seed=7, **flags)
    (other,) = batches(seed=(7,), **flags)
    for partition, present in zip(batch.partitions, batch.present, strict=True):
        np.testing.assert_array_equal(partition.clients, other.partitions[0].clients)
        np.testing.assert_array_equal(present, other.present[0])


def test_failures_are_one_row_or_a_row_for_every_round_of_all_stages():
    def two_stages(settings):
        """2 rounds and then `rounds`; a plan knows nothing else of a method."""
        stages = [
            Stage("by hand", never, never, count, never)
            for count in (2, settings["rounds"])
        ]
        return FederatedClustering(never, tuple(stages), never, never)

    def describe_rounds(args, dataset, num_clients, num_clusters):
        settings = {"rounds": (1, 3), "rate": (0.1, 0.2)}
        return MethodSpec("by hand", settings, two_stages, "global", {})

    def present(**flags):
        flags |= {"clients": (4,), "clusters": (2,), "p": (0.0,)}
        flags |= {"failure_rate": (0.0, 0.5)}
        found = plan.batches(task(describe_rounds, **flags), dataset())
        return [np.stack(batch.present) for batch in found]

    # Two rates of learning, then two of failing.
    fixed = present()
    assert [here.shape for here in fixed] == [(4, 1, 4)] * 2
    redrawn = present(failures="per-round")
    assert [here.shape for here in redrawn] == [(4, 2 + 1, 4), (4, 2 + 3, 4)]
    for here in (*fixed, *redrawn):
        absent = (~here).sum(axis=-1)
        np.testing.assert_array_equal(absent, np.array([[0], [2]] * 2) + 0 * absent)


def test_keep_leaves_runs_with_what_is_theirs():
    batch, _ = batches(p=(0.0, 1.0), seed=(0, 1))
    kept = batch.keep(lambda x: x["p"] == 1 and x["seed"] == 0)
    # p, then rate, then seed: the runs 4 to 7 are at p = 1.
    for name in ("points", "partitions", "present"):
        every = getattr(batch, name)
        assert [*map(id, getattr(kept, name))] == [id(every[4]), id(every[6])]
    # The largest client and what is left out are those of the whole grid still.
    assert batch.keep(lambda x: x["p"] == 0).padded_size == 9
    assert kept.num_left_out == 1


def test_rounds_are_scored_as_often_as_is_asked_or_as_suits_the_method():
    def of_twenty(every, **flags):
        scored = evaluation_schedule(flags.get("evaluate_every"), every)
        return [number for number in range(1, 21) if scored.includes(number, 20)]

    assert of_twenty(4, evaluate_every=8) == [8, 16, 20]
    assert of_twenty(4) == [4, 8, *range(11, 21)]
    assert of_twenty(7) == [7, *range(11, 21)]


def test_the_budget_is_what_the_largest_client_does():
    """Eleven examples of two clients: six are two batches of four, three times over."""
    settings = {"batch_size": 4, "local_epochs": 3}

    def two_stages(settings):
        stages = [Stage("by hand", never, never, count, never) for count in (2, 5)]
        return FederatedClustering(never, tuple(stages), never, never)

    def of(**more):
        method = MethodSpec("by hand", settings, two_stages, "global")._replace(**more)
        asked = task(lambda *_: method, clients=(2,), clusters=(3,), p=(0.0,))
        (batch,) = plan.batches(asked, dataset())
        return plan.budget(batch)

    assert of() == "at most 7 rounds with 6 local steps per client (batch size 4)"
    assert of(sees_all=True) == of(scope="client-mean") == "at most 7 rounds"
    assert of(settings={"batch_size": 4}) == "at most 7 rounds"
