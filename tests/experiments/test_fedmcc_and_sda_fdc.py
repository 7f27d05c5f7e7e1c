"""The scripts of FedMCC and SDA-FDC, and their baselines: what stands for a flag, one
line of error."""

import typing
from pathlib import Path

import fedmcc
import fedmcc_methods as methods
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sda_fdc
import sda_fdc_methods

from fcjax import data
from fcjax.grid import plan

DIGITS, GREY, COLOUR, VECTORS = (8, 8, 1), (28, 28, 1), (32, 32, 3), (16,)


def dataset(shape):
    examples = np.random.default_rng(0).integers(0, 256, (120, *shape), np.uint8)
    if len(shape) == 1:
        examples = examples.astype(np.float32) / 255
    return data.Dataset("made", examples, np.arange(120) % 4)


def build(module, name, shape, **flags):
    """The only group of the flags' grid, and its method."""
    args = module.only(module.Args(methods=(name,), **flags), name)
    (group,) = plan.groups(args, dataset(shape), 0, module.describe)
    return group, group.build({key: each[0] for key, each in group.traced.items()})


def federation_of(group, shape):
    examples = dataset(shape).examples
    held = group.partitions, group.present
    federation = data.federate(examples, *held, num_clusters=4)._replace(pool=None)
    return jax.tree.map(lambda x: x[0], federation)._replace(pool=jnp.array(examples))


ONE_STAGE = ("fed-cc", "fedmcc-one-stage", "cc", "mcc")


@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, VECTORS) for name in typing.get_args(fedmcc.Name)]
    + [(name, COLOUR) for name in ("fedmcc", "fedu", "fedsimsiam", "mcc")]
    + [("fedmcc", GREY), ("mcc", GREY)],
    ids=str,
)
def test_every_method_of_fedmcc_takes_every_kind_of_example(name, shape):
    """Down to the shapes of its state, without compiling anything."""
    group, method = build(fedmcc, name, shape, preset="smoke")
    assert group.num_clients == (1 if name in ("cc", "mcc") else 5)
    names = [stage.name for stage in method.stages]
    two = ["representation", "cluster"]
    assert names == (["cluster"] if name in ONE_STAGE else two)
    federation = federation_of(group, shape)
    state = jax.eval_shape(method.init, jax.random.key(0), federation)
    sent = set(state.online)
    assert {"encoder", "projector"} <= sent
    assert ("predictor" in sent) == (name in ("fedu", "fedema", "fedsimsiam"))
    assert ("cluster_projector" in sent) == (name in ONE_STAGE)
    assert (group.method.shared is None) == (name in ONE_STAGE)
    tracked = name in ("fedmcc", "fedmcc-one-stage", "mcc", "fedu", "fedema")
    assert bool(state.target) == tracked


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
    [(name, VECTORS) for name in STAGES]
    + [("sda-fdc", DIGITS), ("sda-fc-km", COLOUR), ("dcn", DIGITS)],
    ids=str,
)
def test_every_method_of_sda_fdc_takes_every_kind_of_example(name, shape):
    group, method = build(sda_fdc, name, shape, preset="smoke")
    assert [stage.name for stage in method.stages] == STAGES[name]
    assert group.method.scope == "global"
    federation = federation_of(group, shape)

    def run(key):
        states = [method.init(key, federation)]
        for stage in method.stages:
            state = stage.begin(key, states[-1], federation)
            states.append(stage.round(key, state, federation)[0])
        return states, method.embed(states[-1], federation)

    states, z = jax.eval_shape(run, jax.random.key(0))
    num_clients, num_slots = federation.indices.shape
    deep = "cluster" not in STAGES[name]
    assert z.shape == (num_clients, num_slots, 10 if deep else np.prod(shape))
    if name not in sda_fdc_methods.CENTRAL:
        # As many as the largest client holds, of the type of real ones.
        made = states[-1].source.examples
        assert made.shape == (num_clients, num_slots, *shape)
        assert made.dtype == federation.pool.dtype


def test_the_settings_of_the_fedmcc_paper():
    """Section IV-A; those of FedU and FedEMA are their code's."""
    args = fedmcc.Args(preset="paper")
    ours = fedmcc.defaults_of(args, "fedmcc", COLOUR)
    assert ours == {
        "num_rounds": 100,
        "local_epochs": 5,
        "batch_size": 128,
        "learning_rate": 3e-4,
        "drop_last": True,
        "microbatch": None,
        "instance_temperature": 0.5,
        "momentum": 0.99,
        "average_target": False,
        "backbone": "resnet18",
        "optimizer": "adam",
        "cluster_by": "mcc",
        "cluster_rounds": 10,
        "cluster_learning_rate": 3e-4,
        "cluster_temperature": 1.0,
        "entropy_weight": 1.0,
    }
    fedu = fedmcc.defaults_of(args, "fedu", COLOUR)
    assert (fedu["optimizer"], fedu["learning_rate"]) == ("sgd", 0.032)
    assert (fedu["threshold"], fedu["momentum"]) == (0.4, 0.99)
    assert fedmcc.defaults_of(args, "fedema", COLOUR)["autoscale"] == 0.7
    mcc = fedmcc.defaults_of(args, "mcc", (224, 224, 3))
    assert mcc["backbone"] == "resnet34-imagenet"
    assert (mcc["num_rounds"], mcc["local_epochs"]) == (500, 1)


def settings(name, shape, *, per_client=7000, **flags):
    args = sda_fdc.Args(**flags)
    return sda_fdc.defaults_of(args, name, shape, per_client=per_client)


def test_the_settings_of_the_sda_fdc_authors_code():
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
    joint = settings("sda-fdc", GREY, preset="paper")
    assert (joint["cluster_weight"], joint["refresh_every"]) == (20, 10)
    disjoint = settings("sda-fdc-disjoint", GREY, preset="paper")
    assert not {"cluster_weight", "joint_rounds", "refresh_every"} & set(disjoint)
    assert settings("sda-fc-km", VECTORS)["noise_size"] == 5
    assert "gan_rounds" not in settings("dcn", GREY)


def test_few_examples_come_in_smaller_batches():
    def batch_size(per_client, preset="default"):
        found = settings("sda-fdc", GREY, per_client=per_client, preset=preset)
        return found["gan_batch_size"]

    assert [batch_size(n) for n in (7000, 400, 180)] == [64, 33, 16]
    assert batch_size(180, "paper") == 64


@pytest.mark.parametrize(
    ("name", "preset", "given", "expected"),
    [
        ("fedmcc", "smoke", None, False),
        ("fedu", "default", None, False),
        ("cc", "paper", None, True),
        ("fedmcc", "paper", False, False),
        ("fedmcc", "default", True, True),
    ],
)
def test_the_last_batch_is_dropped_as_the_preset_or_the_flag_says(
    name, preset, given, expected
):
    group, _ = build(fedmcc, name, VECTORS, preset=preset, drop_last=given)
    assert group.method.settings["drop_last"] is expected
    values = {**group.method.settings, "learning_rate": 0.1, "num_rounds": 1}
    local = methods.local_of(values, lambda key, x: x)
    assert local.drop_last is expected


@pytest.mark.parametrize("name", ["fedu", "mcc"])
def test_weights_of_the_entropy_are_one_program(name):
    group, _ = build(fedmcc, name, VECTORS, preset="smoke", entropy_weight=(1.0, 0.5))
    assert group.traced["entropy_weight"] == (1.0, 0.5)
    assert [point["entropy_weight"] for point in group.points] == [1.0, 0.5]


@pytest.mark.parametrize(
    ("module", "name", "flag", "value", "said"),
    [
        (fedmcc, "mcc", "momentum", (1.5,), "must be at most 1, got 1.5"),
        (fedmcc, "mcc", "instance_temperature", (0.5, 0.0), "must be above 0, got 0"),
        (fedmcc, "fedmcc", "cluster_temperature", (0.0,), "must be above 0, got 0"),
        (
            fedmcc,
            "fedmcc",
            "cluster_rounds",
            (0,),
            "must be at least 1, got 0; --cluster-by k-means takes one",
        ),
        (fedmcc, "cc", "microbatch", 0, "must be at least 1, got 0"),
        (sda_fdc, "sda-fc-fcm", "fuzzifier", (1.5, 1.0), "must be above 1, got 1.0"),
        (sda_fdc, "sda-fdc", "gan_rounds", (0,), "must be at least 1, got 0"),
        (sda_fdc, "dcn", "pretrain_rounds", (0,), "must be at least 1, got 0"),
        (sda_fdc, "dcn", "refresh_every", (0,), "must be at least 1, got 0"),
        (sda_fdc, "sda-fc-km", "num_synthetic", 0, "must be at least 1, got 0"),
    ],
)
def test_a_wrong_flag_is_named(module, name, flag, value, said):
    with pytest.raises(ValueError, match="--") as caught:
        build(module, name, VECTORS, **{flag: value})
    assert str(caught.value) == f"--{flag.replace('_', '-')} {said}"


def test_images_that_cannot_be_halved_are_refused_in_one_line():
    with pytest.raises(ValueError, match="resize them, as by --resize 32"):
        build(sda_fdc, "sda-fdc", (30, 30, 1))
    build(sda_fdc, "dcn", (30, 30, 1))  # which has no GAN


def test_a_central_method_has_one_client_or_one_p_however_others_are_dealt():
    group, _ = build(fedmcc, "mcc", VECTORS, preset="smoke", class_share=(1.0, 0.2))
    assert group.num_clients == 1
    assert [point.get("p") for point in group.points] == [0.0]
    (held,) = group.partitions[0].clients
    assert sorted(held) == list(range(120))

    def values(name, **flags):
        return sda_fdc.only(sda_fdc.Args(p=(0.0, 0.5), **flags), name).p

    assert values("dcn") == (0.0,)
    assert values("sda-fc-km") == (0.0, 0.5)
    assert values("dcn", failure_rate=(0.0, 0.3)) == (0.0, 0.5)


def test_each_method_has_a_folder_of_its_own():
    tasks = sda_fdc.split(sda_fdc.Args(methods=("dcn", "sda-fdc"), out=Path("here")))
    assert [args.out for args, _ in tasks] == [Path("here/dcn"), Path("here/sda-fdc")]
    (task,) = fedmcc.split(fedmcc.Args(cluster_by="k-means", out=Path("here")))
    assert task[0].out == Path("here/fedmcc+k-means")


@pytest.mark.parametrize(
    ("name", "flags", "own"),
    [
        ("fedmcc", {}, {"instance_temperature", "momentum", "average_target"}),
        ("fedu", {}, {"threshold", "momentum"}),
        ("fedema", {}, {"autoscale", "momentum"}),
        ("fedema", {"scale": (0.5,)}, {"autoscale", "scale", "momentum"}),
        ("fedsimsiam", {}, set()),  # it has no target: a momentum is the second stage's
        ("fedsimclr", {}, {"instance_temperature"}),
    ],
)
def test_methods_of_two_stages_share_the_first(name, flags, own):
    first, second = (
        build(fedmcc, name, VECTORS, cluster_by=by, **flags)[0].method.shared
        for by in ("mcc", "k-means")
    )
    assert first == second
    assert (first.name, first.num_stages) == (name, 1)
    assert set(first.settings) == {*fedmcc.LOCAL, "backbone", "optimizer"} | own
