"""FedCRef: clients find global clusters without a server and without their number.

Every client clusters its own examples (stages of the `Start`). Then clients repeat the
stage `refine`: they train a model of each cluster, exchange the models, connect
clusters that are the same to communities, train a model of each community, and refine
their clusters with these models.

The paper starts with DEC of each client's own examples, or with true classes made
dirty, and says that any clustering can be used.

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
"""Number of consecutive iterations without significant changes after which training
ends."""


class Trend(NamedTuple):
    """Counts that all clients know and that decide when training ends."""

    communities: Int[Array, ""]
    """Number |G| of communities."""
    isolated: Int[Array, ""]
    """Number |I| of clusters without an edge."""
    active: Int[Array, ""]
    """Number |A| of clients that still refine their clusters."""
    num_steady: Int[Array, ""]
    """Number of consecutive iterations in which |G| and |I| hardly changed."""
    refinements: Float[Array, ""]
    """Number of refinements per client, the mean over clients."""


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

    The following is repeated K_i times. Every unassigned example votes for the free
    model with its least error. The model with the most votes gets these examples as a
    cluster and is no longer free. At the end, each remaining example joins the selected
    model with its least error.

    Args:
        errors: error of every example under every candidate model [N, J].
        models: [J], True at candidates that exist.
        mask: [N], True at examples that count. The cluster of other examples has no
            meaning.
        num_local: number K_i of clusters of the client, at most K.
        num_clusters: number K of clusters in the arrays.
        renumber_leftovers: whether the clusters of remaining examples are numbered by a
            new vote among the selected models, as in the authors' code. A remaining
            example may then get the number of another model.

    Returns:
        The clusters in [0, K) [N], and the selected candidate of each cluster [K]. The
        candidate is -1 for empty clusters: those from K_i on, and those for which no
        examples or models were left. A model whose error is NaN is never selected.
    """
    finite_errors = jnp.where(jnp.isnan(errors), jnp.inf, errors)
    clusters, selected = _vote(finite_errors, models, mask, num_local, num_clusters)
    left_over = mask & (clusters < 0)
    if renumber_leftovers:
        candidates = jnp.arange(len(models))[:, None] == selected[None]
        renumbered, _ = _vote(
            finite_errors, candidates.any(axis=1), left_over, num_local, num_clusters
        )
        return jnp.where(left_over, renumbered, clusters).clip(0), selected
    selected_errors = jnp.where(
        selected[None] >= 0, finite_errors[:, selected], jnp.inf
    )
    nearest = jnp.argmin(selected_errors, axis=1).astype(jnp.int32)
    return jnp.where(clusters < 0, nearest, clusters), selected


def _vote(errors, models, unassigned, num_local, num_clusters):
    """Returns clusters and selected models by votes: lines 6 to 14 of the refinement.

    Clusters are -1 at examples whose best model is not selected.
    """

    def select(p, carry):
        clusters, selected, free, unassigned = carry
        best = jnp.argmin(jnp.where(free[None], errors, jnp.inf), axis=1)
        votes = jnp.zeros(len(models)).at[best].add(unassigned & free[best])
        winner = jnp.argmax(votes)
        has_winner = (votes[winner] > 0) & (p < num_local)
        members = has_winner & unassigned & (best == winner)
        return (
            jnp.where(members, p, clusters),
            selected.at[p].set(jnp.where(has_winner, winner, -1)),
            free.at[winner].set(free[winner] & ~has_winner),
            unassigned & ~members,
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
    """Returns the share of examples that kept their cluster: ACC(y', y), equation 6.

    Old and new clusters are matched so that this share is as large as possible.

    Args:
        before: clusters before the refinement [N].
        after: clusters after the refinement [N].
        mask: [N], True at examples that count.
        num_clusters: number K of clusters.

    Returns:
        The share, in [0, 1].
    """
    pairs = before * num_clusters + after
    counts = jnp.zeros(num_clusters**2).at[pairs].add(mask)
    counts = counts.reshape(num_clusters, num_clusters)
    rows, columns = hungarian_algorithm(-counts)
    return counts[rows, columns].sum() / mask.sum()


def begin(num_clusters: Int[Array, ""], num_clients: Int[Array, ""]) -> Trend:
    """Returns the trend before the first iteration, in which every cluster is isolated.

    Args:
        num_clusters: number of clusters of all clients.
        num_clients: number of clients.

    Returns:
        The trend.
    """
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
    """Returns the trend after one more iteration.

    Args:
        settings: settings of the method.
        trend: the trend after the last iteration.
        communities: number |G| of communities of the new graph.
        isolated: number |I| of isolated clusters of the new graph.
        is_active: [M], True at clients that still refine their clusters.
        num_refinements: number of refinements of each client [M].
        counted: [M], True at clients that participate in any round.

    Returns:
        The new trend.
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
    """Returns whether training has ended.

    Training ends if no client is active, if nothing has changed significantly for some
    iterations, or if the mean number of refinements has reached its maximum.

    The text of phase 5 says that either of the first two conditions ends the process.
    Line 6 of Algorithm 1 instead continues while (varying) or |A| > 0, which may never
    end with active clients that change nothing. The authors' code does not check |A|.

    Args:
        settings: settings of the method.
        trend: the trend after the last iteration.

    Returns:
        A boolean scalar.
    """
    over = trend.num_steady >= STEADY_ITERATIONS
    if settings.max_refinements is not None:
        over |= trend.refinements >= settings.max_refinements
    return over | (trend.active == 0) if settings.stop_when_settled else over


# --- Start


class StartPhase(NamedTuple):
    """One phase of a `Start`. States are stacked over clients [M, ...]."""

    name: str
    begin: Callable[[PRNGKey, Any, Federation], Any]
    """(key, state, federation) -> the state at the start of this phase."""
    round: Callable[[PRNGKey, Any, Federation], tuple[Any, Float[Array, "M"]]]
    """(key, state, federation) -> (state, loss of each client)."""
    num_rounds: int = 1


class Start(NamedTuple):
    """How each client clusters its own examples before clients exchange anything.

    The number K_i of clusters of each client comes from `Federation.local_clusters`.
    """

    init: Callable[[PRNGKey, Federation], Any]
    """(key, federation) -> state."""
    phases: tuple[StartPhase, ...]
    assign: Callable[[Any, Federation], Int[Array, "M N"]]
    """(state, federation) -> clusters in [0, K_i); -1 before there are clusters."""


def start_stage(phase: StartPhase) -> Stage:
    """Returns a stage of FedCRef that runs one phase of a start.

    The stage changes `Starting.start` only. Its metrics are those of an iteration
    without edges.

    Args:
        phase: the phase.

    Returns:
        The stage.
    """

    def begin(key, state: State, federation: Federation):
        local = state.clients
        federation = federation._replace(local_clusters=local.num_local)
        initial = phase.begin(key, local.start, federation)
        return state._replace(clients=local._replace(start=initial))

    def round(key, state: State, federation: Federation):
        local, present = state.clients, server.participants(federation)
        federation = federation._replace(local_clusters=local.num_local)
        new, values = phase.round(key, local.start, federation)
        new = clients.keep_absent(present, new, local.start)
        # Both as floats, because integers would need a second sum between devices.
        values, counts = server.gather((values, local.num_local.astype(jnp.float32)))
        participating = server.all_participants(federation)
        metrics = {
            **server.measure(participating, {"loss": values}),
            "communities": jnp.int32(0),
            "isolated": jnp.sum(counts, where=participating).astype(jnp.int32),
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
    """Returns a start in which every client runs a clustering on its own examples.

    Args:
        clustering: (K_i) -> the clustering with K_i clusters. All its arrays must have
            the same shape for all K_i.
        num_clusters: number K, the largest K_i.

    Returns:
        The start.

    Examples:
        >>> from fcjax.algorithms.central import by_kmeans
        >>> from fcjax.methods import KMeans
        >>> own = KMeans().plain()
        >>> kmeans = lambda used: by_kmeans(own, num_clusters=3, num_used=used)
        >>> start = on_clients(kmeans, num_clusters=3)
        >>> [phase.name for phase in start.phases]
        ['cluster']
    """
    template = clustering(num_clusters)

    def init(key: PRNGKey, federation: Federation):
        example = federation.pool[:1]
        keys = clients.keys(key, len(federation.indices))
        return jax.vmap(lambda key: template.init(key, example))(keys)

    def run_phase(run, number, key, state, federation: Federation):
        def run_client(key, state, rows, mask, num_local):
            phase = clustering(num_local).phases[number]
            return run(phase, key, state, federation.pool[rows], mask, federation.now)

        keys = clients.keys(key, len(federation.indices))
        inputs = (federation.indices, federation.mask, federation.local_clusters)
        return clients.for_each(run_client, keys, state, *inputs)

    def assign(state, federation: Federation):
        def assign_client(state, rows):
            def embed(rows):
                return template.embed(state, federation.pool[rows])

            z = training.in_batches(embed, rows, batch_size=512)
            return template.assign(state, z)

        return clients.for_each(assign_client, state, federation.indices)

    phases = tuple(
        StartPhase(
            phase.name,
            partial(run_phase, lambda phase, *inputs: phase.begin(*inputs[:-1]), i),
            partial(run_phase, lambda phase, *inputs: phase.round(*inputs), i),
            phase.num_rounds,
        )
        for i, phase in enumerate(template.phases)
    )
    return Start(init, phases, assign)


def given_clusters(
    name: str, clusters: Callable[[PRNGKey, Federation], Int[Array, "M N"]]
) -> Start:
    """Returns a start of one round with clusters that a function provides.

    An experiment uses it for clusters that are simulated from labels.

    Args:
        name: name of the phase.
        clusters: (key, federation) -> clusters in [0, K_i) [M, N].

    Returns:
        The start.
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
"""(key, federation) -> number K_i of clusters of each client."""
Measure = Callable[
    [Federation, Int[Array, "M N"], fedcref_models.Edges], dict[str, Array]
]
"""(federation, clusters, association graph) -> additional metrics, which only the user
reads."""


class Starting(NamedTuple):
    """The clients' state in the stages of the start."""

    start: Any
    """State of the local clustering."""
    num_local: Int[Array, "M"]
    """Number K_i of clusters of each client."""


class Refining(NamedTuple):
    """The clients' state in the stage `refine`."""

    num_local: Int[Array, "M"]
    """Number K_i of clusters of each client."""
    clusters: Int[Array, "M N"]
    """Cluster of each example, the clusters Q_i."""
    models: PyTree
    """The models M_iq of the clusters, [M, K, ...]."""
    is_stale: Bool[Array, "M"]
    """Which clients' clusters have changed since their models were trained."""
    is_active: Bool[Array, "M"]
    """Which clients still refine their clusters, the set A."""
    num_refinements: Int[Array, "M"]
    """Number of refinements of each client."""
    communities: Communities
    """The last association graph, and the communities of the clusters after it."""


class Setup(NamedTuple):
    """The networks and functions that all iterations share; see `fedcref`."""

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
    """Builds FedCRef; a round of its last stage is an iteration of Algorithm 1.

    Args:
        settings: an `fcjax.methods.FedCRef` with one value per setting.
        network: an auto-encoder from rows to their reconstructions. Every cluster and
            every community has its own variables of it.
        optimizer: optimizer of all models.
        start: how clients find their first clusters.
        num_clusters: number K, the largest number of clusters of a client.
        association: (federation, clusters) -> the association graph. It replaces
            FedCRef's test, for experiments that know the true associations.
        num_local: (key, federation) -> number K_i of clusters of each client. By
            default, `Federation.local_clusters`.
        measure: (federation, clusters, association graph) -> additional metrics, for
            experiments that know the labels.

    Returns:
        The method, with the stages of `start` and then `refine`. A client's clusters
        are its own; `communities` tells which clusters of different clients are the
        same. The metrics are:

        * `loss`: mean squared error of the clusters' models.
        * `communities`, `edges`, `active` (clients), `iteration` and `participants`.
        * `isolated`: clusters without an edge; all clusters before the first graph.
        * the traffic. A new model goes to every other client, so the traffic grows with
          the square of the number of clients.

        Clients share no representation, so the embedding of an example is the example
        itself.

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
        counts = federation.local_clusters
        if num_local is not None:
            counts = num_local(count_key, federation)
        local = Starting(start.init(start_key, federation), counts)
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
    """Runs an iteration of Algorithm 1, lines 7 to 32.

    Clients train a model of each cluster and exchange the models. They associate
    clusters and train a model of each community. Then they refine their clusters with
    all these models.

    Args:
        setup: networks and settings of the method.
        key: random key of the round.
        state: the state before the round.
        federation: the clients' data.

    Returns:
        The state after the round, and its metrics.
    """
    clients_before: Refining = state.clients
    models, num_clusters = setup.models, setup.models.num_clusters
    local_key, community_key = jax.random.split(key)
    present = server.participants(federation)
    members = members_of(clients_before.clusters, federation, num_clusters)
    exist = members.any(axis=2) & present[:, None]

    # Lines 7 to 10. A client that has just become inactive trains once more, on its
    # final clusters.
    trains = exist & clients_before.is_stale[:, None]
    local, values = fedcref_models.train_clusters(
        models, local_key, clients_before.clusters, trains, federation
    )
    local = jax.vmap(clients.keep_absent)(trains, local, clients_before.models)
    all_models, all_exist = server.gather((local, exist))
    model_rows, row_exists = fedcref_models.flatten_clusters((all_models, all_exist))
    errors = fedcref_models.errors_under(models, model_rows, row_exists, federation)

    # Lines 11 to 21.
    edges = association_graph(setup, errors, clients_before.clusters, exist, federation)
    graph = server.gather(edges)
    groups = fedcref_models.communities(graph)
    num_communities = groups.numbers.max() + 1
    isolated = jnp.sum(all_exist & (groups.numbers < 0))
    local_groups = server.rows_on_this_device(groups, len(present))
    # Clients that are repeated to fill the devices must not become members.
    numbers = jnp.where(exist, local_groups.numbers, -1)

    # Lines 22 to 26.
    local_groups = local_groups._replace(numbers=numbers)
    federated = fedcref_models.train_communities(
        models, community_key, clients_before.clusters, local_groups, federation
    )
    most_communities = fedcref_models.most_communities(*exist.shape)
    is_community = jnp.arange(most_communities) < num_communities
    federated_errors = fedcref_models.errors_under(
        models, federated, is_community, federation
    )

    # Lines 27 to 32.
    candidates = (exist, errors, is_community, federated_errors)
    refined = refine_clients(setup, clients_before, candidates, numbers, federation)
    before = Communities(numbers, edges, clients_before.clusters)
    new = settle(
        setup.settings, clients_before, present, refined, before, federation.mask
    )
    new = new._replace(models=local)
    trained, values, active, counts = server.gather(
        (trains, values, new.is_active, new.num_refinements)
    )
    participating = server.all_participants(federation)
    ever = ever_participating(federation)
    trend = follow(
        *(setup.settings, state.server, num_communities, isolated, active, counts, ever)
    )
    metrics = {
        # No model is trained if all active clients are absent; the loss is then 0.
        "loss": jnp.sum(values, where=trained) / jnp.maximum(trained.sum(), 1),
        "participants": participating.sum(),
        "communities": trend.communities,
        "isolated": trend.isolated,
        "edges": graph.sum() // 2,
        "active": trend.active,
        "iteration": counts.max(),
        **traffic(setup, participating, ever, trained, groups, local),
    }
    if setup.measure is not None:
        metrics |= setup.measure(federation, clients_before.clusters, edges)
    return State(trend, new), metrics


def association_graph(
    setup: Setup,
    errors: Float[Array, "M N V"],
    clusters: Int[Array, "M N"],
    exist: Bool[Array, "M K"],
    federation: Federation,
) -> fedcref_models.Edges:
    """Returns the association graph (phase 2).

    It comes from FedCRef's test, or from `association` where an experiment has one.

    Args:
        setup: networks and settings of the method.
        errors: error of every example under the models of all clusters [M, N, V].
        clusters: cluster of each example [M, N].
        exist: [M, K], True at clusters that have examples.
        federation: the clients' data.

    Returns:
        The edges [M, K, A, K].
    """
    if setup.association is not None:
        return setup.association(federation, clusters) & may_be_joined(exist)
    return fedcref_models.associate(setup.settings, errors, clusters, exist, federation)


def settle(
    settings: Any,
    local: Refining,
    present: Bool[Array, "M"],
    refined: tuple[Int[Array, "M N"], Int[Array, "M K"]],
    before: Communities,
    mask: Bool[Array, "M N"],
) -> Refining:
    """Returns the clients' state after phase 4.

    Active participating clients get the refined clusters. A client whose clusters
    hardly changed becomes inactive.

    Args:
        settings: settings of the method. `stability` is the share of unchanged examples
            from which a client becomes inactive.
        local: the state before the refinement.
        present: [M], True at participating clients.
        refined: the result of `refine_clients`.
        before: the graph, and the communities of the clusters before the refinement.
        mask: [M, N], False at padding.

    Returns:
        The new state.
    """
    refines = present & local.is_active
    former = (before.clusters, before.of_cluster)
    clusters, numbers = clients.keep_absent(refines, refined, former)
    same = partial(agreement, num_clusters=numbers.shape[1])
    unchanged = jax.vmap(same)(before.clusters, clusters, mask)
    return local._replace(
        clusters=clusters,
        is_stale=jnp.where(present, refines, local.is_stale),
        is_active=local.is_active & ~(refines & (unchanged >= settings.stability)),
        num_refinements=local.num_refinements + refines,
        communities=before._replace(of_cluster=numbers),
    )


def refine_clients(
    setup: Setup,
    local: Refining,
    candidates: tuple[Array, Array, Array, Array],
    numbers: Int[Array, "M K"],
    federation: Federation,
) -> tuple[Int[Array, "M N"], Int[Array, "M K"]]:
    """Refines the clusters of every client (phase 4).

    The candidates are the models of the client's own clusters and of all communities.

    Args:
        setup: networks and settings of the method.
        local: the state before the refinement.
        candidates: four arrays. [M, K], True at clusters that exist. [M, N, V], errors
            under the models of all clusters. [S], True at communities that exist.
            [M, N, S], errors under the communities' models.
        numbers: community of each cluster [M, K], -1 for isolated clusters.
        federation: the clients' data.

    Returns:
        The new clusters [M, N], and the community of each [M, K]. The community is that
        of the selected model, which belongs to a community or to a former cluster.
    """
    exist, errors, is_community, federated_errors = candidates
    num_clusters = setup.models.num_clusters

    def refine_client(errors, federated_errors, model_indices, exist, mask, num_local):
        return refine(
            jnp.concatenate([errors[:, model_indices], federated_errors], axis=1),
            jnp.concatenate([exist, is_community]),
            *(mask, num_local),
            num_clusters=num_clusters,
            renumber_leftovers=setup.settings.leftovers == "renumbered",
        )

    model_indices = fedcref_models.own_models(*exist.shape)
    errors_and_models = (errors, federated_errors, model_indices, exist)
    clusters, selected = clients.for_each(
        refine_client, *errors_and_models, federation.mask, local.num_local
    )
    former = jnp.clip(selected, 0, num_clusters - 1)
    former = jnp.take_along_axis(numbers, former, axis=1)
    communities = jnp.where(selected < num_clusters, former, selected - num_clusters)
    return clusters, jnp.where(selected < 0, -1, communities)


def traffic(
    setup: Setup,
    participating: Bool[Array, "M"],
    ever: Bool[Array, "M"],
    trained: Bool[Array, "M K"],
    groups: fedcref_models.Groups,
    local: PyTree,
) -> dict[str, Int[Array, "2"]]:
    """Counts the bytes that clients exchange in an iteration, as `server.traffic` does.

    A new model of a cluster goes to every other client, so this traffic grows with the
    square of their number. In each round, the model of a community goes up from every
    cluster that it is trained on and down to it, and at the end to all clients. In
    addition, there is one bit, counted as one byte, per pair of clusters.

    Args:
        setup: networks and settings of the method.
        participating: clients that participate in the round.
        ever: clients that participate in any round.
        trained: [M, K], True at clusters with a new model.
        groups: the communities.
        local: the models of the clusters [M, K, ...].

    Returns:
        Per kind of message, the number of messages and the bytes of one.
    """
    size = num_bytes(jax.tree.map(lambda x: x[0, 0], local))
    num_participating = participating.sum(dtype=jnp.int32)
    settings, numbers = setup.settings, groups.numbers
    members = fedcref_models.trained_on(settings, groups).sum()
    members *= settings.federated_rounds
    sent = (numbers.max() + 1) * num_participating
    pairs = {
        "up_local_models": (trained.sum() * (num_participating - 1), size),
        "up_community_models": (members, size),
        "down_community_models": (members + sent, size),
        "up_associations": (num_participating, ever.sum() * numbers.shape[1] ** 2),
    }
    return {name: jnp.stack(list(map(jnp.int32, pair))) for name, pair in pairs.items()}


def begin_refinement(
    setup: Setup, key: PRNGKey, state: State, federation: Federation
) -> State:
    """Returns the state before the first iteration, in which every cluster is isolated.

    Args:
        setup: networks and settings of the method.
        key: unused.
        state: the state after the start.
        federation: the clients' data.

    Returns:
        The state before the first iteration.
    """
    del key
    num_clients, num_clusters = len(federation.indices), setup.models.num_clusters
    # A client that missed the start has a single cluster.
    clusters = jnp.maximum(setup.start.assign(state.clients.start, federation), 0)
    present = server.participants(federation)
    members = members_of(clusters, federation, num_clusters)
    exist = members.any(axis=2) & present[:, None]
    all_exist, ever = server.gather(exist), ever_participating(federation)
    local = Refining(
        num_local=state.clients.num_local,
        clusters=clusters,
        models=fedcref_models.zeros(setup.models, federation),
        is_stale=jnp.ones(num_clients, bool),
        is_active=jnp.ones(num_clients, bool),
        num_refinements=jnp.zeros(num_clients, jnp.int32),
        communities=fedcref_models.all_alone(clusters, num_clusters),
    )
    return State(begin(all_exist.sum(), ever.sum()), local)


def communities(state: State) -> Any:
    """Returns which clients' clusters are the same; () before the refinement.

    Args:
        state: the current state.

    Returns:
        The `Communities`, or ().
    """
    return () if isinstance(state.clients, Starting) else state.clients.communities


def assign(start: Start, state: State, federation: Federation) -> Int[Array, "M N"]:
    """Returns the cluster of every example, numbered within its client.

    Args:
        start: the start, which assigns examples before the refinement.
        state: the current state.
        federation: the clients' data.

    Returns:
        The clusters [M, N].
    """
    if isinstance(state.clients, Starting):
        return start.assign(state.clients.start, federation)
    return state.clients.clusters
