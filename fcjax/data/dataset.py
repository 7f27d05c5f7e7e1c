"""A data set in memory, and the conversion of arbitrary arrays into one.

Functions that convert values also return notes: one line per conversion. Error messages
are predicates, such as "has 3 columns; ...", and the caller adds the name of the data
set as the subject.
"""

import contextlib
import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

# --- Dataset

_MAX_LISTED_CLASSES = 10


class Scaling(NamedTuple):
    """The scaling of feature columns: (x - low) / span.

    Examples:
      >>> scaling = Scaling(low=np.array([10.0]), span=np.array([5.0]))
      >>> print((np.array([[10.0], [15.0]]) - scaling.low) / scaling.span)
      [[0.]
       [1.]]
    """

    low: np.ndarray
    """The minimum of each column, [F]; the mean, or 0, for other scales."""
    span: np.ndarray
    """The maximum minus the minimum of each column, [F]; the standard deviation, or 1,
    for other scales; 1 for a constant column."""
    columns: tuple[str, ...] = ()
    """The name of each column, [F], of a table with a header; () without names."""


class Dataset(NamedTuple):
    """A data set: examples in the original order, optional labels and clients.

    The labels are used for scores and never for training.

    Examples:
      >>> images = np.zeros((4, 8, 8, 1), np.uint8)
      >>> dataset = Dataset("mine", images, labels=np.array([0, 0, 1, 1]))
      >>> dataset.examples.shape, dataset.notes
      ((4, 8, 8, 1), ())
    """

    name: str
    """The name that the user gave, for example `digits` or a path."""
    examples: np.ndarray
    """[P, H, W, C] images, uint8 in 0..255 or float32 in [0, 1], with C = 1 for grey
    images; or [P, F] feature vectors, float32."""
    labels: np.ndarray | None
    """[P] integer classes; None for data without labels."""
    notes: tuple[str, ...] = ()
    """One line per conversion of the values."""
    scaling: Scaling | None = None
    """The scaling of feature vectors; None for images."""
    clients: np.ndarray | None = None
    """[P] the client of each example, from 0, or -1 for no client. None for data
    without a natural partition."""
    names: np.ndarray | None = None
    """[P] the name of each example: its file, or its index in the data from 0. None
    for indices without a gap."""
    client_names: tuple[str, ...] = ()
    """The name of each client, in the order of their numbers."""

    def describe(self) -> str:
        """Describes the examples, their values, labels, clients and conversions.

        Returns:
          A text of a few lines.

        Examples:
          >>> images = np.zeros((4, 8, 8, 1), np.uint8)
          >>> print(Dataset("mine", images, labels=np.array([0, 0, 1, 1])).describe())
          data set: mine
            examples: 4 images of 8x8 pixels, 1 channel
            values: uint8, 0 to 0
            labels: 2 classes of 2 examples
            clients: none in the data
        """
        count, *shape = self.examples.shape
        if len(shape) == 3:
            height, width, channels = shape
            kind = f"images of {height}x{width} pixels, {counted(channels, 'channel')}"
        else:
            kind = f"feature vectors of {counted(shape[0], 'column')}"
        low = min(self.examples[rows].min() for rows in chunks(self.examples))
        high = max(self.examples[rows].max() for rows in chunks(self.examples))
        labels, clients = "none", "none in the data"
        if self.labels is not None:
            sizes = np.unique(self.labels, return_counts=True)[1]
            labels = f"{_plural(len(sizes), 'class')} of {_range_of(sizes)}"
        if self.clients is not None:
            sizes = np.bincount(self.clients[self.clients >= 0])
            clients = f"{counted(len(sizes), 'client')} of {_range_of(sizes)}"
            if self.client_names:
                clients += f": {_some(self.client_names)}"
            if number := int((self.clients < 0).sum()):
                clients += f"; {counted(number, 'example')} without a client"
        lines = [
            f"data set: {self.name}",
            f"examples: {count:,} {kind}",
            f"values: {self.examples.dtype}, {low:.4g} to {high:.4g}",
            f"labels: {labels}",
            f"clients: {clients}",
            *self.notes,
        ]
        return "\n  ".join(lines)

    def __repr__(self) -> str:
        return self.describe()


def _plural(number: int, noun: str) -> str:
    """Returns a number with a noun whose plural ends in "es"."""
    return f"{number:,} {noun}{'' if number == 1 else 'es'}"


def _range_of(sizes: np.ndarray) -> str:
    """Returns the smallest and the largest size as text."""
    low, high = sizes.min(), sizes.max()
    return f"{low:,} examples" if low == high else f"{low:,} to {high:,} examples"


def _some(names: Sequence[str]) -> str:
    """Returns the first names as text."""
    shown = [repr(name)[1:-1] for name in names[:_MAX_LISTED_CLASSES]]
    return ", ".join(shown) + ", ..." * (len(names) > len(shown))


def validate(dataset: Dataset) -> Dataset:
    """Returns the data set unchanged if it is usable.

    Args:
      dataset: the data set to check.

    Returns:
      The same data set.

    Raises:
      ValueError: there are no examples, the number of labels or clients differs from
        the number of examples, or a value is NaN or infinite.
    """
    name, examples = dataset[:2]
    if len(examples) == 0:
        raise ValueError(f"dataset {name} has no examples; at least 1 is required")
    for kind, values in (("label", dataset.labels), ("client", dataset.clients)):
        if values is not None and values.shape != examples.shape[:1]:
            raise ValueError(
                f"dataset {name} has {len(examples)} examples but {kind}s of shape "
                f"{values.shape}; one {kind} per example is required"
            )
    is_float = examples.dtype.kind == "f"
    if is_float and not all(np.isfinite(examples[x]).all() for x in chunks(examples)):
        raise ValueError(
            f"dataset {name} has NaN or infinite values; all values must be finite"
        )
    return dataset


# --- Content of a file


class Content(NamedTuple):
    """The content of a file before any conversion."""

    values: np.ndarray
    """The images or feature vectors, [P, ...]."""
    labels: np.ndarray | None = None
    """[P] or [P, 1] the label of each example, if the file has labels."""
    notes: Sequence[str] = ()
    """One line per conversion."""
    clients: np.ndarray | None = None
    """[P] the client of each example, if the file has clients."""
    names: np.ndarray | None = None
    """[P] the name of each example, see `Dataset`."""
    columns: tuple[str, ...] = ()
    """The name of each feature of a table with a header; () without names."""


@contextlib.contextmanager
def decoding(fault: str) -> Iterator[None]:
    """Turns errors of a library about the content of a file into ValueError(fault).

    A damaged file may raise almost any exception type. Errors of the operating system,
    such as a missing permission, are not changed.

    Args:
      fault: the error message; the message of the original error follows in
        parentheses.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{fault} ({str(error) or type(error).__name__})") from error


@contextlib.contextmanager
def name_errors(name: str) -> Iterator[None]:
    """Turns the errors of a data set into one line that starts with its name.

    Args:
      name: the name of the data set.
    """
    try:
        yield
    except OSError as error:
        raise ValueError(f"dataset {name} cannot be read ({error})") from error
    except ValueError as error:
        line = " ".join(str(error).split())
        raise ValueError(printable(f"dataset {name or repr(name)} {line}")) from error


@contextlib.contextmanager
def about(name: str) -> Iterator[None]:
    """Adds the name of an argument to the beginning of a ValueError in the block.

    Args:
      name: the name of the argument.

    Yields:
      None: while the block runs.

    Raises:
      ValueError: the error of the block, with the name.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None


# --- Conversion


def printable(text: str) -> str:
    r"""Returns a text with escapes in place of control and undecodable characters.

    Names of files may have such characters, which could break lines of output or
    control the terminal.

    Args:
      text: the text.

    Returns:
      The text, in which all characters are printable.

    Examples:
      >>> print(printable("two\nlines"))
      two\nlines
    """
    return "".join(
        x if x.isprintable() else x.encode("unicode_escape").decode() for x in text
    )


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: "1 image" or "2 images".

    Args:
      number: the number.
      noun: the noun in the singular.

    Returns:
      The number and the noun, in the plural unless the number is 1.
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


INDEX_NAMES = ("id", "index", "idx", "row_id", "unnamed: 0")
"""Headers, in lower case, of columns that are taken as row numbers."""
_MIN_INDEX_ROWS = 10


def index_columns(
    values: np.ndarray, names: Sequence[str]
) -> tuple[np.ndarray, list[str]]:
    """Finds columns that only number the rows, because a row number is not a feature.

    A column is a row number if its header is one of `INDEX_NAMES`. With at least 10
    rows, it is also a row number if its values are 0 to P - 1 or 1 to P in this order.
    If all columns are row numbers, all of them stay.

    Args:
      values: features [P, F].
      names: the names of the columns [F].

    Returns:
      [F] whether a column is to be removed, and one line per such column.
    """
    count = np.arange(len(values))
    is_index = np.array([name.strip().lower() in INDEX_NAMES for name in names])
    if len(values) >= _MIN_INDEX_ROWS:
        for start in (0, 1):
            is_index |= (values == (count + start)[:, None]).all(axis=0)
    if is_index.all():
        return np.zeros_like(is_index), []
    return is_index, [
        f"column {names[i].strip()} ignored, because it numbers the rows; "
        "`keep_index` uses it as a feature"
        for i in np.flatnonzero(is_index).tolist()
    ]


def images_or_vectors(
    values: np.ndarray, image_shape: tuple[int, ...] | None
) -> np.ndarray:
    """Returns values as images [P, H, W, C] or feature vectors [P, F].

    Args:
      values: [P, H, W] or [P, H, W, C] images, or [P, F] rows.
      image_shape: (H, W) or (H, W, C) if each row of [P, F] is an image, stored row by
        row; None keeps rows as feature vectors.

    Returns:
      The images or feature vectors, of the same type.

    Raises:
      ValueError: another shape, fewer than 2 examples, values that are not real
        numbers, NaN or infinity, or an `image_shape` that does not fit.
    """
    if values.dtype.kind not in "biuf":
        raise ValueError(
            f"has values of type {values.dtype}; accepted are real numbers, such as "
            "uint8 or float32"
        )
    if values.ndim == 3:
        values = values[..., None]
    is_images = values.ndim == 4 and values.shape[3] in (1, 3)
    if not (is_images or values.ndim == 2) or 0 in values.shape[1:]:
        raise ValueError(
            f"has values of shape {values.shape}; accepted are images [P, H, W] or "
            "[P, H, W, C] with C = 1 or 3, and feature vectors [P, F]"
        )
    if len(values) < 2:
        raise ValueError(
            f"has {counted(len(values), 'example')}; at least 2 examples are required"
        )
    axes, bad = tuple(range(1, values.ndim)), np.zeros(1, int)
    if values.dtype.kind == "f":  # a test of integers would read all of a mapped file
        counts = [(~np.isfinite(values[rows])).sum(axes) for rows in chunks(values)]
        bad = np.concatenate(counts)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"has {counted(int(bad.sum()), 'NaN or infinite value')}, the first in "
            f"example {first + 1} of {len(values)}; all values must be finite, so "
            "replace them or remove their examples"
        )
    if image_shape is None:
        return values
    shape_text = " ".join(map(str, image_shape))
    shape = (*image_shape, 1) if len(image_shape) == 2 else image_shape
    if len(shape) != 3 or min(shape) < 1 or shape[2] not in (1, 3):
        raise ValueError(
            f"cannot be read with `image_shape` {shape_text}; accepted are H W, and "
            "H W C with C = 1 or 3"
        )
    if is_images and values.shape[1:] != shape:
        actual = " ".join(map(str, values.shape[1:]))
        raise ValueError(
            f"has images of shape {actual}, but `image_shape` is {shape_text}; omit "
            "`image_shape` for data that is already images"
        )
    if values[0].size != math.prod(shape):
        raise ValueError(
            f"has {counted(values[0].size, 'value')} per example, but `image_shape` "
            f"{shape_text} requires {math.prod(shape)}; give the shape of the images"
        )
    return values.reshape(-1, *shape)


def pixels(images: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Returns images as uint8 in 0..255 or float32 in [0, 1].

    Values in [0, 1] stay. Otherwise, whole numbers up to 255 become uint8, and other
    values up to 255 are divided by 255.

    Args:
      images: [P, H, W, C] numbers.

    Returns:
      The images, and one line per conversion.

    Raises:
      ValueError: a value is negative or above 255.
    """
    if images.dtype == np.uint8:
        return images, []
    if images.dtype == bool:
        return images * np.uint8(255), ["boolean values converted to 0 and 255"]
    low, high = images.min(), images.max()
    value_range = f"{images.dtype} values {low:g} to {high:g}"
    if low < 0 or high > 255:
        raise ValueError(
            f"has image values from {low:g} to {high:g}; accepted ranges are 0 to 1 "
            "and 0 to 255, so rescale the images"
        )
    if high <= 1:
        note = f"{value_range} converted to float32 in [0, 1]"
        notes = [] if images.dtype.kind == "f" else [note]
        return images.astype(np.float32, copy=False), notes
    if images.dtype.kind in "iu" or (images == np.round(images)).all():
        return images.astype(np.uint8), [f"{value_range} converted to uint8"]
    unit = (images / np.float64(255)).astype(np.float32)
    return unit, [f"{value_range} divided by 255"]


Scale = Literal["minmax", "standard", "none"]
"""How feature columns are scaled: to [0, 1] by minimum and maximum, to mean 0 and
standard deviation 1, or not at all."""
CHUNK = 2**24
"""Number of values that a chunk of rows has in memory as float64 (128 MiB)."""


def scaled(
    vectors: np.ndarray, scale: Scale = "minmax", scaling: Scaling | None = None
) -> tuple[np.ndarray, list[str], Scaling]:
    """Scales each column of feature vectors.

    The statistics of a column are a minimum and a maximum, or sums, which clients could
    compute without sharing examples. A constant column becomes 0, unless `scale` is
    "none".

    Args:
      vectors: feature vectors [P, F]. Memory-mapped float32 vectors that are not scaled
        stay on disk.
      scale: how columns are scaled, see `Scale`.
      scaling: the scaling of other data, such as the training data of a model; it
        replaces `scale`. None computes the scaling of `vectors`.

    Returns:
      The scaled vectors [P, F] in float32, one line per conversion, and the scaling.

    Raises:
      ValueError: `scaling` has another number of columns.

    Examples:
      >>> x, notes, scaling = scaled(np.array([[10.0], [20.0]]), "standard")
      >>> print(x[:, 0], scaling.low, scaling.span)
      [-1.  1.] [15.] [5.]
    """
    notes = []
    if scaling is None:
        scaling, notes = scaling_of(vectors, scale)
    elif scaling.low.shape != vectors.shape[1:]:
        raise ValueError(
            f"has {counted(vectors.shape[1], 'column')}, but the model was trained on "
            f"{len(scaling.low)}; give the same columns"
        )
    if not scaling.low.any() and (scaling.span == 1).all():
        return vectors.astype(np.float32, copy=False), notes, scaling
    unit = np.empty(vectors.shape, np.float32)
    for rows in chunks(vectors):
        unit[rows] = (vectors[rows].astype(np.float64) - scaling.low) / scaling.span
    return unit, notes, scaling


def scaling_of(vectors: np.ndarray, scale: Scale) -> tuple[Scaling, list[str]]:
    """Computes the scaling of feature columns, in chunks of rows.

    Args:
      vectors: feature vectors [P, F].
      scale: how columns are scaled.

    Returns:
      The scaling, and one line per conversion.
    """
    if scale == "none":
        return Scaling(np.zeros(vectors.shape[1]), np.ones(vectors.shape[1])), []
    parts = [vectors[rows] for rows in chunks(vectors)]
    low = np.min([part.min(0) for part in parts], axis=0).astype(np.float64)
    high = np.max([part.max(0) for part in parts], axis=0).astype(np.float64)
    constant = low == high
    if scale == "minmax":
        scaling = Scaling(low, np.where(constant, 1, high - low))
        notes = ["each column scaled to [0, 1] by its minimum and maximum"]
    else:
        count = len(vectors)
        mean = np.sum([part.sum(0, np.float64) for part in parts], axis=0) / count
        mean = np.where(constant, low, mean)
        squares = np.sum([np.square(part - mean).sum(0) for part in parts], axis=0)
        scaling = Scaling(mean, np.where(constant, 1, np.sqrt(squares / count)))
        notes = ["each column scaled to mean 0 and standard deviation 1"]
    if constant.any():
        notes.append(f"{counted(int(constant.sum()), 'constant column')} set to 0")
    return scaling, notes


def order_of(columns: Sequence[str], names: Sequence[str]) -> list[int]:
    """Finds the columns of the training data of a model in a table, by their names.

    Args:
      columns: the names of the columns of the training data.
      names: the names of the columns of the table, in any order.

    Returns:
      The index in `names` of each column.

    Raises:
      ValueError: a column is missing, or two columns have its name.

    Examples:
      >>> order_of(["age", "weight"], ["weight", "site", "age"])
      [2, 0]
    """
    index = {name: i for i, name in enumerate(names)}
    for column in columns:
        if column not in index:
            raise ValueError(
                f"has no column {column!r}, but the model was trained on it; give the "
                "same columns"
            )
        if list(names).count(column) > 1:
            raise ValueError(f"has several columns {column!r}; rename or drop them")
    return [index[column] for column in columns]


def chunks(values: np.ndarray) -> list[slice]:
    """Returns slices of rows with at most `CHUNK` values each.

    Args:
      values: an array [P, ...] with P >= 1.

    Returns:
      The slices, in order.
    """
    size = max(1, CHUNK // max(1, math.prod(values.shape[1:])))
    return [slice(start, start + size) for start in range(0, len(values), size)]


def classes(labels: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Returns labels as int64: integers stay, names are numbered in sorted order.

    Args:
      labels: [P] or [P, 1] integers, whole floats, or text. If all texts are integers,
        they become these integers.

    Returns:
      The labels [P], and one line per conversion.

    Raises:
      ValueError: a label is a fraction, empty, NaN, or neither a number nor text.
    """
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(
            f"has labels of shape {labels.shape}; one label per example is required, "
            "of shape [P] or [P, 1]"
        )
    notes = []
    if labels.dtype.kind in "US":
        names, codes = np.unique(np.char.strip(labels.astype(str)), return_inverse=True)
        if (names == "").any():
            row = int(np.flatnonzero(names[codes] == "")[0])
            raise ValueError(
                f"has an empty label in example {row + 1}; give every example a label, "
                "or use `labels=False`"
            )
        try:
            labels = names.astype(np.float64)[codes]
        except ValueError:
            labels = codes
            shown = names[:_MAX_LISTED_CLASSES]
            items = [f"{i} = {' '.join(name.split())}" for i, name in enumerate(shown)]
            if len(names) > len(shown):
                items.append(f"... {len(names)} in all")
            notes.append(f"classes: {', '.join(items)}")
    if labels.dtype.kind not in "biuf":
        raise ValueError(
            f"has labels of type {labels.dtype}; accepted are integers and text"
        )
    with np.errstate(invalid="ignore"):
        numbers = labels.astype(np.int64)
    if (wrong := labels[numbers != labels]).size:
        raise ValueError(
            f"has the label {wrong[0]:g}; accepted are integers and text; use "
            "`labels=False` for data without labels"
        )
    if numbers.size and (numbers == numbers[0]).all():
        notes.append(
            "all examples have the same class, so scores against labels mean nothing"
        )
    return numbers, notes


def client_numbers(clients: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Numbers the clients of the examples from 0, in sorted order of their names.

    Args:
      clients: [P] or [P, 1] the client of each example: integers, whole floats, or
        text. If all texts are integers, they become these integers. Empty texts and
        negative numbers mean that an example has no client.

    Returns:
      [P] int64, the number of the client of each example, or -1 for no client; and the
      name of each client.

    Raises:
      ValueError: a client is a fraction, NaN, or neither a number nor text, or no
        example has a client.
    """
    if clients.ndim == 2 and clients.shape[1] == 1:
        clients = clients[:, 0]
    if clients.ndim != 1 or clients.dtype.kind not in "biufUS":
        raise ValueError(
            f"has clients of shape {clients.shape} and type {clients.dtype}; accepted "
            "are integers or text of shape [P]"
        )
    if clients.dtype.kind in "US":
        clients = np.char.strip(clients.astype(str))
        clients = np.where(clients == "", "-1", clients)
        # If all texts are integers that a float represents, sort 2 before 10.
        numbers = np.asarray(pd.to_numeric(pd.Series(clients), errors="coerce"), float)
        if ((np.abs(numbers) < 2**53) & (numbers == np.floor(numbers))).all():
            clients = numbers.astype(np.int64)
    has_none = clients == "-1" if clients.dtype.kind == "U" else clients < 0
    if clients.dtype.kind == "f" and (wrong := clients[clients != clients // 1]).size:
        raise ValueError(f"has the client {wrong[0]:g}; accepted are integers and text")
    if has_none.all():
        raise ValueError(
            "has no example with a client; at least 1 example needs a client"
        )
    numbers = np.full(len(clients), -1)
    names, numbers[~has_none] = np.unique(clients[~has_none], return_inverse=True)
    return numbers, tuple(map(str, names))


def duplicates(examples: np.ndarray) -> list[str]:
    """Returns a line on examples that repeat an earlier example, if there are any.

    Args:
      examples: [P, ...] the examples.

    Returns:
      A list of one line with the number of repeated examples, or an empty list.
    """
    # Digests take a second for data sets whose sorting would take minutes.
    distinct = {hashlib.blake2b(row.tobytes()).digest() for row in examples}
    repeated = len(examples) - len(distinct)
    return [f"{counted(repeated, 'duplicate example')} not removed"] if repeated else []
