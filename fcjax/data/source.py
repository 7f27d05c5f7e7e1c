"""Which examples a run has: a data set by name or path, and what is taken of it."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from fcjax.data.dataset import Dataset
from fcjax.data.sources import load, load_extra, stratified_subset
from fcjax.settings import shown

ARRAY = "array"
"""The name of a data set that is given as an array."""
SOURCE = (
    *("dataset", "image_shape", "resize", "labels", "split", "limit"),
    *("extra_split", "client_column", "client_folders", "keep_index"),
)
"""The settings that decide which examples a run has: all but `data_dir`."""


@dataclasses.dataclass(frozen=True)
class Source:
    """For examples of your own, or fewer of them."""

    dataset: str = "digits"
    """digits (8x8, embedded), a prepared TFDS data set (mnist, emnist/digits), or a
    path: .npz, .mat, .csv, .parquet, IDX, a folder of images or hf:PATH
    (docs/guides/own_data.md)."""
    image_shape: Annotated[tuple[int, ...], shown("feature vectors")] = ()
    """H W or H W C of the images that rows of numbers in a file hold, row by row."""
    resize: Annotated[int | None, shown("as they are")] = None
    """Resize images to so many pixels a side, bilinear, without cropping."""
    labels: bool = True
    """Whether the data has classes, which are scored against and never trained on."""
    client_column: Annotated[str | None, shown("none")] = None
    """Column of a .csv, .parquet or hf:PATH that says whose an example is."""
    client_folders: bool = False
    """Take the outer folders of images as clients, whatever they are called."""
    keep_index: bool = False
    """Take a column of a table that numbers the rows as a feature."""
    data_dir: Annotated[Path | None, shown("TFDS's own")] = None
    """Where TFDS data sets are prepared."""
    split: Literal["all", "train", "test"] = "all"
    """Which examples; all joins train and test, as the papers do."""
    limit: Annotated[int | None, shown("all")] = None
    """Use so many examples, drawn in proportion to the classes."""
    extra_split: Annotated[str | None, shown("none")] = None
    """A TFDS split that is dealt out and trained on too, but not scored (stl10 has
    unlabelled)."""

    def __post_init__(self):
        object.__setattr__(self, "image_shape", tuple(self.image_shape))
        if self.data_dir is not None:
            object.__setattr__(self, "data_dir", Path(self.data_dir))
        if self.limit is not None and self.limit < 2:
            raise ValueError(f"`limit` must be at least 2, got {self.limit}")


Loaded = tuple[Dataset, np.ndarray]


def load_source(source: Source) -> Loaded:
    """Returns the data set that is scored, and further examples to train on."""
    dataset = load(
        source.dataset,
        data_dir=source.data_dir,
        split=source.split,
        image_shape=source.image_shape or None,
        labelled=source.labels,
        resize=source.resize,
        client_column=source.client_column,
        client_folders=source.client_folders,
        keep_index=source.keep_index,
    )
    if source.limit is not None:
        dataset = stratified_subset(dataset, source.limit)
    if source.extra_split is None:
        return dataset, dataset.examples[:0]
    extra = load_extra(
        source.dataset,
        source.extra_split,
        data_dir=source.data_dir,
        resize=source.resize,
    )
    if extra.shape[1:] != dataset.examples.shape[1:]:
        raise ValueError(
            f"extra_split {source.extra_split} has images of {extra.shape[1:]}, the "
            f"others are of {dataset.examples.shape[1:]}"
        )
    return dataset, extra


def short_name(dataset: str) -> str:
    """Returns the name of a data set without its folders and ending."""
    dataset = dataset.removeprefix("hf:")
    name = Path(dataset).name.partition(".")[0] if Path(dataset).exists() else dataset
    return name.replace("/", "-")
