"""The scripts of FDSC and FedCRef and their baselines: what stands for a flag, one line
of error, what runs leave."""

import csv
import sys
import typing

import fdsc
import fdsc_methods
import fedcref
import jax
import numpy as np
import pytest
import reproduce
import several

from fcjax import data
from fcjax.grid import plan
from fcjax.runs.finished import Finished
from tests.own_clusters import corners

DIGITS, GREY, COLOUR, VECTORS = (8, 8, 1), (28, 28, 1), (32, 32, 3), (6,)


def dataset(shape, *, labelled=True):
    """240 examples of four classes."""
    examples = np.random.default_rng(0).integers(0, 256, (240, *shape), np.uint8)
    if len(shape) == 1:
        examples = examples.astype(np.float32) / 255
    return data.Dataset("made", examples, np.arange(240) % 4 if labelled else None)


def groups(module, shape=VECTORS, **flags):
    made = dataset(shape, labelled=flags.get("labels", True))
    return [
        group
        for own, describe in module.split(module.Args(**flags))
        for group in plan.groups(own, made, 0, describe)
    ]


def built(group):
    return group.build({name: values[0] for name, values in group.traced.items()})


UNLABELLED = {"labels": False, "clusters": (2,)}


@pytest.mark.parametrize(
    ("module", "flags", "told"),
    [
        (fdsc, {"num_participants": (6,)}, "participants must be at most --clients 5"),
        (fdsc, {"num_rounds": (0,)}, "--num-rounds must be at least 1, got 0"),
        (fdsc, {"local_steps": (0,)}, "--local-steps must be at least 1, got 0"),
        (fdsc, {"post_processing": True, "keep": (0.0,)}, "--keep must be above 0"),
        (fdsc, {"post_processing": True, "power": (0.0,)}, "--power must be above 0"),
        (fdsc, {"pixel_scale": (0.0,)}, "--pixel-scale must be above 0"),
        (fdsc, {"methods": ()}, "--methods takes different methods"),
        (fedcref, {"methods": ("dec", "dec")}, "--methods takes different methods"),
        (fedcref, {"dirtiness": (0.3,)}, "--dirtiness is of --start dirty, give both"),
        (fedcref, {"threshold": (1.5,)}, r"--threshold must lie in \[0, 1\], got 1.5"),
        (fedcref, {"percentile": (101.0,)}, r"--percentile must lie in \[0, 100\]"),
        (fedcref, {"stability": (2.0,)}, "--stability must lie in"),
        (fedcref, {"start": "dirty", "dirtiness": (2.0,)}, "--dirtiness must lie in"),
        (fedcref, {"num_rounds": (0,)}, "--num-rounds must be at least 1, got 0"),
        (fedcref, {"federated_rounds": (0,)}, "--federated-rounds must be at least 1"),
        (fedcref, {"pretrain_rounds": (0,)}, "--pretrain-rounds must be at least 1"),
        (fedcref, {"max_members": 0}, "--max-members must be at least 1, got 0"),
        (fedcref, {"max_refinements": 0.0}, "--max-refinements must be at least 1"),
        (fedcref, {"methods": ("uifca",), "local_steps": (0,)}, "--local-steps must"),
        (fedcref, {"start": "dirty", **UNLABELLED}, "--start dirty is made from"),
        (fedcref, {"associations": "perfect", **UNLABELLED}, "knows classes, and the"),
        (fedcref, {"overlap": (0.0,), "alpha": (1.0,)}, "are two rules of dealing"),
        (fedcref, {"class_range": (2, 3), "p": (0.5,)}, "--class-range is of clients"),
    ],
    ids=lambda x: "-".join(map(str, x)) if isinstance(x, dict) else "",
)
def test_a_wrong_flag_is_told_in_a_line(module, flags, told):
    with pytest.raises(ValueError, match=told) as error:
        groups(module, **flags)
    assert "\n" not in str(error.value)


# --- FDSC


def fdsc_settings(name, dataset_name, **flags):
    args = fdsc.Args(methods=(name,), dataset=str(dataset_name), **flags)
    return fdsc.describe(args, dataset(GREY), args.clients[0], 4).settings


@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, VECTORS) for name in typing.get_args(fdsc_methods.Name)]
    + [("fdsc2", DIGITS), ("fdsc1", COLOUR), ("dscn", GREY)],
    ids=str,
)
def test_every_method_of_fdsc_takes_every_kind_of_example(name, shape):
    """Down to the shapes of its states, without compiling anything."""
    (group,) = groups(fdsc, shape, methods=(name,), preset="smoke")
    method = built(group)
    stages = ["cluster"] if name == "lrsc" else ["pretrain", "start", "train", "fit"]
    assert [stage.name for stage in method.stages] == stages
    assert group.method.scope == "client-pooled"
    pool = dataset(shape).examples
    federation = data.federate(pool, group.partitions, group.present, num_clusters=4)
    federation = jax.tree.map(lambda x: x[0], federation._replace(pool=None))
    federation = federation._replace(pool=jax.numpy.asarray(pool))

    def run(key):
        state = method.init(key, federation)
        for stage in method.stages:
            state = stage.begin(key, state, federation)
            state = stage.round(key, state, federation)[0]
        return method.embed(state, federation), method.assign(state, federation)

    z, clusters = jax.eval_shape(run, jax.random.key(0))
    assert z.shape[:2] == clusters.shape == federation.indices.shape


def test_weights_are_those_of_the_lineage(tmp_path):
    orl = tmp_path / "ORL_32x32.mat"
    orl.touch()
    expected = {
        ("mnist", 20): (1, 15, 1, 0.4, 10, 100, 5),
        ("coil20", 5): (1, 75, 1, 0.04, 12, 100, 2),
        # Fed as its file is, of 0 to 255.
        ("coil-100", 5): (1, 15, 255, 0.04, 12, 100, 2),
        (orl, 5): (2, 0.2, 255, 0.2, 3, 200, 2),
    }
    names = ("penalty_weight", "expression_weight", "pixel_scale", "keep", "dimension")
    names += ("num_rounds", "num_participants")
    for (name, clients), values in expected.items():
        flags = {"post_processing": True, "clients": (clients,)}
        settings = fdsc_settings("fdsc2", name, **flags)
        assert tuple(settings[x][0] for x in names) == values
        assert settings["locality_weight"] == (1e6,)
        assert settings["local_steps"] == (7,)


def steps_of_a_client(settings, share):
    """On average: of what is sent, and of what is not."""
    given = {name: settings[name][0] for name in fdsc_methods.BUDGET}
    joint = share * given["num_rounds"] * given["local_steps"]
    before = share * given["pretrain_rounds"] * given["local_steps"]
    return before + joint, joint + 2 * given["fit_steps"]


@pytest.mark.parametrize(
    ("name", "flags", "share", "expected"),
    [
        # 40 of 100 rounds of 7 steps before, 80 of 200, and twice 100.
        ("orl", {}, 2 / 5, (280 + 560, 560 + 200)),
        ("coil20", {}, 2 / 5, (140 + 280, 280 + 200)),
        ("mnist", {"clients": (40,)}, 10 / 40, (87.5 + 175, 175 + 200)),
        ("orl", {"num_participants": (5,)}, 1, (700 + 1400, 1400 + 200)),
        ("orl", {"clients": (3,)}, 1 / 3, (700 / 3 + 1400 / 3, 1400 / 3 + 200)),
    ],
)
def test_dscn_takes_as_many_steps_as_a_client_of_fdsc(name, flags, share, expected):
    """Or up to a round more of each stage, where the share of rounds is no integer."""
    of_fdsc = steps_of_a_client(fdsc_settings("fdsc1", name, **flags), share)
    of_dscn = steps_of_a_client(fdsc_settings("dscn", name, **flags), 1)
    assert of_fdsc == pytest.approx(expected)
    for more, steps in zip(of_dscn, of_fdsc, strict=True):
        assert 0 <= round(more - steps, 6) < 2 * 7


def test_budgets_of_the_authors_of_dlrsc_and_of_dsc_net():
    of_dlrsc = fdsc_settings("dlrsc", "orl")
    assert steps_of_a_client(of_dlrsc, 1) == (4900, 4900 + 200)  # of theirs, 5,000
    # One client alone is DSC-Net, with 560 steps where its code has 700.
    alone = fdsc_settings("dscn", "orl", clients=(1,))
    assert (alone["pretrain_rounds"], alone["num_rounds"]) == ((40,), (80,))
    assert alone["fit_steps"] == (0,)


def test_the_papers_own_settings_have_no_stage_but_one():
    (group,) = groups(fdsc, preset="paper")
    (stage,) = built(group).stages
    assert (stage.name, stage.num_rounds) == ("train", 100)


def test_readings_of_lambda_3_are_carried_over_to_the_pixels():
    def weight(reading, scale):
        flags = {"locality": reading, "pixel_scale": (scale,)}
        values = fdsc_settings("fdsc2", "mnist", **flags)
        fixed = {k: v[0] if isinstance(v, tuple) else v for k, v in values.items()}
        found = fdsc_methods.locality_of(fixed)
        return found["locality_weight"], found["mean_locality"]

    # 1e6 / 255^2: the whole objective divided by 255^2 is that of pixels of 0 to 1.
    assert weight("sum", 1.0) == (pytest.approx(15.3787), False)
    assert weight("sum", 255.0) == (pytest.approx(1e6), False)
    assert weight("mean", 1.0) == (pytest.approx(1e6), True)
    assert weight("mean", 255.0) == (pytest.approx(1e6 * 255**2), True)


# --- FedCRef


def only_group(**flags):
    (group,) = groups(fedcref, **{"preset": "smoke", **flags})
    return group


def test_clients_are_dealt_ranges_of_classes_unless_told_otherwise():
    group = only_group(start="dirty")
    assert group.num_clients == 8
    assert {(x["overlap"], x["dirtiness"]) for x in group.points} == {(0.0, 0.3)}
    assert group.num_clusters == 2  # the most classes of a client
    other = only_group(start="dirty", classes_per_client=(3,), clients=(3,))
    assert "overlap" not in other.points[0]
    assert (other.num_clients, other.num_clusters) == (3, 3)
    plain = only_group(start="k-means", labels=False, clusters=(3,))
    assert plain.points[0]["p"] == 0


def test_all_methods_are_of_the_same_data():
    methods = ("fedcref", "dec", "uifca")
    found = groups(fedcref, methods=methods, start="k-means", seed=(0, 1))
    assert [x.method.name for x in found] == [*methods]
    assert [x.method.scope for x in found] == ["client-mean", "global", "global"]
    assert [x.num_clusters for x in found] == [2, 4, 4]
    first, *others = ([x.clients for x in group.partitions] for group in found)
    for other in others:
        jax.tree.map(np.testing.assert_array_equal, first, other)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"start": "dec"}, "dec"),
        ({"start": "dec", "joint_rounds": (0,)}, "k-means"),
        ({"start": "k-means"}, "cluster"),
        ({"start": "dirty"}, "dirty"),
        # Only a simulation is given the labels.
        ({"start": "k-means", **UNLABELLED}, "cluster"),
    ],
    ids=str,
)
def test_what_ends_the_start_is_reported_as_initial(flags, name):
    group = only_group(**flags)
    assert [stage.name for stage in built(group).stages][-2:] == [name, "refine"]
    assert group.method.start == name


SHARED = {"clients": (4,), "samples_per_class": 20}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        # 500 / 20 is 25, whose roots are 5 and 1.90; 500 / 60: 2.89 and 1.53.
        ({"clients": (2,), "samples_per_class": 20}, (100, 0.38)),
        ({"clients": (1,), "samples_per_class": 60}, (58, 0.31)),
        ({"clients": (1,)}, (58, 0.31)),  # of 240 examples, 60 of each class
        ({"clients": (2,), "local_epochs": (7,), "threshold": (0.5,)}, (7, 0.5)),
        # Each shares floor(10 / 1.5) of its 20: 500 / 26 is 19.2.
        ({**SHARED, "overlap": (0.0,)}, (100, 0.38)),
        ({**SHARED, "overlap": (0.5,)}, (88, 0.36)),
        ({"clients": (1,), "preset": "paper"}, (20, 0.2)),
    ],
    ids=str,
)
def test_small_clusters_have_more_epochs_and_a_larger_threshold(flags, expected):
    """By the root, and the fifth root, of what is missing to 500 examples."""
    settings = only_group(**{"start": "dirty", "preset": "default", **flags}).method[1]
    assert (settings["local_epochs"], settings["threshold"][0]) == expected


def test_the_levels_of_a_pixel_are_those_between_its_extremes():
    levels = fedcref.levels_of
    digits = np.array([0, 16, 32, 48, 64, 80, 96, 112, 128, 143, 255], np.uint8)
    assert levels(digits) == 17
    assert levels(np.arange(256, dtype=np.uint8)) == 256
    assert levels(np.zeros((3, 8, 8, 1), np.uint8)) == 256
    assert levels(np.array([0.0, 0.25, 0.5, 1.0])) == 5


def test_the_papers_own_settings():
    settings = only_group(start="dec", preset="paper", clients=(8,)).method.settings
    names = ("pretrain_rounds", "joint_rounds", "num_rounds", "federated_rounds")
    assert [settings[name] for name in names] == [300, 70, 30, 15]
    names = ("percentile", "stability", "learning_rate")
    assert [settings[name][0] for name in names] == [75, 0.8, 1e-3]


# --- runs


def run(module, out, monkeypatch, *flags):
    """Runs a script by its command; returns the row of each method."""
    monkeypatch.setattr(sys, "argv", [f"{module.__name__}.py", f"--out={out}", *flags])
    several.main(module.Args, module.split)
    rows = {}
    for path in out.glob("*/results.csv"):
        with path.open(newline="") as file:
            (rows[path.parent.name],) = csv.DictReader(file)
    return rows


FEDCREF = ["--preset=smoke", "--clients=4", "--class-range", "2", "3", "--overlap=0"]
FEDCREF += ["--samples-per-class=8", "--local-epochs=3", "--batch-size=8"]


def test_true_associations_make_a_community_of_each_class_that_two_hold(
    tmp_path, monkeypatch
):
    labels = corners(tmp_path / "x.npz")
    flags = ["--start=dirty", "--dirtiness=0", "--associations=perfect"]
    flags += [*FEDCREF, f"--dataset={tmp_path / 'x.npz'}", "--num-rounds=1"]
    (row,) = run(fedcref, tmp_path / "out", monkeypatch, *flags).values()
    assert {"global_acc", "global_nmi", "client_acc", "active", "iteration"} <= set(row)
    out = tmp_path / "out" / "fedcref"
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


def test_all_methods_of_fedcref_run_in_one_command(tmp_path, monkeypatch):
    corners(tmp_path / "x.npz")
    flags = ["--methods", "dec", "uifca", "fedcref", "--start=k-means", "--no-plot"]
    flags += [*FEDCREF, f"--dataset={tmp_path / 'x.npz'}", "--flow-width=8"]
    rows = run(fedcref, tmp_path / "out", monkeypatch, *flags)
    assert set(rows) == {"dec", "uifca", "fedcref"}
    for row in rows.values():
        assert row["status"].startswith(("ok", "collapsed"))
        assert 0 < float(row["client_acc"]) <= 1


def test_a_run_of_fdsc_writes_its_scores_of_each_client(tmp_path, monkeypatch):
    flags = ["--limit=60", "--preset=smoke", "--clients=2", "--no-plot"]
    flags += ["--post-processing", "--assign-labels=discretize"]
    flags += ["--classes-per-client=3", "--methods", "fdsc1", "lrsc"]
    rows = run(fdsc, tmp_path, monkeypatch, *flags)
    assert set(rows) == {"fdsc1", "lrsc"}
    for row in rows.values():
        assert row["scope"] == "client-pooled"
        assert row["clusters"] == row["classes_per_client"] == "3"
        assert 1 / 3 <= float(row["acc"]) <= 1
        assert row.keys() >= {*reproduce.STUDIES["fdsc-table2"].values}
