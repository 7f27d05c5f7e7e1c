"""What the methods share that cluster the examples as they are, without a network."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fcjax.cluster import assign_nearest
from fcjax.data.vectors import client_rows
from fcjax.types import FederatedClustering, Federation, Stage


def plain(
    init: Callable,
    round: Callable,
    *,
    unit_length: bool,
    num_rounds: int = 1,
    done: Callable = lambda state: jnp.array(False),
) -> FederatedClustering:
    """Returns a method of one stage, `cluster`.

    Args:
        init: as in `FederatedClustering`; the state has `centroids` [K, D].
        round: as in `Stage`.
        unit_length: of the rows that are clustered, see `vectors.as_rows`.
        num_rounds: bound of the rounds.
        done: (state) -> whether the stage has ended before.

    Returns:
        The method. An example's embedding is its row, its cluster the nearest centroid.
    """

    def embed(state: Any, federation: Federation):
        del state
        return client_rows(federation, unit_length=unit_length)

    def assign(state: Any, federation: Federation):
        x = client_rows(federation, unit_length=unit_length)
        return jax.vmap(assign_nearest, in_axes=(0, None))(x, state.centroids)

    def begin(key, state, federation):
        del key, federation
        return state

    stage = Stage("cluster", begin, round, num_rounds, done)
    return FederatedClustering(init, (stage,), embed, assign)
