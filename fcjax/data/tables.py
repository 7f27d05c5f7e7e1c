"""The columns of tables: features, class and client, by the same rules in all formats.

`content_of` takes a DataFrame; `fcjax.data.table_files` reads files into one. Error
messages are predicates, see `fcjax.data.dataset`.
"""

import io
import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fcjax.data import dataset, images
from fcjax.data.dataset import Content, counted, decoding
from fcjax.data.source import Source

CLASS_NAMES = ("label", "class", "target", "y")
"""Headers, in lower case, of columns that are taken as the class."""
_COLUMNS_SHOWN = 10
_MAX_CATEGORIES = 100
# pandas' texts for missing values, and the question mark of the UCI repository.
_MISSING = "|?|na|n/a|#na|#n/a|#n/a n/a|<na>|nan|-nan|null|none|1.#ind|-1.#ind|1.#qnan"
MISSING_TEXTS = frozenset([*_MISSING.split("|"), "-1.#qnan"])
"""The texts, in lower case, of missing values."""


# --- Roles of columns


def numbered(number: int) -> list[str]:
    """Returns the names of the columns of a table without a header: 1, 2, ...

    Args:
      number: the number of columns.

    Returns:
      The names.
    """
    return [str(i + 1) for i in range(number)]


def content_of(
    frame: pd.DataFrame,
    names: Sequence[str],
    source: Source,
    *,
    last_is_class: bool = True,
    decimal_comma: bool = False,
    follow_paths: bool = False,
) -> Content:
    """Separates a table into clients, classes and features.

    Args:
      frame: the examples, one row per example.
      names: the names of the columns; `numbered` for a table without a header.
      source: the settings of tables.
      last_is_class: whether the last column is the class if no other column is.
      decimal_comma: whether numbers with a decimal comma are numbers.
      follow_paths: whether images may be in other files, which the folder of
        `save_to_disk` names. A single file must not open other files.

    Returns:
      The content. The notes tell how the columns were read.

    Raises:
      ValueError: a column of a setting does not exist, or a feature is not a number or
        is missing.
    """
    features, label, client, notes = _roles(names, source, last_is_class)
    labels = None if label is None else _cell_values(frame.iloc[:, label])
    clients = None if client is None else _cell_values(frame.iloc[:, client])
    if label is not None and labels is not None and is_guess(names[label], source):
        different = len(np.unique(labels))
        if different > max(10, len(labels) // 4):
            raise ValueError(
                f"has {different} different values in {counted(len(labels), 'example')}"
                f" of its last column, {names[label]}, which would be the class; name "
                "the class with `label_column`, or use `labels=False`"
            )
    if not features:
        raise ValueError(
            f"has {counted(len(names), 'column')}; at least one feature is required, "
            "besides the class, the client and dropped columns"
        )
    columns = [frame.iloc[:, i] for i in features]
    if len(columns) == 1 and isinstance(_first(columns[0]), dict):
        streams = [partial(_image, cell, follow_paths) for cell in columns[0]]
        titles = [f"of example {number}" for number in range(1, len(streams) + 1)]
        values, more = images.decode_images(titles, streams, source.resize)
        return Content(values, labels, [*notes, *more], clients)
    own = [names[i] for i in features]
    blocks, more = _blocks(columns, own, source, decimal_comma)
    notes += more
    if not source.keep_index:
        singles = np.column_stack([block[:, 0] for block in blocks])
        is_index, more = dataset.index_columns(singles, own)
        notes += more
        blocks = list(itertools.compress(blocks, ~is_index))
        own = list(itertools.compress(own, ~is_index))
    kept, more = _fill(blocks, own, labels, source)
    notes += more
    values = np.concatenate(blocks, axis=1)
    # Columns without a header have numbers in place of names, and `one_hot` gives a
    # text several columns.
    has_names = list(names) != numbered(len(names)) and values.shape[1] == len(own)
    columns = tuple(own) if has_names and len({*own}) == len(own) else ()
    if kept.all():
        return Content(values, labels, notes, clients, columns=columns)
    labels, clients = (None if x is None else x[kept] for x in (labels, clients))
    rows = np.flatnonzero(kept).astype(str)
    return Content(values[kept], labels, notes, clients, rows, columns)


def is_guess(name: str, source: Source) -> bool:
    """Returns whether a column is the class only because it is the last one.

    Args:
      name: the name of the class column.
      source: the settings of tables.

    Returns:
      False for a given column, and for a usual name of the class.
    """
    return source.label_column is None and name.lower() not in CLASS_NAMES


def _roles(
    names: Sequence[str], source: Source, last_is_class: bool
) -> tuple[list[int], int | None, int | None, list[str]]:
    """Returns the features, the class, the client, and notes on the choice."""
    notes: list[str] = []
    given = [("drop_columns", name) for name in source.drop_columns]
    for setting in ("label_column", "client_column"):
        if (name := getattr(source, setting)) is not None:
            given.append((setting, name))
    index = {
        (setting, name): column_index(name, names, setting) for setting, name in given
    }
    if len({*index.values()}) < len(index):
        settings = " and ".join(sorted({f"`{setting}`" for setting, _ in index}))
        raise ValueError(f"has a column that is named twice in {settings}")
    label = index.get(("label_column", source.label_column or ""))
    client = index.get(("client_column", source.client_column or ""))
    features = [i for i in range(len(names)) if i not in index.values()]
    lower = {i: names[i].lower() for i in features}
    named = [i for i in features if lower[i] in CLASS_NAMES]
    if "x" in lower.values():  # Then y is a coordinate.
        named = [i for i in named if lower[i] != "y"]
    if not source.labels or label is not None:
        notes += [
            f"column {names[i]} is a feature; `drop_columns` leaves it out"
            for i in named
        ]
        return features, label if source.labels else None, client, notes
    if len(named) > 1 and not (last_is_class and features[-1] in named):
        raise ValueError(
            f"has the columns {join_names([names[i] for i in named])}, and each may be "
            "the class; choose one with `label_column`"
        )
    if len(named) == 1:
        (label,) = named
        notes.append(f"class: column {names[label]}, because of its name")
    elif last_is_class and features:
        label = features[-1]
        if list(names) != numbered(len(names)):
            notes.append(
                f"class: the last column, {names[label]}; `label_column` names another"
            )
    return [i for i in features if i != label], label, client, notes


def column_index(column: str, names: Sequence[str], setting: str) -> int:
    """Returns the index of a column that a setting names.

    Args:
      column: the name of the column.
      names: the names of all columns.
      setting: the name of the setting, for errors.

    Returns:
      The index.

    Raises:
      ValueError: no column or several columns have this name.
    """
    found = [i for i, name in enumerate(names) if name == column]
    if len(found) > 1:
        raise ValueError(
            f"has {len(found)} columns {column!r} (`{setting}`); rename one of them"
        )
    if not found:
        raise ValueError(
            f"has no column {column!r} (`{setting}`); its columns are "
            f"{join_names(names)}"
        )
    return found[0]


def join_names(names: Sequence[str]) -> str:
    """Returns the first names as a list in text.

    Args:
      names: the names.

    Returns:
      At most ten names, and the number of all names if there are more.
    """
    more = [f"... {len(names)} in all"] if len(names) > _COLUMNS_SHOWN else []
    return ", ".join([*list(names)[:_COLUMNS_SHOWN], *more]) or "none"


# --- Columns


def _cell_values(column: pd.Series) -> np.ndarray:
    """Returns the cells of a class or client column; a missing cell is an empty text.

    Cells that are not numbers become texts, and so do all cells if one is missing.
    """
    missing = column.isna().to_numpy(bool)
    if _is_numeric(column) and not missing.any():
        return column.to_numpy()
    cells = column.tolist()
    return np.array(
        [
            "" if gone else str(cell)
            for cell, gone in zip(cells, missing.tolist(), strict=True)
        ],
        dtype=str,
    )


def _first(column: pd.Series) -> Any:
    """Returns the first cell that is not missing; None if all are."""
    present = column.notna().to_numpy(bool)
    return column.iloc[int(present.argmax())] if present.any() else None


def _is_numeric(column: pd.Series) -> bool:
    kinds = pd.api.types
    is_number = kinds.is_numeric_dtype(column) or kinds.is_bool_dtype(column)
    return is_number and not kinds.is_complex_dtype(column)


def _blocks(
    columns: Sequence[pd.Series],
    names: Sequence[str],
    source: Source,
    decimal_comma: bool,
) -> tuple[list[np.ndarray], list[str]]:
    """Returns the features of each column, [P, K] with NaN if missing, and notes."""
    notes: list[str] = []
    texts: dict[int, list[str]] = {}
    blocks: list[np.ndarray] = []
    for i, column in enumerate(columns):
        if _is_numeric(column):
            block = column.to_numpy(np.float64, na_value=np.nan)[:, None]
        elif isinstance(_first(column), list | tuple | np.ndarray):
            block = _expanded(column, names[i])
            notes.append(f"column {names[i]} read as {block.shape[1]} features")
        else:
            cells = [cell.strip() for cell in _cell_values(column).tolist()]
            block, texts[i] = np.empty((len(cells), 0)), cells
        blocks.append(block)
    if decimal_comma and (commas := _commas(texts)):
        notes.append(f"decimal commas read in {join_names([names[i] for i in commas])}")
        texts |= {i: [x.replace(",", ".") for x in texts[i]] for i in commas}
    words = []
    for i, cells in texts.items():
        values = parsed(cells)
        if values is None and {x.lower() for x in cells} - MISSING_TEXTS == {
            "true",
            "false",
        }:
            known = {"true": "1", "false": "0"}
            values = parsed([known.get(x.lower(), x) for x in cells])
            notes.append(f"column {names[i]}: true read as 1, false as 0")
        if values is not None:
            blocks[i] = values[:, None]
        elif source.one_hot:
            blocks[i], note = _one_hot(cells, names[i], source)
            notes.append(note)
        else:
            words.append(i)
    if words:
        shown = [
            f"{names[i]} ({_example(texts[i], decimal_comma)})"
            for i in words[:_COLUMNS_SHOWN]
        ]
        more = ", ..." if len(words) > len(shown) else ""
        raise ValueError(
            f"has text in {counted(len(words), 'feature column')}: {', '.join(shown)}"
            f"{more}; features must be numbers, so leave columns out with "
            "`drop_columns`, encode texts as numbers with `one_hot`, or name the class "
            "with `label_column` or the client with `client_column`"
        )
    return blocks, notes


def _example(cells: list[str], decimal_comma: bool) -> str:
    """Returns the first cell that is no number, with its example.

    Without such a cell, the column mixes points and commas.
    """
    wrong = (i for i, cell in enumerate(cells) if parsed([cell], decimal_comma) is None)
    mixed = (i for i, cell in enumerate(cells) if parsed([cell]) is None)
    first = next(itertools.chain(wrong, mixed))
    return f"{cells[first][:60]!r} in example {first + 1}"


def parsed(cells: Sequence[str], decimal_comma: bool = False) -> np.ndarray | None:
    """Returns texts as numbers.

    Args:
      cells: the texts of a column.
      decimal_comma: whether 0,5 is a number.

    Returns:
      [P] numbers, NaN for missing ones; None if a text is no number.
    """
    if decimal_comma:
        cells = [cell.replace(",", ".") for cell in cells]
    try:
        numbers = list(map(float, cells))
    except ValueError:
        try:
            numbers = [
                np.nan if cell.lower() in MISSING_TEXTS else float(cell)
                for cell in cells
            ]
        except ValueError:
            return None
    # Python accepts 1_000 as a number.
    return None if any("_" in cell for cell in cells) else np.array(numbers, float)


def _commas(texts: dict[int, list[str]]) -> list[int]:
    """Returns the columns with decimal commas; none if a number has a point."""
    found = []
    for i, cells in texts.items():
        if parsed(cells) is not None:
            if any("." in cell and cell.lower() not in MISSING_TEXTS for cell in cells):
                return []
        elif parsed(cells, decimal_comma=True) is not None:
            if any("." in cell and cell.lower() not in MISSING_TEXTS for cell in cells):
                return []
            found.append(i)
    return found


def _expanded(column: pd.Series, name: str) -> np.ndarray:
    """Returns a column of lists of numbers as features [P, K]."""
    present = column.notna().to_numpy(bool).tolist()
    rows = [
        np.asarray(x, object) if is_here else None
        for x, is_here in zip(column, present, strict=True)
    ]
    shapes = sorted({x.shape for x in rows if x is not None})
    if len(shapes) > 1 or len(shapes[0]) != 1 or shapes[0][0] == 0:
        raise ValueError(
            f"has arrays of shape {' and '.join(map(str, shapes[:2]))} in column "
            f"{name}; accepted are lists of numbers of one length"
        )
    block = np.full((len(rows), *shapes[0]), np.nan)
    with decoding(f"has lists in column {name} that are not numbers"):
        for number, row in enumerate(rows):
            if row is not None:
                block[number] = row.astype(np.float64)
    return block


def _one_hot(cells: list[str], name: str, source: Source) -> tuple[np.ndarray, str]:
    """Returns one column of 0 and 1 per category, and a note."""
    array = np.array(cells)
    missing = np.array([cell.lower() in MISSING_TEXTS for cell in cells])
    categories = np.unique(array[~missing])
    if len(categories) > 10 and len(categories) == (~missing).sum():
        raise ValueError(
            f"has another text in every example of column {name}, so the column says "
            "nothing about groups; leave it out with `drop_columns`"
        )
    if len(categories) > _MAX_CATEGORIES:
        raise ValueError(
            f"has {len(categories)} different texts in column {name}; `one_hot` "
            f"accepts at most {_MAX_CATEGORIES} per column, so leave the column out "
            "with `drop_columns`"
        )
    if missing.any() and source.missing == "median":
        raise ValueError(
            f"has {counted(int(missing.sum()), 'missing value')} in the text column "
            f"{name}, which has no median; set `missing` to drop, or leave the column "
            "out with `drop_columns`"
        )
    block = (array[:, None] == categories).astype(np.float64)
    block[missing] = np.nan
    listed = join_names(categories.tolist())
    many = counted(len(categories), "column")
    return block, f"column {name} read as {many} of 0 and 1: {listed}"


def _fill(
    blocks: list[np.ndarray],
    names: Sequence[str],
    labels: np.ndarray | None,
    source: Source,
) -> tuple[np.ndarray, list[str]]:
    """Treats missing values as `missing` says; medians are written into the blocks.

    Args:
      blocks: the features of each column, [P, K].
      names: the names of the columns.
      labels: the classes [P]; None without classes.
      source: the settings of tables.

    Returns:
      The examples that stay, [P], and notes.
    """
    gone = np.column_stack([np.isnan(block).any(axis=1) for block in blocks])
    with_gap: np.ndarray = np.asarray(gone.any(axis=1))
    kept: np.ndarray = np.ones(len(gone), bool)
    count, holes = int(gone.sum()), np.flatnonzero(gone.any(axis=0)).tolist()
    listed = join_names([names[i] for i in holes])
    if source.missing == "drop":
        kept = ~with_gap
        if labels is not None and labels.dtype.kind == "U":
            kept &= np.char.strip(labels) != ""
        if kept.all():
            return kept, []
        if not kept.any():
            raise ValueError(
                f"has missing values in all examples (columns {listed}); leave columns "
                "out with `drop_columns`"
            )
        return kept, [
            f"{(~kept).sum()} of {counted(len(kept), 'example')} dropped, because of "
            "missing values"
        ]
    if not count:
        return kept, []
    if source.missing == "refuse":
        row = int(np.flatnonzero(with_gap)[0])
        first = names[int(np.flatnonzero(gone[row])[0])]
        raise ValueError(
            f"has {counted(count, 'missing value')} in {with_gap.sum()} of "
            f"{counted(len(gone), 'example')}, the first in column {first}, example "
            f"{row + 1}; `missing` can be refuse (the default), drop (leave these "
            "examples out) or median (in training only: the median of the column)"
        )
    for i in holes:
        if gone[:, i].all():
            raise ValueError(
                f"has no value in column {names[i]}; leave it out with `drop_columns`"
            )
        medians = np.nanmedian(blocks[i], axis=0)
        blocks[i] = np.where(np.isnan(blocks[i]), medians, blocks[i])
    values = counted(count, "missing value")
    return kept, [f"{values} replaced by the median of the column: {listed}"]


def _image(cell: dict[str, Any] | None, follow_paths: bool) -> Any:
    """Opens an image as Hugging Face stores it: as bytes or as the path of a file."""
    cell = cell if isinstance(cell, dict) else {}
    if cell.get("bytes") is None and cell.get("path") and follow_paths:
        return Path(cell["path"]).open("rb")
    return io.BytesIO(cell.get("bytes") or b"")
