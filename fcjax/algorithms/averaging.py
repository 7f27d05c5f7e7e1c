"""Federated averaging of networks in named parts, trained on two views.

Rounds in which clients train on two views of their examples and a server averages.

What FedMCC, CC, FedU, FedEMA, FedSimSiam and FedSimCLR share. Their networks come in
named parts, of which a stage trains some, sends them to and fro and leaves the others
frozen; a part may have a target network, which stays on its client.
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
"""The variables of several networks: by kind, as those of any one, and then by part."""
Views = tuple[Float[Array, "B *F"], Float[Array, "B *F"]]


class Networks(NamedTuple):
    """Networks by part: encoder, projector, predictor, cluster_projector."""

    named: Mapping[str, Network]
    microbatch: int | None = None
    """Examples that they take at a time, see `models.microbatched`."""


def initialize(
    key: PRNGKey, networks: Mapping[str, Network], x: Float[Array, "1 *F"]
) -> Parts:
    """Draws the variables of networks of which each is fed by the one before."""
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
    """Applies some parts, one after another.

    Returns:
        What the last one returns, and the parts with new batch statistics.
    """
    network = chain({name: networks.named[name] for name in path})
    # Parts that follow each other are bounded as one: what lies between is not kept.
    if networks.microbatch is not None:
        network = microbatched(network, networks.microbatch)
    x, variables = network.apply(pick(parts, path), x, train=train, mask=mask)
    return x, merge(parts, variables)


def chain(named: Mapping[str, Network]) -> Network:
    """Returns networks of which each is fed by the one before as a single one."""

    def init(key, x):
        return initialize(key, named, x)

    def apply(variables, x, *, train, mask=None):
        for name, network in named.items():
            own = part(variables, name)
            x, own = network.apply(own, x, train=train, mask=mask)
            variables = put(variables, name, own)
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
    """Applies some parts to both views, the batch statistics of each being its own."""
    a, parts = forward(networks, parts, path, views[0], mask, train=train)
    b, parts = forward(networks, parts, path, views[1], mask, train=train)
    return (a, b), parts


def target_networks(online: Parts, target: Mapping[str, PyTree]) -> Parts:
    """Returns the variables of target networks, which no gradient reaches.

    Args:
        online: whose batch statistics stand in; in training none are used.
        target: the parameters of the parts that have a target network.
    """
    return jax.lax.stop_gradient(merge(online, {"params": target}))


def part(parts: Parts, name: str) -> PyTree:
    """Returns the variables of one of the networks."""
    return {kind: named[name] for kind, named in parts.items() if name in named}


def put(parts: Parts, name: str, variables: PyTree) -> Parts:
    """Returns the parts with the variables of one of the networks."""
    return merge(parts, {kind: {name: value} for kind, value in variables.items()})


def pick(parts: Parts, names: Iterable[str]) -> Parts:
    """Returns the parts of these names."""
    picked: Parts = {}
    for name in names:
        picked = put(picked, name, part(parts, name))
    return picked


def merge(parts: Parts, others: Parts) -> Parts:
    """Returns the parts of both, where both have one that of the others."""
    return {
        kind: {**parts.get(kind, {}), **others.get(kind, {})}
        for kind in {**parts, **others}
    }


# --- Averaging

Contrast = Callable[
    [Parts, PyTree, Views, Bool[Array, "B"]], tuple[Float[Array, ""], Parts]
]
"""(online, target, views, mask) -> (loss, online with new batch statistics). The target
is its parameters by part; its batch norms take the statistics of the batch."""


class Local(NamedTuple):
    """How a client trains in a round.

    The schedule gives the step size of each round of a stage as a share of the
    optimiser's own.
    """

    optimizer: optax.GradientTransformation
    augment: Augment  # (key, example) -> a view of it
    num_epochs: int = 5
    batch_size: int = 128
    schedule: optax.Schedule = optax.constant_schedule(1.0)
    keep_optimizer: bool = False  # whether its state outlives a round
    microbatch: int | None = None  # see `models.microbatched`; None takes a batch whole
    drop_last: bool = False  # a last batch that is not full, see `training.train`

    @property
    def at_once(self) -> int:
        """How many examples a network takes at a time where it is not trained."""
        return self.microbatch or self.batch_size

    def optimizer_of(self, number: Int[Array, ""]) -> optax.GradientTransformation:
        """Returns the optimiser of a round of a stage."""
        return training.scale_updates(
            self.optimizer, jnp.asarray(self.schedule(number))
        )

    def networks(self, **named: Network) -> Networks:
        """Returns networks, by part, that take as many at a time in training."""
        return Networks(named, self.microbatch)


class Pass(NamedTuple):
    """Some epochs of a client over some of its rows."""

    contrast: Contrast
    chosen: Callable[[Int[Array, "N"]], Bool[Array, "N"]] = lambda rows: rows >= 0
    """(rows of the pool) -> which of them are trained on."""


class Personal(NamedTuple):
    """How a client mixes what it learnt itself into what the server sends."""

    begin: Callable[[Parts], Any]
    """(the server's parts) -> what a client remembers before its first round."""
    take_over: Callable[[Parts, Any, Int[Array, ""]], Parts]
    """(the server's parts, memory, number of the round) -> where training begins."""
    remember: Callable[[Parts, Parts, Any, Int[Array, ""]], Any]
    """(where training began, where it ended, memory, number of the round) -> memory."""


class Setup(NamedTuple):
    """What all rounds of a stage share."""

    networks: Networks
    """Trained and frozen ones; the features of `encoder` are measured."""
    trains: tuple[str, ...]
    """The parts that are trained and averaged, batch statistics included; the others
    are frozen and sent to each client once."""
    passes: tuple[Pass, ...]
    """The epochs of a client, one after another. A client weighs as much as it has
    examples for them, and does not answer without any."""
    local: Local
    num_rounds: int
    tracks: tuple[str, ...] = ()
    """The parts that have a target network."""
    momentum: Scalar = 0.99
    """m of the target networks, which after every step become m times themselves and
    1 - m times the online ones."""
    average_target: bool = False
    """Average the target networks too and send them back (Table VII of FedMCC); False
    leaves each on its client."""
    personal: Personal | None = None
    """What clients mix in of their own."""


class Server(NamedTuple):
    online: Parts  # the global networks
    clusters: Any = ()  # the `Clusters` of federated k-means, once it has begun


class ClientState(NamedTuple):
    """What stays on a client between its rounds."""

    target: PyTree  # parameters of its target networks, by part
    memory: PyTree  # of `Personal`; () without
    opt_state: PyTree  # of its optimiser; () if that starts anew


def averaging(name: str, setup: Setup, *, begin: Callable = keep_state) -> Stage:
    """Builds a stage: the server sends, the clients train, the server averages.

    Args:
        name: of the stage.
        setup: see `Setup`.
        begin: as in `Stage`; see `start`.

    Returns:
        The stage. Its metrics are the mean over the clients that answered of the `loss`
        of the last pass that each has examples for, `participants`, `embedding_spread`
        of as many of each client's examples as a network takes at a time, `weight_size`
        of the clients' networks, and the traffic by part.
    """
    round = partial(federated_round, setup)
    return all_rounds(name, round, setup.num_rounds, begin=begin)


def start(setup: Setup, online: Parts, federation: Federation) -> State:
    """Returns the state in which a stage begins: every target network is a copy, which
    a client that first answers later takes of what it is sent then.

    Args:
        setup: of the stage.
        online: the server's networks.
        federation: whose clients they are.
    """
    sent = pick(online, setup.trains)
    target = {name: online["params"][name] for name in setup.tracks}
    memory = setup.personal.begin(sent) if setup.personal else ()
    opt_state = ()
    if setup.local.keep_optimizer:
        opt_state = setup.local.optimizer.init(sent["params"])
    stays = clients.repeat(
        ClientState(target, memory, opt_state), len(federation.indices)
    )
    return State(Server(online), stays)


def federated_round(
    setup: Setup, key: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """A round, lines 3 to 7 of FedMCC's algorithms: every client trains what it is
    sent, and the server averages that by how many examples each has.
    """
    before: Server = state.server
    num_clients = len(federation.indices)
    rows = [chosen(federation.indices) for _, chosen in setup.passes]
    used = federation.mask & jnp.stack(rows).any(axis=0)
    present = server.participants(federation) & used.any(axis=1)
    is_new = present & ~server.participated_before(federation, setup.num_rounds)
    names = [name for name in before.online["params"] if name not in setup.trains]
    sent, frozen = pick(before.online, setup.trains), pick(before.online, names)
    number = federation.now.stage_round
    held: ClientState = state.clients
    if not setup.average_target:  # else all are sent the mean
        copies = {name: before.online["params"][name] for name in setup.tracks}
        copies = clients.repeat(copies, num_clients)
        target = clients.keep_absent(is_new, copies, held.target)
        held = held._replace(target=target)
    trained, stays, measured = clients.for_each(
        partial(client_round, setup, federation.pool, frozen, number),
        clients.keys(key, num_clients),
        clients.repeat(sent, num_clients),
        held,
        federation.indices,
        federation.mask,
    )
    stays: ClientState = clients.keep_absent(present, stays, state.clients)
    sizes = present * used.sum(axis=1).astype(float)
    uploads = (trained, stays.target if setup.average_target else {})
    (online, mean), (answered, first, measured) = server.receive(
        uploads, sizes, (present, is_new, measured)
    )
    messages = {name: part(online, name) for name in setup.trains}
    if setup.average_target:
        stays = stays._replace(target=clients.repeat(mean, num_clients))
        messages["target"] = mean
    once = server.traffic(first, up={}, down={k: part(frozen, k) for k in names})
    metrics = server.measure(answered, measured)
    metrics |= server.traffic(answered, up=messages, down=messages) | once
    after = before._replace(online=merge(frozen, online))
    return State(after, stays), metrics


def client_round(
    setup: Setup,
    pool: Pool,
    frozen: Parts,
    number: Int[Array, ""],
    key: PRNGKey,
    sent: Parts,
    stays: ClientState,
    rows: Int[Array, "N"],
    mask: Bool[Array, "N"],
) -> tuple[Parts, ClientState, dict[str, Float[Array, ""]]]:
    """ClientLocalTraining of FedMCC's algorithms.

    Args:
        setup: of the stage.
        pool: of the examples.
        frozen: the parts that are not trained.
        number: of the round in its stage.
        key, sent, stays, rows, mask: the client's.

    Returns:
        What the client uploads, what stays there, and its metrics.
    """
    local, (target, memory, opt_state) = setup.local, stays
    optimizer = local.optimizer_of(number)
    if setup.personal:
        sent = setup.personal.take_over(sent, memory, number)
    if not local.keep_optimizer:
        opt_state = optimizer.init(sent["params"])

    def loss(contrast, key, variables, slots, counted):
        online, target = split_target(variables)
        views = two_views(key, to_float(pool[rows[slots]]), local)
        value, online = contrast(merge(frozen, online), target, views, counted)
        return value, {**pick(online, setup.trains), "target": target}

    client, value = clients.Client({**sent, "target": target}, opt_state), jnp.nan
    for index, (contrast, chosen) in enumerate(setup.passes):
        used = mask & chosen(rows)
        client, found = training.train(
            jax.random.fold_in(key, index),
            client,
            partial(loss, contrast),
            used,
            optimizer=optimizer,
            batch_size=local.batch_size,
            num_epochs=local.num_epochs,
            drop_last=local.drop_last,
            after_step=partial(follow, setup.momentum),
        )
        value = jnp.where(used.any(), found, value)
    trained, target = split_target(client.variables)
    if setup.personal:
        memory = setup.personal.remember(sent, trained, memory, number)
    measured = {
        "loss": value,
        "embedding_spread": spread(setup, merge(frozen, trained), pool, rows, mask),
        "weight_size": training.root_mean_square(trained["params"]),
    }
    opt_state = client.opt_state if local.keep_optimizer else ()
    return trained, ClientState(target, memory, opt_state), measured


def spread(
    setup: Any, parts: Parts, pool: Pool, rows: Int[Array, "N"], mask: Bool[Array, "N"]
) -> Float[Array, ""]:
    """Returns how far the features of a client fill their sphere, of as many examples
    as a network takes at a time.
    """
    few = training.evenly_spaced_indices(mask, setup.local.at_once)
    encoder, x = setup.networks.named["encoder"], to_float(pool[rows[few]])
    h, _ = encoder.apply(part(parts, "encoder"), x, train=False)
    return training.spread(h, mask[few])


def follow(momentum: Scalar, variables: PyTree) -> PyTree:
    """Returns the variables after a step of the target networks."""

    def mix(old, new):
        return momentum * old + (1 - momentum) * new

    target, params = variables["target"], variables["params"]
    online = {name: params[name] for name in target}
    return {**variables, "target": jax.tree.map(mix, target, online)}


def split_target(variables: PyTree) -> tuple[Parts, PyTree]:
    """Returns the online networks, and the parameters of their targets."""
    online = {kind: x for kind, x in variables.items() if kind != "target"}
    return online, variables["target"]


def two_views(key: PRNGKey, x: Float[Array, "B *F"], local: Local) -> Views:
    """Draws two views of each example, as few at a time as a network takes."""

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
    """Returns the features of all clients' examples by the server's encoder."""
    variables = part(parts, "encoder")

    def batch(rows):
        x = to_float(federation.pool[rows])
        return encoder.apply(variables, x, train=False)[0]

    return clients.for_each(
        partial(training.in_batches, batch, batch_size=batch_size), federation.indices
    )


def build_method(
    encoder: Network,
    local: Local,
    init: Callable[[PRNGKey, Federation], State],
    stages: tuple[Stage, ...],
    assign: Callable[[Server, Float[Array, "N D"]], Int[Array, "N"]],
) -> FederatedClustering:
    """Returns the method of these stages.

    Args:
        encoder: to the features.
        local: how a client trains, which says how many examples are encoded at a time.
        init: as in `FederatedClustering`.
        stages: its stages.
        assign: (server, features) -> clusters; -1 where there are none yet.
    """

    def embed(state: State, federation: Federation):
        online = state.server.online
        return encode(encoder, online, federation, batch_size=local.at_once)

    def assign_all(state: State, federation: Federation):
        h = embed(state, federation)
        return clients.for_each(partial(assign, state.server), h)

    return FederatedClustering(init, stages, embed, assign_all)
