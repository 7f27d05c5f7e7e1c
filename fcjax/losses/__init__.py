"""Losses as pure functions; importing them needs neither Flax nor an optimiser."""

from fcjax.losses.adversarial import discriminator_loss, generator_loss
from fcjax.losses.contrastive import (
    cluster_contrastive,
    model_contrastive,
    negative_cosine,
    normalize,
)
from fcjax.losses.deep_kmeans import deep_kmeans
from fcjax.losses.embedded import assignment_kl, student_t, target_distribution
from fcjax.losses.nt_xent import cluster_entropy, cluster_nt_xent, nt_xent

__all__ = [
    "assignment_kl",
    "cluster_contrastive",
    "cluster_entropy",
    "cluster_nt_xent",
    "deep_kmeans",
    "discriminator_loss",
    "generator_loss",
    "model_contrastive",
    "negative_cosine",
    "normalize",
    "nt_xent",
    "student_t",
    "target_distribution",
]
