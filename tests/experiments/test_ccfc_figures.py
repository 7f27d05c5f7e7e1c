"""The paper's embedding figures on little data, and what local models are."""

import ccfc
import ccfc_figures
import numpy as np
import pytest
import tyro
from matplotlib.image import imread
from sklearn.metrics import calinski_harabasz_score

from fcjax import data
from fcjax.grid import experiment
from tests.algorithms.test_ccfc import linear_network
from tests.grid.test_experiment import VECTORS


@pytest.fixture(autouse=True)
def linear(monkeypatch):
    """A network without batch norm, which compiles in no time."""
    monkeypatch.setattr(ccfc, "network_of", lambda *_: linear_network(5, 4))


def flags(*more, learning_rate=0.01):
    rate = f"--learning-rate={learning_rate}"
    return tyro.cli(ccfc.Args, args=[*VECTORS, rate, *more])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Of 62 rows in three classes, far apart."""
    labels = np.repeat([0, 1, 2], [16, 20, 26])
    noise = np.random.default_rng(0).normal(size=(62, 5))
    file = tmp_path_factory.mktemp("data") / "vectors.npz"
    np.savez(file, x=noise + 20 * np.eye(5)[labels], y=labels)
    return f"--dataset={file}"


def embed(folder, path, *more, learning_rate=0.01):
    args = flags(path, *more, learning_rate=learning_rate)
    return ccfc_figures.embed(args, experiment.load(args)[0], folder)


def test_global_and_local_models_embed_what_each_client_holds(path, tmp_path):
    dataset = data.load(path.removeprefix("--dataset="))
    even, sorted_ = embed(tmp_path, path, "--p", "0", "1")
    for p, run in ((0.0, even), (1.0, sorted_)):
        assert run.by_global.shape == run.by_local.shape == (*run.mask.shape, 4)
        held = data.heterogeneous(dataset.labels, 3, p, seed=0).clients
        for rows, mask, own in zip(run.rows, run.mask, held, strict=True):
            np.testing.assert_array_equal(rows[mask], own)
        np.testing.assert_array_equal(run.labels, dataset.labels[run.rows])
        for z in (run.by_global, run.by_local):
            np.testing.assert_allclose(np.linalg.norm(z, axis=-1), 1, rtol=1e-5)
        # Each client has trained, and so embeds otherwise than the global model.
        assert (np.abs(run.by_local - run.by_global).max(axis=(1, 2)) > 1e-3).all()
    assert sorted_.mask.sum(axis=1).tolist() == [16, 20, 26]


def test_local_models_that_learn_nothing_are_the_global_one(path, tmp_path):
    still = embed(tmp_path, path, "--p", "0", "1", learning_rate=0.0)
    for run in still:
        np.testing.assert_allclose(run.by_local, run.by_global, atol=1e-6)


def test_the_local_models_are_those_of_the_next_round(path, tmp_path):
    """Of one client: the next global model is its own."""
    one = (path, "--clients=1", "--p=0")
    (before,) = embed(tmp_path, *one, "--cluster-rounds=1")
    (after,) = embed(tmp_path, *one, "--cluster-rounds=2")
    np.testing.assert_allclose(before.by_local, after.by_global, atol=1e-5)
    assert np.abs(before.by_global - after.by_global).max() > 1e-3


def test_resumed_without_training(path, tmp_path, capsys):
    first = embed(tmp_path, path, "--p", "0", "1")
    assert "round" in capsys.readouterr().out
    second = embed(tmp_path, path, "--p", "0", "1")
    told = capsys.readouterr().out
    assert "going on from checkpoint" in told
    assert "round" not in told
    for one, two in zip(first, second, strict=True):
        for name in ("by_global", "by_local"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    # Another weight is another run.
    embed(tmp_path, path, "--p", "0", "1", "--model-weight=0.5")
    assert "round" in capsys.readouterr().out


def test_figure3_scores_every_client_in_four_spaces(path, tmp_path):
    rows = ccfc_figures.figure3(flags(path), tmp_path)
    assert [row["panel"][:3] for row in rows] == ["(a)", "(b)", "(c)", "(d)"]
    assert len({row["client"] for row in rows}) == 1
    # K-means finds the classes in features as they are.
    assert (rows[0]["nmi"], rows[0]["mean_nmi"]) == pytest.approx((1, 1))
    assert min(imread(tmp_path / "figure3.png").shape[:2]) > 500


def test_figure4_votes_in_three_spaces(path, tmp_path):
    rows = ccfc_figures.figure4(flags(path), tmp_path)
    assert [row["panel"] for row in rows] == ["raw pixels", "SCFC", "CCFC"]
    # 60 of 62 are dealt, 50 of them vote: a third of them at a time.
    assert {row["k"] for row in rows} == {16}
    assert rows[0]["knn_accuracy"] == 1
    assert all(0 <= row["knn_accuracy"] <= 1 for row in rows)
    assert (tmp_path / "figure4.png").exists()


def test_figure5_scores_two_classes_at_every_level(path, tmp_path):
    rows = ccfc_figures.figure5(flags(path), tmp_path)
    assert [row["p"] for row in rows] == [0, 0.25, 0.5, 0.75, 1]
    (classes,) = {row["classes"] for row in rows}
    # The same once more from what was trained, scored by scikit-learn.
    args = flags(path, "--p", "0", "0.25", "0.5", "0.75", "1", "--runs-per-call=5")
    both = ccfc_figures.two_classes(experiment.load(args)[0], 100, seed=0)
    assert " and ".join(map(str, np.unique(both.labels))) == classes
    for row, run in zip(rows, ccfc_figures.embed(args, both, tmp_path), strict=True):
        z = run.by_local[run.mask].astype(np.float64)
        expected = calinski_harabasz_score(z, run.labels[run.mask])
        assert row["calinski_harabasz"] == pytest.approx(expected, rel=1e-3)
    assert (tmp_path / "figure5.png").exists()


def test_two_classes():
    dataset = data.load("digits")
    drawn = ccfc_figures.two_classes(dataset, 100, seed=1)
    classes, counts = np.unique(drawn.labels, return_counts=True)
    assert len(classes) == 2
    assert counts.tolist() == [100, 100]
    # Examples still have their own labels.
    known = {x.tobytes(): y for x, y in zip(*dataset[1:3], strict=True)}
    assert all(known[x.tobytes()] == y for x, y in zip(*drawn[1:3], strict=True))


@pytest.mark.parametrize(
    ("figure", "more", "message"),
    [
        ("figure3", ["--seed", "0", "1"], r"--seed takes one value .* \(0, 1\)"),
        ("figure4", ["--no-labels"], "--no-labels"),
        ("figure5", ["--clients=16"], "--clients must be at most 15"),
    ],
)
def test_flags_that_no_figure_can_show(path, tmp_path, figure, more, message):
    with pytest.raises(ValueError, match=message):
        getattr(ccfc_figures, figure)(flags(path, *more), tmp_path)
    assert not list(tmp_path.iterdir())
