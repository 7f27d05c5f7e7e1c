"""Clustering of arrays: jittable, masked, weighted; needs neither Flax nor optax."""

from fcjax.cluster.kmeans import KMeansResult, assign_nearest, kmeans, lloyd

__all__ = ["KMeansResult", "assign_nearest", "kmeans", "lloyd"]
