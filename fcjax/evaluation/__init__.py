"""How good a clustering is: scores against the truth, and signs of collapse; and
whether what a generator makes is copies.

Everything here runs on the host, on NumPy arrays. Tables, figures and linear
classifiers are modules of their own, `fcjax.evaluation.tables`,
`fcjax.evaluation.figures` and `fcjax.evaluation.linear`, imported by those who print,
draw or train; scores need no Optax.
"""

from fcjax.evaluation.by_client import (
    client_mean,
    client_pooled,
    imbalance_ratio,
    per_client,
)
from fcjax.evaluation.collapse import collapse, effective_rank, status
from fcjax.evaluation.copying import (
    Nearest,
    copying,
    copying_by_distance,
    nearest,
    nearest_distances,
)
from fcjax.evaluation.internal import (
    client_calinski_harabasz,
    internal_scores,
    silhouettes,
)
from fcjax.evaluation.knn import knn_accuracy
from fcjax.evaluation.scores import accuracy, ami, ari, kappa, match, nmi, scores

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
