"""Data sets in files: NumPy, MATLAB, tables, Parquet, Hugging Face, IDX, images.

One function per format reads a path into a `Content`; `FORMATS` says which endings have
which function. `read` turns the content into a `Dataset`.
"""

import gzip
import io
import math
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fcjax.data import dataset, images
from fcjax.data.dataset import (
    Content,
    Dataset,
    Options,
    Scaling,
    counted,
    decoding,
    one_line,
)

HUGGING_FACE = "hf:"
"""Before the path of a folder that `datasets.Dataset.save_to_disk` wrote."""

_COLUMNS_SHOWN = 10
_NEEDED = "needs a package that is not installed: pip install datasets pyarrow"


# --- NumPy and MATLAB


def read_npz(path: Path, options: Options) -> Content:
    """Reads the arrays `x` or `images`, `y` or `labels`, and `client` of an `.npz`.

    Arrays of Python objects are never loaded, as a pickle may run any program.
    """
    with decoding("is damaged or no .npz file"):
        arrays = np.load(io.BytesIO(path.read_bytes()), allow_pickle=False)
        names = list(arrays.files)

    def array(*accepted: str) -> np.ndarray | None:
        present = [name for name in accepted if name in names]
        if len(present) > 1:
            raise ValueError(f"has both arrays {' and '.join(present)}, give one")
        if not present:
            return None
        with decoding(f"has an array {present[0]} that is damaged or not of numbers"):
            return arrays[present[0]]

    values = array("x", "images")
    if values is None:
        raise ValueError(f"needs an array x or images, its arrays: {_listed(names)}")
    labels = array("y", "labels") if options.labelled else None
    return Content(values, labels, clients=array("client"))


def read_mat(path: Path, options: Options) -> Content:
    """Reads the arrays `fea` [P, F] and `gnd` of a MATLAB file up to version 7.

    Rows of s x s values with s >= 8 are images stored column by column.
    """
    import scipy.io

    with decoding("is damaged or no .mat file"):
        # Without mat_dtype a double array of 0 and 1 becomes uint8, so 0 to 255.
        arrays = scipy.io.loadmat(io.BytesIO(path.read_bytes()), mat_dtype=True)
    if "fea" not in arrays:
        names = [name for name in arrays if not name.startswith("__")]
        raise ValueError(f"needs an array fea, its arrays: {_listed(names)}")
    values, labels = np.asarray(arrays["fea"]), None
    if options.labelled and "gnd" in arrays:
        labels = np.asarray(arrays["gnd"])
        if labels.shape == (1, len(values)):  # as SciPy writes a vector
            labels = labels[0]
    side = math.isqrt(values.shape[1]) if values.ndim == 2 else 0
    if options.image_shape is not None or side < 8 or side**2 != values.shape[1]:
        return Content(values, labels)
    note = f"rows read as {side}x{side} images stored column by column"
    values = values.reshape(-1, side, side).transpose(0, 2, 1)
    return Content(values, labels, [note])


# --- Tables


def read_csv(path: Path, options: Options) -> Content:
    """Reads a table of numbers separated by commas; its last column is the class.

    The first row is a header if a column of it gives the clients, or if none of its
    features is a number.
    """
    text = io.BytesIO(unpacked(path))
    with decoding("is no table of numbers separated by commas"):
        table = pd.read_csv(
            text, header=None, dtype=str, na_filter=False, encoding="utf-8-sig"
        )
    first = table.iloc[0].tolist()
    has_clients = options.client_column is not None
    num_features = len(first) - has_clients - options.labelled
    if num_features < 1:
        raise ValueError(
            f"has {counted(len(first), 'column')}; commas must separate at least one "
            "feature and the class"
        )
    if not has_clients and any(map(_is_number, first[:num_features])):
        return _columns(table, [""] * len(first), options)
    if options.labelled and first[0].strip().lower() in ("label", "class"):
        raise ValueError(
            f"has {first[0]!r} as its first column; the classes must be the last one"
        )
    content = _columns(table.iloc[1:], [name.strip() for name in first], options)
    note = f"first row taken as a header: {','.join(first)[:60]}"
    return content._replace(notes=[note, *content.notes])


def read_parquet(path: Path, options: Options) -> Content:
    """Reads a Parquet file: numbers, or one column of images as Hugging Face writes it;
    the last column is the class.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ValueError(_NEEDED) from error
    with decoding("is damaged or no .parquet file"):
        table = pd.read_parquet(path, engine="pyarrow", dtype_backend="pyarrow")
    return _columns(table, list(map(str, table.columns)), options)


def read_saved(path: Path, options: Options) -> Content:
    """Reads a folder of `datasets.Dataset.save_to_disk`: its one column `Image` and its
    `ClassLabel`, if it has one.
    """
    try:
        import datasets
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ValueError(_NEEDED) from error
    with decoding("is damaged or no folder of save_to_disk"):
        saved = datasets.load_from_disk(str(path))
    if isinstance(saved, datasets.DatasetDict):
        parts = {str(name): part for name, part in saved.items()}
    else:
        parts = {"all": saved}
    chosen = [part for name, part in parts.items() if options.split in ("all", name)]
    if not chosen:
        raise ValueError(
            f"has no split {options.split}, its splits: {_listed(list(parts))}"
        )
    whole = datasets.concatenate_datasets(chosen)
    kinds = {name: type(kind).__name__ for name, kind in whole.features.items()}
    client = options.client_column
    pictures = [name for name, kind in kinds.items() if kind == "Image"]
    classes = [k for k, v in kinds.items() if v == "ClassLabel" and k != client]
    classes = classes if options.labelled else []
    if len(pictures) != 1 or len(classes) > 1:
        columns = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
        raise ValueError(
            f"needs one column Image and at most one ClassLabel, its columns: {columns}"
        )
    if client is not None:
        _place(client, list(kinds))
    names = [*([client] if client else []), *pictures, *classes]
    table: Any = whole.select_columns(names).with_format("arrow")[:]
    return _columns(
        table.to_pandas(types_mapper=pd.ArrowDtype),
        names,
        options._replace(labelled=bool(classes)),
        follow_paths=True,
    )


def _columns(
    table: pd.DataFrame,
    names: Sequence[str],
    options: Options,
    *,
    follow_paths: bool = False,
) -> Content:
    """Takes the columns of clients, classes (the last one) and features apart.

    Args:
      table: the examples.
      names: the headers, empty texts where there are none.
      options: of `read`.
      follow_paths: whether images may lie in other files, which a folder of
        `save_to_disk` names; a single file must not open others.
    """
    places = list(range(len(names)))
    clients = labels = None
    if options.client_column is not None:
        client = _place(options.client_column, names)
        places.remove(client)
        clients = _plain(table.iloc[:, client])
    if options.labelled and places:
        labels = _plain(table.iloc[:, places.pop()])
    if not places:
        raise ValueError("has no column of features beside the class and the client")
    if len(places) == 1 and isinstance(table.iloc[0, places[0]], dict):
        opened = [
            partial(_image, cell, follow_paths) for cell in table.iloc[:, places[0]]
        ]
        titles = [f"of example {number}" for number in range(1, len(opened) + 1)]
        values, notes = images.decoded(titles, opened, options.resize)
        return Content(values, labels, notes, clients)
    features = [_numbers(table.iloc[:, at], names[at] or str(at + 1)) for at in places]
    values, notes = np.stack(features, axis=1), []
    if not options.keep_index:
        values, notes = dataset.without_index(values, [names[at] for at in places])
    return Content(values, labels, notes, clients)


def _place(column: str, names: Sequence[str]) -> int:
    if column not in names:
        raise ValueError(
            f"has no client_column {column}, its columns: {_listed(names)}"
        )
    return list(names).index(column)


def _plain(column: pd.Series) -> np.ndarray:
    """The cells of a column; as texts, empty ones where one is missing, if one is."""
    values, missing = column.tolist(), column.isna().tolist()
    if any(missing):
        values = [
            "" if gone else str(x) for x, gone in zip(values, missing, strict=True)
        ]
    return np.array(values)


def _numbers(column: pd.Series, name: str) -> np.ndarray:
    kinds = pd.api.types
    if kinds.is_numeric_dtype(column) or kinds.is_bool_dtype(column):
        return column.to_numpy(np.float64, na_value=np.nan)
    cells = list(map(str, column))
    try:
        return np.array(list(map(float, cells)))
    except ValueError as error:
        wrong = next(i for i, cell in enumerate(cells) if not _is_number(cell))
        raise ValueError(
            f"has {cells[wrong][:60]!r} in column {name}, example {wrong + 1}, where a "
            "number is needed"
        ) from error


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _image(cell: dict[str, Any] | None, follow_paths: bool) -> Any:
    """Opens an image as Hugging Face stores it, as bytes or as the path of a file."""
    cell = cell if isinstance(cell, dict) else {}
    if cell.get("bytes") is None and cell.get("path") and follow_paths:
        return Path(cell["path"]).open("rb")
    return io.BytesIO(cell.get("bytes") or b"")


def _listed(names: Sequence[str]) -> str:
    more = [f"... {len(names)} in all"] if len(names) > _COLUMNS_SHOWN else []
    return ", ".join([*list(names)[:_COLUMNS_SHOWN], *more]) or "none"


# --- IDX

_IDX = re.compile(r"(\.gz|\.idx|-ubyte|[.-]idx\d(-\w+)?)$", re.IGNORECASE)
_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(path: Path, options: Options) -> Content:
    """Reads an IDX file, gzipped or not, and the labels from the file beside it, which
    has `labels` for `images` and `idx1` for `idx3` in its name.
    """
    values, stem = _idx(path), path.name.removesuffix(".gz")
    beside = re.sub(r"idx\d", "idx1", stem.replace("images", "labels"))
    if not options.labelled or beside == stem:
        return Content(values)
    for file in (path.with_name(beside), path.with_name(f"{beside}.gz")):
        if file.exists():
            labels = _idx(file)
            if len(labels) != len(values):
                raise ValueError(f"has {len(values)} images and {len(labels)} labels")
            return Content(values, labels)
    return Content(values, notes=[f"no labels: {beside} is not beside it"])


def read_idx_folder(folder: Path, options: Options) -> Content:
    """Reads the training, then the test images of a folder of the four usual files."""
    if options.split != "all":
        raise ValueError("is of IDX files: split must be all")
    parts = []
    for split in ("train", "t10k"):
        file = _images_of(folder, split)
        if file is None:
            raise ValueError(f"has no {split}-images-idx3-ubyte (or .gz)")
        parts.append(read_idx(file, options))
    values = np.concatenate([part.values for part in parts])
    labels = [part.labels for part in parts if part.labels is not None]
    if not options.labelled:
        return Content(values)
    if len(labels) < 2:
        raise ValueError("needs all four IDX files, or `labelled=False` without labels")
    return Content(values, np.concatenate(labels))


def _images_of(folder: Path, split: str) -> Path | None:
    names = [
        f"{split}-images{dot}idx3-ubyte{end}" for dot in "-." for end in ("", ".gz")
    ]
    return next((folder / name for name in names if (folder / name).exists()), None)


def _idx(file: Path) -> np.ndarray:
    content = unpacked(file)
    kind = _TYPES.get(content[2]) if content[:2] == b"\0\0" and content[3:] else None
    if kind is None:
        raise ValueError(
            f"is no IDX file: {file.name} begins with {content[:4].hex(' ')}"
        )
    start = 4 + 4 * content[3]
    shape = [int.from_bytes(content[at : at + 4]) for at in range(4, start, 4)]
    dtype = np.dtype(kind)
    size = start + math.prod(shape) * dtype.itemsize
    if len(content) != size:
        raise ValueError(
            f"is damaged: {file.name} has {len(content)} bytes where its header says "
            f"{size}"
        )
    values = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return values.astype(dtype.newbyteorder("="))


def unpacked(file: Path) -> bytes:
    """Returns the content of a file, unpacked if it is gzip.

    Raises:
      ValueError: the gzip is damaged.
    """
    content = file.read_bytes()
    # The content decides: browsers unpack a .gz and leave its name.
    if content[:2] != b"\x1f\x8b":
        return content
    with decoding(f"is damaged: {file.name} cannot be unpacked"):
        return gzip.decompress(content)


# --- Any file

Reader = Callable[[Path, Options], Content]

FORMATS: dict[str, Reader] = {
    ".npz": read_npz,
    ".mat": read_mat,
    ".parquet": read_parquet,
    **dict.fromkeys((".csv", ".csv.gz", ".tra", ".tes", ".data", ".txt"), read_csv),
}
"""Which function reads the files of an ending; IDX files have many endings."""


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
    """Returns the examples of a file or folder, in its order.

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
      image_shape: (H, W) or (H, W, C) of images that are stored as rows of values, row
        by row; None leaves the rows feature vectors.
      labelled: whether to look for labels; without, the last column of a table is a
        feature.
      scaling: of the data that a model was trained on; None takes the minimum and
        maximum of each column.
      resize: height and width of all images, see `images.resized`; None keeps the size.
      client_column: the column of a table that gives the clients and is no feature.
      split: of a data set of Hugging Face or a folder with folders of splits, the name
        of one split, or `all`.
      client_folders: whether the outer folders of images are clients in any case.
      keep_index: whether a column that numbers the rows of a table is a feature, see
        `dataset.without_index`.

    Returns:
      images [P, H, W, C], uint8 in 0..255 or float32 in [0, 1], or feature vectors
      [P, F] with each column scaled to [0, 1]; labels int64; clients, if the file gives
      them; and the conversions.

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
    images.check(resize)
    options = Options(
        *(image_shape, labelled, resize, client_column),
        *(split, client_folders, keep_index),
    )
    name = os.fspath(path)
    with one_line(name):
        location = Path(name.removeprefix(HUGGING_FACE))
        reader = _reader(name, location, options)
        # No name for the content, so that no array outlives its conversion.
        return _converted(name, reader(location, options), options, scaling)


def is_file_name(name: str) -> bool:
    """Returns whether `name` ends as a file that `read` accepts, or begins as a path.

    It need not exist: this tells a misspelled path from a misspelled name.
    """
    starts = name.startswith(("./", "../", "/", HUGGING_FACE))
    return starts or name.lower().endswith(tuple(FORMATS)) or bool(_IDX.search(name))


def _reader(given: str, path: Path, options: Options) -> Reader:
    """Returns the function that reads a path, once the options suit the path."""
    if not path.exists():
        raise ValueError("does not exist")
    name = path.name.lower()
    if given.startswith(HUGGING_FACE):
        return read_saved
    if options.client_folders and not path.is_dir():
        raise ValueError("is no folder, so `client_folders` finds no clients in it")
    if path.is_file() and path.stat().st_size == 0:
        raise ValueError("is empty")
    reader = next((FORMATS[end] for end in FORMATS if name.endswith(end)), None)
    if options.client_column is not None and reader not in (read_csv, read_parquet):
        raise ValueError(
            "has no columns; client_column is of .csv, .parquet and hf:PATH"
        )
    if reader is not None:
        return reader
    if path.is_dir():
        has_idx = any(_images_of(path, split) for split in ("train", "t10k"))
        return read_idx_folder if has_idx else images.read_images
    if _IDX.search(name):
        return read_idx
    raise ValueError(
        "is of an unknown kind; accepted are .npz, .mat, .csv (also .tra, .tes, .data, "
        ".txt), .parquet, IDX (.gz or not), a folder of images or of the four IDX "
        "files, and hf:PATH"
    )


def _converted(
    name: str, content: Content, options: Options, scaling: Scaling | None
) -> Dataset:
    values, labels, notes, clients = content
    examples = dataset.images_or_vectors(values, options.image_shape)
    del values, content
    if examples.ndim == 4:
        examples, more = dataset.pixels(examples)
        if options.resize is not None:
            examples = images.resized(examples, options.resize)
            more.append(f"images resized to {options.resize}x{options.resize}")
    elif options.resize is not None:
        raise ValueError(
            "holds feature vectors, which `resize` does not take; give image_shape if "
            "they are images"
        )
    else:
        examples, more, scaling = dataset.scaled(examples, scaling)
    if labels is not None:
        labels, told = dataset.classes(labels)
        more += told
    if clients is not None:
        clients = dataset.owners(clients)
    notes = (*notes, *more, *dataset.duplicates(examples))
    return dataset.validate(Dataset(name, examples, labels, notes, scaling, clients))
