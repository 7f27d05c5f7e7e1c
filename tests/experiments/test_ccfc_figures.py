"""The paper's embedding figures on little data, and what local models are."""

import numpy as np
import pytest
from flax import linen as nn
from matplotlib.image import imread
from sklearn.metrics import calinski_harabasz_score

from experiments.papers.ccfc import figures as ccfc_figures
from fcjax import data
from fcjax.data.sources import load_source
from fcjax.methods import CCFC
from fcjax.methods import ccfc as ccfc_methods
from fcjax.nn import from_linen
from fcjax.sweep.plan import Task
from tests.experiments.blobs import write_blobs


class Linear(nn.Module):
    """Without batch norm, which compiles in no time."""

    @nn.compact
    def __call__(self, x, *, train, mask):
        z = nn.Dense(4, use_bias=False)(x)
        return z, nn.Dense(4, use_bias=False)(z)


@pytest.fixture(scope="module", autouse=True)
def linear():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ccfc_methods, "network_of", lambda *_: from_linen(Linear()))
        yield


@pytest.fixture(scope="module")
def args(tmp_path_factory):
    """Of 62 rows in three classes, far apart."""
    path = write_blobs(tmp_path_factory.mktemp("data"), (16, 20, 26), apart=20.0)
    return Task.of(
        CCFC,
        dataset=str(path),
        **{"clients": (3,), "pretrain_rounds": (3,), "cluster_rounds": (2,)},
        **{"local_epochs": (1,), "batch_size": (10,), "latent_size": (4,)},
        **{"learning_rate": (0.01,), "checkpoint_interval": 0.0},
    )


def embed(args, folder, **more):
    args = args.replace(**more)
    return ccfc_figures.embed(args, load_source(args.source)[0], folder)


def test_global_and_local_models_embed_what_each_client_holds(args, tmp_path):
    """Of each p a run, and one whose steps change nothing. The schedule is that of the
    rounds: clients go on at the whole rate."""
    dataset = data.load(args.source.dataset)
    swept = {"p": (0.0, 1.0), "learning_rate": (0.01, 0.0)}
    runs = embed(args, tmp_path, **swept, schedule="cosine")
    even, still, by_class, also_still = runs
    for run in (still, also_still):
        np.testing.assert_allclose(run.by_local, run.by_global, atol=1e-6)
    for p, run in ((0.0, even), (1.0, by_class)):
        assert run.by_global.shape == run.by_local.shape == (*run.mask.shape, 4)
        held = data.heterogeneous(dataset.labels, 3, p, seed=0).clients
        for rows, mask, own in zip(run.rows, run.mask, held, strict=True):
            np.testing.assert_array_equal(rows[mask], own)
        for z in (run.by_global, run.by_local):
            np.testing.assert_allclose(np.linalg.norm(z, axis=-1), 1, rtol=1e-5)
        # Each client has trained, and so embeds otherwise than the global model.
        assert (np.abs(run.by_local - run.by_global).max(axis=(1, 2)) > 1e-3).all()
    assert by_class.mask.sum(axis=1).tolist() == [16, 20, 26]


def test_figure3_scores_every_client_in_four_spaces(args, tmp_path):
    rows = ccfc_figures.figure3(args, tmp_path)
    assert [row["panel"][:3] for row in rows] == ["(a)", "(b)", "(c)", "(d)"]
    # K-means finds the classes in features as they are.
    assert (rows[0]["nmi"], rows[0]["mean_nmi"]) == pytest.approx((1, 1))
    assert min(imread(tmp_path / "figure3.png").shape[:2]) > 500


def test_figure4_votes_in_three_spaces(args, tmp_path):
    rows = ccfc_figures.figure4(args, tmp_path)
    assert [row["panel"] for row in rows] == ["raw pixels", "SCFC", "CCFC"]
    # 60 of 62 are dealt, 50 of them vote: a third of them at a time.
    assert {row["k"] for row in rows} == {16}
    assert rows[0]["knn_accuracy"] == 1


def test_figure5_scores_two_classes_at_every_level(args, tmp_path, monkeypatch):
    """As scikit-learn does."""
    embed, runs = ccfc_figures.embed, []
    monkeypatch.setattr(
        ccfc_figures, "embed", lambda *call: runs.extend(embed(*call)) or runs
    )
    rows = ccfc_figures.figure5(args, tmp_path)
    assert (tmp_path / "figure5.png").exists()
    assert [row["p"] for row in rows] == [0, 0.25, 0.5, 0.75, 1]
    for row, run in zip(rows, runs, strict=True):
        assert " and ".join(map(str, np.unique(run.labels))) == row["classes"]
        z = run.by_local[run.mask].astype(np.float64)
        expected = calinski_harabasz_score(z, run.labels[run.mask])
        assert row["calinski_harabasz"] == pytest.approx(expected, rel=1e-3)
