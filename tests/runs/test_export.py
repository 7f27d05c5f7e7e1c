"""What an export holds, read without fcjax."""

import json
import shutil

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file
from sklearn.datasets import load_digits

from experiments import spherical
from fcjax.cli import tools
from fcjax.results.store import read
from fcjax.sweep import experiment, train
from fcjax.sweep.plan import Task
from tests.data.test_sources import png, prepare

FILES = {"network.safetensors", "config.json", "embeddings.npz", "assignments.csv"}


@pytest.fixture(scope="module")
def exported(finished, tmp_path_factory):
    """The second seed of the finished run."""
    folder = tmp_path_factory.mktemp("exported") / "of" / "seed1"
    tools.Export(finished, where=("seed=1",), out=folder)()
    assert {file.name for file in folder.iterdir()} == FILES
    return folder


@pytest.fixture(scope="module")
def rows(finished):
    """What the run was given."""
    with np.load(finished.parent / "rows.npz") as file:
        return file["x"], file["y"]


def batch_norm(x, weights, name):
    mean, var = (weights[f"variables/batch_stats/{name}/{s}"] for s in ("mean", "var"))
    x = (x - mean) / np.sqrt(var + 1e-5)
    scale = weights.get(f"variables/params/{name}/scale", 1)
    return x * scale + weights.get(f"variables/params/{name}/bias", 0)


def dense(x, weights, name):
    layer = f"variables/params/{name}/Dense_0"
    return x @ weights[f"{layer}/kernel"] + weights[f"{layer}/bias"]


def test_the_network_is_computed_in_numpy_alone(exported, rows):
    weights = load_file(exported / "network.safetensors")
    before = json.loads((exported / "config.json").read_text())["preprocessing"]
    x = (rows[0] - np.array(before["low"])) / np.array(before["span"])
    for i in range(2):
        x = dense(x, weights, f"encoder/Dense_{i}")
        x = batch_norm(x, weights, f"encoder/BatchNorm_{i}")
        x = np.where(x > 0, x, 0.2 * x)
    # SimSiam's projector, and the norm.
    x = batch_norm(dense(x, weights, "Dense_0"), weights, "BatchNorm_0")
    x = dense(np.maximum(x, 0), weights, "Dense_1")
    z = batch_norm(x, weights, "BatchNorm_1")
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    tables = np.load(exported / "embeddings.npz")
    np.testing.assert_allclose(z, tables["embedding"], atol=1e-5)
    mean, directions = (
        weights[f"clusters/whitening/{x}"] for x in ("mean", "directions")
    )
    half = (z - mean) @ directions
    half /= np.linalg.norm(half, axis=1, keepdims=True)
    far = np.linalg.norm(half[:, None] - weights["clusters/centroids"], axis=2)
    np.testing.assert_array_equal(np.argmin(far, axis=1), tables["cluster"])


def test_the_tables_are_those_of_the_run(finished, exported, rows):
    tables = np.load(exported / "embeddings.npz")
    held = read(finished).assignments(seed=1)
    for name in ("client", "cluster"):
        np.testing.assert_array_equal(tables[name], held[name])
    np.testing.assert_array_equal(tables["label"], rows[1])
    # Of the examples that a client holds: rounding leaves some without one.
    is_held = tables["client"] >= 0
    z, clusters = tables["embedding"][is_held], tables["cluster"][is_held]
    for k, center in enumerate(tables["centers"]):
        mean = z[clusters == k].mean(axis=0) if k in clusters else np.nan
        np.testing.assert_allclose(center, np.broadcast_to(mean, 8), atol=1e-5)


def test_configuration_and_weights_are_of_one_run_and_what_it_needs(exported):
    config = json.loads((exported / "config.json").read_text())
    expected = {"seed": 1, "model_weight": 0.001, "backbone": "mlp"}
    assert config.items() >= expected.items()
    with safe_open(exported / "network.safetensors", "numpy") as file:
        assert json.loads(file.metadata()["config"]) == config
    weights = load_file(exported / "network.safetensors")
    assert {str(value.dtype) for value in weights.values()} == {"float32"}
    # Encoder and projector have two layers each; the predictor's two, and the
    # optimizer's state, stay away.
    assert sum(name.endswith("kernel") for name in weights) == 4


def test_a_grid_exports_one_program_and_the_weights_of_every_run(finished):
    models = sorted((finished / "models").iterdir())
    first, second = map(np.load, models)
    np.testing.assert_array_equal(first["program"], second["program"])
    name = "weights/variables/params/encoder/Dense_0/Dense_0/kernel"
    assert np.abs(first[name] - second[name]).max() > 0.01


def test_an_export_of_images_has_no_rows_of_an_extra_split(tmp_path):
    """Of spherical k-means, which embeds an image as its pixels, of length 1."""
    values, labels = load_digits(n_class=4, return_X_y=True)
    examples = (values[:90] * 15).astype(np.uint8).reshape(-1, 8, 8)
    pairs = [(png(x), int(y)) for x, y in zip(examples, labels[:90], strict=True)]
    data, out = tmp_path / "data", tmp_path / "out"
    prepare(data, {"train": pairs[:60], "unlabelled": pairs[60:]})
    flags = {"dataset": "tiny", "extra_split": "unlabelled", "clients": (3,)}
    args = Task.of(spherical.Spherical, **flags, data_dir=data, out=out, plot=False)
    train.execute(experiment.prepare(args))
    tools.Export(out, data_dir=data)()
    tables, held = np.load(out / "export" / "embeddings.npz"), read(out).assignments()
    assert held.shape == (90, 2)
    for name in ("client", "cluster"):
        np.testing.assert_array_equal(tables[name], held[name][:60])
    np.testing.assert_array_equal(tables["label"], labels[:60])
    x = examples[:60].reshape(60, -1) / 255
    z = x / np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(tables["embedding"], z, atol=1e-6)


def test_what_has_changed_is_told_and_what_is_missing_refused(
    finished, exported, rows, tmp_path, capsys
):
    (x, y), path, out = rows, tmp_path / "rows.npz", tmp_path / "out"
    shutil.copytree(finished, out)
    config = json.loads((out / "config.json").read_text()) | {"dataset": str(path)}
    (out / "config.json").write_text(json.dumps(config))
    np.savez(path, x=x[::-1], y=y[::-1])
    tools.Export(out, where=("seed=0",))()
    assert "have another cluster than at the end of training" in capsys.readouterr().out
    np.savez(path, x=x[:70], y=y[:70])
    with pytest.raises(ValueError, match="is of 80 examples, but the data set has 70"):
        tools.Export(out, where=("seed=0",))()
    # Clients on their own have no model.
    np.savez(path, x=x, y=y)
    shutil.rmtree(out / "models")
    with pytest.raises(ValueError, match="no model that all its clients"):
        tools.Export(out, ("seed=0",), out=tmp_path / "new")()
    assert not (tmp_path / "new").exists()


def test_a_failure_leaves_the_export_of_before(
    finished, exported, tmp_path, monkeypatch
):
    def contents():
        return {file.name: file.read_bytes() for file in folder.iterdir()}

    def full(*args, **arrays):
        raise OSError(28, "No space left on device")

    folder = shutil.copytree(exported, tmp_path / "export")
    before = contents()
    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(ValueError, match=r"out .* cannot be written .*No space left"):
        tools.Export(finished, ("seed=0",), out=folder)()
    assert contents() == before
