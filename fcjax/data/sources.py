"""Examples by name: scikit-learn's digits, TFDS without TensorFlow, and files."""

import contextlib
import difflib
import logging
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fcjax.data.dataset import Dataset, Scaling, validate
from fcjax.data.files import is_file_name, read
from fcjax.data.resizing import check, resized, square

_SPLITS = ("train", "test")
_CHUNK = 1024
_TFDS_NAME = r"\w+(/[\w.+-]+)?(:[\d.*]+)?"


def load(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    split: str = "all",
    image_shape: tuple[int, ...] | None = None,
    labelled: bool = True,
    scaling: Scaling | None = None,
    resize: int | None = None,
) -> Dataset:
    """Returns the data set called `name`, in dataset order.

    Args:
      name: `digits` (embedded in scikit-learn: 1,797 images of 8x8, scaled from
        0..16 to 0..255), the name of a TFDS image classification data set, such
        as `mnist` or `emnist/digits`, that is prepared as array_record, or the path
        of a file or folder that `files.read` accepts. A folder that is called as
        one of the named data sets is given as `./mnist`.
      data_dir: where TFDS data sets are prepared; None is the default of TFDS.
      split: `all` (train, then test), `train` or `test`; files have only `all`.
      image_shape: (H, W) or (H, W, C) of the images in rows of a file.
      labelled: whether to keep the labels, and to look for them in files.
      scaling: of the feature vectors that a model was trained on, see `files.read`.
      resize: H and W of all images, which are scaled as `resizing` does while they are
        read; None takes those that they have.

    Returns:
      images [P, H, W, C] uint8 and labels [P] int64; files may also give float32
      images, feature vectors [P, F] and no labels.

    Raises:
      ValueError: one line that names the flag and says what is accepted, for an
        unknown name or split, data that is not prepared or is damaged, and data
        that is not one labelled uint8 image of the same size per example.
    """
    check(resize)
    if split not in ("all", *_SPLITS):
        raise ValueError(f"--split must be all, train or test, got {split!r}")
    if _is_path(name):
        if split != "all":
            raise ValueError(f"--split must be all for files, got {split!r}")
        return read(
            name,
            image_shape=image_shape,
            labelled=labelled,
            scaling=scaling,
            resize=resize,
        )
    if image_shape is not None:
        raise ValueError(f"--image-shape is for files, but --dataset is {name}")
    if name == "digits":
        dataset = _digits(split)
    else:
        with _quiet_absl():
            dataset = validate(_tfds(name, data_dir, split, resize))
    if resize is not None:
        images = resized(dataset.examples, resize)
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
    """Returns the examples of any split of a TFDS data set, resized as by `load`;
    labels are not kept.

    Raises:
      ValueError: as `load`, and where the data has no such split.
    """
    check(resize)
    if name == "digits" or _is_path(name):
        raise ValueError(
            f"--extra-split is for TFDS data sets, but --dataset is {name}"
        )
    with _quiet_absl():
        return validate(
            _tfds(name, data_dir, split, resize, flag="--extra-split")
        ).examples


def stratified_subset(dataset: Dataset, num_examples: int, *, seed: int = 0) -> Dataset:
    """Returns `num_examples` examples with classes in proportion, in dataset order.

    Each class gets the floor of its share; the rows still missing go to the classes
    with the largest remainders, the first class at a tie. Within a class the draw is
    random and follows from `seed` alone. Without labels all rows are one class.

    Raises:
      ValueError: `num_examples` is not in 1..P.
    """
    total = len(dataset.examples)
    if not 1 <= num_examples <= total:
        raise ValueError(
            f"--limit must lie in 1..{total}, the size of {dataset.name}, "
            f"got {num_examples}"
        )
    labels = np.zeros(total, int) if dataset.labels is None else dataset.labels
    classes, counts = np.unique(labels, return_counts=True)
    quotas, remainders = np.divmod(counts * num_examples, total)
    largest = np.argsort(-remainders, kind="stable")
    quotas[largest[: num_examples - quotas.sum()]] += 1
    rng = np.random.default_rng(seed)
    rows = np.sort(
        np.concatenate(
            [
                rng.choice(np.flatnonzero(labels == c), quota, replace=False)
                for c, quota in zip(classes, quotas, strict=True)
            ]
        )
    )
    kept = None if dataset.labels is None else dataset.labels[rows]
    return dataset._replace(examples=dataset.examples[rows], labels=kept)


def _is_path(name: str) -> bool:
    # Names win over folders: what `mnist` is must not hang on where one stands.
    return is_file_name(name) or (
        os.path.exists(name) and name != "digits" and not _is_tfds(name)
    )


def _is_tfds(name: str) -> bool:
    if not re.fullmatch(_TFDS_NAME, name):
        return False
    import tensorflow_datasets as tfds

    known = tfds.list_builders(with_community_datasets=False)
    return re.split("[/:]", name)[0] in known


def _digits(split: str) -> Dataset:
    from sklearn.datasets import load_digits

    if split != "all":
        raise ValueError(f"--split must be all for digits (no splits), got {split!r}")
    images, labels = load_digits(return_X_y=True)
    pixels = np.round(images * (255 / 16)).astype(np.uint8)
    return Dataset("digits", pixels.reshape(-1, 8, 8, 1), labels.astype(np.int64))


def _tfds(
    name: str,
    data_dir: str | os.PathLike[str] | None,
    split: str,
    resize: int | None,
    *,
    flag: str = "--split",
) -> Dataset:
    builder = _builder(name, data_dir)
    _check_features(name, dict((builder.info.features or {}).items()))
    where = os.fspath(builder.data_dir)
    prepare = _prepare_command(name, data_dir)
    if not builder.is_prepared():
        raise ValueError(
            f"--dataset {name} is not prepared in {where}; give the --data-dir where "
            f"it is, or run: {prepare}"
        )
    known = list(builder.info.splits)
    wanted = [s for s in _SPLITS if s in known] if split == "all" else [split]
    if not wanted or not set(wanted) <= set(known):
        raise ValueError(
            f"{flag} {split} is not in {name}, which has "
            f"{', '.join(builder.info.splits) or 'no splits'}"
        )
    try:
        source = builder.as_data_source("+".join(wanted))
    except NotImplementedError as error:
        raise ValueError(
            f"--dataset {name} is prepared in {where} in a format that only "
            f"TensorFlow reads; move that folder away and run: {prepare}"
        ) from error
    # A damaged file surfaces as almost any exception type, from three libraries.
    except Exception as error:
        raise _damaged(name, where, prepare, error) from error
    labels = np.empty(len(source), np.int64)
    images = np.empty((len(source), 0, 0, 0), np.uint8)
    for start in range(0, len(source), _CHUNK):
        rows = range(start, min(start + _CHUNK, len(source)))
        try:
            examples = source.__getitems__(list(rows))
        except Exception as error:
            raise _damaged(name, where, prepare, error) from error
        for row, example in zip(rows, examples, strict=True):
            image = example["image"]
            if resize is not None:
                image = square(image, resize)
            if row == 0:
                images = np.empty((len(source), *image.shape), np.uint8)
            if image.shape != images.shape[1:]:
                raise ValueError(
                    f"--dataset {name} has images of mixed sizes, {images.shape[1:]} "
                    f"and {image.shape}; all must have one size, which --resize gives "
                    "them"
                )
            images[row], labels[row] = image, example["label"]
    return Dataset(name, images, labels)


def _builder(name: str, data_dir: str | os.PathLike[str] | None) -> Any:
    import tensorflow_datasets as tfds

    known = tfds.list_builders(with_community_datasets=False)
    if not re.fullmatch(_TFDS_NAME, name):
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
            f"--dataset {name} cannot be opened in {data_dir or 'the default folder'}: "
            f"{reason}"
        ) from error


def _unknown(name: str, known: list[str]) -> ValueError:
    near = difflib.get_close_matches(name, ["digits", *known], n=3, cutoff=0.5)
    return ValueError(
        f"--dataset {name!r} is unknown; give digits or a TFDS name"
        + (f", the nearest: {', '.join(near)}" if near else "")
    )


def _damaged(name: str, where: str, prepare: str, error: Exception) -> ValueError:
    return ValueError(
        f"--dataset {name} is damaged in {where} ({_last_line(error)}); "
        f"move that folder away and run: {prepare}"
    )


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _prepare_command(name: str, data_dir: str | os.PathLike[str] | None) -> str:
    where = "" if data_dir is None else f", data_dir={os.fspath(data_dir)!r}"
    return (
        'pip install tensorflow && python -c "import tensorflow_datasets as tfds; '
        f"tfds.builder({name!r}{where}, file_format='array_record')"
        '.download_and_prepare()"'
    )


def _check_features(name: str, features: Mapping[str, Any]) -> None:
    import tensorflow_datasets as tfds

    image, label = features.get("image"), features.get("label")
    if not isinstance(image, tfds.features.Image) or image.np_dtype != np.uint8:
        needed = "'image' of 8-bit pixels"
    elif (
        label is None or label.shape != () or np.dtype(label.np_dtype).kind not in "iu"
    ):
        needed = "'label' of one integer an example"
    else:
        return
    has = ", ".join(features) or "none"
    raise ValueError(f"--dataset {name} needs a feature {needed}, its features: {has}")


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
