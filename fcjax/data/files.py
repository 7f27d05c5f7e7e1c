"""Examples from files of the user's own: arrays, tables, IDX, folders of images and
Hugging Face's data sets."""

import csv
import io
import math
import os
import re
from pathlib import Path

import numpy as np

from fcjax.data import arrow, conversion
from fcjax.data.dataset import Dataset, Scaling, validate
from fcjax.data.folders import read_images
from fcjax.data.idx import Content, read_idx, read_idx_folder, unpacked
from fcjax.data.mat import read_mat
from fcjax.data.resizing import check, resized

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
        examples = conversion.images_or_vectors(examples, image_shape)
        if examples.ndim == 2 and resize is not None:
            raise ValueError(
                "holds feature vectors, which are not images that `resize` takes; give "
                "image_shape if they are"
            )
        if examples.ndim == 4:
            examples, converted = conversion.pixels(examples)
        else:
            examples, converted, scaling = conversion.scaled(examples, scaling)
        notes += converted
        if resize is not None:
            examples = resized(examples, resize)
            notes.append(f"images resized to {resize}x{resize}")
        if labels is not None:
            labels, told = conversion.classes(labels)
            notes += told
        if clients is not None:
            clients = conversion.owners(clients)
    except OSError as error:
        raise ValueError(f"dataset {name} cannot be read ({error})") from error
    except csv.Error as error:
        raise ValueError(f"dataset {name} is no table ({error})") from error
    except ValueError as error:
        raise ValueError(f"dataset {name} {' '.join(str(error).split())}") from error
    notes += conversion.duplicates(examples)
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
) -> arrow.Content:
    path = Path(given.removeprefix(_HUGGING_FACE))
    name = path.name.lower()
    if not path.exists():
        raise ValueError("does not exist")
    if given.startswith(_HUGGING_FACE):
        return arrow.read_saved(path, labelled, resize, client_column, split)
    if client_folders and not path.is_dir():
        raise ValueError(
            "is no folder, whose folders `client_folders` takes as clients"
        )
    if path.is_file() and path.stat().st_size == 0:
        raise ValueError("is empty")
    if name.endswith(".parquet"):
        return arrow.read_parquet(
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


def _npz(path: Path, labelled: bool) -> arrow.Content:
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


def _mat(path: Path, image_shape, labelled: bool) -> Content:
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
) -> arrow.Content:
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
        client = arrow.place_of(client_column, [name.strip() for name in first])
        columns.remove(client)
    label = columns.pop() if labelled and columns else None
    if not columns:
        raise ValueError(
            f"has {conversion.counted(len(first), 'column')}; commas must separate at "
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
        features, told = conversion.without_index(features, names)
        notes += told
    return features, column(label), notes, column(client)


def _table_fault(rows: dict[int, str], numbers: list[int], columns: int) -> str:
    """Says where a table is wrong: too slow for every table, fine for a wrong one."""
    for number, line in rows.items():
        row = next(csv.reader([line]))
        if len(row) != columns:
            there = conversion.counted(len(row), "column")
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
