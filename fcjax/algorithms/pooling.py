"""A server that has examples and clusters them in phases: real ones or synthetic ones.

What the central methods and SDA-FDC's family share: the first pool the clients' own
examples, the others what their generators make.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from fcjax import clients, server, training
from fcjax.algorithms.rounds import all_rounds
from fcjax.types import FederatedClustering, Federation, PRNGKey, PyTree, Stage, State

Examples = Shaped[Array, "N *F"]
Counted = Bool[Array, "N"]

BATCH = 512
"""Examples that an embedding takes at a time, so that its layers stay small."""


class Phase(NamedTuple):
    """One phase of a clustering; both functions get the examples and which count."""

    name: str
    begin: Callable[[PRNGKey, Any, Examples, Counted], Any]
    """(key, state, x, mask) -> the state of this phase."""
    round: Callable[[PRNGKey, Any, Examples, Counted], tuple[Any, Float[Array, ""]]]
    """(key, state, x, mask) -> (state, loss)."""
    num_rounds: int = 1


class Clustering(NamedTuple):
    """How examples that lie in one place are clustered.

    The mask says which examples are there: it may gain some from round to round, and
    the others may hold anything.
    """

    init: Callable[[PRNGKey, Shaped[Array, "1 *F"]], Any]
    """(key, an example) -> state."""
    phases: tuple[Phase, ...]
    embed: Callable[[Any, Shaped[Array, "N *F"]], Float[Array, "N D"]]
    """(state, x) -> the representation in which clusters are nearest centroids."""
    assign: Callable[[Any, Float[Array, "N D"]], Int[Array, "N"]]
    """(state, embedding) -> clusters, -1 where there are none yet."""
    results: Callable[[Any], dict[str, PyTree]]
    """(state) -> what the clients are sent in the end, by name."""


class Pooling(NamedTuple):
    """How examples come to the server."""

    examples: Callable[[Any, Federation, Bool[Array, "M"]], tuple[Examples, Counted]]
    """(source, federation, whose have arrived) -> examples and which of them count."""
    uploads: Callable[[Any, Federation, Bool[Array, "M"]], dict[str, Int[Array, "2"]]]
    """(source, federation, who sends) -> metrics of what they send."""


class Pooled(NamedTuple):
    """The server; of each client it knows whether its examples have arrived."""

    source: PyTree  # what its examples are made from; () where that is the pool
    clustering: PyTree
    num_rounds: Int[Array, ""]  # rounds so far, over all stages


def pooled(
    source: PyTree,
    clustering: PyTree,
    federation: Federation,
    num_rounds: Int[Array, ""] | int = 0,
) -> State:
    """Returns the state in which nobody's examples have arrived."""
    arrived = jnp.zeros(len(federation.indices), bool)
    return State(Pooled(source, clustering, jnp.int32(num_rounds)), arrived)


def cluster_stages(
    clustering: Clustering, pooling: Pooling, *, rounds_before: int = 0
) -> tuple[Stage, ...]:
    """Returns the phases of a clustering as stages of a `Pooled` server.

    A client sends in the first round in which it answers, and is sent the results if
    it answers in the last. Who comes late is taken in then, who never comes is not.
    The metrics of a round are its `loss`, `participants` and the traffic.
    """
    total = rounds_before + sum(phase.num_rounds for phase in clustering.phases)

    def stage(phase: Phase) -> Stage:
        def begin(key, state: State, federation: Federation):
            before: Pooled = state.server
            x, mask = pooling.examples(before.source, federation, state.clients)
            begun = phase.begin(key, before.clustering, x, mask)
            return state._replace(server=before._replace(clustering=begun))

        def round(key, state: State, federation: Federation):
            before: Pooled = state.server
            present = server.participants(federation, before.num_rounds)
            arrived = state.clients | present
            x, mask = pooling.examples(before.source, federation, arrived)
            clustered, loss = phase.round(key, before.clustering, x, mask)
            answered, sends = server.gather((present, present & ~state.clients))
            is_last = before.num_rounds == total - 1
            metrics = {
                "loss": loss,
                "participants": answered.sum(),
                **pooling.uploads(before.source, federation, sends),
                **server.traffic(
                    answered & is_last, up={}, down=clustering.results(clustered)
                ),
            }
            after = Pooled(before.source, clustered, before.num_rounds + 1)
            return State(after, arrived), metrics

        return all_rounds(phase.name, round, phase.num_rounds, begin=begin)

    return tuple(map(stage, clustering.phases))


def pooled_method(
    init: Callable[[PRNGKey, Federation], Any],
    stages: tuple[Stage, ...],
    clustering: Clustering,
) -> FederatedClustering:
    """Returns the method of these stages, of which the last ones are those of
    `cluster_stages`: clients embed and assign as the clustering does."""

    def embed(state: State, federation: Federation):
        def batch(rows):
            return clustering.embed(state.server.clustering, federation.pool[rows])

        in_batches = partial(training.in_batches, batch, batch_size=BATCH)
        return clients.for_each(in_batches, federation.indices)

    def assign(state: State, federation: Federation):
        z = embed(state, federation)
        return clients.for_each(partial(clustering.assign, state.server.clustering), z)

    return FederatedClustering(init, stages, embed, assign)
