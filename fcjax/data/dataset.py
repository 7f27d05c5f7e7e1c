"""What every source of data returns, and the least that it must fulfil."""

from typing import NamedTuple

import numpy as np


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
    """[P] whose an example is, from 0, -1 where it is nobody's; None where the data
    does not say."""


def validate(dataset: Dataset) -> Dataset:
    """Returns `dataset` as it is, once it is known to be usable.

    Raises:
      ValueError: there are no examples, labels or clients and examples differ in
        number, or a value is NaN or infinite.
    """
    name, examples, labels = dataset[:3]
    if len(examples) == 0:
        raise ValueError(f"dataset {name} has no examples, at least 1 is needed")
    if labels is not None and labels.shape != examples.shape[:1]:
        raise ValueError(
            f"dataset {name} has {len(examples)} examples but labels of shape "
            f"{labels.shape}, one label an example is needed"
        )
    if dataset.clients is not None and dataset.clients.shape != examples.shape[:1]:
        raise ValueError(
            f"dataset {name} has {len(examples)} examples but clients of shape "
            f"{dataset.clients.shape}, one client an example is needed"
        )
    if not np.isfinite(examples).all():
        raise ValueError(
            f"dataset {name} has NaN or infinite values, all must be finite"
        )
    return dataset
