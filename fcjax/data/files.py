"""Data sets in files: arrays, tables, Parquet, Hugging Face, IDX and images.

Each format has one function, which reads a path into a `Content`. `FORMATS` maps file
endings to these functions. `read` turns the content into a `Dataset`.
"""

import dataclasses
import gzip
import io
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fcjax.data import arrays, dataset, images
from fcjax.data.dataset import (
    Content,
    Dataset,
    Scaling,
    counted,
    decoding,
    name_errors,
)
from fcjax.data.source import ARRAY_SETTINGS, Source

HUGGING_FACE = "hf:"
"""The prefix of a path to a folder that `datasets.Dataset.save_to_disk` wrote."""

_COLUMNS_SHOWN = 10
_MISSING_PACKAGE = (
    "requires packages that are not installed; run: pip install datasets pyarrow"
)


# --- Tables


def read_csv(path: Path, source: Source) -> Content:
    """Reads a comma-separated table of numbers whose last column is the class.

    The first row is a header if it names the client column, or if none of its features
    is a number.

    Args:
      path: the path of the file, optionally gzipped.
      source: the settings; `labels` and `client_column` are used, among
        others.

    Returns:
      The values, and the labels and clients if there are any. A note tells if the first
      row was read as a header.

    Raises:
      ValueError: the file is not such a table, or it has too few columns.
    """
    text = io.BytesIO(read_unpacked(path))
    with decoding("is not a table of numbers separated by commas"):
        table = pd.read_csv(
            text, header=None, dtype=str, na_filter=False, encoding="utf-8-sig"
        )
    first = table.iloc[0].tolist()
    has_clients = source.client_column is not None
    num_features = len(first) - has_clients - source.labels
    if num_features < 1:
        raise ValueError(
            f"has {counted(len(first), 'column')}; at least one feature and the class "
            "are required, separated by commas"
        )
    if not has_clients and any(map(_is_number, first[:num_features])):
        return _columns(table, [""] * len(first), source)
    if source.labels and first[0].strip().lower() in ("label", "class"):
        raise ValueError(
            f"has {first[0]!r} as its first column; move the classes to the last column"
        )
    content = _columns(table.iloc[1:], [name.strip() for name in first], source)
    note = f"first row read as header: {','.join(first)[:60]}"
    return content._replace(notes=[note, *content.notes])


def read_parquet(path: Path, source: Source) -> Content:
    """Reads a Parquet file whose last column is the class.

    The features are numeric columns, or one column of images as Hugging Face stores
    them.

    Args:
      path: the path of the file.
      source: the settings; `labels` and `client_column` are used, among
        others.

    Returns:
      The values, and the labels and clients if there are any.

    Raises:
      ValueError: the file is damaged, or the package pyarrow is not installed.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ValueError(_MISSING_PACKAGE) from error
    with decoding("is damaged or not a .parquet file"):
        table = pd.read_parquet(path, engine="pyarrow", dtype_backend="pyarrow")
    return _columns(table, list(map(str, table.columns)), source)


def read_saved(path: Path, source: Source) -> Content:
    """Reads a folder of `datasets.Dataset.save_to_disk`.

    The folder has one `Image` column and at most one `ClassLabel` column.

    Args:
      path: the path of the folder.
      source: the settings; `split`, `labels` and `client_column` are used,
        among others.

    Returns:
      The images, and the labels and clients if there are any.

    Raises:
      ValueError: the folder is damaged, has no such split or columns, or a required
        package is not installed.
    """
    try:
        import datasets
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ValueError(_MISSING_PACKAGE) from error
    with decoding("is damaged or not a folder written by save_to_disk"):
        saved = datasets.load_from_disk(str(path))
    if isinstance(saved, datasets.DatasetDict):
        parts = {str(name): part for name, part in saved.items()}
    else:
        parts = {"all": saved}
    selected = [part for name, part in parts.items() if source.split in ("all", name)]
    if not selected:
        raise ValueError(
            f"has no split {source.split}; its splits are {_join_names(list(parts))}"
        )
    whole = datasets.concatenate_datasets(selected)
    kinds = {name: type(kind).__name__ for name, kind in whole.features.items()}
    client = source.client_column
    pictures = [name for name, kind in kinds.items() if kind == "Image"]
    classes = [k for k, v in kinds.items() if v == "ClassLabel" and k != client]
    classes = classes if source.labels else []
    if len(pictures) != 1 or len(classes) > 1:
        columns = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
        raise ValueError(
            "must have one column of type Image and at most one of type ClassLabel; "
            f"its columns are {columns}"
        )
    if client is not None:
        _column_index(client, list(kinds))  # raises ValueError for a wrong name
    names = [*([client] if client else []), *pictures, *classes]
    table: Any = whole.select_columns(names).with_format("arrow")[:]
    return _columns(
        table.to_pandas(types_mapper=pd.ArrowDtype),
        names,
        dataclasses.replace(source, labels=bool(classes)),
        follow_paths=True,
    )


def _columns(
    table: pd.DataFrame,
    names: Sequence[str],
    source: Source,
    *,
    follow_paths: bool = False,
) -> Content:
    """Separates a table into clients, classes (the last column) and features.

    Args:
      table: the examples, one row per example.
      names: the headers; empty strings for a table without headers.
      source: the settings.
      follow_paths: whether images may be in other files, which the folder of
        `save_to_disk` names. A single file must not open other files.

    Returns:
      The content.
    """
    columns = list(range(len(names)))
    clients = labels = None
    if source.client_column is not None:
        client = _column_index(source.client_column, names)
        columns.remove(client)
        clients = _cell_values(table.iloc[:, client])
    if source.labels and columns:
        labels = _cell_values(table.iloc[:, columns.pop()])
    if not columns:
        raise ValueError(
            "has no feature column besides the class and the client; at least one is "
            "required"
        )
    if len(columns) == 1 and isinstance(table.iloc[0, columns[0]], dict):
        streams = [
            partial(_image, cell, follow_paths) for cell in table.iloc[:, columns[0]]
        ]
        titles = [f"of example {number}" for number in range(1, len(streams) + 1)]
        values, notes = images.decode_images(titles, streams, source.resize)
        return Content(values, labels, notes, clients)
    features = [
        _feature_values(table.iloc[:, i], names[i] or str(i + 1)) for i in columns
    ]
    values, notes = np.stack(features, axis=1), []
    if not source.keep_index:
        values, notes = dataset.without_index(values, [names[i] for i in columns])
    return Content(values, labels, notes, clients)


def _column_index(column: str, names: Sequence[str]) -> int:
    """Returns the index of the client column."""
    if column not in names:
        raise ValueError(
            f"has no column {column!r} (`client_column`); its columns are "
            f"{_join_names(names)}"
        )
    return list(names).index(column)


def _cell_values(column: pd.Series) -> np.ndarray:
    """Returns the cells of a column; if a cell is missing, all cells become texts.

    A missing cell is an empty text.
    """
    values, missing = column.tolist(), column.isna().tolist()
    if any(missing):
        values = [
            "" if is_missing else str(value)
            for value, is_missing in zip(values, missing, strict=True)
        ]
    return np.array(values)


def _feature_values(column: pd.Series, name: str) -> np.ndarray:
    """Returns a column as numbers, or raises ValueError."""
    kinds = pd.api.types
    if kinds.is_numeric_dtype(column) or kinds.is_bool_dtype(column):
        return column.to_numpy(np.float64, na_value=np.nan)
    cells = list(map(str, column))
    try:
        return np.array(list(map(float, cells)))
    except ValueError as error:
        wrong = next(i for i, cell in enumerate(cells) if not _is_number(cell))
        raise ValueError(
            f"has {cells[wrong][:60]!r} in column {name}, example {wrong + 1}; "
            "features must be numbers"
        ) from error


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _image(cell: dict[str, Any] | None, follow_paths: bool) -> Any:
    """Opens an image as Hugging Face stores it: as bytes or as the path of a file."""
    cell = cell if isinstance(cell, dict) else {}
    if cell.get("bytes") is None and cell.get("path") and follow_paths:
        return Path(cell["path"]).open("rb")
    return io.BytesIO(cell.get("bytes") or b"")


def _join_names(names: Sequence[str]) -> str:
    """Returns the first names as a list in text."""
    more = [f"... {len(names)} in all"] if len(names) > _COLUMNS_SHOWN else []
    return ", ".join([*list(names)[:_COLUMNS_SHOWN], *more]) or "none"


# --- IDX

_IDX = re.compile(r"(\.gz|\.idx|-ubyte|[.-]idx\d(-\w+)?)$", re.IGNORECASE)
_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(path: Path, source: Source) -> Content:
    """Reads an IDX file, optionally gzipped, and the labels in the same folder.

    The name of the label file has `labels` in place of `images` and `idx1` in place of
    `idx3`.

    Args:
      path: the path of the image file.
      source: the settings; `labels` is used.

    Returns:
      The images, and the labels if their file exists. A note tells if the file is
      missing.

    Raises:
      ValueError: the file is damaged, or the numbers of images and labels differ.
    """
    values, stem = _idx(path), path.name.removesuffix(".gz")
    label_name = re.sub(r"idx\d", "idx1", stem.replace("images", "labels"))
    if not source.labels or label_name == stem:
        return Content(values)
    for file in (path.with_name(label_name), path.with_name(f"{label_name}.gz")):
        if file.exists():
            labels = _idx(file)
            if len(labels) != len(values):
                raise ValueError(
                    f"has {len(values)} images but {len(labels)} labels; one label per "
                    "image is required"
                )
            return Content(values, labels)
    note = f"no labels, because {label_name} is not in the same folder"
    return Content(values, notes=[note])


def read_idx_folder(folder: Path, source: Source) -> Content:
    """Reads a folder of four IDX files: first training, then test images.

    Args:
      folder: the path of the folder.
      source: the settings; `split` must be "all".

    Returns:
      The images, and the labels if `labels` is True.

    Raises:
      ValueError: a file is missing or damaged, or `split` is not "all".
    """
    if source.split != "all":
        raise ValueError("is a folder of IDX files, so `split` must be all")
    parts = []
    for split in ("train", "t10k"):
        file = _images_of(folder, split)
        if file is None:
            raise ValueError(
                f"has no {split}-images-idx3-ubyte (or .gz); a folder of IDX files "
                "must have the training and the test images"
            )
        parts.append(read_idx(file, source))
    values = np.concatenate([part.values for part in parts])
    labels = [part.labels for part in parts if part.labels is not None]
    if not source.labels:
        return Content(values)
    if len(labels) < 2:
        raise ValueError(
            "has images without labels; give all four IDX files, or use `labels=False`"
        )
    return Content(values, np.concatenate(labels))


def _images_of(folder: Path, split: str) -> Path | None:
    names = [
        f"{split}-images{dot}idx3-ubyte{end}" for dot in "-." for end in ("", ".gz")
    ]
    return next((folder / name for name in names if (folder / name).exists()), None)


def _idx(file: Path) -> np.ndarray:
    """Reads the array of an IDX file."""
    content = read_unpacked(file)
    kind = _TYPES.get(content[2]) if content[:2] == b"\0\0" and content[3:] else None
    if kind is None:
        raise ValueError(
            f"is not an IDX file: {file.name} starts with the bytes "
            f"{content[:4].hex(' ')}"
        )
    start = 4 + 4 * content[3]
    shape = [int.from_bytes(content[at : at + 4]) for at in range(4, start, 4)]
    dtype = np.dtype(kind)
    size = start + math.prod(shape) * dtype.itemsize
    if len(content) != size:
        raise ValueError(
            f"is damaged: {file.name} has {len(content)} bytes, but its header says "
            f"{size}"
        )
    values = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return values.astype(dtype.newbyteorder("="))


def read_unpacked(file: Path) -> bytes:
    """Returns the content of a file, decompressed if it is gzip.

    Args:
      file: the path of the file.

    Returns:
      The bytes.

    Raises:
      ValueError: the gzip data is damaged, or it expands to more than
        `arrays.expansion_limit`.
    """
    content = file.read_bytes()
    # Test the content and not the name, because browsers may decompress a .gz file
    # without renaming it.
    if content[:2] != b"\x1f\x8b":
        return content
    chunks, size, limit = [], 0, arrays.expansion_limit(file)
    with (
        decoding(f"is damaged: {file.name} cannot be decompressed"),
        gzip.GzipFile(fileobj=io.BytesIO(content)) as stream,
    ):
        while size <= limit and (chunk := stream.read(2**20)):
            chunks.append(chunk)
            size += len(chunk)
    arrays.check_size(file, size)
    return b"".join(chunks)


# --- Any file

Reader = Callable[[Path, Source], Content]

WITH_ARRAYS: dict[str, Reader] = {
    ".npz": arrays.read_npz,
    ".h5ad": arrays.read_h5ad,
    **dict.fromkeys((".h5", ".hdf5"), arrays.read_h5),
    ".safetensors": arrays.read_safetensors,
}
"""The formats of arrays with names, for `array`, `label_array` and `client_array`."""
PICKLES = (".pkl", ".pkl.gz", ".pickle", ".pt", ".pth", ".joblib")
"""Endings of files that may hold a pickle and are refused."""
FORMATS: dict[str, Reader] = {
    **WITH_ARRAYS,
    ".npy": arrays.read_npy,
    ".mat": arrays.read_mat,
    ".json": arrays.read_leaf,
    **dict.fromkeys(PICKLES, arrays.refuse_pickle),
    ".parquet": read_parquet,
    **dict.fromkeys((".csv", ".csv.gz", ".tra", ".tes", ".data", ".txt"), read_csv),
}
"""The function that reads the files with an ending; IDX files have many endings."""


def read(source: Source, scaling: Scaling | None = None) -> Dataset:
    """Returns the examples of a file or folder, see `load`.

    Args:
      source: the settings; `dataset` is a path.
      scaling: the scaling of the training data of a model; None computes it.

    Returns:
      The data set.

    Raises:
      ValueError: one line that says what is wrong and what is accepted.
    """
    name = source.dataset
    with name_errors(name):
        location = Path(name.removeprefix(HUGGING_FACE))
        reader = _reader(name, location, source)
        # The content has no name here, so that its arrays are freed after conversion.
        return _convert(name, reader(location, source), source, scaling)


def is_file_name(name: str) -> bool:
    """Returns whether a name ends like an accepted file or starts like a path.

    The file need not exist. This tells a misspelled path from a misspelled name.

    Args:
      name: a path, or the name of a data set.

    Returns:
      True for the name of a file, also if the file does not exist.
    """
    starts = name.startswith(("./", "../", "/", HUGGING_FACE))
    return starts or name.lower().endswith(tuple(FORMATS)) or bool(_IDX.search(name))


def _reader(full_name: str, path: Path, source: Source) -> Reader:
    """Returns the function that reads a path, after a check of the source."""
    if not path.exists():
        raise ValueError("does not exist; check the path")
    name = path.name.lower()
    for setting in ARRAY_SETTINGS:
        if getattr(source, setting) and not name.endswith(tuple(WITH_ARRAYS)):
            raise ValueError(
                f"has no arrays with names; `{setting}` is only for "
                f"{', '.join(WITH_ARRAYS)}"
            )
    if full_name.startswith(HUGGING_FACE):
        return read_saved
    if source.client_folders and not path.is_dir():
        raise ValueError("is not a folder; `client_folders` is only for folders")
    if path.is_file() and path.stat().st_size == 0:
        raise ValueError("is an empty file")
    reader = next((FORMATS[end] for end in FORMATS if name.endswith(end)), None)
    if source.client_column is not None and reader not in (read_csv, read_parquet):
        raise ValueError(
            "has no columns; `client_column` is only for .csv, .parquet and hf:PATH"
        )
    if reader is not None:
        return reader
    # The files of CIFAR in Python's format have no ending.
    if any(map(_is_pickle, (path, path / "data_batch_1", path / "train"))):
        return arrays.refuse_pickle
    if path.is_dir():
        has_idx = any(_images_of(path, split) for split in ("train", "t10k"))
        return read_idx_folder if has_idx else images.read_images
    if _IDX.search(name):
        return read_idx
    raise ValueError(
        "has an unknown file type; accepted are .npz, .npy, .h5, .h5ad, .safetensors, "
        ".mat, .json of LEAF, .csv (also .tra, .tes, .data, .txt), .parquet, IDX (.gz "
        "or not), a folder of images or of the four IDX files, and hf:PATH"
    )


def _is_pickle(path: Path) -> bool:
    """Returns whether a file starts like a pickle of protocol 2 or later."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        start = stream.read(2)
    return start[:1] == b"\x80" and start[1:] in (b"\2", b"\3", b"\4", b"\5")


def _convert(
    name: str, content: Content, source: Source, scaling: Scaling | None
) -> Dataset:
    """Turns the content of a file into a data set."""
    values, labels, notes, clients, names = content
    examples = dataset.images_or_vectors(values, source.image_shape or None)
    del values, content
    if examples.ndim == 4:
        examples, more = dataset.pixels(examples)
        if source.resize is not None:
            examples = images.resize_images(examples, source.resize)
            more.append(f"images resized to {source.resize}x{source.resize}")
    elif source.resize is not None:
        raise ValueError(
            "has feature vectors, but `resize` is only for images; give `image_shape` "
            "if the rows are images"
        )
    else:
        examples, more, scaling = dataset.scaled(
            examples, source.scale_columns, scaling
        )
    if labels is not None:
        labels, label_notes = dataset.classes(labels)
        more += label_notes
    client_names = ()
    if clients is not None:
        clients, client_names = dataset.client_numbers(clients)
    notes = (*notes, *more, *dataset.duplicates(examples))
    notes = tuple(map(dataset.printable, notes))
    return dataset.validate(
        Dataset(name, examples, labels, notes, scaling, clients, names, client_names)
    )
