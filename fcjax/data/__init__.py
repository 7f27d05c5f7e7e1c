"""Data sets by name, and how clients come to hold them."""

from fcjax.data.partition import (
    Partition,
    deal,
    dirichlet,
    failures,
    federate,
    federate_left_out,
    heterogeneous,
)
from fcjax.data.sources import Dataset, load, stratified_subset, validate

__all__ = [
    "Dataset",
    "Partition",
    "deal",
    "dirichlet",
    "failures",
    "federate",
    "federate_left_out",
    "heterogeneous",
    "load",
    "stratified_subset",
    "validate",
]
