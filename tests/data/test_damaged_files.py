"""Files that cannot be read, each with its one line."""

import gzip
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

from fcjax.data import load
from fcjax.data.files import read
from tests.data.test_files import (
    IMAGES,
    LABELS,
    idx,
    save,
    write_csv,
    write_gz,
    write_idx,
    write_mat,
    write_npz,
    write_pngs,
)


def npz(**arrays):
    return lambda path: np.savez(path, **arrays)


def text(content):
    return lambda path: path.write_text(content)


def raw(content):
    return lambda path: path.write_bytes(content)


def cut(write, left=0.5):
    def write_less(path):
        write(path)
        path.write_bytes(path.read_bytes()[: int(left * path.stat().st_size)])

    return write_less


def mat(**arrays):
    return lambda path: scipy.io.savemat(path, arrays)


def folder(**images):
    """Writes {name: (mode, size)} as PNG files of a folder."""

    def write(path):
        path.mkdir()
        for name, (mode, size) in images.items():
            save(path, f"{name}.png", mode, size)

    return write


def beside(**files):
    """Writes {name: bytes} into a folder, _ in a name for -."""

    def write(path):
        path.mkdir()
        for name, content in files.items():
            (path / name.replace("_", "-")).write_bytes(content)

    return write


BYTES = IMAGES.astype(np.uint8)
NOISE = np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)
V73 = b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\x02IM" + b"\x89HDF\r\n\x1a\n" + bytes(64)
SHAPES = (
    "accepted are images [P, H, W] or [P, H, W, C] with C = 1 or 3, and feature "
    "vectors [P, F]"
)
NO_IMAGES = (
    "holds no images; accepted are png, jpg, bmp, gif, tif, webp, ppm and pgm, in it "
    "or in one folder a class, and the four IDX files"
)
RANGES = "accepted are 0 to 1 and 0 to 255"
OBJECTS = np.array([[1, "a"], [2, "b"]], object)
FULL = {"x": BYTES}


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        # Whole files.
        ("x.npz", lambda path: None, "does not exist"),
        ("x.csv", raw(b""), "is empty"),
        ("x.npz", raw(b""), "is empty"),
        ("x.npz", cut(npz(x=NOISE)), "is damaged or no .npz file"),
        ("x.npz", raw(b"\x93NUMPY no zip"), "is damaged or no .npz file"),
        ("x.mat", cut(mat(fea=NOISE)), "is damaged or no .mat file"),
        ("x.mat", raw(b"no mat"), "is damaged or no .mat file"),
        (
            "x.mat",
            raw(V73),
            "is a MATLAB 7.3 (HDF5) file, which is not read; save it with -v7",
        ),
        (
            "x-idx3-ubyte.gz",
            cut(raw(gzip.compress(idx(NOISE)))),
            "is damaged: x-idx3-ubyte.gz cannot be unpacked",
        ),
        (
            "x-idx3-ubyte",
            cut(raw(idx(BYTES))),
            "is damaged: 20 bytes where its header says 40",
        ),
        (
            "x-idx3-ubyte",
            raw(b"\x89PNG\r\n"),
            "is no IDX file, it begins with 89 50 4e 47",
        ),
        ("x.idx", raw(b"\0\0\x08"), "is no IDX file, it begins with 00 00 08"),
        (
            "x.idx",
            raw(idx(np.arange(3, dtype=np.uint8))),
            f"has values of shape (3,); {SHAPES}",
        ),
        (
            "x.jpeg",
            raw(b"some"),
            "is of an unknown kind; accepted are .npz, .mat, .csv (also .tra, .tes, "
            ".data, .txt), IDX (.gz or not), and a folder of images or of the four "
            "IDX files",
        ),
        # Arrays.
        (
            "x.npz",
            npz(a=BYTES, b=BYTES),
            "needs an array x or images, its arrays: a, b",
        ),
        ("x.npz", npz(x=BYTES, images=BYTES), "has both arrays x and images, give one"),
        (
            "x.npz",
            npz(x=OBJECTS),
            "has an array x that is damaged or of Python objects",
        ),
        ("x.mat", mat(data=NOISE), "needs an array fea, its arrays: data"),
        ("x.mat", mat(fea=OBJECTS), "has values of type object, numbers are needed"),
        (
            "x.npz",
            npz(x=BYTES * 1j),
            "has values of type complex128, numbers are needed",
        ),
        ("x.npz", npz(x=BYTES[0, 0]), f"has values of shape (3,); {SHAPES}"),
        (
            "x.npz",
            npz(x=np.zeros((2, 3, 3, 4))),
            f"has values of shape (2, 3, 3, 4); {SHAPES}",
        ),
        ("x.npz", npz(x=np.zeros((2, 0))), f"has values of shape (2, 0); {SHAPES}"),
        ("x.npz", npz(x=BYTES[:1]), "has 1 example, 2 are needed"),
        ("x.npz", npz(x=BYTES[:0]), "has 0 examples, 2 are needed"),
        (
            "x.npz",
            npz(x=np.array([[1, 2], [np.nan, np.inf], [np.nan, 0]])),
            "has 3 NaN or infinite values, the first in example 2 of 3; all must be "
            "finite",
        ),
        (
            "x.npz",
            npz(x=BYTES.astype(int) - 3),
            f"has image values from -3 to 252; {RANGES}",
        ),
        ("x.npz", npz(x=BYTES * 2.0), f"has image values from 0 to 510; {RANGES}"),
        # Labels.
        (
            "x.npz",
            npz(**FULL, y=np.arange(3)),
            "has 4 examples but labels of shape (3,), one label an example is needed",
        ),
        (
            "x.npz",
            npz(**FULL, y=np.eye(4)),
            "has labels of shape (4, 4); [P] or [P, 1] is needed",
        ),
        (
            "x.npz",
            npz(**FULL, y=np.array([0, 1, 0.5, 1])),
            "has the label 0.5; accepted are integers and text, and --no-labels where "
            "there are none",
        ),
        (
            "x.npz",
            npz(**FULL, y=LABELS * 1j),
            "has labels of type complex128; accepted are integers and text",
        ),
        # Tables.
        (
            "x.csv",
            text("1,2,0\n3,4,1\n5,1\n"),
            "has 2 columns in row 3, but 3 in the first row",
        ),
        (
            "x.csv",
            text("a,b,class\n1,2,0\n\n3,4,5,1\n"),
            "has 4 columns in row 4, but 3 in the first row",
        ),
        (
            "x.csv",
            text("a,class\n1,2,0\n3,4,1\n"),
            "has 3 columns in row 2, but 2 in the first row",
        ),
        (
            "x.csv",
            text("1,2,0\n3,cat,1\n"),
            "has 'cat' in row 2, column 2, where a number is needed",
        ),
        (
            "x.data",
            text("1,2,0\n3,4,1\n?,6,1\n"),
            "has '?' in row 3, column 1, where a number is needed",
        ),
        ("x.csv", text("1,2,0\n3,4,\n"), "has an empty label, of example 2"),
        (
            "x.csv",
            text("1,2,0\n3,4,0.25\n"),
            "has the label 0.25; accepted are integers and text, and --no-labels where "
            "there are none",
        ),
        (
            "x.csv",
            text("1;2;0\n3;4;1\n"),
            "has 1 column; commas must separate at least one feature and the class",
        ),
        (
            "x.csv",
            text("label,1x1,1x2\n5,0,0\n4,1,1\n"),
            "has 'label' as its first column; the classes must be the last one",
        ),
        ("x.csv", text("\n \n"), "is empty"),
        ("x.csv", text("a,b,class\n"), "has 0 examples, 2 are needed"),
        ("x.csv", text("1,2,0\n"), "has 1 example, 2 are needed"),
        ("x.csv", raw(b"1,2,\xff\xfe\n"), "is not UTF-8 text"),
        (
            "x.csv",
            text("1,2,0\nnan,4,1\n"),
            "has 1 NaN or infinite value, the first in example 2 of 2; all must be "
            "finite",
        ),
        (
            "x.txt",
            text("a" * 200_000),
            "is no table (field larger than field limit (131072))",
        ),
        # Folders.
        ("x", lambda path: path.mkdir(), NO_IMAGES),
        ("x", beside(notes=b"no image"), NO_IMAGES),
        (
            "x",
            folder(a2=("L", (3, 2)), a10=("L", (4, 5))),
            "has images of mixed sizes, a2.png of 3x2 and a10.png of 4x5 (width x "
            "height); all must have one size, which --resize gives them",
        ),
        (
            "x",
            folder(a=("L", (3, 2)), b=("I;16", (3, 2))),
            "has b.png of mode I;16; accepted are 8 bits a channel",
        ),
        ("x", folder(a=("L", (3, 2))), "has 1 example, 2 are needed"),
        (
            "x",
            beside(**{"a.png": b"\x89PNG\r\n\x1a\n no", "b.png": b""}),
            "has the damaged image a.png",
        ),
        (
            "x",
            beside(train_images_idx3_ubyte=idx(BYTES)),
            "has no t10k-images-idx3-ubyte (or .gz) beside the others",
        ),
        (
            "x",
            beside(
                train_images_idx3_ubyte=idx(BYTES), t10k_images_idx3_ubyte=idx(BYTES)
            ),
            "needs all four IDX files, or --no-labels without labels",
        ),
        (
            "x",
            beside(
                train_images_idx3_ubyte=idx(BYTES),
                t10k_images_idx3_ubyte=idx(BYTES[:, 1:]),
            ),
            "has training images of (2, 3) and test images of (1, 3); all must have "
            "one size",
        ),
        (
            "x",
            beside(
                train_images_idx3_ubyte=idx(BYTES),
                t10k_images_idx3_ubyte=idx(BYTES),
                train_labels_idx1_ubyte=idx(np.arange(4, dtype=np.uint8)),
                t10k_labels_idx1_ubyte=idx(np.arange(3, dtype=np.uint8)),
            ),
            "has 4 images beside 3 labels",
        ),
        (
            "x",
            beside(
                train_images_idx3_ubyte=idx(BYTES),
                t10k_images_idx3_ubyte=idx(BYTES)[:-1],
            ),
            "has t10k-images-idx3-ubyte, which is damaged: 39 bytes where its header "
            "says 40",
        ),
    ],
)
def test_files_that_cannot_be_read(name, write, message, tmp_path):
    write(tmp_path / name)
    with pytest.raises(ValueError, match="--dataset") as caught:
        load(str(tmp_path / name))
    assert str(caught.value) == f"--dataset {tmp_path / name} {message}"


@pytest.mark.parametrize(
    ("image_shape", "message"),
    [
        ((2, 4), "has 6 values an example, --image-shape 2 4 needs 8"),
        (
            (6,),
            "cannot be read with --image-shape 6; accepted are H W, and H W C with "
            "C = 1 or 3",
        ),
        (
            (1, 3, 2),
            "cannot be read with --image-shape 1 3 2; accepted are H W, and H W C with "
            "C = 1 or 3",
        ),
        (
            (-2, -3),
            "cannot be read with --image-shape -2 -3; accepted are H W, and H W C with "
            "C = 1 or 3",
        ),
    ],
)
def test_image_shapes_that_do_not_fit(image_shape, message, tmp_path):
    path = write_csv(tmp_path)
    with pytest.raises(ValueError, match="--image-shape") as caught:
        load(str(path), image_shape=image_shape)
    assert str(caught.value) == f"--dataset {path} {message}"


def test_images_of_another_shape_than_asked(tmp_path):
    path = write_npz(tmp_path)
    with pytest.raises(ValueError, match="--image-shape") as caught:
        read(path, image_shape=(3, 2))
    told = "has images of 2 3 1, which is not --image-shape 3 2"
    assert str(caught.value) == f"--dataset {path} {told}"


@pytest.mark.parametrize("part", ["pixels", "end"])
def test_a_truncated_png(part, tmp_path):
    save(tmp_path, "a.png", size=(64, 64))
    Image.fromarray(NOISE).save(tmp_path / "b.png")
    content = (tmp_path / "b.png").read_bytes()
    left = {"pixels": len(content) // 2, "end": 20}[part]
    (tmp_path / "b.png").write_bytes(content[:left])
    with pytest.raises(ValueError, match="--dataset") as caught:
        read(tmp_path)
    assert str(caught.value) == f"--dataset {tmp_path} has the damaged image b.png"


# Not .mat: the process itself ends in SciPy's reader at some damaged type numbers.
@pytest.mark.parametrize("write", [write_npz, write_csv, write_gz])
def test_bytes_that_change_on_the_way_never_raise_anything_else(write, tmp_path):
    path = write(tmp_path)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(40):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(bytes(damaged))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read(path)
        except ValueError as error:
            assert str(error).startswith(f"--dataset {path} ")  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("write", [write_npz, write_csv, write_idx, write_pngs])
def test_no_permission(write, tmp_path):
    path = write(tmp_path)
    path.chmod(0)
    with pytest.raises(
        ValueError, match=r"cannot be read .*Permission denied"
    ) as caught:
        read(path)
    path.chmod(0o700)
    assert str(caught.value).startswith(f"--dataset {path} ")


@pytest.mark.parametrize("write", [write_npz, write_csv, write_mat, write_gz])
def test_a_refusal_of_the_system(write, tmp_path, monkeypatch):
    # What a reader other than root meets; root is refused nothing.
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    path = write(tmp_path)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ValueError, match="cannot be read") as caught:
        read(path)
    told = f"cannot be read ([Errno 13] Permission denied: '{path}')"
    assert str(caught.value) == f"--dataset {path} {told}"
