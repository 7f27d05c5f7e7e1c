"""Files that hold examples: IDX, MATLAB, Arrow, NumPy, CSV.

MATLAB files, read by a process of its own: a damaged one may end what reads it.

This file is that process's program, too; there it imports nothing of fcjax.
"""

import csv
import gzip
import io
import math
import os
import re
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fcjax.data import dataset
from fcjax.data.dataset import Dataset, Scaling, validate, without_index
from fcjax.data.images import check, decoded, read_images, resized
from fcjax.data.mat import read_mat

# --- IDX

# Values, labels where there are any, and a line on each conversion.
LabelledExamples = tuple[np.ndarray, np.ndarray | None, list[str]]

_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(file: Path, labelled: bool) -> LabelledExamples:
    """Returns the values of an IDX file, and the labels from the file beside it.

    That has `labels` for `images` and `idx1` for `idx3` in its name, packed or not.

    Raises:
      ValueError: a file is damaged or no IDX file.
    """
    return _pair(file, file, labelled)


def read_idx_folder(folder: Path, labelled: bool) -> LabelledExamples | None:
    """Returns the training, then the test images of a folder of the four usual files.

    Returns:
      what `read_idx` does, or None where the folder has no such file of images.

    Raises:
      ValueError: one of the files is missing or damaged, or they do not fit.
    """
    found = {}
    for split in ("train", "t10k"):
        plain = [f"{split}-images{dot}idx3-ubyte" for dot in "-."]
        spelled = [folder / f"{name}{end}" for name in plain for end in ("", ".gz")]
        found[plain[0]] = [file for file in spelled if file.exists()]
    if not any(found.values()):
        return None
    for name, files in found.items():
        if not files:
            raise ValueError(f"has no {name} (or .gz) beside the others")
    parts = [_pair(files[0], folder, labelled) for files in found.values()]
    (train, train_labels, _), (test, test_labels, _) = parts
    if train.shape[1:] != test.shape[1:]:
        raise ValueError(
            f"has training images of {train.shape[1:]} and test images of "
            f"{test.shape[1:]}; all must have one size"
        )
    values = np.concatenate([train, test])
    if train_labels is None or test_labels is None:
        if labelled:
            raise ValueError(
                "needs all four IDX files, or `labelled=False` without labels"
            )
        return values, None, []
    for part, labels in ((train, train_labels), (test, test_labels)):
        if len(part) != len(labels):
            raise ValueError(f"has {len(part)} images beside {len(labels)} labels")
    return values, np.concatenate([train_labels, test_labels]), []


def unpacked(file: Path) -> bytes:
    """Returns what a file holds, unpacked if it is gzip.

    Raises:
      ValueError: it is damaged gzip.
    """
    content = file.read_bytes()
    # By content: browsers unpack a .gz and leave its name.
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"is damaged: {file.name} cannot be unpacked") from error


def _pair(file: Path, given: Path, labelled: bool) -> LabelledExamples:
    values = _idx(file, given)
    stem = re.sub(r"idx\d", "idx1", file.name.replace("images", "labels"))
    stem = stem.removesuffix(".gz")
    if not labelled or stem == file.name.removesuffix(".gz"):
        return values, None, []
    for beside in (file.with_name(stem), file.with_name(f"{stem}.gz")):
        if beside.exists():
            return values, _idx(beside, given), []
    return values, None, [f"no labels: {stem} is not beside it"]


def _idx(file: Path, given: Path) -> np.ndarray:
    content = unpacked(file)
    who = "" if file == given else f"has {file.name}, which "
    kind = _TYPES.get(content[2]) if len(content) >= 4 else None
    if kind is None or content[:2] != b"\0\0":
        raise ValueError(f"{who}is no IDX file, it begins with {content[:4].hex(' ')}")
    start = 4 + 4 * content[3]
    shape = [int.from_bytes(content[at : at + 4]) for at in range(4, start, 4)]
    dtype = np.dtype(kind)
    size = start + math.prod(shape) * dtype.itemsize
    if len(content) != size:
        raise ValueError(
            f"{who}is damaged: {len(content)} bytes where its header says {size}"
        )
    values = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return values.astype(dtype.newbyteorder("="))


# --- Arrow

if TYPE_CHECKING:
    import pyarrow as pa

Content = tuple[np.ndarray, np.ndarray | None, list[str], np.ndarray | None]
"""Values, labels where there are any, a line on each conversion, and whose the examples
are where that is said."""

_COLUMNS_TOLD = 10
_NEEDED = "needs a package that is not installed: pip install datasets pyarrow"


def read_parquet(
    path: Path,
    labelled: bool,
    resize: int | None,
    client_column: str | None,
    *,
    keep_index: bool = False,
) -> Content:
    """Returns what a Parquet file holds: its last column but the client's is the class.

    Args:
      path: of the file.
      labelled: whether one column is the class.
      resize: see `folders.read_images`.
      client_column: that says whose an example is, if one does.
      keep_index: see `files.read`.

    Returns:
      images where a column holds them as Hugging Face writes them, else the values of
      all other columns, which are numbers.

    Raises:
      ValueError: the file is damaged, the column is not there, or others are no
        numbers; or pyarrow is not installed.
    """
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(_NEEDED) from error
    try:
        table = parquet.ParquetFile(path).read()
    except Exception as error:
        raise ValueError("is damaged or no .parquet file") from error
    names = list(table.column_names)
    if len(set(names)) < len(names):
        raise ValueError("has two columns of one name")
    if client_column is not None:
        names.pop(place_of(client_column, names))
    label = names.pop() if labelled and names else None
    if not names:
        raise ValueError("has no column of features beside the class and the client")
    found = _of_columns(table, names, label, client_column, resize, follows=False)
    values, labels, notes, clients = found
    if keep_index or values.ndim != 2:
        return found
    values, told = without_index(values, names)
    return values, labels, notes + told, clients


def read_saved(
    path: Path,
    labelled: bool,
    resize: int | None,
    client_column: str | None,
    split: str,
) -> Content:
    """Returns what `datasets.Dataset.save_to_disk` wrote: its column of images, and its
    ClassLabel where it has one.

    Args:
      path: of the folder.
      labelled, resize, client_column: as in `read_parquet`.
      split: of several the name of one, or `all`.

    Raises:
      ValueError: the folder is of another kind, has no such split or column, or not one
        column of images; or `datasets` is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise ValueError(_NEEDED) from error
    try:
        saved = datasets.load_from_disk(str(path))
    except Exception as error:
        raise ValueError("is damaged or no folder of save_to_disk") from error
    if isinstance(saved, datasets.DatasetDict):
        parts = {str(name): part for name, part in saved.items()}
    else:
        parts = {"all": saved}
    chosen = [part for name, part in parts.items() if split in ("all", name)]
    if not chosen:
        raise ValueError(f"has no split {split}, its splits: {', '.join(parts)}")
    found = datasets.concatenate_datasets(chosen)

    def of(kind: type) -> list[str]:
        return [name for name, each in found.features.items() if isinstance(each, kind)]

    images, classes = of(datasets.Image), of(datasets.ClassLabel)
    if client_column is not None:
        place_of(client_column, found.column_names)
        classes = [name for name in classes if name != client_column]
    if len(images) != 1 or (labelled and len(classes) > 1):
        raise ValueError(
            "needs one column Image and at most one ClassLabel, its columns: "
            + ", ".join(f"{k} ({type(v).__name__})" for k, v in found.features.items())
        )
    label = classes[0] if labelled and classes else None
    table = found.with_format("arrow")[:]
    return _of_columns(table, images, label, client_column, resize, follows=True)


def place_of(column: str, names: Sequence[str]) -> int:
    """Returns which of the columns is the clients'.

    Raises:
      ValueError: none is.
    """
    if column not in names:
        more = [f"... {len(names)} in all"] if len(names) > _COLUMNS_TOLD else []
        told = ", ".join([*names[:_COLUMNS_TOLD], *more])
        raise ValueError(f"has no client_column {column}, its columns: {told}")
    return names.index(column)


def _of_columns(
    table: "pa.Table",
    names: Sequence[str],
    label: str | None,
    client_column: str | None,
    resize: int | None,
    *,
    follows: bool,
) -> Content:
    """What `read_parquet` and `read_saved` return; follows: whether images may lie in
    other files, which a data set of its own folder names and a file had better not."""
    import pyarrow as pa

    def texts(name: str | None) -> np.ndarray | None:
        if name is None:
            return None
        values = table[name].to_pylist()
        if None in values:
            values = ["" if value is None else str(value) for value in values]
        return np.array(values)

    notes, kinds = [], {name: table.schema.field(name).type for name in names}
    is_images = [name for name in names if pa.types.is_struct(kinds[name])]
    if len(names) == len(is_images) == 1:
        images = table[names[0]].to_pylist()
        streams = [partial(_stream, image, follows=follows) for image in images]
        told = [f"of example {row + 1}" for row in range(len(streams))]
        values, notes = decoded(told, streams, resize)
        return values, texts(label), notes, texts(client_column)
    for name, kind in kinds.items():
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if not (is_number or pa.types.is_boolean(kind)):
            raise ValueError(f"has column {name} of {kind}, where numbers are needed")
    columns = [table[name].cast(pa.float64()).to_numpy() for name in names]
    return np.stack(columns, axis=1), texts(label), notes, texts(client_column)


def _stream(image: dict | None, *, follows: bool):
    image = image or {}
    content = image.get("bytes")
    if content is None and image.get("path") and follows:
        return Path(image["path"]).open("rb")
    return io.BytesIO(content if isinstance(content, bytes) else b"")


# --- Any file

_TABLES = (".csv", ".csv.gz", ".tra", ".tes", ".data", ".txt")
_HUGGING_FACE = "hf:"
_IDX = re.compile(r"(\.gz|\.idx|-ubyte|[.-]idx\d(-\w+)?)$", re.IGNORECASE)


def read(
    path: str | os.PathLike[str],
    *,
    image_shape: tuple[int, ...] | None = None,
    labelled: bool = True,
    scaling: Scaling | None = None,
    resize: int | None = None,
    client_column: str | None = None,
    split: str = "all",
    client_folders: bool = False,
    keep_index: bool = False,
) -> Dataset:
    """Returns what a file or folder holds, in its order.

    | path | examples | labels |
    | --- | --- | --- |
    | `.npz` | array `x` or `images` | `y` or `labels`, if it is there |
    | `.mat` | `fea` [P, F] | `gnd` [P, 1], if it is there |
    | `.csv` `.tra` `.tes` `.data` `.txt` | all columns but the last | the last column |
    | `.parquet` | as of a table, or its one column of images | the last column |
    | `hf:PATH`, saved by Hugging Face `datasets` | the `Image`s | the `ClassLabel` |
    | IDX, `.gz` or not | the file | the file beside it with `labels` for `images` |
    | folder of the four IDX files | training, then test images | the same |
    | folder of images | files in natural order | subfolders, if there are any |

    The client of an example is given by the array `client` of an `.npz`, by
    `client_column`, or by the outer folders of CLIENT/CLASS/, if two of these folders
    hold a class of the same name. Folders train, val, test and the like are splits.

    Rows of s x s values with s >= 8 in a `.mat` are images stored column by column,
    as in the common ORL, COIL and USPS files.

    Args:
      path: of the file or folder.
      image_shape: (H, W) or (H, W, C) that rows of values hold, row by row; None
        leaves them feature vectors.
      labelled: whether to look for labels; without, the last column of a table is a
        feature.
      scaling: of the data that a model was trained on; None takes the minimum and
        maximum of each column.
      resize: H and W of all images, see `resizing`; None takes those that they have.
      client_column: of a table, that is no feature.
      split: of a data set of Hugging Face or a folder with folders of splits, the name
        of one split, or `all`.
      client_folders: whether the outer folders of images are clients in any case.
      keep_index: whether a column that numbers the rows of a table is a feature, see
        `conversion.without_index`.

    Returns:
      images [P, H, W, C], uint8 in 0..255 or float32 in [0, 1], or feature vectors
      [P, F] with each column scaled to [0, 1]; labels int64; clients, if it says whose
      an example is; and the conversions.

    Raises:
      ValueError: one line that says what is wrong and what is accepted.

    Examples:
      >>> from tempfile import TemporaryDirectory
      >>> with TemporaryDirectory() as folder:
      ...     path = Path(folder) / "mine.npz"
      ...     np.savez(path, x=np.array([[10.0, 0.0], [15.0, 4.0]]), y=np.array([7, 8]))
      ...     dataset = read(path)
      >>> print(dataset.examples, dataset.scaling.span)
      [[0. 0.]
       [1. 1.]] [5. 4.]
    """
    check(resize)
    name = os.fspath(path)
    try:
        # One name, so that no array outlives what is made of it.
        examples, labels, notes, clients = _content(
            *(name, image_shape, labelled, resize, client_column, split),
            client_folders=client_folders,
            keep_index=keep_index,
        )
        examples = dataset.images_or_vectors(examples, image_shape)
        if examples.ndim == 2 and resize is not None:
            raise ValueError(
                "holds feature vectors, which are not images that `resize` takes; give "
                "image_shape if they are"
            )
        if examples.ndim == 4:
            examples, converted = dataset.pixels(examples)
        else:
            examples, converted, scaling = dataset.scaled(examples, scaling)
        notes += converted
        if resize is not None:
            examples = resized(examples, resize)
            notes.append(f"images resized to {resize}x{resize}")
        if labels is not None:
            labels, told = dataset.classes(labels)
            notes += told
        if clients is not None:
            clients = dataset.owners(clients)
    except OSError as error:
        raise ValueError(f"dataset {name} cannot be read ({error})") from error
    except csv.Error as error:
        raise ValueError(f"dataset {name} is no table ({error})") from error
    except ValueError as error:
        raise ValueError(f"dataset {name} {' '.join(str(error).split())}") from error
    notes += dataset.duplicates(examples)
    return validate(Dataset(name, examples, labels, tuple(notes), scaling, clients))


def is_file_name(name: str) -> bool:
    """Returns whether `name` ends as a file that `read` accepts, or begins as a path.

    It need not exist: this tells a misspelled path from a misspelled name.
    """
    ends = name.lower().endswith((".npz", ".mat", ".parquet", *_TABLES))
    starts = name.startswith(("./", "../", "/", _HUGGING_FACE))
    return ends or bool(_IDX.search(name)) or starts


def _content(
    given: str,
    image_shape,
    labelled: bool,
    resize: int | None,
    client_column: str | None,
    split: str,
    *,
    client_folders: bool,
    keep_index: bool,
) -> Content:
    path = Path(given.removeprefix(_HUGGING_FACE))
    name = path.name.lower()
    if not path.exists():
        raise ValueError("does not exist")
    if given.startswith(_HUGGING_FACE):
        return read_saved(path, labelled, resize, client_column, split)
    if client_folders and not path.is_dir():
        raise ValueError(
            "is no folder, whose folders `client_folders` takes as clients"
        )
    if path.is_file() and path.stat().st_size == 0:
        raise ValueError("is empty")
    if name.endswith(".parquet"):
        return read_parquet(
            path, labelled, resize, client_column, keep_index=keep_index
        )
    if name.endswith(_TABLES):
        return _table(path, labelled, client_column, keep_index)
    if client_column is not None:
        raise ValueError(
            "has no columns; client_column is of .csv, .parquet and hf:PATH"
        )
    if path.is_dir():
        found = read_idx_folder(path, labelled)
        if found and split != "all":
            raise ValueError("is of IDX files: split must be all")
        return (
            (*found, None)
            if found
            else read_images(
                *(path, labelled, resize), split=split, client_folders=client_folders
            )
        )
    if name.endswith(".npz"):
        return _npz(path, labelled)
    if name.endswith(".mat"):
        return (*_mat(path, image_shape, labelled), None)
    if _IDX.search(name):
        return (*read_idx(path, labelled), None)
    raise ValueError(
        "is of an unknown kind; accepted are .npz, .mat, .csv (also .tra, .tes, .data, "
        ".txt), .parquet, IDX (.gz or not), a folder of images or of the four IDX "
        "files, and hf:PATH"
    )


def _npz(path: Path, labelled: bool) -> Content:
    content = io.BytesIO(path.read_bytes())
    try:
        arrays = np.load(content, allow_pickle=False)
        names = arrays.files
    except Exception as error:
        raise ValueError("is damaged or no .npz file") from error

    def one_of(*accepted: str) -> np.ndarray | None:
        found = [name for name in accepted if name in names]
        if len(found) > 1:
            raise ValueError(f"has both arrays {' and '.join(found)}, give one")
        try:
            return arrays[found[0]] if found else None
        # Damage surfaces as almost any type, Python objects as a ValueError.
        except Exception as error:
            raise ValueError(
                f"has an array {found[0]} that is damaged or of Python objects"
            ) from error

    values = one_of("x", "images")
    labels = one_of("y", "labels") if labelled else None
    clients = one_of("client")
    if values is None:
        told = ", ".join(names) or "none"
        raise ValueError(f"needs an array x or images, its arrays: {told}")
    return values, labels, [], clients


def _mat(path: Path, image_shape, labelled: bool) -> LabelledExamples:
    arrays, names = read_mat(path)
    if "fea" not in names:
        told = ", ".join(names) or "none"
        raise ValueError(f"needs an array fea, its arrays: {told}")
    values, labels = arrays["fea"], arrays.get("gnd")
    if labels is not None and labels.shape == (1, len(values)):
        labels = labels[0]  # as SciPy writes a vector
    side = math.isqrt(values.shape[1]) if values.ndim == 2 else 0
    notes = []
    if image_shape is None and side >= 8 and side**2 == values.shape[1]:
        values = values.reshape(-1, side, side).transpose(0, 2, 1)
        notes.append(f"rows read as {side}x{side} images stored column by column")
    return values, labels if labelled else None, notes


def _table(
    path: Path, labelled: bool, client_column: str | None, keep_index: bool
) -> Content:
    try:
        lines = unpacked(path).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError("is not UTF-8 text") from error
    rows = {number: line for number, line in enumerate(lines, 1) if line.strip()}
    if not rows:
        raise ValueError("is empty")
    begin = next(iter(rows))
    first = next(csv.reader([rows[begin]]))
    columns = list(range(len(first)))
    client = None
    if client_column is not None:
        client = place_of(client_column, [name.strip() for name in first])
        columns.remove(client)
    label = columns.pop() if labelled and columns else None
    if not columns:
        raise ValueError(
            f"has {dataset.counted(len(first), 'column')}; commas must separate at "
            "least one feature and the class"
        )
    notes, header = [], [""] * len(first)
    if client is not None or not any(_is_number(first[i]) for i in columns):
        if labelled and first[0].strip().lower() in ("label", "class"):
            raise ValueError(
                f"has {first[0]!r} as its first column; the classes must be the last "
                "one"
            )
        notes.append(f"first row taken as a header: {rows.pop(begin)[:60]}")
        header = first
    if not rows:
        raise ValueError("has 0 examples, 2 are needed")
    codes = {i: {} for i in (label, client) if i is not None}

    def encoded(names: dict[str, int]):
        return lambda name: names.setdefault(name.strip(), len(names))

    def column(i: int | None) -> np.ndarray | None:
        return None if i is None else np.array(list(codes[i]))[table[:, i].astype(int)]

    try:
        table = np.loadtxt(
            list(rows.values()),
            delimiter=",",
            quotechar='"',
            comments=None,
            ndmin=2,
            converters={i: encoded(names) for i, names in codes.items()} or None,  # pyright: ignore
        )
        if table.shape[1] != len(first):
            raise ValueError(f"{table.shape[1]} columns in every row but the first")
    except ValueError as error:
        raise ValueError(_table_fault(rows, columns, len(first))) from error
    features = table[:, columns]
    if not keep_index:
        names = [header[i] for i in columns]
        features, told = dataset.without_index(features, names)
        notes += told
    return features, column(label), notes, column(client)


def _table_fault(rows: dict[int, str], numbers: list[int], columns: int) -> str:
    """Says where a table is wrong: too slow for every table, fine for a wrong one."""
    for number, line in rows.items():
        row = next(csv.reader([line]))
        if len(row) != columns:
            there = dataset.counted(len(row), "column")
            return f"has {there} in row {number}, but {columns} in the first row"
        for column in numbers:
            if not _is_number(row[column]):
                place = f"row {number}, column {column + 1}"
                return f"has {row[column]!r} in {place}, where a number is needed"
    return "is no table of numbers separated by commas"


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
