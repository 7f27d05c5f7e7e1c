"""The script of FDSC and its baselines: what a flag stands for, errors of a line."""

import subprocess
import sys
import typing
from pathlib import Path

import fdsc
import fdsc_methods
import jax
import numpy as np
import pytest
import several

from fcjax import data
from fcjax.grid import experiment, plan

NAMES = typing.get_args(fdsc_methods.Name)
DIGITS, GREY, COLOUR, VECTORS = (8, 8, 1), (28, 28, 1), (32, 32, 3), (16,)
NUM_CLASSES = 4


def dataset(shape, *, size=120):
    examples = np.random.default_rng(0).integers(0, 256, (size, *shape), np.uint8)
    if len(shape) == 1:
        examples = examples.astype(np.float32) / 255
    return data.Dataset("made", examples, np.arange(size) % NUM_CLASSES)


def groups(name, shape, **flags):
    args = several.only(fdsc.Args(methods=(name,), **flags), name)
    return plan.groups(args, dataset(shape), 0, fdsc.describe)


def settings(name, dataset_name, **flags):
    args = fdsc.Args(methods=(name,), dataset=dataset_name, **flags)
    num_clients = args.clients[0]
    return fdsc.describe(args, dataset(GREY), num_clients, NUM_CLASSES).settings


STAGES = {
    "fdsc2": ["pretrain", "start", "train", "fit"],
    "fdsc1": ["pretrain", "start", "train", "fit"],
    "dscn": ["pretrain", "start", "train", "fit"],
    "dlrsc": ["pretrain", "start", "train", "fit"],
    "lrsc": ["cluster"],
}


@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, VECTORS) for name in NAMES]
    + [("fdsc2", DIGITS), ("fdsc1", COLOUR), ("dscn", GREY)],
    ids=str,
)
def test_every_method_takes_every_kind_of_example(name, shape):
    """Down to the shapes of its states, without compiling anything."""
    (group,) = groups(name, shape, preset="smoke")
    method = group.build({key: each[0] for key, each in group.traced.items()})
    assert [stage.name for stage in method.stages] == STAGES[name]
    assert group.method.scope == "client-pooled"
    federation = jax.tree.map(
        lambda x: x[0],
        data.federate(
            dataset(shape).examples,
            group.partitions,
            group.present,
            num_clusters=NUM_CLASSES,
        )._replace(pool=None),
    )
    federation = federation._replace(pool=jax.numpy.asarray(dataset(shape).examples))

    def run(key):
        state = method.init(key, federation)
        for stage in method.stages:
            state = stage.begin(key, state, federation)
            state = stage.round(key, state, federation)[0]
        return method.embed(state, federation), method.assign(state, federation)

    z, clusters = jax.eval_shape(run, jax.random.key(0))
    assert z.shape[:2] == clusters.shape == federation.indices.shape


def test_weights_are_those_of_the_lineage():
    names = ("penalty_weight", "expression_weight", "pixel_scale", "keep", "dimension")
    assert {
        known: tuple(
            settings("fdsc1", known, post_processing=True)[name][0] for name in names
        )
        for known in ("mnist", "coil20", "coil-100")
    } == {
        "mnist": (1, 15, 1, 0.4, 10),
        "coil20": (1, 75, 1, 0.04, 12),
        # Fed as its file is, of 0 to 255.
        "coil-100": (1, 15, 255, 0.04, 12),
    }


def test_orl_is_known_by_its_file(tmp_path):
    path = tmp_path / "ORL_32x32.mat"
    path.touch()
    found = settings("fdsc2", str(path))
    assert found["penalty_weight"] == (2.0,)
    assert found["expression_weight"] == (0.2,)
    assert found["pixel_scale"] == (255.0,)
    assert found["num_rounds"] == (200,)
    assert found["num_participants"] == (2,)  # 0.4 of 5


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
    of_fdsc = steps_of_a_client(settings("fdsc1", name, **flags), share)
    of_dscn = steps_of_a_client(settings("dscn", name, **flags), 1)
    assert of_fdsc == pytest.approx(expected)
    for more, steps in zip(of_dscn, of_fdsc, strict=True):
        assert 0 <= round(more - steps, 6) < 2 * 7


def test_only_dlrsc_takes_more_than_the_budget():
    """Its authors' 5,000 steps."""
    found = settings("dlrsc", "orl")
    assert steps_of_a_client(found, 1) == (4900, 4900 + 200)


def test_one_client_alone_is_dsc_net():
    """Of 560 steps where its code has 700, and nothing before or after."""
    found = settings("dscn", "orl", clients=(1,))
    assert (found["pretrain_rounds"], found["num_rounds"]) == ((40,), (80,))
    assert found["fit_steps"] == (0,)


def test_clusters_are_found_as_is_asked_for():
    assert settings("dscn", "orl")["assign_labels"] == "kmeans"
    (group,) = groups("lrsc", VECTORS, assign_labels="discretize")
    assert group.method.settings["assign_labels"] == "discretize"


def test_the_papers_own_settings_have_no_stage_but_one():
    (group,) = groups("fdsc2", DIGITS, preset="paper")
    method = group.build({key: each[0] for key, each in group.traced.items()})
    assert [(stage.name, stage.num_rounds) for stage in method.stages] == [
        ("train", 100)
    ]


def test_readings_of_lambda_3_are_carried_over_to_the_pixels():
    def weight(reading, scale):
        values = settings("fdsc2", "mnist", locality=reading, pixel_scale=(scale,))
        fixed = {k: v[0] if isinstance(v, tuple) else v for k, v in values.items()}
        found = fdsc_methods.locality_of(fixed)
        return found["locality_weight"], found["mean_locality"]

    # 1e6 / 255^2: the whole objective divided by 255^2 is that of pixels of 0 to 1.
    assert weight("sum", 1.0) == (pytest.approx(15.3787), False)
    assert weight("sum", 255.0) == (pytest.approx(1e6), False)
    assert weight("mean", 1.0) == (pytest.approx(1e6), True)
    assert weight("mean", 255.0) == (pytest.approx(1e6 * 255**2), True)


def test_clients_look_for_as_many_clusters_as_they_hold_classes():
    found = groups("lrsc", VECTORS, classes_per_client=(2, 3))
    assert [group.num_clusters for group in found] == [2, 3]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            {"num_participants": (6,)},
            "--num-participants must be at most --clients 5, got 6",
        ),
        ({"num_participants": (0,)}, "--num-participants must be at least 1, got 0"),
        ({"num_rounds": (0,)}, "--num-rounds must be at least 1, got 0"),
        ({"local_steps": (0,)}, "--local-steps must be at least 1, got 0"),
        ({"post_processing": True, "keep": (0.0,)}, "--keep must be above 0, got 0"),
        ({"post_processing": True, "power": (0.0,)}, "--power must be above 0, got 0"),
        ({"locality_weight": (-1.0,)}, "--locality-weight must be finite"),
        ({"methods": ()}, "--methods takes different methods"),
        ({"classes_per_client": (5,)}, "--classes-per-client must lie in 2..4"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value.split()[0],
)
def test_a_wrong_flag_is_told_in_a_line(flags, told):
    args = fdsc.Args(**{"methods": ("fdsc2",), **flags})

    def check():
        for own, describe in fdsc.split(args):
            plan.groups(own, dataset(GREY), 0, describe)

    with pytest.raises(ValueError, match=told) as error:
        check()
    assert "\n" not in str(error.value)


def test_a_state_beyond_memory_is_told_before_anything_is_written(tmp_path):
    """An n x n matrix for each client: 4 million examples take 64 TB."""
    many = dataset((2,), size=4_000_000)
    args = fdsc.Args(methods=("lrsc",), clients=(1,), out=tmp_path / "out")
    with pytest.raises(ValueError, match=r"the state of one run takes .* TiB"):
        experiment.prepare(args, fdsc.describe, lambda _: (many, many.examples[:0]))
    assert not (tmp_path / "out").exists()


def test_a_run_writes_its_scores_of_each_client(tmp_path):
    script = Path(fdsc.__file__)
    command = [sys.executable, script.name, "--limit", "200", "--preset", "smoke"]
    flags = ["--methods", "fdsc1", "lrsc", "--classes-per-client", "3", "--no-plot"]
    done = subprocess.run(
        [*command, *flags, "--out", tmp_path / "out"],
        cwd=script.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name in ("fdsc1", "lrsc"):
        lines = (tmp_path / "out" / name / "results.csv").read_text().splitlines()
        row = dict(zip(lines[0].split(","), lines[1].split(","), strict=True))
        assert row["scope"] == "client-pooled"
        assert row["clusters"] == row["classes_per_client"] == "3"
        assert 1 / 3 <= float(row["acc"]) <= 1
