"""Data sets by name or path: digits, TFDS, Hugging Face and files."""

import contextlib
import difflib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fcjax.data.dataset import Dataset, Scaling, decoding, name_errors, validate
from fcjax.data.files import is_file_name, read
from fcjax.data.images import check_resize, resize_image, resize_images
from fcjax.data.partition import proportional_counts

# --- TFDS

_SPLITS = ("train", "test")
_CHUNK = 1024
_COARSE = {"cifar20": "cifar100"}
"""The TFDS data set behind a name whose classes are the super-classes."""
_NAME = r"\w+(/[\w.+-]+)?(:[\d.*]+)?"


@contextlib.contextmanager
def _quiet_absl() -> Iterator[None]:
    """Hides TFDS's warnings, because the errors here say the same in one line."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def is_tfds(name: str) -> bool:
    """Returns whether TFDS has a data set of this name, prepared or not.

    Args:
      name: the name, optionally with configuration and version.

    Returns:
      True for a name in the catalogue of TFDS, and for "cifar20".
    """
    is_name = re.fullmatch(_NAME, name)
    base = re.split("[/:]", name)[0]
    return name in _COARSE or bool(is_name and base in _tfds_names())


def _tfds_names() -> list[str]:
    """Returns the names of all TFDS data sets."""
    import tensorflow_datasets as tfds

    return tfds.list_builders(with_community_datasets=False)


@_quiet_absl()
def read_tfds(
    name: str,
    data_dir: str | os.PathLike[str] | None,
    split: str,
    resize: int | None,
) -> Dataset:
    """Returns the examples of a split of a prepared TFDS data set.

    Args:
      name: the name of the data set, optionally with its configuration and version.
      data_dir: the folder of prepared data sets; None means the default of TFDS.
      split: the name of any split, or `all` for the training and test sets.
      resize: height and width of all images in pixels; None keeps the size.

    Returns:
      The data set.

    Raises:
      ValueError: the name or the split is unknown, or the data is not prepared,
        damaged, or not one labelled uint8 image per example.
    """
    with name_errors(name):
        builder = _builder(_COARSE.get(name, name), data_dir)
        label = "coarse_label" if name in _COARSE else "label"
        _check_features(dict((builder.info.features or {}).items()), label)
        prepare = _prepare_command(_COARSE.get(name, name), data_dir)
        if not builder.is_prepared():
            raise ValueError(
                f"is not prepared in {builder.data_dir}. If it is in another folder, "
                "give data_dir. Without TensorFlow, see IDX and hf:PATH in "
                f"docs/guides/own_data.md. With TensorFlow, run: {prepare}"
            )
        splits = list(builder.info.splits)
        selected = [s for s in _SPLITS if s in splits] if split == "all" else [split]
        if not selected or not set(selected) <= set(splits):
            raise ValueError(
                f"has no split {split}; its splits are {', '.join(splits)}"
            )
        fault = (
            f"is damaged in {builder.data_dir}, or in a format that only TensorFlow "
            f"reads; move that folder away and run: {prepare}"
        )
        with decoding(fault):
            source = builder.as_data_source("+".join(selected))
        labels = np.empty(len(source), np.int64)
        images = np.empty((len(source), 0, 0, 0), np.uint8)
        for number, example in enumerate(_examples(source, fault)):
            image = example["image"]
            if resize is not None:
                image = resize_image(image, resize)
            if number == 0:
                images = np.empty((len(source), *image.shape), np.uint8)
            if image.shape != images.shape[1:]:
                raise ValueError(
                    f"has images of mixed sizes, {images.shape[1:]} and {image.shape}; "
                    "all images must have the same size, so use `resize`"
                )
            images[number], labels[number] = image, example[label]
        return validate(Dataset(name, images, labels))


def _examples(source: Any, fault: str) -> Iterator[dict[str, Any]]:
    """Yields the examples of a TFDS data source, read in chunks."""
    for start in range(0, len(source), _CHUNK):
        numbers = range(start, min(start + _CHUNK, len(source)))
        with decoding(fault):
            examples = source.__getitems__(list(numbers))
        yield from examples


def _builder(name: str, data_dir: str | os.PathLike[str] | None) -> Any:
    """Returns the TFDS builder of a name, or raises ValueError."""
    import tensorflow_datasets as tfds

    base, tfds_names = re.split("[/:]", name)[0], _tfds_names()
    accepted = ["digits", *_COARSE, *tfds_names]
    if base in tfds_names:
        accepted += [
            f"{base}/{config}" for config in tfds.builder_cls(base).builder_configs
        ]
    similar = ", ".join(difflib.get_close_matches(name, accepted, n=3, cutoff=0.5))
    unknown = "is unknown; give digits, the name of a TFDS data set, or a path"
    if similar:
        unknown += f"; similar names: {similar}"
    if not re.fullmatch(_NAME, name):
        raise ValueError(unknown)
    try:
        return tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError:
        raise ValueError(unknown) from None
    # A bad configuration, a bad version and damaged metadata have no common type.
    except Exception as error:
        if "/" in name and name.split(":")[0] not in accepted:
            raise ValueError(unknown) from None
        reason = str(error).strip().splitlines()[-1].rpartition('}": ')[2]
        raise ValueError(
            f"cannot be opened in {data_dir or 'the default folder'}: {reason}"
        ) from error


def _prepare_command(name: str, data_dir: str | os.PathLike[str] | None) -> str:
    """Returns the shell command that downloads and prepares a data set."""
    where = "" if data_dir is None else f", data_dir={os.fspath(data_dir)!r}"
    return (
        'pip install tensorflow && python -c "import tensorflow_datasets as tfds; '
        f"tfds.builder({name!r}{where}, file_format='array_record')"
        '.download_and_prepare()"'
    )


def _check_features(features: Mapping[str, Any], label_name: str) -> None:
    """Raises ValueError unless examples have an image and one integer label."""
    import tensorflow_datasets as tfds

    image, label = features.get("image"), features.get(label_name)
    has_images = isinstance(image, tfds.features.Image) and image.np_dtype == np.uint8
    has_labels = label and not label.shape and np.dtype(label.np_dtype).kind in "iu"
    if not has_images or not has_labels:
        raise ValueError(
            "must have a feature 'image' of 8-bit pixels and a feature "
            f"'{label_name}' of one integer per example; its features are "
            f"{', '.join(features) or 'none'}"
        )


# --- Any name


def load(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    split: str = "all",
    image_shape: tuple[int, ...] | None = None,
    labelled: bool = True,
    scaling: Scaling | None = None,
    resize: int | None = None,
    client_column: str | None = None,
    client_folders: bool = False,
    keep_index: bool = False,
) -> Dataset:
    """Returns the data set with a name, in its order.

    Args:
      name: one of the following.

        - `digits`: 1,797 images of 8x8 from scikit-learn, scaled from 0..16 to 0..255.
        - `cifar20`: CIFAR-100 with its 20 super-classes as labels.
        - The name of a TFDS image classification data set, such as `mnist` or
          `emnist/digits`, that is prepared as array_record.
        - The path of a file or folder that `files.read` accepts, such as `hf:PATH` for
          a data set saved by Hugging Face's `datasets`. If a folder has the name of one
          of the data sets above, write `./mnist`.
      data_dir: the folder of prepared TFDS data sets; None means the default of TFDS.
      split: `all` (training set, then test set), `train` or `test`. Files have only
        `all`, except `hf:PATH` and folders with folders of splits.
      image_shape: (H, W) or (H, W, C) of the images in the rows of a file.
      labelled: whether to read labels.
      scaling: the scaling of the training data of a model, see `files.read`.
      resize: height and width of all images in pixels; None keeps the size.
      client_column: the column of a table that names the clients, see `files.read`.
      client_folders: whether the outer folders of images are clients, see `files.read`.
      keep_index: whether a table column that only numbers the rows is a feature, see
        `files.read`.

    Returns:
      Images [P, H, W, C] in uint8 and labels [P] in int64. Files may also have float32
      images, feature vectors [P, F], no labels, or clients.

    Raises:
      ValueError: one line that names the parameter and says what is accepted. The name
        or the split is unknown, or the data is not prepared, damaged, or of a wrong
        shape.

    Examples:
      >>> digits = load("digits")
      >>> print(digits.examples.shape, digits.examples.dtype, np.unique(digits.labels))
      (1797, 8, 8, 1) uint8 [0 1 2 3 4 5 6 7 8 9]
    """
    check_resize(resize)
    if split not in ("all", "train", "test"):
        raise ValueError(f"split must be all, train or test, got {split!r}")
    if _is_path(name):
        if split != "all" and not (name.startswith("hf:") or os.path.isdir(name)):
            raise ValueError(f"split must be all for files, got {split!r}")
        return read(
            name,
            image_shape=image_shape,
            labelled=labelled,
            scaling=scaling,
            resize=resize,
            client_column=client_column,
            split=split,
            client_folders=client_folders,
            keep_index=keep_index,
        )
    for parameter, value in (
        ("image_shape", image_shape),
        ("client_column", client_column),
        ("client_folders", client_folders or None),
    ):
        if value is not None:
            raise ValueError(
                f"{parameter} is only for files, but the data set is {name}; omit "
                f"`{parameter}`"
            )
    is_digits = name == "digits"
    dataset = _digits(split) if is_digits else read_tfds(name, data_dir, split, resize)
    if resize is not None:
        images = resize_images(dataset.examples, resize)
        notes = (f"images resized to {resize}x{resize}",)
        dataset = dataset._replace(examples=images, notes=notes)
    return dataset if labelled else dataset._replace(labels=None)


def load_extra(
    name: str,
    split: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    resize: int | None = None,
) -> np.ndarray:
    """Returns the examples of any split of a TFDS data set, without labels.

    Args:
      name: the name of a TFDS data set.
      split: the name of any of its splits.
      data_dir: the folder of prepared TFDS data sets; None means the default of TFDS.
      resize: height and width of all images in pixels; None keeps the size.

    Returns:
      Images [P, H, W, C] in uint8.

    Raises:
      ValueError: the name or the split is unknown, or the data is not prepared,
        damaged, or of a wrong shape.

    Examples:
      >>> images = load_extra("stl10", "unlabelled")  # doctest: +SKIP
      >>> load_extra("digits", "test")
      Traceback (most recent call last):
      ...
      ValueError: extra_split is for TFDS data sets, but the data set is digits
    """
    check_resize(resize)
    if name == "digits" or _is_path(name):
        raise ValueError(
            f"extra_split is for TFDS data sets, but the data set is {name}"
        )
    return read_tfds(name, data_dir, split, resize).examples


def stratified_subset(dataset: Dataset, num_examples: int, *, seed: int = 0) -> Dataset:
    """Returns a random subset of the examples with classes in proportion.

    Each class gets its share of `num_examples`, rounded down. The remaining examples go
    to the classes with the largest remainders; the first class wins a tie. The examples
    keep their order. Without labels, all examples are one class.

    Args:
      dataset: a data set of P examples.
      num_examples: the number of examples of the subset, in 1..P.
      seed: the seed of the draw, which determines the subset.

    Returns:
      The data set with these examples, labels and clients.

    Raises:
      ValueError: num_examples is not in 1..P.

    Examples:
      >>> labels = np.array([0, 0, 0, 0, 1, 1])
      >>> dataset = Dataset("mine", np.zeros((6, 2)), labels)
      >>> print(stratified_subset(dataset, 3).labels)
      [0 0 1]
    """
    total = len(dataset.examples)
    if not 1 <= num_examples <= total:
        raise ValueError(
            f"num_examples must lie in 1..{total}, the size of {dataset.name}, "
            f"got {num_examples}"
        )
    labels = np.zeros(total, int) if dataset.labels is None else dataset.labels
    classes, counts = np.unique(labels, return_counts=True)
    rng = np.random.default_rng(seed)
    samples = [
        rng.choice(np.flatnonzero(labels == c), quota, replace=False)
        for c, quota in zip(
            classes, proportional_counts(counts, num_examples), strict=True
        )
    ]
    indices = np.sort(np.concatenate(samples))
    optional = (dataset.labels, dataset.clients)
    labels, clients = (None if x is None else x[indices] for x in optional)
    examples = dataset.examples[indices]
    return dataset._replace(examples=examples, labels=labels, clients=clients)


def _is_path(name: str) -> bool:
    # Names come before folders: the meaning of `mnist` must not depend on the current
    # folder.
    """Returns whether a name is a path. The name of a data set is never a path."""
    return is_file_name(name) or (
        os.path.exists(name) and name != "digits" and not is_tfds(name)
    )


def _digits(split: str) -> Dataset:
    """Returns scikit-learn's digits with pixels scaled to 0..255."""
    from sklearn.datasets import load_digits

    if split != "all":
        raise ValueError(f"split must be all for digits (no splits), got {split!r}")
    images, labels = map(np.asarray, load_digits(return_X_y=True))
    pixels = np.round(images * (255 / 16)).astype(np.uint8)
    return Dataset("digits", pixels.reshape(-1, 8, 8, 1), labels.astype(np.int64))
