"""The script of FedCRef and what it is measured by: what flags stand for, errors of a
line, what runs leave."""

import csv

import fedcref
import numpy as np
import pytest
import reproduce
from fedcref_methods import Data, method_of
from papers import fedcref_studies

from fcjax import data, script
from fcjax.grid import plan
from fcjax.runs.finished import Finished
from tests.own_clusters import corners

NUM_CLASSES = 4


def dataset(*, labelled=True, size=240):
    x = np.random.default_rng(0).random((size, 6)).astype(np.float32)
    labels = np.arange(size) % NUM_CLASSES
    return data.Dataset("made", x, labels if labelled else None)


def groups(*, labelled=True, **flags):
    args = fedcref.Args(**{"preset": "smoke", **flags})
    return [
        group
        for own, describe in fedcref.split(args)
        for group in plan.groups(own, dataset(labelled=labelled), 0, describe)
    ]


def built(group):
    return group.build({name: values[0] for name, values in group.traced.items()})


# --- flags


def test_clients_are_dealt_ranges_of_classes_unless_told_otherwise():
    (group,) = groups(start="dirty")
    assert group.num_clients == 8
    assert {(x["overlap"], x["dirtiness"]) for x in group.points} == {(0.0, 0.3)}
    assert group.num_clusters == 2  # the most classes of a client
    (other,) = groups(start="dirty", classes_per_client=(3,), clients=(3,))
    assert "overlap" not in other.points[0]
    assert (other.num_clients, other.num_clusters) == (3, 3)
    (plain,) = groups(start="k-means", labelled=False, labels=False, clusters=(3,))
    assert plain.points[0]["p"] == 0


def test_all_methods_are_of_the_same_data():
    found = groups(methods=("fedcref", "dec", "uifca"), start="k-means", seed=(0, 1))
    assert [x.method.name for x in found] == ["fedcref", "dec", "uifca"]
    assert [x.method.scope for x in found] == ["client-mean", "global", "global"]
    assert [x.num_clusters for x in found] == [2, NUM_CLASSES, NUM_CLASSES]
    for group in found[1:]:
        for one, other in zip(group.partitions, found[0].partitions, strict=True):
            for rows, same in zip(one.clients, other.clients, strict=True):
                np.testing.assert_array_equal(rows, same)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"start": "dec"}, "dec"),
        ({"start": "dec", "joint_rounds": (0,)}, "k-means"),
        ({"start": "k-means"}, "cluster"),
        ({"start": "dirty"}, "dirty"),
    ],
    ids=str,
)
def test_what_ends_the_start_is_reported_as_initial(flags, name):
    (group,) = groups(**flags)
    stages = [stage.name for stage in built(group).stages]
    assert stages[-2:] == [name, "refine"]
    assert group.method.start == name


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"dirtiness": (0.3,)}, "--dirtiness is of --start dirty, give both"),
        ({"threshold": (1.5,)}, r"--threshold must lie in \[0, 1\], got 1.5"),
        ({"percentile": (101.0,)}, r"--percentile must lie in \[0, 100\], got 101"),
        ({"stability": (-0.1,)}, "--stability must be"),
        ({"start": "dirty", "dirtiness": (2.0,)}, "--dirtiness must lie"),
        (
            {"start": "dirty", "labelled": False, "clusters": (2,)},
            "--start dirty is made from classes, and the data has no labels",
        ),
        (
            {"associations": "perfect", "labelled": False, "clusters": (2,)},
            "--associations perfect knows classes, and the data has no labels",
        ),
        *(
            ({name: (0,)}, f"--{name.replace('_', '-')} must be")
            for name in (
                *("num_rounds", "local_epochs", "federated_rounds", "first_epochs"),
                *("federated_epochs", "batch_size", "pretrain_rounds"),
            )
        ),
        ({"max_members": 0}, "--max-members must be"),
        ({"max_refinements": 0.0}, "--max-refinements must be"),
        (
            {"overlap": (0.0,), "classes_per_client": (2,)},
            "are two rules of dealing, give one",
        ),
        ({"class_range": (2, 3), "p": (0.5,)}, "--class-range is of clients dealt"),
        ({"methods": ()}, "--methods takes different methods"),
        ({"methods": ("dec", "dec")}, "--methods takes different methods"),
    ],
    ids=lambda x: "" if isinstance(x, str) else "-".join(map(str, x)),
)
def test_a_wrong_flag_is_told_in_a_line(flags, told):
    if flags.get("labelled") is False:
        flags = {**flags, "labels": False}
    with pytest.raises(ValueError, match=told) as error:
        groups(**flags)
    assert "\n" not in str(error.value)


def test_small_clusters_have_more_epochs_and_a_larger_threshold():
    """By the root, and the fifth root, of what is missing to 500 examples."""

    def settings(**flags):
        (group,) = groups(**{"start": "dirty", "preset": "default", **flags})
        (theta,) = group.method.settings["threshold"]
        return group.method.settings["local_epochs"], theta

    # 500 / 20 is 25, whose roots are 5 and 1.90; 500 / 60: 2.89 and 1.53.
    assert settings(clients=(2,), samples_per_class=20) == (100, 0.38)
    assert settings(clients=(1,), samples_per_class=60) == (58, 0.31)
    assert settings(clients=(1,)) == (58, 0.31)  # of 240 examples, 60 of each class
    assert settings(clients=(2,), local_epochs=(7,), threshold=(0.5,)) == (7, 0.5)
    assert settings(clients=(1,), preset="paper") == (20, 0.2)


def test_what_others_share_counts_for_epochs_and_threshold():
    """Four clients of two of four classes: two hold each, and share floor(10 / 1.5)."""
    flags = {"clients": (4,), "samples_per_class": 20, "overlap": (0.0, 0.5)}
    found = groups(start="dirty", preset="default", **flags)
    for group, held, epochs, theta in zip(
        found, (20, 26), (100, 88), (0.38, 0.36), strict=True
    ):
        settings = group.method.settings
        assert (settings["local_epochs"], settings["threshold"]) == (epochs, (theta,))
        # 500 / 26 is 19.2, whose roots are 4.39 and 1.81.
        sizes = [
            len(rows) / count
            for part in group.partitions
            for rows, count in zip(part.clients, part.local_clusters, strict=True)
        ]
        assert np.mean(sizes) == pytest.approx(held, rel=0.25)
    given = groups(start="dirty", local_epochs=(7,), threshold=(0.2,), **flags)
    assert len(given) == 1  # nothing differs, so that one program runs both


def test_the_levels_of_a_pixel_are_those_between_its_extremes():
    levels = fedcref.levels_of
    digits = np.array([0, 16, 32, 48, 64, 80, 96, 112, 128, 143, 255], np.uint8)
    assert levels(digits) == 17
    assert levels(np.arange(256, dtype=np.uint8)) == 256
    assert levels(np.zeros((3, 8, 8, 1), np.uint8)) == 256
    assert levels(np.array([0.0, 0.25, 0.5, 1.0])) == 5


# --- the paper's tables


@pytest.mark.parametrize("table", fedcref_studies.STUDIES)
@pytest.mark.parametrize("preset", ["smoke", "paper"])
def test_every_row_is_a_method_of_the_script(table, preset, tmp_path):
    study = reproduce.STUDIES[table]
    args = reproduce.Args(table=table, preset=preset, out=tmp_path)
    size = 60_000 if preset == "paper" else 1_800
    images = np.zeros((size, 8, 8, 1), np.uint8)
    made = data.Dataset("made", images, np.arange(size) % 10)
    outs = set()
    for row in study.rows:
        flags = reproduce.flags_of(study, row, "digits", args, paper=study.datasets[0])
        own = fedcref.Args(**flags)
        outs.add(own.out)
        for group in plan.groups(own, made, 0, fedcref.describe):
            (name,) = own.methods
            assert group.method.name == name
            built(group)
    assert len(outs) == len(study.rows)


def test_the_papers_own_settings():
    (group,) = groups(start="dec", preset="paper", clients=(8,))
    expected = {
        "pretrain_rounds": 300,
        "joint_rounds": 70,
        "num_rounds": 30,
        "local_epochs": 20,
        "federated_rounds": 15,
        "percentile": (75.0,),
        "threshold": (0.2,),
        "stability": (0.8,),
        "learning_rate": (1e-3,),
    }
    assert expected.items() <= group.method.settings.items()


def test_only_a_simulation_is_given_the_labels():
    values = {**groups(start="k-means")[0].method.settings}
    values |= {k: v[0] for k, v in values.items() if isinstance(v, tuple)}
    unlabelled = Data((6,), None, None)
    method = method_of("fedcref", values, unlabelled, num_clusters=2)
    assert [stage.name for stage in method.stages] == ["cluster", "refine"]


# --- runs


TINY = {
    "preset": "smoke",
    "clients": (4,),
    "class_range": (2, 3),
    "overlap": (0.0,),
    "samples_per_class": 8,
    "local_epochs": (3,),
    "batch_size": (8,),
}
COLUMNS = {
    *("acc", "global_acc", "global_nmi", "client_acc", "status"),
    *("communities", "isolated", "wrong_associations", "active", "iteration"),
    *("initial_acc", "initial_isolated"),
}


def ended(folder, **flags):
    labels = corners(folder / "corners.npz")
    args = fedcref.Args(
        **{
            **TINY,
            "dataset": str(folder / "corners.npz"),
            "out": folder / "out",
            **flags,
        }
    )
    script.run(lambda: fedcref.split(args))
    return labels


def only_row(folder):
    with (folder / "results.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    return row


def test_true_associations_make_a_community_of_each_class_that_two_hold(tmp_path):
    labels = ended(
        tmp_path,
        **{"start": "dirty", "dirtiness": (0.0,), "associations": "perfect"},
        num_rounds=(1,),
        plot=True,
    )
    out = tmp_path / "out" / "fedcref"
    row = only_row(out)
    assert row.keys() >= COLUMNS
    finished = Finished(out)
    point = finished.point([])
    holders, _ = finished.assignments(point)
    counts = [len(set(holders[(labels == c) & (holders >= 0)])) for c in range(4)]
    assert sum(count > 1 for count in counts) == float(row["communities"]) > 0
    assert counts.count(1) == float(row["isolated"])
    assert (float(row["wrong_associations"]), row["initial_acc"]) == (0, "1.0")
    assert row["initial_isolated"] == f"{sum(counts):.1f}"
    kept = finished.communities(point)
    assert kept is not None
    pairs = sum(count * (count - 1) for count in counts)
    assert kept.edges.sum() == pairs
    drawn = {path.name for path in (out / "figures").iterdir()}
    assert {"associations.png", "iterations.png"} <= drawn


def test_all_methods_run_in_one_command(tmp_path):
    ended(
        tmp_path,
        methods=("dec", "uifca", "fedcref"),
        start="k-means",
        num_rounds=(2,),
        flow_width=(8,),
        plot=False,
    )
    rows = {
        path.name: only_row(path)
        for path in (tmp_path / "out").iterdir()
        if (path / "results.csv").exists()
    }
    assert set(rows) == {"dec", "uifca", "fedcref"}
    assert rows["fedcref"].keys() >= COLUMNS
    for row in rows.values():
        assert row["status"].startswith(("ok", "collapsed"))
        assert 0 < float(row["client_acc"]) <= 1
