"""Data of one's own, from a path to predictions on further data."""

from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image
from sklearn.neighbors import KNeighborsClassifier

import fcjax
from experiments import baselines, ccfc
from fcjax import metrics
from fcjax.data import Dataset, load, stratified_subset
from fcjax.metrics import probes
from fcjax.results import tables
from fcjax.results.store import read
from fcjax.runs import predict, probe
from fcjax.sweep import experiment, plan, train
from tests.data.test_sources import png, prepare
from tests.experiments.blobs import rows


def run(out, dataset, *, name="k-fed", **flags):
    """Runs a baseline in this process."""
    flags = {"clients": (3,), "p": (0.0,), "plot": False, "preset": "smoke"} | flags
    args = baselines.Args(dataset=str(dataset), methods=(name,), out=out, **flags)
    train.execute(experiment.prepare(args))


def clusters_of(out):
    """Of its first run."""
    with np.load(out / "assignments.npz") as file:
        return file["cluster"][0].tolist()


def predicted(out, dataset, table, **flags):
    predict.main(predict.Args(out, str(dataset), out=table, **flags))
    return rows(table)


@pytest.fixture(scope="module")
def digits():
    dataset = stratified_subset(load("digits"), 60)
    return dataset.examples, dataset.labels


@pytest.fixture(scope="module")
def bars(tmp_path_factory):
    """A folder of lying and standing ones, in pictures of three sizes and little
    noise."""
    folder = tmp_path_factory.mktemp("data") / "bars"
    rng = np.random.default_rng(0)
    for i in range(24):
        height, width = [(8, 8), (12, 10), (9, 16)][i % 3]
        image = rng.integers(0, 30, (height, width), np.uint8)
        name = ("lying", "standing")[i // 12]
        if name == "lying":
            image[height // 4 : height // 2] = 250
        else:
            image[:, width // 4 : width // 2] = 250
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / name / f"{i}.png")
    return folder


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
    assert "the examples lie on the host" in capsys.readouterr().out
    streamed, plain = (
        [float(row["loss"]) for row in rows(x / "history.csv")[:2]]
        for x in (tmp_path, out)
    )
    assert streamed == pytest.approx(plain, abs=1e-5)


def test_no_label_is_read_on_the_way_to_a_clustering(digits, tmp_path):
    """Clients are the data's own: a rule such as --p deals by labels."""
    images, labels = digits
    shuffled, each = np.random.default_rng(0).permutation(labels), []
    for name, classes in (("as they are", labels), ("shuffled", shuffled)):
        path, out = tmp_path / "x.npz", tmp_path / name
        np.savez(path, x=images, y=classes, client=np.arange(len(images)) % 3)
        args = ccfc.Args(dataset=str(path), out=out, plot=False, preset="smoke")
        train.execute(experiment.prepare(args))
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
    settings = plan.describe(ccfc.Args(), dataset, 10, 10).settings
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
        assert row["distance"] == row[f"to_{row['cluster']}"]


@pytest.mark.parametrize(
    ("tool", "flags", "message"),
    [
        (predict, {"where": ("seed=7",)}, "no run of .* has seed=7"),
        (predict, {"where": ("lambda=1",)}, "takes p=VALUE .* seed=VALUE, got 'lambda"),
        (predict, {"where": ("seed",)}, "^where takes"),
        (
            predict,
            {"dataset": "digits", "where": ("seed=0",)},
            r"do not fit a model of \(12,\)",
        ),
        (predict, {"run": Path("nowhere")}, "holds no run"),
        (
            probe,
            {"label_fraction": (0.1, 0.0)},
            "^.label_fraction. .* got 0$",
        ),
        (probe, {"label_fraction": (10.0,)}, "^.label_fraction. .* got 10$"),
        (probe, {"num_draws": 0}, "^.num_draws. must be at least 1, got 0$"),
    ],
)
def test_what_a_finished_run_is_not_asked(table, tool, flags, message):
    path, out = table
    asked = {"run": out, "where": ("seed=0",)}
    if tool is predict:
        asked["dataset"] = str(path)
    with pytest.raises(ValueError, match=message):
        tool.main(tool.Args(**asked | flags))


def test_an_extra_split_trains_and_is_resized_but_is_not_scored(digits, tmp_path):
    _, labels = digits
    encoded = [(png(image[..., 0]), int(n)) for image, n in zip(*digits, strict=True)]
    prepare(tmp_path / "data", {"train": encoded[:40], "unlabelled": encoded[40:]})
    flags = {"data_dir": tmp_path / "data", "extra_split": "unlabelled", "resize": 6}
    run(tmp_path / "out", "tiny", **flags, clusters=(3,))
    held = read(tmp_path / "out").assignments()
    client, cluster = held["client"].to_numpy(), held["cluster"].to_numpy()
    assert len(cluster) == 60
    # 20 further examples for three clients.
    assert np.bincount(client[40:]).tolist() == [7, 7, 6]
    (row,) = rows(tmp_path / "out" / "results.csv")
    assert row["samples"] == "40"
    nmi = metrics.nmi(labels[:40], cluster[:40])
    assert float(row["nmi"]) == pytest.approx(nmi, abs=1e-6)


def test_a_probe_of_the_embedding(table, capsys):
    path, out = table
    shares = {"label_fraction": (0.01, 0.5), "num_draws": 3}
    probe.main(probe.Args(out, num_neighbors=(1, 5, 100), where=("seed=0",), **shares))
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith("10 examples by 50")

    def cells(line):
        return [cell.strip() for cell in line.split("|")[1:-1]]

    of_run = read(out)
    dataset, z = load(str(path)), fcjax.open(of_run.directory).run(seed=0).embedding_
    test = np.argsort(np.argsort(np.random.default_rng(0).random(60))) < 10
    split = z[~test], dataset.labels[~test], z[test], dataset.labels[test]
    for line, k in zip(printed[3:5], (1, 5), strict=True):
        votes = KNeighborsClassifier(k).fit(*split[:2])
        assert cells(line) == [str(k), f"{votes.score(*split[2:]):.4f}"]

    assert printed[5].startswith("linear classifiers")
    assert printed[5].endswith("over 3 draws")
    found = probes.linear_probe(jax.random.key(0), *split)
    assert cells(printed[8]) == ["linear probe", "50", f"{found:.3f}", "1"]
    # 1 % of at most six examples a class is none, so one each is drawn.
    counts = np.unique(split[1], return_counts=True)[1]
    halves = [max(1, round(int(count) / 2)) for count in counts]
    used = len(counts), sum(halves)
    for line, share, count in zip(printed[9:11], (0.01, 0.5), used, strict=True):
        accuracies = probes.semi_supervised(
            jax.random.key(0), *split, label_fraction=share, num_draws=3
        )
        mean = f"{accuracies.mean():.3f} ± {tables.half_width(accuracies):.3f}"
        share = f"{100 * share:g} % of labels"
        assert cells(line) == [share, str(count), mean, "3"]

    held = of_run.assignments(seed=0)
    client, cluster = held["client"].to_numpy(), held["cluster"].to_numpy()
    each = [
        metrics.kappa(dataset.labels[client == i], cluster[client == i])
        for i in range(3)
    ]
    assert f"{np.mean(each):.4f}" in printed[-1]


@pytest.fixture(scope="module")
def resized(bars, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "out"
    run(out, bars, clients=(2,), resize=6)
    return out


def test_a_folder_of_mixed_sizes_from_its_path_to_its_clusters(bars, resized, tmp_path):
    (row,) = rows(resized / "results.csv")
    assert float(row["nmi"]) == 1
    assert read(resized).source().resize == 6
    with pytest.raises(ValueError, match=r"mixed sizes.*which `resize` gives them$"):
        run(tmp_path / "out", bars)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match=r"configuration \(resize: 6 there, 7 here\)"):
        run(resized, bars, clients=(2,), resize=7)


def test_new_images_are_resized_as_those_of_the_run(bars, resized, tmp_path):
    found = predicted(resized, bars, tmp_path / "all")
    clusters = clusters_of(resized)
    assert [int(row["cluster"]) for row in found] == clusters
    assert found[0]["example"] == "lying/0.png"

    # The same bars as arrays of one size that no image of the run had.
    new = np.zeros((2, 20, 14), np.uint8)
    new[0, 5:10] = 250
    new[1, :, 4:7] = 250
    np.savez(tmp_path / "new.npz", x=new)
    few = predicted(resized, tmp_path / "new.npz", tmp_path / "few")
    assert [int(row["cluster"]) for row in few] == [clusters[0], clusters[-1]]
    assert [row["example"] for row in few] == ["0", "1"]
