"""The data that the flags name."""

from pathlib import Path

import numpy as np

from fcjax import data
from fcjax.sweep.flags import Common

FLAGS = (
    *("dataset", "image_shape", "resize", "labels", "split", "limit"),
    *("extra_split", "client_column", "client_folders", "keep_index"),
)
"""The flags that say which data it is."""
Loaded = tuple[data.Dataset, np.ndarray]


def load(args: Common) -> Loaded:
    """Returns the data that is scored, and further examples to train on."""
    dataset = data.load(
        args.dataset,
        data_dir=args.data_dir,
        split=args.split,
        image_shape=args.image_shape or None,
        labelled=args.labels,
        resize=args.resize,
        client_column=args.client_column,
        client_folders=args.client_folders,
        keep_index=args.keep_index,
    )
    if args.limit is not None:
        dataset = data.stratified_subset(dataset, args.limit)
    if args.extra_split is None:
        return dataset, dataset.examples[:0]
    extra = data.load_extra(
        args.dataset, args.extra_split, data_dir=args.data_dir, resize=args.resize
    )
    if extra.shape[1:] != dataset.examples.shape[1:]:
        raise ValueError(
            f"--extra-split {args.extra_split} has images of {extra.shape[1:]}, the "
            f"others are of {dataset.examples.shape[1:]}"
        )
    return dataset, extra


def short_name(dataset: str) -> str:
    """Returns the name of a data set without its folders and ending."""
    dataset = dataset.removeprefix("hf:")
    name = Path(dataset).name.partition(".")[0] if Path(dataset).exists() else dataset
    return name.replace("/", "-")
