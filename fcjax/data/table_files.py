"""Files of tables: text files, Parquet, Feather and Excel.

Each format becomes a DataFrame and the names of its columns, and
`fcjax.data.tables.content_of` applies the same rules to all of them. Error messages are
predicates, see `fcjax.data.dataset`.
"""

import codecs
import csv
import importlib.util
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fcjax.data.arrays import read_unpacked
from fcjax.data.dataset import Content, counted, decoding
from fcjax.data.source import Source
from fcjax.data.tables import (
    CLASS_NAMES,
    MISSING_TEXTS,
    content_of,
    join_names,
    numbered,
    parsed,
)

MISSING_PACKAGE = (
    "requires packages that are not installed; run: pip install datasets pyarrow"
)
_SEPARATORS = "\t;|, "
"""The separators in the order of preference; a space is any white space."""
_SAMPLE = 50
"""The number of lines that decide on the separator and the header."""


# --- Files


def read_text(path: Path, source: Source) -> Content:
    """Reads a table in a text file, such as `.csv` or `.tsv`.

    The separator is a tab, a semicolon, a vertical bar, a comma or white space. The
    text is UTF-8, UTF-16 or Latin-1.

    Args:
      path: the path of the file, optionally gzipped.
      source: the settings of tables.

    Returns:
      The values, and the labels and clients if there are any. The notes tell how the
      file was read.

    Raises:
      ValueError: the file is not a table, or `content_of` refuses the table.
    """
    text, notes = _decoded(read_unpacked(path))
    rows: list[list[str]] = []
    try:
        separator, width = _separator(text)
        for line, cells in _records(io.StringIO(text, newline=""), separator):
            if len(cells) != width:
                raise ValueError(
                    f"has {counted(len(cells), 'cell')} in line {line}, but {width} in "
                    "other lines; each line must have the same number of cells"
                )
            rows.append(cells)
    except csv.Error as error:
        raise ValueError(f"is not a table in a text file ({error})") from error
    if width > 2 and not any(cells[-1] for cells in rows):
        rows = [cells[:-1] for cells in rows]
        notes.append("last column ignored, because all its cells are empty")
    content = _content_of_cells(rows, source, decimal_comma=separator != ",")
    return content._replace(notes=[*notes, *content.notes])


def read_excel(path: Path, source: Source) -> Content:
    """Reads the first sheet of an Excel file.

    Args:
      path: the path of the file.
      source: the settings of tables.

    Returns:
      The content, see `read_text`.

    Raises:
      ValueError: the file is damaged, its reader is not installed, or `content_of`
        refuses the table.
    """
    if importlib.util.find_spec("openpyxl") is None:
        raise ValueError(
            "requires a package that is not installed; run: pip install openpyxl"
        )
    with decoding("is damaged or not an .xlsx file"):
        book = pd.ExcelFile(path, engine="openpyxl")
        sheets = list(map(str, book.sheet_names))
        frame = pd.read_excel(book, header=None, dtype=str, na_filter=False)
    rows = [[cell.strip() for cell in row] for row in frame.to_numpy().tolist()]
    content = _content_of_cells(list(filter(any, rows)), source)
    note = f"sheet {sheets[0]} read; other sheets ignored: {join_names(sheets[1:])}"
    notes = [note] if len(sheets) > 1 else []
    return content._replace(notes=[*notes, *content.notes])


def read_parquet(path: Path, source: Source) -> Content:
    """Reads a Parquet file.

    The features are columns, or one column of images as Hugging Face stores them.

    Args:
      path: the path of the file.
      source: the settings of tables.

    Returns:
      The content, see `read_text`.

    Raises:
      ValueError: the file is damaged, the package pyarrow is not installed, or
        `content_of` refuses the table.
    """
    return _read_arrow(path, source, pd.read_parquet)


def read_feather(path: Path, source: Source) -> Content:
    """Reads a Feather file, see `read_parquet`.

    Args:
      path: the path of the file.
      source: the settings of tables.

    Returns:
      The content.

    Raises:
      ValueError: see `read_parquet`.
    """
    return _read_arrow(path, source, pd.read_feather)


def _read_arrow(path: Path, source: Source, reader: Any) -> Content:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ValueError(MISSING_PACKAGE) from error
    with decoding(f"is damaged or not a {path.suffix.lower()} file"):
        frame = reader(path, dtype_backend="pyarrow")
    return content_of(frame, list(map(str, frame.columns)), source)


def _decoded(content: bytes) -> tuple[str, list[str]]:
    """Returns the text of a file, and a note if its encoding is a guess."""
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    notes = []
    try:
        text = content.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
        notes.append("text read as Latin-1, because it is not UTF-8")
    if "\0" in text:
        raise ValueError("is not a table in a text file (it has NUL bytes)")
    return text, notes


def _records(lines: Iterable[str], separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the line number and the cells of each row that is not blank."""
    if separator == " ":
        separator = "\t"
        lines = (
            re.sub(r'("[^"]*")|[ \t]+', lambda found: found[1] or "\t", line.strip())
            for line in lines
        )
    reader = csv.reader(lines, delimiter=separator, strict=True, skipinitialspace=True)
    for row in reader:
        cells = [cell.strip() for cell in row]
        if len(cells) > 1 or any(cells):
            yield reader.line_num, cells


def _separator(text: str) -> tuple[str, int]:
    """Returns the separator, and the number of columns.

    The first lines decide: the best separator gives the most lines the same number of
    cells, which is at least 2.
    """
    best, separator, width, fault = 0.0, "", 1, None
    for candidate in _SEPARATORS:
        lines = io.StringIO(text, newline="")
        try:
            sample = list(itertools.islice(_records(lines, candidate), _SAMPLE))
        except csv.Error as error:
            fault = error
            continue
        if not sample:
            raise ValueError("is not a table in a text file (it has only blank lines)")
        (number, lines_of), *_ = Counter(
            len(cells) for _, cells in sample
        ).most_common()
        if number > 1 and lines_of / len(sample) > best:
            best, separator, width = lines_of / len(sample), candidate, number
    if separator:
        return separator, width
    if fault is not None:
        raise fault
    raise ValueError(
        "has 1 column; at least 2 are required, separated by tabs, semicolons, "
        "vertical bars, commas or spaces"
    )


# --- Header


def _content_of_cells(
    rows: list[list[str]], source: Source, *, decimal_comma: bool = False
) -> Content:
    """Returns the content of a table of texts, whose first row may be a header."""
    if not rows:
        raise ValueError("has no rows; at least 2 examples are required")
    columns = list(zip(*rows, strict=True))
    names, notes = numbered(len(columns)), []
    if _is_header(columns, source, decimal_comma):
        first = rows[0]
        names = [own or number for own, number in zip(first, names, strict=True)]
        if not first[0]:  # as pandas writes the index
            names[0] = "Unnamed: 0"
        columns = [column[1:] for column in columns]
        notes.append(f"first row read as header: {','.join(first)[:60]}")
    frame = pd.DataFrame(dict(enumerate(columns)), dtype=object)
    content = content_of(frame, names, source, decimal_comma=decimal_comma)
    return content._replace(notes=[*notes, *content.notes])


def _is_header(
    columns: list[tuple[str, ...]], source: Source, decimal_comma: bool
) -> bool:
    """Returns whether the first row of a table has the names of the columns."""
    first = [column[0] for column in columns]
    below = [column[1 : 1 + _SAMPLE] for column in columns]
    values = [parsed([cell], decimal_comma) for cell in first]
    is_number = [x is not None and not np.isnan(x[0]) for x in values]
    given = {source.label_column, source.client_column, *source.drop_columns}
    texts = [i for i, value in enumerate(values) if value is None]
    if any(first[i] in given for i in texts):
        return True
    numbers = list(itertools.compress(first, is_number))
    counts = [list(map(str, range(start, start + len(numbers)))) for start in (0, 1)]
    if len(numbers) >= 3 and numbers in counts:  # the default names of pandas
        return True
    recurs = [first[i] in columns[i][1:] for i in texts]
    if any(
        first[i].lower() in CLASS_NAMES[:3] and not again
        for i, again in zip(texts, recurs, strict=True)
    ):
        return True
    if not first[0] and below[0] in (
        tuple(map(str, range(start, start + len(below[0])))) for start in (0, 1)
    ):
        return True
    numeric = [
        i
        for i, cells in enumerate(below)
        if any(x.lower() not in MISSING_TEXTS for x in cells)
        and parsed(cells, decimal_comma) is not None
    ]
    above = {*numeric} & {*texts}
    # A text above the numbers of the last column would become a class.
    if above and (2 * len(above) >= len(numeric) or len(first) - 1 in above):
        return True
    features = range(not first[0], len(first) - source.labels)
    return (
        len(features) > 0 and {*features} <= {*texts} and 2 * sum(recurs) <= len(recurs)
    )
