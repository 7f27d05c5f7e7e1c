"""FedMCC by its command on little data, and the t-SNE figures of the same runs."""

import numpy as np
import pytest
from sklearn.metrics import normalized_mutual_info_score

from experiments.papers import measures
from experiments.papers.fedmcc import figures as fedmcc_figures
from fcjax.cli import main
from fcjax.data.sources import load_source
from fcjax.methods import FedMCC
from fcjax.results import exported
from fcjax.results.store import read
from fcjax.sweep.plan import Task
from tests.experiments.blobs import write_blobs


@pytest.fixture(scope="module")
def args(tmp_path_factory):
    """Of 48 rows in three classes, far apart; runs of no round and of two."""
    folder = tmp_path_factory.mktemp("runs")
    return Task.of(
        FedMCC,
        dataset=str(write_blobs(folder, (16, 16, 16))),
        **{"clients": (2,), "num_rounds": (0, 2)},
        **{"cluster_rounds": (1,), "local_epochs": (1,), "batch_size": (12,)},
        **{"learning_rate": (0.001,), "out": folder, "plot": False},
    )


def run(args):
    own = args.replace(out=args.options.out / args.method.full_name())
    (results,) = main.run(lambda: [own])
    return results


@pytest.fixture(scope="module")
def trained(args):
    """Each run with a twin whose steps end in no number."""
    args = args.replace(learning_rate=(0.001, 1e30))
    return args, run(args)


@pytest.fixture
def of_figures(args, trained):
    """The flags by which a figure finds them."""
    return args.replace(out=args.options.out / "fedmcc")


def test_both_stages_go_into_a_folder(trained):
    _, results = trained
    assert {(row["method"], row["clusters"]) for row in results.rows} == {("fedmcc", 3)}
    (history,) = results.history_of([{**results.first, "num_rounds": 2.0}])
    first, *_, last = history
    stages = [line["stage"] for line in history]
    assert stages[:2] == ["representation", "representation"]
    assert stages[2:-1] == ["k-means"] * (len(stages) - 3)
    assert stages[-1] == "cluster"
    assert first["nmi"] is None  # no clusters yet
    assert 0 <= float(last["nmi"]) <= 1


def test_k_means_goes_on_from_the_representation_of_mcc(args, trained, capsys):
    results = run(args.replace(num_rounds=(2,), cluster_by="k-means"))
    assert capsys.readouterr().out.count("1 run: leading stages loaded") == 1
    assert results.directory.name == "fedmcc+k-means"
    stages = [line["stage"] for line in results.rounds]
    assert stages[:2] == ["representation", "representation"]
    assert set(stages[2:]) == {"k-means"}


def test_soft_assignments_are_two_layers_and_a_softmax(of_figures):
    finished = read(of_figures.options.out)
    model = finished.model(num_rounds=2, learning_rate=0.001)
    found = exported.predict(model, load_source(of_figures.source)[0].examples)
    soft = fedmcc_figures.soft_assignments(model, found.embedding)

    def layer(number, x):
        name = f"online/params/cluster_projector/Dense_{number}/Dense_0"
        return x @ model.weights[f"{name}/kernel"] + model.weights[f"{name}/bias"]

    logits = layer(1, np.maximum(layer(0, found.embedding), 0))
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(soft, e / e.sum(axis=1, keepdims=True), atol=1e-5)
    np.testing.assert_array_equal(soft.argmax(axis=1), found.clusters)


def test_figures_4_and_5_have_a_panel_a_number_of_rounds(of_figures, tmp_path, capsys):
    fourth = fedmcc_figures.figure4(of_figures, tmp_path)
    assert "reusing 4 finished runs" in capsys.readouterr().out
    assert [row["rounds"] for row in fourth] == [0, 2]
    fifth = fedmcc_figures.figure5(of_figures, tmp_path)
    assert [row["epochs"] for row in fifth] == [0, 2]
    finished = read(of_figures.options.out)
    assert [row["paper_nmi"] for row in fifth] == pytest.approx([0.211, 0.706])
    for row in fourth:
        held = finished.assignments(num_rounds=row["rounds"], learning_rate=0.001)
        clusters = held["cluster"].to_numpy()
        nmi = normalized_mutual_info_score(np.repeat([0, 1, 2], 16), clusters)
        assert row["nmi"] == pytest.approx(nmi, abs=1e-6)
    for name in ("figure4.png", "figure5.png"):
        assert (tmp_path / name).stat().st_size > 10_000


def test_a_run_that_diverged_has_no_accuracy(trained):
    found = {
        (line["num_rounds"], line["learning_rate"], line["label_fraction"]): line
        for line in measures.few_labels_accuracy(*trained)
    }
    for (num_rounds, rate, _), line in found.items():
        diverged = num_rounds == 2 and rate > 1
        assert np.isnan(line["accuracy"]) == diverged
