"""Losses as pure functions; importing them needs neither Flax nor an optimiser."""

from fcjax.losses.contrastive import (
    cluster_contrastive,
    model_contrastive,
    negative_cosine,
    normalize,
)

__all__ = ["cluster_contrastive", "model_contrastive", "negative_cosine", "normalize"]
