"""Federated building blocks: the client axis, the server, local training and k-means.

Only `fcjax.federated.server` exchanges values between clients.
"""

__all__: list[str] = []
