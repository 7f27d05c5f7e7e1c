"""Losses as pure functions; importing them needs neither Flax nor an optimiser."""

from fcjax.losses.contrastive import (
    cluster_contrastive,
    model_contrastive,
    negative_cosine,
    normalize,
)
from fcjax.losses.nt_xent import cluster_entropy, cluster_nt_xent, nt_xent

__all__ = [
    "cluster_contrastive",
    "cluster_entropy",
    "cluster_nt_xent",
    "model_contrastive",
    "negative_cosine",
    "normalize",
    "nt_xent",
]
