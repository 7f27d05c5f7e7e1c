"""FedCRef: global clusters found without a server or their number.

FedCRef: which global clusters there are, found without a server or their number.

Federated Clustering: An Unsupervised Cluster-Wise Training for Decentralized Data
Distributions
    Mirko Nardi, Lorenzo Valerio, Andrea Passarella. 2024.
    https://arxiv.org/abs/2408.10664
    Authors' code: https://github.com/mirqr/fedcref

How the clients of FedCRef come to the clusters that they refine.

The paper takes DEC of each client's own examples, or true classes made dirty, and says
that any clustering will do.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int
from optax.assignment import hungarian_algorithm

from fcjax.algorithms import fedcref_models
from fcjax.algorithms.central import Clustering
from fcjax.algorithms.fedcref_models import (
    Associate,
    Models,
    may_be_joined,
    members_of,
)
from fcjax.algorithms.rounds import all_rounds, ever_participating
from fcjax.data.augment import client_rows
from fcjax.federated import clients, server, training
from fcjax.parallel.mesh import num_bytes
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

# --- Refinement

STEADY_ITERATIONS = 3
"""Without significant changes, after which the process is halted."""


class Trend(NamedTuple):
    """Counts that all clients know; () before the first refinement."""

    communities: Int[Array, ""]  # |G|
    isolated: Int[Array, ""]  # |I|
    active: Int[Array, ""]  # |A|
    num_steady: Int[Array, ""]  # iterations on end in which |G|, |I| hardly changed
    refinements: Float[Array, ""]  # the mean over clients


def refine(
    errors: Float[Array, "N J"],
    models: Bool[Array, "J"],
    mask: Bool[Array, "N"],
    num_local: Int[Array, ""],
    *,
    num_clusters: int,
    renumber_leftovers: bool = False,
) -> tuple[Int[Array, "N"], Int[Array, "K"]]:
    """Clusters a client's examples by the models that reconstruct them best.

    K_i times the model that is the best of most examples takes those, and both leave.
    Each example that is left over goes to the selected model of the least error.

    Args:
        errors: of every example under every candidate.
        models: which of the candidates there are.
        mask: which examples count; the others get a cluster of no meaning.
        num_local: K_i, at most K.
        num_clusters: K.
        renumber_leftovers: number the clusters of what is left over by a vote of its
            own among the selected models, as the authors' code does, so that it may get
            another model's number.

    Returns:
        Clusters in [0, K), and the candidate selected for each, -1 for a cluster that
        is left empty: those from K_i on, and where examples or models have run out. A
        model whose error is no number is never selected.
    """
    known = jnp.where(jnp.isnan(errors), jnp.inf, errors)
    clusters, selected = _vote(known, models, mask, num_local, num_clusters)
    left_over = mask & (clusters < 0)
    if renumber_leftovers:
        candidates = jnp.arange(len(models))[:, None] == selected[None]
        again, _ = _vote(
            known, candidates.any(axis=1), left_over, num_local, num_clusters
        )
        return jnp.where(left_over, again, clusters).clip(0), selected
    of_selected = jnp.where(selected[None] >= 0, known[:, selected], jnp.inf)
    nearest = jnp.argmin(of_selected, axis=1).astype(jnp.int32)
    return jnp.where(clusters < 0, nearest, clusters), selected


def _vote(errors, models, unassigned, num_local, num_clusters):
    """Lines 6 to 14: clusters, -1 where none of the selected models was the best."""

    def select(p, carry):
        clusters, selected, free, unassigned = carry
        best = jnp.argmin(jnp.where(free[None], errors, jnp.inf), axis=1)
        votes = jnp.zeros(len(models)).at[best].add(unassigned & free[best])
        winner = jnp.argmax(votes)
        found = (votes[winner] > 0) & (p < num_local)
        taken = found & unassigned & (best == winner)
        return (
            jnp.where(taken, p, clusters),
            selected.at[p].set(jnp.where(found, winner, -1)),
            free.at[winner].set(free[winner] & ~found),
            unassigned & ~taken,
        )

    clusters = jnp.full(len(errors), -1, jnp.int32)
    selected = jnp.full(num_clusters, -1, jnp.int32)
    free = models & jnp.isfinite(errors).any(axis=0)
    carry = (clusters, selected, free, unassigned)
    return lax.fori_loop(0, num_clusters, select, carry)[:2]


def agreement(
    before: Int[Array, "N"],
    after: Int[Array, "N"],
    mask: Bool[Array, "N"],
    *,
    num_clusters: int,
) -> Float[Array, ""]:
    """Returns the share of a client's examples that kept their cluster, where clusters
    are matched so that they are the most: ACC(y', y), Eq. 6.
    """
    pairs = before * num_clusters + after
    counts = jnp.zeros(num_clusters**2).at[pairs].add(mask)
    counts = counts.reshape(num_clusters, num_clusters)
    rows, columns = hungarian_algorithm(-counts)
    return counts[rows, columns].sum() / mask.sum()


def begin(num_clusters: Int[Array, ""], num_clients: Int[Array, ""]) -> Trend:
    """Returns the trend before the first iteration: every cluster is alone."""
    return Trend(
        communities=jnp.int32(0),
        isolated=num_clusters.astype(jnp.int32),
        active=num_clients.astype(jnp.int32),
        num_steady=jnp.int32(0),
        refinements=jnp.float32(0),
    )


def follow(
    settings: Any,
    trend: Trend,
    communities: Int[Array, ""],
    isolated: Int[Array, ""],
    is_active: Bool[Array, "M"],
    num_refinements: Int[Array, "M"],
    counted: Bool[Array, "M"],
) -> Trend:
    """Returns the trend after a further iteration.

    Args:
        settings: of the method.
        trend: after the last one.
        communities: |G| of its graph.
        isolated: |I|.
        is_active: which clients go on.
        num_refinements: how often each has refined its clusters.
        counted: which clients take part at all.
    """

    def is_steady(new, old):
        return jnp.abs(new - old) <= settings.tolerance * jnp.maximum(old, 1)

    steady = is_steady(communities, trend.communities)
    steady &= is_steady(isolated, trend.isolated)
    return Trend(
        communities=communities.astype(jnp.int32),
        isolated=isolated.astype(jnp.int32),
        active=jnp.sum(is_active & counted, dtype=jnp.int32),
        num_steady=jnp.where(steady, trend.num_steady + 1, 0),
        refinements=jnp.mean(num_refinements, where=counted),
    )


def is_over(settings: Any, trend: Trend) -> Bool[Array, ""]:
    """Returns whether nobody is active, nothing has changed for some iterations, or
    clients have refined as often as they may, as a mean.

    The text of phase 5 ends at either; line 6 of Algorithm 1 goes on while either
    holds, (varying) or |A| > 0, which active clients that change nothing never end.
    The authors' code does not look at |A|.

    Args:
        settings: of the method.
        trend: after the last iteration.
    """
    over = trend.num_steady >= STEADY_ITERATIONS
    if settings.max_refinements is not None:
        over |= trend.refinements >= settings.max_refinements
    return over | (trend.active == 0) if settings.stop_when_settled else over


# --- Start


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
    federation's `local_clusters`.
    """

    init: Callable[[PRNGKey, Federation], Any]
    """(key, federation) -> state."""
    phases: tuple[StartPhase, ...]
    assign: Callable[[Any, Federation], Int[Array, "M N"]]
    """(state, federation) -> clusters in [0, K_i); -1 where there are none yet."""


def start_stage(phase: StartPhase) -> Stage:
    """Returns a phase as a stage of FedCRef: it changes the clients' `start`. Its
    metrics are those of an iteration in which nothing has been associated yet.
    """

    def begin(key, state: State, federation: Federation):
        local = state.clients
        federation = federation._replace(local_clusters=local.num_local)
        begun = phase.begin(key, local.start, federation)
        return state._replace(clients=local._replace(start=begun))

    def round(key, state: State, federation: Federation):
        local, present = state.clients, server.participants(federation)
        federation = federation._replace(local_clusters=local.num_local)
        new, values = phase.round(key, local.start, federation)
        new = clients.keep_absent(present, new, local.start)
        # As floats: a sum of integers would be one more.
        values, own = server.gather((values, local.num_local.astype(jnp.float32)))
        answered = server.all_participants(federation)
        metrics = {
            **server.measure(answered, {"loss": values}),
            "communities": jnp.int32(0),
            "isolated": jnp.sum(own, where=answered).astype(jnp.int32),
            "edges": jnp.int32(0),
            "active": ever_participating(federation).sum(),
            "iteration": jnp.int32(0),
        }
        return state._replace(clients=local._replace(start=new)), metrics

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
        >>> from fcjax.methods import KMeans
        >>> own = KMeans().plain()
        >>> kmeans = lambda used: by_kmeans(own, num_clusters=3, num_used=used)
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

    def on_each(run, number, key, state, federation: Federation):
        def one(key, state, rows, mask, num_local):
            phase = clustering(num_local).phases[number]
            own = key, state, federation.pool[rows], mask
            return run(phase, *own, federation.now)

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
            partial(on_each, lambda phase, *own: phase.begin(*own[:-1]), i),
            partial(on_each, lambda phase, *own: phase.round(*own), i),
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


# --- Algorithm

CountClusters = Callable[[PRNGKey, Federation], Int[Array, "M"]]
"""(key, federation) -> K_i."""
Measure = Callable[
    [Federation, Int[Array, "M N"], fedcref_models.Edges], dict[str, Array]
]
"""(federation, clusters, association graph) -> further metrics, which nothing reads."""


class Starting(NamedTuple):
    """The clients in the stages of the start."""

    start: Any  # of the local clustering
    num_local: Int[Array, "M"]  # K_i


class Refining(NamedTuple):
    """The clients in the last stage."""

    num_local: Int[Array, "M"]  # K_i
    clusters: Int[Array, "M N"]  # Q_i
    models: PyTree  # M_iq [M, K, ...]
    is_stale: Bool[Array, "M"]  # whose models are of earlier clusters
    is_active: Bool[Array, "M"]  # A
    num_refinements: Int[Array, "M"]
    communities: Communities  # of the last graph, and of the clusters after it


class Setup(NamedTuple):
    """What all iterations share; see `fedcref`."""

    models: Models
    start: Start
    association: Associate | None
    measure: Measure | None

    @property
    def settings(self) -> Any:
        """An `fcjax.methods.FedCRef` with one value per setting."""
        return self.models.settings


def fedcref(
    settings: Any,
    network: Network,
    optimizer: optax.GradientTransformation,
    start: Start,
    *,
    num_clusters: int,
    association: Associate | None = None,
    num_local: CountClusters | None = None,
    measure: Measure | None = None,
) -> FederatedClustering:
    """Builds FedCRef: a round of its last stage is an iteration of Algorithm 1.

    Args:
        settings: an `fcjax.methods.FedCRef` with one value per setting.
        network: an auto-encoder from rows to their reconstructions; every cluster and
            every community has one of its own.
        optimizer: of all of them.
        start: the clusters to begin with.
        num_clusters: K, the most clusters that a client looks for.
        association: true associations of an experiment, in place of the test by which
            clusters are found to be the same.
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
        >>> from fcjax import nn
        >>> from fcjax.algorithms.central import by_kmeans
        >>> from fcjax.algorithms.fedcref import on_clients
        >>> from fcjax.methods import FedCRef, KMeans
        >>> own = KMeans().plain()
        >>> kmeans = lambda used: by_kmeans(own, num_clusters=3, num_used=used)
        >>> start = on_clients(kmeans, num_clusters=3)
        >>> network, adam = nn.reconstructor(5), optax.adam(1e-3)
        >>> settings = FedCRef().plain()
        >>> method = fedcref(settings, network, adam, start, num_clusters=3)
        >>> [stage.name for stage in method.stages]
        ['cluster', 'refine']
    """
    models = Models(network, optimizer, num_clusters, settings)
    setup = Setup(models, start, association, measure)
    stages = (
        *map(start_stage, start.phases),
        Stage(
            "refine",
            partial(begin_refinement, setup),
            partial(iterate, setup),
            settings.num_rounds,
            done=lambda state: is_over(settings, state.server),
        ),
    )

    def init(key: PRNGKey, federation: Federation) -> State:
        count_key, start_key = jax.random.split(key)
        own = federation.local_clusters
        if num_local is not None:
            own = num_local(count_key, federation)
        local = Starting(start.init(start_key, federation), own)
        return stages[0].begin(key, State((), local), federation)

    return FederatedClustering(
        init,
        stages,
        embed=lambda _, federation: client_rows(federation, unit_length=False),
        assign=partial(assign, start),
        communities=communities,
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
    own: Refining = state.clients
    how, num_clusters = setup.models, setup.models.num_clusters
    local_key, community_key = jax.random.split(key)
    present = server.participants(federation)
    members = members_of(own.clusters, federation, num_clusters)
    exist = members.any(axis=2) & present[:, None]

    # Lines 7 to 10, also of clients that have settled just now: on the clusters that
    # they keep.
    trains = exist & own.is_stale[:, None]
    local, values = fedcref_models.train_clusters(
        how, local_key, own.clusters, trains, federation
    )
    local = jax.vmap(clients.keep_absent)(trains, local, own.models)
    everyones, all_exist = server.gather((local, exist))
    held, there = fedcref_models.by_slot((everyones, all_exist))
    errors = fedcref_models.errors_under(how, held, there, federation)

    # Lines 11 to 21.
    edges = association_graph(setup, errors, own.clusters, exist, federation)
    graph = server.gather(edges)
    groups = fedcref_models.communities(graph)
    num_communities = groups.numbers.max() + 1
    isolated = jnp.sum(all_exist & (groups.numbers < 0))
    own_groups = server.rows_on_this_device(groups, len(present))
    # One that was repeated to fill the devices would be a further member.
    numbers = jnp.where(exist, own_groups.numbers, -1)

    # Lines 22 to 26.
    own_groups = own_groups._replace(numbers=numbers)
    federated = fedcref_models.train_communities(
        how, community_key, own.clusters, own_groups, federation
    )
    known = jnp.arange(fedcref_models.most_communities(*exist.shape)) < num_communities
    federated_errors = fedcref_models.errors_under(how, federated, known, federation)

    # Lines 27 to 32.
    candidates = (exist, errors, known, federated_errors)
    found = refine_clients(setup, own, candidates, numbers, federation)
    before = Communities(numbers, edges, own.clusters)
    new = settle(setup.settings, own, present, found, before, federation.mask)
    new = new._replace(models=local)
    trained, values, active, counts = server.gather(
        (trains, values, new.is_active, new.num_refinements)
    )
    answered = server.all_participants(federation)
    ever = ever_participating(federation)
    trend = follow(
        *(setup.settings, state.server, num_communities, isolated, active, counts, ever)
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
    return State(trend, new), metrics


def association_graph(setup: Setup, errors, clusters, exist, federation):
    """Phase 2: returns which clusters are the same, as they are found to be, or as an
    experiment knows them.
    """
    if setup.association is not None:
        return setup.association(federation, clusters) & may_be_joined(exist)
    return fedcref_models.associate(setup.settings, errors, clusters, exist, federation)


def settle(
    settings: Any,
    own: Refining,
    present: Bool[Array, "M"],
    found: tuple[Int[Array, "M N"], Int[Array, "M K"]],
    before: Communities,
    mask: Bool[Array, "M N"],
) -> Refining:
    """Returns the clients after phase 4: those that are active have the clusters that
    were found, and one that has kept most of its clusters refines no more.
    """
    refines = present & own.is_active
    former = (before.clusters, before.of_cluster)
    clusters, numbers = clients.keep_absent(refines, found, former)
    same = partial(agreement, num_clusters=numbers.shape[1])
    kept = jax.vmap(same)(before.clusters, clusters, mask)
    return own._replace(
        clusters=clusters,
        is_stale=jnp.where(present, refines, own.is_stale),
        is_active=own.is_active & ~(refines & (kept >= settings.stability)),
        num_refinements=own.num_refinements + refines,
        communities=before._replace(of_cluster=numbers),
    )


def refine_clients(setup: Setup, own: Refining, candidates, numbers, federation):
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
        return refine(
            jnp.concatenate([errors[:, own], federated_errors], axis=1),
            jnp.concatenate([exist, known]),
            *(mask, num_local),
            num_clusters=num_clusters,
            renumber_leftovers=setup.settings.leftovers == "renumbered",
        )

    slots = fedcref_models.own_models(*exist.shape)
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
    groups: fedcref_models.Groups,
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
    settings, numbers = setup.settings, groups.numbers
    members = fedcref_models.trained_on(settings, groups).sum()
    members *= settings.federated_rounds
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
    num_own, num_clusters = len(federation.indices), setup.models.num_clusters
    # Who missed the start has one cluster.
    clusters = jnp.maximum(setup.start.assign(state.clients.start, federation), 0)
    present = server.participants(federation)
    members = members_of(clusters, federation, num_clusters)
    exist = members.any(axis=2) & present[:, None]
    all_exist, ever = server.gather(exist), ever_participating(federation)
    own = Refining(
        num_local=state.clients.num_local,
        clusters=clusters,
        models=fedcref_models.zeros(setup.models, federation),
        is_stale=jnp.ones(num_own, bool),
        is_active=jnp.ones(num_own, bool),
        num_refinements=jnp.zeros(num_own, jnp.int32),
        communities=fedcref_models.all_alone(clusters, num_clusters),
    )
    return State(begin(all_exist.sum(), ever.sum()), own)


def communities(state: State) -> Any:
    """As in `FederatedClustering`; () before the refinement."""
    return () if isinstance(state.clients, Starting) else state.clients.communities


def assign(start: Start, state: State, federation: Federation) -> Int[Array, "M N"]:
    """As in `FederatedClustering`: the clients' own clusters."""
    if isinstance(state.clients, Starting):
        return start.assign(state.clients.start, federation)
    return state.clients.clusters
