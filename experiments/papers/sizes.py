"""How large the papers' data sets are, so that settings which follow from the data are
known where the data is not.
"""

from typing import NamedTuple

import numpy as np

from fcjax import data


class Size(NamedTuple):
    train: int
    """Examples; of what has no splits all of them."""
    test: int
    shape: tuple[int, ...]
    """Of an example."""
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
"""By what a table calls them."""


def blank(
    name: str,
    *,
    split: str = "all",
    resize: int | None = None,
    limit: int | None = None,
) -> data.Dataset:
    """Returns a data set of that size, every example the same, which takes no memory.

    Args:
        name: of `SIZES`.
        split: `train`, `test` or `all`, as of `data.load`.
        resize: as of `data.load`; vectors stay as they are.
        limit: so many examples, where all are more.
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
