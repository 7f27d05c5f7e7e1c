"""The script of SDA-FDC and its baselines: what a flag stands for, errors of a line."""

import subprocess
import sys
import typing
from pathlib import Path

import jax
import numpy as np
import pytest
import sda_fdc
import sda_fdc_methods

from fcjax import data, script
from fcjax.grid import plan

NAMES = typing.get_args(sda_fdc_methods.Name)
DIGITS, GREY, COLOUR, VECTORS = (8, 8, 1), (28, 28, 1), (32, 32, 3), (16,)


def dataset(shape, *, size=120):
    examples = np.random.default_rng(0).integers(0, 256, (size, *shape), np.uint8)
    if len(shape) == 1:
        examples = examples.astype(np.float32) / 255
    return data.Dataset("made", examples, np.arange(size) % 4)


def build(name, shape, **flags):
    """The only group of the flags' grid, and its method."""
    args = sda_fdc.only(sda_fdc.Args(methods=(name,), **flags), name)
    (group,) = plan.groups(args, dataset(shape), 0, sda_fdc.describe)
    return group, group.build({key: each[0] for key, each in group.traced.items()})


STAGES = {
    "sda-fdc": ["gan", "autoencoder", "k-means", "joint", "final k-means"],
    "sda-fdc-disjoint": ["gan", "autoencoder", "k-means"],
    "sda-fc-km": ["gan", "cluster"],
    "sda-fc-fcm": ["gan", "cluster"],
    "dcn": ["autoencoder", "k-means", "joint", "final k-means"],
    "dcn-disjoint": ["autoencoder", "k-means"],
}


@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, VECTORS) for name in NAMES]
    + [("sda-fdc", DIGITS), ("sda-fc-km", COLOUR), ("dcn", DIGITS)],
    ids=str,
)
def test_every_method_takes_every_kind_of_example(name, shape):
    """Down to the shapes of its states, without compiling anything."""
    group, method = build(name, shape, preset="smoke")
    assert [stage.name for stage in method.stages] == STAGES[name]
    assert group.method.scope == "global"
    federation = jax.tree.map(
        lambda x: x[0],
        data.federate(
            dataset(shape).examples, group.partitions, group.present, num_clusters=4
        )._replace(pool=None),
    )
    federation = federation._replace(pool=jax.numpy.asarray(dataset(shape).examples))

    def run(key):
        states = [method.init(key, federation)]
        for stage in method.stages:
            state = stage.begin(key, states[-1], federation)
            states.append(stage.round(key, state, federation)[0])
        return states, method.embed(states[-1], federation)

    states, z = jax.eval_shape(run, jax.random.key(0))
    num_clients, num_slots = federation.indices.shape
    deep = "cluster" not in STAGES[name]
    width = 10 if deep else np.prod(shape)
    assert z.shape == (num_clients, num_slots, width)
    if name not in sda_fdc_methods.CENTRAL:
        # As many as the largest client holds, of the type of real ones.
        made = states[-1].source.examples
        assert made.shape == (num_clients, num_slots, *shape)
        assert made.dtype == dataset(shape).examples.dtype


def settings(name, shape, *, per_client=7000, **flags):
    args = sda_fdc.Args(**flags)
    return sda_fdc.defaults_of(args, name, shape, per_client=per_client)


def test_the_settings_of_the_authors_code():
    assert settings("sda-fc-km", GREY, preset="paper") == {
        "gan_rounds": 50,
        "gan_batch_size": 64,
        "generator_learning_rate": pytest.approx(3 * 0.0006),
        "discriminator_learning_rate": 0.0002,
        "gan_decay": 0.99,
        "noise_size": 62,
        "num_synthetic": None,
        "num_init": 10,
        "unit_length": True,
    }
    assert settings("sda-fc-fcm", GREY, preset="paper")["fuzzifier"] == 1.1
    assert settings("sda-fdc", GREY, preset="paper")["cluster_weight"] == 20
    assert settings("sda-fdc", GREY, preset="paper")["refresh_every"] == 10
    disjoint = settings("sda-fdc-disjoint", GREY, preset="paper")
    assert "cluster_weight" not in disjoint
    assert "joint_rounds" not in disjoint
    assert "refresh_every" not in disjoint
    assert settings("sda-fc-km", VECTORS)["noise_size"] == 5
    assert "gan_rounds" not in settings("dcn", GREY)


@pytest.mark.parametrize(
    ("per_client", "preset", "batch_size"),
    [
        (7000, "default", 64),
        (400, "default", 33),
        (180, "default", 16),
        (180, "paper", 64),
    ],
)
def test_few_examples_come_in_smaller_batches(per_client, preset, batch_size):
    found = settings("sda-fdc", GREY, per_client=per_client, preset=preset)
    assert found["gan_batch_size"] == batch_size


def test_an_explicit_flag_wins_over_the_preset():
    _, method = build(
        "sda-fdc", VECTORS, preset="smoke", gan_rounds=(7,), joint_rounds=(0,)
    )
    assert [stage.num_rounds for stage in method.stages] == [7, 3, 1]


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        (
            "sda-fc-fcm",
            {"fuzzifier": (1.5, 1.0)},
            "--fuzzifier must be above 1, got 1.0",
        ),
        ("sda-fdc", {"gan_rounds": (0,)}, "--gan-rounds must be at least 1, got 0"),
        (
            "dcn",
            {"pretrain_rounds": (0,)},
            "--pretrain-rounds must be at least 1, got 0",
        ),
        (
            "dcn",
            {"refresh_every": (0,)},
            "--refresh-every must be at least 1, got 0",
        ),
        (
            "sda-fc-km",
            {"num_synthetic": 0},
            "--num-synthetic must be at least 1, got 0",
        ),
        (
            "sda-fdc",
            {"gan_batch_size": (0,)},
            "--gan-batch-size must be at least 1, got 0",
        ),
        (
            "sda-fdc",
            {"cluster_weight": (-1.0,)},
            "--cluster-weight must be finite and at least 0, got -1.0",
        ),
    ],
)
def test_a_wrong_flag_is_named(name, flags, message):
    with pytest.raises(ValueError, match="--") as caught:
        build(name, VECTORS, **flags)
    assert str(caught.value) == message


def test_images_that_cannot_be_halved_are_refused_in_one_line():
    with pytest.raises(ValueError, match="resize them, as by --resize 32"):
        build("sda-fdc", (30, 30, 1))
    build("dcn", (30, 30, 1))  # which has no GAN


def test_a_central_method_runs_once_however_data_is_dealt():
    def values(name, **flags):
        given = {"p": (0.0, 0.5), "methods": ("dcn", "sda-fc-km"), **flags}
        return sda_fdc.only(sda_fdc.Args(**given), name).p

    assert values("dcn") == (0.0,)
    assert values("sda-fc-km") == (0.0, 0.5)
    assert values("dcn", failure_rate=(0.0, 0.3)) == (0.0, 0.5)


def test_methods_are_different_ones():
    for methods in ((), ("dcn", "dcn")):
        with pytest.raises(ValueError, match="--methods takes different methods"):
            sda_fdc.split(sda_fdc.Args(methods=methods))


def test_help_says_what_stands_for_a_flag():
    script = Path(sda_fdc.__file__)
    run = subprocess.run(
        [sys.executable, script, "--help"], capture_output=True, text=True, check=True
    )
    shown = " ".join(run.stdout.replace("│", " ").split())
    for name in NAMES:
        assert name in shown
    assert "--generator-learning-rate" in shown
    assert "(default: as many as it holds)" in shown


def test_a_run_by_its_command(tmp_path):
    """Rows of numbers in a file, through both stages, into a folder."""
    labels = np.repeat(np.arange(3), 20)
    noise = np.random.default_rng(0).normal(size=(60, 6))
    np.savez(tmp_path / "x.npz", x=noise + 9 * np.eye(6)[labels], y=labels)
    args = sda_fdc.Args(
        dataset=str(tmp_path / "x.npz"),
        methods=("sda-fc-km",),
        clients=(3,),
        gan_rounds=(2,),
        preset="smoke",
        plot=False,
        out=tmp_path / "out",
    )
    (results,) = script.run(lambda: sda_fdc.split(args))
    (row,) = results.rows
    assert row["method"] == "sda-fc-km"
    assert row["clusters"] == 3
    assert [line["stage"] for line in results.history] == ["gan", "gan", "cluster"]
    first, _, last = results.history
    assert first["nmi"] == ""  # no clusters yet
    assert 0 <= float(last["nmi"]) <= 1
    assert float(last["up_generator"]) > 0
