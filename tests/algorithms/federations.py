"""Federations for the tests of methods that cluster examples as they are."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from fcjax.types import Federation


def federate(
    pool, clients: Sequence[np.ndarray], *, absent=(), num_clusters=3
) -> Federation:
    """Clients that hold rows of a pool; shorter ones repeat their own."""
    width = max(map(len, clients))
    return Federation(
        pool=jnp.asarray(pool, jnp.float32),
        indices=jnp.array([np.resize(rows, width) for rows in clients], jnp.int32),
        mask=jnp.array([np.arange(width) < len(rows) for rows in clients]),
        present=jnp.array([[i not in absent for i in range(len(clients))]]),
        local_clusters=jnp.full(len(clients), num_clusters, jnp.int32),
    )


def rounds(method, key, federation, count: int):
    """The state and the metrics after so many rounds of the only stage."""
    (stage,) = method.stages
    state = stage.begin(key, method.init(key, federation), federation)
    metrics = {}
    for _ in range(count):
        state, metrics = stage.round(key, state, federation)
    return state, metrics
