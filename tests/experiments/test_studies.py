"""What reproduce.py makes of the papers: rows, their flags and folders, the runs that
tables share, data by path."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from experiments import reproduce
from experiments.papers.fdsc import studies as fdsc_studies
from experiments.papers.fedcref import studies as fedcref_studies
from fcjax.data import Dataset
from fcjax.sweep import plan

FDSC, FEDCREF = list(fdsc_studies.STUDIES), list(fedcref_studies.STUDIES)
OTHERS = [x for x in reproduce.STUDIES if x.startswith(("fedmcc-", "sda-fdc-"))]
OTHERS += ["ccfc-table1", "ccfc-table3", "ccfc-figure6"]
EMNIST, PENDIGITS = "emnist-digits", "pendigits=some/pendigits.csv"
ORL, COIL20, COIL100 = "orl=ORL_32x32.mat", "coil20=COIL20.mat", "coil100=COIL100.mat"
DEC, FROM_DEC, UIFCA = "Centralized baseline w/ DEC", "FedCRef w/ DEC", "UIFCA"
SEEDS, LEVELS = (0, 1, 2, 3, 4), (0.0, 0.25, 0.5, 0.75, 1.0)
CALLED = {name: label for label, name in fdsc_studies.DISPLAY_NAMES.items()} | {
    **{DEC: "dec", UIFCA: "uifca", "KM_central": "km", "DCN_central": "dcn"},
    **{"SDA-FC-KM": "sda-fc-km", "SDA-FDC (disjoint)": "sda-fdc-disjoint"},
    **{"SDA-FDC": "sda-fdc", "SDA-FC-FCM": "sda-fc-fcm", "PPFC-GAN": "sda-fdc"},
}


def jobs(table, preset="paper", datasets=(), **more):
    """Of each data set and row, where all data is there."""
    args = reproduce.Args(table=table, preset=preset, datasets=datasets, **more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce, "check_prepared", lambda *_: None)
        found = reproduce.jobs(reproduce.STUDIES[table], args)
    return {(job.dataset, job.row.label): job for job in found}


def by_label(*args, **more):
    return {label: job for (_, label), job in jobs(*args, **more).items()}


@cache
def planned(table, preset):
    """The groups of each row, of as many images as it is made for."""
    size = 60_000 if preset == "paper" else 1_800
    images = np.zeros((size, 8, 8, 1), np.uint8)
    dataset = Dataset("images", images, np.arange(size) % 10)
    return [
        (job, plan.batches(*job.task.for_data(dataset)))
        for job in jobs(table, preset, seed=(0,)).values()
        if job.dataset in (EMNIST, "mnist") or preset == "smoke"
    ]


@pytest.mark.parametrize("preset", ["smoke", "paper"])
@pytest.mark.parametrize("table", FDSC + FEDCREF)
def test_every_row_builds_a_method_of_its_script(table, preset):
    study, outs = reproduce.STUDIES[table], set()
    for job, groups in planned(table, preset):
        label, _, processed = job.row.label.partition(" with ")
        for group in groups:
            assert group.method.name == CALLED.get(label, "fedcref")
            settings = group.method.settings
            assert settings.get("post_processing", False) == bool(processed)
            assert {*study.by} <= {"dataset", "method", "iteration", *group.points[0]}
            group.build({name: values[0] for name, values in group.traced.items()})
        outs.add(job.task.options.out)
    assert len(outs) == len(study.rows)


@pytest.mark.parametrize("preset", ["smoke", "paper"])
@pytest.mark.parametrize("table", OTHERS)
def test_every_row_is_a_method_that_has_its_flags(table, preset):
    """On images as large as those of the preset, without training."""
    study = reproduce.STUDIES[table]
    first = PENDIGITS if "pendigits" in study.by_path else study.datasets[0]
    chosen = "digits" if preset == "smoke" else first
    shape = (8, 8, 1) if preset == "smoke" else (224, 224, 3)
    dataset = Dataset("images", np.zeros((20, *shape), np.uint8), np.arange(20) % 10)
    found = by_label(table, preset, (chosen,))
    assert len(found) == sum(bool(x.script or x.measure_data) for x in study.rows)
    of_scripts = [job for job in found.values() if job.row.script not in ("", "ccfc")]
    for job in of_scripts:
        task, _ = job.task.for_data(dataset)
        problem = task.problem(dataset, task.split.clients[0], 10)
        method = task.method.resolve(problem)
        if table.startswith("fedmcc"):
            assert job.task.method.name in method.name
        elif job.row.label in CALLED:
            assert method.name == CALLED[job.row.label]
        if "gan_rounds" in method.settings and table != "sda-fdc-copies":
            assert (method.settings["gan_rounds"] < (50,)) == (preset == "smoke")
        # A flag that the method does not have would change nothing.
        held = {*method.settings, "methods", "failure_rate", "extra_split", "resize"}
        assert {*job.row.flags, *job.row.presets.get(preset, {})} <= held
    folders = {(repr(job.task), job.task.options.out) for job in of_scripts}
    assert len({folder for _, folder in folders}) == len(folders)


def test_data_without_a_name_is_given_by_its_path(tmp_path):
    study = reproduce.STUDIES["fedmcc-table1"]
    named = reproduce.Args(table="fedmcc-table1", preset="paper")
    given = replace(named, datasets=("imagenet-10=some/where",))
    found = reproduce.datasets_of(study, given)
    assert found == {"some/where": ("imagenet-10", "imagenet-10")}
    every = ["cifar10", "cifar100", "stl10", "mnist"]
    assert list(reproduce.datasets_of(study, named)) == every
    message = r"--datasets takes digits cifar10 .* imagenet-10=PATH, got"
    for wrong in ("imagenet-10", "cifar10=some/where", "imagenet-10="):
        with pytest.raises(ValueError, match=message):
            reproduce.datasets_of(study, replace(named, datasets=(wrong,)))
    # It is resized as the data set that it is.
    (job,) = jobs(
        "fedmcc-table1", datasets=(f"imagenet-10={tmp_path}",), methods=("FedMCC",)
    ).values()
    assert job.dataset == "imagenet-10"
    assert (job.task.source.dataset, job.task.source.resize) == (str(tmp_path), 224)
