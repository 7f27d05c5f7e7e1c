"""Rounds in which clients train on two views of their examples and a server averages.

What FedMCC, CC, FedU, FedEMA, FedSimSiam and FedSimCLR share. Their networks come in
named parts, of which a stage trains some, sends them to and fro and leaves the others
frozen; a part may have a target network, which stays on its client.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from fcjax import clients, server, training
from fcjax.algorithms.parts import Parts, Views, swap
from fcjax.algorithms.rounds import all_rounds
from fcjax.data.augment import Augment, to_float
from fcjax.types import (
    Federation,
    Network,
    PRNGKey,
    PyTree,
    Scalar,
    Stage,
    State,
)

Contrast = Callable[
    [Parts, Parts, Views, Bool[Array, "B"]], tuple[Float[Array, ""], Parts]
]
"""(online, target, views, mask) -> (loss, online with new batch statistics). The
target's batch norms take the statistics of the batch."""


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


class Server(NamedTuple):
    online: Parts  # the global networks
    num_rounds: Int[Array, ""]  # rounds so far, over all stages


class Stays(NamedTuple):
    """What stays on a client between its rounds."""

    target: Parts  # parameters of its target networks
    memory: PyTree  # of `Personal`; () without
    opt_state: PyTree  # of its optimiser; () if that starts anew


def start(
    online: Parts,
    local: Local,
    federation: Federation,
    *,
    trains: tuple[str, ...],
    tracks: tuple[str, ...] = (),
    personal: Personal | None = None,
    num_rounds: Int[Array, ""] | int = 0,
) -> State:
    """Returns the state in which a stage begins: every target network is a copy.

    Args:
        online: the server's networks.
        local: see `Local`.
        federation: whose clients they are.
        trains, tracks, personal: as in `averaging`.
        num_rounds: rounds so far.
    """
    num_clients = len(federation.indices)
    sent = {name: online[name] for name in trains}
    target = {name: online[name]["params"] for name in tracks}
    memory = personal.begin(sent) if personal else ()
    opt_state = ()
    if local.keep_optimizer:
        opt_state = _optimizer(local, 0).init(swap(sent)["params"])
    stays = clients.repeat(Stays(target, memory, opt_state), num_clients)
    return State(Server(online, jnp.int32(num_rounds)), stays)


def averaging(
    name: str,
    num_rounds: int,
    begin: Callable[[PRNGKey, State, Federation], State],
    passes: tuple[Pass, ...],
    local: Local,
    *,
    encoder: Network,
    trains: tuple[str, ...],
    momentum: Scalar = 0.99,
    average_target: bool = False,
    personal: Personal | None = None,
    rounds_before: int = 0,
) -> Stage:
    """Builds a stage: the server sends, the clients train, the server averages.

    Args:
        name: of the stage.
        num_rounds: of the stage.
        begin: as in `Stage`; see `start`.
        passes: the epochs of a client, one after another. A client weighs as much as
            it has examples for them, and does not answer without any.
        local: see `Local`.
        encoder: of the networks, as its features are measured.
        trains: the parts that are trained and averaged, batch statistics included; the
            others are frozen and sent to each client once.
        momentum: m of the target networks, which after every step become m times
            themselves and 1 - m times the online ones.
        average_target: average the target networks too and send them back (Table VII
            of FedMCC); False leaves each on its client.
        personal: what clients mix in of their own.
        rounds_before: of earlier stages.

    Returns:
        The stage. Its metrics are the mean `loss` of the last pass over the clients
        that answered, `participants`, `embedding_spread` of as many of each client's
        examples as a network takes at a time, `weight_size` of the clients' networks,
        and the traffic by part.
    """

    def round(key: PRNGKey, state: State, federation: Federation):
        before: Server = state.server
        num_clients = len(federation.indices)
        used = federation.mask & trained_on(federation.indices)
        present = server.participants(federation, before.num_rounds)
        present &= used.any(axis=1)
        rounds = jnp.arange(rounds_before, rounds_before + num_rounds)
        answers = jax.vmap(partial(server.participants, federation))(rounds)
        earlier = rounds < before.num_rounds
        is_new = present & ~answers.any(axis=0, where=earlier[:, None])
        sent = {name: before.online[name] for name in trains}
        frozen = {k: v for k, v in before.online.items() if k not in trains}
        number = before.num_rounds - rounds_before
        optimizer = _optimizer(local, number)

        def client_round(key, sent, stays: Stays, rows, mask):
            target, memory, opt_state = stays
            if personal:
                sent = personal.take_over(sent, memory, number)
            if not local.keep_optimizer:
                opt_state = optimizer.init(swap(sent)["params"])
            client, value = clients.Client(_pack(sent, target), opt_state), None
            for index, (contrast, chosen) in enumerate(passes):
                client, value = training.train(
                    jax.random.fold_in(key, index),
                    client,
                    partial(batch_loss, contrast, rows),
                    mask & chosen(rows),
                    optimizer=optimizer,
                    batch_size=local.batch_size,
                    num_epochs=local.num_epochs,
                    drop_last=local.drop_last,
                    after_step=follow,
                )
            trained, target = _unpack(client.variables)
            if personal:
                memory = personal.remember(sent, trained, memory, number)
            # Evenly over a client's own rows, which come class by class.
            count = min(local.at_once, len(rows))
            few = jnp.arange(count) * mask.sum() // count
            h, _ = encoder.apply(
                {**frozen, **trained}["encoder"],
                to_float(federation.pool[rows[few]]),
                train=False,
            )
            size = training.root_mean_square(client.variables["params"])
            measured = {
                "loss": value,
                "embedding_spread": training.spread(h, mask[few]),
                "weight_size": size,
            }
            opt_state = client.opt_state if local.keep_optimizer else ()
            return trained, Stays(target, memory, opt_state), measured

        def batch_loss(contrast, rows, key, variables, slots, counted):
            online, target = _unpack(variables)
            x = to_float(federation.pool[rows[slots]])
            views = two_views(key, x, local)
            value, online = contrast({**frozen, **online}, target, views, counted)
            return value, _pack({name: online[name] for name in trains}, target)

        trained, stays, measured = clients.for_each(
            client_round,
            clients.keys(key, num_clients),
            clients.repeat(sent, num_clients),
            state.clients,
            federation.indices,
            federation.mask,
        )
        stays: Stays = clients.keep_absent(present, stays, state.clients)
        sizes = present * used.sum(axis=1).astype(float)
        uploads = (trained, stays.target if average_target else {})
        (online, mean), (answered, first, measured) = server.receive(
            uploads, sizes, (present, is_new, measured)
        )
        if average_target:
            stays = stays._replace(target=clients.repeat(mean, num_clients))

        messages = {**online, "target": mean} if average_target else online
        once = server.traffic(first, up={}, down=frozen)
        metrics = server.measure(answered, measured)
        metrics |= server.traffic(answered, up=messages, down=messages) | once
        after = Server({**frozen, **online}, before.num_rounds + 1)
        return State(after, stays), metrics

    def trained_on(rows):
        return jnp.stack([chosen(rows) for _, chosen in passes]).any(axis=0)

    def follow(variables):
        online, target = _unpack(variables)
        target = {
            name: jax.tree.map(
                lambda old, new: momentum * old + (1 - momentum) * new,
                old,
                online[name]["params"],
            )
            for name, old in target.items()
        }
        return _pack(online, target)

    return all_rounds(name, round, num_rounds, begin=begin)


def two_views(key: PRNGKey, x: Float[Array, "B *F"], local: Local) -> Views:
    """Draws two views of each example, as few at a time as a network takes."""

    def draw(key, x):
        key_a, key_b = jax.random.split(key)
        return local.augment(key_a, x), local.augment(key_b, x)

    pairs = (clients.fold_in(key, len(x)), x)
    if local.microbatch is None:
        return jax.vmap(draw)(*pairs)
    return jax.lax.map(lambda pair: draw(*pair), pairs, batch_size=local.microbatch)


def _optimizer(local: Local, number) -> optax.GradientTransformation:
    return optax.chain(local.optimizer, optax.scale(local.schedule(number)))


def _pack(online: Parts, target: Parts) -> PyTree:
    return {**swap(online), "target": target}


def _unpack(variables: PyTree) -> tuple[Parts, Parts]:
    kinds = {kind: value for kind, value in variables.items() if kind != "target"}
    return swap(kinds), variables["target"]
