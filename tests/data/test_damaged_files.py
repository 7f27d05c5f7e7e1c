"""Files that cannot be read, each with its one line."""

import gzip
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from fcjax.data import load
from fcjax.data.files import read
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
V73 = b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\x02IM" + b"\x89HDF\r\n\x1a\n" + bytes(64)
RAGGED = np.array([[1, "a"], [2, "b"]], object)
NAN = np.array([[1, 2], [np.nan, np.inf], [np.nan, 0]])
GREY, HIGH = png(np.zeros((2, 3), np.uint8)), png(np.zeros((5, 4), np.uint8))
DEEP = png(np.zeros((2, 3), np.uint16))
ROWS = IMAGES.reshape(4, 6)
FOUR, ZEROS = idx(IMAGES), np.zeros(4, np.uint8)
TRAIN, TEST = "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"
PNG = b"\x89PNG\r\n\x1a\n no"


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


# Of each message what follows the name of the file, or its beginning.
WHOLE_FILES = [
    ("x.npz", lambda path: None, "does not exist"),
    ("x.csv", raw(b""), "is empty"),
    ("x.npz", raw(b""), "is empty"),
    ("x.npz", cut(npz(x=NOISE)), "is damaged or no .npz file"),
    ("x.npz", raw(b"\x93NUMPY no zip"), "is damaged or no .npz file"),
    ("x.mat", cut(mat(fea=NOISE)), "is damaged or no .mat file"),
    ("x.mat", raw(V73), "is a MATLAB 7.3 (HDF5) file, which is not read; save it with"),
    (
        "x.gz",
        cut(raw(gzip.compress(idx(NOISE)))),
        "is damaged: x.gz cannot be unpacked",
    ),
    ("x.idx", cut(raw(FOUR)), "is damaged: 20 bytes where its header says 40"),
    ("x-ubyte", raw(b"\x89PNG\r\n"), "is no IDX file, it begins with 89 50 4e 47"),
    ("x.idx", raw(b"\0\0\x08"), "is no IDX file, it begins with 00 00 08"),
    ("x.idx", raw(idx(IMAGES[0, 0])), "has values of shape (3,); accepted are images"),
    ("x.jpeg", raw(b"some"), "is of an unknown kind; accepted are .npz, .mat, .csv"),
    ("x.mat", mat(data=NOISE), "needs an array fea, its arrays: data"),
    ("x.mat", mat(fea=RAGGED), "has values of type object, numbers are needed"),
    ("x.csv", raw(b"1,2,\xff\xfe\n"), "is not UTF-8 text"),
]
ARRAYS = [
    ({"a": IMAGES, "b": IMAGES}, "needs an array x or images, its arrays: a, b"),
    ({"x": IMAGES, "images": IMAGES}, "has both arrays x and images, give one"),
    ({"x": RAGGED}, "has an array x that is damaged or of Python objects"),
    ({"x": IMAGES * 1j}, "has values of type complex128, numbers are needed"),
    ({"x": IMAGES[0, 0]}, "has values of shape (3,); accepted are images [P, H, W] or"),
    ({"x": np.zeros((2, 3, 3, 4))}, "has values of shape (2, 3, 3, 4); accepted"),
    ({"x": np.zeros((2, 0))}, "has values of shape (2, 0); accepted"),
    ({"x": IMAGES[:1]}, "has 1 example, 2 are needed"),
    ({"x": IMAGES[:0]}, "has 0 examples, 2 are needed"),
    ({"x": NAN}, "has 3 NaN or infinite values, the first in example 2 of 3; all must"),
    ({"x": IMAGES.astype(int) - 3}, "has image values from -3 to 252; accepted are 0"),
    ({"x": IMAGES * 2.0}, "has image values from 0 to 510; accepted are 0 to 1 and 0"),
    ({"x": IMAGES, "y": np.arange(3)}, "has 4 examples but labels of shape (3,), one"),
    ({"x": IMAGES, "y": np.eye(4)}, "has labels of shape (4, 4); [P] or [P, 1] is"),
    ({"x": IMAGES, "y": LABELS / 2}, "has the label 1.5; accepted are integers and"),
    ({"x": IMAGES, "y": LABELS * 1j}, "has labels of type complex128; accepted are"),
]
TABLES = [
    ("1,2,0\n3,4,1\n5,1\n", "has 2 columns in row 3, but 3 in the first row"),
    ("a,b,class\n1,2,0\n\n3,4,5,1\n", "has 4 columns in row 4, but 3 in the first row"),
    ("a,class\n1,2,0\n3,4,1\n", "has 3 columns in row 2, but 2 in the first row"),
    ("1,2,0\n3,cat,1\n", "has 'cat' in row 2, column 2, where a number is needed"),
    ("1,2,0\n3,4,1\n?,6,1\n", "has '?' in row 3, column 1, where a number is needed"),
    ("1,2,0\n3,4,\n", "has an empty label, of example 2"),
    ("1,2,0\n3,4,0.25\n", "has the label 0.25; accepted are integers and text, and `l"),
    ("1;2;0\n3;4;1\n", "has 1 column; commas must separate at least one feature and"),
    ("label,1x1,1x2\n5,0,0\n4,1,1\n", "has 'label' as its first column; the classes"),
    ("\n \n", "is empty"),
    ("a,b,class\n", "has 0 examples, 2 are needed"),
    ("1,2,0\n", "has 1 example, 2 are needed"),
    ("1,2,0\nnan,4,1\n", "has 1 NaN or infinite value, the first in example 2 of 2;"),
    ("a" * 200_000, "is no table (field larger than field limit (131072))"),
]
FOLDERS = [
    (
        {},
        "holds no images; accepted are png, jpg, bmp, gif, tif, webp, ppm and pgm, in",
    ),
    ({"notes": b"no image"}, "holds no images; accepted"),
    (
        {"a2.png": GREY, "a10.png": HIGH},
        "has images of mixed sizes, a2.png of 3x2 and a10.png of 4x5 (width x height); "
        "all must have one size, which `resize` gives them",
    ),
    ({"a.png": GREY, "b.png": DEEP}, "has images of mode L beside images of 16 bits"),
    ({"a.png": GREY}, "has 1 example, 2 are needed"),
    ({"a.png": PNG, "b.png": b""}, "has the damaged image a.png"),
    # The head is whole, the pixels are not.
    ({"a.png": png(NOISE), "b.png": png(NOISE)[:2000]}, "has the damaged image b.png"),
    ({TRAIN: FOUR}, f"has no {TEST} (or .gz) beside the others"),
    (
        {TRAIN: FOUR, TEST: FOUR},
        "needs all four IDX files, or `labelled=False` without",
    ),
    (
        {TRAIN: FOUR, TEST: idx(IMAGES[:, 1:])},
        "has training images of (2, 3) and test images of (1, 3); all must have one",
    ),
    (
        {
            **{TRAIN: FOUR, TRAIN.replace("images-idx3", "labels-idx1"): idx(ZEROS)},
            **{TEST: FOUR, TEST.replace("images-idx3", "labels-idx1"): idx(ZEROS[:3])},
        },
        "has 4 images beside 3 labels",
    ),
    ({TRAIN: FOUR, TEST: FOUR[:-1]}, f"has {TEST}, which is damaged: 39 bytes where"),
]


SHAPES = [
    (ROWS, (2, 4), "has 6 values an example, image_shape 2 4 needs 8"),
    (
        ROWS,
        (6,),
        "cannot be read with image_shape 6; accepted are H W, and H W C with",
    ),
    (ROWS, (1, 3, 2), "cannot be read with image_shape 1 3 2; accepted are H W, and"),
    (ROWS, (-2, -3), "cannot be read with image_shape -2 -3; accepted are H W, and"),
    (IMAGES, (3, 2), "has images of 2 3 1, which is not image_shape 3 2"),
]


@pytest.mark.parametrize(
    ("name", "write", "shape", "message"),
    [
        *((name, write, None, message) for name, write, message in WHOLE_FILES),
        *(("x.npz", npz(**arrays), None, message) for arrays, message in ARRAYS),
        *(("x.npz", npz(x=x), shape, message) for x, shape, message in SHAPES),
        *(("x.data", raw(rows.encode()), None, message) for rows, message in TABLES),
        *(("x", folder(files), None, message) for files, message in FOLDERS),
    ],
)
def test_files_that_cannot_be_read(name, write, shape, message, tmp_path):
    path = tmp_path / name
    write(path)
    told = re.escape(f"dataset {path} {message}")
    with pytest.raises(ValueError, match=f"^{told}") as caught:
        load(str(path), image_shape=shape)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("place", "bit"), [(176, 0), (177, 1)])
def test_a_mat_file_at_which_scipy_ends_its_process(place, bit, tmp_path):
    """By a fault of its memory, at these type numbers: found by turning every bit."""
    scipy.io.savemat(tmp_path / "x.mat", {"fea": np.ones((4, 3))})
    damaged = bytearray((tmp_path / "x.mat").read_bytes())
    damaged[place] ^= 1 << bit
    (tmp_path / "x.mat").write_bytes(bytes(damaged))
    with pytest.raises(ValueError, match=r"x\.mat is damaged or no \.mat file$"):
        read(tmp_path / "x.mat")


# Not .mat: each takes a process.
@pytest.mark.parametrize("write", [write_npz, write_csv, write_gz])
@pytest.mark.filterwarnings("ignore")
def test_bytes_that_change_on_the_way_never_raise_anything_else(write, tmp_path):
    path = write(tmp_path)
    content, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(40):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(bytes(damaged))
        try:
            read(path)
        except ValueError as error:
            assert str(error).startswith(f"dataset {path} ")  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.parametrize("write", [write_npz, write_mat, write_gz])
def test_a_refusal_of_the_system(write, tmp_path, monkeypatch):
    # What a reader other than root meets; root is refused nothing.
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    path = write(tmp_path)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    told = f"dataset {path} cannot be read ([Errno 13] Permission denied: '{path}')"
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        read(path)


def test_a_link_that_leads_nowhere_is_no_damaged_image(tmp_path):
    (tmp_path / "a.png").symlink_to("gone")
    with pytest.raises(ValueError, match=r"dataset .* cannot be read \(.*No such"):
        read(tmp_path)
