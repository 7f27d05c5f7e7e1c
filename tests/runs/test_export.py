"""What an export holds, read without fcjax."""

import json
import shutil
import subprocess
import sys
from unittest.mock import Mock

import ccfc
import numpy as np
import pytest
import tyro
from safetensors import safe_open
from safetensors.numpy import load_file
from sklearn.datasets import load_digits

from fcjax import session
from fcjax.grid import experiment
from fcjax.runs import export, frozen
from tests.data.test_sources import png, prepare

TINY = [
    "--clients=3",
    "--clusters=4",
    "--p=0",
    "--pretrain-rounds=2",
    "--cluster-rounds=1",
    "--local-epochs=1",
    "--batch-size=20",
    "--latent-size=8",
    "--no-plot",
]
FILES = {"network.safetensors", "config.json", "embeddings.npz", "assignments.csv"}


def run(out, *flags):
    """Runs the script in this process."""
    args = tyro.cli(ccfc.Args, args=[f"--out={out}", *TINY, *flags])
    session.execute(experiment.prepare(args, ccfc.describe))
    return out


@pytest.fixture(scope="module")
def vectors():
    """Rows as a user has them, and their classes."""
    values, labels = load_digits(n_class=4, return_X_y=True)
    return values[:80, 10:22] * 3.7 - 40, labels[:80]


@pytest.fixture(scope="module")
def grid(vectors, tmp_path_factory):
    """A run of two seeds on vectors, and how often it exported a program."""
    folder = tmp_path_factory.mktemp("grid")
    np.savez(folder / "rows.npz", x=vectors[0], y=vectors[1])
    with pytest.MonkeyPatch.context() as patch:
        freeze = Mock(wraps=frozen.freeze)
        patch.setattr(frozen, "freeze", freeze)
        run(folder / "out", f"--dataset={folder / 'rows.npz'}", "--seed", "0", "1")
    return folder / "out", freeze.call_count


@pytest.fixture(scope="module")
def exported(grid, tmp_path_factory):
    """The second seed of that run."""
    folder = tmp_path_factory.mktemp("exported") / "of" / "seed1"
    export.main(export.Args(grid[0], where=("seed=1",), out=folder))
    return folder


def batch_norm(x, weights, name):
    mean, var = (weights[f"variables/batch_stats/{name}/{s}"] for s in ("mean", "var"))
    x = (x - mean) / np.sqrt(var + 1e-5)
    scale = weights.get(f"variables/params/{name}/scale", 1)
    return x * scale + weights.get(f"variables/params/{name}/bias", 0)


def dense(x, weights, name):
    layer = f"variables/params/{name}/Dense_0"
    return x @ weights[f"{layer}/kernel"] + weights[f"{layer}/bias"]


def projection(x, weights, *, norm):
    """SimSiam's projector and the norm, on what the encoder gives.

    `norm` numbers its first batch norm: those of a convolutional encoder come before.
    """
    x = batch_norm(dense(x, weights, "Dense_0"), weights, f"BatchNorm_{norm}")
    x = dense(np.maximum(x, 0), weights, "Dense_1")
    z = batch_norm(x, weights, f"BatchNorm_{norm + 1}")
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def test_the_network_is_computed_in_numpy_alone(exported, vectors):
    weights = load_file(exported / "network.safetensors")
    config = json.loads((exported / "config.json").read_text())
    before = config["preprocessing"]
    x = (vectors[0] - np.array(before["low"])) / np.array(before["span"])
    for i in range(2):
        x = dense(x, weights, f"encoder/Dense_{i}")
        x = batch_norm(x, weights, f"encoder/BatchNorm_{i}")
        x = np.where(x > 0, x, 0.2 * x)
    z = projection(x, weights, norm=0)
    tables = np.load(exported / "embeddings.npz")
    np.testing.assert_allclose(z, tables["embedding"], atol=1e-5)
    directions = weights["centroids"].T / np.linalg.norm(weights["centroids"], axis=1)
    np.testing.assert_array_equal(np.argmax(z @ directions, 1), tables["cluster"])


def test_the_tables_are_those_of_the_run(grid, exported, vectors):
    tables = np.load(exported / "embeddings.npz")
    with np.load(grid[0] / "assignments.npz") as file:
        place = int(np.flatnonzero(file["seed"] == 1)[0])
        for name in ("cluster", "client"):
            np.testing.assert_array_equal(tables[name], file[name][place])
    np.testing.assert_array_equal(tables["label"], vectors[1])
    for k, center in enumerate(tables["centers"]):
        # Of the examples that a client holds: rounding leaves some without one.
        members = (tables["cluster"] == k) & (tables["client"] >= 0)
        if members.any():
            mean = tables["embedding"][members].mean(axis=0)
            np.testing.assert_allclose(center, mean, atol=1e-5)
        else:
            assert np.isnan(center).all()


def test_the_configuration_is_that_of_one_run(exported):
    assert {file.name for file in exported.iterdir()} == FILES
    config = json.loads((exported / "config.json").read_text())
    assert config["seed"] == 1
    assert config["model_weight"] == 0.001
    assert config["backbone"] == "mlp"
    assert config["preprocessing"]["shape"] == [12]
    with safe_open(exported / "network.safetensors", "numpy") as file:
        metadata = file.metadata()
    assert json.loads(metadata["config"]) == config
    assert metadata["fcjax"] == "0.1.0"


def test_only_what_the_embedding_needs_is_exported(exported):
    weights = load_file(exported / "network.safetensors")
    assert {str(value.dtype) for value in weights.values()} == {"float32"}
    assert not any("opt_state" in name for name in weights)
    # Encoder and projector have two layers each, the predictor's two stay away.
    kernels = sorted(name for name in weights if name.endswith("kernel"))
    assert kernels == [
        f"variables/params/{part}Dense_{i}/Dense_0/kernel"
        for part in ("", "encoder/")
        for i in range(2)
    ]


def test_a_grid_exports_one_program_and_the_weights_of_every_run(grid):
    out, count = grid
    assert count == 1
    first, second = (np.load(path) for path in sorted((out / "models").iterdir()))
    np.testing.assert_array_equal(first["program"], second["program"])
    name = "weights/variables/params/encoder/Dense_0/Dense_0/kernel"
    assert np.abs(first[name] - second[name]).max() > 0.01


def test_pytorch_reads_the_same_tensors(exported):
    pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch

    path = exported / "network.safetensors"
    weights = load_file(path)
    tensors = load_torch(path)
    assert tensors.keys() == weights.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor.numpy(), weights[name])


def test_the_files_need_no_fcjax(exported):
    code = f"""
import sys
sys.modules["jax"] = sys.modules["fcjax"] = None
import numpy as np
from safetensors.numpy import load_file
print(len(load_file("{exported}/network.safetensors")))
print(*np.load("{exported}/embeddings.npz", allow_pickle=False)["embedding"].shape)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split()[1:] == ["80", "8"], done.stderr


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A run on images, with an extra split: its folder, data, images and classes."""
    folder = tmp_path_factory.mktemp("images")
    values, labels = load_digits(n_class=4, return_X_y=True)
    examples = (values[:90] * 15).astype(np.uint8).reshape(-1, 8, 8)
    pairs = [(png(x), int(y)) for x, y in zip(examples, labels[:90], strict=True)]
    prepare(folder / "data", {"train": pairs[:60], "unlabelled": pairs[60:]})
    flags = [f"--data-dir={folder / 'data'}", "--extra-split=unlabelled"]
    out = run(folder / "out", "--dataset=tiny", *flags)
    return out, folder / "data", examples[:60], labels[:60]


def test_the_extra_split_has_no_rows(images, capsys):
    out, data_dir, _, labels = images
    export.main(export.Args(out, data_dir=data_dir))
    assert "otherwise" not in capsys.readouterr().out
    assert {file.name for file in (out / "export").iterdir()} == FILES
    tables = np.load(out / "export" / "embeddings.npz")
    with np.load(out / "assignments.npz") as file:
        assert file["cluster"].shape == (1, 90)
        np.testing.assert_array_equal(tables["cluster"], file["cluster"][0, :60])
        np.testing.assert_array_equal(tables["client"], file["client"][0, :60])
    assert tables["embedding"].shape == (60, 8)
    np.testing.assert_array_equal(tables["label"], labels)


def test_convolutions_are_computed_in_pytorch(images, tmp_path):
    torch = pytest.importorskip("torch")
    out, data_dir, examples, _ = images
    export.main(export.Args(out, data_dir=data_dir, out=tmp_path))
    weights = load_file(tmp_path / "network.safetensors")
    x = torch.from_numpy(examples)[:, None] / 255
    for i in range(2):
        layer = f"variables/params/Conv_{i}"
        kernel, bias = (
            torch.from_numpy(weights[f"{layer}/{name}"]) for name in ("kernel", "bias")
        )
        # [height, width, in, out] -> [out, in, height, width]
        x = torch.conv2d(x, kernel.permute(3, 2, 0, 1), bias, stride=2, padding=1)
        x = batch_norm(x.permute(0, 2, 3, 1).numpy(), weights, f"BatchNorm_{i}")
        x = torch.nn.functional.leaky_relu(torch.from_numpy(x), 0.2)
        x = x.permute(0, 3, 1, 2)
    features = x.permute(0, 2, 3, 1).reshape(len(x), -1).numpy()
    z = projection(features, weights, norm=2)
    expected = np.load(tmp_path / "embeddings.npz")["embedding"]
    np.testing.assert_allclose(z, expected, atol=1e-5)


def test_clients_on_their_own_have_nothing_to_export(grid, tmp_path):
    dataset = grid[0].parent / "rows.npz"
    out = run(
        tmp_path / "alone", f"--dataset={dataset}", "--standalone", "--cluster-rounds=0"
    )
    with pytest.raises(ValueError, match="kept no global model to export") as error:
        export.main(export.Args(out))
    assert "\n" not in str(error.value)
    assert not (out / "export").exists()


def test_a_failure_leaves_the_export_of_before(grid, tmp_path, monkeypatch):
    out, folder = grid[0], tmp_path / "export"
    export.main(export.Args(out, out=folder))
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    def full(*args, **arrays):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(ValueError, match=r"--out .* cannot be written .*No space left"):
        export.main(export.Args(out, where=("seed=1",), out=folder))
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_data_that_has_changed_is_told(grid, vectors, tmp_path, capsys):
    (x, y), path = vectors, tmp_path / "rows.npz"
    out = shutil.copytree(grid[0], tmp_path / "out")
    config = json.loads((out / "config.json").read_text()) | {"dataset": str(path)}
    (out / "config.json").write_text(json.dumps(config))
    np.savez(path, x=x[::-1], y=y[::-1])
    export.main(export.Args(out))
    assert "assigned otherwise than in the run" in capsys.readouterr().out
    np.savez(path, x=x[:70], y=y[:70])
    with pytest.raises(ValueError, match="is of 80 examples, but the data set has 70"):
        export.main(export.Args(out))
