"""UIFCA: one generative model per cluster; an example joins its most likely model.

Federated Unsupervised Clustering with Generative Models
    Jichan Chung, Kangwook Lee, Kannan Ramchandran. 2022.

No code is public. This version follows the FedCRef paper's description of its own
version (section 6.1 and footnote 3). Points that neither paper states are marked as our
choice.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from fcjax import losses
from fcjax.algorithms.rounds import all_rounds
from fcjax.data.augment import to_float
from fcjax.federated import clients, server, training
from fcjax.nn.generative import Flow
from fcjax.types import (
    FederatedClustering,
    Federation,
    Pool,
    PRNGKey,
    PyTree,
    Scalar,
    State,
)

BATCH = 512
"""Number of examples whose likelihoods are computed in one batch."""


class Server(NamedTuple):
    """The server's state."""

    flows: PyTree
    """The variables theta_1, ..., theta_K of the flows, [K, ...]."""
    start: PyTree
    """The server's state of k-FED."""


class Local(NamedTuple):
    """The clients' state: on which examples a client trains each flow."""

    start: PyTree
    """The clients' state of k-FED."""
    assignments: Any = ()
    """[M, N], the flow of each example in this cluster round; () before training."""
    assigned_in: Any = ()
    """[M], the cluster round in which each client made its assignments."""


class Setup(NamedTuple):
    """The networks and settings that all rounds share; see `uifca`."""

    settings: Any
    """An `fcjax.methods.UIFCA` with one value per setting."""
    flow: Flow
    optimizer: optax.GradientTransformation
    start: FederatedClustering
    """k-FED, which gives the first assignments."""
    num_clusters: int
    levels: int | None
    """Number of values of a pixel, see `losses.dequantize`."""


def uifca(
    settings: Any,
    flow: Flow,
    optimizer: optax.GradientTransformation,
    start: FederatedClustering,
    *,
    num_clusters: int,
    weight_decay: Scalar = 1e-4,
    levels: int | None = 256,
) -> FederatedClustering:
    """Builds UIFCA: clients train one flow per cluster, the server averages each flow.

    Training consists of cluster rounds, each with several communication rounds. In its
    first round of a cluster round, a client assigns each of its examples to the flow
    with the highest likelihood. In every round, it trains each flow on the examples
    assigned to it. The server averages each flow, weighted by the clients' numbers of
    these examples. A flow without examples stays unchanged.

    Args:
        settings: an `fcjax.methods.UIFCA` with one value per setting. A client goes
            through the examples of a flow again and again, in a random order that is
            new in each round. If a flow has fewer examples than a batch, the batch has
            all of them.
        flow: the generative model of one cluster.
        optimizer: optimizer of a client. Its state starts again for every flow in every
            round. This is our choice: to keep it would need memory for twice K flows
            per client.
        start: k-FED, from `kfed`. Its clusters are the assignments of the first cluster
            round, which is our choice. With random assignments, all flows see similar
            data and may stay equal.
        num_clusters: number K of clusters.
        weight_decay: weight lambda of the squared kernels in the loss, at least 0.
        levels: number of values of a pixel, see `losses.dequantize`. With None,
            examples are not quantized, and the flows are trained on them unchanged.

    Returns:
        The method, with stages `start` (k-FED) and `train`. The metrics of `train` are:

        * `loss`: negative log-likelihood in nats per dimension, the mean over the
          assigned examples of the participating clients.
        * `participants`: number of participating clients.
        * `occupied`: number of flows with at least one example.
        * the traffic: all K flows up and down (`up_flows`, `down_flows`), and k-FED's
          centroids down to clients that missed the first stage.

        The embedding of an example is the vector of its log-likelihoods under the K
        flows, minus their mean, scaled to unit length. Its cluster is the flow with the
        largest log-likelihood; before training, it is k-FED's cluster.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.algorithms.kfed import kfed
        >>> from fcjax.methods import KFed, UIFCA
        >>> start = kfed(KFed(local_clusters=3).plain(), num_clusters=3)
        >>> flow = nn.realnvp((6,), hidden=(8,))
        >>> parts = flow, optax.adam(1e-4), start
        >>> method = uifca(UIFCA().plain(), *parts, num_clusters=3, levels=None)
        >>> [(stage.name, stage.num_rounds) for stage in method.stages]
        [('start', 1), ('train', 10)]
    """
    decay = optax.add_decayed_weights(2 * weight_decay, mask=kernels)
    optimizer = optax.chain(decay, optimizer)
    setup = Setup(settings, flow, optimizer, start, num_clusters, levels)
    num_rounds = settings.cluster_rounds * settings.communication_rounds
    train = partial(train_round, setup)
    return FederatedClustering(
        init=partial(initial_state, setup),
        stages=(
            all_rounds("start", partial(start_round, setup), 1),
            all_rounds("train", train, num_rounds, begin=begin_training),
        ),
        embed=partial(embed, setup),
        assign=partial(assign, setup),
    )


def start_round(setup: Setup, key: PRNGKey, state: State, federation: Federation):
    """Runs k-FED, the round before the first cluster round.

    Args:
        setup: networks and settings of the method.
        key: random key of the round.
        state: the state before the round.
        federation: the clients' data.

    Returns:
        The state after the round, and its metrics.
    """
    (stage,) = setup.start.stages
    result, metrics = stage.round(key, start_of(state), federation)
    server = state.server._replace(start=result.server)
    return State(server, Local(result.clients)), metrics


def begin_training(_: PRNGKey, state: State, federation: Federation) -> State:
    """Returns the state at the start of training, in which no example is assigned.

    Args:
        state: the state after k-FED.
        federation: the clients' data.

    Returns:
        The state before the first communication round.
    """
    unassigned = jnp.full(federation.indices.shape, -1, jnp.int32)
    never = jnp.full(len(unassigned), -1, jnp.int32)
    return state._replace(clients=Local(state.clients.start, unassigned, never))


def train_round(setup: Setup, key: PRNGKey, state: State, federation: Federation):
    """Runs a communication round.

    Clients that have not made assignments in this cluster round assign their examples.
    Then each flow is trained on its examples.

    Args:
        setup: networks and settings of the method.
        key: random key of the round.
        state: the state before the round.
        federation: the clients' data.

    Returns:
        The state after the round, and its metrics.
    """
    old_server: Server = state.server
    local: Local = state.clients
    _, train_key = jax.random.split(key)
    present = server.participants(federation)
    number = federation.now.stage_round // setup.settings.communication_rounds
    assigning = present & (local.assigned_in < number)
    first_clusters = setup.start.assign(start_of(state), federation)

    def most_likely(*_):
        return log_likelihoods(setup, old_server.flows, federation).argmax(axis=-1)

    # In most rounds no client needs likelihoods. A loop without iterations skips them
    # also under `vmap`, where a condition would compute both branches.
    num_iterations = (number > 0) & assigning.any()
    clusters = lax.fori_loop(0, num_iterations.astype(int), most_likely, first_clusters)
    assignments = clients.keep_absent(assigning, clusters, local.assignments)

    train = partial(train_flow, setup, train_key, assignments, present, federation)
    numbered_flows = (jnp.arange(setup.num_clusters), old_server.flows)
    flows, totals, counts = lax.map(train, numbered_flows)
    late = assigning & (number == 0) & ~local.start.answered
    participating, late = server.gather((present, late))
    dimensions = math.prod(federation.pool.shape[1:])
    metrics = {
        "loss": totals.sum() / counts.sum() / dimensions,
        "participants": participating.sum(),
        "occupied": jnp.sum(counts > 0),
        **server.traffic(participating, up={"flows": flows}, down={"flows": flows}),
        **server.traffic(late, up={}, down={"centroids": old_server.start.centroids}),
    }
    assigned_in = jnp.where(assigning, number, local.assigned_in)
    new_server = old_server._replace(flows=flows)
    return State(new_server, Local(local.start, assignments, assigned_in)), metrics


def train_flow(
    setup: Setup,
    key: PRNGKey,
    assignments: Int[Array, "M N"],
    present: Bool[Array, "M"],
    federation: Federation,
    flow: tuple[Int[Array, ""], PyTree],
) -> tuple[PyTree, Float[Array, ""], Float[Array, ""]]:
    """Trains one flow on the clients and averages it.

    Args:
        setup: networks and settings of the method.
        key: random key of the round.
        assignments: flow of each example [M, N].
        present: [M], True at participating clients.
        federation: the clients' data.
        flow: the number of the flow and its variables.

    Returns:
        The averaged flow, the sum of the losses of its examples, and their number.
    """
    number, variables = flow
    num_clients = len(present)
    members = federation.mask & (assignments == number)
    trained, values = clients.for_each(
        partial(client_round, setup, federation.pool),
        clients.keys(jax.random.fold_in(key, number), num_clients),
        clients.repeat(variables, num_clients),
        federation.indices,
        members,
    )
    counts = present * members.sum(axis=1).astype(float)
    mean, (counts, values) = server.receive(trained, counts, (counts, values))
    total = jnp.sum(counts * values, where=counts > 0)
    new_flow = jax.tree.map(partial(jnp.where, counts.sum() > 0), mean, variables)
    return new_flow, total, counts.sum()


def client_round(
    setup: Setup,
    pool: Pool,
    key: PRNGKey,
    flow: PyTree,
    rows: Int[Array, "N"],
    members: Bool[Array, "N"],
) -> tuple[PyTree, Float[Array, ""]]:
    """Trains one flow on one client.

    Args:
        setup: networks and settings of the method.
        pool: all examples [P, *F].
        key: random key of this flow and client.
        flow: variables of the flow.
        rows: indices of the client's examples in the pool [N].
        members: [N], True at the examples assigned to the flow.

    Returns:
        The variables after the steps, and the mean loss of the steps. Without examples,
        no step is taken.
    """
    order_key, step_key = jax.random.split(key)
    count = members.sum()
    order = training.shuffle(order_key, members)
    positions = jnp.arange(min(setup.settings.batch_size, len(rows)))

    def loss(key, variables, batch_indices, counted):
        values = -log_likelihood(setup, variables, pool[rows[batch_indices]], key)
        return jnp.sum(values, where=counted) / counted.sum(), variables

    def step(i, carry):
        client, total = carry
        key = jax.random.fold_in(step_key, i)
        batch_indices = order[(i * len(positions) + positions) % jnp.maximum(count, 1)]
        # The mask counts each example once if a batch has more positions than examples.
        client, value = training.step(
            *(key, client, loss, batch_indices, positions < count),
            optimizer=setup.optimizer,
        )
        return client, total + value

    client = clients.Client(flow, setup.optimizer.init(flow["params"]))
    num_steps = jnp.where(count > 0, setup.settings.local_steps, 0)
    client, total = lax.fori_loop(0, num_steps, step, (client, 0.0))
    return client.variables, total / setup.settings.local_steps


def log_likelihood(
    setup: Setup,
    flow: PyTree,
    examples: Shaped[Array, "B *F"],
    key: PRNGKey | None = None,
) -> Float[Array, "B"]:
    """Returns the log-likelihood of each example under one flow.

    Args:
        setup: networks and settings of the method.
        flow: variables of the flow.
        examples: examples [B, *F].
        key: random key of the dequantization noise. Without a key, the result is
            deterministic.

    Returns:
        The log-likelihoods of the (dequantized) examples [B], in nats.
    """
    y, log_det = losses.dequantize(key, to_float(examples), levels=setup.levels)
    z, flow_log_det = setup.flow.forward(flow, y)
    return losses.flow_log_likelihood(z, log_det + flow_log_det)


def log_likelihoods(
    setup: Setup, flows: PyTree, federation: Federation
) -> Float[Array, "M N K"]:
    """Returns the log-likelihoods of all examples under all flows.

    Args:
        setup: networks and settings of the method.
        flows: variables of the flows [K, ...].
        federation: the clients' data.

    Returns:
        The log-likelihoods [M, N, K], in nats.
    """

    def batch(rows):
        x = federation.pool[rows]
        return lax.map(lambda flow: log_likelihood(setup, flow, x), flows).T

    on_client = partial(training.in_batches, batch, batch_size=BATCH)
    return clients.for_each(on_client, federation.indices)


def initial_state(setup: Setup, key: PRNGKey, federation: Federation) -> State:
    """Returns the initial state: random flows and the initial state of k-FED.

    Args:
        setup: networks and settings of the method.
        key: random key.
        federation: the clients' data.

    Returns:
        The state before the first round.
    """
    flow_key, start_key = jax.random.split(key)
    flows = jax.vmap(setup.flow.init)(jax.random.split(flow_key, setup.num_clusters))
    kfed_state = setup.start.init(start_key, federation)
    return State(Server(flows, kfed_state.server), Local(kfed_state.clients))


def start_of(state: State) -> State:
    """Returns the part of the state that belongs to k-FED.

    Args:
        state: a state of UIFCA.

    Returns:
        The state of k-FED.
    """
    return State(state.server.start, state.clients.start)


def embed(setup: Setup, state: State, federation: Federation) -> Float[Array, "M N K"]:
    """Returns the log-likelihoods minus their mean, scaled to unit length.

    Args:
        setup: networks and settings of the method.
        state: the current state.
        federation: the clients' data.

    Returns:
        The embeddings [M, N, K].
    """
    likelihoods = log_likelihoods(setup, state.server.flows, federation)
    return losses.normalize(likelihoods - likelihoods.mean(axis=-1, keepdims=True))


def assign(setup: Setup, state: State, federation: Federation) -> Int[Array, "M N"]:
    """Returns the most likely flow of every example; before training, k-FED's cluster.

    Args:
        setup: networks and settings of the method.
        state: the current state.
        federation: the clients' data.

    Returns:
        The clusters [M, N].
    """
    if isinstance(state.clients.assignments, tuple):
        return setup.start.assign(start_of(state), federation)
    return log_likelihoods(setup, state.server.flows, federation).argmax(axis=-1)


def kernels(params: PyTree) -> PyTree:
    """Returns which parameters are kernels, and not biases.

    Args:
        params: parameters of a flow.

    Returns:
        A tree like `params`, True at kernels.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path[-1].key == "kernel", params
    )
