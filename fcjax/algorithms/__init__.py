"""Federated clustering methods, one file per method or family of methods.

Import a builder from the file of its paper, for example
`from fcjax.algorithms.ccfc import ccfc`. A builder returns a
`fcjax.FederatedClustering`.
"""

__all__: list[str] = []
