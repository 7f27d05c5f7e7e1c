"""How good a clustering is: scores against the truth, and signs of collapse.

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
