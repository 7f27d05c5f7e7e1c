"""Data of one's own, from a path to predictions on further data."""

import csv
import struct

import ccfc
import jax
import numpy as np
import pytest
import tyro
from PIL import Image
from sklearn.neighbors import KNeighborsClassifier

from fcjax import evaluation, session
from fcjax.data import load, stratified_subset
from fcjax.evaluation import linear
from fcjax.grid import experiment
from fcjax.runs import assigned, draw, finished, frozen, predict, probe
from tests.data.test_sources import png, prepare

TINY = [
    "--clients=3",
    "--p=0",
    "--pretrain-rounds=2",
    "--cluster-rounds=1",
    "--local-epochs=1",
    "--batch-size=20",
    "--latent-size=8",
    "--no-plot",
]


def run(out, *flags):
    """Runs the script in this process."""
    args = tyro.cli(ccfc.Args, args=[f"--out={out}", *TINY, *flags])
    session.execute(experiment.prepare(args, ccfc.describe))


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def digits():
    """Sixty digits in the order of their classes, which is that of a folder."""
    dataset = stratified_subset(load("digits"), 60)
    order = np.argsort(dataset.labels, kind="stable")
    return dataset.examples[order], dataset.labels[order]


@pytest.fixture(scope="module")
def formats(digits, tmp_path_factory):
    """The same digits in every format: from its name to its path and flags."""
    images, labels = digits
    folder = tmp_path_factory.mktemp("formats")
    np.savez(folder / "digits.npz", x=images[..., 0], y=labels)
    table = np.column_stack([images.reshape(len(images), -1), labels])
    np.savetxt(folder / "digits.csv", table, fmt="%d", delimiter=",")
    (folder / "digits-images-idx3-ubyte").write_bytes(
        struct.pack(">IIII", 0x803, *images.shape[:3]) + images.tobytes()
    )
    (folder / "digits-labels-idx1-ubyte").write_bytes(
        struct.pack(">II", 0x801, len(labels)) + labels.astype(np.uint8).tobytes()
    )
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / "png" / str(label) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(path)
    return {
        "npz": (folder / "digits.npz", []),
        "csv": (folder / "digits.csv", ["--image-shape", "8", "8"]),
        "idx": (folder / "digits-images-idx3-ubyte", []),
        "png": (folder / "png", []),
    }


def test_every_format_gives_the_same_result_to_the_last_bit(formats, tmp_path):
    timing = {"seconds", "compile_seconds", "dataset"}
    results, clusters = [], []
    for name, (path, flags) in formats.items():
        run(tmp_path / name, f"--dataset={path}", *flags)
        (row,) = rows(tmp_path / name / "results.csv")
        results.append({k: v for k, v in row.items() if k not in timing})
        with np.load(tmp_path / name / "assignments.npz") as file:
            clusters.append(file["cluster"])
    assert results == results[:1] * 4
    for cluster in clusters[1:]:
        np.testing.assert_array_equal(cluster, clusters[0])
    assert results[0]["nmi"] != ""


def test_streaming_from_the_host_changes_nothing_but_rounding(
    formats, tmp_path, capsys
):
    """The first round's loss; k-means and training then amplify how sums are rounded,
    which depends on what the compiler fuses with fetching an example."""
    path, _ = formats["npz"]
    losses = []
    for where in ("device", "host"):
        run(tmp_path / where, f"--dataset={path}", f"--pool={where}")
        assert f"the examples lie on the {where}" in capsys.readouterr().out
        losses.append(float(rows(tmp_path / where / "history.csv")[0]["loss"]))
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_unlabelled_images_end_in_assignments_sheets_and_internal_scores(
    formats, tmp_path, capsys
):
    path, _ = formats["png"]
    out = tmp_path / "out"
    flags = [f"--dataset={path}", "--no-labels", "--clusters=4", "--plot"]
    run(out, *flags)
    (row,) = rows(out / "results.csv")
    assert row["nmi"] == row["acc"] == row["best_nmi"] == ""
    assert -1 <= float(row["silhouette"]) <= 1
    assert float(row["davies_bouldin"]) > 0
    assert float(row["calinski_harabasz"]) > 0
    assert {file.name for file in (out / "figures").iterdir()} == {
        "clusters.png",
        "embedding.png",
        "learning_curves.png",
    }
    with np.load(out / "assignments.npz") as file:
        assert set(np.unique(file["cluster"])) <= {0, 1, 2, 3}
    assert "silhouette" in capsys.readouterr().out
    # A path that is relative to nothing else, so the run can be read back.
    draw.main(draw.Args(out, out=tmp_path / "again"))
    assert (tmp_path / "again" / "clusters.png").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--clusters is required where the data has no labels"),
        (["--clusters=4", "--p=0.5"], "--p must be 0 where the data has no labels"),
        (["--clusters=4", "--alpha=1"], "--p must be 0 where the data has no labels"),
        (["--clusters=4", "--backbone=mlp"], "--backbone mlp does not take images"),
        (["--clusters=4", "--extra-split=x"], "--extra-split is for TFDS"),
        (["--clusters=4", "--split=test"], "--split must be all for files"),
    ],
)
def test_unlabelled_data_and_flags_that_do_not_fit(formats, tmp_path, flags, message):
    path, _ = formats["png"]
    with pytest.raises(ValueError, match=message):
        run(tmp_path / "out", f"--dataset={path}", "--no-labels", *flags)
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def table(digits, tmp_path_factory):
    """Feature vectors and a run on them, of two seeds."""
    images, labels = digits
    folder = tmp_path_factory.mktemp("table")
    values = images.reshape(len(images), -1)[:, 10:22] * 3.7 - 40
    path = folder / "table.csv"
    np.savetxt(path, np.column_stack([values, labels]), fmt="%.6f", delimiter=",")
    run(folder / "out", f"--dataset={path}", "--seed", "0", "1")
    return path, folder / "out"


def test_a_model_predicts_the_clusters_of_its_own_run(table, tmp_path):
    path, out = table
    predict.main(predict.Args(out, str(path), where=("seed=1",), out=tmp_path / "p"))
    predicted = [int(row["cluster"]) for row in rows(tmp_path / "p")]
    with np.load(out / "assignments.npz") as file:
        run_of_seed = int(np.flatnonzero(file["seed"] == 1)[0])
        assert predicted == file["cluster"][run_of_seed].tolist()


def test_new_vectors_are_scaled_as_those_of_the_run(table, tmp_path):
    path, out = table
    lines = path.read_text().splitlines()
    (tmp_path / "few.csv").write_text("\n".join(lines[7:12]) + "\n")
    for name, source in (("all", path), ("few", tmp_path / "few.csv")):
        predict.main(predict.Args(out, str(source), out=tmp_path / name))
    few = rows(tmp_path / "few")
    assert [row["cluster"] for row in few] == [
        row["cluster"] for row in rows(tmp_path / "all")[7:12]
    ]
    for row, expected in zip(few, rows(tmp_path / "all")[7:12], strict=True):
        assert float(row["distance"]) == pytest.approx(float(expected["distance"]))
        assert row["distance"] == row[f"to_{row['cluster']}"]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (("seed=7",), "no run of .* has seed=7"),
        (("lambda=1",), "--where takes p=VALUE .* seed=VALUE, got 'lambda=1'"),
        (("seed",), "--where takes"),
    ],
)
def test_a_run_that_is_not_there(table, where, message):
    _, out = table
    with pytest.raises(ValueError, match=message):
        finished.Finished(out).point(where)


def test_other_shapes_are_refused(table, formats):
    _, out = table
    path, _ = formats["png"]
    with pytest.raises(ValueError, match=r"do not fit a model of \(12,\)"):
        predict.main(predict.Args(out, str(path)))
    with pytest.raises(ValueError, match="holds no run"):
        predict.main(predict.Args(out / "models", str(path)))


def test_predictions_of_a_folder_name_its_files(formats, tmp_path):
    path, _ = formats["png"]
    assert assigned.example_names(str(path), 60)[:2] == ["0/0.png", "0/1.png"]
    assert assigned.example_names("digits", 2) == ["0", "1"]


def test_a_damaged_model_is_named(tmp_path):
    (tmp_path / "model.npz").write_bytes(b"PK nothing")
    with pytest.raises(ValueError, match=r"model\.npz is not a readable model"):
        frozen.read(tmp_path / "model.npz")


def test_cluster_centers_by_hand():
    embedding = np.array([[0.0, 2.0], [4.0, 0.0], [2.0, 4.0]])
    centers = frozen.cluster_centers(embedding, np.array([2, 0, 2]), num_clusters=3)
    np.testing.assert_array_equal(centers, [[4, 0], [np.nan, np.nan], [1, 3]])


def test_an_extra_split_trains_but_is_not_scored(digits, tmp_path):
    _, labels = digits
    encoded = [(png(image[..., 0]), int(n)) for image, n in zip(*digits, strict=True)]
    prepare(tmp_path / "data", {"train": encoded[:40], "unlabelled": encoded[40:]})
    out = tmp_path / "out"
    flags = [f"--data-dir={tmp_path / 'data'}", "--extra-split=unlabelled"]
    run(out, "--dataset=tiny", *flags, "--clusters=3")
    with np.load(out / "assignments.npz") as file:
        cluster, client = file["cluster"][0], file["client"][0]
    assert len(cluster) == 60
    # 20 further examples for three clients: 7, 7 and 6; 40 by p: 13 each, 1 left out.
    assert np.bincount(client[40:]).tolist() == [7, 7, 6]
    assert np.bincount(client[:40] + 1).tolist() == [1, 13, 13, 13]
    (row,) = rows(out / "results.csv")
    assert row["samples"] == "40"
    nmi = evaluation.nmi(labels[:40], cluster[:40])
    assert float(row["nmi"]) == pytest.approx(nmi, abs=1e-6)


def test_a_probe_of_the_embedding(table, capsys):
    path, out = table
    probe.main(
        probe.Args(
            out, num_neighbors=(1, 5, 100), label_fraction=(0.01, 0.5), num_draws=3
        )
    )
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith("10 examples by 50")

    of_run = finished.Finished(out)
    model = frozen.read(of_run.model_path(of_run.point(["seed=0"])))
    dataset = load(str(path))
    z = frozen.predict(model, dataset.examples).embedding
    draws = np.random.default_rng(0).random(60)
    test = np.argsort(np.argsort(draws)) < 10
    split = z[~test], dataset.labels[~test], z[test], dataset.labels[test]
    for line, k in zip(printed[3:5], (1, 5), strict=True):
        votes = KNeighborsClassifier(k).fit(*split[:2])
        assert cells(line) == [str(k), f"{votes.score(*split[2:]):.4f}"]

    assert printed[5].startswith("linear classifiers")
    assert printed[5].endswith("over 3 draws")
    found = linear.linear_probe(jax.random.key(0), *split)
    assert cells(printed[8]) == ["linear probe", "50", f"{found:.3f}"]
    # 1 % of at most six examples a class is none, so one each is drawn.
    counts = np.unique(split[1], return_counts=True)[1]
    halves = [max(1, round(int(count) / 2)) for count in counts]
    for line, share, used in (
        (printed[9], 0.01, len(counts)),
        (printed[10], 0.5, sum(halves)),
    ):
        accuracies = linear.semi_supervised(
            jax.random.key(0), *split, label_fraction=share, num_draws=3
        )
        # 4.303: the 97.5 % quantile of Student's t with two degrees of freedom.
        half_width = 4.303 * np.std(accuracies, ddof=1) / np.sqrt(3)
        name, labels, accuracy = cells(line)
        assert (name, labels) == (f"{100 * share:g} % of labels", str(used))
        mean, interval = map(float, accuracy.split(" ± "))
        assert mean == pytest.approx(np.mean(accuracies), abs=1e-3)
        assert interval == pytest.approx(half_width, abs=1e-3)

    with np.load(out / "assignments.npz") as file:
        cluster, client = file["cluster"][0], file["client"][0]
    each = [
        evaluation.kappa(dataset.labels[client == i], cluster[client == i])
        for i in range(3)
    ]
    assert f"{np.mean(each):.4f}" in printed[-1]


def cells(line):
    """What stands between the bars of a line of a table."""
    return [cell.strip() for cell in line.split("|")[1:-1]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"label_fraction": (0.1, 0.0)}, r"^--label-fraction takes shares in \(0, 1\]"),
        ({"label_fraction": (10.0,)}, r"^--label-fraction .* got 10$"),
        ({"num_draws": 0}, r"^--num-draws takes 1 or more, got 0$"),
    ],
)
def test_wrong_shares_are_refused_before_anything_is_computed(tmp_path, wrong, message):
    with pytest.raises(ValueError, match=message):
        probe.main(probe.Args(tmp_path, **wrong))
