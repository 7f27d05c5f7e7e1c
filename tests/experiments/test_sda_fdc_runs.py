"""SDA-FDC on little data: the paper's figures, and the runs that they leave."""

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score, normalized_mutual_info_score

from experiments import reproduce
from experiments.papers.sda_fdc import figures as sda_fdc_figures
from fcjax.data.sources import load_source
from fcjax.methods import SDAFDC
from fcjax.results.store import read
from fcjax.sweep.plan import Task
from tests.experiments.blobs import matched, rows, write_blobs

SIZES = (15, 20, 25)
TINY = {
    **{"clients": (3,), "gan_rounds": (2,), "gan_batch_size": (10,)},
    **{"pretrain_rounds": (2,), "joint_rounds": (1,), "num_init": (2,)},
}


def reproduced(table, out, *methods):
    """Reproduces a figure of Pendigits or MNIST on the rows; returns its table."""
    path = str(out / "vectors.npz")
    study = reproduce.STUDIES[table]
    smoke = study.presets["smoke"]._replace(flags={"sda_fdc": TINY})
    study = study._replace(
        datasets=(path,), by_path=(), presets={"smoke": smoke}, paper={}
    )
    args = reproduce.Args(table, datasets=(path,), methods=methods, out=out)
    reproduce.reproduce(study, args)
    return rows(out / table / "table.csv")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """With 60 rows in three classes, far apart, and figure 2, which leaves a run."""
    out = tmp_path_factory.mktemp("reproduced")
    write_blobs(out, SIZES)
    reproduced("sda-fdc-figure2", out, "SDA-FDC", "truth")
    return out


def clustering(folder):
    """The classes, and the clusters of the one run that a folder holds."""
    clusters = read(folder).assignments()["cluster"].to_numpy()
    return np.repeat([0, 1, 2], SIZES), clusters


def test_figure_2_has_the_size_of_each_label(out):
    labelled = rows(out / "sda-fdc-figure2" / "table.csv")
    found = {(x["method"], int(x["label"])): float(x["share"]) for x in labelled}
    clusters = matched(*clustering(out / "vectors-sda-fdc"))
    for name in range(3):
        share = (clusters == name).mean()
        assert found["SDA-FDC", name] == pytest.approx(share)
    shares = [15 / 60, 20 / 60, 25 / 60]
    assert [found["truth", name] for name in range(3)] == pytest.approx(shares)
    drawn = out / "sda-fdc-figure2" / "vectors.png"
    assert drawn.stat().st_size > 10_000


def test_figure_2_needs_data(tmp_path):
    args = reproduce.Args(table="sda-fdc-figure2", preset="paper", out=tmp_path)
    with pytest.raises(
        ValueError, match="give a file or folder by --datasets NAME=PATH"
    ):
        reproduce.main(args)


def test_figure_3_is_of_finished_runs_beside_the_paper(out, capsys):
    lines = reproduced("sda-fdc-figure3", out)
    assert "reusing 1 finished run" in capsys.readouterr().out
    assert [line["panel"] for line in lines] == ["SDA-FDC (disjoint)", "SDA-FDC"]
    assert [float(line["nmi_paper"]) for line in lines] == [0.7572, 0.8353]
    assert [float(line["kappa_paper"]) for line in lines] == [0.7480, 0.7884]
    for line, name in zip(lines, ("-disjoint", ""), strict=True):
        classes, clusters = clustering(out / f"vectors-sda-fdc{name}")
        nmi = normalized_mutual_info_score(classes, clusters)
        assert float(line["nmi"]) == pytest.approx(nmi, abs=1e-6)
        kappa = cohen_kappa_score(classes, matched(classes, clusters))
        assert float(line["kappa"]) == pytest.approx(kappa, abs=1e-6)
    drawn = out / "sda-fdc-figure3" / "figure3.png"
    assert drawn.stat().st_size > 10_000


def test_clients_of_figure_3_are_who_holds_an_example(out):
    where = {"dataset": str(out / "vectors.npz"), "out": out / "vectors-sda-fdc"}
    args = Task.of(SDAFDC, p=(1.0,), plot=False, **where, **TINY)
    dataset, _ = load_source(args.source)
    _, clients, _ = sda_fdc_figures.embed_examples(args, dataset)
    # At p = 1 a client has all of one class.
    assert {len(set(part)) for part in np.split(clients, [15, 35])} == {1}
