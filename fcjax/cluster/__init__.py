"""Clustering of arrays: jittable, masked, weighted; needs neither Flax nor optax."""

from fcjax.cluster.affinity import subspace_affinity, symmetric_affinity
from fcjax.cluster.components import connected_components
from fcjax.cluster.fuzzy import FuzzyResult, fuzzy_cmeans, fuzzy_lloyd
from fcjax.cluster.kmeans import KMeansResult, assign_nearest, kmeans, lloyd
from fcjax.cluster.neighbors import neighbor_graph
from fcjax.cluster.running import running_means
from fcjax.cluster.seeding import used_clusters
from fcjax.cluster.silhouette import count_clusters, silhouette
from fcjax.cluster.sinkhorn import equal_clusters, sinkhorn
from fcjax.cluster.spectral import (
    Assign,
    discretize,
    spectral_clustering,
    spectral_embedding,
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
