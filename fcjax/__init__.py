"""Federated deep clustering in JAX.

The losses, clustering and metrics import nothing but JAX and the scientific stack:

    from fcjax.losses import cluster_contrastive
    from fcjax.cluster import kmeans
    from fcjax.evaluation import nmi
"""

from fcjax.types import FederatedClustering, Federation, Grid, Network, Stage

__all__ = ["FederatedClustering", "Federation", "Grid", "Network", "Stage"]
__version__ = "0.1.0"
