"""How good a clustering is: scores against the truth, and signs of collapse; and
whether what a generator makes is copies.

Everything here runs on the host, on NumPy arrays. Tables, figures and linear
classifiers are modules of their own, `fcjax.results.tables`,
`fcjax.results.figures` and `fcjax.metrics.probes`, imported by those who print,
draw or train; scores need no Optax.
"""

from fcjax.metrics.external import (
    accuracy,
    ami,
    ari,
    client_mean,
    client_pooled,
    imbalance_ratio,
    kappa,
    match,
    nmi,
    per_client,
    scores,
)
from fcjax.metrics.internal import (
    Nearest,
    client_calinski_harabasz,
    collapse,
    copying,
    copying_by_distance,
    effective_rank,
    internal_scores,
    knn_accuracy,
    nearest,
    nearest_distances,
    silhouettes,
    status,
)

__all__ = [
    "Nearest",
    "accuracy",
    "ami",
    "ari",
    "client_calinski_harabasz",
    "client_mean",
    "client_pooled",
    "collapse",
    "copying",
    "copying_by_distance",
    "effective_rank",
    "imbalance_ratio",
    "internal_scores",
    "kappa",
    "knn_accuracy",
    "match",
    "nearest",
    "nearest_distances",
    "nmi",
    "per_client",
    "scores",
    "silhouettes",
    "status",
]
