"""UIFCA: a generative model a cluster, each example with the one that likes it best.

Federated Unsupervised Clustering with Generative Models
    Jichan Chung, Kangwook Lee, Kannan Ramchandran. 2022.
No code is public. What the FedCRef paper says of its own version (section 6.1, footnote
3) is followed; what neither says is a [choice].
"""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int

from fcjax import losses
from fcjax.algorithms.rounds import all_rounds
from fcjax.data.augment import to_float
from fcjax.federated import clients, server, training
from fcjax.nn.generative import Flow
from fcjax.types import FederatedClustering, Federation, PRNGKey, PyTree, Scalar, State

BATCH = 512
"""Examples whose likelihoods are taken at a time."""


class Server(NamedTuple):
    flows: PyTree  # theta_1 .. theta_K, [K, ...]
    start: PyTree  # of k-FED


class Local(NamedTuple):
    """Which of its examples a client trains each flow on."""

    start: PyTree  # of k-FED
    assignments: Any = ()  # [M, N], of this cluster round; () before training
    assigned_in: Any = ()  # [M], the cluster round that they are of


class Setup(NamedTuple):
    """What all rounds share; see `uifca`."""

    settings: Any
    flow: Flow
    optimizer: optax.GradientTransformation
    start: FederatedClustering
    num_clusters: int
    levels: int | None


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
    """Builds UIFCA.

    In the first round of a cluster round in which a client answers, it assigns each of
    its examples to the flow of the highest likelihood. In every round it trains every
    flow on the examples that it assigned to it, and the server averages each flow,
    weighted by how many those are; a flow that nobody has examples for stays.

    Args:
        settings: one value per setting of `fcjax.methods.UIFCA`. A client goes through
            the examples of a flow in a random order of the round, again and again; a
            batch has all that a flow has, where those are fewer.
        flow: the generative model of a cluster.
        optimizer: of a client. [choice] Its state begins anew for every flow in every
            round: kept, it would be twice K flows on each client.
        start: `kfed`, whose round says where the examples are in the first cluster
            round [choice]. From random clusters all flows see the same and may never
            part.
        num_clusters: K.
        weight_decay: of the kernels' squares in the loss (lambda).
        levels: how many values a pixel has, see `losses.dequantize`; None for examples
            that are not quantised, on which the flows are trained as they are.

    Returns:
        The method, stages `start`, which is k-FED's, and `train`. Metrics of training
        are the `loss` (negative log-likelihood in nats a dimension, the mean over the
        assigned examples of the clients that answered), `participants`, `occupied`
        (flows that somebody had examples for) and the traffic: all K flows both ways
        (`up_flows`, `down_flows`), and k-FED's centroids down to those that missed it.
        An example's embedding is how its log-likelihoods under the K flows lie about
        their mean, at unit length; its cluster is the largest of them, and k-FED's
        before any training.

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
    """The round of k-FED before the first cluster round."""
    (stage,) = setup.start.stages
    found, metrics = stage.round(key, start_of(state), federation)
    server = state.server._replace(start=found.server)
    return State(server, Local(found.clients)), metrics


def begin_training(_: PRNGKey, state: State, federation: Federation) -> State:
    """Returns the state in which no example is assigned."""
    unassigned = jnp.full(federation.indices.shape, -1, jnp.int32)
    never = jnp.full(len(unassigned), -1, jnp.int32)
    return state._replace(clients=Local(state.clients.start, unassigned, never))


def train_round(setup: Setup, key: PRNGKey, state: State, federation: Federation):
    """A communication round: clients that have not yet done so in this cluster round
    assign their examples; then each flow is trained on what is assigned to it.
    """
    before: Server = state.server
    local: Local = state.clients
    _, train_key = jax.random.split(key)
    present = server.participants(federation)
    number = federation.now.stage_round // setup.settings.communication_rounds
    assigning = present & (local.assigned_in < number)
    begun = setup.start.assign(start_of(state), federation)

    def likeliest(*_):
        return log_likelihoods(setup, before.flows, federation).argmax(axis=-1)

    # In most rounds nobody needs them: a loop of no pass is none in a grid, too, where
    # both branches of a condition would run.
    num_passes = (number > 0) & assigning.any()
    found = lax.fori_loop(0, num_passes.astype(int), likeliest, begun)
    assignments = clients.keep_absent(assigning, found, local.assignments)

    train = partial(train_flow, setup, train_key, assignments, present, federation)
    numbered = (jnp.arange(setup.num_clusters), before.flows)
    flows, totals, counts = lax.map(train, numbered)
    late = assigning & (number == 0) & ~local.start.answered
    answered, late = server.gather((present, late))
    dimensions = math.prod(federation.pool.shape[1:])
    metrics = {
        "loss": totals.sum() / counts.sum() / dimensions,
        "participants": answered.sum(),
        "occupied": jnp.sum(counts > 0),
        **server.traffic(answered, up={"flows": flows}, down={"flows": flows}),
        **server.traffic(late, up={}, down={"centroids": before.start.centroids}),
    }
    assigned_in = jnp.where(assigning, number, local.assigned_in)
    after = before._replace(flows=flows)
    return State(after, Local(local.start, assignments, assigned_in)), metrics


def train_flow(setup: Setup, key, assignments, present, federation: Federation, flow):
    """Returns the mean of a flow, given with its number, that clients have trained on
    the examples assigned to it, the sum of these' losses, and how many they are.
    """
    number, flow = flow
    num_clients = len(present)
    chosen = federation.mask & (assignments == number)
    trained, values = clients.for_each(
        partial(client_round, setup, federation.pool),
        clients.keys(jax.random.fold_in(key, number), num_clients),
        clients.repeat(flow, num_clients),
        federation.indices,
        chosen,
    )
    counts = present * chosen.sum(axis=1).astype(float)
    mean, (counts, values) = server.receive(trained, counts, (counts, values))
    total = jnp.sum(counts * values, where=counts > 0)
    kept = jax.tree.map(partial(jnp.where, counts.sum() > 0), mean, flow)
    return kept, total, counts.sum()


def client_round(setup: Setup, pool, key: PRNGKey, flow: PyTree, rows, chosen):
    """Returns a flow after some steps of a client, none without examples, and the mean
    loss of them.
    """
    order_key, step_key = jax.random.split(key)
    count = chosen.sum()
    order = training.shuffle(order_key, chosen)
    places = jnp.arange(min(setup.settings.batch_size, len(rows)))

    def loss(key, variables, slots, counted):
        values = -log_likelihood(setup, variables, pool[rows[slots]], key)
        return jnp.sum(values, where=counted) / counted.sum(), variables

    def step(i, carry):
        client, total = carry
        key = jax.random.fold_in(step_key, i)
        slots = order[(i * len(places) + places) % jnp.maximum(count, 1)]
        # Not one example twice: those of a short batch are all that there are.
        client, value = training.step(
            *(key, client, loss, slots, places < count), optimizer=setup.optimizer
        )
        return client, total + value

    begun = clients.Client(flow, setup.optimizer.init(flow["params"]))
    num_steps = jnp.where(count > 0, setup.settings.local_steps, 0)
    client, total = lax.fori_loop(0, num_steps, step, (begun, 0.0))
    return client.variables, total / setup.settings.local_steps


def log_likelihood(setup: Setup, flow, examples, key=None) -> Float[Array, "B"]:
    """Of the examples themselves; without a key a function of nothing else."""
    y, log_det = losses.dequantize(key, to_float(examples), levels=setup.levels)
    z, of_flow = setup.flow.forward(flow, y)
    return losses.flow_log_likelihood(z, log_det + of_flow)


def log_likelihoods(setup: Setup, flows, federation) -> Float[Array, "M N K"]:
    """Of all examples under all flows."""

    def batch(rows):
        x = federation.pool[rows]
        return lax.map(lambda flow: log_likelihood(setup, flow, x), flows).T

    each = partial(training.in_batches, batch, batch_size=BATCH)
    return clients.for_each(each, federation.indices)


def initial_state(setup: Setup, key: PRNGKey, federation: Federation) -> State:
    """Returns the state before the first round."""
    flow_key, start_key = jax.random.split(key)
    flows = jax.vmap(setup.flow.init)(jax.random.split(flow_key, setup.num_clusters))
    begun = setup.start.init(start_key, federation)
    return State(Server(flows, begun.server), Local(begun.clients))


def start_of(state: State) -> State:
    """Returns the state of k-FED."""
    return State(state.server.start, state.clients.start)


def embed(setup: Setup, state: State, federation: Federation) -> Float[Array, "M N K"]:
    """As in `FederatedClustering`: log-likelihoods about their mean, at unit length."""
    found = log_likelihoods(setup, state.server.flows, federation)
    return losses.normalize(found - found.mean(axis=-1, keepdims=True))


def assign(setup: Setup, state: State, federation: Federation) -> Int[Array, "M N"]:
    """As in `FederatedClustering`: the likeliest flow, before any training k-FED's."""
    if isinstance(state.clients.assignments, tuple):
        return setup.start.assign(start_of(state), federation)
    return log_likelihoods(setup, state.server.flows, federation).argmax(axis=-1)


def kernels(params: PyTree) -> PyTree:
    """Returns which parameters are weights and no biases."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path[-1].key == "kernel", params
    )
