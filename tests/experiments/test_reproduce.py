"""Tables and figures of papers, made in small by real runs."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from experiments import reproduce
from experiments.papers.ccfc import figures as ccfc_figures
from experiments.papers.fdsc import figures as fdsc_figures
from experiments.papers.fedmcc import figures as fedmcc_figures
from experiments.papers.sda_fdc import examples as sda_fdc_examples
from experiments.papers.sda_fdc import figures as sda_fdc_figures
from fcjax.data import load, stratified_subset
from fcjax.results.store import read
from tests.experiments.blobs import matched, rows, write_blobs

TINY = {
    **{"clients": (3,), "pretrain_rounds": (2,), "cluster_rounds": (1,)},
    **{"local_epochs": (1,), "batch_size": (10,), "latent_size": (4,)},
}
SEEDS = (0, 1)


def execute(name, out, *, methods=("CCFC",), **changes):
    """Reproduces a study on rows of numbers in place of MNIST, whose network compiles
    soon, and on the grid that all these tests share; returns its
    table."""
    study, data = reproduce.STUDIES[name], str(out / "vectors.npz")
    smoke = study.presets["smoke"]
    few = {"p": smoke.grid["p"][:1] if len(smoke.grid["p"]) == 1 else (0.0, 0.5)}
    smoke = smoke._replace(
        grid={**smoke.grid, **few, **changes},
        seeds=SEEDS[: len(smoke.seeds)],
        flags={"ccfc": TINY},
    )
    (ours,) = (row for row in study.rows if row.label == "CCFC")
    study = study._replace(
        datasets=(data,),
        rows=(*study.rows, ours._replace(label="twin", runs="CCFC")),
        presets={"smoke": smoke},
        paper={(data, *k[1:]): v for k, v in study.paper.items() if k[0] == "mnist"},
    )
    args = reproduce.Args(
        name, "smoke", limit=66, datasets=(data,), methods=methods, out=out
    )
    reproduce.reproduce(study, args)
    return rows(out / name / "table.csv")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """With 70 rows of three classes, of which 66 are used, and Table 1 in small."""
    out = tmp_path_factory.mktemp("reproduced")
    write_blobs(out, (20, 22, 28), apart=2.0)
    execute("ccfc-table1", out, methods=("CCFC", "twin"))
    return out


@pytest.fixture(scope="module")
def used(out):
    return stratified_subset(load(str(out / "vectors.npz")), 66)


def test_a_table_is_the_mean_of_its_runs_beside_the_paper(out):
    lines = rows(out / "ccfc-table1" / "table.csv")
    # The chosen method at the paper's five p, and another row of the same runs, which
    # train once.
    assert len(lines) == 5 + 2
    twins = {line["p"]: line["nmi"] for line in lines if line["method"] == "twin"}
    runs = rows(out / "vectors-ccfc" / "results.csv")
    assert len(runs) == 2 * 2
    ours = {float(line["p"]): line for line in lines if line["method"] == "CCFC"}
    for p, printed in {0.0: 0.9236, 0.5: 0.6718}.items():
        nmi = np.array([float(run["nmi"]) for run in runs if float(run["p"]) == p])
        assert float(ours[p]["nmi"]) == pytest.approx(nmi.mean(), abs=1e-12)
        assert float(ours[p]["nmi_paper"]) == printed
        assert ours[p]["nmi"] == twins[ours[p]["p"]]


def test_the_paper_has_central_methods_without_p_and_tables_without_methods():
    studies, mnist = reproduce.STUDIES, {"mnist": ("mnist", "mnist")}
    every = reproduce.paper_rows(studies["ccfc-table1"], mnist)
    # Two central figures of MNIST, and five p with six methods.
    assert len(every) == 2 + 5 * 6
    (central,) = (line for line in every if line["method"] == "KM")
    assert central["p"] is None
    few = reproduce.paper_rows(studies["ccfc-table1"], mnist, ("KM", "CCFC"))
    assert [line["method"] for line in few].count("CCFC") == 5
    assert len(few) == 6
    (name, *_) = studies["fedmcc-table9"].datasets
    shown = {name: (name, name)}
    both = (reproduce.paper_rows(studies["fedmcc-table9"], shown, x) for x in ((), "M"))
    assert next(both) == next(both) != []


def test_the_same_command_again_trains_nothing_and_rewrites_the_table(out, capsys):
    table, history = out / "ccfc-table1", out / "vectors-ccfc" / "history.csv"
    before, trained = (table / "table.csv").read_text(), history.stat().st_mtime_ns
    (table / "table.csv").write_text("damaged")
    execute("ccfc-table1", out, methods=("CCFC", "twin"))
    printed = capsys.readouterr().out
    assert (table / "table.csv").read_text() == before
    assert history.stat().st_mtime_ns == trained
    assert printed.count("reusing 4 finished runs") == 1
    shown, _, notes = (table / "table.md").read_text().partition("\n\n- ")
    assert shown in printed
    assert all(f"note: {line}" in printed for line in notes.strip().split("\n- "))


def test_clients_are_scored_on_their_own_examples(out, used):
    lines = [line for line in execute("ccfc-table4", out) if line["kappa"]]
    assert [line["client"] for line in lines] == ["1", "2", "3", "mean"]
    assert [line["kappa_paper"] for line in lines[:3]] == ["0.9605", "0.9643", "0.9611"]
    finished = read(out / "vectors-ccfc")
    held = finished.assignments(p=0, seed=0)
    holders, clusters = held["client"].to_numpy(), held["cluster"].to_numpy()
    kappas = []
    for client, line in enumerate(lines[:3]):
        truth, cluster = used.labels[holders == client], clusters[holders == client]
        kappas.append(cohen_kappa_score(truth, matched(truth, cluster)))
        counts = np.bincount(truth, minlength=3)
        assert float(line["imbalance"]) == counts.max() / counts.min()
        assert float(line["kappa"]) == pytest.approx(kappas[-1], abs=0.02)
    assert float(lines[3]["kappa"]) == pytest.approx(np.mean(kappas), abs=0.02)


def test_a_figure_has_its_table_and_its_drawing(out):
    lines = execute("ccfc-figure7", out, model_weight=(0.001,))
    # The paper's at its own lambda for five p, of which two were run.
    assert [float(line["p"]) for line in lines] == [0, 0.25, 0.5, 0.75, 1]
    assert [line["nmi_seeds"] for line in lines] == ["2", "0", "2", "0", "0"]
    (image,) = (out / "ccfc-figure7").glob("*.png")
    assert image.stat().st_size > 10_000


def test_figures_name_functions_that_there_are():
    for study in reproduce.STUDIES.values():
        if study.draw_runs:
            module, _, function = study.draw_runs.rpartition(".")
            module = importlib.import_module(f"experiments.papers.{module}")
            assert callable(getattr(module, function))


def test_what_stands_in_for_the_papers_data_is_called_so():
    study = reproduce.STUDIES["ccfc-table1"]
    args = reproduce.Args(table="ccfc-table1")
    datasets = reproduce.datasets_of(study, args)
    assert datasets == {"digits": ("mnist", "digits for mnist")}
    paper = reproduce.paper_rows(study, datasets)
    row = {"dataset": "digits for mnist", "p": 0.0, "method": "CCFC"}
    assert {**row, "paper_nmi": 0.9236} in paper


UNPREPARED = r"mnist is not prepared.*download_and_prepare.*by --datasets"
ONE = r"`seed` takes one value for a figure, got \(0, 1\)"


def study(name, **flags):
    return lambda out: reproduce.main(reproduce.Args(name, out=out, **flags))


def figure(draw, **flags):
    script = draw.__module__.split(".")[2]
    return lambda out: draw(reproduce.task_of(script, {"out": out, **flags}), out)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (study("ccfc-table1", methods=("SCFC",)), "--methods takes .*CCFC, got 'SCFC'"),
        (study("ccfc-table1", preset="paper", data_dir=Path("none")), UNPREPARED),
        (figure(ccfc_figures.figure3, seed=(0, 1)), ONE),
        (figure(ccfc_figures.figure4, labels=False), "--no-labels"),
        (figure(ccfc_figures.figure5, clients=(16,)), "--clients must be at most 15"),
        (figure(fdsc_figures.figure3, seed=(0, 1)), ONE),
        (figure(fdsc_figures.figure4, seed=(0, 1)), ONE),
        (figure(fedmcc_figures.figure4, seed=(0, 1)), ONE),
        (figure(sda_fdc_figures.figure3, seed=(0, 1)), ONE),
        (figure(sda_fdc_examples.figure_synthetic, seed=(0, 1)), ONE),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(call, message, tmp_path):
    with pytest.raises(ValueError, match=message) as error:
        call(tmp_path)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_smaller_data_of_a_ledger_is_named_and_not_compared_with_the_paper(tmp_path):
    """The ledger has CCFC on all of MNIST at two levels of p, and on less at others."""
    ledger = Path(__file__).parents[2] / "experiments" / "results"
    args = {"from_ledger": ledger, "datasets": ("mnist",), "methods": ("CCFC",)}
    reproduce.main(reproduce.Args("ccfc-table1", out=tmp_path, **args))
    table = rows(tmp_path / "ccfc-table1" / "table.csv")
    assert {row["method"] for row in table} == {"CCFC"}
    for row in table:
        assert (row["dataset"] == "mnist") == bool(row["nmi_paper"])
    names = {row["dataset"] for row in table if row["nmi"]}
    assert {"mnist", "mnist, 2,000 examples, 16 x 16 pixels"} <= names
