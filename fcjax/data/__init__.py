"""Data sets by name, and how clients come to hold them."""

from fcjax.data.dataset import Dataset, Scaling, validate
from fcjax.data.files import read
from fcjax.data.host import HostPool, place
from fcjax.data.partition import (
    Partition,
    deal,
    dirichlet,
    failures,
    federate,
    federate_left_out,
    heterogeneous,
)
from fcjax.data.sources import load, load_extra, stratified_subset

__all__ = [
    "Dataset",
    "HostPool",
    "Partition",
    "Scaling",
    "deal",
    "dirichlet",
    "failures",
    "federate",
    "federate_left_out",
    "heterogeneous",
    "load",
    "load_extra",
    "place",
    "read",
    "stratified_subset",
    "validate",
]
