"""Files of arrays: values, classes and clients against a truth written by hand."""

import json
import os

import h5py
import numpy as np
import pytest
import scipy.sparse
from PIL import Image
from safetensors.numpy import save_file

from fcjax.data import load
from fcjax.data.sources import is_file_name

VALUES = np.array([[0, 255], [10, 20], [30, 40], [50, 60], [70, 80], [90, 100]])
IMAGES = VALUES.astype(np.uint8).reshape(6, 1, 2)
"""Six images of 1x2."""
VECTORS = ((VALUES - VALUES.min(0)) / np.ptp(VALUES, axis=0)).astype(np.float32)
"""The same numbers as vectors: each column scaled to [0, 1]."""
LABELS = np.array([4, 4, 7, 7, 9, 9])
SITES = np.array(["rome", "bern", "rome", "bern", "bern", "bern"])
CLIENTS = [1, 0, 1, 0, 0, 0]
WHOLE = {"x": IMAGES, "y": LABELS, "site": SITES}
NUMBERS = {**WHOLE, "site": np.array([8, 2, 8, 2, 2, 2])}
MEDMNIST = {
    # In this order in the file, so the order of the examples is not that of the file.
    **{"test_images": IMAGES[5:], "test_labels": LABELS[5:, None]},
    **{"train_images": IMAGES[:3], "train_labels": LABELS[:3, None]},
    **{"val_images": IMAGES[3:5], "val_labels": LABELS[3:5, None]},
}
JOINED = "arrays train_images, val_images, test_images joined in this order"


def npz(**arrays):
    def write(folder):
        np.savez(folder / "a.npz", **arrays)
        return folder / "a.npz"

    return write


def npy(values):
    def write(folder):
        np.save(folder / "a.npy", values)
        return folder / "a.npy"

    return write


def safetensors(**arrays):
    def write(folder):
        save_file(arrays, folder / "a.safetensors")
        return folder / "a.safetensors"

    return write


def h5(name="a.h5", **arrays):
    def write(folder):
        with h5py.File(folder / name, "w") as file:
            for key, values in arrays.items():
                is_text = values.dtype.kind == "U"
                file[key.replace("__", "/")] = values.tolist() if is_text else values
        return folder / name

    return write


def sparse(file, place, matrix, kind):
    group = file.create_group(place)
    group.attrs.update({"encoding-type": f"{kind}_matrix", "shape": matrix.shape})
    for part in ("data", "indices", "indptr"):
        group[part] = getattr(matrix, part)


def h5ad(kind="dense", wrong=()):
    """AnnData by hand: six cells, a matrix of counts and a column of each kind."""

    def write(folder):
        with h5py.File(folder / "a.h5ad", "w") as file:
            if kind == "dense":
                file["X"] = VALUES.astype(np.float32)
            else:
                made = {"csr": scipy.sparse.csr_matrix, "csc": scipy.sparse.csc_matrix}
                matrix = made[kind](VALUES)
                matrix.indices[list(wrong)] = 10**6
                sparse(file, "X", matrix, kind)
            file["obsm/X_pca"] = np.arange(12.0).reshape(6, 2)
            obs = file.create_group("obs")
            obs.attrs["_index"] = "cell"
            obs["cell"] = [f"cell{i}" for i in range(6)]
            obs["cluster"] = LABELS
            obs["x"] = np.arange(6)  # a position, which must not be taken for X
            site = obs.create_group("site")
            site.attrs["encoding-type"] = "categorical"
            site["categories"], site["codes"] = ["bern", "rome"], [1, 0, 1, 0, 0, -1]
            batch = obs.create_group("batch")
            batch.attrs["encoding-type"] = "nullable-integer"
            batch["values"], batch["mask"] = [1, 0, 1, 0, 0, 5], [False] * 5 + [True]
        return folder / "a.h5ad"

    return write


USERS = {
    "b": {"x": VALUES[:2].tolist(), "y": [4, 4]},
    "a": {"x": VALUES[2:].tolist(), "y": [7, 7, 9, 9]},
}


def leaf(users=USERS, **changes):
    def write(folder):
        content = {"users": list(users), "num_samples": [2, 4], "user_data": users}
        (folder / "a.json").write_text(json.dumps(content | changes))
        return folder / "a.json"

    return write


def raw(name, content):
    def write(folder):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
        return folder / name.partition("/")[0]

    return write


AS = {"array": "h", "label_array": "k", "client_array": "place"}
OTHER = {"h": IMAGES, "k": LABELS, "place": SITES}
CELLS = {"label_array": "cluster", "client_array": "site"}
MASKED = [1, 0, 1, 0, 0, -1]
TALL = {"image_shape": (2, 1)}
FOUND = [
    ("npz numbers", npz(**NUMBERS), {}, IMAGES, CLIENTS),
    ("npz names", npz(**OTHER), AS, IMAGES, CLIENTS),
    ("npz float16", npz(X=IMAGES.astype(np.float16), y=LABELS), {}, IMAGES, None),
    ("npz float64", npz(data=VALUES / 1.0, labels=LABELS), {}, VECTORS, None),
    ("npz int16", npz(features=VALUES.astype(">i2"), y=LABELS), {}, VECTORS, None),
    ("npy float16", npy(VALUES.astype(np.float16)), {}, VECTORS, None),
    ("npy colour", npy(np.repeat(IMAGES[..., None], 3, 3)), {},
     np.repeat(IMAGES[..., None], 3, 3), None),
    ("npy image_shape", npy(VALUES.astype("u1")), TALL, IMAGES.reshape(6, 2, 1), None),
    ("safetensors", safetensors(**NUMBERS), {}, IMAGES, CLIENTS),
    ("h5 paths", h5(a__h=IMAGES, a__k=LABELS, place=SITES),
     {**AS, "array": "a/h", "label_array": "a/k"}, IMAGES, CLIENTS),
    ("hdf5 splits", h5("a.hdf5", **MEDMNIST), {}, IMAGES, None),
    ("h5ad", h5ad(), CELLS, VECTORS, MASKED),
    ("h5ad csc", h5ad("csc"), {**CELLS, "array": "X"}, VECTORS, MASKED),
    ("h5ad obsm", h5ad(), {**CELLS, "array": "obsm/X_pca", "client_array": "batch"},
     np.repeat(np.arange(6, dtype=np.float32)[:, None] / 5, 2, 1), MASKED),
    ("leaf images", leaf(), TALL, IMAGES.reshape(6, 2, 1), [1, 1, 0, 0, 0, 0]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("write", "options", "examples", "clients"),
    [case[1:] for case in FOUND],
    ids=[case[0] for case in FOUND],
)
def test_arrays_in_every_format(write, options, examples, clients, tmp_path):
    path = write(tmp_path)
    got = load(path, **options)
    examples = examples[..., None] if examples.ndim == 3 else examples
    assert got.examples.dtype == examples.dtype
    np.testing.assert_allclose(got.examples, examples, rtol=1e-6)
    if path.suffix == ".npy":
        assert got.labels is None
        assert "no labels, because an .npy file has one array" in got.notes
    else:
        np.testing.assert_array_equal(got.labels, LABELS)
    assert (got.clients is None) == (clients is None)
    assert clients is None or got.clients.tolist() == clients
    assert load(path, **options, labels=False).labels is None


PICKLED = "may hold a pickle"
CIFAR = b"\x80\x02}q\x01(U\x0bbatch_label"
MULTI = {"train_images": IMAGES, "train_labels": np.eye(6, 14, dtype=int)}
REFUSED = [
    ("two labels", npz(x=IMAGES, y=LABELS, targets=LABELS), {}, "arrays y and targets; "
     "choose one with `label_array`"),
    ("no name", npz(x=IMAGES, k=LABELS), {"label_array": "l"}, "has no array l "
     "(`label_array`); its arrays are x (6, 1, 2), k (6,)"),
    ("no usual name", h5(a__h=IMAGES), {}, "its arrays are a/h (6, 1, 2); choose one"),
    ("labels of one split", npz(train_x=IMAGES, val_x=IMAGES, train_y=LABELS), {},
     "has the arrays train_x, val_x, which do not match train_y"),
    ("shapes", npz(train_x=IMAGES, val_x=VALUES), {}, "of different shapes"),
    ("no split", npz(**WHOLE), {"split": "test"}, "splits are none, so `split`"),
    ("no test", npz(**MULTI), {"split": "test"}, "no split test; its splits are train"),
    ("npy objects", npy(np.array([[1, "a"]], object)), {}, PICKLED),
    ("npy damaged", raw("a.npy", b"\x93NUMPY"), {}, "is damaged or not an .npy file"),
    ("npy array", npy(IMAGES), {"array": "x"}, "`array` is only for .npz, .h5ad, .h5"),
    ("csv array", raw("a.csv", b"1,2\n3,4\n"), {"client_array": "c"}, "`client_array`"),
    ("safetensors", raw("a.safetensors", b"no"), {}, "damaged or not a .safetensors"),
    ("not AnnData", h5("a.h5ad", X=VALUES), {}, "has no group obs with an index"),
    ("h5ad column", h5ad(), {"label_array": "type"}, "has no array obs/type"),
    ("h5ad empty", h5ad(), {"label_array": "site"}, "has an empty label in example 6"),
    ("h5ad indices", h5ad("csr", wrong=[3]), {}, "X that cannot be read"),
    ("leaf counts", leaf({"b": {"x": [[1]], "y": []}}), {}, "x and y for the user b"),
    ("leaf users", leaf(users={}), {}, "is not a file of LEAF"),
    ("leaf missing", leaf(user_data={}), {}, "each user needs user_data with x and y"),
    ("leaf ragged", leaf({"b": {"x": [[1], [2, 3]], "y": [1, 2]}}), {}, "is damaged"),
    ("not json", raw("a.json", b"{"), {}, "is damaged or not a .json file"),
    *((end, raw(f"a{end}", CIFAR), {}, PICKLED)
      for end in (".pkl", ".pickle", ".pt", ".pth", ".joblib", ".pkl.gz")),
    ("cifar", raw("data_batch_1", CIFAR), {}, PICKLED),
    ("cifar100 folder", raw("cifar-100-python/train", CIFAR), {}, PICKLED),
]  # fmt: skip


@pytest.mark.parametrize(
    ("write", "options", "message"),
    [case[1:] for case in REFUSED],
    ids=[case[0] for case in REFUSED],
)
def test_files_of_arrays_that_are_refused(write, options, message, tmp_path):
    path = write(tmp_path)
    with pytest.raises(ValueError, match=rf"^dataset {path} ") as caught:
        load(path, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_split_of_arrays(tmp_path):
    path = npz(**MEDMNIST)(tmp_path)
    assert JOINED in load(path).notes
    with pytest.raises(ValueError, match="1 example; at least 2"):
        load(path, split="test")
    train = load(path, split="train")
    np.testing.assert_array_equal(train.examples[..., 0], IMAGES[:3])
    assert train.labels.tolist() == [4, 4, 7]


def test_notes_on_labels_clients_and_cells(tmp_path):
    named = load(npz(x=IMAGES, kind=LABELS, users=LABELS)(tmp_path))
    assert "clients read from users" in named.notes
    assert any("`label_array` can name one of kind" in note for note in named.notes)
    cells = load(h5ad()(tmp_path))
    assert cells.clients is None
    assert any("obs/batch, obs/cluster, obs/site" in note for note in cells.notes)
    assert cells.names.tolist() == [f"cell{i}" for i in range(6)]


def test_images_of_an_npy_stay_in_the_file(tmp_path):
    examples = load(npy(IMAGES)(tmp_path)).examples
    arrays = [examples]
    while isinstance(arrays[-1].base, np.ndarray):
        arrays.append(arrays[-1].base)
    assert any(isinstance(array, np.memmap) for array in arrays)


@pytest.mark.parametrize(
    "end", ["npy", "h5", "hdf5", "h5ad", "safetensors", "json", "pt"]
)
def test_a_misspelled_path_is_no_unknown_name(end):
    assert is_file_name(f"some.{end}")
    with pytest.raises(ValueError, match="does not exist; check the path"):
        load(f"some.{end}")


# --- Images


def folder_of(tmp_path, **images):
    for name, (values, end) in images.items():
        path = tmp_path / f"{name.replace('__', os.sep)}.{end}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(values).save(path)
    return tmp_path


GREY, COLOUR = np.full((4, 4), 90, np.uint8), np.full((4, 4, 3), [90, 90, 90], np.uint8)


def test_mixed_images_become_the_kind_of_most_images(tmp_path):
    files = {"a": (GREY, "png"), "b": (COLOUR, "png"), "c": (GREY + 1, "png")}
    found = load(folder_of(tmp_path, **files))
    assert found.examples.shape == (3, 4, 4, 1)
    assert found.examples[:, 0, 0, 0].tolist() == [90, 90, 91]
    reason = "because 2 of 3 images are grey"
    assert f"1 image of mode RGB converted to L, {reason}" in found.notes
    tied = load(folder_of(tmp_path, d=(COLOUR + 1, "png")))
    assert tied.examples.shape == (4, 4, 4, 3)
    assert any("because 2 of 4 images are grey" in note for note in tied.notes)


@pytest.mark.parametrize("dtype", [np.uint16, np.float32, np.int32])
def test_tiff_of_16_bits_and_floats(dtype, tmp_path):
    values = (np.arange(16).reshape(4, 4) * 1000).astype(dtype)
    found = load(folder_of(tmp_path, a=(values, "tif"), b=(values[::-1], "tiff")))
    assert found.examples.dtype == np.float32
    np.testing.assert_allclose(found.examples[0, ..., 0], values / 15000, rtol=1e-6)
    assert "image values 0 to 15000 scaled to [0, 1]" in found.notes


def test_a_tiff_with_nan_is_named_as_such(tmp_path):
    values = np.array([[0, np.nan], [1, 2]], np.float32)
    with pytest.raises(ValueError, match="has 1 NaN or infinite value, the first in"):
        load(folder_of(tmp_path, a=(values, "tif"), b=(np.ones_like(values), "tif")))


def test_sites_with_images_of_different_sizes(tmp_path):
    files = {
        "rome__cat__1": (GREY, "png"),
        "bern__cat__1": (np.full((6, 8), 7, np.uint8), "png"),
        "bern__dog__1": (np.full((2, 2), 5, np.uint8), "png"),
    }
    folder = folder_of(tmp_path, **files)
    with pytest.raises(ValueError, match=r"mixed sizes, .*use `resize`"):
        load(folder)
    found = load(folder, resize=4)
    assert found.examples[:, 0, 0, 0].tolist() == [7, 5, 90]
    assert found.clients.tolist() == [0, 0, 1]
    assert found.labels.tolist() == [0, 1, 0]
    told = "images of 3 sizes, 2x2 to 8x6 pixels (width x height), become squares"
    assert any(note.startswith(told) for note in found.notes)
