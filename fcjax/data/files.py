"""Data sets in files: Hugging Face, IDX, and the formats of other modules.

Each format has one function, which reads a path into a `Content`. `FORMATS` maps file
endings to these functions. `read` turns the content into a `Dataset`. Tables are in
`fcjax.data.table_files`, and images in `fcjax.data.images`.
"""

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fcjax.data import arrays, dataset, images
from fcjax.data.dataset import (
    Content,
    Dataset,
    Scaling,
    decoding,
    name_errors,
)
from fcjax.data.source import ARRAY_SETTINGS, FOR_TABLES, Source
from fcjax.data.table_files import (
    MISSING_PACKAGE,
    read_excel,
    read_feather,
    read_parquet,
    read_text,
)
from fcjax.data.tables import column_index, content_of, join_names

HUGGING_FACE = "hf:"
"""The prefix of a path to a folder that `datasets.Dataset.save_to_disk` wrote."""


# --- Hugging Face


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
        raise ValueError(MISSING_PACKAGE) from error
    with decoding("is damaged or not a folder written by save_to_disk"):
        saved = datasets.load_from_disk(str(path))
    if isinstance(saved, datasets.DatasetDict):
        parts = {str(name): part for name, part in saved.items()}
    else:
        parts = {"all": saved}
    selected = [part for name, part in parts.items() if source.split in ("all", name)]
    if not selected:
        raise ValueError(
            f"has no split {source.split}; its splits are {join_names(list(parts))}"
        )
    whole = datasets.concatenate_datasets(selected)
    kinds = {name: type(kind).__name__ for name, kind in whole.features.items()}
    client, label = source.client_column, source.label_column
    for setting in ("client_column", "label_column"):
        if (name := getattr(source, setting)) is not None:
            column_index(name, list(kinds), setting)  # raises for a wrong name
    pictures = [name for name, kind in kinds.items() if kind == "Image"]
    classes = [k for k, v in kinds.items() if v == "ClassLabel" and k != client]
    classes = ([label] if label else classes) if source.labels else []
    if len(pictures) != 1 or len(classes) > 1:
        columns = ", ".join(f"{name} ({kind})" for name, kind in kinds.items())
        raise ValueError(
            "must have one column of type Image and at most one of type ClassLabel; "
            f"its columns are {columns}"
        )
    names: list[str] = [*pictures, *classes]
    if client is not None and client not in names:
        names.append(client)
    table: Any = whole.select_columns(names).with_format("arrow")[:]
    roles = dataclasses.replace(
        source,
        labels=bool(classes),
        label_column=classes[0] if classes else None,
    )
    frame = table.to_pandas(types_mapper=pd.ArrowDtype)
    return content_of(frame, names, roles, follow_paths=True)


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
    content = arrays.read_unpacked(file)
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
_TEXT = (".csv", ".tsv", ".txt", ".data", ".tra", ".tes")
TABLES = (read_parquet, read_feather, read_excel, read_text)
FORMATS: dict[str, Reader] = {
    **WITH_ARRAYS,
    ".npy": arrays.read_npy,
    ".mat": arrays.read_mat,
    ".json": arrays.read_leaf,
    **dict.fromkeys(PICKLES, arrays.refuse_pickle),
    ".parquet": read_parquet,
    ".feather": read_feather,
    ".xlsx": read_excel,
    **{ending + packed: read_text for ending in _TEXT for packed in ("", ".gz")},
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
        return convert(name, reader(location, source), source, scaling)


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
        _refuse_settings(source, ("drop_columns", "one_hot", "missing"))
        return read_saved
    if source.client_folders and not path.is_dir():
        raise ValueError("is not a folder; `client_folders` is only for folders")
    if path.is_file() and path.stat().st_size == 0:
        raise ValueError("is an empty file")
    reader = next((FORMATS[end] for end in FORMATS if name.endswith(end)), None)
    if reader not in TABLES:
        _refuse_settings(source, FOR_TABLES)
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
        ".mat, .json of LEAF, .csv (also .tsv, .txt, .data, .tra, .tes), .parquet, "
        ".feather, .xlsx, IDX (.gz or not), a folder of images or of the four IDX "
        "files, and hf:PATH"
    )


def _is_pickle(path: Path) -> bool:
    """Returns whether a file starts like a pickle of protocol 2 or later."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        start = stream.read(2)
    return start[:1] == b"\x80" and start[1:] in (b"\2", b"\3", b"\4", b"\5")


def _refuse_settings(source: Source, settings: tuple[str, ...]) -> None:
    """Raises ValueError if a setting of tables is set for another format."""
    for name in settings:
        if getattr(source, name) != getattr(Source(), name):
            accepted = "tables, such as .csv, .parquet or .xlsx"
            if name in ("client_column", "label_column"):
                accepted += ", and hf:PATH"
            raise ValueError(f"is not a table; `{name}` is only for {accepted}")


def convert(
    name: str, content: Content, source: Source, scaling: Scaling | None
) -> Dataset:
    """Turns the content of a file or a table into a data set.

    Args:
      name: the name of the data set.
      content: the content.
      source: the settings.
      scaling: the scaling of the training data of a model; None computes it.

    Returns:
      The data set.

    Raises:
      ValueError: the values have a wrong shape or type.
    """
    values, labels, notes, clients, names, columns = content
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
        if scaling is not None and scaling.columns and columns:
            try:
                order = dataset.order_of(scaling.columns, columns)
            except ValueError as error:
                hint = "; if the table has no class column, use `labels=False`"
                raise ValueError(f"{error}{hint if source.labels else ''}") from None
            examples = examples[:, order]
        is_model = scaling is not None
        examples, more, scaling = dataset.scaled(
            examples, source.scale_columns, scaling
        )
        scaling = scaling if is_model else scaling._replace(columns=columns)
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
