"""Examples by name: scikit-learn's digits, TFDS without TensorFlow, and files."""

import os

import numpy as np

from fcjax.data.dataset import Dataset, Scaling
from fcjax.data.files import is_file_name, read
from fcjax.data.partition import in_proportion
from fcjax.data.resizing import check, resized
from fcjax.data.tfds import is_tfds, read_tfds


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
    """Returns the data set called `name`, in dataset order.

    Args:
      name: `digits` (embedded in scikit-learn: 1,797 images of 8x8, scaled from
        0..16 to 0..255), `cifar20` (CIFAR-100 by its 20 super-classes), the name of
        a TFDS image classification data set, such as `mnist` or `emnist/digits`,
        that is prepared as array_record, or the path of a file or folder that
        `files.read` accepts, `hf:PATH` of a data set that Hugging Face's `datasets`
        saved. A folder that is called as one of the named data sets is given as
        `./mnist`.
      data_dir: where TFDS data sets are prepared; None is the default of TFDS.
      split: `all` (train, then test), `train` or `test`; files have only `all`, except
        `hf:PATH` and folders with folders of splits.
      image_shape: (H, W) or (H, W, C) of the images in rows of a file.
      labelled: whether to keep the labels, and to look for them in files.
      scaling: of the feature vectors that a model was trained on, see `files.read`.
      resize: H and W of all images, which are scaled as `resizing` does while they are
        read; None takes those that they have.
      client_column: of a table, see `files.read`.
      client_folders: of a folder of images, see `files.read`.
      keep_index: of a table, see `files.read`.

    Returns:
      images [P, H, W, C] uint8 and labels [P] int64; files may also give float32
      images, feature vectors [P, F] and no labels, and say whose an example is.

    Raises:
      ValueError: one line that names the parameter and says what is accepted, for an
        unknown name or split, data that is not prepared or is damaged, and data
        that is not one labelled uint8 image of the same size per example.

    Examples:
      >>> digits = load("digits")
      >>> print(digits.examples.shape, digits.examples.dtype, np.unique(digits.labels))
      (1797, 8, 8, 1) uint8 [0 1 2 3 4 5 6 7 8 9]
    """
    check(resize)
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
    for flag, given in (
        ("image_shape", image_shape),
        ("client_column", client_column),
        ("client_folders", client_folders or None),
    ):
        if given is not None:
            raise ValueError(f"{flag} is for files, but the data set is {name}")
    is_digits = name == "digits"
    dataset = _digits(split) if is_digits else read_tfds(name, data_dir, split, resize)
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
    """Returns the examples of any split of a TFDS data set, without labels.

    Args:
      name: as in `load`, of TFDS.
      split: the name of any of its splits.
      data_dir: as in `load`.
      resize: as in `load`.

    Returns:
      images [P, H, W, C] uint8.

    Raises:
      ValueError: as `load`, and where the data has no such split.

    Examples:
      >>> images = load_extra("stl10", "unlabelled")  # doctest: +SKIP
      >>> load_extra("digits", "test")
      Traceback (most recent call last):
      ...
      ValueError: extra_split is for TFDS data sets, but the data set is digits
    """
    check(resize)
    if name == "digits" or _is_path(name):
        raise ValueError(
            f"extra_split is for TFDS data sets, but the data set is {name}"
        )
    return read_tfds(name, data_dir, split, resize, flag="extra_split").examples


def stratified_subset(dataset: Dataset, num_examples: int, *, seed: int = 0) -> Dataset:
    """Returns `num_examples` examples with classes in proportion, in dataset order.

    Each class gets the floor of its share; the rows still missing go to the classes
    with the largest remainders, the first class at a tie. Within a class the draw is
    random and follows from `seed` alone. Without labels all rows are one class.

    Args:
      dataset: of P examples.
      num_examples: how many to keep.
      seed: of the draw.

    Returns:
      The data set with those examples and labels alone.

    Raises:
      ValueError: `num_examples` is not in 1..P.

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
    drawn = [
        rng.choice(np.flatnonzero(labels == c), quota, replace=False)
        for c, quota in zip(classes, in_proportion(counts, num_examples), strict=True)
    ]
    rows = np.sort(np.concatenate(drawn))
    each = (dataset.labels, dataset.clients)
    labels, clients = (None if values is None else values[rows] for values in each)
    examples = dataset.examples[rows]
    return dataset._replace(examples=examples, labels=labels, clients=clients)


def _is_path(name: str) -> bool:
    # Names win over folders: what `mnist` is must not hang on where one stands.
    return is_file_name(name) or (
        os.path.exists(name) and name != "digits" and not is_tfds(name)
    )


def _digits(split: str) -> Dataset:
    from sklearn.datasets import load_digits

    if split != "all":
        raise ValueError(f"split must be all for digits (no splits), got {split!r}")
    images, labels = map(np.asarray, load_digits(return_X_y=True))
    pixels = np.round(images * (255 / 16)).astype(np.uint8)
    return Dataset("digits", pixels.reshape(-1, 8, 8, 1), labels.astype(np.int64))
