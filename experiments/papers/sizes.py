"""Sizes of the papers' data sets.

Some settings depend on the data. With these sizes they are known without the data.
"""

from typing import NamedTuple

import numpy as np

from fcjax import data


class Size(NamedTuple):
    """Number of examples and shape of a data set."""

    train: int
    """Number of training examples. For a data set without splits: of all examples."""
    test: int
    """Number of test examples."""
    shape: tuple[int, ...]
    """Shape of one example."""
    num_classes: int


SIZES = {
    "mnist": Size(60_000, 10_000, (28, 28, 1), 10),
    "fashion_mnist": Size(60_000, 10_000, (28, 28, 1), 10),
    "kmnist": Size(60_000, 10_000, (28, 28, 1), 10),
    # The 31 classes of KMNIST-49 that have 6,000 training images.
    "kmnist49": Size(186_000, 0, (28, 28, 1), 31),
    "emnist/digits": Size(240_000, 40_000, (28, 28, 1), 10),
    "cifar10": Size(50_000, 10_000, (32, 32, 3), 10),
    "cifar20": Size(50_000, 10_000, (32, 32, 3), 20),
    "cifar100": Size(50_000, 10_000, (32, 32, 3), 100),
    "stl10": Size(5_000, 8_000, (96, 96, 3), 10),
    "imagenet-10": Size(13_000, 0, (224, 224, 3), 10),
    "imagenet-dogs": Size(19_500, 0, (224, 224, 3), 15),
    "tiny-imagenet": Size(100_000, 0, (64, 64, 3), 200),
    "pendigits": Size(10_992, 0, (16,), 10),
    "orl": Size(400, 0, (32, 32, 1), 40),
    "coil20": Size(1_440, 0, (32, 32, 1), 20),
    "coil100": Size(7_200, 0, (32, 32, 1), 100),
}
"""Sizes by the name of the data set in the tables."""


def blank(
    name: str,
    *,
    split: str = "all",
    resize: int | None = None,
    limit: int | None = None,
) -> data.Dataset:
    """Returns a data set of the right size whose examples are all zero.

    The examples share one element of memory.

    Args:
        name: name of the data set, a key of `SIZES`.
        split: `train`, `test` or `all`, as for `data.load`.
        resize: side of the images in pixels, as for `data.load`. Vectors stay as they
            are.
        limit: maximum number of examples.

    Returns:
        The data set. Its labels run through the classes in turn.
    """
    size = SIZES[name]
    count = {"train": size.train, "test": size.test}.get(split, size.train + size.test)
    count = min(count, limit or count)
    is_image = len(size.shape) == 3
    shape = size.shape
    if is_image and resize is not None:
        shape = (resize, resize, size.shape[2])
    kind = np.uint8 if is_image else np.float32
    examples = np.broadcast_to(np.zeros((), kind), (count, *shape))
    return data.Dataset(name, examples, np.arange(count) % size.num_classes)
