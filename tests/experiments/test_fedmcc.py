"""The script of FedMCC and its baselines: what stands for a flag, one line of error."""

import typing

import fedmcc
import fedmcc_methods as methods
import jax
import numpy as np
import pytest

from fcjax import data, script
from fcjax.grid import plan

NAMES = typing.get_args(fedmcc.Name)
GREY, COLOUR, VECTORS = (28, 28, 1), (32, 32, 3), (16,)


def dataset(shape, *, size=120):
    examples = np.random.default_rng(0).integers(0, 256, (size, *shape), np.uint8)
    if len(shape) == 1:
        examples = examples.astype(np.float32) / 255
    return data.Dataset("made", examples, np.arange(size) % 4)


def build(name, shape, **flags):
    """The only group of the flags' grid, and its method."""
    args = fedmcc.only(fedmcc.Args(**flags), name)
    (group,) = plan.groups(args, dataset(shape), 0, fedmcc.describe)
    return group, group.build({key: each[0] for key, each in group.traced.items()})


@pytest.mark.parametrize("shape", [GREY, COLOUR, VECTORS], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_method_takes_every_kind_of_example(name, shape):
    """Down to the shapes of its state, without compiling anything."""
    group, method = build(name, shape, preset="smoke")
    assert group.num_clients == (1 if name in ("cc", "mcc") else 5)
    names = [stage.name for stage in method.stages]
    two = ["representation", "cluster"]
    central = ("fed-cc", "fedmcc-one-stage", "cc", "mcc")
    assert names == (["cluster"] if name in central else two)
    federation = jax.tree.map(
        lambda x: x[0],
        data.federate(
            dataset(shape).examples, group.partitions, group.present, num_clusters=4
        )._replace(pool=None),
    )
    federation = federation._replace(pool=dataset(shape).examples)
    state = jax.eval_shape(method.init, jax.random.key(0), federation)
    sent = set(state.online)
    assert {"encoder", "projector"} <= sent
    assert ("predictor" in sent) == (name in ("fedu", "fedema", "fedsimsiam"))
    assert ("cluster_projector" in sent) == (name in central)
    tracked = name in ("fedmcc", "fedmcc-one-stage", "mcc", "fedu", "fedema")
    assert bool(state.target) == tracked


def test_the_papers_settings():
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


def test_an_explicit_flag_wins_over_the_preset():
    _, method = build("fedmcc", GREY, preset="smoke", num_rounds=(7,))
    assert [stage.num_rounds for stage in method.stages] == [7, 1]


@pytest.mark.parametrize("name", ["fedmcc", "fedu", "cc"])
@pytest.mark.parametrize(
    ("preset", "given", "expected"),
    [
        ("smoke", None, False),
        ("default", None, False),
        ("paper", None, True),
        ("paper", False, False),
        ("default", True, True),
    ],
)
def test_the_last_batch_is_dropped_as_the_preset_or_the_flag_says(
    name, preset, given, expected
):
    group, _ = build(name, GREY, preset=preset, drop_last=given)
    assert group.method.settings["drop_last"] is expected
    local = methods.local_of(
        {**group.method.settings, "learning_rate": 0.1, "num_rounds": 1},
        lambda key, x: x,
    )
    assert local.drop_last is expected


@pytest.mark.parametrize("name", ["fedmcc", "fedu", "mcc", "fedmcc-one-stage"])
def test_weights_of_the_entropy_are_one_program_and_share_the_first_stage(name):
    group, _ = build(name, GREY, preset="smoke", entropy_weight=(1.0, 0.5))
    assert group.traced["entropy_weight"] == (1.0, 0.5)
    assert [point["entropy_weight"] for point in group.points] == [1.0, 0.5]
    if group.method.shared is not None:
        assert "entropy_weight" not in group.method.shared.settings


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"momentum": (1.5,)}, "--momentum must be at most 1, got 1.5"),
        (
            {"instance_temperature": (0.5, 0.0)},
            "--instance-temperature must be above 0, got 0",
        ),
        (
            {"cluster_temperature": (0.0,)},
            "--cluster-temperature must be above 0, got 0",
        ),
        (
            {"cluster_rounds": (0,)},
            "--cluster-rounds must be at least 1, got 0; --cluster-by k-means takes "
            "one",
        ),
        (
            {"entropy_weight": (-1.0,)},
            "--entropy-weight must be finite and at least 0, got -1.0",
        ),
        ({"microbatch": 0}, "--microbatch must be at least 1, got 0"),
        ({"backbone": "mlp"}, "--backbone mlp does not take images"),
    ],
)
def test_a_wrong_flag_is_named(flags, message):
    with pytest.raises(ValueError, match=message) as caught:
        build("fedmcc", GREY, **flags)
    assert str(caught.value) == message


def test_a_central_method_has_one_client_however_others_are_dealt():
    group, _ = build("mcc", GREY, preset="smoke", class_share=(1.0, 0.2))
    assert group.num_clients == 1
    assert [point.get("p") for point in group.points] == [0.0]
    (held,) = group.partitions[0].clients
    assert sorted(held) == list(range(120))


def test_methods_are_different_ones():
    with pytest.raises(ValueError, match="--methods takes different methods"):
        fedmcc.split(fedmcc.Args(methods=("cc", "cc")))


def run(folder, out, **flags):
    """Runs the first command on rows of numbers in a file."""
    labels = np.repeat(np.arange(3), 20)
    noise = np.random.default_rng(0).normal(size=(60, 6))
    np.savez(folder / "x.npz", x=noise + 9 * np.eye(6)[labels], y=labels)
    args = fedmcc.Args(
        dataset=str(folder / "x.npz"),
        clients=(3,),
        class_share=(1.0,),
        preset="smoke",
        plot=False,
        out=out,
        **flags,
    )
    (results,) = script.run(lambda: fedmcc.split(args))
    return results


def test_a_run_by_its_command(tmp_path):
    """Rows of numbers in a file, through both stages, into a folder."""
    results = run(tmp_path, tmp_path / "out")
    (row,) = results.rows
    assert row["method"] == "fedmcc"
    assert row["clusters"] == 3
    stages = [line["stage"] for line in results.history]
    assert stages == ["representation", "representation", "cluster"]
    first, _, last = results.history
    assert first["nmi"] == ""  # no clusters yet
    assert 0 <= float(last["nmi"]) <= 1
    assert "up_target" not in last


REPRESENTATION = {
    "num_rounds",
    "local_epochs",
    "batch_size",
    "drop_last",
    "microbatch",
    "backbone",
    "optimizer",
    "learning_rate",
}


@pytest.mark.parametrize(
    ("name", "flags", "own"),
    [
        (
            "fedmcc",
            {},
            {"instance_temperature", "momentum", "average_target"},
        ),
        ("fedu", {}, {"threshold", "momentum"}),
        ("fedema", {}, {"autoscale", "momentum"}),
        ("fedema", {"scale": (0.5,)}, {"autoscale", "scale", "momentum"}),
        ("fedsimsiam", {}, set()),  # it has no target: a momentum is the second stage's
        ("fedsimclr", {}, {"instance_temperature"}),
    ],
)
def test_methods_of_two_stages_share_the_first(name, flags, own):
    settings = []
    for second in ("mcc", "k-means"):
        group, _ = build(name, GREY, preset="smoke", cluster_by=second, **flags)
        assert group.method.shared is not None
        settings.append(group.method.shared)
    assert settings[0] == settings[1]
    assert (settings[0].name, settings[0].num_stages) == (name, 1)
    assert set(settings[0].settings) == REPRESENTATION | own


def test_methods_of_one_stage_share_none():
    for name in ("fed-cc", "fedmcc-one-stage", "cc", "mcc"):
        assert build(name, GREY, preset="smoke")[0].method.shared is None


def test_k_means_goes_on_from_the_representation_of_mcc(tmp_path, capsys):
    """To the bits of a run that has trained it itself."""
    run(tmp_path, tmp_path / "both", methods=("fedsimclr",))
    kmeans = {"methods": ("fedsimclr",), "cluster_by": "k-means"}
    found = run(tmp_path, tmp_path / "both", **kmeans)
    assert capsys.readouterr().out.count("1 runs go on from stages") == 1
    alone = run(tmp_path, tmp_path / "alone", **kmeans)
    assert "go on from stages" not in capsys.readouterr().out

    times = ("seconds", "compile_seconds")
    for name in ("rows", "history"):
        one, other = (
            [{k: str(v) for k, v in row.items() if k not in times} for row in table]
            for table in (getattr(found, name), getattr(alone, name))
        )
        assert one == other
    one, other = (np.load(x.model_path(x.first)) for x in (found, alone))
    for name in set(one.files) - {"program"}:
        np.testing.assert_array_equal(one[name], other[name])
