"""UIFCA: a generative model a cluster, each example with the one that likes it best.

Federated Unsupervised Clustering with Generative Models
    Jichan Chung, Kangwook Lee, Kannan Ramchandran. 2022.
No code is public. What the FedCRef paper says of its own version (section 6.1, footnote
3) is followed; what neither says is a [choice].
"""

import math
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int

from fcjax import clients, losses, server, training
from fcjax.algorithms.kfed import kfed
from fcjax.algorithms.rounds import all_rounds
from fcjax.data.augment import to_float
from fcjax.models.realnvp import Flow
from fcjax.types import (
    FederatedClustering,
    Federation,
    PRNGKey,
    PyTree,
    Scalar,
    State,
)

BATCH = 512
"""Examples whose likelihoods are taken at a time."""


class Server(NamedTuple):
    flows: PyTree  # theta_1 .. theta_K, [K, ...]
    start: PyTree  # of k-FED; () where the start is random
    num_rounds: Int[Array, ""]  # rounds so far, over both stages


class Local(NamedTuple):
    """Which of its examples a client trains each flow on."""

    assignments: Int[Array, "M N"]  # of this cluster round; -1 before the first
    assigned_in: Int[Array, "M"]  # the cluster round that they are of; -1 before
    start: PyTree  # of k-FED; () where the start is random


def uifca(
    flow: Flow,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int,
    cluster_rounds: int = 20,
    communication_rounds: int = 40,
    local_steps: int = 100,
    batch_size: int = 128,
    weight_decay: Scalar = 1e-4,
    levels: int | None = 256,
    start: Literal["k-fed", "random"] = "k-fed",
    unit_length: bool = True,
) -> FederatedClustering:
    """Builds UIFCA.

    In the first round of a cluster round in which a client answers, it assigns each of
    its examples to the flow of the highest likelihood. In every round it trains every
    flow on the examples that it assigned to it, and the server averages each flow,
    weighted by how many those are; a flow that nobody has examples for stays.

    Args:
        flow: the generative model of a cluster.
        optimizer: of a client. [choice] Its state begins anew for every flow in every
            round: kept, it would be twice K flows on each client.
        num_clusters: K.
        cluster_rounds: T.
        communication_rounds: tau, in each cluster round.
        local_steps: M, of each flow in a round. A client goes through the examples of
            a flow in a random order of the round, again and again.
        batch_size: examples a step; all that a flow has, where those are fewer.
        weight_decay: of the kernels' squares in the loss (lambda).
        levels: how many values a pixel has, see `losses.dequantize`; None for examples
            that are not quantised, on which the flows are trained as they are.
        start: where the examples are in the first cluster round. `k-fed` is [choice] a
            round of k-FED before the first; `random` draws each alone, by which all
            flows see the same and may never part.
        unit_length: k-FED clusters rows of L2 norm 1; False takes them as they are.

    Returns:
        The method, stages `start` (where it is k-FED's) and `train`. Metrics of
        training are the `loss` (negative log-likelihood in nats a dimension, the mean
        over the assigned examples of the clients that answered), `participants`,
        `occupied` (flows that somebody had examples for) and the traffic: all K flows
        both ways (`up_flows`, `down_flows`), and k-FED's centroids down to those that
        missed it. An example's embedding is how its log-likelihoods under the K flows
        lie about their mean, at unit length; its cluster is the largest of them, and
        k-FED's before any training.

    Examples:
        >>> import optax
        >>> from fcjax import models
        >>> flow = models.realnvp((6,), hidden=(8,))
        >>> method = uifca(flow, optax.adam(1e-4), num_clusters=3, levels=None)
        >>> [(stage.name, stage.num_rounds) for stage in method.stages]
        [('start', 1), ('train', 800)]
    """
    rounds_before = int(start == "k-fed")
    first = kfed(
        num_clusters=num_clusters,
        local_clusters=num_clusters,
        unit_length=unit_length,
    )
    optimizer = optax.chain(
        optax.add_decayed_weights(2 * weight_decay, mask=kernels), optimizer
    )

    def init(key: PRNGKey, federation: Federation) -> State:
        flow_key, start_key = jax.random.split(key)
        num_clients = len(federation.indices)
        flows = jax.vmap(flow.init)(jax.random.split(flow_key, num_clusters))
        begun = State((), ())
        if start == "k-fed":
            begun = first.init(start_key, federation)
        unassigned = jnp.full(federation.indices.shape, -1, jnp.int32)
        never = jnp.full(num_clients, -1, jnp.int32)
        return State(
            Server(flows, begun.server, jnp.int32(0)),
            Local(unassigned, never, begun.clients),
        )

    def start_of(state: State) -> State:
        return State(state.server.start, state.clients.start)

    def start_round(key: PRNGKey, state: State, federation: Federation):
        found, metrics = first.stages[0].round(key, start_of(state), federation)
        num_rounds = state.server.num_rounds + 1
        return State(
            state.server._replace(start=found.server, num_rounds=num_rounds),
            state.clients._replace(start=found.clients),
        ), metrics

    def train_round(key: PRNGKey, state: State, federation: Federation):
        before: Server = state.server
        local: Local = state.clients
        draw_key, train_key = jax.random.split(key)
        num_clients = len(federation.indices)
        present = server.participants(federation, before.num_rounds)
        number = (before.num_rounds - rounds_before) // communication_rounds

        assigning = present & (local.assigned_in < number)
        begun = first_assignments(draw_key, state, federation)

        def likeliest(_, clusters):
            del clusters
            return log_likelihoods(before.flows, federation).argmax(axis=-1)

        # In most rounds nobody needs them: a loop of no pass is none in a grid, too,
        # where both branches of a condition would run.
        num_passes = (number > 0) & assigning.any()
        found = lax.fori_loop(0, num_passes.astype(int), likeliest, begun)
        assignments = clients.keep_absent(assigning, found, local.assignments)

        def train_flow(k, variables):
            chosen = federation.mask & (assignments == k)
            trained, values = clients.for_each(
                partial(train, federation.pool),
                clients.keys(jax.random.fold_in(train_key, k), num_clients),
                clients.repeat(variables, num_clients),
                federation.indices,
                chosen,
            )
            counts = present * chosen.sum(axis=1).astype(float)
            mean, (counts, values) = server.receive(trained, counts, (counts, values))
            total = jnp.sum(counts * values, where=counts > 0)
            kept = jax.tree.map(partial(jnp.where, counts.sum() > 0), mean, variables)
            return kept, total, counts.sum()

        flows, totals, counts = lax.map(
            lambda pair: train_flow(*pair), (jnp.arange(num_clusters), before.flows)
        )
        late = assigning & (number == 0)
        message = {"flows": flows}
        once = {}
        if start == "k-fed":
            late &= ~local.start.answered
            once = {"centroids": before.start.centroids}
        answered, late = server.gather((present, late))
        dimensions = math.prod(federation.pool.shape[1:])
        metrics = {
            "loss": totals.sum() / counts.sum() / dimensions,
            "participants": answered.sum(),
            "occupied": jnp.sum(counts > 0),
            **server.traffic(answered, up=message, down=message),
            **server.traffic(late, up={}, down=once),
        }
        assigned_in = jnp.where(assigning, number, local.assigned_in)
        return State(
            before._replace(flows=flows, num_rounds=before.num_rounds + 1),
            local._replace(assignments=assignments, assigned_in=assigned_in),
        ), metrics

    def first_assignments(key, state: State, federation: Federation):
        if start == "k-fed":
            return first.assign(start_of(state), federation)
        num_clients, num_slots = federation.indices.shape
        return jax.vmap(
            lambda key: jax.random.randint(key, (num_slots,), 0, num_clusters)
        )(clients.keys(key, num_clients))

    def train(pool, key, variables, rows, chosen):
        """Some steps of a client on a flow, none without examples."""
        order_key, step_key = jax.random.split(key)
        count = chosen.sum()
        order = training.shuffle(order_key, chosen)
        places = jnp.arange(min(batch_size, len(rows)))

        def loss(key, variables, slots, counted):
            values = -log_likelihood(variables, pool[rows[slots]], key)
            return jnp.sum(values, where=counted) / counted.sum(), variables

        def step(i, carry):
            client, total = carry
            client, value = training.step(
                jax.random.fold_in(step_key, i),
                client,
                loss,
                order[(i * len(places) + places) % jnp.maximum(count, 1)],
                # Not one example twice: those of a short batch are all that there are.
                places < count,
                optimizer=optimizer,
            )
            return client, total + value

        begun = clients.Client(variables, optimizer.init(variables["params"]))
        num_steps = jnp.where(count > 0, local_steps, 0)
        client, total = lax.fori_loop(0, num_steps, step, (begun, 0.0))
        return client.variables, total / local_steps

    def log_likelihood(variables, examples, key=None) -> Float[Array, "B"]:
        """Of the examples themselves; without a key a function of nothing else."""
        y, log_det = losses.dequantize(key, to_float(examples), levels=levels)
        z, of_flow = flow.forward(variables, y)
        return losses.flow_log_likelihood(z, log_det + of_flow)

    def log_likelihoods(flows, federation: Federation) -> Float[Array, "M N K"]:
        def batch(rows):
            x = federation.pool[rows]
            return lax.map(lambda each: log_likelihood(each, x), flows).T

        return clients.for_each(
            partial(training.in_batches, batch, batch_size=BATCH),
            federation.indices,
        )

    def embed(state: State, federation: Federation):
        found = log_likelihoods(state.server.flows, federation)
        return losses.normalize(found - found.mean(axis=-1, keepdims=True))

    def assign(state: State, federation: Federation):
        likeliest = log_likelihoods(state.server.flows, federation).argmax(axis=-1)
        if start == "random":
            return likeliest
        trained = state.server.num_rounds > rounds_before
        return jnp.where(trained, likeliest, first.assign(start_of(state), federation))

    total_rounds = cluster_rounds * communication_rounds
    stages = (
        all_rounds("start", start_round, rounds_before),
        all_rounds("train", train_round, total_rounds),
    )
    stages = tuple(stage for stage in stages if stage.num_rounds)
    return FederatedClustering(init, stages, embed, assign)


def kernels(params: PyTree) -> PyTree:
    """Returns which parameters are weights and no biases."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path[-1].key == "kernel", params
    )
