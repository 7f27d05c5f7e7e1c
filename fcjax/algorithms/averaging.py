"""Federated averaging of networks in named parts, trained on two views.

In each round the clients train on two views of their examples, and the server averages
their networks. FedMCC, CC, FedU, FedEMA, FedSimSiam and FedSimCLR share these rounds.

A network consists of named parts, such as `encoder` and `projector`. A stage trains and
averages some of the parts; the other parts are frozen. A part may have a target network
(a moving average of the online network), which stays on the client.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from fcjax.algorithms.rounds import all_rounds, keep_state
from fcjax.data.augment import Augment, to_float
from fcjax.federated import clients, server, training
from fcjax.nn.layers import microbatched
from fcjax.privacy.gaussian import Updates
from fcjax.types import (
    FederatedClustering,
    Federation,
    Network,
    Pool,
    PRNGKey,
    PyTree,
    Scalar,
    Stage,
    State,
)

# --- Parts

Parts = dict[str, PyTree]
"""The variables of several networks: {kind: {part: tree}}, where a kind is "params" or
"batch_stats" and a part is the name of a network."""
Views = tuple[Float[Array, "B *F"], Float[Array, "B *F"]]
"""Two augmented views of a batch of examples."""


class Networks(NamedTuple):
    """Networks by the name of their part, and the number of examples per microbatch."""

    named: Mapping[str, Network]
    """Networks by part: encoder, projector, predictor, cluster_projector."""
    microbatch: int | None = None
    """Number of examples per microbatch, see `fcjax.nn.layers.microbatched`; None takes
    whole batches."""


def initialize(
    key: PRNGKey, networks: Mapping[str, Network], x: Float[Array, "1 *F"]
) -> Parts:
    """Initializes a chain of networks: each network gets the output of the previous.

    Args:
        key: the key of all random draws.
        networks: the networks by part, in the order of the chain.
        x: an input of the first network.

    Returns:
        The variables of the networks.
    """
    parts: Parts = {}
    for number, (name, network) in enumerate(networks.items()):
        variables = network.init(jax.random.fold_in(key, number), x)
        x, _ = network.apply(variables, x, train=False)
        parts = put(parts, name, variables)
    return parts


def forward(
    networks: Networks,
    parts: Parts,
    path: tuple[str, ...],
    x: Float[Array, "B *F"],
    mask: Bool[Array, "B"],
    *,
    train: bool = True,
) -> tuple[Float[Array, "B D"], Parts]:
    """Applies a chain of parts.

    Args:
        networks: the networks by part.
        parts: the variables of the networks.
        path: the names of the parts to apply, in this order.
        x: the inputs of the first part.
        mask: False at padding.
        train: whether batch norms use the statistics of the batch.

    Returns:
        The outputs of the last part, and the variables with new batch statistics.
    """
    network = chain({name: networks.named[name] for name in path})
    # The chain is microbatched as a whole, so that intermediate outputs need no memory.
    if networks.microbatch is not None:
        network = microbatched(network, networks.microbatch)
    x, variables = network.apply(pick(parts, path), x, train=train, mask=mask)
    return x, merge(parts, variables)


def chain(named: Mapping[str, Network]) -> Network:
    """Chains networks: each network gets the output of the previous one.

    Args:
        named: the networks by part, in the order of the chain.

    Returns:
        A single network. Its variables are those of all parts, see `Parts`.
    """

    def init(key, x):
        return initialize(key, named, x)

    def apply(variables, x, *, train, mask=None):
        for name, network in named.items():
            of_part = part(variables, name)
            x, of_part = network.apply(of_part, x, train=train, mask=mask)
            variables = put(variables, name, of_part)
        return x, variables

    return Network(init, apply)


def forward_views(
    networks: Networks,
    parts: Parts,
    path: tuple[str, ...],
    views: Views,
    mask: Bool[Array, "B"],
    *,
    train: bool = True,
) -> tuple[tuple[Float[Array, "B D"], Float[Array, "B D"]], Parts]:
    """Applies a chain of parts to both views; each view has its own batch statistics.

    Args:
        networks: the networks by part.
        parts: the variables of the networks.
        path: the names of the parts to apply, in this order.
        views: two views of a batch.
        mask: False at padding.
        train: whether batch norms use the statistics of the batch.

    Returns:
        The outputs of both views, and the variables with new batch statistics.
    """
    a, parts = forward(networks, parts, path, views[0], mask, train=train)
    b, parts = forward(networks, parts, path, views[1], mask, train=train)
    return (a, b), parts


def target_networks(online: Parts, target: Mapping[str, PyTree]) -> Parts:
    """Returns the variables of the target networks, without gradients.

    Args:
        online: the variables of the online networks. Their batch statistics complete
            the target networks, but training does not use them.
        target: the parameters of the target networks, by part.

    Returns:
        The variables of the target networks.
    """
    return jax.lax.stop_gradient(merge(online, {"params": target}))


def part(parts: Parts, name: str) -> PyTree:
    """Returns the variables of one part.

    Args:
        parts: the variables by kind and part, see `Parts`.
        name: the name of the part.

    Returns:
        The variables of the part, by kind. Kinds that the part does not have are left
        out.
    """
    return {kind: named[name] for kind, named in parts.items() if name in named}


def put(parts: Parts, name: str, variables: PyTree) -> Parts:
    """Returns the parts with new variables of one part.

    Args:
        parts: the variables by kind and part, see `Parts`.
        name: the name of the part.
        variables: the new variables of the part, by kind.

    Returns:
        New `Parts`. The variables of all other parts are unchanged.
    """
    return merge(parts, {kind: {name: value} for kind, value in variables.items()})


def pick(parts: Parts, names: Iterable[str]) -> Parts:
    """Returns the variables of the parts of these names.

    Args:
        parts: the variables by kind and part, see `Parts`.
        names: the names of the parts to select.

    Returns:
        The `Parts` of these names only.
    """
    subset: Parts = {}
    for name in names:
        subset = put(subset, name, part(parts, name))
    return subset


def merge(parts: Parts, updates: Parts) -> Parts:
    """Merges two `Parts`; parts of `updates` replace parts of the same name.

    Args:
        parts: the variables by kind and part, see `Parts`.
        updates: the variables to add or to replace, by kind and part.

    Returns:
        New `Parts` with all kinds and names of both arguments.
    """
    return {
        kind: {**parts.get(kind, {}), **updates.get(kind, {})}
        for kind in {**parts, **updates}
    }


# --- Averaging

Contrast = Callable[
    [Parts, PyTree, Views, Bool[Array, "B"]], tuple[Float[Array, ""], Parts]
]
"""(online, target, views, mask) -> (loss, online): the loss of a batch, and the online
networks with new batch statistics. `target` holds the parameters of the target networks
by part; their batch norms use the statistics of the batch."""


class Local(NamedTuple):
    """A function that trains the networks of one client for one round."""

    optimizer: optax.GradientTransformation
    """The optimizer of the client."""
    augment: Augment
    """(key, example) -> a view of the example."""
    num_epochs: int = 5
    """Number of epochs per round."""
    batch_size: int = 128
    """Number of examples per step."""
    schedule: optax.Schedule = optax.constant_schedule(1.0)
    """(round of the stage) -> the share of the optimizer's learning rate."""
    keep_optimizer: bool = False
    """Whether a client keeps its optimizer state between rounds."""
    microbatch: int | None = None
    """Number of examples per microbatch, see `fcjax.nn.layers.microbatched`; None takes
    whole batches."""
    drop_last: bool = False
    """Leave out a last batch that is smaller than the others, see `training.train`."""

    @property
    def at_once(self) -> int:
        """The number of examples per forward pass outside of training."""
        return self.microbatch or self.batch_size

    def optimizer_of(self, number: Int[Array, ""]) -> optax.GradientTransformation:
        """Returns the optimizer of a round, with the learning rate of the schedule.

        Args:
            number: the number of the round in its stage, from 0.

        Returns:
            The optimizer. Its state has the structure of the state of `optimizer`.
        """
        return training.scale_updates(
            self.optimizer, jnp.asarray(self.schedule(number))
        )

    def networks(self, **named: Network) -> Networks:
        """Returns the networks by part, with the microbatch of this training."""
        return Networks(named, self.microbatch)


class Pass(NamedTuple):
    """The epochs of a client that minimize one loss, on a subset of its examples."""

    contrast: Contrast
    """The loss of a batch."""
    select: Callable[[Int[Array, "N"]], Bool[Array, "N"]] = lambda indices: indices >= 0
    """(indices into the pool) -> True at the examples to train on; all by default."""


class Personal(NamedTuple):
    """Functions that combine the server's networks with a client's own memory."""

    begin: Callable[[Parts], Any]
    """(the server's parts) -> the memory of a client before its first round."""
    take_over: Callable[[Parts, Any, Int[Array, ""]], Parts]
    """(the server's parts, memory, number of the round) -> the parts with which the
    client begins to train."""
    remember: Callable[[Parts, Parts, Any, Int[Array, ""]], Any]
    """(parts before training, parts after training, memory, number of the round) -> the
    new memory."""


class Setup(NamedTuple):
    """The settings that all rounds of a stage share."""

    networks: Networks
    """The trained and the frozen networks. The metric `embedding_spread` is that of the
    features of `encoder`."""
    trains: tuple[str, ...]
    """The parts that are trained and averaged, batch statistics included. Other parts
    are frozen, and each client downloads them once."""
    passes: tuple[Pass, ...]
    """The passes of a client, one after another. The weight of a client is its number
    of examples in the passes. A client without such examples does not participate."""
    local: Local
    """The local training of a client."""
    num_rounds: int
    """Number of rounds of the stage."""
    tracks: tuple[str, ...] = ()
    """The parts that have a target network."""
    momentum: Scalar = 0.99
    """m of the target networks: each step sets target = m target + (1 - m) online."""
    average_target: bool = False
    """Whether the server also averages the target networks and sends them back (Table
    VII of FedMCC). Otherwise each target network stays on its client."""
    personal: Personal | None = None
    """The memory of the clients; None if clients begin with the server's parts."""
    updates: Updates | None = None
    """Differentially private averages; None averages without noise."""


class Server(NamedTuple):
    """The server's state."""

    online: Parts
    """The global networks."""
    clusters: Any = ()
    """The `Clusters` of federated k-means; () before this stage."""
    clip: PyTree = ()
    """The largest norm of a client's update in the next private round; () without
    differential privacy."""


class ClientState(NamedTuple):
    """The state that a client keeps between its rounds."""

    target: PyTree
    """The parameters of the client's target networks, by part."""
    memory: PyTree
    """The memory of `Personal`; () without one."""
    opt_state: PyTree
    """The optimizer state; () if each round begins with a new one."""


def averaging(name: str, setup: Setup, *, begin: Callable = keep_state) -> Stage:
    """Builds a stage of federated averaging.

    In each round the clients download the networks and train them, and the server
    averages the trained networks.

    Args:
        name: the name of the stage.
        setup: the settings of the stage.
        begin: (key, state, federation) -> the first state of the stage, see `start`.

    Returns:
        The stage. Its metrics are means over the participating clients: `loss` of the
        last pass in which a client has examples, `embedding_spread` of a batch of its
        features, `weight_size` of its networks. Others are `participants` and the
        traffic by part.
    """
    round = partial(federated_round, setup)
    return all_rounds(name, round, setup.num_rounds, begin=begin)


def start(setup: Setup, online: Parts, federation: Federation) -> State:
    """Returns the state at the beginning of a stage.

    Every target network is a copy of the online network. A client that participates
    later for the first time copies the online network of that round.

    Args:
        setup: the settings of the stage.
        online: the server's networks.
        federation: the federation.

    Returns:
        The state.
    """
    trained = pick(online, setup.trains)
    target = {name: online["params"][name] for name in setup.tracks}
    memory = setup.personal.begin(trained) if setup.personal else ()
    opt_state = ()
    if setup.local.keep_optimizer:
        opt_state = setup.local.optimizer.init(trained["params"])
    client_state = ClientState(target, memory, opt_state)
    clip = setup.updates.first_clip if setup.updates else ()
    state = Server(online, clip=clip)
    return State(state, clients.repeat(client_state, len(federation.indices)))


def federated_round(
    setup: Setup, key: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """Runs one round: lines 3 to 7 of FedMCC's algorithms.

    Every client trains the networks that it downloads. The server averages the trained
    networks, weighted by the clients' numbers of examples.

    Args:
        setup: the settings of the stage.
        key: the key of the round.
        state: the state before the round.
        federation: the federation in the current round.

    Returns:
        The state after the round, and the metrics of the round, see `averaging`.
    """
    before: Server = state.server
    num_clients = len(federation.indices)
    selections = [select(federation.indices) for _, select in setup.passes]
    train_mask = federation.mask & jnp.stack(selections).any(axis=0)
    present = server.participants(federation) & train_mask.any(axis=1)
    is_new = present & ~server.participated_before(federation, setup.num_rounds)
    if setup.updates:
        present &= setup.updates.sample(key, federation)
    names = [name for name in before.online["params"] if name not in setup.trains]
    download, frozen = pick(before.online, setup.trains), pick(before.online, names)
    number = federation.now.stage_round
    client_states: ClientState = state.clients
    if not setup.average_target:  # Otherwise all clients have the averaged target.
        copies = {name: before.online["params"][name] for name in setup.tracks}
        copies = clients.repeat(copies, num_clients)
        target = clients.keep_absent(is_new, copies, client_states.target)
        client_states = client_states._replace(target=target)
    trained, client_states, values = clients.for_each(
        partial(client_round, setup, federation.pool, frozen, number),
        clients.keys(key, num_clients),
        clients.repeat(download, num_clients),
        client_states,
        federation.indices,
        federation.mask,
    )
    client_states: ClientState = clients.keep_absent(
        present, client_states, state.clients
    )
    sizes = present * train_mask.sum(axis=1).astype(float)
    if setup.updates:  # Every client has the same weight.
        sizes = present.astype(float)
        client_keys = clients.keys(key, num_clients)
        upload = partial(
            setup.updates.upload,
            before=download,
            number=server.gather(present).sum(),
            clip=before.clip,
        )
        trained = clients.for_each(upload, client_keys, trained)
    uploads = (trained, client_states.target if setup.average_target else {})
    (online, mean), (participating, first, values) = server.receive(
        uploads, sizes, (present, is_new, values)
    )
    if setup.updates:
        online, clip = setup.updates.receive(
            key, online, download, participating, before.clip
        )
        before = before._replace(clip=clip)
    messages = {name: part(online, name) for name in setup.trains}
    if setup.average_target:
        target = clients.repeat(mean, num_clients)
        client_states = client_states._replace(target=target)
        messages["target"] = mean
    once = server.traffic(first, up={}, down={k: part(frozen, k) for k in names})
    metrics = server.measure(participating, values)
    if setup.updates:
        messages |= setup.updates.messages(before.clip)
        metrics |= setup.updates.messages(before.clip)
    metrics |= server.traffic(participating, up=messages, down=messages) | once
    after = before._replace(online=merge(frozen, online))
    return State(after, client_states), metrics


def client_round(
    setup: Setup,
    pool: Pool,
    frozen: Parts,
    number: Int[Array, ""],
    key: PRNGKey,
    download: Parts,
    client_state: ClientState,
    indices: Int[Array, "N"],
    mask: Bool[Array, "N"],
) -> tuple[Parts, ClientState, dict[str, Float[Array, ""]]]:
    """Trains one client: ClientLocalTraining of FedMCC's algorithms.

    Args:
        setup: the settings of the stage.
        pool: all examples.
        frozen: the variables of the parts that are not trained.
        number: the number of the round in its stage, from 0.
        key: the key of the client in this round.
        download: the variables of the trained parts, from the server.
        client_state: the state of the client.
        indices: the client's examples, as indices into the pool.
        mask: False at padding.

    Returns:
        The trained parts (the upload), the new state of the client, and its metrics.
    """
    local, (target, memory, opt_state) = setup.local, client_state
    optimizer = local.optimizer_of(number)
    start = download
    if setup.personal:
        start = setup.personal.take_over(download, memory, number)
    if not local.keep_optimizer:
        opt_state = optimizer.init(start["params"])

    def loss(contrast, key, variables, batch, batch_mask):
        online, target = split_target(variables)
        views = two_views(key, to_float(pool[indices[batch]]), local)
        value, online = contrast(merge(frozen, online), target, views, batch_mask)
        return value, {**pick(online, setup.trains), "target": target}

    client, value = clients.Client({**start, "target": target}, opt_state), jnp.nan
    for index, (contrast, select) in enumerate(setup.passes):
        pass_mask = mask & select(indices)
        client, pass_loss = training.train(
            jax.random.fold_in(key, index),
            client,
            partial(loss, contrast),
            pass_mask,
            optimizer=optimizer,
            batch_size=local.batch_size,
            num_epochs=local.num_epochs,
            drop_last=local.drop_last,
            after_step=partial(follow, setup.momentum),
        )
        value = jnp.where(pass_mask.any(), pass_loss, value)
    trained, target = split_target(client.variables)
    if setup.personal:
        memory = setup.personal.remember(start, trained, memory, number)
    values = {
        "loss": value,
        "embedding_spread": spread(setup, merge(frozen, trained), pool, indices, mask),
        "weight_size": training.root_mean_square(trained["params"]),
    }
    opt_state = client.opt_state if local.keep_optimizer else ()
    return trained, ClientState(target, memory, opt_state), values


def spread(
    setup: Any,
    parts: Parts,
    pool: Pool,
    indices: Int[Array, "N"],
    mask: Bool[Array, "N"],
) -> Float[Array, ""]:
    """Measures how far the features of a client's batch point in different directions.

    Args:
        setup: the method's setup, which has the networks.
        parts: the variables of each part's network, by the part's name.
        pool: all examples.
        indices: the indices [N] of the batch.
        mask: [N], False at padding.

    Returns:
        About 1 if the directions fill the unit sphere, 0 if all are equal, which is
        collapse; see `training.spread`.
    """
    subset = training.evenly_spaced_indices(mask, setup.local.at_once)
    encoder, x = setup.networks.named["encoder"], to_float(pool[indices[subset]])
    h, _ = encoder.apply(part(parts, "encoder"), x, train=False)
    return training.spread(h, mask[subset])


def follow(momentum: Scalar, variables: PyTree) -> PyTree:
    """Moves the target networks towards the online networks.

    Args:
        momentum: m in [0, 1]; target = m target + (1 - m) online.
        variables: the variables of the online networks, and the parameters of the
            target networks under "target".

    Returns:
        The variables with new target networks.
    """

    def mix(old, new):
        return momentum * old + (1 - momentum) * new

    target, params = variables["target"], variables["params"]
    online = {name: params[name] for name in target}
    return {**variables, "target": jax.tree.map(mix, target, online)}


def split_target(variables: PyTree) -> tuple[Parts, PyTree]:
    """Splits variables into the online networks and the parameters of the targets.

    Args:
        variables: the variables of the online networks by kind and part, and the
            parameters of the target networks under "target".

    Returns:
        The online networks, and the parameters of the target networks by part.
    """
    online = {kind: x for kind, x in variables.items() if kind != "target"}
    return online, variables["target"]


def two_views(key: PRNGKey, x: Float[Array, "B *F"], local: Local) -> Views:
    """Draws two views of each example, one microbatch after another.

    Args:
        key: the key of all random draws.
        x: the examples of the batch.
        local: the local training, which has the augmentation and the microbatch.

    Returns:
        The first and the second view of the batch, [B, *F] each.
    """

    def draw(key, x):
        key_a, key_b = jax.random.split(key)
        return local.augment(key_a, x), local.augment(key_b, x)

    pairs = (clients.fold_in(key, len(x)), x)
    if local.microbatch is None:
        return jax.vmap(draw)(*pairs)
    return jax.lax.map(lambda pair: draw(*pair), pairs, batch_size=local.microbatch)


# --- Features


def encode(
    encoder: Network, parts: Parts, federation: Federation, *, batch_size: int
) -> Float[Array, "M N D"]:
    """Computes the features of all clients' examples with the server's encoder.

    Args:
        encoder: the network of the encoder.
        parts: the variables of the server's networks.
        federation: the federation.
        batch_size: number of examples per forward pass of a client.

    Returns:
        The features [M, N, D].
    """
    variables = part(parts, "encoder")

    def encode_batch(indices):
        x = to_float(federation.pool[indices])
        return encoder.apply(variables, x, train=False)[0]

    of_client = partial(training.in_batches, encode_batch, batch_size=batch_size)
    return clients.for_each(of_client, federation.indices)


def build_method(
    encoder: Network,
    local: Local,
    init: Callable[[PRNGKey, Federation], State],
    stages: tuple[Stage, ...],
    assign: Callable[[Server, Float[Array, "N D"]], Int[Array, "N"]],
) -> FederatedClustering:
    """Builds a method whose embedding is the features of the server's encoder.

    Args:
        encoder: maps examples to features.
        local: the local training. It sets the number of examples per forward pass.
        init: (key, federation) -> the state before the first round.
        stages: the stages of the method.
        assign: (server, features) -> clusters, or -1 before there are clusters.

    Returns:
        The method.
    """

    def embed(state: State, federation: Federation):
        online = state.server.online
        return encode(encoder, online, federation, batch_size=local.at_once)

    def assign_all(state: State, federation: Federation):
        h = embed(state, federation)
        return clients.for_each(partial(assign, state.server), h)

    return FederatedClustering(init, stages, embed, assign_all)
