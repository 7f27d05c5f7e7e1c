"""The scripts of all methods: what stands for a flag, what they build, down to the
shapes of states, without compiling anything; little runs."""

from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from experiments import reproduce
from experiments.reproduce import task_of
from fcjax import data
from fcjax.cli.main import main
from fcjax.methods import FDSC, SCRIPTS
from fcjax.methods import fedmcc as fedmcc_methods
from fcjax.methods import paper_scores_ccfc as ccfc_paper
from fcjax.methods.base import Problem
from fcjax.results.store import read
from fcjax.sweep import plan
from fcjax.sweep.plan import Task
from fcjax.types import Now
from tests.experiments.blobs import rows
from tests.own_clusters import corners

DIGITS, GREY, COLOUR, VECTORS = (8, 8, 1), (28, 28, 1), (32, 32, 3), (6,)


def dataset(shape, *, labelled=True):
    """240 examples of four classes."""
    examples = np.random.default_rng(0).integers(0, 256, (240, *shape), np.uint8)
    if len(shape) == 1:
        examples = examples.astype(np.float32) / 255
    return data.Dataset("made", examples, np.arange(240) % 4 if labelled else None)


def settings_of(module, name, shape, *, per_client, **flags):
    """The settings of a method for four clusters, where each client has so many."""
    method = task_of(module, {**flags, "methods": (name,)}).method
    problem = Problem("made", dataset(shape), 10, 4, per_client, per_client // 4)
    return plain(method.resolve(problem).settings)


def plain(settings):
    """Settings of one value each, without the tuples of what may be swept."""
    return {k: v[0] if isinstance(v, tuple) else v for k, v in settings.items()}


def groups(module, shape=VECTORS, **flags):
    made = dataset(shape, labelled=flags.get("labels", True))
    return plan.batches(*task_of(module, flags).for_data(made))


def only_group(module, name, shape=VECTORS, **flags):
    (group,) = groups(module, shape, methods=(name,), **{"preset": "smoke"} | flags)
    return group


def built(group):
    return group.build({name: values[0] for name, values in group.traced.items()})


def federation_of(group, shape):
    pool = dataset(shape).examples
    federation = data.federate(pool, group.partitions, group.present, num_clusters=4)
    federation = jax.tree.map(lambda x: x[0], federation._replace(pool=None))
    now = Now(jax.numpy.int32(0), jax.numpy.int32(0), jax.numpy.array(True))
    return federation._replace(pool=jax.numpy.asarray(pool), now=now)


@pytest.mark.parametrize("name", [*ccfc_paper.NMI, "pendigits"])
@pytest.mark.parametrize("command", SCRIPTS)
def test_all_methods_of_a_command_accept_the_papers_data_sets(command, name):
    for method in SCRIPTS[command].methods:
        problem = Problem(name, dataset(GREY), 4, 4, 60, 60)
        assert method().resolve(problem).name


UNLABELLED = {"labels": False, "clusters": (2,)}

# --- FedMCC and SDA-FDC

ONE_STAGE = ("fed-cc", "fedmcc-one-stage", "cc", "mcc")


@pytest.mark.parametrize(
    ("name", "shape"),
    [(method.name, VECTORS) for method in SCRIPTS["fedmcc"].methods]
    + [(name, COLOUR) for name in ("fedmcc", "fedu", "fedsimsiam", "mcc")]
    + [("fedmcc", GREY), ("mcc", GREY)],
    ids=str,
)
def test_every_method_of_fedmcc_takes_every_kind_of_example(name, shape):
    group = only_group("fedmcc", name, shape)
    method = built(group)
    assert group.num_clients == (1 if name in ("cc", "mcc") else 5)
    stages = ["representation", "k-means", "cluster"]
    if name in ONE_STAGE:
        stages = ["cluster"] if name in ("cc", "mcc") else ["cluster", "k-means"]
    assert [stage.name for stage in method.stages] == stages
    federation = federation_of(group, shape)
    state = jax.eval_shape(method.init, jax.random.key(0), federation)
    sent = {"encoder", "projector"}
    sent |= {"predictor"} if name in ("fedu", "fedema", "fedsimsiam") else set()
    sent |= {"cluster_projector"} if name in ONE_STAGE else set()
    assert set(state.server.online["params"]) == sent
    tracked = name in ("fedmcc", "fedmcc-one-stage", "mcc", "fedu", "fedema")
    assert bool(state.clients.target) == tracked


DEEP, SUBSPACE = ["autoencoder", "k-means"], ["pretrain", "start", "train", "fit"]
JOINT = [*DEEP, "joint", "final k-means"]
STAGES = {
    **{"sda-fdc": ["gan", *JOINT], "sda-fdc-disjoint": ["gan", *DEEP]},
    **{"sda-fc-km": ["gan", "cluster"], "sda-fc-fcm": ["gan", "cluster"]},
    **{"dcn": JOINT, "dcn-disjoint": DEEP, "lrsc": ["cluster"]},
    **dict.fromkeys(("fdsc2", "fdsc1", "dscn", "dlrsc"), SUBSPACE),
}


@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, VECTORS) for name in STAGES]
    + [("sda-fdc", DIGITS), ("sda-fc-km", COLOUR), ("dcn", DIGITS)]
    + [("fdsc2", DIGITS), ("fdsc1", COLOUR), ("dscn", GREY)],
    ids=str,
)
def test_every_method_of_sda_fdc_and_of_fdsc_takes_every_kind_of_example(name, shape):
    is_sda = "gan" in STAGES[name] or name.startswith("dcn")
    module = "sda_fdc" if is_sda else "fdsc"
    group = only_group(module, name, shape)
    method, federation = built(group), federation_of(group, shape)
    assert [stage.name for stage in method.stages] == STAGES[name]
    scope = "global" if is_sda else "client-pooled"
    assert group.method.scope == scope

    def run(key):
        state = method.init(key, federation)
        for stage in method.stages:
            state = stage.begin(key, state, federation)
            state = stage.round(key, state, federation)[0]
        return state, method.embed(state, federation), method.assign(state, federation)

    state, z, clusters = jax.eval_shape(run, jax.random.key(0))
    slots = federation.mask.shape
    assert z.shape[:2] == clusters.shape == slots
    if is_sda:
        assert z.shape[2] == (np.prod(shape) if "cluster" in STAGES[name] else 10)
    if "gan" in STAGES[name]:
        # As many as the largest client holds, of the type of real ones.
        made = state.server.source.examples
        assert (made.shape, made.dtype) == ((*slots, *shape), federation.pool.dtype)


HUGE, FULL = (224, 224, 3), {"preset": "paper", "per_client": 7000}
PAPERS = [
    # FedMCC, Section IV-A; those of FedU and FedEMA are their code's.
    (
        *("fedmcc", "fedmcc", COLOUR, FULL | {"per_client": 10_000}),
        {
            **{"num_rounds": 100, "local_epochs": 5, "batch_size": 128},
            **{"learning_rate": 3e-4, "drop_last": True, "microbatch": None},
            **{"instance_temperature": 0.5, "momentum": 0.99, "average_target": False},
            **{"backbone": "resnet18", "optimizer": "adam", "cluster_by": "mcc"},
            **{"cluster_rounds": 10, "cluster_learning_rate": 3e-4},
            **{"cluster_temperature": 1.0, "entropy_weight": 1.0},
        },
    ),
    (
        *("fedmcc", "fedu", COLOUR, FULL | {"per_client": 10_000}),
        {"optimizer": "sgd", "learning_rate": 0.032, "threshold": 0.4}
        | {"momentum": 0.99},
    ),
    ("fedmcc", "fedema", COLOUR, FULL | {"per_client": 10_000}, {"autoscale": 0.7}),
    (
        *("fedmcc", "mcc", HUGE, FULL | {"per_client": 10_000}),
        {"backbone": "resnet34-imagenet", "num_rounds": 500, "local_epochs": 1},
    ),
    # SDA-FDC, the authors' code
    (
        *("sda_fdc", "sda-fc-km", GREY, FULL),
        {
            **{"gan_rounds": 50, "gan_batch_size": 64, "gan_decay": 0.99},
            "generator_learning_rate": pytest.approx(3 * 0.0006),
            **{"discriminator_learning_rate": 0.0002, "noise_size": 62},
            **{"num_synthetic": None, "num_init": 10, "unit_length": True},
        },
    ),
    ("sda_fdc", "sda-fc-fcm", GREY, FULL, {"fuzzifier": 1.1}),
    ("sda_fdc", "sda-fdc", GREY, FULL, {"cluster_weight": 20, "refresh_every": 10}),
    ("sda_fdc", "sda-fc-km", VECTORS, {"per_client": 7000}, {"noise_size": 5}),
    # Few examples come in smaller batches.
    ("sda_fdc", "sda-fdc", GREY, {"per_client": 7000}, {"gan_batch_size": 64}),
    ("sda_fdc", "sda-fdc", GREY, {"per_client": 400}, {"gan_batch_size": 33}),
    ("sda_fdc", "sda-fdc", GREY, {"per_client": 180}, {"gan_batch_size": 16}),
    ("sda_fdc", "sda-fdc", GREY, FULL | {"per_client": 180}, {"gan_batch_size": 64}),
    # FedCRef
    (
        *("fedcref", "fedcref", VECTORS, FULL | {"start": "dec"}),
        {"pretrain_rounds": 300, "joint_rounds": 70, "num_rounds": 30}
        | {"federated_rounds": 15, "percentile": 75, "stability": 0.8}
        | {"learning_rate": 1e-3},
    ),
]


@pytest.mark.parametrize(("module", "name", "shape", "flags", "expected"), PAPERS)
def test_the_settings_are_those_of_the_papers(module, name, shape, flags, expected):
    found = settings_of(module, name, shape, **flags)
    assert {key: found.get(key, "none") for key in expected} == expected


def test_a_method_has_the_settings_of_its_stages_alone():
    disjoint = settings_of("sda_fdc", "sda-fdc-disjoint", GREY, per_client=7000)
    assert not {"cluster_weight", "joint_rounds", "refresh_every"} & set(disjoint)
    assert "gan_rounds" not in settings_of("sda_fdc", "dcn", GREY, per_client=7000)
    (stage,) = built(only_group("fdsc", "fdsc2", preset="paper")).stages
    assert (stage.name, stage.num_rounds) == ("train", 100)


@pytest.mark.parametrize(
    ("name", "preset", "given", "expected"),
    [
        ("fedmcc", "smoke", None, False),
        ("cc", "paper", None, True),
        ("fedmcc", "paper", False, False),
        ("fedmcc", "default", True, True),
    ],
)
def test_the_last_batch_is_dropped_as_the_preset_or_the_flag_says(
    name, preset, given, expected
):
    settings = only_group(
        "fedmcc", name, preset=preset, drop_last=given
    ).method.settings
    assert settings["drop_last"] is expected
    values = {**settings, "learning_rate": 0.1, "num_rounds": 1}
    local = fedmcc_methods.local_of(SimpleNamespace(**values), lambda key, x: x)
    assert local.drop_last is expected


def test_images_that_a_network_does_not_take_are_refused_in_one_line():
    with pytest.raises(ValueError, match=r"`backbone` mlp .* not take images"):
        built(only_group("fedmcc", "fedmcc", DIGITS, backbone="mlp"))
    with pytest.raises(ValueError, match="resize the images, for example to 32x32"):
        built(only_group("sda_fdc", "sda-fdc", (30, 30, 1)))
    built(only_group("sda_fdc", "dcn", (30, 30, 1)))  # which has no GAN


def test_a_central_method_has_one_client_or_one_p_however_others_are_dealt():
    group = only_group("fedmcc", "mcc", class_share=(1.0, 0.2))
    assert group.num_clients == 1
    assert [point.get("p") for point in group.points] == [0.0]
    (held,) = group.partitions[0].clients
    assert sorted(held) == list(range(240))

    def values(name, **flags):
        task = task_of("sda_fdc", {"methods": (name,), "p": (0.0, 0.5), **flags})
        return task.for_data(dataset(GREY))[0].split.p

    assert values("dcn") == (0.0,)
    assert values("sda-fc-km") == (0.0, 0.5)
    assert values("dcn", failure_rate=(0.0, 0.3)) == (0.0, 0.5)


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
        only_group("fedmcc", name, cluster_by=by, **flags).method.shared
        for by in ("mcc", "k-means")
    )
    assert first == second
    assert (first.name, first.num_stages) == (name, 1)
    assert set(first.settings) == {*fedmcc_methods.FIRST_STAGE} | own


# --- FDSC


@pytest.mark.parametrize(
    ("name", "clients", "expected"),
    [
        ("mnist", 20, (1, 15, 1, 0.4, 10, 100, 5)),
        ("coil20", 5, (1, 75, 1, 0.04, 12, 100, 2)),
        # Fed as its file is, of 0 to 255.
        ("coil-100", 5, (1, 15, 255, 0.04, 12, 100, 2)),
        ("ORL_32x32.mat", 5, (2, 0.2, 255, 0.2, 3, 200, 2)),
    ],
)
def test_weights_are_those_of_the_lineage(
    tmp_path, monkeypatch, name, clients, expected
):
    monkeypatch.chdir(tmp_path)
    Path("ORL_32x32.mat").touch()
    task = Task.of(FDSC(post_processing=True), dataset=name, clients=(clients,))
    problem = task.problem(dataset(GREY), clients, 4)
    settings = plain(task.method.resolve(problem).settings)
    names = ("penalty_weight", "expression_weight", "pixel_scale", "keep", "dimension")
    names += ("num_rounds", "num_participants", "locality_weight", "local_steps")
    assert tuple(settings[x] for x in names) == (*expected, 1e6, 7)


# --- FedCRef


def test_clients_are_dealt_ranges_of_classes_unless_told_otherwise():
    group = only_group("fedcref", "fedcref", start="dirty")
    assert group.num_clients == 8
    assert {(x["overlap"], x["dirtiness"]) for x in group.points} == {(0.0, 0.3)}
    assert group.num_clusters == 2  # the most classes of a client
    flags = {"classes_per_client": (3,), "clients": (3,)}
    other = only_group("fedcref", "fedcref", start="dirty", **flags)
    assert "overlap" not in other.points[0]
    assert (other.num_clients, other.num_clusters) == (3, 3)
    plain = only_group("fedcref", "fedcref", start="k-means", **UNLABELLED)
    assert plain.points[0]["p"] == 0


# --- runs


def run(module, out, monkeypatch, *flags):
    """Runs a script by its command; returns the row of each method."""
    main(SCRIPTS[module.replace("_", "-")], [f"--out={out}", *flags])
    found = {x.parent.name: rows(x) for x in out.glob("*/results.csv")}
    return {name: row for name, (row,) in found.items()}


def test_all_methods_of_fedcref_run_in_one_command(tmp_path, monkeypatch):
    """True associations make a community of each class that two clients hold."""
    labels = corners(tmp_path / "x.npz")
    flags = ["--preset=smoke", "--clients=4", "--class-range", "2", "3", "--overlap=0"]
    flags += ["--samples-per-class=8", "--local-epochs=3", "--batch-size=8"]
    flags += ["--start=dirty", "--dirtiness=0", "--associations=perfect", "--no-plot"]
    flags += ["--methods", "dec", "uifca", "fedcref", "--flow-width=8"]
    flags += [f"--dataset={tmp_path / 'x.npz'}", "--num-rounds=1"]
    found = run("fedcref", tmp_path / "out", monkeypatch, *flags)
    for row in found.values():
        assert row["status"].startswith(("ok", "collapsed"))
        assert 0 < float(row["client_acc"]) <= 1

    row = found["fedcref"]
    finished = read(tmp_path / "out" / "fedcref")
    holders = finished.assignments()["client"].to_numpy()
    counts = [len(set(holders[(labels == c) & (holders >= 0)])) for c in range(4)]
    assert sum(count > 1 for count in counts) == float(row["communities"]) > 0
    assert counts.count(1) == float(row["isolated"])
    assert (float(row["wrong_associations"]), row["initial_acc"]) == (0, "1.0")


def test_a_run_of_fdsc_writes_its_scores_of_each_client(tmp_path, monkeypatch):
    corners(tmp_path / "x.npz")
    flags = [f"--dataset={tmp_path / 'x.npz'}", "--preset=smoke", "--clients=2"]
    flags += ["--post-processing", "--assign-labels=discretize", "--no-plot"]
    flags += ["--classes-per-client=3", "--methods", "fdsc1", "lrsc"]
    found = run("fdsc", tmp_path / "out", monkeypatch, *flags)
    for row in found.values():
        assert row["scope"] == "client-pooled"
        assert row["clusters"] == row["classes_per_client"] == "3"
        assert 1 / 3 <= float(row["acc"]) <= 1
        assert row.keys() >= {*reproduce.STUDIES["fdsc-table2"].values}
