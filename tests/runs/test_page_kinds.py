"""Pages of other runs: with labels, of vectors, of clients on their own."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fcjax import data
from fcjax.runs import page, page_text
from fcjax.runs.assigned import Assigned
from fcjax.runs.finished import Finished
from tests.runs.pages import read, run, table


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Rows of numbers with classes."""
    values, labels = load_digits(n_class=4, return_X_y=True)
    path = tmp_path_factory.mktemp("vectors") / "rows.npz"
    np.savez(path, x=values[:80, 10:22] * 3.7 - 40, y=labels[:80])
    return path, labels[:80]


def test_labels_add_their_scores_and_the_class_of_each_cluster(vectors, tmp_path):
    path, labels = vectors
    flags = ["--clusters=4", "--no-plot", "--seed", "0", "1"]
    out = run(tmp_path / "out", f"--dataset={path}", *flags)
    assert not (out / "page.html").exists()
    page.main(page.Args(out, where=("seed=1",)))
    found = read(out / "page.html")
    scores = [float(row["acc"]) for row in table(out / "results.csv")]
    mean, half_width = found.rows[1][5].split(" ± ")
    assert float(mean) == pytest.approx(np.mean(scores), abs=1e-3)
    # 12.706: the 97.5 % quantile of Student's t with one degree of freedom.
    expected = 12.706 * np.std(scores, ddof=1) / np.sqrt(2)
    assert float(half_width) == pytest.approx(expected, abs=1e-3)
    assert "80 rows of 12 numbers" in found.text
    assert found.sources == []
    # 80 rows for 3 clients, evenly: two are nobody's, and in a cluster all the same.
    assert "26 each" in found.text
    rows = table(out / "assignments.csv")
    assert [int(row["label"]) for row in rows] == labels.tolist()
    own = [row["label"] for row in rows if row["cluster"] == rows[0]["cluster"]]
    top = max(set(own), key=own.count)
    share = own.count(top) / len(own)
    assert f"most of class {top} ({share:.0%})" in found.text


def test_clients_on_their_own_have_their_own_clusters(vectors, tmp_path):
    path, _ = vectors
    flags = ["--clusters=4", "--no-plot", "--standalone", "--cluster-rounds=0"]
    out = run(tmp_path / "out", f"--dataset={path}", *flags)
    page.main(page.Args(out))
    found = read(out / "page.html")
    rows = table(out / "assignments.csv")
    assert {row["distance"] for row in rows} == {""}
    assert not (out / "embeddings.npz").exists()
    for name, members in found.sheets.items():
        client, cluster = name.removeprefix("Client ").split(", cluster ")
        own = [
            row["example"]
            for row in rows
            if (row["client"], row["cluster"]) == (client, cluster)
        ]
        assert members == own[:20]
    assert len(found.sheets) == len(
        {(row["client"], row["cluster"]) for row in rows if row["client"] != "-1"}
    )
    assert "have nothing to do with each other" in found.text
    assert "Clients on their own have no common embedding" in found.text
    assert "map" not in found.tags


def assigned(clusters, *, clients=None, communities=None):
    """A data set of which the names are its rows."""
    count = len(clusters)
    return Assigned(
        data.Dataset("rows", np.zeros((count, 2), np.float32), None),
        [str(i) for i in range(count)],
        np.zeros(count, int) if clients is None else np.array(clients),
        np.array(clusters),
        None if communities is None else np.array(communities),
        None,
        None,
    )


def test_clusters_by_hand():
    found = assigned([2, 0, 2, -1])
    clusters = page.clusters_of(found, num_clusters=3, scope="global")
    assert [(c.name, c.rows.tolist()) for c in clusters] == [
        ("Cluster 0", [1]),
        ("Cluster 1", []),
        ("Cluster 2", [0, 2]),
    ]


def test_communities_stand_for_the_clusters_of_clients():
    found = assigned([0, 1, 0, 1], clients=[0, 0, 1, 1], communities=[0, 1, 1, -1])
    clusters = page.clusters_of(found, num_clusters=2, scope="client-mean")
    assert [(c.name, c.rows.tolist()) for c in clusters] == [
        ("Community 0", [0]),
        ("Community 1", [1, 2]),
    ]


def test_warnings_of_empty_and_lone_clusters(vectors, tmp_path):
    path, _ = vectors
    out = run(tmp_path / "out", f"--dataset={path}", "--clusters=4", "--no-plot")
    finished = Finished(out)
    row = finished.rows[0]
    sizes = {"Cluster 0": 1, "Cluster 1": 0, "Cluster 2": 58}
    noted = page_text.warnings(finished, row, assigned([0, 2, -1]), sizes)
    assert noted == [
        "Empty clusters, 1 of 3: Cluster 1. The data may have fewer groups, or "
        "training was too short.",
        "Clusters of a single example: Cluster 0.",
        "Examples in none of the clusters below: 1.",
    ]
    diverged = {**row, "status": "diverged in round 2 of cluster"}
    (first, *_) = page_text.warnings(finished, diverged, assigned([0]), {})
    assert first.startswith("This run diverged in round 2 of cluster: its loss")
