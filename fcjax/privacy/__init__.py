"""Differential privacy of the clients' uploads, and simulated secure sums.

The module `accounting` calibrates the noise, `averaging` protects clients in federated
averaging, and `kmeans` protects examples or clients in federated k-means.
"""
