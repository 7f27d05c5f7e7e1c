"""Clustering of arrays with masks and weights, under `jax.jit` and `jax.vmap`.

The package depends on neither Flax nor optax.
"""

from fcjax.cluster.fuzzy import (
    FuzzyResult,
    equal_clusters,
    fuzzy_cmeans,
    fuzzy_lloyd,
    sinkhorn,
)
from fcjax.cluster.kmeans import (
    KMeansResult,
    assign_nearest,
    count_clusters,
    kmeans,
    lloyd,
    running_means,
    silhouette,
    used_clusters,
)
from fcjax.cluster.spectral import (
    Assign,
    connected_components,
    discretize,
    neighbor_graph,
    spectral_clustering,
    spectral_embedding,
    subspace_affinity,
    symmetric_affinity,
)

__all__ = [
    "Assign",
    "FuzzyResult",
    "KMeansResult",
    "assign_nearest",
    "connected_components",
    "count_clusters",
    "discretize",
    "equal_clusters",
    "fuzzy_cmeans",
    "fuzzy_lloyd",
    "kmeans",
    "lloyd",
    "neighbor_graph",
    "running_means",
    "silhouette",
    "sinkhorn",
    "spectral_clustering",
    "spectral_embedding",
    "subspace_affinity",
    "symmetric_affinity",
    "used_clusters",
]
