"""Examples from columns: Parquet files, and data sets saved by Hugging Face."""

import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fcjax.data.conversion import without_index
from fcjax.data.folders import decoded

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
