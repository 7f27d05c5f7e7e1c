"""Methods whose embedding is the features of an encoder that the server averages."""

from collections.abc import Callable
from functools import partial

from jaxtyping import Array, Float, Int

from fcjax import clients, training
from fcjax.algorithms.averaging import Local
from fcjax.algorithms.parts import Parts, part
from fcjax.data.augment import to_float
from fcjax.types import FederatedClustering, Federation, Network, PRNGKey, Stage, State


def encode(
    encoder: Network, parts: Parts, federation: Federation, *, batch_size: int
) -> Float[Array, "M N D"]:
    """Returns the features of all clients' examples by the server's encoder."""
    variables = part(parts, "encoder")

    def batch(rows):
        x = to_float(federation.pool[rows])
        return encoder.apply(variables, x, train=False)[0]

    return clients.for_each(
        partial(training.in_batches, batch, batch_size=batch_size), federation.indices
    )


def assembled(
    encoder: Network,
    local: Local,
    init: Callable[[PRNGKey, Federation], State],
    stages: tuple[Stage, ...],
    assign: Callable[[Parts, Float[Array, "N D"]], Int[Array, "N"]],
) -> FederatedClustering:
    """Returns the method of these stages.

    Args:
        encoder: to the features.
        local: how a client trains, which says how many examples are encoded at a time.
        init: as in `FederatedClustering`.
        stages: its stages.
        assign: (the server's parts, features) -> clusters; -1 where there are none yet.
    """

    def embed(state: State, federation: Federation):
        online = state.server.online
        return encode(encoder, online, federation, batch_size=local.at_once)

    def assign_all(state: State, federation: Federation):
        h = embed(state, federation)
        return clients.for_each(partial(assign, state.server.online), h)

    return FederatedClustering(init, stages, embed, assign_all)
