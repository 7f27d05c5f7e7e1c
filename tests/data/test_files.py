"""Files of the user's own: one content in every format, and conversions."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

from fcjax.data import load

# Four images of 2x3 in order of class, with both ends of the range among the pixels.
PIXELS = [0, 1, 2, 3, 4, 255, 10, 20, 30, 40, 50, 60]
PIXELS += [7, 7, 7, 7, 7, 8, 200, 100, 50, 25, 12, 6]
IMAGES = np.array(PIXELS, np.uint8).reshape(4, 2, 3)
LABELS = np.array([3, 3, 5, 9])
VECTORS = "each column scaled to [0, 1] by its minimum and maximum"
ONE_CLASS = "all examples have the same class, so scores against labels mean nothing"
IDX_TYPES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def idx(values):
    """The bytes of an IDX file, by hand: 0 0 type rank, big-endian sizes, values."""
    head = bytes([0, 0, IDX_TYPES[values.dtype.str[1:]], values.ndim])
    sizes = struct.pack(f">{values.ndim}I", *values.shape)
    return head + sizes + values.astype(values.dtype.newbyteorder(">")).tobytes()


def write_npz(folder):
    np.savez(folder / "some.npz", images=IMAGES, labels=LABELS)
    return folder / "some.npz"


def write_csv(folder):
    table = np.column_stack([IMAGES.reshape(4, 6), LABELS])
    np.savetxt(folder / "some.csv", table, fmt="%d", delimiter=",")
    return folder / "some.csv"


def write_idx(folder, name="train-{}-ubyte", rows=slice(4), dtype="u1", pack=bytes):
    parts = {"images-idx3": IMAGES, "labels-idx1": LABELS.astype(dtype)}
    for part, values in parts.items():
        (folder / name.format(part)).write_bytes(pack(idx(values[rows])))
    return folder / name.format("images-idx3")


def write_gz(folder):
    return write_idx(folder, "x-{}-ubyte.gz", dtype="i4", pack=gzip.compress)


def write_four_idx(folder):
    write_idx(folder, "train-{}-ubyte.gz", slice(3), pack=gzip.compress)
    write_idx(folder, "t10k-{}-ubyte", slice(3, 4))
    return folder


def write_pngs(folder):
    for row, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True), start=8):
        (folder / str(label)).mkdir(exist_ok=True)
        Image.fromarray(image).save(folder / str(label) / f"{row}.png")
    return folder


def write_mat(folder):
    arrays = {"fea": IMAGES.reshape(4, 6).astype(float), "gnd": LABELS[:, None]}
    scipy.io.savemat(folder / "some.mat", arrays)
    return folder / "some.mat"


@pytest.mark.parametrize(
    ("write", "image_shape"),
    [
        *((write_npz, None), (write_idx, None), (write_gz, None)),
        *((write_four_idx, None), (write_pngs, None)),
        *((write_npz, (2, 3)), (write_csv, (2, 3)), (write_mat, (2, 3, 1))),
    ],
)
def test_the_same_images_in_every_format(write, image_shape, tmp_path):
    path = write(tmp_path)
    got = load(path, image_shape=image_shape)
    assert got.examples.dtype == np.uint8
    np.testing.assert_array_equal(got.examples, IMAGES[..., None])
    assert got.labels.dtype == np.int64
    np.testing.assert_array_equal(got.labels, LABELS)
    floats = write in (write_csv, write_mat)
    assert got.notes == ("float64 values 0 to 255 converted to uint8",) * floats
    if write is not write_csv:
        plain = load(path, image_shape=image_shape, labels=False)
        np.testing.assert_array_equal(plain.examples, got.examples)
        assert plain.labels is None


def test_square_rows_of_a_mat_go_down_the_columns(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (5, 8, 8), np.uint8)
    columns = np.stack([image.ravel(order="F") for image in images])
    scipy.io.savemat(tmp_path / "faces.mat", {"fea": columns, "gnd": np.arange(5) % 2})
    got = load(tmp_path / "faces.mat")
    np.testing.assert_array_equal(got.examples, images[..., None])
    np.testing.assert_array_equal(got.labels, [0, 1, 0, 1, 0])
    assert got.notes == ("rows read as 8x8 images stored column by column",)
    rows = load(tmp_path / "faces.mat", image_shape=(8, 8))
    np.testing.assert_array_equal(rows.examples[..., 0], images.transpose(0, 2, 1))
    # Squares below 8x8 are vectors.
    scipy.io.savemat(tmp_path / "x.mat", {"fea": np.arange(98).reshape(2, 49)})
    assert load(tmp_path / "x.mat").examples.shape == (2, 49)


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
    got = load(tmp_path / "x.mat").examples
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got[..., 0], images.transpose(0, 2, 1))


def test_columns_are_scaled(tmp_path):
    text = " 0,-4, 5, 8\n 5, 4, 5, 8\n10, 0, 5,11\n"
    (tmp_path / "pendigits.tra").write_text(text)
    got = load(tmp_path / "pendigits.tra")
    assert got.examples.dtype == np.float32
    np.testing.assert_array_equal(got.examples, [[0, 0, 0], [0.5, 1, 0], [1, 0.5, 0]])
    np.testing.assert_array_equal(got.labels, [8, 8, 11])
    assert got.notes == (VECTORS, "1 constant column set to 0")


def test_a_header_names_and_quotes_in_a_csv(tmp_path):
    text = '\ufeffwidth,height,kind\r\n1,"2",dogs\r\n\r\n3,6,"cats, wild"\r\n2,4,dogs'
    (tmp_path / "x.csv").write_bytes(text.encode())
    got = load(tmp_path / "x.csv")
    np.testing.assert_array_equal(got.examples, [[0, 0], [1, 1], [0.5, 0.5]])
    np.testing.assert_array_equal(got.labels, [1, 0, 1])
    header = "first row read as header: width,height,kind"
    last = "class: the last column, kind; `label_column` names another"
    assert got.notes == (header, last, VECTORS, "classes: 0 = cats, wild, 1 = dogs")


PAIR = np.array([[[0, 128]], [[128, 255]]])  # two images of 1x2
BYTES = PAIR.astype(np.uint8)
HALVES = np.array([[[0.0, 0.5]], [[51.0, 255.0]]])
TWELVE = np.arange(12, dtype=np.uint8).reshape(12, 1, 1)
LETTERS = "a, 1 = b, 2 = c, 3 = d, 4 = e, 5 = f, 6 = g, 7 = h, 8 = i, 9 = j"


@pytest.mark.parametrize(
    ("x", "y", "examples", "note"),
    [
        (PAIR, None, PAIR, "int64 values 0 to 255 converted to uint8"),
        (PAIR.astype(">f4"), None, PAIR, ">f4 values 0 to 255 converted to uint8"),
        (
            PAIR > 128,
            None,
            [[[0, 0]], [[0, 255]]],
            "boolean values converted to 0 and 255",
        ),
        (PAIR / 256, None, PAIR / 256, None),
        (
            PAIR.clip(0, 1),
            None,
            PAIR > 0,
            "int64 values 0 to 1 converted to float32 in [0, 1]",
        ),
        (HALVES, None, HALVES / 255, "float64 values 0 to 255 divided by 255"),
        (
            BYTES[[0, 1, 0, 0]],
            range(4),
            PAIR[[0, 1, 0, 0]],
            "2 duplicate examples not removed",
        ),
        (BYTES, [["dog"], ["cat"]], PAIR, "classes: 0 = cat, 1 = dog"),
        (TWELVE, [*"lkjihgfedcba"], TWELVE, f"classes: 0 = {LETTERS}, ... 12 in all"),
        (BYTES, [4.0, 4.0], PAIR, ONE_CLASS),
    ],
)
def test_conversions_of_values(x, y, examples, note, tmp_path):
    np.savez(tmp_path / "x.npz", x=x, **({} if y is None else {"y": y}))
    got = load(tmp_path / "x.npz")
    examples = np.asarray(examples, np.float32)
    assert got.examples.dtype == (np.uint8 if examples.max() > 1 else np.float32)
    np.testing.assert_array_equal(got.examples[..., 0], examples)
    assert got.notes == (() if note is None else (note,))


def test_colour_arrays_and_rows(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (3, 2, 4, 3), np.uint8)
    np.savez(tmp_path / "images.npz", x=images)
    np.savez(tmp_path / "rows.npz", x=images.reshape(3, 24))
    for name, shape in (("images", None), ("rows", (2, 4, 3))):
        got = load(tmp_path / f"{name}.npz", image_shape=shape)
        np.testing.assert_array_equal(got.examples, images)


@pytest.mark.parametrize("dtype", IDX_TYPES)
def test_idx_types_and_vectors(dtype, tmp_path):
    vectors = np.array([[0, 100], [100, 50], [25, 60]], dtype)
    (tmp_path / "some.idx2").write_bytes(idx(vectors))
    got = load(tmp_path / "some.idx2")
    expected = np.array([[0, 1], [1, 0], [0.25, 0.2]], np.float32)
    np.testing.assert_array_equal(got.examples, expected)
    assert got.notes == (
        "no labels, because some.idx1 is not in the same folder",
        VECTORS,
    )


def save(folder, name, mode="L", size=(3, 2), value=7, **options):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = (value,) * len(mode) if mode.startswith("RGB") else value
    Image.new(mode, size, colour).save(path, **options)


def test_natural_order_and_classes_by_name(tmp_path):
    for name, value in [("10.png", 10), ("9b.bmp", 9), ("9a.PNG", 8), ("2.pgm", 2)]:
        save(tmp_path, f"dogs/{name}", value=value)
    for name, value in [("100.png", 100), ("20.webp", 20), ("3.tif", 3)]:
        save(tmp_path, f"cats/img{name}", value=value)
    for name in (".cache/hidden.png", "loose.png"):
        save(tmp_path, name)
    (tmp_path / "dogs" / "Thumbs.db").write_bytes(b"no image")
    got = load(tmp_path)
    assert got.examples.shape == (7, 2, 3, 1)  # webp knows no grey
    np.testing.assert_array_equal(got.examples[:, 1, 2, 0], [3, 20, 100, 2, 8, 9, 10])
    np.testing.assert_array_equal(got.labels, [0, 0, 0, 1, 1, 1, 1])
    assert got.notes == (
        "1 image ignored, because the name of the file or of its folder begins with a "
        "dot",
        "2 files skipped: not an image, or in a folder that is not read (Thumbs.db, "
        "loose.png)",
        "1 image of mode RGB converted to L, because 6 of 7 images are grey",
        "classes: 0 = cats, 1 = dogs",
    )


@pytest.mark.filterwarnings("error")
def test_colours_palettes_and_transparency_become_rgb(tmp_path):
    save(tmp_path, "1.png", "RGB", value=5)
    save(tmp_path, "2.png", "RGBA", value=60)
    palette = Image.new("P", (3, 2), 1)
    palette.putpalette([0, 0, 0, 11, 22, 33])
    palette.save(tmp_path / "3.gif")
    palette.save(tmp_path / "4.png", transparency=b"\0\x80")
    save(tmp_path, "5.png", "1", value=1)
    got = load(tmp_path)
    expected = [[5] * 3, [60] * 3, [11, 22, 33], [11, 22, 33], [255] * 3]
    np.testing.assert_array_equal(got.examples[:, 1, 1], expected)
    converted = "4 images of mode 1, P, RGBA converted to RGB, because 1 of 5 images"
    converted += " are grey"
    assert got.notes == (converted, "1 duplicate example not removed")


def test_a_flat_folder_of_bitmaps_and_films_is_grey_and_has_no_labels(tmp_path):
    save(tmp_path, "10.png", "1", value=1)
    save(tmp_path, "9.png", value=7)
    later = [Image.new("L", (3, 2), 99)]
    save(tmp_path, "2.tif", value=40, save_all=True, append_images=later)
    got = load(tmp_path)
    assert got.examples.shape == (3, 2, 3, 1)
    np.testing.assert_array_equal(got.examples[:, 0, 0], [[40], [7], [255]])
    assert got.labels is None
    converted = "1 image of mode 1 converted to L"
    assert got.notes == (converted, "first frame used of 1 animated image")


def test_paths_are_folders_and_names_win_over_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "some/photos", "digits", "mnist", "emnist/digits"):
        Path(name).mkdir(parents=True)
        write_pngs(Path(name))
    for given in ("photos", "some/photos", "./mnist", "mnist/"):
        np.testing.assert_array_equal(load(given).examples, IMAGES[..., None])
    plain = load("digits", labels=False)
    assert (plain.examples.shape, plain.labels) == ((1797, 8, 8, 1), None)
    for name in ("mnist", "emnist/digits"):
        with pytest.raises(ValueError, match=f"{name} is not prepared in"):
            load(name, data_dir=tmp_path / "elsewhere")


def test_what_ends_or_begins_as_a_path_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("no.npz", "no/a.mat", "x.csv", "a.tes", "no-ubyte", "x.gz", "./no"):
        with pytest.raises(
            ValueError, match=f"^dataset {name} does not exist; check the path$"
        ):
            load(name)


IRIS = ["Id,length,class", *(f"{i},{i % 4 + 0.5},{i % 2}" for i in range(1, 13))]


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        (IRIS, "Id"),
        ([line.replace("Id", "n") for line in IRIS], "n"),  # it counts
        (IRIS[1:], "1"),
        (["ID,length,class", "9,0.5,0", "4,1.5,1", "7,2.5,1"], "ID"),
    ],
)
def test_a_column_that_numbers_the_rows_is_no_feature(tmp_path, lines, name):
    path = tmp_path / "iris.csv"
    path.write_text("\n".join(lines))
    found = load(path)
    values = [float(line.split(",")[1]) for line in lines if line[0].isdigit()]
    low, high = min(values), max(values)
    np.testing.assert_allclose(
        found.examples, [[(v - low) / (high - low)] for v in values]
    )
    told = f"column {name} ignored, because it numbers the rows; `keep_index`"
    assert any(note.startswith(told) for note in found.notes)
    assert load(path, keep_index=True).examples.shape == (len(values), 2)


def test_a_table_of_numbers_in_order_alone_stays(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("\n".join(f"{i},{i % 2}" for i in range(12)))
    assert load(path).examples.shape == (12, 1)


def test_images_of_16_bits_are_scaled_to_their_own_range(tmp_path):
    values = np.array([[100, 1100], [600, 2100]], np.uint16)
    for number in range(2):
        Image.fromarray(values + 1000 * number).save(tmp_path / f"{number}.png")
    found = load(tmp_path)
    assert found.examples.dtype == np.float32
    expected = (values - 100.0) / 3000  # 100 to 3,100 over both images
    np.testing.assert_allclose(found.examples[0, ..., 0], expected, atol=1e-6)
    assert "image values 100 to 3100 scaled to [0, 1]" in found.notes


def test_an_image_of_too_many_pixels_is_named_with_the_limit(tmp_path, monkeypatch):
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    told = "damaged image large.png .*64 pixels.*limit of 40 pixels"
    with pytest.raises(ValueError, match=told):
        load(tmp_path)
