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

    Examples:
        >>> import optax
        >>> from fcjax import models
        >>> from fcjax.algorithms.subspace import dense
        >>> from fcjax.cluster import symmetric_affinity
        >>> autoencoder = models.autoencoder(5, widths=(8,), latent_size=3)
        >>> method = dlrsc(
        ...     *(SubspaceNetwork(autoencoder, dense(), 1.0, 15.0), optax.adam(1e-3)),
        ...     affinity=lambda coefficients, mask: symmetric_affinity(coefficients),
        ...     num_clusters=3, num_rounds=50,
        ... )
        >>> [stage.name for stage in method.stages]
        ['train']
    """
    network = network._replace(expression=low_rank(rank_factor * num_clusters))
    return dscn(network, optimizer, num_clusters=num_clusters, **options)
