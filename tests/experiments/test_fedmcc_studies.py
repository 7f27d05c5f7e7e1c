"""What reproduce.py makes of FedMCC's tables: rows, settings, folders, data by path."""

from pathlib import Path

import numpy as np
import pytest
import reproduce
from papers import measures
from papers.study import Preset, Row, Study

from fcjax.data import Dataset

NAMES = [name for name in reproduce.STUDIES if name.startswith("fedmcc-")]


def flags(table, method, dataset, out, **more):
    study = reproduce.STUDIES[table]
    args = reproduce.Args(table=table, preset="paper", out=out, **more)
    (row,) = (row for row in study.rows if row.label == method)
    paper = dataset if dataset in study.datasets else ""
    return reproduce.flags_of(study, row, dataset, args, paper=paper)


def test_data_has_the_papers_sizes_and_stl10_its_unlabelled_images(tmp_path):
    found = flags("fedmcc-table1", "FedMCC", "mnist", tmp_path)
    assert (found["resize"], found["backbone"]) == (32, "resnet18")
    assert found["out"] == tmp_path / "mnist-fedmcc-resnet18"
    assert found["class_share"] == (1.0,)
    assert found["seed"] == (0, 1, 2, 3, 4)
    found = flags("fedmcc-table2", "FedU + MCC", "stl10", tmp_path)
    assert (found["resize"], found["extra_split"]) == (224, "unlabelled")
    assert found["class_share"] == (0.2,)
    # What stands in for a data set is taken as it is.
    found = flags("fedmcc-table1", "FedMCC", "digits", tmp_path)
    assert "resize" not in found
    assert found["out"] == tmp_path / "digits-fedmcc"


def test_one_stage_has_as_many_rounds_as_two(tmp_path):
    assert flags("fedmcc-table1", "Fed + CC", "cifar10", tmp_path)["num_rounds"] == (
        110,
    )
    # E epochs in 500 / E rounds.
    found = flags("fedmcc-table8", "E = 2", "cifar10", tmp_path)
    assert (found["local_epochs"], found["num_rounds"]) == ((2,), (250,))


def test_classifiers_are_of_runs_on_the_training_split(tmp_path):
    found = flags("fedmcc-table3", "FedU", "cifar10", tmp_path)
    assert found["split"] == "train"
    assert found["out"] == tmp_path / "cifar10-fedu-k-means-train-resnet50-imagenet"
    lone = flags("fedmcc-table4", "Single client", "cifar100", tmp_path)
    assert (lone["methods"], lone["failure_rate"]) == (("fedu",), (0.8,))
    assert lone["backbone"] == "resnet18-imagenet"
    tuned = flags("fedmcc-table4", "FedMCC (tuned)", "cifar10", tmp_path)
    assert tuned["momentum"] == (0.988,)


@pytest.mark.parametrize("table", NAMES)
@pytest.mark.parametrize("preset", ["smoke", "paper"])
def test_every_row_is_a_method_of_its_script(table, preset, tmp_path, monkeypatch):
    """On images as large as those of the preset, without training."""
    study = reproduce.STUDIES[table]
    size, channels = (8, 1) if preset == "smoke" else (224, 3)
    images = np.zeros((20, size, size, channels), np.uint8)
    dataset = Dataset("images", images, np.arange(20) % 10)
    monkeypatch.setattr(reproduce, "check_prepared", lambda *_: None)
    args = reproduce.Args(
        table=table, preset=preset, datasets=named(study, preset), out=tmp_path
    )
    found = reproduce.jobs(study, args)
    assert len(found) == sum(bool(row.script) for row in study.rows)
    for job in found:
        method = job.describe(job.flags, dataset, job.flags.clients[0], 10)
        assert job.flags.methods[0] in method.name
        # A flag that the method does not have would change nothing.
        for name in (*job.row.flags, *job.row.presets.get(preset, {})):
            held = (*method.settings, "methods", "failure_rate", "extra_split")
            assert name in (*held, "resize")
    folders = {(job.flags, job.flags.out) for job in found}
    assert len({folder for _, folder in folders}) == len(folders)


def named(study, preset):
    return ("digits",) if preset == "smoke" else study.datasets[:1]


def test_networks_of_two_sizes_are_one_run_of_a_smoke_table(tmp_path):
    study = reproduce.STUDIES["fedmcc-table5"]
    found = reproduce.jobs(study, reproduce.Args(table="fedmcc-table5", out=tmp_path))
    by_label = {job.row.label: job.flags for job in found}
    assert by_label["FedU (Res18)"] == by_label["FedU (Res50)"]
    assert by_label["FedMCC (Res18)"] != by_label["FedMCC (Res18, tuned)"]
    assert len(set(by_label.values())) == len(by_label) - 2


def test_rows_that_are_the_same_runs_train_once(tmp_path, capsys):
    labels = np.repeat([0, 1, 2], 10)
    noise = np.random.default_rng(0).normal(size=(30, 4))
    path = tmp_path / "vectors.npz"
    np.savez(path, x=noise + 9 * np.eye(4)[labels], y=labels)
    row = Row("one", "baselines", {"methods": ("k-fed",), "clients": (2,)}, runs="same")
    study = Study(
        "",
        datasets=(str(path),),
        rows=(row, row._replace(label="another")),
        presets={"smoke": Preset({"p": (0.0,)}, (0, 1), {})},
        measure=measures.scores,
        by=("dataset", "method"),
        values=("nmi",),
    )
    args = reproduce.Args(table="twice", datasets=(str(path),), out=tmp_path)
    reproduce.reproduce(study, args)
    assert capsys.readouterr().out.count("k-fed on vectors") == 1
    first, second = (tmp_path / "twice" / "table.md").read_text().splitlines()[2:]
    assert "one" in first
    assert "another" in second
    # The cells after data set and method.
    assert first.split("|")[3:] == second.split("|")[3:]


def test_data_without_a_name_is_given_by_its_path():
    study = reproduce.STUDIES["fedmcc-table1"]
    args = reproduce.Args(
        table="fedmcc-table1", preset="paper", datasets=("imagenet-10=some/where",)
    )
    assert reproduce.datasets_of(study, args) == {
        "some/where": ("imagenet-10", "imagenet-10")
    }
    all_named = reproduce.Args(table="fedmcc-table1", preset="paper")
    assert list(reproduce.datasets_of(study, all_named)) == [
        "cifar10",
        "cifar100",
        "stl10",
        "mnist",
    ]
    assert "--datasets imagenet-10=PATH" in reproduce.note(study, all_named)
    assert "--datasets imagenet-10=PATH" not in reproduce.note(study, args)
    for given in ("imagenet-10", "cifar10=some/where", "imagenet-10="):
        wrong = reproduce.Args(table="fedmcc-table1", datasets=(given,))
        with pytest.raises(
            ValueError,
            match=r"--datasets takes digits cifar10 .* imagenet-10=PATH, got",
        ):
            reproduce.datasets_of(study, wrong)


def test_a_folder_is_resized_as_the_data_set_that_it_is(tmp_path):
    study = reproduce.STUDIES["fedmcc-table1"]
    (tmp_path / "there").mkdir()
    args = reproduce.Args(
        table="fedmcc-table1",
        preset="paper",
        datasets=(f"imagenet-10={tmp_path / 'there'}",),
        methods=("FedMCC",),
        out=Path("out"),
    )
    (job,) = reproduce.jobs(study, args)
    assert job.dataset == "imagenet-10"
    assert job.flags.dataset == str(tmp_path / "there")
    assert job.flags.resize == 224


def test_what_nobody_has_implemented_is_said():
    args = reproduce.Args(table="fedmcc-table3")
    said = reproduce.note(reproduce.STUDIES["fedmcc-table3"], args)
    assert "not implemented, the paper's figures alone: FedCA" in said
