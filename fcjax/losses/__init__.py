"""Losses as pure functions of arrays; they need neither Flax nor optax."""

from fcjax.losses.clustering import (
    assignment_kl,
    coefficient_penalty,
    deep_kmeans,
    locality_alignment,
    off_diagonal,
    self_expression,
    student_t,
    target_distribution,
)
from fcjax.losses.contrastive import (
    cluster_agreement,
    cluster_contrastive,
    cluster_entropy,
    cluster_nt_xent,
    decorrelation,
    model_contrastive,
    negative_cosine,
    normalize,
    nt_xent,
)
from fcjax.losses.generative import (
    dequantize,
    discriminator_loss,
    flow_log_likelihood,
    generator_loss,
    reconstruction_error,
    standard_normal_log_density,
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
