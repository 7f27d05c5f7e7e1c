"""Tables and figures of papers, made in small by real runs."""

import csv
import dataclasses
import importlib
import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import reproduce
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import cohen_kappa_score, confusion_matrix
from sklearn.neighbors import KNeighborsClassifier

from fcjax.data import load, stratified_subset
from fcjax.runs import frozen
from fcjax.runs.finished import Finished

SCRIPT = Path(__file__).parents[2] / "experiments" / "reproduce.py"
TINY = {
    "clients": (3,),
    "pretrain_rounds": (2,),
    "cluster_rounds": (1,),
    "local_epochs": (1,),
    "batch_size": (10,),
    "latent_size": (4,),
}
SEEDS, MNIST = (0, 1), "mnist"


def tiny(name, data, **changes):
    """A study of the paper on rows of numbers instead of MNIST, whose network compiles
    soon, and on the grid that all these tests share."""
    study = reproduce.STUDIES[name]
    smoke = study.presets["smoke"]
    few = {"p": smoke.grid["p"][:1] if len(smoke.grid["p"]) == 1 else (0.0, 0.5)}
    smoke = smoke._replace(
        grid={**smoke.grid, **few, **changes},
        seeds=SEEDS[: len(smoke.seeds)],
        flags={"ccfc": TINY},
    )
    reported = {(str(data), *k[1:]): v for k, v in study.paper.items() if k[0] == MNIST}
    return study._replace(
        datasets=(str(data),), presets={"smoke": smoke}, paper=reported
    )


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("reproduced")


@pytest.fixture(scope="module")
def vectors(out):
    """70 rows of three classes; 66 of them are used."""
    labels = np.repeat([0, 1, 2], [20, 22, 28])
    noise = np.random.default_rng(0).normal(size=(70, 5))
    np.savez(out / "vectors.npz", x=noise + 2 * np.eye(5)[labels], y=labels)
    return out / "vectors.npz"


def used(vectors):
    dataset = stratified_subset(load(str(vectors)), 66)
    assert dataset.labels is not None
    return dataset.examples, dataset.labels


def execute(name, vectors, *, methods=("CCFC",), **changes):
    study = tiny(name, vectors, **changes)
    args = reproduce.Args(
        table=name,
        limit=66,
        datasets=(str(vectors),),
        methods=methods,
        out=vectors.parent,
    )
    reproduce.reproduce(study, args)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def first(vectors, out):
    """Table 1, reproduced in small."""
    execute("ccfc-table1", vectors)
    return out / "ccfc-table1"


def test_a_table_is_the_mean_of_its_runs_beside_the_paper(first, out):
    lines = rows(first / "table.csv")
    # All of the paper's MNIST: two central figures, and five p with six methods.
    assert len(lines) == 2 + 5 * 6
    assert {line["dataset"] for line in lines} == {"vectors"}
    runs = rows(out / "vectors-ccfc" / "results.csv")
    assert len(runs) == 2 * 2
    reported = {0.0: 0.9236, 0.5: 0.6718}
    for p, printed in reported.items():
        nmi = np.array([float(run["nmi"]) for run in runs if float(run["p"]) == p])
        (line,) = (
            x for x in lines if x["method"] == "CCFC" and x["p"] and float(x["p"]) == p
        )
        assert float(line["nmi"]) == pytest.approx(nmi.mean(), abs=1e-12)
        # The t quantile of one degree of freedom is 12.7062.
        half_width = 12.7062047 * abs(nmi[0] - nmi[1]) / 2
        assert float(line["nmi_half_width"]) == pytest.approx(half_width)
        assert float(line["nmi_paper"]) == printed
        off = nmi.mean() - printed
        assert float(line["nmi_difference"]) == pytest.approx(off, abs=1e-12)
        assert line["nmi_seeds"] == "2"
    (central,) = (line for line in lines if line["method"] == "KM")
    assert (central["p"], central["nmi"], central["nmi_seeds"]) == ("", "", "0")
    assert central["nmi_paper"] == "0.5304"
    assert central["nmi_difference"] == ""


def test_the_same_command_again_trains_nothing_and_rewrites_the_table(
    first, vectors, out, capsys
):
    before = (first / "table.csv").read_text()
    trained = (out / "vectors-ccfc" / "history.csv").stat().st_mtime_ns
    (first / "table.csv").write_text("damaged")
    execute("ccfc-table1", vectors)
    printed = capsys.readouterr().out
    assert (first / "table.csv").read_text() == before
    assert (out / "vectors-ccfc" / "history.csv").stat().st_mtime_ns == trained
    assert "reusing 4 finished runs" in printed
    assert printed.startswith("note: smoke: training is shortened")
    assert (first / "table.md").read_text() in printed


def test_tables_share_runs(first, vectors, out, capsys):
    execute("ccfc-table2", vectors)
    assert "reusing 4 finished runs" in capsys.readouterr().out
    runs = rows(out / "vectors-ccfc" / "results.csv")
    kappa = np.mean([float(run["kappa"]) for run in runs if float(run["p"]) == 0.5])
    (line,) = (
        line
        for line in rows(out / "ccfc-table2" / "table.csv")
        if (line["p"], line["method"]) == ("0.5", "CCFC")
    )
    assert float(line["kappa"]) == pytest.approx(kappa, abs=1e-12)


def test_neighbors_vote_as_in_scikit_learn(first, vectors, out):
    execute("ccfc-table3", vectors, methods=("CCFC", "Raw pixels"))
    lines = rows(out / "ccfc-table3" / "table.csv")
    found = {(line["method"], int(line["k"])): line for line in lines}
    assert len(found) == 4 * 7
    examples, labels = used(vectors)
    draws = np.random.default_rng(0).random(66)
    test = draws < np.sort(draws)[11]

    def accuracy(z, k):
        votes = KNeighborsClassifier(k, algorithm="brute")
        return votes.fit(z[~test], labels[~test]).score(z[test], labels[test])

    embeddings = []
    finished = Finished(out / "vectors-ccfc")
    for seed in SEEDS:
        path = finished.model_path(finished.point(["p=0", f"seed={seed}"]))
        z = frozen.predict(frozen.read(path), examples).embedding
        embeddings.append(z / np.linalg.norm(z, axis=1, keepdims=True))
    for k in (3, 9):
        line = found["Raw pixels", k]
        assert float(line["accuracy"]) == pytest.approx(accuracy(examples, k))
        assert line["accuracy_seeds"] == "1"
        mean = np.mean([accuracy(z, k) for z in embeddings])
        assert float(found["CCFC", k]["accuracy"]) == pytest.approx(mean)
    # More neighbours than examples: only the paper's figure.
    assert found["CCFC", 7000]["accuracy"] == ""
    assert float(found["CCFC", 7000]["accuracy_paper"]) == pytest.approx(0.9709)


def test_clients_are_scored_on_their_own_examples(first, vectors, out):
    execute("ccfc-table4", vectors)
    lines = [x for x in rows(out / "ccfc-table4" / "table.csv") if x["kappa"]]
    assert [line["client"] for line in lines] == ["1", "2", "3", "mean"]
    assert [line["kappa_paper"] for line in lines[:3]] == ["0.9605", "0.9643", "0.9611"]
    _, labels = used(vectors)
    finished = Finished(out / "vectors-ccfc")
    holders, clusters = finished.assignments(finished.point(["p=0", "seed=0"]))
    kappas = []
    for client, line in enumerate(lines[:3]):
        truth, cluster = labels[holders == client], clusters[holders == client]
        overlap = confusion_matrix(truth, cluster, labels=np.arange(3))
        classes, names = linear_sum_assignment(-overlap)
        kappas.append(cohen_kappa_score(truth, classes[np.argsort(names)][cluster]))
        counts = np.bincount(truth, minlength=3)
        assert float(line["imbalance"]) == counts.max() / counts.min()
        assert float(line["kappa"]) == pytest.approx(kappas[-1], abs=0.02)
    assert float(lines[3]["kappa"]) == pytest.approx(np.mean(kappas), abs=0.02)


def test_a_figure_has_its_table_and_its_drawing(first, vectors, out):
    execute("ccfc-figure7", vectors, model_weight=(0.001,))
    folder = out / "ccfc-figure7"
    lines = rows(folder / "table.csv")
    # The paper's at its own lambda for five p, of which two were run.
    assert [line["p"] for line in lines] == ["0", "0.25", "0.5", "0.75", "1"]
    assert {line["model_weight"] for line in lines} == {"0.001"}
    assert [line["nmi_seeds"] for line in lines] == ["2", "0", "2", "0", "0"]
    assert lines[0]["kappa_paper"] == "0.9619"
    (image,) = folder.glob("*.png")
    assert image.name == "vectors-ccfc.png"
    assert image.stat().st_size > 10_000


def test_a_figure_of_embeddings_has_the_numbers_that_it_shows(vectors, out):
    execute("ccfc-figure4", vectors)
    folder = out / "ccfc-figure4"
    lines = rows(folder / "table.csv")
    assert [line["panel"] for line in lines] == ["raw pixels", "SCFC", "CCFC"]
    assert {line["dataset"] for line in lines} == {"vectors"}
    for line in lines:
        assert 0 <= float(line["knn_accuracy"]) <= 1
    assert (folder / "figure4.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "name", [name for name, study in reproduce.STUDIES.items() if study.maps]
)
def test_a_figure_names_a_function_that_there_is(name):
    module, function = reproduce.STUDIES[name].maps.split(".")
    assert callable(getattr(importlib.import_module(module), function))


def test_what_stands_in_for_the_papers_data_is_called_so():
    study = reproduce.STUDIES["ccfc-table1"]
    args = reproduce.Args(table="ccfc-table1")
    datasets = reproduce.datasets_of(study, args)
    assert datasets == {"digits": ("mnist", "digits for mnist")}
    paper = reproduce.beside(study.paper, datasets)
    assert len(paper) == 2 + 5 * 6
    assert paper["digits for mnist", 0.0, "CCFC"] == {"nmi": 0.9236}
    assert reproduce.note(study, args).startswith(
        "note: digits (1,797 images) stands in for mnist"
    )


def test_methods_of_central_data_run_at_one_p_and_have_none_in_the_table(tmp_path):
    study = reproduce.STUDIES["ccfc-table1"]
    args = reproduce.Args(table="ccfc-table1", preset="paper", out=tmp_path)
    rows = {row.label: row for row in study.rows}
    central = reproduce.flags_of(study, rows["KM"], "mnist", args, paper="mnist")
    assert central["p"] == (0.0,)
    assert central["methods"] == ("km",)
    assert central["preset"] == "paper"
    spread = reproduce.flags_of(study, rows["k-FED"], "mnist", args, paper="mnist")
    assert spread["p"] == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert spread["seed"] == (0, 1, 2, 3, 4)
    assert spread["out"] == tmp_path / "mnist-k-fed"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"table": "ccfc-tabel2"}, r"TABLE 'ccfc-tabel2' is .* nearest is ccfc-table2"),
        ({"datasets": ("mnits",)}, r"--datasets takes digits mnist .* got 'mnits'"),
        ({"methods": ("SCFC",)}, r"--methods takes .*PPFC-GAN, CCFC, got 'SCFC'"),
        (
            {"preset": "paper", "data_dir": Path("nowhere")},
            r"mnist is not prepared.*download_and_prepare.*by --datasets",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_line_before_anything_runs(
    flags, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    args = dataclasses.replace(reproduce.Args(table="ccfc-table1"), **flags)
    with pytest.raises(ValueError, match=message) as error:
        reproduce.main(args)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_help_has_a_line_for_each_table_and_errors_have_one(tmp_path):
    def call(*arguments):
        command = [sys.executable, str(SCRIPT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    asked = call("--help").stdout
    for name in reproduce.STUDIES:
        assert len(re.findall(rf"^{name} ", asked, flags=re.MULTILINE)) == 1
    failed = call("figure-6")
    assert failed.returncode == 1
    assert failed.stderr.startswith("reproduce.py: error: TABLE 'figure-6' is unknown")
    assert len(io.StringIO(failed.stderr).readlines()) == 1
