"""--overlap, --class-range and --samples-per-class: what a plan makes of them, and what
config.json says."""

import numpy as np
import pytest
import tyro

from fcjax.data import Dataset
from fcjax.grid import dealing, experiment, plan
from fcjax.grid.flags import Common
from fcjax.grid.plan import Method
from tests.grid.test_plan import never

LABELS = np.repeat(np.arange(6), 20)
DATASET = Dataset("by hand", np.zeros((120, 2), np.float32), LABELS)


def method(scope="client-mean", **more):
    def describe(args, dataset, num_clients, num_clusters):
        return Method("by hand", {"k": num_clusters}, never, scope, {}, **more)

    return describe


def groups(scope="client-mean", **flags):
    flags = {"clients": (4,), "overlap": (0.0, 0.5), "samples_per_class": 5, **flags}
    return plan.groups(Common(**flags), DATASET, 0, method(scope))


def test_clients_on_their_own_look_for_what_they_hold_at_most_the_upper_end():
    (group,) = groups(class_range=(2, 4), seed=(0, 1))
    assert group.num_clusters == group.method.settings["k"] == 4
    assert [point["overlap"] for point in group.points] == [0.0, 0.0, 0.5, 0.5]
    assert {point["clusters"] for point in group.points} == {4}
    for partition in group.partitions:
        held = [len(np.unique(LABELS[rows])) for rows in partition.clients]
        assert list(partition.local_clusters) == held
    # Runs of one seed hold the same classes, and at an overlap more rows of them.
    for plain, overlapping in zip(
        group.partitions[:2], group.partitions[2:], strict=True
    ):
        assert plain.local_clusters == overlapping.local_clusters
        assert [*map(len, plain.clients)] == [5 * k for k in plain.local_clusters]
        for own, more in zip(plain.clients, overlapping.clients, strict=True):
            assert set(own.tolist()) <= set(more.tolist())
    (call,) = plan.calls(group._replace(runs_per_call=4), DATASET.examples)
    np.testing.assert_array_equal(
        call.grid.federations.local_clusters,
        [part.local_clusters for part in group.partitions],
    )


@pytest.mark.parametrize(
    ("scope", "clusters", "expected"),
    [
        # A given number is every client's.
        ("client-mean", (3, 5), [3, 5]),
        ("global", (3, 5), [3, 5]),
        # Methods in common look for all classes.
        ("global", (), [6]),
    ],
)
def test_how_many_clusters_all_clients_look_for(scope, clusters, expected):
    found = groups(scope, class_range=(2, 4), clusters=clusters)
    assert [group.num_clusters for group in found] == expected
    if clusters:
        assert {p.local_clusters for group in found for p in group.partitions} == {None}


def test_by_default_a_client_holds_two_to_half_of_the_classes():
    (group,) = groups(clients=(40,), overlap=(0.0,), samples_per_class=1)
    assert group.num_clusters == 3
    assert set(group.partitions[0].local_clusters) == {2, 3}


def test_a_subset_of_what_is_shared():
    (group,) = groups(class_range=(3, 3), client_size=(6,), overlap=(0.5,))
    (partition,) = group.partitions
    assert [*map(len, partition.clients)] == [6] * 4
    held = np.unique(np.concatenate(partition.clients))
    np.testing.assert_array_equal(
        partition.left_out, np.setdiff1d(np.arange(120), held)
    )
    assert group.num_left_out == 120 - len(held)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        # 20 clients of 3.5 of 10 classes: 7 hold each, which has 600 examples.
        ({"samples_per_class": 40}, 40),
        ({"samples_per_class": 500}, 85),
        ({"samples_per_class": 40, "overlap": (0.5,)}, 40 + 6 * 5),  # 20 / 4
        ({"samples_per_class": 500, "overlap": (0.3,)}, 85 + 6 * 4),  # 25.5 / 5.2
        ({"samples_per_class": 40, "client_size": (35,)}, 10),  # of 140
        ({"samples_per_class": 40, "clusters": (7,)}, 20),  # 140 in seven
        ({"overlap": ()}, 30),  # 300 in ten
        ({"overlap": (), "client_size": (50, 100)}, 10),
    ],
)
def test_how_many_examples_a_cluster_has_is_what_the_rule_deals(flags, expected):
    flags = {"clients": (20,), "class_range": (2, 5), "overlap": (0.0,), **flags}
    if not flags["overlap"]:
        flags["class_range"] = None
    made = Dataset("by hand", np.zeros((6000, 2)), np.repeat(np.arange(10), 600))
    args = Common(**flags, seed=tuple(range(10)))
    number = args.clusters[0] if args.clusters else 10
    assert dealing.cluster_size(args, made, 20, number) == expected
    deal = dealing.dealer(args, made, 0)
    rule, (size,) = dealing.rule_of(args), args.client_size[-1:] or (None,)
    rows = own = 0
    for seed in args.seed:
        level = dealing.levels(args, made)[0]
        point = {rule: level, "clients": 20, "seed": seed, "client_size": size}
        part = deal(point)
        rows += sum(map(len, part.clients))
        own += sum(part.local_clusters or [number] * 20)
    assert rows / own == pytest.approx(expected, rel=0.15)


def test_levels_are_a_group_of_their_own_where_their_settings_differ():
    def by_level(args, dataset, num_clients, num_clusters):
        (overlap,) = args.overlap
        settings = {"epochs": 3 if overlap < 0.5 else 2}
        return Method("by hand", settings, never, "client-mean", {})

    args = Common(clients=(4,), overlap=(0.0, 0.3, 0.5), samples_per_class=5)
    found = plan.groups(args, DATASET, 0, by_level)
    levels = [[point["overlap"] for point in group.points] for group in found]
    assert levels == [[0.0, 0.3], [0.5]]
    assert [group.method.settings["epochs"] for group in found] == [3, 2]


def test_the_configuration_says_nothing_of_other_rules():
    """Folders without --out have names that are made of it."""
    assert dealing.configuration(Common()) == {"partition": "p"}
    described = method()(None, None, 2, 3)
    config = experiment.configuration(Common(), described, {"p": 0.0})
    assert not {"class_range", "samples_per_class", "reported"} & set(config)
    given = ["--overlap", "0", "0.3", "--class-range", "2", "5"]
    ranged = tyro.cli(Common, args=given)
    assert ranged.overlap == (0.0, 0.3)
    reporting = method(start="begin", reported=("communities",))(None, None, 2, 3)
    config = experiment.configuration(ranged, reporting, {"overlap": 0.0})
    names = ("partition", "class_range", "samples_per_class", "start_stage", "reported")
    expected = ["overlap", [2, 5], 500, "begin", ["communities"]]
    assert [config[name] for name in names] == expected
