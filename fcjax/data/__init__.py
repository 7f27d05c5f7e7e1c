"""Data sets by name, and how clients come to hold them."""

from fcjax.data.by_class import class_blocks, drawn_classes
from fcjax.data.by_range import class_ranges
from fcjax.data.dataset import Dataset, Scaling, validate
from fcjax.data.federation import Pool, federate, federate_left_out
from fcjax.data.files import read
from fcjax.data.host import (
    HostPool,
    check_state,
    peak_memory,
    place,
    readable,
    runs_that_fit,
)
from fcjax.data.partition import (
    Partition,
    deal,
    dirichlet,
    failures,
    heterogeneous,
    thinned,
)
from fcjax.data.sources import load, load_extra, stratified_subset

__all__ = [
    "Dataset",
    "HostPool",
    "Partition",
    "Pool",
    "Scaling",
    "check_state",
    "class_blocks",
    "class_ranges",
    "deal",
    "dirichlet",
    "drawn_classes",
    "failures",
    "federate",
    "federate_left_out",
    "heterogeneous",
    "load",
    "load_extra",
    "peak_memory",
    "place",
    "read",
    "readable",
    "runs_that_fit",
    "stratified_subset",
    "thinned",
    "validate",
]
