"""Image data sets that TFDS has prepared as array_record, read without TensorFlow."""

import contextlib
import difflib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fcjax.data.dataset import Dataset, validate
from fcjax.data.resizing import square

_SPLITS = ("train", "test")
_CHUNK = 1024
_COARSE = {"cifar20": "cifar100"}
"""Data sets of TFDS by the name under which their super-classes are the classes."""
_HUGGING_FACE = {
    "mnist": "ylecun/mnist",
    "fashion_mnist": "zalando-datasets/fashion_mnist",
    "cifar10": "uoft-cs/cifar10",
}
"""Data sets of TFDS by their names at Hugging Face, with the same images."""
_NAME = r"\w+(/[\w.+-]+)?(:[\d.*]+)?"


@contextlib.contextmanager
def _quiet_absl() -> Iterator[None]:
    """Holds back TFDS's warnings, which our own errors say better."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def is_tfds(name: str) -> bool:
    """Returns whether TFDS has a data set of this name, prepared or not."""
    fits = re.fullmatch(_NAME, name)
    return name in _COARSE or bool(fits and re.split("[/:]", name)[0] in _known())


@_quiet_absl()
def read_tfds(
    name: str,
    data_dir: str | os.PathLike[str] | None,
    split: str,
    resize: int | None,
    *,
    flag: str = "split",
) -> Dataset:
    """Returns the examples of a split, see `sources.load`.

    Args:
      name: of the data set, with its configuration and version where it is to have any.
      data_dir: where data sets are prepared; None is the default of TFDS.
      split: the name of any split, or `all` for train and test.
      resize: H and W of all images; None takes those that they have.
      flag: by which the user gave the split.

    Raises:
      ValueError: as `sources.load`.
    """
    label = "coarse_label" if name in _COARSE else "label"
    builder = _builder(_COARSE.get(name, name), data_dir)
    _check_features(name, dict((builder.info.features or {}).items()), label)
    where = os.fspath(builder.data_dir)
    prepare = _prepare_command(_COARSE.get(name, name), data_dir)
    again = f"move that folder away and run: {prepare}"

    def damaged(error: Exception) -> ValueError:
        told = f"is damaged in {where} ({_last_line(error)})"
        return ValueError(f"dataset {name} {told}; {again}")

    if not builder.is_prepared():
        raise ValueError(
            f"dataset {name} is not prepared in {where}. If it is prepared elsewhere, "
            f"give data_dir. {_without_tensorflow(name)}With TensorFlow, run: {prepare}"
        )
    known = list(builder.info.splits)
    wanted = [s for s in _SPLITS if s in known] if split == "all" else [split]
    if not wanted or not set(wanted) <= set(known):
        told = ", ".join(known) or "no splits"
        raise ValueError(f"{flag} {split} is not in {name}, which has {told}")
    try:
        source = builder.as_data_source("+".join(wanted))
    except NotImplementedError as error:
        raise ValueError(
            f"dataset {name} is prepared in {where} in a format that only "
            f"TensorFlow reads; {again}"
        ) from error
    # A damaged file surfaces as almost any exception type, from three libraries.
    except Exception as error:
        raise damaged(error) from error
    labels = np.empty(len(source), np.int64)
    images = np.empty((len(source), 0, 0, 0), np.uint8)
    for start in range(0, len(source), _CHUNK):
        rows = range(start, min(start + _CHUNK, len(source)))
        try:
            examples = source.__getitems__(list(rows))
        except Exception as error:
            raise damaged(error) from error
        for row, example in zip(rows, examples, strict=True):
            image = example["image"]
            if resize is not None:
                image = square(image, resize)
            if row == 0:
                images = np.empty((len(source), *image.shape), np.uint8)
            if image.shape != images.shape[1:]:
                raise ValueError(
                    f"dataset {name} has images of mixed sizes, {images.shape[1:]} "
                    f"and {image.shape}; all must have one size, which `resize` gives "
                    "them"
                )
            images[row], labels[row] = image, example[label]
    return validate(Dataset(name, images, labels))


def _builder(name: str, data_dir: str | os.PathLike[str] | None) -> Any:
    import tensorflow_datasets as tfds

    known = _known()
    if not re.fullmatch(_NAME, name):
        raise _unknown(name, known)
    try:
        return tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError:
        raise _unknown(name, known) from None
    # A bad configuration, a bad version and damaged metadata share no type.
    except Exception as error:
        base = re.split("[/:]", name)[0]
        configs = tfds.builder_cls(base).builder_configs if base in known else {}
        spelled = [f"{base}/{config}" for config in configs]
        if "/" in name and name.split(":")[0] not in spelled:
            raise _unknown(name, [base, *spelled]) from None
        reason = _last_line(error).rpartition('}": ')[2]
        raise ValueError(
            f"dataset {name} cannot be opened in {data_dir or 'the default folder'}: "
            f"{reason}"
        ) from error


def _known() -> list[str]:
    import tensorflow_datasets as tfds

    return tfds.list_builders(with_community_datasets=False)


def _unknown(name: str, known: list[str]) -> ValueError:
    known = ["digits", *_COARSE, *known]
    near = ", ".join(difflib.get_close_matches(name, known, n=3, cutoff=0.5))
    nearest = f", the nearest: {near}" if near else ""
    return ValueError(
        f"dataset {name!r} is unknown; give digits or a TFDS name{nearest}"
    )


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _without_tensorflow(name: str) -> str:
    """Says how to get the data without TensorFlow, in sentences; nothing for data that
    is not known to be elsewhere."""
    if name not in _HUGGING_FACE:
        return ""
    saved = f'load_dataset("{_HUGGING_FACE[name]}").save_to_disk("{name}")'
    idx = "give the path of a folder of its four IDX files, or "
    return (
        f"Without TensorFlow, {idx if name != 'cifar10' else ''}"
        f"pip install datasets pyarrow, run datasets.{saved}, and give hf:{name}. "
    )


def _prepare_command(name: str, data_dir: str | os.PathLike[str] | None) -> str:
    where = "" if data_dir is None else f", data_dir={os.fspath(data_dir)!r}"
    return (
        'pip install tensorflow && python -c "import tensorflow_datasets as tfds; '
        f"tfds.builder({name!r}{where}, file_format='array_record')"
        '.download_and_prepare()"'
    )


def _check_features(name: str, features: Mapping[str, Any], called: str) -> None:
    import tensorflow_datasets as tfds

    image, label = features.get("image"), features.get(called)
    if not isinstance(image, tfds.features.Image) or image.np_dtype != np.uint8:
        needed = "'image' of 8-bit pixels"
    elif not label or label.shape or np.dtype(label.np_dtype).kind not in "iu":
        needed = f"'{called}' of one integer an example"
    else:
        return
    has = ", ".join(features) or "none"
    raise ValueError(f"dataset {name} needs a feature {needed}, its features: {has}")
