"""Data sets by name, how clients come to hold them, and views of their examples."""

from fcjax.data.augment import Augment, affine_grey, ccfc_grey, to_float
from fcjax.data.colour import simsiam_colour
from fcjax.data.dataset import Dataset, Scaling
from fcjax.data.federation import Pool, federate, federate_left_out
from fcjax.data.files import read
from fcjax.data.partition import (
    Partition,
    deal,
    dirichlet,
    failures,
    heterogeneous,
    thinned,
)
from fcjax.data.partition_by_class import class_blocks, drawn_classes
from fcjax.data.partition_by_client import natural, some_of
from fcjax.data.partition_by_range import class_ranges
from fcjax.data.placement import HostPool
from fcjax.data.size_classes import SizeClasses, size_classes
from fcjax.data.sources import load, load_extra, stratified_subset
from fcjax.data.vectors import as_rows, client_rows, vector_view

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
