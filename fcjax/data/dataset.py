"""A data set in memory, and conversions of arrays of unknown origin into one.

Every function that changes values also returns one line per change. Errors are the end
of a sentence that begins with the name of the data set: "has 3 columns, ...".
"""

import contextlib
import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

# --- Dataset


class Scaling(NamedTuple):
    """How columns of feature vectors came to lie in [0, 1]: (x - low) / span.

    Examples:
      >>> scaling = Scaling(low=np.array([10.0]), span=np.array([5.0]))
      >>> print((np.array([[10.0], [15.0]]) - scaling.low) / scaling.span)
      [[0.]
       [1.]]
    """

    low: np.ndarray
    span: np.ndarray
    """1 where a column is constant."""


class Dataset(NamedTuple):
    """Examples in dataset order; the labels stay outside every algorithm.

    Examples:
      >>> images = np.zeros((4, 8, 8, 1), np.uint8)
      >>> dataset = Dataset("mine", images, labels=np.array([0, 0, 1, 1]))
      >>> dataset.examples.shape, dataset.notes
      ((4, 8, 8, 1), ())
    """

    name: str
    examples: np.ndarray
    """[P, H, W, C] images, uint8 in 0..255 or float32 in [0, 1], grey ones with C = 1;
    or [P, F] feature vectors, float32."""
    labels: np.ndarray | None
    """[P] integers, or None where the truth is unknown."""
    notes: tuple[str, ...] = ()
    """One line on each conversion that was made."""
    scaling: Scaling | None = None
    """Of feature vectors."""
    clients: np.ndarray | None = None
    """[P] the client of each example, from 0, or -1 for none; None if the data does not
    give clients."""


def validate(dataset: Dataset) -> Dataset:
    """Returns `dataset` as it is, once it is known to be usable.

    Raises:
      ValueError: there are no examples, labels or clients and examples differ in
        number, or a value is NaN or infinite.
    """
    name, examples = dataset[:2]
    if len(examples) == 0:
        raise ValueError(f"dataset {name} has no examples, at least 1 is needed")
    for kind, values in (("label", dataset.labels), ("client", dataset.clients)):
        if values is not None and values.shape != examples.shape[:1]:
            raise ValueError(
                f"dataset {name} has {len(examples)} examples but {kind}s of shape "
                f"{values.shape}, one {kind} per example is needed"
            )
    if not np.isfinite(examples).all():
        raise ValueError(
            f"dataset {name} has NaN or infinite values, all must be finite"
        )
    return dataset


# --- Content of a file


class Options(NamedTuple):
    """The options of `files.read` that the formats use; see there."""

    image_shape: tuple[int, ...] | None
    labelled: bool
    resize: int | None
    client_column: str | None
    split: str
    client_folders: bool
    keep_index: bool


class Content(NamedTuple):
    """The content of a file before any conversion."""

    values: np.ndarray
    labels: np.ndarray | None = None
    notes: Sequence[str] = ()
    """One line per conversion."""
    clients: np.ndarray | None = None
    """[P] the client of each example, if the file says it."""


@contextlib.contextmanager
def decoding(fault: str) -> Iterator[None]:
    """Turns any error of a library about the content of a file into ValueError(fault).

    A damaged file may raise almost any exception type. A refusal of the system, such as
    a missing permission, passes through.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{fault} ({str(error) or type(error).__name__})") from error


@contextlib.contextmanager
def one_line(name: str) -> Iterator[None]:
    """Turns the errors of a data set into one line that begins with its name."""
    try:
        yield
    except OSError as error:
        raise ValueError(f"dataset {name} cannot be read ({error})") from error
    except ValueError as error:
        raise ValueError(
            f"dataset {name or repr(name)} {' '.join(str(error).split())}"
        ) from error


# --- Conversion

_CODES_TOLD = 10


def counted(number: int, noun: str) -> str:
    """Returns "1 image" or "2 images"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


INDEX_NAMES = ("id", "index", "idx", "row_id", "unnamed: 0")
"""Headers of columns that number the rows, in lower case."""
_LEAST_COUNTED = 10


def without_index(
    values: np.ndarray, names: Sequence[str]
) -> tuple[np.ndarray, list[str]]:
    """Leaves out columns that number the rows: an index is no feature.

    A column is an index if its header is one of `INDEX_NAMES`, or if there are at least
    10 rows and its values are 0 to P - 1 or 1 to P in this order. One column always
    stays.

    Args:
      values: features [P, F].
      names: the headers [F]; empty texts where there are none.

    Returns:
      The other columns, and a line on each column that was left out.
    """
    count = np.arange(len(values))
    is_index = np.array([name.strip().lower() in INDEX_NAMES for name in names])
    if len(values) >= _LEAST_COUNTED:
        for start in (0, 1):
            is_index |= (values == (count + start)[:, None]).all(axis=0)
    if not is_index.any() or is_index.all():
        return values, []
    return values[:, ~is_index], [
        f"column {names[i].strip() or i + 1} left out, as it numbers the rows; "
        "`keep_index` keeps it"
        for i in np.flatnonzero(is_index).tolist()
    ]


def images_or_vectors(
    values: np.ndarray, image_shape: tuple[int, ...] | None
) -> np.ndarray:
    """Returns `values` as images [P, H, W, C] or feature vectors [P, F].

    Args:
      values: [P, H, W], [P, H, W, C] or [P, F].
      image_shape: (H, W) or (H, W, C) that rows of [P, F] hold, row by row.

    Raises:
      ValueError: another shape, fewer than 2 examples, no numbers, NaN or infinity,
        or an `image_shape` that does not fit.
    """
    if values.dtype.kind not in "biuf":
        raise ValueError(f"has values of type {values.dtype}, numbers are needed")
    if values.ndim == 3:
        values = values[..., None]
    is_images = values.ndim == 4 and values.shape[3] in (1, 3)
    if not (is_images or values.ndim == 2) or 0 in values.shape[1:]:
        raise ValueError(
            f"has values of shape {values.shape}; accepted are images [P, H, W] or "
            "[P, H, W, C] with C = 1 or 3, and feature vectors [P, F]"
        )
    if len(values) < 2:
        raise ValueError(f"has {counted(len(values), 'example')}, 2 are needed")
    bad = ~np.isfinite(values)
    if bad.any():
        first = int(np.flatnonzero(bad.reshape(len(values), -1).any(1))[0])
        raise ValueError(
            f"has {counted(int(bad.sum()), 'NaN or infinite value')}, the first in "
            f"example {first + 1} of {len(values)}; all must be finite"
        )
    if image_shape is None:
        return values
    told = " ".join(map(str, image_shape))
    shape = (*image_shape, 1) if len(image_shape) == 2 else image_shape
    if len(shape) != 3 or min(shape) < 1 or shape[2] not in (1, 3):
        raise ValueError(
            f"cannot be read with image_shape {told}; accepted are H W, and H W C "
            "with C = 1 or 3"
        )
    if is_images and values.shape[1:] != shape:
        own = " ".join(map(str, values.shape[1:]))
        raise ValueError(f"has images of {own}, which is not image_shape {told}")
    if values[0].size != math.prod(shape):
        raise ValueError(
            f"has {counted(values[0].size, 'value')} an example, image_shape {told} "
            f"needs {math.prod(shape)}"
        )
    return values.reshape(-1, *shape)


def pixels(images: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Returns images as uint8 in 0..255 or float32 in [0, 1].

    Floats within [0, 1] stay, whole numbers up to 255 become uint8 and other values
    up to 255 are divided by 255.

    Raises:
      ValueError: a value is negative or above 255.
    """
    if images.dtype == np.uint8:
        return images, []
    if images.dtype == bool:
        return images * np.uint8(255), ["boolean values became 0 and 255"]
    low, high = images.min(), images.max()
    told = f"{images.dtype} values {low:g} to {high:g}"
    if low < 0 or high > 255:
        raise ValueError(
            f"has image values from {low:g} to {high:g}; accepted are 0 to 1 and "
            "0 to 255"
        )
    if high <= 1:
        notes = [] if images.dtype.kind == "f" else [f"{told} taken as 0 to 1"]
        return images.astype(np.float32), notes
    if images.dtype.kind in "iu" or (images == np.round(images)).all():
        return images.astype(np.uint8), [f"{told} stored as uint8"]
    return (images / np.float64(255)).astype(np.float32), [f"{told} divided by 255"]


def scaled(
    vectors: np.ndarray, scaling: Scaling | None = None
) -> tuple[np.ndarray, list[str], Scaling]:
    """Returns each column [P] of feature vectors scaled to [0, 1], float32.

    The minimum of a column becomes 0 and its maximum 1; a constant column becomes 0.
    With a `scaling` of other data its columns' minima and spans are taken instead.

    Raises:
      ValueError: the scaling is of another number of columns.
    """
    columns, notes = vectors.astype(np.float64), []
    if scaling is None:
        low, high = columns.min(0), columns.max(0)
        constant = low == high
        scaling = Scaling(low, np.where(constant, 1, high - low))
        notes.append("each column scaled to [0, 1] by its minimum and maximum")
        if constant.any():
            notes.append(f"{counted(int(constant.sum()), 'constant column')} set to 0")
    elif scaling.low.shape != columns.shape[1:]:
        raise ValueError(
            f"has {columns.shape[1]} columns, {len(scaling.low)} are needed"
        )
    unit = (columns - scaling.low) / scaling.span
    return unit.astype(np.float32), notes, scaling


def classes(labels: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Returns labels as int64: integers stay, names are numbered in sorted order.

    Args:
      labels: [P] or [P, 1] integers, whole floats, or text; text that spells only
        integers is integers.

    Raises:
      ValueError: a label is a fraction, empty, NaN or no number or text at all.
    """
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(f"has labels of shape {labels.shape}; [P] or [P, 1] is needed")
    notes = []
    if labels.dtype.kind in "US":
        names, codes = np.unique(np.char.strip(labels.astype(str)), return_inverse=True)
        if (names == "").any():
            row = int(np.flatnonzero(names[codes] == "")[0])
            raise ValueError(f"has an empty label, of example {row + 1}")
        try:
            labels = names.astype(np.float64)[codes]
        except ValueError:
            labels = codes
            told = [f"{code} = {name}" for code, name in enumerate(names[:_CODES_TOLD])]
            more = [f"... {len(names)} in all"] if len(names) > _CODES_TOLD else []
            notes.append(f"classes: {', '.join(told + more)}")
    if labels.dtype.kind not in "biuf":
        raise ValueError(
            f"has labels of type {labels.dtype}; accepted are integers and text"
        )
    with np.errstate(invalid="ignore"):
        numbers = labels.astype(np.int64)
    if (wrong := labels[numbers != labels]).size:
        raise ValueError(
            f"has the label {wrong[0]:g}; accepted are integers and text, and "
            "`labelled=False` where there are none"
        )
    if numbers.size and (numbers == numbers[0]).all():
        notes.append("all examples have one class: scores say nothing")
    return numbers, notes


def owners(clients: np.ndarray) -> np.ndarray:
    """Returns the client of each example, int64: names are numbered in sorted order.
    Empty names, and numbers below 0 if all are numbers, are no client, -1.

    Args:
      clients: [P] or [P, 1] integers, whole floats, or text; text that spells only
        integers is integers.

    Raises:
      ValueError: one is a fraction, NaN or no number or text at all, or no example has
        a client.
    """
    if clients.ndim == 2 and clients.shape[1] == 1:
        clients = clients[:, 0]
    if clients.ndim != 1 or clients.dtype.kind not in "biufUS":
        raise ValueError(
            f"has clients of shape {clients.shape} and type {clients.dtype}; accepted "
            "are [P] integers or text"
        )
    if clients.dtype.kind in "US":
        clients = np.char.strip(clients.astype(str))
        clients = np.where(clients == "", "-1", clients)
        # Sorted as numbers, 2 before 10, if all are whole numbers that floats hold.
        numbers = np.asarray(pd.to_numeric(pd.Series(clients), errors="coerce"), float)
        if ((np.abs(numbers) < 2**53) & (numbers == np.floor(numbers))).all():
            clients = numbers.astype(np.int64)
    nobody = clients == "-1" if clients.dtype.kind == "U" else clients < 0
    if clients.dtype.kind == "f" and (wrong := clients[clients != clients // 1]).size:
        raise ValueError(f"has the client {wrong[0]:g}; accepted are integers and text")
    if nobody.all():
        raise ValueError("has no client of any example")
    found = np.full(len(clients), -1)
    found[~nobody] = np.unique(clients[~nobody], return_inverse=True)[1]
    return found


def duplicates(examples: np.ndarray) -> list[str]:
    """Returns a line on the rows that repeat an earlier one, if there are any."""
    # Digests, as sorting whole rows takes minutes where this takes a second.
    distinct = {hashlib.blake2b(row.tobytes()).digest() for row in examples}
    repeated = len(examples) - len(distinct)
    return [f"{counted(repeated, 'duplicate row')} kept"] if repeated else []
