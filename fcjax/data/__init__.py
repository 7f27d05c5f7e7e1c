"""Data sets by name, and how clients come to hold them."""

from fcjax.data.dataset import Dataset, validate
from fcjax.data.files import read
from fcjax.data.partition import (
    Partition,
    deal,
    dirichlet,
    failures,
    federate,
    federate_left_out,
    heterogeneous,
)
from fcjax.data.sources import load, stratified_subset

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
    "read",
    "stratified_subset",
    "validate",
]
