"""Data sets by name or path: digits, TFDS, Hugging Face and files."""

import contextlib
import dataclasses
import difflib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fcjax.data.dataset import Dataset, Scaling, decoding, name_errors, validate
from fcjax.data.files import HUGGING_FACE, WITH_ARRAYS, convert, is_file_name, read
from fcjax.data.images import resize_image, resize_images
from fcjax.data.partition import proportional_counts
from fcjax.data.source import ARRAY, FOR_FILES, FOR_TABLES, Source
from fcjax.data.tables import content_of

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
def read_tfds(source: Source, split: str) -> Dataset:
    """Returns the examples of a split of a prepared TFDS data set.

    Args:
      source: the settings. The name may have a configuration and a version.
      split: the name of any split, or `all` for the training and test sets.

    Returns:
      The data set.

    Raises:
      ValueError: the name or the split is unknown, or the data is not prepared,
        damaged, or not one labelled uint8 image per example.
    """
    name, data_dir = source.dataset, source.data_dir
    with name_errors(name):
        builder = _builder(_COARSE.get(name, name), data_dir)
        label = "coarse_label" if name in _COARSE else "label"
        _check_features(dict((builder.info.features or {}).items()), label)
        prepare = _prepare_command(_COARSE.get(name, name), data_dir)
        if not builder.is_prepared():
            raise ValueError(
                f"is not prepared in {builder.data_dir}. If it is in another folder, "
                "give `data_dir`. Without TensorFlow, see IDX and hf:PATH in "
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
            stored = builder.as_data_source("+".join(selected))
        labels = np.empty(len(stored), np.int64)
        images = np.empty((len(stored), 0, 0, 0), np.uint8)
        for number, example in enumerate(_examples(stored, fault)):
            image = example["image"]
            if source.resize is not None:
                image = resize_image(image, source.resize)
            if number == 0:
                images = np.empty((len(stored), *image.shape), np.uint8)
            if image.shape != images.shape[1:]:
                raise ValueError(
                    f"has images of mixed sizes, {images.shape[1:]} and {image.shape}; "
                    "all images must have the same size, so use `resize`"
                )
            images[number], labels[number] = image, example[label]
        return validate(Dataset(name, images, labels))


def _examples(stored: Any, fault: str) -> Iterator[dict[str, Any]]:
    """Yields the examples of a TFDS data source, read in chunks."""
    for start in range(0, len(stored), _CHUNK):
        numbers = range(start, min(start + _CHUNK, len(stored)))
        with decoding(fault):
            examples = stored.__getitems__(list(numbers))
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
    source: str | os.PathLike[str] | Source,
    *,
    scaling: Scaling | None = None,
    **settings: Any,
) -> Dataset:
    """Returns the examples of a data set, in its order.

    Args:
      source: a `Source`, or its first field, the name or path of a data set. One of:

        - `digits`: 1,797 images of 8x8 from scikit-learn, scaled from 0..16 to 0..255.
        - `cifar20`: CIFAR-100 with its 20 super-classes as labels.
        - The name of a TFDS image classification data set, such as `mnist` or
          `emnist/digits`, that is prepared as array_record.
        - The path of a file or folder, see `docs/guides/own_data.md`, or `hf:PATH` for
          a data set saved by Hugging Face's `datasets`. If a folder has the name of one
          of the data sets above, write `./mnist`.
      scaling: the scaling of the training data of a model; None computes it from these
        examples.
      **settings: fields of `Source`, such as `resize=16` or `client_column="site"`;
        None keeps the default.

    Returns:
      Images [P, H, W, C], uint8 in 0..255 or float32 in [0, 1], or feature vectors
      [P, F] in float32; labels in int64, if the data has them; clients, if the data
      names them; and one line per conversion.

    Raises:
      ValueError: one line that names the setting and says what is accepted. The name
        or the split is unknown, or the data is not prepared, damaged, or of a wrong
        shape.

    Examples:
      >>> digits = load("digits")
      >>> print(digits.examples.shape, digits.examples.dtype, np.unique(digits.labels))
      (1797, 8, 8, 1) uint8 [0 1 2 3 4 5 6 7 8 9]
    """
    if not isinstance(source, Source):
        source = Source(os.fspath(source))
    if (split := settings.get("split", "all")) not in ("all", "train", "test"):
        raise ValueError(f"split must be all, train or test, got {split!r}")
    if settings.get("data_dir") is not None:
        settings["data_dir"] = Path(settings["data_dir"])
    source = dataclasses.replace(source, **_given(settings))
    name, split, resize = source.dataset, source.split, source.resize
    if _is_path(name):
        has_splits = name.startswith(HUGGING_FACE) or os.path.isdir(name)
        has_splits |= name.lower().endswith(tuple(WITH_ARRAYS)) and Path(name).exists()
        if split != "all" and not has_splits:
            raise ValueError(f"split must be all for files, got {split!r}")
        dataset = read(source, scaling)
    else:
        check_only_for_files(source)
        dataset = _digits(split) if name == "digits" else read_tfds(source, split)
        if resize is not None:
            images = resize_images(dataset.examples, resize)
            notes = (f"images resized to {resize}x{resize}",)
            dataset = dataset._replace(examples=images, notes=notes)
        if not source.labels:
            dataset = dataset._replace(labels=None)
    if source.limit is None:
        return dataset
    return stratified_subset(dataset, source.limit)


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that are not None, with a tuple of columns to drop."""
    given = {name: value for name, value in settings.items() if value is not None}
    if "drop_columns" in given:
        dropped = given["drop_columns"]
        given["drop_columns"] = (
            (dropped,) if isinstance(dropped, str) else tuple(dropped)
        )
    missing = given.get("missing", "refuse")
    if missing not in ("refuse", "drop", "median"):
        raise ValueError(f"missing must be refuse, drop or median, got {missing!r}")
    return given


FOR_FRAMES = (*FOR_TABLES, "labels", "keep_index", "image_shape", "resize", "limit")
FOR_FRAMES += ("scale_columns",)
"""The settings that a DataFrame has."""


def from_frame(
    frame: pd.DataFrame, *, scaling: Scaling | None = None, **settings: Any
) -> Dataset:
    """Returns the examples of a pandas DataFrame, by the rules of tables in files.

    The class is `label_column`. Without this setting, the class is the column called
    label, class, target or y, if there is one. Otherwise the data has no labels: unlike
    in a file, the last column is a feature. The index of the DataFrame is not used.

    Args:
      frame: one row per example.
      scaling: the scaling of the training data of a model; None computes it from these
        examples.
      **settings: fields of `Source`: `label_column`, `client_column`, `drop_columns`,
        `one_hot`, `missing`, `labels`, `keep_index`, `image_shape`, `resize`, `limit`
        and `scale_columns`; None keeps the default.

    Returns:
      The data set, see `load`.

    Raises:
      ValueError: one line that names the column or the setting, and says what is
        accepted.

    Examples:
      >>> import pandas as pd
      >>> frame = pd.DataFrame({"kind": ["cat", "dog", "cat"], "kg": [4, 20, None]})
      >>> pets = from_frame(frame, label_column="kind", missing="median")
      >>> pets.examples.tolist(), pets.labels.tolist()
      ([[0.0], [1.0], [0.5]], [0, 1, 0])
    """
    given = _given(settings)
    if wrong := sorted(given.keys() - {*FOR_FRAMES}):
        raise ValueError(
            f"{wrong[0]} is not a setting of a DataFrame; accepted are "
            f"{', '.join(FOR_FRAMES)}"
        )
    source = Source(ARRAY, **given)
    with name_errors("in a DataFrame (see data.from_frame)"):
        names = [str(name).strip() for name in frame.columns]
        content = content_of(frame, names, source, last_is_class=False)
        dataset = convert(ARRAY, content, source, scaling)
    if source.limit is None:
        return dataset
    return stratified_subset(dataset, source.limit)


def check_only_for_files(source: Source) -> None:
    """Checks that the settings of a named data set have no setting of files.

    Args:
      source: the settings.

    Raises:
      ValueError: a setting that is only for files is set.
    """
    for name in FOR_FILES:
        if getattr(source, name) != getattr(Source(), name):
            raise ValueError(
                f"{name} is only for files, but the data set is {source.dataset}; omit "
                f"`{name}`"
            )


Loaded = tuple[Dataset, np.ndarray]
"""A data set that is scored, and extra examples [E, ...] that are only trained on."""


def load_source(source: Source) -> Loaded:
    """Loads the data set and the extra examples that are only trained on.

    Args:
      source: the settings of the data set.

    Returns:
      The data set, and the examples of `extra_split` (none without `extra_split`).

    Raises:
      ValueError: the data cannot be read, or the extra examples have another shape.
    """
    dataset = load(source)
    if source.extra_split is None:
        return dataset, dataset.examples[:0]
    extra = load_extra(source)
    if extra.shape[1:] != dataset.examples.shape[1:]:
        raise ValueError(
            f"extra_split {source.extra_split} has images of shape {extra.shape[1:]}, "
            f"but {source.dataset} has images of shape {dataset.examples.shape[1:]}; "
            "use `resize` for equal shapes"
        )
    return dataset, extra


def load_extra(source: Source) -> np.ndarray:
    """Returns the examples of the further split of a TFDS data set, without labels.

    Args:
      source: the settings; `extra_split` is the name of any split.

    Returns:
      Images [P, H, W, C] in uint8.

    Raises:
      ValueError: the name or the split is unknown, or the data is not prepared,
        damaged, or of a wrong shape.

    Examples:
      >>> load_extra(Source("digits", extra_split="test"))
      Traceback (most recent call last):
      ...
      ValueError: extra_split is for TFDS data sets, but the data set is digits
    """
    if source.dataset == "digits" or _is_path(source.dataset):
        raise ValueError(
            f"extra_split is for TFDS data sets, but the data set is {source.dataset}"
        )
    return read_tfds(source, source.extra_split or "all").examples


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
      The data set with these examples, labels, clients and names.

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
    if num_examples == total:
        return dataset
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
    names = indices.astype(str) if dataset.names is None else dataset.names[indices]
    examples = dataset.examples[indices]
    return dataset._replace(
        examples=examples, labels=labels, clients=clients, names=names
    )


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
