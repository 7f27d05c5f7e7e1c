"""DLRSC: DSCN whose coefficients have a low rank by construction.

Deep Low-Rank Subspace Clustering
    Mohsen Kheirandishfard, Fariba Zohrizadeh, Farhad Kamangar. 2020. CVPR Workshops.
    Authors' code: https://github.com/mohsenkheirandishfard/DLRSC
"""

from typing import Any

import optax

from fcjax.algorithms.dscn import dscn
from fcjax.algorithms.subspace import SubspaceNetwork, low_rank
from fcjax.types import FederatedClustering


def dlrsc(
    network: SubspaceNetwork,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int,
    rank_factor: int = 10,
    **options: Any,
) -> FederatedClustering:
    """Builds DLRSC: every client trains a network of its own, with C = U U^T.

    Args:
        network: what every client trains; its coefficients are replaced, and lambda_1
            weighs |U|^2.
        optimizer, num_clusters: as in `dscn`.
        rank_factor: columns of U for each cluster, as in the authors' code; there are
            at most as many as a client has examples.
        **options: as in `dscn`.

    Returns:
        As `dscn`.
    """
    network = network._replace(expression=low_rank(rank_factor * num_clusters))
    return dscn(network, optimizer, num_clusters=num_clusters, **options)
