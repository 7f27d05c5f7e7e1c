"""FedMCC's t-SNE figures on little data, from the runs that they are drawn of."""

from dataclasses import replace

import fedmcc
import fedmcc_figures
import numpy as np
import pytest
from papers import measures
from sklearn.metrics import normalized_mutual_info_score

from fcjax import script
from fcjax.grid import experiment
from fcjax.runs import frozen
from fcjax.runs.finished import Finished


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of 48 rows in three classes, far apart."""
    folder = tmp_path_factory.mktemp("projections")
    labels = np.repeat([0, 1, 2], 16)
    noise = np.random.default_rng(0).normal(size=(48, 5))
    np.savez(folder / "vectors.npz", x=noise + 9 * np.eye(5)[labels], y=labels)
    return folder


def flags(folder, **more):
    return fedmcc.Args(
        dataset=str(folder / "vectors.npz"),
        methods=("fedmcc",),
        clients=(2,),
        cluster_rounds=(1,),
        local_epochs=(1,),
        batch_size=(12,),
        out=folder / "fedmcc",
        plot=False,
        p=(0.0,),
        **{"num_rounds": (0, 2), "learning_rate": (0.001,), **more},
    )


@pytest.fixture(scope="module")
def trained(folder):
    """Runs of no round and of two, each with a twin whose steps end in no number."""
    args = flags(folder, learning_rate=(0.001, 1e30))
    return args, script.run(lambda: [(args, fedmcc.describe)])[0]


def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def test_soft_assignments_are_two_layers_and_a_softmax(trained):
    args, results = trained
    finished = Finished(results.directory)
    point = finished.point(["num_rounds=2", "learning_rate=0.001"])
    model = frozen.read(finished.model_path(point))
    found = frozen.predict(model, experiment.load(args)[0].examples)
    soft = fedmcc_figures.soft_assignments(model, found.embedding)

    def layer(number, x):
        name = f"online/cluster_projector/params/Dense_{number}/Dense_0"
        return x @ model.weights[f"{name}/kernel"] + model.weights[f"{name}/bias"]

    logits = layer(1, np.maximum(layer(0, found.embedding), 0))
    assert soft.shape == (48, 3)
    np.testing.assert_allclose(soft, softmax(logits), atol=1e-5)
    np.testing.assert_array_equal(soft.argmax(axis=1), found.clusters)


def test_figure_4_has_a_panel_a_number_of_rounds(trained, folder, tmp_path, capsys):
    rows = fedmcc_figures.figure4(flags(folder), tmp_path)
    assert "reusing 4 finished runs" in capsys.readouterr().out
    assert [row["rounds"] for row in rows] == [0, 2]
    finished = Finished(folder / "fedmcc")
    for row in rows:
        where = [f"num_rounds={row['rounds']}", "learning_rate=0.001"]
        _, clusters = finished.assignments(finished.point(where))
        nmi = normalized_mutual_info_score(np.repeat([0, 1, 2], 16), clusters)
        assert row["nmi"] == pytest.approx(nmi, abs=1e-6)
    assert (tmp_path / "figure4.png").stat().st_size > 10_000


def test_figure_5_is_of_features_beside_the_papers_nmi(trained, folder, tmp_path):
    rows = fedmcc_figures.figure5(flags(folder), tmp_path)
    assert [row["epochs"] for row in rows] == [0, 2]
    assert [row["nmi"].paper for row in rows] == pytest.approx([0.211, 0.706])
    assert all(0 <= row["nmi"].mean <= 1 for row in rows)
    assert (tmp_path / "figure5.png").stat().st_size > 10_000


def test_a_figure_is_of_one_run_a_number_of_rounds(folder, tmp_path):
    args = replace(flags(folder), seed=(0, 1))
    with pytest.raises(ValueError, match=r"--seed takes one value for a figure, got"):
        fedmcc_figures.figure4(args, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_diverged_has_no_accuracy(trained):
    args, results = trained
    found = {
        (line["num_rounds"], line["learning_rate"], line["label_fraction"]): line
        for line in measures.few_labels_accuracy(args, results)
    }
    assert len(found) == 2 * 2 * 2
    for (num_rounds, rate, _), line in found.items():
        diverged = num_rounds == 2 and rate > 1
        assert np.isnan(line["accuracy"]) == diverged
