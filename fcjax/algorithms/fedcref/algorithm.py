"""Algorithm 1 of FedCRef: the builder, and an iteration of all clients."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int

from fcjax import clients, server
from fcjax.algorithms.fedcref import association, models, refinement
from fcjax.algorithms.fedcref.association import ASSOCIATION, Associate, Association
from fcjax.algorithms.fedcref.models import TRAINING, Models, Training, members_of
from fcjax.algorithms.fedcref.refinement import HALTING, Halting
from fcjax.algorithms.fedcref.start import Start, start_stage
from fcjax.algorithms.rounds import ever_present
from fcjax.data.vectors import client_rows
from fcjax.devices import num_bytes
from fcjax.types import (
    Communities,
    FederatedClustering,
    Federation,
    Network,
    PRNGKey,
    PyTree,
    Stage,
    State,
)

CountClusters = Callable[[PRNGKey, Federation], Int[Array, "M"]]
"""(key, federation) -> K_i."""
Measure = Callable[[Federation, Int[Array, "M N"], association.Edges], dict[str, Array]]
"""(federation, clusters, association graph) -> further metrics, which nothing reads."""


class Progress(NamedTuple):
    """What all know."""

    trend: Any  # refinement.Trend; () until clusters are refined
    num_rounds: Int[Array, ""]  # over all stages


class Local(NamedTuple):
    """The clients. From `clusters` on all is () until they are refined."""

    start: Any  # of the local clustering, () from then on
    num_local: Int[Array, "M"]  # K_i
    clusters: Any = ()  # Q_i [M, N]
    models: PyTree = ()  # M_iq [M, K, ...]
    is_stale: Any = ()  # [M], whose models are of earlier clusters
    is_active: Any = ()  # A [M]
    num_refinements: Any = ()  # [M]
    communities: Any = ()  # of the last graph, and of the clusters after it


class Setup(NamedTuple):
    """What all iterations share; see `fedcref`."""

    models: Models
    start: Start
    association: Association | Associate
    halting: Halting
    renumber_leftovers: bool
    measure: Measure | None


def fedcref(
    network: Network,
    optimizer: optax.GradientTransformation,
    start: Start,
    *,
    num_clusters: int,
    num_rounds: int = 30,
    training: Training = TRAINING,
    association: Association | Associate = ASSOCIATION,
    halting: Halting = HALTING,
    renumber_leftovers: bool = False,
    num_local: CountClusters | None = None,
    measure: Measure | None = None,
) -> FederatedClustering:
    """Builds FedCRef: a round of its last stage is an iteration of Algorithm 1.

    Args:
        network: an auto-encoder from rows to their reconstructions; every cluster and
            every community has one of its own.
        optimizer: of all of them.
        start: the clusters to begin with.
        num_clusters: K, the most clusters that a client looks for.
        num_rounds: bound of the iterations.
        training: how long the models of clusters and communities are trained.
        association: the test by which clusters are found to be the same, or what stands
            in for it, as true associations do in an experiment.
        halting: when a client is done, and when all are.
        renumber_leftovers: number the clusters of leftovers anew, as the authors' code
            does, see `refinement.refine`.
        num_local: (key, federation) -> K_i; what the federation says by default.
        measure: further metrics, of an experiment that knows the labels.

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
        >>> from fcjax.algorithms.fedcref import on_clients
        >>> kmeans = lambda num_used: by_kmeans(num_clusters=3, num_used=num_used)
        >>> start = on_clients(kmeans, num_clusters=3)
        >>> network, adam = models.reconstructor(5), optax.adam(1e-3)
        >>> method = fedcref(network, adam, start, num_clusters=3)
        >>> [stage.name for stage in method.stages]
        ['cluster', 'refine']
    """
    setup = Setup(
        Models(network, optimizer, num_clusters, training),
        *(start, association, halting, renumber_leftovers, measure),
    )
    stages = (
        *map(start_stage, start.phases),
        Stage(
            "refine",
            partial(begin_refinement, setup),
            partial(iterate, setup),
            num_rounds,
            done=lambda state: refinement.is_over(halting, state.server.trend),
        ),
    )

    def init(key: PRNGKey, federation: Federation) -> State:
        count_key, start_key = jax.random.split(key)
        own = federation.local_clusters
        if num_local is not None:
            own = num_local(count_key, federation)
        local = Local(start.init(start_key, federation), own)
        return stages[0].begin(
            key, State(Progress((), jnp.int32(0)), local), federation
        )

    return FederatedClustering(
        init,
        stages,
        embed=lambda _, federation: client_rows(federation, unit_length=False),
        assign=partial(assign, start),
        communities=lambda state: state.clients.communities,
    )


def iterate(
    setup: Setup, key: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """An iteration of Algorithm 1, lines 7 to 32: clients train a model of each cluster
    and exchange them, associate clusters, train a model of each community, and refine
    their clusters by all of these.

    Args:
        setup: of the method.
        key, state, federation: as in `Stage`.
    """
    before: Progress = state.server
    own: Local = state.clients
    how, num_clusters = setup.models, setup.models.num_clusters
    local_key, community_key = jax.random.split(key)
    present = server.participants(federation, before.num_rounds)
    members = members_of(own.clusters, federation, num_clusters)
    exist = members.any(axis=2) & present[:, None]

    # Lines 7 to 10, also of clients that have settled just now: on the clusters that
    # they keep.
    trains = exist & own.is_stale[:, None]
    local, values = models.train_clusters(
        how, local_key, own.clusters, trains, federation
    )
    local = jax.vmap(clients.keep_absent)(trains, local, own.models)
    everyones, all_exist = server.gather((local, exist))
    held, there = models.by_slot((everyones, all_exist))
    errors = models.errors_under(how, held, there, federation)

    # Lines 11 to 21.
    edges = association.associate(
        *(setup.association, errors, own.clusters, exist, federation),
    )
    graph = server.gather(edges)
    groups = association.communities(graph)
    num_communities = groups.numbers.max() + 1
    isolated = jnp.sum(all_exist & (groups.numbers < 0))
    own_groups = server.own_rows(groups, len(present))
    # One that was repeated to fill the devices would be a further member.
    numbers = jnp.where(exist, own_groups.numbers, -1)

    # Lines 22 to 26.
    own_groups = own_groups._replace(numbers=numbers)
    federated = models.train_communities(
        how, community_key, own.clusters, own_groups, federation
    )
    known = jnp.arange(association.most_communities(*exist.shape)) < num_communities
    federated_errors = models.errors_under(how, federated, known, federation)

    # Lines 27 to 32.
    refines = present & own.is_active
    candidates = (exist, errors, known, federated_errors)
    refined = refine_clients(setup, own, candidates, numbers, federation)
    former = (own.clusters, numbers)
    clusters, numbers = clients.keep_absent(refines, refined, former)
    same = partial(refinement.agreement, num_clusters=num_clusters)
    kept = jax.vmap(same)(own.clusters, clusters, federation.mask)
    new = own._replace(
        clusters=clusters,
        models=local,
        is_stale=jnp.where(present, refines, own.is_stale),
        is_active=own.is_active & ~(refines & (kept >= setup.halting.stability)),
        num_refinements=own.num_refinements + refines,
        communities=Communities(numbers, edges, own.clusters),
    )
    trained, values, active, counts = server.gather(
        (trains, values, new.is_active, new.num_refinements)
    )
    answered = server.all_participants(federation, before.num_rounds)
    ever = ever_present(federation)
    trend = refinement.follow(
        *(setup.halting, before.trend, num_communities, isolated, active, counts, ever)
    )
    metrics = {
        # All who are still active may be absent.
        "loss": jnp.sum(values, where=trained) / jnp.maximum(trained.sum(), 1),
        "participants": answered.sum(),
        "communities": trend.communities,
        "isolated": trend.isolated,
        "edges": graph.sum() // 2,
        "active": trend.active,
        "iteration": counts.max(),
        **traffic(setup, answered, ever, trained, groups, local),
    }
    if setup.measure is not None:
        metrics |= setup.measure(federation, own.clusters, edges)
    return State(Progress(trend, before.num_rounds + 1), new), metrics


def refine_clients(setup: Setup, own: Local, candidates, numbers, federation):
    """Phase 4: every client clusters its examples by the models of its own clusters and
    those of all communities.

    Args:
        setup: of the method.
        own: the clients.
        candidates: which clusters they have [M, K], the errors of every example under
            the models of all clients' clusters [M, N, V]; which communities there are
            [S], and the errors under their models [M, N, S].
        numbers: the communities of the clients' clusters [M, K], -1 where they are
            alone.
        federation: whose examples.

    Returns:
        The clusters [M, N], and the community of each [M, K] by the model that it was
        selected by: a community's own, or that of one of the client's former clusters.
    """
    exist, errors, known, federated_errors = candidates
    num_clusters = setup.models.num_clusters

    def one(errors, federated_errors, own, exist, mask, num_local):
        return refinement.refine(
            jnp.concatenate([errors[:, own], federated_errors], axis=1),
            jnp.concatenate([exist, known]),
            *(mask, num_local),
            num_clusters=num_clusters,
            renumber_leftovers=setup.renumber_leftovers,
        )

    slots = association.own_models(*exist.shape)
    each = (errors, federated_errors, slots, exist, federation.mask, own.num_local)
    clusters, selected = clients.for_each(one, *each)
    former = jnp.clip(selected, 0, num_clusters - 1)
    former = jnp.take_along_axis(numbers, former, axis=1)
    found = jnp.where(selected < num_clusters, former, selected - num_clusters)
    return clusters, jnp.where(selected < 0, -1, found)


def traffic(
    setup: Setup,
    answered: Bool[Array, "M"],
    ever: Bool[Array, "M"],
    trained: Bool[Array, "M K"],
    groups: association.Groups,
    local: PyTree,
) -> dict[str, Int[Array, "2"]]:
    """Counts what crosses between clients in an iteration, as `server.traffic` does.

    A new model goes to every other client: it grows with the square of their number. A
    community's model goes up from every cluster that it is trained on and down to it in
    each round, and in the end to all clients. Beside them there is a bit, counted as a
    byte, for each pair of clusters.

    Args:
        setup: of the method.
        answered: which clients take part.
        ever: which of them ever do.
        trained: which clusters have a new model.
        groups: the communities.
        local: the models, [M, K, ...].
    """
    size = num_bytes(jax.tree.map(lambda x: x[0, 0], local))
    num_answered = answered.sum(dtype=jnp.int32)
    how, numbers = setup.models.training, groups.numbers
    members = models.trained_on(how, groups).sum() * how.federated_rounds
    sent = (numbers.max() + 1) * num_answered
    pairs = {
        "up_local_models": (trained.sum() * (num_answered - 1), size),
        "up_community_models": (members, size),
        "down_community_models": (members + sent, size),
        "up_associations": (num_answered, ever.sum() * numbers.shape[1] ** 2),
    }
    return {name: jnp.stack(list(map(jnp.int32, pair))) for name, pair in pairs.items()}


def begin_refinement(setup: Setup, key, state: State, federation: Federation) -> State:
    """Returns the state before the first iteration, when every cluster is alone."""
    del key
    before: Progress = state.server
    num_own, num_clusters = len(federation.indices), setup.models.num_clusters
    # Who missed the start has one cluster.
    clusters = jnp.maximum(setup.start.assign(state.clients.start, federation), 0)
    present = server.participants(federation, before.num_rounds)
    members = members_of(clusters, federation, num_clusters)
    exist = members.any(axis=2) & present[:, None]
    all_exist, ever = server.gather(exist), ever_present(federation)
    own = Local(
        start=(),
        num_local=state.clients.num_local,
        clusters=clusters,
        models=models.zeros(setup.models, federation),
        is_stale=jnp.ones(num_own, bool),
        is_active=jnp.ones(num_own, bool),
        num_refinements=jnp.zeros(num_own, jnp.int32),
        communities=association.all_alone(clusters, num_clusters),
    )
    trend = refinement.begin(all_exist.sum(), ever.sum())
    return State(Progress(trend, before.num_rounds), own)


def assign(start: Start, state: State, federation: Federation) -> Int[Array, "M N"]:
    """As in `FederatedClustering`: the clients' own clusters."""
    own: Local = state.clients
    if isinstance(own.clusters, tuple):  # not refined yet
        return start.assign(own.start, federation)
    return own.clusters
