"""Files of the user's own: one content in every format, odd files, damaged files."""

import gzip
import os
import struct
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

from fcjax.data import load
from fcjax.data.files import read

# Four images of 2x3 in order of class, with both ends of the range among the pixels.
IMAGES = np.array(
    [
        [[0, 1, 2], [3, 4, 255]],
        [[10, 20, 30], [40, 50, 60]],
        [[7, 7, 7], [7, 7, 8]],
        [[200, 100, 50], [25, 12, 6]],
    ],
    np.uint8,
)
LABELS = np.array([3, 3, 5, 9])


def idx(values, kind=8, shape=None):
    """The bytes of an IDX file, by hand: 0 0 type rank, big-endian sizes, values."""
    shape = values.shape if shape is None else shape
    sizes = b"".join(struct.pack(">I", size) for size in shape)
    big_endian = values.astype(values.dtype.newbyteorder(">"))
    return bytes([0, 0, kind, len(shape)]) + sizes + big_endian.tobytes()


def write_npz(folder):
    np.savez(folder / "some.npz", images=IMAGES, labels=LABELS)
    return folder / "some.npz"


def write_csv(folder):
    rows = [
        ",".join(map(str, [*image.ravel(), label]))
        for image, label in zip(IMAGES, LABELS, strict=True)
    ]
    (folder / "some.csv").write_text("\n".join(rows) + "\n")
    return folder / "some.csv"


def write_idx(folder):
    (folder / "train-images-idx3-ubyte").write_bytes(idx(IMAGES))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(LABELS.astype(np.uint8)))
    return folder / "train-images-idx3-ubyte"


def write_gz(folder):
    images, labels = idx(IMAGES), idx(LABELS.astype(np.int32), kind=12)
    (folder / "x-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
    (folder / "x-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    return folder / "x-images-idx3-ubyte.gz"


def write_four_idx(folder):
    parts = [("train", slice(3), gzip.compress), ("t10k", slice(3, 4), bytes)]
    for split, rows, pack in parts:
        images, labels = idx(IMAGES[rows]), idx(LABELS[rows].astype(np.uint8))
        end = ".gz" if split == "train" else ""
        (folder / f"{split}-images-idx3-ubyte{end}").write_bytes(pack(images))
        (folder / f"{split}-labels-idx1-ubyte{end}").write_bytes(pack(labels))
    return folder


def write_pngs(folder):
    for row, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True), start=8):
        (folder / str(label)).mkdir(exist_ok=True)
        Image.fromarray(image).save(folder / str(label) / f"{row}.png")
    return folder


def write_mat(folder):
    scipy.io.savemat(
        folder / "some.mat",
        {"fea": IMAGES.reshape(4, 6).astype(float), "gnd": LABELS[:, None]},
    )
    return folder / "some.mat"


@pytest.mark.parametrize(
    ("write", "image_shape", "notes"),
    [
        (write_npz, None, ()),
        (write_npz, (2, 3), ()),
        (write_csv, (2, 3), ("float64 values 0 to 255 stored as uint8",)),
        (write_idx, None, ()),
        (write_gz, None, ()),
        (write_four_idx, None, ()),
        (write_pngs, None, ()),
        (write_mat, (2, 3, 1), ("float64 values 0 to 255 stored as uint8",)),
    ],
)
def test_the_same_images_in_every_format(write, image_shape, notes, tmp_path):
    path = write(tmp_path)
    got = read(path, image_shape=image_shape)
    assert got.name == str(path)
    assert got.examples.dtype == np.uint8
    np.testing.assert_array_equal(got.examples, IMAGES[..., None])
    assert got.labels is not None
    assert got.labels.dtype == np.int64
    np.testing.assert_array_equal(got.labels, LABELS)
    assert got.notes == notes
    if write is not write_csv:
        plain = read(path, image_shape=image_shape, labelled=False)
        np.testing.assert_array_equal(plain.examples, got.examples)
        assert plain.labels is None


def test_square_rows_of_a_mat_go_down_the_columns(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8), np.uint8)
    images[0, 0, 1], images[0, 1, 0] = 2, 1
    columns = np.stack([image.ravel(order="F") for image in images])
    assert columns[0, 1] == 1
    scipy.io.savemat(tmp_path / "faces.mat", {"fea": columns, "gnd": np.ones((5, 1))})
    got = read(tmp_path / "faces.mat")
    np.testing.assert_array_equal(got.examples, images[..., None])
    assert got.notes == (
        "rows read as 8x8 images stored column by column",
        "all examples have one class: scores say nothing",
    )
    rows = read(tmp_path / "faces.mat", image_shape=(8, 8))
    np.testing.assert_array_equal(rows.examples[..., 0], images.transpose(0, 2, 1))
    assert rows.notes == ("all examples have one class: scores say nothing",)


def test_small_squares_in_a_mat_are_vectors(tmp_path):
    scipy.io.savemat(tmp_path / "x.mat", {"fea": np.arange(98).reshape(2, 49)})
    assert read(tmp_path / "x.mat").examples.shape == (2, 49)


def test_a_mat_of_doubles_0_and_1_stays_in_0_to_1(tmp_path):
    # MATLAB itself stores such doubles as bytes; loadmat then returns uint8.
    images = np.random.default_rng(0).integers(0, 2, (3, 8, 8)).astype(float)
    scipy.io.savemat(tmp_path / "x.mat", {"fea": images.reshape(3, 64)})
    content = (tmp_path / "x.mat").read_bytes()
    # The data element: type 9 (double), 1536 bytes -> type 2 (uint8), 192 bytes.
    head = struct.pack("<II", 9, 8 * 192)
    start = content.index(head)
    stored = images.reshape(3, 64).ravel(order="F").astype(np.uint8).tobytes()
    packed = bytearray(content[:start] + struct.pack("<II", 2, 192) + stored)
    struct.pack_into("<I", packed, 128 + 4, len(packed) - 128 - 8)
    (tmp_path / "x.mat").write_bytes(bytes(packed))
    got = read(tmp_path / "x.mat").examples
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got[..., 0], images.transpose(0, 2, 1))


def test_columns_are_scaled(tmp_path):
    text = " 0,-4, 5, 8\n 5, 4, 5, 8\n10, 0, 5,11\n"
    (tmp_path / "pendigits.tra").write_text(text)
    got = read(tmp_path / "pendigits.tra")
    assert got.examples.dtype == np.float32
    np.testing.assert_array_equal(got.examples, [[0, 0, 0], [0.5, 1, 0], [1, 0.5, 0]])
    np.testing.assert_array_equal(got.labels, [8, 8, 11])
    assert got.notes == (
        "each column scaled to [0, 1] by its minimum and maximum",
        "1 constant column set to 0",
    )
    features = read(tmp_path / "pendigits.tra", labelled=False)
    assert features.labels is None
    np.testing.assert_array_equal(features.examples[:, 3], [0, 0, 1])


def test_a_header_names_and_quotes_in_a_csv(tmp_path):
    text = '\ufeffwidth,height,kind\r\n1,"2",dogs\r\n\r\n3,6,"cats, wild"\r\n2,4,dogs'
    (tmp_path / "x.csv").write_bytes(text.encode())
    got = read(tmp_path / "x.csv")
    np.testing.assert_array_equal(got.examples, [[0, 0], [1, 1], [0.5, 0.5]])
    np.testing.assert_array_equal(got.labels, [1, 0, 1])
    assert got.notes == (
        "first row taken as a header: width,height,kind",
        "each column scaled to [0, 1] by its minimum and maximum",
        "classes: 0 = cats, wild, 1 = dogs",
    )


VECTORS = "each column scaled to [0, 1] by its minimum and maximum"
PAIR = np.array([[[0, 128]], [[128, 255]]])  # two images of 1x2


@pytest.mark.parametrize(
    ("arrays", "examples", "notes"),
    [
        ({"x": PAIR.astype(np.int64)}, PAIR, ["int64 values 0 to 255 stored as uint8"]),
        (
            {"x": PAIR.astype(">f4")},
            PAIR,
            [">f4 values 0 to 255 stored as uint8"],
        ),
        (
            {"x": PAIR > 128},
            [[[0, 0]], [[0, 255]]],
            ["boolean values became 0 and 255"],
        ),
        ({"x": PAIR / 256}, PAIR / 256, []),
        (
            {"x": PAIR.clip(0, 1)},
            PAIR.clip(0, 1),
            ["int64 values 0 to 1 taken as 0 to 1"],
        ),
        (
            {"x": np.array([[[0.0, 0.5]], [[51.0, 255.0]]])},
            np.array([[[0, 0.5 / 255]], [[0.2, 1]]], np.float32),
            ["float64 values 0 to 255 divided by 255"],
        ),
        (
            {"x": PAIR.astype(np.uint8)[[0, 1, 0, 0]], "y": np.arange(4)},
            PAIR[[0, 1, 0, 0]],
            ["2 duplicate rows kept"],
        ),
        (
            {"x": PAIR.astype(np.uint8), "y": np.array([["dog"], ["cat"]])},
            PAIR,
            ["classes: 0 = cat, 1 = dog"],
        ),
        (
            {
                "x": np.arange(12, dtype=np.uint8).reshape(12, 1, 1),
                "y": np.array(list("lkjihgfedcba")),
            },
            np.arange(12).reshape(12, 1, 1),
            [
                "classes: 0 = a, 1 = b, 2 = c, 3 = d, 4 = e, 5 = f, 6 = g, 7 = h, "
                "8 = i, 9 = j, ... 12 in all"
            ],
        ),
        (
            {"images": PAIR.astype(np.uint8), "labels": np.array([4.0, 4.0])},
            PAIR,
            ["all examples have one class: scores say nothing"],
        ),
    ],
)
def test_conversions_of_values(arrays, examples, notes, tmp_path):
    np.savez(tmp_path / "x.npz", **arrays)
    got = read(tmp_path / "x.npz")
    examples = np.asarray(examples)
    whole = examples.max() > 1
    assert got.examples.dtype == (np.uint8 if whole else np.float32)
    np.testing.assert_array_equal(got.examples[..., 0], examples.astype(np.float32))
    assert got.notes == tuple(notes)


def test_colour_arrays_and_rows(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (3, 2, 4, 3), np.uint8)
    np.savez(tmp_path / "images.npz", x=images)
    np.savez(tmp_path / "rows.npz", x=images.reshape(3, 24))
    np.testing.assert_array_equal(read(tmp_path / "images.npz").examples, images)
    rows = read(tmp_path / "rows.npz", image_shape=(2, 4, 3))
    np.testing.assert_array_equal(rows.examples, images)
    assert read(tmp_path / "rows.npz").notes == (VECTORS,)


@pytest.mark.parametrize(
    ("dtype", "kind"), [("u1", 8), ("i1", 9), ("i2", 11), ("f4", 13), ("f8", 14)]
)
def test_idx_types_and_vectors(dtype, kind, tmp_path):
    vectors = np.array([[0, 100], [100, 50], [25, 60]], dtype)
    (tmp_path / "some.idx2").write_bytes(idx(vectors, kind))
    got = read(tmp_path / "some.idx2")
    expected = np.array([[0, 1], [1, 0], [0.25, 0.2]], np.float32)
    np.testing.assert_array_equal(got.examples, expected)
    assert got.notes == ("no labels: some.idx1 is not beside it", VECTORS)


def save(folder, name, mode="L", size=(3, 2), value=7, **options):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = (value,) * len(mode) if mode.startswith("RGB") else value
    Image.new(mode, size, colour).save(path, **options)


def test_natural_order_and_classes_by_name(tmp_path):
    for name, value in [("10.png", 10), ("9b.bmp", 9), ("9a.PNG", 8), ("2.pgm", 2)]:
        save(tmp_path, f"dogs/{name}", value=value)
    save(tmp_path, "cats/img100.png", value=100)
    save(tmp_path, "cats/img20.webp", value=20, lossless=True)
    save(tmp_path, "cats/img3.tif", value=3)
    (tmp_path / ".cache").mkdir()
    save(tmp_path, ".cache/hidden.png")
    (tmp_path / "dogs" / "Thumbs.db").write_bytes(b"no image")
    (tmp_path / "empty").mkdir()
    save(tmp_path, "loose.png")
    got = read(tmp_path)
    assert got.examples.shape == (7, 2, 3, 3)  # webp knows no grey
    np.testing.assert_array_equal(got.examples[:, 1, 2, 0], [3, 20, 100, 2, 8, 9, 10])
    np.testing.assert_array_equal(got.labels, [0, 0, 0, 1, 1, 1, 1])
    assert got.notes == (
        "1 image beside the folders skipped",
        "entries skipped, hidden or no images: 3",
        "6 images of mode L converted to RGB",
        "classes: 0 = cats, 1 = dogs",
    )


def test_a_flat_folder_has_no_labels(tmp_path):
    for number in (11, 1, 2):
        save(tmp_path, f"{number}.png", value=number)
    got = read(tmp_path)
    np.testing.assert_array_equal(got.examples[:, 0, 0, 0], [1, 2, 11])
    assert (got.examples.shape, got.labels, got.notes) == ((3, 2, 3, 1), None, ())


def test_colours_palettes_and_transparency_become_rgb(tmp_path):
    save(tmp_path, "1.png", "RGB", value=5)
    save(tmp_path, "2.png", "RGBA", value=60)
    palette = Image.new("P", (3, 2), 1)
    palette.putpalette([0, 0, 0, 11, 22, 33])
    palette.save(tmp_path / "3.gif")
    palette.save(tmp_path / "4.png", transparency=b"\0\x80")
    save(tmp_path, "5.png", "1", value=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = read(tmp_path)
    np.testing.assert_array_equal(
        got.examples[:, 1, 1],
        [[5] * 3, [60] * 3, [11, 22, 33], [11, 22, 33], [255] * 3],
    )
    assert got.notes == (
        "4 images of mode 1, P, RGBA converted to RGB",
        "1 duplicate row kept",
    )


def test_bitmaps_become_grey_and_films_their_first_frame(tmp_path):
    save(tmp_path, "1.png", "1", value=1)
    later = [Image.new("L", (3, 2), 99)]
    save(tmp_path, "2.tif", "L", value=40, save_all=True, append_images=later)
    got = read(tmp_path)
    np.testing.assert_array_equal(got.examples[:, 0, 0], [[255], [40]])
    assert got.notes == (
        "1 image of mode 1 converted to L",
        "first frame taken of 1 animated image",
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
            "height); all must have one size",
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


def test_what_load_takes_for_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path)
    got = load("some.csv", image_shape=(2, 3), data_dir="anywhere")
    np.testing.assert_array_equal(got.examples, IMAGES[..., None])
    features = load("some.csv", labelled=False)
    assert features.examples.shape == (4, 7)
    assert features.labels is None


@pytest.mark.parametrize(
    ("name", "given", "is_path"),
    [
        ("photos", "photos", True),
        ("some/photos", "some/photos", True),
        ("mnist", "./mnist", True),
        ("mnist", "mnist/", True),
        ("digits", "./digits", True),
        ("digits", "digits", False),
        ("mnist", "mnist", False),
        ("emnist/digits", "emnist/digits", False),
    ],
)
def test_names_win_over_folders(name, given, is_path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir(parents=True)
    write_pngs(tmp_path / name)
    if is_path:
        got = load(given)
        np.testing.assert_array_equal(got.examples, IMAGES[..., None])
        assert got.name == given
    elif given == "digits":
        assert load(given).examples.shape == (1797, 8, 8, 1)
    else:
        with pytest.raises(ValueError, match=f"{given} is not prepared in"):
            load(given, data_dir=tmp_path / "elsewhere")


@pytest.mark.parametrize(
    "name",
    ["no.npz", "no/such.mat", "x.csv", "a.tes", "no-ubyte", "x.gz", "./no", "/no"],
)
def test_a_path_that_does_not_exist(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="exist") as caught:
        load(name)
    assert str(caught.value) == f"--dataset {name} does not exist"


@pytest.mark.parametrize("split", ["train", "test"])
def test_files_have_no_splits(split, tmp_path):
    path = write_npz(tmp_path)
    with pytest.raises(ValueError, match="--split") as caught:
        load(str(path), split=split)
    assert str(caught.value) == f"--split must be all for files, got '{split}'"


def test_no_labels_of_digits():
    digits = load("digits", labelled=False)
    assert digits.labels is None
    np.testing.assert_array_equal(digits.examples, load("digits").examples)
    with pytest.raises(ValueError, match="--image-shape is for files") as caught:
        load("digits", image_shape=(8, 8))
    assert "\n" not in str(caught.value)


def test_a_large_table_is_read_in_seconds(tmp_path):
    values = np.random.default_rng(0).integers(0, 256, (2000, 785))
    np.savetxt(tmp_path / "x.csv", values, "%d", ",")
    start = time.process_time()
    got = read(tmp_path / "x.csv", image_shape=(28, 28))
    # It takes 0.4 s; a machine of a tenth of that speed still passes.
    assert time.process_time() - start < 4
    np.testing.assert_array_equal(got.examples.reshape(2000, 784), values[:, :-1])
