"""What reproduce.py makes of the SDA-FDC paper: rows, runs that tables share, figures
on little data."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import reproduce
import sda_fdc
import sda_fdc_figures
from papers import label_shares
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import (
    cohen_kappa_score,
    confusion_matrix,
    normalized_mutual_info_score,
)

from fcjax.data import Dataset
from fcjax.runs.finished import Finished

NAMES = [*reproduce.sda_fdc_studies.STUDIES]
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


def jobs(table, monkeypatch, out, **more):
    monkeypatch.setattr(reproduce, "check_prepared", lambda *_: None)
    args = reproduce.Args(table=table, out=out, **more)
    found = reproduce.jobs(reproduce.STUDIES[table], args)
    return {job.row.label: job for job in found}


@pytest.mark.parametrize(
    "table", [*NAMES, "ccfc-table1", "ccfc-table3", "ccfc-figure6"]
)
@pytest.mark.parametrize("preset", ["smoke", "paper"])
def test_every_row_is_a_method_of_its_script(table, preset, tmp_path, monkeypatch):
    by_path = "pendigits" in reproduce.STUDIES[table].datasets
    datasets = (PENDIGITS,) if by_path and preset == "paper" else ()
    found = jobs(table, monkeypatch, tmp_path, preset=preset, datasets=datasets)
    images = np.zeros((20, 8, 8, 1), np.uint8)
    dataset = Dataset("images", images, np.arange(20) % 10)
    of_family = {label: job for label, job in found.items() if label in CALLED}
    assert len(of_family) >= len(found) - 1 or table.startswith("ccfc")
    for label, job in of_family.items():
        method = job.describe(job.flags, dataset, 10, 10)
        assert method.name == CALLED[label]
        short = preset == "smoke" and "gan_rounds" in method.settings
        if "gan_rounds" in method.settings:
            assert (method.settings["gan_rounds"] < (50,)) == short
    folders = {(job.flags, job.flags.out) for job in of_family.values()}
    assert len({folder for _, folder in folders}) == len(folders)


@pytest.mark.parametrize("preset", ["smoke", "paper"])
def test_papers_share_the_runs_of_a_method(preset, tmp_path, monkeypatch):
    more = {"preset": preset, "datasets": ("mnist",)}
    ours = jobs("sda-fdc-table2", monkeypatch, tmp_path, **more)
    theirs = jobs("ccfc-table1", monkeypatch, tmp_path, **more)
    assert ours["SDA-FDC"].flags == theirs["PPFC-GAN"].flags
    assert ours["SDA-FC-KM"].flags == theirs["SDA-FC-KM"].flags
    assert ours["KM_central"].flags == theirs["KM"].flags
    assert ours["SDA-FDC"].flags.out == tmp_path / "mnist-sda-fdc"
    assert ours["SDA-FDC"].flags.p == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert ours["DCN_central"].flags.p == (0.0,)


def test_pendigits_is_given_by_its_path():
    study = reproduce.STUDIES["sda-fdc-table2"]
    args = reproduce.Args(table="sda-fdc-table2", preset="paper")
    named = ["mnist", "fashion_mnist", "cifar10", "stl10"]
    assert list(reproduce.datasets_of(study, args)) == named
    given = replace(args, datasets=(PENDIGITS,))
    found = reproduce.datasets_of(study, given)
    assert found == {"some/pendigits.csv": ("pendigits", "pendigits")}
    beside = reproduce.beside(study.paper, found)
    assert beside["pendigits", 0.5, "SDA-FDC"] == {"nmi": 0.7161}
    assert "cat pendigits.tra pendigits.tes > pendigits.csv" in reproduce.note(
        study, given
    )


TINY = {
    "clients": (3,),
    "gan_rounds": (2,),
    "gan_batch_size": (10,),
    "pretrain_rounds": (2,),
    "joint_rounds": (1,),
    "num_init": (2,),
}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """With 60 rows in three classes, far apart, and what figure 2 left of them."""
    out = tmp_path_factory.mktemp("reproduced")
    labels = np.repeat([0, 1, 2], [15, 20, 25])
    noise = np.random.default_rng(0).normal(size=(60, 5))
    path = out / "vectors.npz"
    np.savez(path, x=noise + 9 * np.eye(5)[labels], y=labels)
    study = reproduce.STUDIES["sda-fdc-figure2"]
    smoke = study.presets["smoke"]._replace(flags={"sda_fdc": TINY})
    study = study._replace(
        datasets=(str(path),), by_path=(), presets={"smoke": smoke}, paper={}
    )
    args = reproduce.Args(
        table="sda-fdc-figure2",
        datasets=(str(path),),
        methods=("SDA-FDC", "truth"),
        out=out,
    )
    reproduce.reproduce(study, args)
    return out


def flags(out, **more):
    return sda_fdc.Args(
        dataset=str(out / "vectors.npz"),
        methods=("sda-fdc",),
        p=(1.0,),
        out=out / "vectors-sda-fdc",
        plot=False,
        **{**TINY, **more},
    )


def clustering(folder):
    """The classes, and the clusters of the one run that a folder holds."""
    finished = Finished(folder)
    _, clusters = finished.assignments(finished.point([]))
    return np.repeat([0, 1, 2], [15, 20, 25]), clusters


def test_figure_2_has_the_size_of_each_label(out):
    folder = out / "sda-fdc-figure2"
    with (folder / "table.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    found = {(x["method"], int(x["label"])): float(x["share"]) for x in lines}
    classes, clusters = clustering(out / "vectors-sda-fdc")
    overlap = confusion_matrix(classes, clusters, labels=np.arange(3))
    for name, cluster in zip(*linear_sum_assignment(-overlap), strict=True):
        share = (clusters == cluster).mean()
        assert found["SDA-FDC", name] == pytest.approx(share)
    assert [found["truth", name] for name in range(3)] == pytest.approx(
        [15 / 60, 20 / 60, 25 / 60]
    )
    assert len(found) == 6
    assert (folder / "vectors.png").stat().st_size > 10_000


def test_figure_2_needs_data(tmp_path):
    args = reproduce.Args(table="sda-fdc-figure2", preset="paper", out=tmp_path)
    with pytest.raises(ValueError, match="--datasets NAME=PATH says where"):
        reproduce.main(args)


def test_shares_of_labels_that_no_example_has():
    found = label_shares.shares(np.array([2, 2, 5, 2]), among=np.array([1, 2, 5]))
    assert found == [
        {"label": 1, "share": 0.0},
        {"label": 2, "share": 0.75},
        {"label": 5, "share": 0.25},
    ]


def test_figure_3_is_of_finished_runs_beside_the_paper(out, tmp_path, capsys):
    rows = sda_fdc_figures.figure3(flags(out), tmp_path)
    assert "reusing 1 finished run" in capsys.readouterr().out
    assert [row["panel"] for row in rows] == ["SDA-FDC (disjoint)", "SDA-FDC"]
    assert [row["nmi"].paper for row in rows] == [0.7572, 0.8353]
    assert [row["kappa"].paper for row in rows] == [0.7480, 0.7884]
    for row, name in zip(rows, ("-disjoint", ""), strict=True):
        classes, clusters = clustering(out / f"vectors-sda-fdc{name}")
        nmi = normalized_mutual_info_score(classes, clusters)
        assert row["nmi"].mean == pytest.approx(nmi, abs=1e-6)
        overlap = confusion_matrix(classes, clusters, labels=np.arange(3))
        names, matched = linear_sum_assignment(-overlap)
        kappa = cohen_kappa_score(classes, names[np.argsort(matched)][clusters])
        assert row["kappa"].mean == pytest.approx(kappa, abs=1e-6)
    assert (tmp_path / "figure3.png").stat().st_size > 10_000


def test_clients_of_figure_3_are_who_holds_an_example(out):
    args = flags(out)
    rows = np.load(out / "vectors.npz")["x"].astype(np.float32)
    dataset = Dataset("vectors", rows, None)
    embedding, clients, clusters = sda_fdc_figures.coded(args, dataset)
    assert embedding.shape == (60, 10)
    assert clusters.shape == (60,)
    # At p = 1 a client has all of one class.
    assert {len(set(part)) for part in np.split(clients, [15, 35])} == {1}
    assert len(set(clients)) == 3


def test_figure_3_finds_the_runs_of_the_tables(tmp_path, monkeypatch):
    of_table = jobs("sda-fdc-table2", monkeypatch, tmp_path)
    (job,) = jobs("sda-fdc-figure3", monkeypatch, tmp_path).values()
    assert job.flags.out == of_table["SDA-FDC"].flags.out
    _, ending = sda_fdc_figures.PANELS["sda-fdc-disjoint"]
    disjoint = job.flags.out.name + ending
    assert disjoint == of_table["SDA-FDC (disjoint)"].flags.out.name


def test_a_figure_is_of_one_run(out, tmp_path):
    args = flags(out, seed=(0, 1))
    with pytest.raises(ValueError, match=r"--seed takes one value for a figure, got"):
        sda_fdc_figures.figure3(args, tmp_path)
    assert list(tmp_path.iterdir()) == []
