"""What the methods share that cluster the examples as they are, without a network."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fcjax import clients
from fcjax.algorithms.rounds import go_on, never
from fcjax.cluster import assign_nearest
from fcjax.data.vectors import client_rows
from fcjax.types import FederatedClustering, Federation, Scalar, Stage, State


class MovingCentroids(NamedTuple):
    """The server of a method whose centroids go from round to round."""

    centroids: Float[Array, "K D"]
    moved: Float[Array, ""]  # Frobenius norm of their last step
    num_rounds: Int[Array, ""]


def begin(centroids: Float[Array, "K D"]) -> State:
    """Returns the state before the first round."""
    return State(MovingCentroids(centroids, jnp.float32(jnp.inf), jnp.int32(0)))


def move(before: MovingCentroids, centroids: Float[Array, "K D"]) -> MovingCentroids:
    """Returns the server after a round that has found these centroids."""
    moved = jnp.linalg.norm(centroids - before.centroids)
    return MovingCentroids(centroids, moved, before.num_rounds + 1)


def plain(
    init: Callable,
    round: Callable,
    *,
    unit_length: bool,
    num_rounds: int = 1,
    tolerance: Scalar | None = None,
) -> FederatedClustering:
    """Returns a method of one stage, `cluster`.

    Args:
        init: as in `FederatedClustering`; the server has `centroids` [K, D], unless the
            caller replaces `assign`, and `moved` where there is a tolerance.
        round: as in `Stage`.
        unit_length: of the rows that are clustered, see `vectors.as_rows`.
        num_rounds: bound of the rounds.
        tolerance: the stage ends once the centroids have moved by less; None runs all
            rounds.

    Returns:
        The method. An example's embedding is its row, its cluster the nearest centroid.
    """

    def embed(_, federation: Federation):
        return client_rows(federation, unit_length=unit_length)

    def assign(state: State, federation: Federation):
        x = embed(state, federation)
        nearest = partial(assign_nearest, centroids=state.server.centroids)
        return clients.for_each(nearest, x)

    def done(state: State):
        return never(state) if tolerance is None else state.server.moved < tolerance

    stage = Stage("cluster", go_on, round, num_rounds, done)
    return FederatedClustering(init, (stage,), embed, assign)
