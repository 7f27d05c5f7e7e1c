"""The page that a run without labels ends in, read as a browser reads it."""

import shutil
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from fcjax import data, report
from fcjax.runs import page
from fcjax.runs.finished import Finished
from tests.runs.pages import prepared, read, run, table

ODD = "<b>&\"x'.png"


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
    """A run without labels of two numbers of clusters, which writes its page."""
    out = tmp_path_factory.mktemp("results") / "out & more"
    return run(out, f"--dataset={folder}", "--clusters", "2", "3")


def best_row(out):
    return max(table(out / "results.csv"), key=lambda row: float(row["silhouette"]))


def test_a_run_without_labels_ends_in_its_page(grid, capsys, folder):
    assert (grid / "page.html").exists()
    run(grid, f"--dataset={folder}", "--clusters", "2", "3")
    printed = capsys.readouterr().out
    assert f"{grid / 'page.html'}" in printed
    assert "higher is better" in printed


def test_the_page_is_well_formed_and_asks_nothing_of_a_network(grid):
    found = read(grid / "page.html")
    assert not found.tags & {"script", "link", "iframe", "b"}
    assert len(found.sources) == sum(map(len, found.sheets.values()))
    assert all(source.startswith("data:image/png;") for source in found.sources)
    text = (grid / "page.html").read_text()
    assert "http" not in text
    assert "url(" not in text


def test_a_sheet_holds_the_members_of_its_cluster_by_their_distance(grid, folder):
    row = best_row(grid)
    with np.load(grid / "assignments.npz") as file:
        run = int(np.flatnonzero(file["clusters"] == int(row["clusters"]))[0])
        clusters = file["cluster"][run]
    with np.load(grid / "embeddings.npz") as file:
        np.testing.assert_array_equal(file["cluster"], clusters)
        z, centers = file["embedding"], file["centers"]
    # The natural order of the folder: numbers before text.
    names = np.array([*(f"{i}.png" for i in range(1, 60)), ODD])
    sheets = read(grid / "page.html").sheets
    assert list(sheets) == [f"Cluster {k}" for k in range(int(row["clusters"]))]
    for k in range(len(sheets)):
        (rows,) = np.nonzero(clusters == k)
        distances = np.linalg.norm(z[rows] - centers[k], axis=1)
        order = names[rows[np.argsort(distances)]].tolist()
        assert sheets[f"Cluster {k}"] == order[:20] + order[20:][-6:]


def test_the_table_for_spreadsheets_has_every_file(grid, folder):
    found = table(grid / "assignments.csv")
    assert {row["example"] for row in found} == {f.name for f in folder.iterdir()}
    with np.load(grid / "embeddings.npz") as file:
        assert [int(row["cluster"]) for row in found] == file["cluster"].tolist()
        assert [int(row["client"]) for row in found] == file["client"].tolist()
        own = file["embedding"] - file["centers"][file["cluster"]]
    distances = [float(row["distance"]) for row in found]
    np.testing.assert_allclose(distances, np.linalg.norm(own, axis=1), rtol=1e-4)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_every_link_leads_to_a_file(grid, tmp_path, elsewhere):
    out = grid
    if elsewhere:
        out = tmp_path / "of 2"
        page.main(page.Args(grid, where=("clusters=2",), out=out))
        assert len(read(out / "page.html").sheets) == 2
    links = read(out / "page.html").links
    assert {"assignments.csv", "embeddings.npz"} <= set(links)
    assert len(links) > 8
    for link in links:
        assert (out / unquote(link)).is_file(), link


def test_the_scores_are_those_of_the_run_with_the_better_ones_marked(grid):
    rows = table(grid / "results.csv")
    shown = read(grid / "page.html").rows[1:3]
    for name, best in (
        ("silhouette", max),
        ("calinski_harabasz", max),
        ("davies_bouldin", min),
    ):
        values = [float(row[name]) for row in rows]
        place = 2 + ["silhouette", "calinski_harabasz", "davies_bouldin"].index(name)
        assert [cells[place] for cells in shown] == [
            f"{value:.3f}" + "*" * (value == best(values)) for value in values
        ]
    assert [cells[0] for cells in shown] == ["2", "3"]


def test_the_words_say_what_was_run(grid, folder):
    text = read(grid / "page.html").text
    assert "60 grey images of 8 x 8 pixels" in text
    assert str(folder) in text
    assert "dealt at random to 3 clients, 20 each; training took 3 rounds" in text
    assert "There are no labels" in text
    assert f"fcjax page '{grid}' --where clusters=" in text
    assert "silhouette is of its own embedding, so it does not compare runs" in text


def test_which_run_is_shown(grid, tmp_path):
    """Of those asked for the highest silhouette, and a collapsed one never first."""
    best = best_row(grid)
    out = shutil.copytree(grid, tmp_path / "out")
    assert page.chosen(Finished(out), ())["clusters"] == best["clusters"]
    other = "2" if best["clusters"] == "3" else "3"
    asked = page.chosen(Finished(out), (f"clusters={other}",))
    assert asked["clusters"] == other
    text = (out / "results.csv").read_text().splitlines()
    text = [
        line.replace(",ok,", ",collapsed,") if line.startswith(lead) else line
        for line in text
        if (lead := f"ccfc,my photos,60,0,3,{best['clusters']},")
    ]
    (out / "results.csv").write_text("\n".join(text) + "\n")
    assert page.chosen(Finished(out), ())["clusters"] == other
    page.main(page.Args(out))
    assert "1 of the 1 other runs collapsed" in read(out / "page.html").text
    page.main(page.Args(out, where=(f"clusters={best['clusters']}",)))
    assert "This run collapsed" in read(out / "page.html").text


def test_a_run_that_is_not_there(grid, tmp_path):
    with pytest.raises(ValueError, match=r"no run of .* has clusters=9"):
        page.main(page.Args(grid, where=("clusters=9",)))
    with pytest.raises(ValueError, match="--where takes p=VALUE"):
        page.main(page.Args(grid, where=("k=9",)))
    with pytest.raises(ValueError, match="holds no run"):
        page.main(page.Args(tmp_path))


def test_a_run_whose_data_is_gone_ends_without_a_page(folder, tmp_path, capsys):
    moved = shutil.copytree(folder, tmp_path / "moved")
    flags = [f"--dataset={moved}", "--clusters=2"]
    out = run(tmp_path / "out", *flags)
    (moved / "1.png").unlink()
    with pytest.raises(ValueError, match="is of 60 examples, but the data set has 59"):
        page.main(page.Args(out))
    capsys.readouterr()
    report.conclude(prepared(out, *flags).results, labelled=False)
    printed = capsys.readouterr().out
    assert "no page (" in printed
    assert f"fcjax page {out}" in printed


def test_no_figures_and_no_page(folder, tmp_path):
    out = run(tmp_path / "out", f"--dataset={folder}", "--clusters=2", "--no-plot")
    assert not (out / "page.html").exists()


def test_a_limited_folder_keeps_the_names_of_its_files(folder, tmp_path):
    out = run(tmp_path / "out", f"--dataset={folder}", "--clusters=2", "--limit=45")
    found = table(out / "assignments.csv")
    images = data.load(str(folder)).examples
    names = [*(f"{i}.png" for i in range(1, 60)), ODD]
    limited = data.stratified_subset(data.load(str(folder)), 45).examples
    assert len(found) == 45
    for row, image in zip(found, limited, strict=True):
        np.testing.assert_array_equal(images[names.index(row["example"])], image)
    assert len(Finished(out).rows) == 1
    assert "One number of clusters was tried" in read(out / "page.html").text
