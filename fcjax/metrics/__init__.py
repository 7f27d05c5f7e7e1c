"""Scores of a clustering: against true labels, without labels, and signs of collapse.

All functions run on the host, on NumPy arrays, and need no optax. Related modules are
imported separately: `fcjax.results.tables`, `fcjax.results.figures` and the linear
classifiers of `fcjax.metrics.probes`.
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
    client_calinski_harabasz,
    collapse,
    effective_rank,
    internal_scores,
    knn_accuracy,
    silhouettes,
    status,
)

__all__ = [
    "accuracy",
    "ami",
    "ari",
    "client_calinski_harabasz",
    "client_mean",
    "client_pooled",
    "collapse",
    "effective_rank",
    "imbalance_ratio",
    "internal_scores",
    "kappa",
    "knn_accuracy",
    "match",
    "nmi",
    "per_client",
    "scores",
    "silhouettes",
    "status",
]
