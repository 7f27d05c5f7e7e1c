"""The settings that select the examples of a run: a data set and a part of it."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from fcjax.data.dataset import Scale
from fcjax.settings import shown

ARRAY = "array"
"""The name of a data set that is given as an array."""


@dataclasses.dataclass(frozen=True)
class Source:
    """Data set: its name or path, and the examples to use.

    Examples:
      >>> from fcjax.data import load
      >>> load(Source("digits", limit=100, resize=4)).examples.shape
      (100, 4, 4, 1)
    """

    dataset: str = "digits"
    """Name or path of the data set (docs/guides/own_data.md).
    Name: digits (8x8 images, included) or a prepared TFDS data set, such as mnist.
    Path: .npz, .npy, .h5, .h5ad, .safetensors, .mat, .csv, .tsv, .parquet, .xlsx, .json
    of LEAF, IDX, a folder of images, or hf:PATH."""
    image_shape: Annotated[tuple[int, ...], shown("feature vectors")] = ()
    """Height, width and optionally channels of images in the rows of a file."""
    resize: Annotated[int | None, shown("no resizing")] = None
    """Resize images to this height and width in pixels, without cropping."""
    scale_columns: Scale = "minmax"
    """Scaling of feature columns: minmax to 0 to 1, standard to mean 0 and standard
    deviation 1. none keeps the values, for columns that are already on one scale.
    Methods that train networks take minmax only."""
    labels: bool = True
    """Whether the data has labels. Labels are used for scores, never for training."""
    array: Annotated[str | None, shown("a usual name, such as x")] = None
    """Array of the examples in an .npz, .h5, .h5ad or .safetensors."""
    label_array: Annotated[str | None, shown("a usual name, such as y")] = None
    """Array of the labels in such a file. In an .h5ad, a column of obs."""
    client_array: Annotated[str | None, shown("a usual name, such as client")] = None
    """Array of the clients in such a file. In an .h5ad, a column of obs."""
    label_column: Annotated[
        str | None, shown("a column called label, class, target or y; else the last")
    ] = None
    """Column of a table with the class: its name, or its number without a header."""
    client_column: Annotated[str | None, shown("none")] = None
    """Column of a table or hf:PATH that names the client of each example."""
    drop_columns: Annotated[tuple[str, ...], shown("none")] = ()
    """Columns of a table that are not used."""
    one_hot: bool = False
    """Replace each text column of a table by one column of 0 and 1 per text."""
    missing: Literal["refuse", "drop", "median"] = "refuse"
    """Missing values of a table: stop with an error, drop their examples, or use the
    median of the column."""
    client_folders: bool = False
    """Use the outer folders of an image folder as clients, whatever their names are."""
    keep_index: bool = False
    """Use a table column that only numbers the rows as a feature."""
    data_dir: Annotated[Path | None, shown("the default of TFDS")] = None
    """Folder of prepared TFDS data sets."""
    split: Literal["all", "train", "test"] = "all"
    """Examples to use: all joins the training and test sets, as in the papers, and the
    other splits of a folder."""
    limit: Annotated[int | None, shown("all")] = None
    """Number of examples to use, at least 2. Classes are sampled in proportion."""
    extra_split: Annotated[str | None, shown("none")] = None
    """Further TFDS split to train on without scores, such as unlabelled of stl10."""

    def __post_init__(self):
        object.__setattr__(self, "image_shape", tuple(self.image_shape))
        if self.data_dir is not None:
            object.__setattr__(self, "data_dir", Path(self.data_dir))
        if self.resize is not None and self.resize < 1:
            raise ValueError(f"resize must be at least 1, got {self.resize}")
        if self.limit is not None and self.limit < 2:
            raise ValueError(
                f"`limit` must be at least 2 and at most the number of examples, got "
                f"{self.limit}"
            )


ARRAY_SETTINGS = ("array", "label_array", "client_array")
"""The settings that name arrays of a file."""
FOR_TABLES = ("label_column", "client_column", "drop_columns", "one_hot", "missing")
"""The settings that only tables have."""
LATER = (*ARRAY_SETTINGS, *FOR_TABLES, "client_folders", "keep_index", "scale_columns")
"""The settings that later versions added. config.json omits their default values."""
FOR_FILES = (*ARRAY_SETTINGS, *FOR_TABLES, "image_shape", "client_folders")
FOR_FILES += ("scale_columns",)
"""The settings that named data sets do not have."""
SOURCE = tuple(x.name for x in dataclasses.fields(Source) if x.name != "data_dir")
"""The names of all settings that decide which examples a run has."""


def short_name(dataset: str) -> str:
    """Returns the name of a data set without its folders and file ending.

    Args:
      dataset: the name or path of the data set, as the user gave it.

    Returns:
      The name, with "-" in place of "/".
    """
    dataset = dataset.removeprefix("hf:")
    name = Path(dataset).name.partition(".")[0] if Path(dataset).exists() else dataset
    return name.replace("/", "-")
