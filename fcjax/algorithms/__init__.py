"""Federated clustering methods: one file or folder per paper.

Import the builder of a method from its file, such as
`from fcjax.algorithms.ccfc import ccfc`. A builder returns a
`fcjax.FederatedClustering`.
"""

__all__: list[str] = []
