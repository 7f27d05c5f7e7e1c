"""Data sets by name, how clients come to hold them, and views of their examples."""

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
from fcjax.data.files import read
from fcjax.data.partition import (
    Partition,
    class_blocks,
    class_ranges,
    deal,
    dirichlet,
    drawn_classes,
    failures,
    heterogeneous,
    natural,
    some_of,
    thinned,
)
from fcjax.data.sources import load, load_extra, stratified_subset
from fcjax.types import Pool

__all__ = [
    "Augment",
    "Dataset",
    "HostPool",
    "Partition",
    "Pool",
    "Scaling",
    "SizeClasses",
    "affine_grey",
    "as_rows",
    "ccfc_grey",
    "class_blocks",
    "class_ranges",
    "client_rows",
    "deal",
    "dirichlet",
    "drawn_classes",
    "failures",
    "federate",
    "federate_left_out",
    "heterogeneous",
    "load",
    "load_extra",
    "natural",
    "read",
    "simsiam_colour",
    "size_classes",
    "some_of",
    "stratified_subset",
    "thinned",
    "to_float",
    "vector_view",
]
