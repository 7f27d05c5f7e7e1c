"""Each row of docs/reference/files.md is a file that is read here.

The rows of the page are the rows of this file. Quotes in an answer are printed lines.
"""

import gzip
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.io
from PIL import Image

from fcjax.cli.errors import FLAGS, with_flags, with_quoted_flags
from fcjax.data import load
from tests.data import test_arrays as arrays
from tests.data import test_hostile as hostile
from tests.data.test_arrays import COLOUR, GREY, h5ad, leaf, npy, npz, safetensors
from tests.data.test_files import IMAGES as PIXELS
from tests.data.test_files import idx, save, write_four_idx
from tests.data.test_natural import write_pictures, write_saved
from tests.data.test_sources import png
from tests.data.test_tables import (
    CLASSES,
    CLIENTS,
    GAPS,
    LENGTH,
    PLAIN,
    SITES,
    TABLE,
    TWO,
    WIDTH,
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "files.md"
REFUSED = "refused: "


class Truth(NamedTuple):
    """The content of a file: examples before scaling, classes and clients."""

    examples: Any
    classes: list[int] | None = None
    clients: list[int] | None = None


class Row(NamedTuple):
    """A row of the page, the file that it is about, and the truth of this file."""

    kind: str
    trap: str
    answer: str
    """Each text in quotes is a printed line. A line that ends with ... goes on."""
    write: Callable[[Path], Path | str]
    truth: Truth | None = None
    """None for a file that is refused."""
    settings: Mapping[str, Any] = {}

    def __str__(self):
        return f"| {self.kind} | {self.trap} | {self.answer} |"


def files(contents):
    """Writes files by name. Returns the path of their folder, or of the only file."""

    def write(folder):
        for name, content in contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return folder / next(iter(contents)).partition("/")[0]

    return write


def text(content, name="x.csv", encoding="utf-8", pack: Any = bytes):
    return files({name: pack(content.encode(encoding))})


def columns(*features, classes=(0, 1, 0), clients=None):
    return Truth(np.transpose(features), classes and list(classes), clients)


def frame(ending, **options):
    def write(folder):
        pytest.importorskip("openpyxl" if ending == "excel" else "pyarrow")
        path = folder / f"x.{ending.replace('excel', 'xlsx')}"
        content = PLAIN if ending == "excel" else PLAIN.replace("", None)
        getattr(content.assign(**options), f"to_{ending}")(path)
        return path

    return write


def sheets(folder):
    pytest.importorskip("openpyxl")
    with pd.ExcelWriter(folder / "x.xlsx") as book:
        PLAIN.to_excel(book, sheet_name="one", index=False)
        PLAIN.to_excel(book, sheet_name="two")
    return folder / "x.xlsx"


def mat(**content):
    def write(folder):
        scipy.io.savemat(folder / "x.mat", content)
        return folder / "x.mat"

    return write


def link_outside(folder):
    files({"secret/1.png": png(GREY), "x/cat/1.png": png(GREY)})(folder)
    (folder / "x" / "dog").symlink_to(folder / "secret")
    return folder / "x"


def linked_h5(folder):
    arrays.h5("secret.h5", x=arrays.IMAGES)(folder)
    with h5py.File(folder / "a.h5", "w") as file:
        file["x"] = h5py.ExternalLink("secret.h5", "x")
    return folder / "a.h5"


def animated(folder):
    more = [Image.new("L", (4, 4), 99)]
    for value in (40, 50):
        options = {"save_all": True, "append_images": more}
        save(folder, f"{value}.tif", size=(4, 4), value=value, **options)
    return folder


def transparent(folder):
    save(folder, "1.png", "RGB", value=5)
    save(folder, "2.png", "RGBA", value=60)
    return folder


def greys(*values, size=4):
    return np.array([np.full((size, size), value) for value in values])


def images(*names, values=None):
    """Images of one grey each: 1, 2, ... or the given values."""
    values = values or range(1, len(names) + 1)
    content = {
        f"x/{name}": png(np.full((4, 4), value, np.uint8))
        for name, value in zip(names, values, strict=True)
    }
    return files(content)


A, B = [1, 2, 3], [4.5, 5, 6]
SAME = columns(LENGTH, WIDTH, classes=CLASSES, clients=CLIENTS)
PAIR = columns(A, B)
COMMA = TABLE.replace(",", ";").replace(".", ",")
COLOURS = "colour,a,kind\nred,1,x\nblue,2,y\nred,3,x\n"
MARKED = f'\ufeff"length"{TABLE[6:]}'
COUNTED = ",a,b,kind\n0,1,4.5,0\n1,2,5,1\n2,3,6,0\n"
MANY = "".join(f"{i % 3},{i / 8},{100 + i}\n" for i in range(20))
WHOLE = Truth(arrays.IMAGES, arrays.LABELS.tolist(), arrays.CLIENTS)
NO_CLIENT = WHOLE._replace(clients=None)
CELLS = Truth(arrays.VALUES, arrays.LABELS.tolist(), arrays.MASKED)
X = arrays.IMAGES
SQUARES = np.arange(128, dtype=np.uint8).reshape(2, 8, 8)
FOUR = idx(SQUARES)
DEEP = png(np.full((4, 4), 1000, np.uint16))
V73 = b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\x02IM" + b"\x89HDF\r\n\x1a\n" + bytes(64)
DATES = "a,k\n2024-01-02,0\n2024-02-01,1\n"
WORD = "has text in 1 feature column: "
PICKLE = "refused: `may hold a pickle, and a pickle can run any program, ...`"
GAP = "has 2 missing values in 2 of 4 examples, the first in column a, ..."

TABLES = [
    Row("`.csv`", "names in the first row",
        "`first row read as header: length,width,site,kind`", text(TABLE), SAME),
    Row("`.csv`", "no column has a usual name of the class",
        "`class: the last column, kind; --label-column names another`",
        text(TABLE), SAME),
    Row("`.csv`", "empty cell in the column of the client",
        "the example has no client", text(TABLE), SAME),
    Row("`.csv`", "semicolons between the cells", "the cells are separated",
        text(TABLE.replace(",", ";")), SAME),
    Row("`.csv`", "semicolons between the cells, decimal commas",
        "`decimal commas read in length`", text(COMMA), SAME),
    Row("`.csv`", "spaces between the cells", "the cells are separated",
        text("a b  k\n1 4.5  0\n 2\t5 1 \n3 6 0\n"), PAIR),
    Row("`.tsv`", "tabs between the cells, decimal commas",
        "`decimal commas read in length`",
        text(COMMA.replace(";", "\t"), "x.tsv"), SAME),
    Row("`.txt`", "tabs between the cells", "the cells are separated",
        text(TABLE.replace(",", "\t"), "x.txt"), SAME),
    Row("`.data`", "vertical bars between the cells", "the cells are separated",
        text(TABLE.replace(",", " | "), "x.data"), SAME),
    Row("`.csv.gz`", "compressed by gzip", "the file is decompressed",
        text(TABLE, "x.csv.gz", pack=gzip.compress), SAME),
    Row("`.csv`", "byte-order mark of UTF-8, first name in quotes",
        "the mark is ignored", text(MARKED), SAME),
    Row("`.csv`", "UTF-16 with a byte-order mark", "the text is decoded",
        text(TABLE, encoding="utf-16"), SAME),
    Row("`.csv`", "text that is not UTF-8",
        "`text read as Latin-1, because it is not UTF-8`",
        text("größe;b;k\n1;4,5;é\n2;5;a\n3;6;é\n", encoding="latin-1"),
        columns(A, B, classes=(1, 0, 1))),
    Row("`.csv`", "lines of Windows, which end with CR LF", "the lines are separated",
        text(TABLE.replace("\n", "\r\n")), SAME),
    Row("`.csv`", "lines of an old Mac, which end with CR", "the lines are separated",
        text(TABLE.replace("\n", "\r")), SAME),
    Row("`.csv`", "blank lines", "blank lines are ignored",
        text("\n" + TABLE.replace("\n", "\n\n  \n")), SAME),
    Row("`.csv`", "spaces around the cells", "these spaces are ignored",
        text(TABLE.replace(",", " , ").replace("\n", " \n")), SAME),
    Row("`.csv`", "separators and ends of lines in quotes", "they belong to the cell",
        text('a;b;k\n1;4,5;"u;v"\n2;5;"w\nw"\n3;6;"u;v"\n'), PAIR),
    Row("`.csv`", "no end of line after the last row", "the last row is read",
        text(TABLE.rstrip()), SAME),
    Row("`.csv`", "separator at the end of each line",
        "`last column ignored, because all its cells are empty`",
        text(TWO.replace("\n", ",\n")), PAIR),
    Row("`.csv`", "no names, with `--label-column 1`",
        "the columns have the names 1, 2, 3", text(TWO),
        columns(B, [0, 1, 0], classes=A), {"label_column": "1"}),
    Row("`.csv`", "years as names", "`first row read as header: 2001,2002,class`",
        text("2001,2002,class\n" + TWO), PAIR),
    Row("`.csv`", "index that pandas writes",
        "`column Unnamed: 0 ignored, because it numbers the rows; --keep-index uses it "
        "as a feature`", text(COUNTED), PAIR),
    Row("`.csv`", "index that pandas writes, with `--keep-index`",
        "the index is a feature", text(COUNTED), columns([0, 1, 2], A, B),
        {"keep_index": True}),
    Row("`.csv`", "first column called label",
        "`class: column label, because of its name`",
        text("label,a,b\nu,1,4.5\nv,2,5\nu,3,6\n"), PAIR),
    Row("`.csv`", "columns called x and y", "y is a coordinate, so the last column is "
        "the class: `class: the last column, z; --label-column names another`",
        text("x,y,z\n" + TWO), PAIR),
    Row("`.csv`", "column called y, with `--no-labels`",
        "`column y is a feature; --drop-columns leaves it out`",
        text("a,b,y\n" + TWO), columns(A, B, [0, 1, 0], classes=None),
        {"labels": False}),
    Row("`.csv`", "two columns with usual names of the class",
        "refused: `has the columns label, target, and each may be the class; choose "
        "one with --label-column`", text("label,a,target,b\n0,1,2,3\n1,2,3,4\n")),
    Row("`.csv`", "number in the last column, no class",
        "refused: `has 20 different values in 20 examples of its last column, 3, which "
        "would be the class; ...`", text(MANY)),
    Row("`.csv`", "two columns of the name of the class, with `--label-column b`",
        "refused: `has 2 columns 'b' (--label-column); rename one of them`",
        text("a,b,b\n1,2,0\n"), None, {"label_column": "b"}),
    Row("`.csv`", "name that no column has, with `--label-column c`",
        "refused: `has no column 'c' (--label-column); its columns are a, b, k`",
        text("a,b,k\n1,2,0\n"), None, {"label_column": "c"}),
    Row("`.csv`", "class of one example is missing",
        "refused: `has an empty label in example 1; ...`",
        text("a,b,k\n1,2,\n2,3,1\n")),
    Row("`.csv`", "true and false", "`column a: true read as 1, false as 0`",
        text("a,b,k\nTrue,1,0\nFALSE,2,1\ntrue,3,0\n"), columns([1, 0, 1], A)),
    Row("`.csv`", "text in a feature",
        f"refused: `{WORD}colour ('red' in example 1); ...`", text(COLOURS)),
    Row("`.csv`", "text in a feature, with `--one-hot`",
        "`column colour read as 2 columns of 0 and 1: blue, red`", text(COLOURS),
        columns([0, 1, 0], [1, 0, 1], A), {"one_hot": True}),
    Row("`.csv`", "text in a feature, with `--drop-columns colour`",
        "the column is ignored", text(COLOURS), columns(A),
        {"drop_columns": ("colour",)}),
    Row("`.csv`", "percent sign", f"refused: `{WORD}a ('5%' in example 1); ...`",
        text("a,k\n5%,0\n2,1\n")),
    Row("`.csv`", "dates", f"refused: `{WORD}a ('2024-01-02' in example 1); ...`",
        text(DATES)),
    Row("`.csv`", "underscore in a number",
        f"refused: `{WORD}a ('1_000' in example 1); ...`", text("a,k\n1_000,0\n2,1\n")),
    Row("`.csv`", "decimal commas in quotes, commas between the cells",
        f"refused: `{WORD}a ('1,5' in example 1); ...`",
        text('a,b,k\n"1,5",2,0\n"2,5",3,1\n')),
    Row("`.csv`", "decimal commas in one column, decimal points in another",
        f"refused: `{WORD}a ('1,5' in example 1); ...`",
        text("a;b;k\n1,5;2.5;0\n2,5;3;1\n")),
    Row("`.csv`", "points between thousands",
        f"refused: `{WORD}a ('1.000,5' in example 1); ...`",
        text("a;b;k\n1.000,5;2;0\n2;3;1\n")),
    Row("`.csv`", "missing values", f"refused: `{GAP}`", text(GAPS)),
    Row("`.csv`", "missing values, with `--missing median`",
        "`2 missing values replaced by the median of the column: a, b`", text(GAPS),
        columns([1, 3, 3, 3], [4.5, 5, 5, 6], classes=[0, 1, 0, 1]),
        {"missing": "median"}),
    Row("`.csv`", "missing values, with `--missing drop`",
        "`2 of 4 examples dropped, because of missing values`", text(GAPS),
        columns([1, 3], [4.5, 6], classes=[0, 1]), {"missing": "drop"}),
    Row("`.csv`", "infinite value",
        "refused: `has 1 NaN or infinite value, the first in example 2 of 2; ...`",
        text("1,2,0\ninf,4,1\n")),
    Row("`.csv`", "row with another number of cells",
        "refused: `has 4 cells in line 3, but 3 in other lines; each line must have "
        "the same number of cells`", text("a,b,k\n1,2,0\n1,2,3,0\n3,4,1\n")),
    Row("`.csv`", "one column", "refused: `has 1 column; at least 2 are required, ...`",
        text("a\n1\n2\n")),
    Row("`.csv`", "bytes that are no text",
        "refused: `is not a table in a text file (it has NUL bytes)`",
        text("1,2\0,3\n")),
    Row("`.csv`", "empty file", "refused: `is an empty file`", text("")),
    Row("`.xlsx`", "two sheets", "`sheet one read; other sheets ignored: two`", sheets,
        SAME),
    Row("`.feather`", "missing client", "the example has no client", frame("feather"),
        SAME),
    Row("`.parquet`", "missing client", "the example has no client", frame("parquet"),
        SAME),
    Row("`.parquet`", "lists of numbers in a column",
        "`column width read as 2 features`",
        frame("parquet", width=[[value, 1] for value in WIDTH]),
        columns(LENGTH, WIDTH, [1] * 4, classes=CLASSES, clients=CLIENTS), SITES),
    Row("`.parquet`", "images of Hugging Face", "the images are decoded",
        lambda folder: write_pictures(folder)[0],
        Truth(np.arange(24).reshape(4, 2, 3) * 10, [3, 5, 3, 9], [1, 0, -1, 1]),
        {"client_column": "writer"}),
    Row("`hf:PATH`", "splits", "all splits are used",
        lambda folder: write_saved(folder)[0],
        Truth(np.arange(24).reshape(4, 2, 3) * 10, [3, 5, 3, 9], [1, 0, -1, 1]),
        {"client_column": "writer"}),
]  # fmt: skip
ARRAYS = [
    Row("`.npy`", "no array of classes",
        "`no labels, because an .npy file has one array`", npy(X), Truth(X)),
    Row("`.npy`", "order of Fortran, which stores columns first",
        "the axes are those of the array",
        npy(np.asfortranarray(X)), Truth(X)),
    Row("`.npy`", "texts",
        "refused: `has values of type <U1; accepted are real numbers, such as uint8 or "
        "float32`", npy(np.array([["a"], ["b"]]))),
    Row("`.npz`", "clients in an array of a usual name", "`clients read from site`",
        npz(**arrays.WHOLE), WHOLE),
    Row("`.npz`", "classes of shape [P, 1]", "one class per example",
        npz(x=X, targets=arrays.LABELS[:, None]), NO_CLIENT),
    Row("`.npz`", "several classes per example",
        "refused: `has labels of shape (6, 14); one label per example is required, of "
        "shape [P] or [P, 1]`", npz(**arrays.MULTI)),
    Row("`.npz`", "class that is a fraction", "refused: `has the label 1.5; ...`",
        npz(x=X, y=np.full(6, 1.5))),
    Row("`.npz`", "MedMNIST: arrays of three splits", f"`{arrays.JOINED}`",
        npz(**arrays.MEDMNIST), NO_CLIENT),
    Row("`.npz`", "Keras: arrays of two splits",
        "`arrays x_train, x_test joined in this order`",
        npz(x_train=X[:4], x_test=X[4:], y_train=arrays.LABELS[:4],
            y_test=arrays.LABELS[4:]), NO_CLIENT),
    Row("`.npz`", "two arrays with usual names of examples",
        "refused: `has both arrays x and images; choose one with --array`",
        npz(x=X, images=X)),
    Row("`.npz`", "two arrays with usual names of examples, with `--array x`",
        "this array is read", npz(**arrays.WHOLE, images=X[::-1]), WHOLE,
        {"array": "x"}),
    Row("`.npz`", "no array of a usual name",
        "refused: `has no array x, X, data, images, features or embeddings; its arrays "
        "are a (6, 1, 2); choose one with --array`", npz(a=X)),
    Row("`.npz`", "images of doubles, 0 to 255",
        "`float64 values 0 to 255 converted to uint8`",
        npz(x=X / 1.0, y=arrays.LABELS), NO_CLIENT),
    Row("`.npz`", "images of values above 255",
        "refused: `has image values from 0 to 510; accepted ranges are 0 to 1 and 0 to "
        "255, so rescale the images`", npz(x=X * 2.0)),
    Row("`.npz`", "Python objects",
        "refused: `has an array x of Python objects; it may hold a pickle, ...`",
        npz(x=np.array([[1, "a"], [2, "b"]], object))),
    Row("`.safetensors`", "half precision", "the numbers become float32",
        safetensors(embeddings=arrays.VALUES.astype(np.float16), y=arrays.LABELS),
        Truth(arrays.VALUES, arrays.LABELS.tolist())),
    Row("`.safetensors`", "bfloat16, which NumPy does not have",
        "refused: `has an array x of type BF16; accepted are ...`",
        files({"x.safetensors": hostile.safetensors(
            {"x": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}})})),
    Row("`.h5`", "clients that are texts", "`clients read from site`",
        arrays.h5(**arrays.WHOLE), WHOLE),
    Row("`.h5`", "damaged file", "refused: `is damaged or not an HDF5 file ...`",
        files({"x.h5": b"no"})),
    Row("`.h5ad`", "sparse counts, missing category of the client, with `--label-array "
        "cluster`, `--client-array site`", "a cell without a category has no client",
        h5ad("csr"), CELLS, arrays.CELLS),
    Row("`.h5ad`", "principal components of the cells, with `--array obsm/X_pca`",
        "`no array has a usual name of labels; --label-array can name one of ...`",
        h5ad(), Truth(np.arange(12).reshape(6, 2)), {"array": "obsm/X_pca"}),
    Row("`.json` of LEAF", "users", "`clients are the users of the file, 2 in all`",
        leaf(), Truth(arrays.VALUES, arrays.LABELS.tolist(), [1, 1, 0, 0, 0, 0])),
    Row("`.json` of LEAF", "text",
        "refused: `has text in x of the user b; accepted are numbers, so convert each "
        "text to a vector first`", leaf({"b": {"x": ["to be"], "y": ["n"]}})),
    Row("`.json`", "not of LEAF", "refused: `is not a file of LEAF; accepted is an "
        "object with users, num_samples and user_data`", files({"x.json": b"[1, 2]"})),
    Row("`.mat`", "rows of 64 values, stored column by column",
        "`rows read as 8x8 images stored column by column`",
        mat(fea=SQUARES.transpose(0, 2, 1).reshape(2, 64), gnd=[[3], [5]]),
        Truth(SQUARES, [3, 5])),
    Row("`.mat`", "version 7.3 of MATLAB",
        "refused: `is damaged or not a .mat file (Please use HDF reader for matlab "
        "v7.3 files, ...`",
        files({"x.mat": V73})),
    Row("IDX", "no file of classes in the folder",
        "`no labels, because some-labels.idx1 is not in the same folder`",
        files({"some-images.idx3": FOUR}), Truth(SQUARES)),
    Row("IDX", "cut file",
        "refused: `is damaged: x.idx has 100 bytes, but its header says 144`",
        files({"x.idx": FOUR[:100]})),
    Row("folder of IDX", "some of the four files are compressed",
        "first the training images, then the test images", write_four_idx,
        Truth(PIXELS, [3, 3, 5, 9])),
    Row("folder of IDX", "no test images",
        "refused: `has no t10k-images-idx3-ubyte (or .gz); a folder of IDX files must "
        "have the training and the test images`",
        files({"x/train-images-idx3-ubyte": FOUR})),
]  # fmt: skip
FOLDERS = [
    Row("images", "numbers in the names of files", "2 comes before 10",
        images("a/10.png", "a/2.png", "b/1.png"), Truth(greys(2, 1, 3), [0, 0, 1])),
    Row("images", "CLIENT/CLASS/ folders, which share a class",
        "`clients are the 2 folders bern, rome`",
        images("bern/cat/1.png", "bern/dog/1.png", "rome/cat/1.png"),
        Truth(greys(1, 2, 3), [0, 1, 0], [0, 0, 1])),
    Row("images", "two levels of folders, which share no class",
        "`folders animals, cars are not clients, because they have no class in common; "
        "--client-folders makes them clients`",
        images("animals/cat/1.png", "cars/bus/1.png"), Truth(greys(1, 2), [1, 0])),
    Row("images", "folders of the clients, with `--client-folders`",
        "`clients are the 2 folders a, b`", images("a/1.png", "b/1.png", "b/2.png"),
        Truth(greys(1, 2, 3), None, [0, 1, 1]), {"client_folders": True}),
    Row("images", "folders train and test",
        "`folders train, test read as splits, all used`",
        images("train/cat/1.png", "train/dog/1.png", "test/cat/1.png"),
        Truth(greys(1, 2, 3), [0, 1, 0])),
    Row("images", "splits of different structures",
        "refused: `has folders train, test with different structures, for example "
        "classes in only one of them; select one with --split`",
        images("train/cat/1.png", "test/1.png")),
    Row("images", "names that begin with a dot",
        "`1 image ignored, because the name of the file or of its folder begins with a "
        "dot`", images("a/1.png", "b/2.png", "b/.3.png"), Truth(greys(1, 2), [0, 1])),
    Row("images", "other files in the folder",
        "`1 file skipped: not an image, or in a folder that is not read (Thumbs.db)`",
        files({"x/a/1.png": png(GREY), "x/b/1.png": png(GREY), "x/b/Thumbs.db": b"no"}),
        Truth(greys(90, 90), [0, 1])),
    Row("images", "most are grey, one has colours",
        "`1 image of mode RGB converted to L, because 2 of 3 images are grey`",
        files({"x/1.png": png(GREY), "x/2.png": png(COLOUR), "x/3.png": png(GREY + 1)}),
        Truth(greys(90, 90, 91))),
    Row("images", "transparency", "`1 image of mode RGBA converted to RGB`",
        transparent, Truth(np.stack([greys(5, 60)[:, :2, :3]] * 3, -1))),
    Row("images", "16 bits per pixel", "`image values 0 to 3000 scaled to [0, 1]`",
        files({"x/1.png": png(np.full((4, 4), 3000, np.uint16)),
               "x/2.png": png(np.zeros((4, 4), np.uint16))}), Truth(greys(1, 0))),
    Row("images", "16 bits and 8 bits per pixel",
        "refused: `has images of mode L and images of 16 bits or more; all images must "
        "have the same number of bits`",
        files({"x/1.png": png(GREY), "x/2.png": DEEP})),
    Row("images", "several frames", "`first frame used of 2 animated images`", animated,
        Truth(greys(40, 50))),
    Row("images", "different sizes",
        "refused: `has images of mixed sizes, 1.png of 4x4 and 2.png of 3x2 (width x "
        "height); all images must have the same size, so use --resize`",
        files({"x/1.png": png(GREY), "x/2.png": png(GREY[:2, :3])})),
    Row("images", "different sizes, with `--resize 4`",
        "`images of 2 sizes, 3x2 to 4x4 pixels (width x height), become squares "
        "without cropping`",
        files({"x/1.png": png(GREY), "x/2.png": png(GREY[:2, :3] + 1)}),
        Truth(greys(90, 91)), {"resize": 4}),
    Row("images", "damaged image", "refused: `has the damaged image 2.png ...`",
        files({"x/1.png": png(GREY), "x/2.png": b"\x89PNG\r\n\x1a\n no"})),
    Row("images", "folder without images", "refused: `has no images; accepted are png, "
        "...`", files({"x/notes": b"no image"})),
]  # fmt: skip
HOSTILE = [
    Row("`.pkl`, `.pt`, `.joblib`", "any content", PICKLE,
        files({"x.pt": b"\x80\x02}"})),
    Row("CIFAR-10 in Python's format", "a pickle without a file ending", PICKLE,
        files({"cifar-10-batches-py/data_batch_1": arrays.CIFAR})),
    Row("`.npz`", "header that promises 931 GiB",
        "refused: `expands to at least 931.3 GiB, but the limit is ...`",
        files({"x.npz": hostile.npz(x=hostile.npy((10**12,)))})),
    Row("`.h5`", "link to another file", "refused: `has no array x, X, data, images, "
        "features or embeddings; its arrays are none; choose one with --array`",
        linked_h5),
    Row("images", "header that promises 3,600,000,000 pixels",
        "refused: `has the damaged image 1.png ...`",
        files({"x/1.png": hostile.png(60000, 60000)})),
    Row("images", "link to a place outside of the folder",
        "refused: `has the link dog to a place outside of the folder; copy the images "
        "into the folder`", link_outside),
    Row("any path", "no file of this name",
        "refused: `does not exist; check the path`", lambda folder: folder / "no.csv"),
    Row("another file", "unknown ending", "refused: `has an unknown file type; ...`",
        files({"x.docx": b"some"})),
]  # fmt: skip
ROWS = [*TABLES, *ARRAYS, *FOLDERS, *HOSTILE]


def agrees(line: str, said: str) -> bool:
    """Tells whether a printed line is a line of the page, which may end with dots."""
    return line.startswith(said[:-4]) if said.endswith(" ...") else line == said


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind} {row.trap}")
@pytest.mark.filterwarnings("ignore:Image size")
def test_a_file_is_what_the_page_says(row, tmp_path):
    path, settings = row.write(tmp_path), {**row.settings}
    if row.truth is SAME:
        settings |= SITES
    said = re.findall("`([^`]+)`", row.answer)
    if row.answer.startswith(REFUSED):
        with pytest.raises(ValueError, match=r"^dataset ") as caught:
            load(path, **settings)
        line = with_flags(str(caught.value)).removeprefix(f"--dataset {path} ")
        assert [agrees(line, x) for x in said] == [True], line
        return
    found = load(path, **settings)
    examples = found.examples
    if found.scaling is not None:
        examples = examples * found.scaling.span + found.scaling.low
    truth, classes, clients = row.truth
    np.testing.assert_allclose(
        examples.reshape(np.shape(truth)), truth, rtol=1e-6, atol=1e-6
    )
    assert (None if found.labels is None else found.labels.tolist()) == classes
    assert (None if found.clients is None else found.clients.tolist()) == clients
    lines = list(map(with_quoted_flags, found.notes))
    for x in said:
        assert any(agrees(line, x) for line in lines), lines


def test_the_page_has_these_rows():
    lines = [x for x in PAGE.read_text().splitlines() if x.startswith("| ")]
    rows = [x for x in lines if x != "| --- | --- | --- |" and "| trap |" not in x]
    expected = [str(row) for row in ROWS]
    missing = [x for x in expected if x not in rows]
    assert not missing, "\n".join(["the page lacks these rows:", *missing])
    more = [x for x in rows if x not in expected]
    assert not more, "\n".join(["no test has these rows of the page:", *more])
    assert rows == expected
    for row in ROWS:  # A setting is a flag in the trap.
        for name in row.settings.keys() - {"client_column"}:
            flag = FLAGS["labels=False" if name == "labels" else name]
            assert f"`{flag}" in row.trap, row
