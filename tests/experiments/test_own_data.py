"""Data of one's own, from a path to predictions on further data."""

from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image
from sklearn.neighbors import KNeighborsClassifier

import fcjax
from experiments.reproduce import task_of
from fcjax import metrics
from fcjax.cli import tools
from fcjax.data import Dataset, load, stratified_subset
from fcjax.methods import CCFC
from fcjax.metrics import probes
from fcjax.results import tables
from fcjax.results.store import read
from fcjax.sweep import experiment, train
from fcjax.sweep.plan import Task
from tests.data.test_sources import png, prepare
from tests.experiments.blobs import rows


def run(out, dataset, *, name="k-fed", **flags):
    """Runs a baseline in this process."""
    flags = {"clients": (3,), "p": (0.0,), "plot": False, "preset": "smoke"} | flags
    flags |= {"dataset": str(dataset), "methods": (name,), "out": out}
    train.execute(experiment.prepare(task_of("baselines", flags)))


def clusters_of(out):
    """Of its first run."""
    with np.load(out / "assignments.npz") as file:
        return file["cluster"][0].tolist()


def predicted(out, dataset, table, **flags):
    tools.Predict(out, str(dataset), out=table, **flags)()
    return rows(table)


@pytest.fixture(scope="module")
def digits():
    dataset = stratified_subset(load("digits"), 60)
    return dataset.examples, dataset.labels


@pytest.fixture(scope="module")
def table(digits, tmp_path_factory):
    """Feature vectors and a run on them, of two seeds."""
    images, labels = digits
    folder = tmp_path_factory.mktemp("table")
    values = images.reshape(len(images), -1)[:, 10:22] * 3.7 - 40
    path = folder / "table.csv"
    np.savetxt(path, np.column_stack([values, labels]), fmt="%.6f", delimiter=",")
    run(folder / "out", path, name="ffcm", seed=(0, 1))
    return path, folder / "out"


def test_streaming_from_the_host_changes_nothing_but_rounding(table, tmp_path, capsys):
    """The first round's loss; the method then amplifies how sums are rounded, which
    depends on what the compiler fuses with fetching an example."""
    path, out = table
    run(tmp_path, path, name="ffcm", seed=(0, 1), pool="host")
    assert "(on the host)" in capsys.readouterr().out
    streamed, plain = (
        [float(row["loss"]) for row in rows(x / "history.csv")[:2]]
        for x in (tmp_path, out)
    )
    assert streamed == pytest.approx(plain, abs=1e-5)


def test_no_label_is_read_on_the_way_to_a_clustering(digits, tmp_path):
    """Clients are the data's own: a rule such as --p deals by labels."""
    images, labels = digits
    values = images.reshape(60, 64) / 255
    shuffled, each = np.random.default_rng(0).permutation(labels), []
    for name, classes in (("as they are", labels), ("shuffled", shuffled)):
        path, out = tmp_path / "x.npz", tmp_path / name
        np.savez(path, x=values, y=classes, client=np.arange(60) % 3)
        flags = {"dataset": str(path), "out": out, "plot": False}
        train.execute(experiment.prepare(Task.of(CCFC(preset="smoke"), **flags)))
        each.append(clusters_of(out))
    assert each[0] == each[1]
    nmi, other = (
        rows(tmp_path / x / "results.csv")[0]["nmi"] for x in (name, "as they are")
    )
    assert nmi != other


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((32, 32, 1), ("conv-small", "affine", (5e-3,), "cosine")),
        ((32, 32, 3), ("conv-small", None, (5e-3,), "cosine")),
        ((96, 96, 1), ("conv-small", "affine", (5e-3,), "cosine")),
        ((96, 96, 3), ("resnet18-imagenet", None, (1e-3,), "constant")),
        ((16,), ("mlp", None, (1e-3,), "constant")),
    ],
)
def test_colour_and_size_choose_network_view_and_rate(shape, expected):
    dataset = Dataset("any", np.zeros((400, *shape), np.uint8), None)
    settings = CCFC().resolve(Task(CCFC()).problem(dataset, 10, 10)).settings
    flags = ("backbone", "view", "learning_rate", "schedule")
    assert tuple(settings[x] for x in flags) == expected


def test_a_model_predicts_the_clusters_of_its_own_run(table, tmp_path):
    path, out = table
    every = predicted(out, path, tmp_path / "all", where=("seed=1",))
    with np.load(out / "assignments.npz") as file:
        of_seed = dict(zip(file["seed"].tolist(), file["cluster"], strict=True))
    assert [int(row["cluster"]) for row in every] == of_seed[1].tolist()
    assert (of_seed[0] != of_seed[1]).any()
    # A few rows are scaled as those of the run.
    lines = path.read_text().splitlines()
    (tmp_path / "few.csv").write_text("\n".join(lines[7:12]) + "\n")
    few = predicted(out, tmp_path / "few.csv", tmp_path / "few", where=("seed=1",))
    for row, expected in zip(few, every[7:12], strict=True):
        assert row["cluster"] == expected["cluster"]
        assert float(row["distance"]) == pytest.approx(float(expected["distance"]))


@pytest.mark.parametrize(
    ("tool", "flags", "message"),
    [
        (tools.Predict, {"where": ("seed=7",)}, "no run of .* has seed=7"),
        (
            tools.Predict,
            {"where": ("lambda=1",)},
            "takes p=VALUE .* seed=VALUE, got 'lambda",
        ),
        (tools.Predict, {"where": ("seed",)}, "^where takes"),
        (
            tools.Predict,
            {"dataset": "digits", "where": ("seed=0",)},
            r"for examples of shape \(12,\)",
        ),
        (tools.Predict, {"run": Path("nowhere")}, "holds no run"),
        (
            tools.Probe,
            {"label_fraction": (0.1, 0.0)},
            "^.label_fraction. .* got 0$",
        ),
        (tools.Probe, {"label_fraction": (10.0,)}, "^.label_fraction. .* got 10$"),
        (tools.Probe, {"num_draws": 0}, "^.num_draws. must be at least 1, got 0$"),
    ],
)
def test_what_a_finished_run_is_not_asked(table, tool, flags, message):
    path, out = table
    asked = {"run": out, "where": ("seed=0",)}
    if tool is tools.Predict:
        asked["dataset"] = str(path)
    with pytest.raises(ValueError, match=message):
        tool(**asked | flags)()


def test_an_extra_split_trains_and_is_resized_but_is_not_scored(digits, tmp_path):
    _, labels = digits
    encoded = [(png(image[..., 0]), int(n)) for image, n in zip(*digits, strict=True)]
    prepare(tmp_path / "data", {"train": encoded[:40], "unlabelled": encoded[40:]})
    flags = {"data_dir": tmp_path / "data", "extra_split": "unlabelled", "resize": 6}
    run(tmp_path / "out", "tiny", **flags, clusters=(3,))
    held = read(tmp_path / "out").assignments()
    client, cluster = held["client"].to_numpy(), held["cluster"].to_numpy()
    # 20 further examples for three clients.
    assert np.bincount(client[40:]).tolist() == [7, 7, 6]
    (row,) = rows(tmp_path / "out" / "results.csv")
    assert row["samples"] == "40"
    nmi = metrics.nmi(labels[:40], cluster[:40])
    assert float(row["nmi"]) == pytest.approx(nmi, abs=1e-6)


def test_a_probe_of_the_embedding(table, capsys):
    path, out = table
    shares = {"label_fraction": (0.5,), "num_draws": 3}
    tools.Probe(out, num_neighbors=(1, 5, 100), where=("seed=0",), **shares)()
    printed = capsys.readouterr().out.splitlines()

    def cells(line):
        return [cell.strip() for cell in line.split("|")[1:-1]]

    of_run = read(out)
    dataset, z = load(str(path)), fcjax.open(of_run.directory).run(seed=0).embedding_
    test = np.argsort(np.argsort(np.random.default_rng(0).random(60))) < 10
    split = z[~test], dataset.labels[~test], z[test], dataset.labels[test]
    for line, k in zip(printed[5:7], (1, 5), strict=True):
        votes = KNeighborsClassifier(k).fit(*split[:2])
        assert cells(line) == [str(k), f"{votes.score(*split[2:]):.4f}"]

    found = probes.linear_probe(jax.random.key(0), *split)
    assert cells(printed[11]) == ["linear probe", "50", f"{found:.3f}", "1"]
    accuracies = probes.semi_supervised(
        jax.random.key(0), *split, label_fraction=0.5, num_draws=3
    )
    mean = f"{accuracies.mean():.3f} ± {tables.half_width(accuracies):.3f}"
    assert cells(printed[12])[2:] == [mean, "3"]


def bar(height, width, *, lying):
    image = np.random.default_rng(width).integers(0, 30, (height, width), np.uint8)
    top, left = slice(height // 4, height // 2), slice(width // 4, width // 2)
    image[(top, slice(None)) if lying else (slice(None), left)] = 250
    return image


def test_pictures_of_mixed_sizes_from_their_folder_to_predictions(tmp_path):
    """Lying and standing bars, of three sizes, and arrays of a size of their own."""
    for i in range(24):
        name = tmp_path / "bars" / ("lying", "standing")[i // 12] / f"{i}.png"
        name.parent.mkdir(parents=True, exist_ok=True)
        size = [(8, 8), (12, 10), (9, 16)][i % 3]
        Image.fromarray(bar(*size, lying=i < 12)).save(name)
    bars, out = tmp_path / "bars", tmp_path / "out"
    with pytest.raises(ValueError, match=r"mixed sizes.*so use `resize`$"):
        run(out, bars)
    run(out, bars, clients=(2,), resize=6)
    assert float(rows(out / "results.csv")[0]["nmi"]) == 1
    found, clusters = predicted(out, bars, tmp_path / "all"), clusters_of(out)
    assert [int(row["cluster"]) for row in found] == clusters
    assert found[0]["example"] == "lying/0.png"
    new = np.stack([bar(20, 14, lying=lying) for lying in (True, False)])
    np.savez(tmp_path / "new.npz", x=new)
    few = predicted(out, tmp_path / "new.npz", tmp_path / "few")
    assert [int(row["cluster"]) for row in few] == [clusters[0], clusters[-1]]
