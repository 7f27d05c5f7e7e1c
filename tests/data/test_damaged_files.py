"""Files that cannot be read end in one line that names the file and the fault."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from fcjax.data import load
from tests.data.test_arrays import h5, h5ad, leaf, npy, safetensors
from tests.data.test_files import (
    IMAGES,
    LABELS,
    idx,
    write_csv,
    write_gz,
    write_mat,
    write_npz,
)
from tests.data.test_sources import png

NOISE = np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)
OBJECTS = np.array([[1, "a"], [2, "b"]], object)
NAN = np.array([[1, 2], [np.nan, np.inf], [np.nan, 0]])
GREY, HIGH = png(np.zeros((2, 3), np.uint8)), png(np.zeros((5, 4), np.uint8))
ROWS = IMAGES.reshape(4, 6)
FOUR, ZEROS = idx(IMAGES), idx(np.zeros(4, np.uint8))
TRAIN, TEST = "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"
TRAIN_LABELS, TEST_LABELS = "train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"
HALF_PNG = png(NOISE)[:2000]  # the head is whole, the pixels are not


def npz(**arrays):
    return lambda path: np.savez(path, **arrays)


def mat(**arrays):
    return lambda path: scipy.io.savemat(path, arrays)


def raw(content):
    return lambda path: path.write_bytes(content)


def cut(write):
    def write_less(path):
        write(path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return write_less


def folder(files):
    def write(path):
        path.mkdir()
        for name, content in files.items():
            (path / name).write_bytes(content)

    return write


# Of each message a piece that only this fault has.
WHOLE_FILES = [
    ("x.npz", lambda path: None, "does not exist"),
    ("x.npz", cut(npz(x=NOISE)), "is damaged or not an .npz file"),
    ("x.npz", raw(b"\x93NUMPY no zip"), "is damaged or not an .npz file"),
    ("x.mat", cut(mat(fea=NOISE)), "is damaged or not a .mat file"),
    ("x.gz", cut(raw(gzip.compress(idx(NOISE)))), "x.gz cannot be decompressed"),
    ("x-ubyte", raw(b"\x89PNG\r\n"), "starts with the bytes 89 50 4e 47"),
    ("x.idx", raw(b"\0\0\x08"), "starts with the bytes 00 00 08"),
    ("x.idx", raw(idx(IMAGES[0, 0])), "shape (3,)"),
    ("x.mat", mat(data=NOISE), "no array fea; its arrays are data"),
    ("x.mat", mat(fea=OBJECTS), "of type object"),
    ("x.parquet", raw(b"PAR1"), "not a .parquet file"),
]
ARRAYS = [
    ({"a": IMAGES, "b": IMAGES}, "its arrays are a (4, 2, 3), b (4, 2, 3); choose"),
    ({"x": IMAGES * 1j}, "complex128"),
    ({"x": np.zeros((2, 3, 3, 4))}, "shape (2, 3, 3, 4)"),
    ({"x": np.zeros((2, 0))}, "shape (2, 0)"),
    ({"x": IMAGES[:1]}, "1 example;"),
    ({"x": NAN}, "3 NaN or infinite values, the first in example 2 of 3"),
    ({"x": IMAGES.astype(int) - 3}, "from -3 to 252"),
    ({"x": IMAGES, "y": np.arange(3)}, "4 examples but labels of shape (3,)"),
    ({"x": IMAGES, "y": np.eye(4)}, "labels of shape (4, 4)"),
    ({"x": IMAGES, "y": LABELS * 1j}, "complex128"),
]
TABLES = [
    ("a,b,class\n1,2,0\n\n3,4,5,1\n", "4 cells in line 4, but 3 in other lines"),
    (
        "a,b,c\n3,4,1\n?,6,1\n",
        "1 missing value in 1 of 2 examples, the first in column a",
    ),
    ("1,2,0\n3,4,0.25\n", "label 0.25"),
    ("\n \n", "not a table"),
    ("a,b,class\n", "0 examples"),
    (
        "1,2,0\nnan,4,1\n",
        "1 missing value in 1 of 2 examples, the first in column 1",
    ),
    ('1,2,"0\n3,4,1\n', "not a table"),
]
FOLDERS = [
    ({"a2.png": GREY, "a10.png": HIGH}, "a2.png of 3x2 and a10.png of 4x5"),
    ({"a.png": png(NOISE), "b.png": HALF_PNG}, "damaged image b.png"),
    ({TRAIN: FOUR, TEST: FOUR}, "give all four IDX files"),
    (
        {TRAIN: FOUR, TEST: FOUR, TRAIN_LABELS: ZEROS, TEST_LABELS: ZEROS[:-4] + b""},
        TEST_LABELS,
    ),
    (
        {TRAIN: FOUR, TRAIN_LABELS: idx(np.zeros(3, np.uint8)), TEST: FOUR},
        "4 images but 3 labels",
    ),
    ({TRAIN: FOUR, TEST: FOUR[:-1]}, f"{TEST} has 39 bytes"),
]
SHAPES = [
    (ROWS, (2, 4), "6 values per example, but `image_shape` 2 4 requires 8"),
    (ROWS, (6,), "`image_shape` 6;"),
    (ROWS, (1, 3, 2), "`image_shape` 1 3 2;"),
    (ROWS, (-2, -3), "`image_shape` -2 -3;"),
    (IMAGES, (3, 2), "images of shape 2 3 1, but `image_shape` is 3 2"),
]


@pytest.mark.parametrize(
    ("name", "write", "shape", "fault"),
    [
        *((name, write, None, fault) for name, write, fault in WHOLE_FILES),
        *(("x.npz", npz(**arrays), None, fault) for arrays, fault in ARRAYS),
        *(("x.npz", npz(x=x), shape, fault) for x, shape, fault in SHAPES),
        *(("x.data", raw(rows.encode()), None, fault) for rows, fault in TABLES),
        *(("x", folder(files), None, fault) for files, fault in FOLDERS),
    ],
)
def test_files_that_cannot_be_read(name, write, shape, fault, tmp_path):
    path = tmp_path / name
    write(path)
    with pytest.raises(ValueError, match=rf"^dataset {path} .*") as caught:
        load(str(path), image_shape=shape)
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "write",
    [
        *(write_npz, write_csv, write_gz, npy(IMAGES), h5(x=IMAGES, y=LABELS)),
        *(h5ad("csr"), safetensors(x=IMAGES, y=LABELS), leaf()),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_bytes_that_change_on_the_way_never_raise_anything_else(write, tmp_path):
    path = write(tmp_path)
    content, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(40):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(bytes(damaged))
        try:
            load(path)
        except ValueError as error:
            assert str(error).startswith(f"dataset {path} ")  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.parametrize("write", [write_npz, write_mat, write_gz])
def test_a_refusal_of_the_system(write, tmp_path, monkeypatch):
    # What a reader other than root meets; root is refused nothing.
    def refuse(path, *args, **options):
        raise PermissionError(13, "Permission denied", str(path))

    path = write(tmp_path)
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ValueError, match=rf"^dataset {path} .*Permission denied"):
        load(path)


def test_a_link_that_leads_nowhere_is_no_damaged_image(tmp_path):
    (tmp_path / "a.png").symlink_to("gone")
    with pytest.raises(ValueError, match=r"dataset .* cannot be read \(.*No such"):
        load(tmp_path)
