"""How the clients of FedCRef come to the clusters that they refine.

The paper takes DEC of each client's own examples, or true classes made dirty, and says
that any clustering will do.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fcjax import clients, server, training
from fcjax.algorithms.pooling import Clustering
from fcjax.algorithms.rounds import all_rounds, ever_present
from fcjax.types import Federation, PRNGKey, Stage, State


class StartPhase(NamedTuple):
    """One phase of a start; states are stacked [M, ...]."""

    name: str
    begin: Callable[[PRNGKey, Any, Federation], Any]
    """(key, state, federation) -> the state of this phase."""
    round: Callable[[PRNGKey, Any, Federation], tuple[Any, Float[Array, "M"]]]
    """(key, state, federation) -> (state, loss of each client)."""
    num_rounds: int = 1


class Start(NamedTuple):
    """How clients cluster on their own, before they know of each other; K_i are the
    federation's `local_clusters`."""

    init: Callable[[PRNGKey, Federation], Any]
    """(key, federation) -> state."""
    phases: tuple[StartPhase, ...]
    assign: Callable[[Any, Federation], Int[Array, "M N"]]
    """(state, federation) -> clusters in [0, K_i); -1 where there are none yet."""


def start_stage(phase: StartPhase) -> Stage:
    """Returns a phase as a stage of FedCRef: it changes the clients' `start` and counts
    its rounds. Its metrics are those of an iteration in which nothing has been
    associated yet."""

    def begin(key, state: State, federation: Federation):
        local = state.clients
        federation = federation._replace(local_clusters=local.num_local)
        begun = phase.begin(key, local.start, federation)
        return state._replace(clients=local._replace(start=begun))

    def round(key, state: State, federation: Federation):
        before, local = state
        present = server.participants(federation, before.num_rounds)
        federation = federation._replace(local_clusters=local.num_local)
        new, values = phase.round(key, local.start, federation)
        new = clients.keep_absent(present, new, local.start)
        # As floats: a sum of integers would be one more.
        values, own = server.gather((values, local.num_local.astype(jnp.float32)))
        answered = server.all_participants(federation, before.num_rounds)
        metrics = {
            **server.measure(answered, {"loss": values}),
            "communities": jnp.int32(0),
            "isolated": jnp.sum(own, where=answered).astype(jnp.int32),
            "edges": jnp.int32(0),
            "active": ever_present(federation).sum(),
            "iteration": jnp.int32(0),
        }
        after = before._replace(num_rounds=before.num_rounds + 1)
        return State(after, local._replace(start=new)), metrics

    return all_rounds(phase.name, round, phase.num_rounds, begin=begin)


def on_clients(
    clustering: Callable[[int | Int[Array, ""]], Clustering],
    *,
    num_clusters: int,
) -> Start:
    """Returns a start where every client runs a clustering on its own examples.

    Args:
        clustering: (K_i) -> the clustering, of which K_i clusters are used; its arrays
            are of one shape for all K_i.
        num_clusters: K, the largest K_i.

    Examples:
        >>> from fcjax.algorithms.central import by_kmeans
        >>> kmeans = lambda num_used: by_kmeans(num_clusters=3, num_used=num_used)
        >>> start = on_clients(kmeans, num_clusters=3)
        >>> [phase.name for phase in start.phases]
        ['cluster']
    """
    each = clients.for_each
    template = clustering(num_clusters)

    def init(key: PRNGKey, federation: Federation):
        example = federation.pool[:1]
        keys = clients.keys(key, len(federation.indices))
        return jax.vmap(lambda key: template.init(key, example))(keys)

    def on_each(function, key, state, federation: Federation):
        def one(key, state, rows, mask, num_local):
            phase = function(clustering(num_local))
            return phase(key, state, federation.pool[rows], mask)

        keys = clients.keys(key, len(federation.indices))
        own = (federation.indices, federation.mask, federation.local_clusters)
        return each(one, keys, state, *own)

    def assign(state, federation: Federation):
        def one(state, rows):
            def embed(rows):
                return template.embed(state, federation.pool[rows])

            z = training.in_batches(embed, rows, batch_size=512)
            return template.assign(state, z)

        return each(one, state, federation.indices)

    phases = tuple(
        StartPhase(
            phase.name,
            partial(on_each, lambda found, i=i: found.phases[i].begin),
            partial(on_each, lambda found, i=i: found.phases[i].round),
            phase.num_rounds,
        )
        for i, phase in enumerate(template.phases)
    )
    return Start(init, phases, assign)


def given(
    name: str, clusters: Callable[[PRNGKey, Federation], Int[Array, "M N"]]
) -> Start:
    """Returns a start of one round in which the clusters are given, as an experiment
    simulates them from labels.

    Args:
        name: of the phase.
        clusters: (key, federation) -> clusters in [0, K_i).
    """

    def round(key, state, federation: Federation):
        del state
        return clusters(key, federation), jnp.zeros(len(federation.indices))

    return Start(
        init=lambda key, federation: jnp.full(federation.indices.shape, jnp.int32(-1)),
        phases=(StartPhase(name, lambda key, state, *_: state, round),),
        assign=lambda state, federation: state,
    )
