"""Losses as pure functions; importing them needs neither Flax nor an optimiser."""

from fcjax.losses.adversarial import discriminator_loss, generator_loss
from fcjax.losses.agreement import cluster_agreement
from fcjax.losses.contrastive import (
    cluster_contrastive,
    model_contrastive,
    negative_cosine,
    normalize,
)
from fcjax.losses.decorrelation import decorrelation
from fcjax.losses.deep_kmeans import deep_kmeans
from fcjax.losses.embedded import assignment_kl, student_t, target_distribution
from fcjax.losses.likelihood import (
    dequantize,
    flow_log_likelihood,
    standard_normal_log_density,
)
from fcjax.losses.nt_xent import cluster_entropy, cluster_nt_xent, nt_xent
from fcjax.losses.reconstruction import reconstruction_error
from fcjax.losses.self_expression import (
    coefficient_penalty,
    locality_alignment,
    off_diagonal,
    self_expression,
)

__all__ = [
    "assignment_kl",
    "cluster_agreement",
    "cluster_contrastive",
    "cluster_entropy",
    "cluster_nt_xent",
    "coefficient_penalty",
    "decorrelation",
    "deep_kmeans",
    "dequantize",
    "discriminator_loss",
    "flow_log_likelihood",
    "generator_loss",
    "locality_alignment",
    "model_contrastive",
    "negative_cosine",
    "normalize",
    "nt_xent",
    "off_diagonal",
    "reconstruction_error",
    "self_expression",
    "standard_normal_log_density",
    "student_t",
    "target_distribution",
]
