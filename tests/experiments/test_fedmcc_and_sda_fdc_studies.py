"""What reproduce.py makes of the FedMCC and SDA-FDC papers: rows, their flags and
folders, runs that tables share, data by path."""

from dataclasses import replace

import numpy as np
import pytest
import reproduce
import sda_fdc_figures

from fcjax.data import Dataset

NAMES = [x for x in reproduce.STUDIES if x.startswith(("fedmcc-", "sda-fdc-"))]
PENDIGITS = "pendigits=some/pendigits.csv"
CALLED = {
    "KM_central": "km",
    "DCN_central": "dcn",
    "SDA-FC-KM": "sda-fc-km",
    "SDA-FDC (disjoint)": "sda-fdc-disjoint",
    "SDA-FDC": "sda-fdc",
    "SDA-FC-FCM": "sda-fc-fcm",
    "PPFC-GAN": "sda-fdc",
}


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """Of a table, by the label of its row."""
    monkeypatch.setattr(reproduce, "check_prepared", lambda *_: None)

    def found(table, **more):
        args = reproduce.Args(table=table, out=tmp_path, **more)
        each = reproduce.jobs(reproduce.STUDIES[table], args)
        return {job.row.label: job for job in each}

    return found


@pytest.mark.parametrize(
    "table", [*NAMES, "ccfc-table1", "ccfc-table3", "ccfc-figure6"]
)
@pytest.mark.parametrize("preset", ["smoke", "paper"])
def test_every_row_is_a_method_of_its_script(table, preset, jobs):
    """On images as large as those of the preset, without training."""
    study = reproduce.STUDIES[table]
    first = PENDIGITS if "pendigits" in study.by_path else study.datasets[0]
    chosen = "digits" if preset == "smoke" else first
    shape = (8, 8, 1) if preset == "smoke" else (224, 224, 3)
    dataset = Dataset("images", np.zeros((20, *shape), np.uint8), np.arange(20) % 10)
    found = jobs(table, preset=preset, datasets=(chosen,))
    assert len(found) == sum(bool(x.script or x.untrained) for x in study.rows)
    of_scripts = [job for job in found.values() if hasattr(job.flags, "methods")]
    for job in of_scripts:
        method = job.describe(job.flags, dataset, job.flags.clients[0], 10)
        if table.startswith("fedmcc"):
            assert job.flags.methods[0] in method.name
        elif job.row.label in CALLED:
            assert method.name == CALLED[job.row.label]
        if "gan_rounds" in method.settings and table != "sda-fdc-copies":
            assert (method.settings["gan_rounds"] < (50,)) == (preset == "smoke")
        # A flag that the method does not have would change nothing.
        held = {*method.settings, "methods", "failure_rate", "extra_split", "resize"}
        assert {*job.row.flags, *job.row.presets.get(preset, {})} <= held
    folders = {(job.flags, job.flags.out) for job in of_scripts}
    assert len({folder for _, folder in folders}) == len(folders)


LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
TRAINED_18 = {"split": "train", "backbone": "resnet18-imagenet"}


@pytest.mark.parametrize(
    ("table", "method", "dataset", "expected"),
    [
        ("fedmcc-table1", "FedMCC", "mnist", {"resize": 32, "class_share": (1.0,)}),
        ("fedmcc-table1", "FedMCC", "mnist", {"out": "mnist-fedmcc-resnet18"}),
        ("fedmcc-table1", "FedMCC", "mnist", {"seed": (0, 1, 2, 3, 4)}),
        ("fedmcc-table2", "FedU + MCC", "stl10", {"extra_split": "unlabelled"}),
        ("fedmcc-table2", "FedU + MCC", "stl10", {"resize": 224}),
        ("fedmcc-table2", "FedU + MCC", "stl10", {"class_share": (0.2,)}),
        # One stage has as many rounds as two.
        ("fedmcc-table1", "Fed + CC", "cifar10", {"num_rounds": (110,)}),
        # E epochs in 500 / E rounds.
        ("fedmcc-table8", "E = 2", "cifar10", {"local_epochs": (2,)}),
        ("fedmcc-table8", "E = 2", "cifar10", {"num_rounds": (250,)}),
        # Classifiers are of runs on the training split.
        (
            "fedmcc-table3",
            "FedU",
            "cifar10",
            {"out": "cifar10-fedu-k-means-train-resnet50-imagenet", "split": "train"},
        ),
        ("fedmcc-table4", "Single client", "cifar100", {"failure_rate": (0.8,)}),
        ("fedmcc-table4", "Single client", "cifar100", {"methods": ("fedu",)}),
        ("fedmcc-table4", "Single client", "cifar100", TRAINED_18),
        ("fedmcc-table4", "FedMCC (tuned)", "cifar10", {"momentum": (0.988,)}),
        # Methods of central data run at one p.
        ("ccfc-table1", "KM", "mnist", {"p": (0.0,), "methods": ("km",)}),
        ("ccfc-table1", "KM", "mnist", {"preset": "paper"}),
        ("ccfc-table1", "k-FED", "mnist", {"p": LEVELS, "out": "mnist-k-fed"}),
        ("sda-fdc-table2", "DCN_central", "mnist", {"p": (0.0,)}),
        ("sda-fdc-table2", "SDA-FDC", "mnist", {"p": LEVELS, "out": "mnist-sda-fdc"}),
        # What stands in for a data set is taken as it is.
        ("fedmcc-table1", "FedMCC", "digits", {"resize": None, "out": "digits-fedmcc"}),
    ],
)
def test_the_flags_of_a_row(table, method, dataset, expected, jobs):
    job = jobs(table, preset="paper", datasets=(dataset,))[method]
    found = vars(job.flags) | {"out": job.flags.out.name}
    assert expected.items() <= found.items()


def test_networks_of_two_sizes_are_one_run_of_a_smoke_table(jobs):
    found = jobs("fedmcc-table5")
    by_label = {label: job.flags for label, job in found.items()}
    assert by_label["FedU (Res18)"] == by_label["FedU (Res50)"]
    assert by_label["FedMCC (Res18)"] != by_label["FedMCC (Res18, tuned)"]
    assert len(set(by_label.values())) == len(by_label) - 2


@pytest.mark.parametrize("preset", ["smoke", "paper"])
def test_papers_share_the_runs_of_a_method(preset, jobs):
    more = {"preset": preset, "datasets": ("mnist",)}
    ours, theirs = jobs("sda-fdc-table2", **more), jobs("ccfc-table1", **more)
    both = {"SDA-FDC": "PPFC-GAN", "SDA-FC-KM": "SDA-FC-KM", "KM_central": "KM"}
    for name, other in both.items():
        assert ours[name].flags == theirs[other].flags
    # The figure finds them, and beside its own --out the ablation's.
    out = jobs("sda-fdc-figure3", **more)["SDA-FDC"].flags.out
    assert out == ours["SDA-FDC"].flags.out
    _, ending = sda_fdc_figures.PANELS["sda-fdc-disjoint"]
    assert out.name + ending == ours["SDA-FDC (disjoint)"].flags.out.name


def test_data_without_a_name_is_given_by_its_path(jobs, tmp_path):
    study = reproduce.STUDIES["fedmcc-table1"]
    named = reproduce.Args(table="fedmcc-table1", preset="paper")
    given = replace(named, datasets=("imagenet-10=some/where",))
    found = reproduce.datasets_of(study, given)
    assert found == {"some/where": ("imagenet-10", "imagenet-10")}
    every = ["cifar10", "cifar100", "stl10", "mnist"]
    assert list(reproduce.datasets_of(study, named)) == every
    assert "--datasets imagenet-10=PATH" in reproduce.note(study, named)
    assert "--datasets imagenet-10=PATH" not in reproduce.note(study, given)
    message = r"--datasets takes digits cifar10 .* imagenet-10=PATH, got"
    for wrong in ("imagenet-10", "cifar10=some/where", "imagenet-10="):
        with pytest.raises(ValueError, match=message):
            reproduce.datasets_of(study, replace(named, datasets=(wrong,)))
    # It is resized as the data set that it is.
    (job,) = jobs(
        "fedmcc-table1",
        preset="paper",
        datasets=(f"imagenet-10={tmp_path}",),
        methods=("FedMCC",),
    ).values()
    assert job.dataset == "imagenet-10"
    assert (job.flags.dataset, job.flags.resize) == (str(tmp_path), 224)


def test_notes_say_what_is_to_be_known():
    args = reproduce.Args("sda-fdc-table2", preset="paper", datasets=(PENDIGITS,))
    study = reproduce.STUDIES[args.table]
    beside = reproduce.beside(study.paper, reproduce.datasets_of(study, args))
    assert beside["pendigits", 0.5, "SDA-FDC"] == {"nmi": 0.7161}
    said = "cat pendigits.tra pendigits.tes > pendigits.csv"
    assert said in reproduce.note(study, args)
    args = reproduce.Args(table="fedmcc-table3")
    said = "not implemented, the paper's figures alone: FedCA"
    assert said in reproduce.note(reproduce.STUDIES[args.table], args)
