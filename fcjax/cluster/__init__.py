"""Clustering of arrays: jittable, masked, weighted; needs neither Flax nor optax."""

from fcjax.cluster.fuzzy import FuzzyResult, fuzzy_cmeans, fuzzy_lloyd
from fcjax.cluster.kmeans import KMeansResult, assign_nearest, kmeans, lloyd
from fcjax.cluster.running import running_means

__all__ = [
    "FuzzyResult",
    "KMeansResult",
    "assign_nearest",
    "fuzzy_cmeans",
    "fuzzy_lloyd",
    "kmeans",
    "lloyd",
    "running_means",
]
