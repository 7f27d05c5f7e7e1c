"""The methods of `Results` and `Run` that compare runs, in memory and in folders."""

import numpy as np
import pandas as pd
import pytest

import fcjax
from fcjax.methods import FFCM, KFed, KMeans
from fcjax.metrics import nmi


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """Two methods, the same seeds and partitions."""
    out = tmp_path_factory.mktemp("grid")
    methods = [KMeans(num_init=1), KFed()]
    options = {"split": fcjax.Split(p=[0.5]), "seeds": 3, "limit": 200, "out": out}
    return fcjax.run(methods, "digits", **options)


def test_memory_and_folder_rank_the_same(grid):
    kept = fcjax.open(grid.folders[0].directory.parent)
    options = {"split": fcjax.Split(p=[0.5]), "seeds": 3, "limit": 200}
    memory = fcjax.run(KMeans(num_init=1), "digits", **options)
    ranks = kept.where(method="km").rank("agreement")
    expected = memory.rank("agreement").drop(columns="folder")
    pd.testing.assert_frame_equal(ranks.drop(columns="folder"), expected)
    assert ranks.agreement.is_monotonic_decreasing
    best = memory.choose("agreement")
    assert best.params["seed"] == ranks.iloc[0].seed


def test_a_consensus_of_runs_in_memory_writes_nothing(grid, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    together = grid.consensus()
    labels = grid[0].dataset.labels
    assert together.clusters.shape == labels.shape
    assert nmi(labels, together.clusters) > 0.6
    assert not [*tmp_path.iterdir()]
    assert len(grid.consensus(3, out=tmp_path).clusters) == 200
    assert pd.read_csv(tmp_path / "assignments.csv").cluster.nunique() == 3


def test_a_comparison_has_the_differences_of_the_pairs(grid, tmp_path):
    one, two = (grid.where(method=name) for name in ("km", "k-fed"))
    table = one.compare(two, scores=("nmi", "acc"), out=tmp_path)
    for line in table.to_dict("records"):
        off = one.runs[line["score"]].to_numpy() - two.runs[line["score"]].to_numpy()
        assert line["difference"] == pytest.approx(off.mean())
        assert line["seeds"] == 3
    assert {x.name for x in tmp_path.iterdir()} == {"comparison.csv", "comparison.png"}
    with pytest.raises(ValueError, match="one method on each side"):
        grid.compare(one)


def test_all_pairs_of_methods_are_compared_with_one_correction(tmp_path):
    options = {"split": fcjax.Split(p=[0.5]), "seeds": 3, "limit": 200}
    methods = [KMeans(num_init=1), KFed(), FFCM()]
    three = fcjax.run(methods, "digits", **options)
    table = three.compare_between("method", scores=["nmi", "acc"], out=tmp_path)
    pairs = [("ffcm", "k-fed"), ("ffcm", "km"), ("k-fed", "km")]
    rows = table[["first method", "second method", "score"]].values.tolist()
    assert rows == [[*pair, score] for pair in pairs for score in ("nmi", "acc")]
    nmi_of = three.runs.groupby("method").nmi.mean()
    assert table.difference[0] == pytest.approx(nmi_of["ffcm"] - nmi_of["k-fed"])
    # Holm multiplies the smallest of the six p-values by six.
    least = table.p_value.idxmin()
    assert table.holm[least] == pytest.approx(min(1, 6 * table.p_value[least]))
    assert {x.name for x in tmp_path.iterdir()} == {"comparison.csv", "comparison.png"}
    with pytest.raises(ValueError, match=r"`between` takes method, got seed"):
        three.compare_between("seed")


def test_an_array_in_memory_gets_its_report_and_figures(tmp_path):
    x = np.eye(3)[np.repeat([0, 1, 2], 20)]
    x = x + 0.05 * np.random.default_rng(0).random((60, 3))
    runs = fcjax.run(KMeans(), x, num_clusters=[2, 3], seeds=2)
    run = runs.report(tmp_path)
    assert {"report.html", "assignments.csv", "embeddings.npz"} == {
        path.name for path in tmp_path.iterdir()
    }
    assert run.row["clusters"] in (2, 3)
    runs.draw(tmp_path / "figures")
    assert (tmp_path / "figures" / "embedding.png").exists()
    with pytest.raises(ValueError, match="choose one by"):
        runs.export(tmp_path)


def test_a_probe_has_all_its_tables(grid):
    probe = grid[0].probe(num_neighbors=(1, 9999), label_fraction=(0.5,), num_draws=2)
    assert probe.neighbors.neighbors.tolist() == [1]
    assert probe.linear.protocol.tolist() == ["linear probe", *["50 % of labels"] * 2]
    assert probe.clusters.acc[0] == pytest.approx(grid[0].row["acc"], abs=1e-6)
    with pytest.raises(ValueError, match="must lie in"):
        grid[0].probe(label_fraction=(2.0,))
