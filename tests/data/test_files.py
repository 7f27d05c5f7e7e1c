"""Files of the user's own: one content in every format, and conversions."""

import gzip
import struct
import warnings

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
