"""Federated clustering methods: a paper is one file, or a folder of its name.

A builder is imported from the file of its paper, such as
`from fcjax.algorithms.ccfc import ccfc`, and returns a `fcjax.FederatedClustering`.
"""

__all__: list[str] = []
