"""The HTML report, parsed as a browser parses it: of images without labels, of vectors
with labels, and of clients that cluster separately."""

import base64
import json
import shutil
from html.parser import HTMLParser
from urllib.parse import unquote

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from experiments import spherical
from fcjax import data
from fcjax.cli import tools
from fcjax.results import html_report, store
from fcjax.results.results import gather
from fcjax.results.run import ScoredExamples
from fcjax.results.store import read
from fcjax.sweep import experiment, report, train
from fcjax.sweep.plan import Task
from tests.sweep import drifting

ODD = "<b>&\"x'.png"
NAMES = [*(f"{i}.png" for i in range(1, 60)), ODD]
"""The natural order of the folder: numbers before text."""
VOID = {"meta", "img", "circle", "path", "polyline"}


class Read(HTMLParser):
    """The content of a report; fails if an element is not closed."""

    def __init__(self, path):
        super().__init__()
        self.open, self.tags, self.links, self.sources = [], set(), [], []
        self.sheets, self.rows, self.text = {}, [], ""
        self.feed(path.read_text())
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.links += [attrs["href"]] if "href" in attrs else []
        self.sources += [attrs["src"]] if "src" in attrs else []
        self.rows += [[]] if tag == "tr" else []
        if tag == "li" and "title" in attrs:
            self.sheets[list(self.sheets)[-1]].append(attrs["title"])

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, text):
        self.text += text
        (inside,) = self.open[-1:] or [""]
        if inside == "h3":
            self.sheets[text] = []
        if inside in ("td", "th", "strong"):
            self.rows[-1].append(text + "*" * (inside == "strong"))

    def table(self, corner, num_rows):
        """The cells below a header, by row and column."""
        (start,) = (i for i, row in enumerate(self.rows) if row[:1] == [corner])
        _, *names = self.rows[start]
        return {
            name: dict(zip(names, cells, strict=True))
            for name, *cells in self.rows[start + 1 :][:num_rows]
        }


def prepare(out, folder, **flags):
    """A federated k-means of images."""
    flags = {"dataset": str(folder), "clients": (3,), "p": (0.0,), **flags}
    args = Task.of(spherical.Spherical, out=out, **flags)
    return experiment.prepare(args)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Sixty digits as files in one folder, one of them with an odd name."""
    folder = tmp_path_factory.mktemp("own") / "my photos"
    folder.mkdir()
    images = (load_digits().images[:60] * 15).astype(np.uint8)
    for i, image in enumerate(images):
        Image.fromarray(image).save(folder / (ODD if i == 0 else f"{i}.png"))
    return folder


@pytest.fixture(scope="module")
def grid(folder, tmp_path_factory):
    """A run without labels with two numbers of clusters, which writes its report."""
    out = tmp_path_factory.mktemp("results") / "out & more"
    train.execute(prepare(out, folder, clusters=(2, 3)))
    return out


@pytest.fixture(scope="module")
def found(grid):
    return Read(grid / "report.html")


def change(out, **config):
    """Changes what the results folder of a run says of it."""
    path = out / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))


def shown(out, *where):
    """The row of the run that is shown."""
    runs = gather([out], store.parse_where(where)).ensemble()
    return html_report.summarize(runs, gather([out]).ensemble()).run.row


@pytest.fixture(scope="module")
def best(grid):
    return shown(grid)


def test_the_report_is_well_formed_and_needs_no_network(grid, found):
    assert not found.tags & {"script", "link", "iframe", "b"}
    assert len(found.sources) == sum(map(len, found.sheets.values()))
    assert all(source.startswith("data:image/png;") for source in found.sources)
    text = (grid / "report.html").read_text()
    assert "http" not in text
    assert "url(" not in text


def test_sheets_and_the_table_hold_every_file_by_its_distance(grid, found, best):
    held = read(grid).assignments(clusters=best["clusters"])
    rows, arrays = (
        pd.read_csv(grid / "assignments.csv"),
        np.load(grid / "embeddings.npz"),
    )
    for name in ("client", "cluster"):
        np.testing.assert_array_equal(rows[name], held[name])
        np.testing.assert_array_equal(arrays[name], held[name])
    own = arrays["embedding"] - arrays["centers"][arrays["cluster"]]
    np.testing.assert_allclose(rows.distance, np.linalg.norm(own, axis=1), rtol=1e-4)
    assert rows.example.tolist() == NAMES
    ordered = rows.sort_values("distance", kind="stable")
    assert found.sheets == {
        f"Cluster {k}": [*names[:20], *names[20:][-6:]]
        for k, names in ordered.groupby("cluster").example
    }


@pytest.mark.parametrize("elsewhere", [False, True])
def test_every_link_leads_to_a_file(grid, tmp_path, elsewhere):
    out = grid
    if elsewhere:
        out = tmp_path / "of 2"
        tools.Report(grid, where=("clusters=2",), out=out)()
        assert len(Read(out / "report.html").sheets) == 2
    links = Read(out / "report.html").links
    assert {"assignments.csv", "embeddings.npz"} <= set(links)
    assert len(links) > 8
    for link in links:
        assert (out / unquote(link)).is_file(), link


def test_the_scores_are_those_of_the_run_with_the_better_ones_marked(grid, found):
    better = {"silhouette": max, "calinski_harabasz": max, "davies_bouldin": min}
    rows = pd.read_csv(grid / "results.csv")
    counts, _, *columns, _ = zip(*found.rows[1:3], strict=True)
    assert found.rows[0][0] == "clusters"
    assert counts == ("2", "3")
    for cells, (name, best_of) in zip(columns, better.items(), strict=True):
        best = best_of(rows[name])
        assert list(cells) == [f"{x:.3f}" + "*" * (x == best) for x in rows[name]]


def test_which_run_is_shown(grid, best, tmp_path):
    """A collapsed one never first, unless it is asked for."""
    best, out = best["clusters"], shutil.copytree(grid, tmp_path / "out")
    other = 5 - best
    assert shown(out, f"clusters={other}")["clusters"] == other
    rows = pd.read_csv(out / "results.csv")
    rows.loc[rows.clusters == best, "status"] = "collapsed"
    rows.to_csv(out / "results.csv", index=False)
    assert shown(out)["clusters"] == other
    tools.Report(out)()
    assert "1 of the 1 other runs collapsed" in Read(out / "report.html").text
    tools.Report(out, where=(f"clusters={best}",))()
    assert "This run collapsed" in Read(out / "report.html").text


def test_the_first_screen_says_how_many_which_and_how_sure(tmp_path):
    """Of three far blobs, which every seed finds as three: then six are no more."""
    labels = np.repeat([0, 1, 2], 20)
    x = np.eye(3)[labels] + 0.05 * np.random.default_rng(0).random((60, 3))
    np.savez(tmp_path / "blobs.npz", x=x.astype(np.float32))
    flags = {"clusters": (3, 6), "seed": (0, 1, 2), "labels": False}
    train.execute(prepare(tmp_path / "out", tmp_path / "blobs.npz", **flags))
    whole = gather([tmp_path / "out"]).ensemble()
    short, run, trade_off = html_report.summarize(whole, whole)
    many, which, sure = short.values()
    assert many.startswith("Seeds agree most on 3 clusters (")
    assert which.endswith(f", of the 3 runs with 3 clusters: {run.name}.")
    assert run.row["clusters"] == 3
    assert sure.startswith("The 3 runs agree on 100% of 60 examples")
    assert "Runs with fewer clusters agree on more examples" in sure
    text = Read(tmp_path / "out" / "report.html").text
    assert all(words in text for pair in short.items() for words in pair)
    assert {*trade_off} == {3, 6}
    assert trade_off[3] > 0.5 > trade_off[6]
    # A run of another number is told the same, and how sure the runs of its number are.
    asked = gather([tmp_path / "out"], {"clusters": 6, "seed": 1}).ensemble()
    other, run, again = html_report.summarize(asked, whole)
    assert other["How many clusters?"] == many
    assert again == trade_off
    assert (run.row["clusters"], run.row["seed"]) == (6, 1)
    assert run.name in other["Which run?"]
    assert other["How sure?"].startswith("The 3 runs agree on ")


def test_clients_of_the_data_are_named(tmp_path):
    """By the data in order of their names, by the run in order of their sizes."""
    site = np.repeat(["north", "south", "west"], [10, 20, 30])
    x = np.eye(3)[np.arange(60) % 3] + 0.1 * np.random.default_rng(0).random((60, 3))
    np.savez(tmp_path / "rows.npz", x=x.astype(np.float32), client=site)
    flags = {"dataset": str(tmp_path / "rows.npz"), "clusters": (3,), "labels": False}
    flags["seed"] = (0, 1)
    task = Task.of(spherical.Spherical, out=tmp_path / "out", **flags)
    train.execute(experiment.prepare(task))
    table = pd.read_csv(tmp_path / "out" / "assignments.csv")
    assert table.client_name.tolist() == site.tolist()
    assert table.client.tolist() == np.repeat([2, 1, 0], [10, 20, 30]).tolist()
    tools.Consensus((tmp_path / "out",), out=tmp_path)()
    consensus = pd.read_csv(tmp_path / "assignments.csv")
    assert consensus.client_name.tolist() == site.tolist()
    page = Read(tmp_path / "out" / "report.html")
    counts = pd.crosstab(site, table.cluster)
    rows = {
        row[0]: row[1:] for row in page.rows if row[0] in ("north", "south", "west")
    }
    assert rows == {
        name: [*map(str, counts.loc[name]), str(counts.loc[name].sum())]
        for name in ("north", "south", "west")
    }


def test_a_run_ends_in_its_report_but_without_figures(grid, folder, tmp_path, capsys):
    out, moved = (shutil.copytree(x, tmp_path / x.name) for x in (grid, folder))
    change(out, dataset=str(moved))
    (out / "report.html").unlink()
    prepared = prepare(out, moved, clusters=(2, 3))

    (moved / "1.png").unlink()
    with pytest.raises(ValueError, match="is of 60 examples, but the data set has 59"):
        tools.Report(out)()
    report.log_results(store.read(out))
    assert f"fcjax report {out}" in capsys.readouterr().out
    (out / "figures").rename(out / "hidden")
    train.execute(prepared)
    assert not (out / "report.html").exists()
    (out / "hidden").rename(out / "figures")
    train.execute(prepared)  # has the data in memory
    assert str(out / "report.html") in capsys.readouterr().out
    assert (out / "report.html").exists()


def test_a_limited_folder_keeps_the_names_of_its_files(grid, folder, tmp_path):
    """The first run alone, as if it had been of 45 images."""
    out = shutil.copytree(grid, tmp_path / "out")
    change(out, limit=45)
    rows = pd.read_csv(out / "results.csv")[:1].assign(samples=45)
    rows.to_csv(out / "results.csv", index=False)
    arrays = dict(np.load(grid / "assignments.npz"))
    parts = {name: arrays[name][..., :45] for name in ("client", "cluster", "example")}
    np.savez(out / "assignments.npz", **arrays | parts)
    tools.Report(out)()
    images = data.load(str(folder))
    limited = data.stratified_subset(images, 45).examples
    named = pd.read_csv(out / "assignments.csv").example.map(NAMES.index)
    np.testing.assert_array_equal(images.examples[named], limited)


# --- other runs


def test_labels_add_scores_baseline_confusion_and_partition(finished, tmp_path):
    assert (finished / "report.html").exists()  # written at the end of the run
    tools.Report(finished, where=("seed=1",), out=tmp_path)()
    found = Read(tmp_path / "report.html")
    result = pd.read_csv(finished / "results.csv").set_index("seed").loc[1]
    scores = found.table("score", 2)
    for name in ("nmi", "acc"):
        assert scores[name.upper()] == {
            "this run": f"{result[name]:.3f}",
            "k-means baseline": f"{result[f'kmeans_{name}']:.3f}",
        }
    labels = np.load(finished.parent / "rows.npz")["y"]
    arrays = np.load(finished / "assignments.npz")
    run = arrays["seed"].tolist().index(1)
    for corner, rows, columns in (
        ("class \\ cluster", labels, arrays["cluster"][run]),
        ("client \\ class", arrays["client"][run], labels),
    ):
        known = (rows >= 0) & (columns >= 0)
        counts = pd.crosstab(
            rows[known], columns[known], margins=True, margins_name="all"
        )
        counts = counts.drop("all").rename(index=str, columns=str)
        table = pd.DataFrame(found.table(corner, len(counts))).T.astype(int)
        pd.testing.assert_frame_equal(
            table.sort_index(axis=1), counts.sort_index(axis=1), check_names=False
        )
    members = labels[arrays["cluster"][run] == 0]
    shares = pd.Series(members).value_counts(normalize=True)
    assert f"class {shares.index[0]} ({shares.iloc[0]:.0%})" in found.text


def test_labels_add_figures_of_the_run_and_its_environment(finished, tmp_path):
    """Figures that the run has drawn are used again, unless they are of another run."""

    def content(name):
        return base64.b64encode((finished / "figures" / name).read_bytes()).decode()

    curves, embedding = map(content, ("learning_curves.png", "embedding.png"))
    for seed, expected in ((0, [curves, embedding]), (1, [curves])):
        tools.Report(finished, where=(f"seed={seed}",), out=tmp_path)()
        found = Read(tmp_path / "report.html")
        assert [x.partition("base64,")[2] for x in found.sources] == expected
        assert ("circle" in found.tags) == (seed == 1)  # a map of its own
    assert not found.tags & {"script", "link"}
    (start,) = store.starts(finished)
    values = dict(row for row in found.rows if len(row) == 2)
    assert values["jax"] == start["jax"]
    assert values["devices"] == start["devices"]
    assert values["wall time of the command"].startswith(f"{start['seconds']} s")
    assert (start["commit"] or "no git checkout") in values["commit of fcjax"]
    assert f"fcjax ccfc --config {finished / 'config.json'}" in found.text

    out = shutil.copytree(finished, tmp_path / "out")
    shutil.rmtree(out / "figures")
    tools.Report(out)()
    (drawn,) = Read(out / "report.html").sources
    assert drawn.startswith("data:image/png;base64,")


def test_clients_on_their_own_have_their_own_clusters(tmp_path):
    out = drifting.run(tmp_path / "out", drifting.vectors(tmp_path))
    tools.Report(out)()
    found = Read(out / "report.html")
    rows = pd.read_csv(out / "assignments.csv", dtype={"example": str})
    assert rows.distance.isna().all()
    assert not (out / "embeddings.npz").exists()
    members = rows[rows.client >= 0].groupby(["client", "cluster"]).example
    assert found.sheets == {
        f"Client {client}, cluster {cluster}": [*names[:20]]
        for (client, cluster), names in members
    }
    assert "of another client are unrelated" in found.text


def assigned(clusters, *, clients: int | list[int] = 0, communities=None):
    """The examples of a data set, of which the names are its rows."""
    clusters, found = np.array(clusters), object.__new__(ScoredExamples)
    found.dataset = data.Dataset("rows", np.zeros((len(clusters), 2), np.float32), None)
    found.names = [str(i) for i in range(len(clusters))]
    found.clients, found.clusters = np.broadcast_to(clients, clusters.shape), clusters
    found.communities, found.model, found.prediction = communities, None, None
    return found


SAME = np.array([0, 1, 1, -1])


@pytest.mark.parametrize(
    ("found", "scope", "expected"),
    [
        (
            assigned([0, -1, 0, -1]),
            "global",
            {"Cluster 0": [0, 2], "Cluster 1": []},
        ),
        # With communities, the clusters of clients have no sheets.
        (
            assigned([0, 1, 0, 1], clients=[0, 0, 1, 1], communities=SAME),
            "client-mean",
            {"Community 0": [0], "Community 1": [1, 2]},
        ),
    ],
)
def test_clusters_by_hand(found, scope, expected):
    clusters = html_report.clusters_of(found, num_clusters=2, scope=scope)
    assert {each.name: each.examples.tolist() for each in clusters} == expected


def test_warnings_of_empty_and_lone_clusters(finished):
    run = read(finished)
    row = {**run.rows[0], "nmi": 0.5, "kmeans_nmi": 0.5}  # not below it
    sizes = {"Cluster 0": 1, "Cluster 1": 0, "Cluster 2": 58}
    noted = " ".join(html_report.warnings(run, row, assigned([0, 2, -1]), sizes))
    assert "Empty clusters, 1 of 3: Cluster 1." in noted
    assert "Clusters of a single example: Cluster 0." in noted
    assert "Examples without a cluster in this report: 1." in noted
    for cells, told in (
        ({"kmeans_nmi": 0.6}, "NMI 0.500, k-means 0.600"),
        ({"status": "diverged in round 2 of cluster"}, "This run diverged in round 2"),
    ):
        assert told in html_report.warnings(run, {**row, **cells}, assigned([0]), {})[0]
