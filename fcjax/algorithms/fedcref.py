"""FedCRef: which global clusters there are, found without a server or their number.

Federated Clustering: An Unsupervised Cluster-Wise Training for Decentralized Data
Distributions
    Mirko Nardi, Lorenzo Valerio, Andrea Passarella. 2024.
    https://arxiv.org/abs/2408.10664
    Authors' code: https://github.com/mirqr/fedcref
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int

from fcjax import clients, server
from fcjax.algorithms import (
    fedcref_association,
    fedcref_communities,
    fedcref_halting,
    fedcref_models,
    fedcref_refinement,
)
from fcjax.algorithms.fedcref_models import Models, by_slot, sizes_of
from fcjax.algorithms.fedcref_start import Start, start_stage
from fcjax.algorithms.rounds import ever_present
from fcjax.data.vectors import client_rows
from fcjax.types import (
    Communities,
    FederatedClustering,
    Federation,
    Network,
    PRNGKey,
    PyTree,
    Scalar,
    Stage,
    State,
)

Edges = Bool[Array, "M K A K"]
"""Of these clients with those of all devices."""
Associate = Callable[[Federation, Int[Array, "M N"]], Edges]
"""(federation, clusters) -> the association graph, in place of the test of Eq. 2."""
Measure = Callable[[Federation, Int[Array, "M N"], Edges], dict[str, Array]]
"""(federation, clusters, association graph) -> further metrics, which nothing reads."""


class Progress(NamedTuple):
    """What all know."""

    trend: Any  # halting.Trend; () until clusters are refined
    num_rounds: Int[Array, ""]  # over all stages


class Local(NamedTuple):
    """The clients. From `clusters` on all is () until they are refined."""

    start: Any  # of the local clustering, () from then on
    num_local: Int[Array, "M"]  # K_i
    clusters: Any  # Q_i [M, N]
    models: PyTree  # M_iq [M, K, ...]
    is_stale: Any  # [M], whose models are of earlier clusters
    is_active: Any  # A [M]
    num_refinements: Any  # [M]
    communities: Any  # of the last graph, and of the clusters after it


def fedcref(
    network: Network,
    optimizer: optax.GradientTransformation,
    start: Start,
    *,
    num_clusters: int,
    num_rounds: int = 30,
    local_epochs: int = 20,
    federated_rounds: int = 15,
    first_epochs: int = 2,
    federated_epochs: int = 7,
    batch_size: int = 32,
    percentile: Scalar = 75.0,
    threshold: Scalar = 0.2,
    stability: Scalar = 0.8,
    tolerance: Scalar = 0.1,
    stop_when_settled: bool = True,
    max_refinements: Scalar = float("inf"),
    max_members: int | None = None,
    first_match: bool = False,
    last_local_model: bool = False,
    renumber_leftovers: bool = False,
    num_local: Callable[[PRNGKey, Federation], Int[Array, "M"]] | None = None,
    associate: Associate | None = None,
    measure: Measure | None = None,
    client_axis: clients.ClientAxis | None = None,
) -> FederatedClustering:
    """Builds FedCRef: a round of its last stage is an iteration of Algorithm 1.

    Args:
        network: an auto-encoder from rows to their reconstructions; every cluster and
            every community has one of its own.
        optimizer: of all of them.
        start: the clusters to begin with.
        num_clusters: K, the most clusters that a client looks for.
        num_rounds: bound of the iterations.
        local_epochs: of a cluster's model, which starts anew in every iteration.
        federated_rounds: of a community's model, which does so too.
        first_epochs, federated_epochs: of a member in the first round and in the
            others; the paper is silent, 2 and 7 are those of the authors' code.
        batch_size: examples a step; 32 is that of the authors' code.
        percentile: alpha, in [0, 100].
        threshold: theta, in [0, 1].
        stability: tau, the share of its examples that a refinement leaves in their
            cluster from which on a client stops, the first one too (line 29 of
            Algorithm 1; so in the authors' code, which has 0.85).
        tolerance: how much the numbers of communities and of isolated clusters may
            change, relatively, and count as steady; of the latter the code has 0.15.
        stop_when_settled: halt when no client is active, as the text of phase 5 does;
            without it only steady numbers and `max_refinements` do, as in the code. The
            iterations that this adds change nobody's clusters.
        max_refinements: halt when a client has refined so often, as a mean; the code
            has 10, the paper no such bound.
        max_members: clusters of a community that are trained on; the code has 30.
        first_match, last_local_model, renumber_leftovers: what the authors' code does
            in place of what the paper says. Of the clusters of another client the first
            match is an edge, see `association.first_matches`, not every match; a
            community's model is its first member's after its last training, not the
            mean; leftovers are numbered anew, see `refinement.refine`.
        num_local: (key, federation) -> K_i; what the federation says by default.
        associate: stands in for the test, as true associations do in an experiment.
        measure: further metrics, of an experiment that knows the labels.
        client_axis: how clients and clusters run, see `clients.for_each`.

    Returns:
        The method, stages those of `start` and then `refine`. A client's clusters are
        its own; `communities` tells which of different clients are one. Metrics are the
        `loss` (the mean squared error of the local models), `communities`, `isolated`
        (clusters without an edge; before the first graph all), `edges`, `active`,
        `iteration`, `participants` and the traffic. A new model goes to every other
        client: what crosses grows with the square of their number. There is no
        representation that clients share, an example's embedding is itself.

    Examples:
        >>> import optax
        >>> from fcjax import models
        >>> from fcjax.algorithms.central import by_kmeans
        >>> from fcjax.algorithms.fedcref_start import on_clients
        >>> kmeans = lambda num_used: by_kmeans(num_clusters=3, num_used=num_used)
        >>> start = on_clients(kmeans, num_clusters=3)
        >>> network, adam = models.reconstructor(5), optax.adam(1e-3)
        >>> method = fedcref(network, adam, start, num_clusters=3)
        >>> [stage.name for stage in method.stages]
        ['cluster', 'refine']
    """
    models = Models(network, optimizer, batch_size, num_clusters, client_axis)
    accepted = partial(
        fedcref_association.mutual,
        num_clusters=num_clusters,
        percentile=percentile,
        threshold=threshold,
        first_match=first_match,
        client_axis=client_axis,
    )

    def init(key: PRNGKey, federation: Federation) -> State:
        count_key, start_key = jax.random.split(key)
        own = federation.local_clusters
        if num_local is not None:
            own = num_local(count_key, federation)
        begun = start.init(start_key, federation)
        nothing = [()] * (len(Local._fields) - 2)
        state = State(Progress((), jnp.int32(0)), Local(begun, own, *nothing))
        return stages[0].begin(key, state, federation)

    def begin_refinement(key, state: State, federation: Federation):
        del key
        before: Progress = state.server
        num_own = len(federation.indices)
        # Who missed the start has one cluster.
        clusters = jnp.maximum(start.assign(state.clients.start, federation), 0)
        sizes = sizes_of(clusters, federation.mask, num_clusters)
        present = server.participants(federation, before.num_rounds)
        exist, ever = server.gather(
            ((sizes > 0) & present[:, None], ever_present(federation))
        )
        own = state.clients._replace(
            start=(),
            clusters=clusters,
            models=fedcref_models.zeros(models, federation),
            is_stale=jnp.ones(num_own, bool),
            is_active=jnp.ones(num_own, bool),
            num_refinements=jnp.zeros(num_own, jnp.int32),
            communities=fedcref_association.all_alone(clusters, num_clusters),
        )
        trend = fedcref_halting.begin(exist.sum(), ever.sum())
        return State(Progress(trend, before.num_rounds), own)

    def iterate(key, state: State, federation: Federation):
        """Lines 7 to 32 of Algorithm 1."""
        before: Progress = state.server
        own: Local = state.clients
        local_key, community_key = jax.random.split(key)
        present = server.participants(federation, before.num_rounds)
        sizes = sizes_of(own.clusters, federation.mask, num_clusters)
        exist = (sizes > 0) & present[:, None]

        # Also of clients that have settled just now: on the clusters that they keep.
        trains = exist & own.is_stale[:, None]
        local, values = fedcref_models.of_clusters(
            *(models, local_key, own.clusters, trains, federation),
            num_epochs=local_epochs,
        )
        local = fedcref_models.keep(trains, local, own.models)
        everyones, all_exist = server.gather((local, exist))
        errors = fedcref_models.errors_under(
            models, by_slot(everyones), all_exist.reshape(-1), federation
        )

        if associate is None:
            edges = accepted(errors, own.clusters, federation.mask)
        else:
            edges = associate(federation, own.clusters)
        edges &= fedcref_association.may_be_joined(exist)
        graph = server.gather(edges)
        groups = fedcref_association.communities(graph)
        num_communities = groups.numbers.max() + 1
        isolated = jnp.sum(all_exist & (groups.numbers < 0))
        own_groups = server.own_rows(groups, len(present))
        # One that was repeated to fill the devices would be a further member.
        numbers = jnp.where(exist, own_groups.numbers, -1)
        own_groups = own_groups._replace(numbers=numbers)

        federated = fedcref_communities.train(
            *(models, community_key, own.clusters, own_groups, federation),
            first_epochs=first_epochs,
            num_epochs=federated_epochs,
            num_rounds=federated_rounds,
            max_members=max_members,
            last_local_model=last_local_model,
        )
        most = fedcref_communities.most_communities(len(present), models.num_clusters)
        known = jnp.arange(most) < num_communities
        federated_errors = fedcref_models.errors_under(
            models, federated, known, federation
        )

        refined, found = fedcref_refinement.of_clients(
            *(errors, federated_errors, exist, known, own_groups.numbers),
            *(federation.mask, own.num_local),
            renumber_leftovers=renumber_leftovers,
            client_axis=client_axis,
        )
        refines = present & own.is_active
        clusters = clients.keep_absent(refines, refined, own.clusters)
        same = partial(fedcref_refinement.agreement, num_clusters=num_clusters)
        kept = jax.vmap(same)(own.clusters, clusters, federation.mask)
        numbers = clients.keep_absent(refines, found, own_groups.numbers)
        new = own._replace(
            clusters=clusters,
            models=local,
            is_stale=jnp.where(present, refines, own.is_stale),
            is_active=own.is_active & ~(refines & (kept >= stability)),
            num_refinements=own.num_refinements + refines,
            communities=Communities(numbers, edges, own.clusters),
        )
        answered, trains, values, active, counts, ever = server.gather(
            (
                *(present, trains, values, new.is_active, new.num_refinements),
                ever_present(federation),
            )
        )
        trend = fedcref_halting.follow(
            *(before.trend, num_communities, isolated, active, counts, ever),
            tolerance=tolerance,
        )
        metrics = {
            # All who are still active may be absent.
            "loss": jnp.sum(values, where=trains) / jnp.maximum(trains.sum(), 1),
            "participants": answered.sum(),
            "communities": trend.communities,
            "isolated": trend.isolated,
            "edges": graph.sum() // 2,
            "active": trend.active,
            "iteration": counts.max(),
            **fedcref_communities.traffic(
                *(answered, ever, trains, groups.numbers, local),
                num_rounds=federated_rounds,
            ),
        }
        if measure is not None:
            metrics |= measure(federation, own.clusters, edges)
        return State(Progress(trend, before.num_rounds + 1), new), metrics

    def done(state: State) -> Bool[Array, ""]:
        return fedcref_halting.is_over(
            state.server.trend,
            stop_when_settled=stop_when_settled,
            max_refinements=max_refinements,
        )

    def embed(state: State, federation: Federation):
        del state
        return client_rows(federation, unit_length=False)

    def assign(state: State, federation: Federation):
        own: Local = state.clients
        if isinstance(own.clusters, tuple):  # not refined yet
            return start.assign(own.start, federation)
        return own.clusters

    stages = (
        *map(start_stage, start.phases),
        Stage("refine", begin_refinement, iterate, num_rounds, done),
    )

    return FederatedClustering(
        init, stages, embed, assign, lambda state: state.clients.communities
    )
