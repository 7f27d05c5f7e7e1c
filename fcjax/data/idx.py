"""Examples from IDX, the format of MNIST, plain or packed by gzip."""

import gzip
import math
import re
import zlib
from pathlib import Path

import numpy as np

# Values, labels where there are any, and a line on each conversion.
Content = tuple[np.ndarray, np.ndarray | None, list[str]]

_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(file: Path, labelled: bool) -> Content:
    """Returns the values of an IDX file, and the labels from the file beside it.

    That has `labels` for `images` and `idx1` for `idx3` in its name, packed or not.

    Raises:
      ValueError: a file is damaged or no IDX file.
    """
    return _pair(file, file, labelled)


def read_idx_folder(folder: Path, labelled: bool) -> Content | None:
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


def _pair(file: Path, given: Path, labelled: bool) -> Content:
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
