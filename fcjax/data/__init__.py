"""Data sets by name or path, partitions of examples over clients, and augmentation."""

from fcjax.data.augment import (
    Augment,
    affine_grey,
    as_rows,
    ccfc_grey,
    client_rows,
    simsiam_colour,
    to_float,
    vector_view,
)
from fcjax.data.dataset import Dataset, Scaling
from fcjax.data.federation import (
    HostPool,
    SizeClasses,
    federate,
    federate_left_out,
    size_classes,
)
from fcjax.data.partition import (
    Partition,
    add_evenly,
    class_blocks,
    class_ranges,
    dirichlet,
    drawn_classes,
    failures,
    heterogeneous,
    natural,
    select_clients,
    subsample_clients,
)
from fcjax.data.source import Source
from fcjax.data.sources import from_frame, load, load_extra, stratified_subset
from fcjax.types import Pool

__all__ = [
    "Augment",
    "Dataset",
    "HostPool",
    "Partition",
    "Pool",
    "Scaling",
    "SizeClasses",
    "Source",
    "add_evenly",
    "affine_grey",
    "as_rows",
    "ccfc_grey",
    "class_blocks",
    "class_ranges",
    "client_rows",
    "dirichlet",
    "drawn_classes",
    "failures",
    "federate",
    "federate_left_out",
    "from_frame",
    "heterogeneous",
    "load",
    "load_extra",
    "natural",
    "select_clients",
    "simsiam_colour",
    "size_classes",
    "stratified_subset",
    "subsample_clients",
    "to_float",
    "vector_view",
]
