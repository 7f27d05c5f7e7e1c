"""A client's deep subspace network: what FDSC, DSCN and DLRSC share.

Deep Subspace Clustering Networks
    Pan Ji, Tong Zhang, Hongdong Li, Mathieu Salzmann, Ian Reid. 2017.
    https://arxiv.org/abs/1709.02508
    Authors' code: https://github.com/panji1990/Deep-subspace-clustering-networks
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from fcjax import clients, losses, training
from fcjax.algorithms.parts import Parts, merge, part, pick, put
from fcjax.algorithms.rounds import all_rounds
from fcjax.cluster import Assign, spectral_clustering
from fcjax.data.augment import to_float
from fcjax.models.autoencoder import AutoEncoder
from fcjax.types import Federation, PRNGKey, PyTree, Scalar, Stage, State

FIRST_COEFFICIENT = 1e-8
"""What every coefficient begins with, in the PyTorch port of DSC-Net, whose weights
FDSC has. The authors' own begins with 0 for ORL, 1e-8 for COIL20 and 1e-4 for COIL100.
"""
FIRST_FACTOR = 1e-4
"""The standard deviation of what DLRSC's factor begins with, in its authors' code."""
ALL = ("encoder", "decoder", "coefficients")
OUTER = ("encoder", "decoder")
"""What pre-training trains."""
PRIVATE = ("decoder", "coefficients")
"""What no client of FDSC ever sends."""

Names = tuple[str, ...]
Affinity = Callable[[Float[Array, "N N"], Bool[Array, "N"]], Float[Array, "N N"]]
"""(coefficients, mask) -> the affinity that is clustered; see `cluster.affinity`."""
Norm = Literal["frobenius", "l1", "nuclear"]


class Expression(NamedTuple):
    """What a client holds its coefficients in: row i of the matrix expresses example i
    by the others."""

    init: Callable[[PRNGKey, int], PyTree]
    """(key, N) -> parameters."""
    matrix: Callable[[PyTree], Float[Array, "N N"]]
    """The matrix; its diagonal counts nowhere."""
    penalty: Callable[[PyTree, Bool[Array, "N"]], Float[Array, ""]]
    """(parameters, mask) -> what lambda_1 weighs."""


def dense(*, norm: Norm = "frobenius") -> Expression:
    """Returns a matrix of N x N parameters, as in DSC-Net and FDSC."""
    return Expression(
        lambda key, count: jnp.full((count, count), jnp.float32(FIRST_COEFFICIENT)),
        lambda c: c,
        lambda c, mask: losses.coefficient_penalty(c, norm=norm, mask=mask),
    )


def low_rank(rank: int) -> Expression:
    """Returns U U^T of a matrix U [N, rank], as in DLRSC; at most N columns."""

    def init(key: PRNGKey, count: int):
        row = partial(jax.random.normal, shape=(min(rank, count),))
        return FIRST_FACTOR * jax.vmap(row)(clients.fold_in(key, count))

    def penalty(factor, mask):
        return jnp.sum(jnp.where(mask[:, None], factor, 0) ** 2)

    return Expression(init, lambda factor: factor @ factor.T, penalty)


class SubspaceNetwork(NamedTuple):
    """An auto-encoder with a self-expressive layer between its halves.

    Squared errors are sums over features and examples, not means, and have no halves,
    as in the code of the lineage; FDSC's equations 2, 4 and 8 print halves.
    """

    autoencoder: AutoEncoder
    expression: Expression
    penalty_weight: Scalar
    """lambda_1."""
    expression_weight: Scalar
    """lambda_2."""
    pixel_scale: Scalar = 1.0
    """What examples in [0, 1] are multiplied by: the weights belong to a scale."""


class Local(NamedTuple):
    """What a client trains in which stage, and how; see `fdsc`."""

    network: SubspaceNetwork
    optimizer: optax.GradientTransformation
    pretrain_rounds: int
    num_rounds: int
    local_steps: int
    fit_steps: int


class Private(NamedTuple):
    """What no client sends, [M, ...]."""

    parts: Parts  # D_i and R_i: decoder, coefficients; in DSCN the encoder, too
    opt_state: PyTree = ()  # of all that the stage trains
    adjacency: Any = ()  # FDSC's graph A_i, [M, N, N]


class Spectral(NamedTuple):
    """How a client's coefficients are clustered; see `fdsc`."""

    num_clusters: int
    affinity: Affinity
    assign_labels: Assign = "kmeans"


def stages(local: Local, round: Callable, fit: Callable) -> tuple[Stage, ...]:
    """Returns stages `pretrain`, `start`, `train` and `fit`, those that have rounds.

    Args:
        local: of a client.
        round, fit: of those that train the encoder and of the others, as in `Stage`,
            but for the names of the parts that are trained, which come first.
    """

    def stage(name, trains, num_rounds):
        begin = partial(begin_stage, local, trains)
        return all_rounds(name, rounds[trains], num_rounds, begin=begin)

    rounds = {OUTER: partial(round, OUTER), ALL: partial(round, ALL)}
    rounds[PRIVATE] = partial(fit, PRIVATE)  # one for both, to be compiled once
    once = int(local.fit_steps > 0)
    every = (
        stage("pretrain", OUTER, local.pretrain_rounds),
        stage("start", PRIVATE, once),
        stage("train", ALL, local.num_rounds),
        stage("fit", PRIVATE, once),
    )
    return tuple(stage for stage in every if stage.num_rounds)


def begin_stage(
    local: Local, trains: Names, _: PRNGKey, state: State, federation: Federation
) -> State:
    """Returns the state in which no client has taken a step with what is trained."""
    parts = state.clients.parts
    if "encoder" not in parts["params"]:  # it is shared
        sent = clients.repeat(state.server.encoder, len(federation.indices))
        parts = put(parts, "encoder", sent)
    opt_state = jax.vmap(local.optimizer.init)(pick(parts, trains)["params"])
    return state._replace(clients=state.clients._replace(opt_state=opt_state))


def init(
    network: SubspaceNetwork, key: PRNGKey, x: Shaped[Array, "1 *F"], num_samples: int
) -> Parts:
    """Draws encoder, decoder and coefficients of a client with `num_samples` slots."""
    encoder_key, decoder_key, coefficient_key = jax.random.split(key, 3)
    encoder, decoder = network.autoencoder
    parts = put({}, "encoder", encoder.init(encoder_key, to_float(x)))
    z = encode(network, part(parts, "encoder"), x)
    parts = put(parts, "decoder", decoder.init(decoder_key, z))
    coefficients = network.expression.init(coefficient_key, num_samples)
    return put(parts, "coefficients", {"params": coefficients})


def encode(
    network: SubspaceNetwork, encoder: PyTree, x: Shaped[Array, "N *F"]
) -> Float[Array, "N D"]:
    """Returns the codes Z."""
    x = network.pixel_scale * to_float(x)
    return network.autoencoder.encoder.apply(encoder, x, train=False)[0]


def subspace_loss(
    network: SubspaceNetwork,
    parts: Parts,
    x: Shaped[Array, "N *F"],
    mask: Bool[Array, "N"],
) -> Float[Array, ""]:
    """Returns |X - X'|^2 + lambda_1 |C|^2 + lambda_2 |Z - C Z|^2, where X' is decoded
    from C Z: FDSC's Eq. 4."""
    z = encode(network, part(parts, "encoder"), x)
    held = parts["params"]["coefficients"]
    _, matrix, penalty = network.expression
    expressed = losses.off_diagonal(matrix(held), mask) @ z
    return (
        _reconstruction(network, parts, x, expressed, mask)
        + network.penalty_weight * penalty(held, mask)
        + network.expression_weight * losses.self_expression(z, matrix(held), mask=mask)
    )


def autoencoder_loss(
    network: SubspaceNetwork,
    parts: Parts,
    x: Shaped[Array, "N *F"],
    mask: Bool[Array, "N"],
) -> Float[Array, ""]:
    """Returns |X - X'|^2, where X' is decoded from Z: pre-training."""
    z = encode(network, part(parts, "encoder"), x)
    return _reconstruction(network, parts, x, z, mask)


def _reconstruction(network, parts, x, z, mask):
    decoder = part(parts, "decoder")
    decoded, _ = network.autoencoder.decoder.apply(decoder, z, train=False)
    x = network.pixel_scale * to_float(x)
    errors = losses.reconstruction_error(x, decoded)
    return jnp.sum(jnp.where(mask, errors, 0))


def train(
    local: Local,
    trains: Names,
    parts: Parts,
    opt_state: PyTree,
    joint_loss: Callable[..., Float[Array, ""]],
    x: Shaped[Array, "N *F"],
    mask: Bool[Array, "N"],
) -> tuple[Parts, PyTree, dict[str, Float[Array, ""]]]:
    """Takes steps on all examples of a client at once: coefficients tie each to all.

    Args:
        local: how.
        trains: the parts that change; `OUTER` are trained without coefficients.
        parts: these and those that they need.
        opt_state: of what changes.
        joint_loss: (parts, x, mask) -> the loss with coefficients.
        x, mask: the client's examples.

    Returns:
        The parts, the state of the optimiser, and what is measured: the mean `loss` of
        the steps, and `code_norm`.
    """
    loss = partial(autoencoder_loss, local.network) if trains == OUTER else joint_loss
    num_steps = local.fit_steps if trains == PRIVATE else local.local_steps

    def objective(params):
        return loss(merge(parts, {"params": params}), x, mask)

    def step(carry, _):
        params, opt_state = carry
        value, gradients = jax.value_and_grad(objective)(params)
        updates, opt_state = local.optimizer.update(gradients, opt_state, params)
        return (jax.tree.map(jnp.add, params, updates), opt_state), value

    carry = (pick(parts, trains)["params"], opt_state)
    (params, opt_state), values = lax.scan(step, carry, None, length=num_steps)
    parts = merge(parts, {"params": params})
    z = encode(local.network, part(parts, "encoder"), x)
    norm = jnp.mean(jnp.linalg.norm(z, axis=-1), where=mask)
    return parts, opt_state, {"loss": values.mean(), "code_norm": norm}


def assign(
    network: SubspaceNetwork, spectral: Spectral, state: State, federation: Federation
) -> Int[Array, "M N"]:
    """As in `FederatedClustering`: by the coefficients that each client holds."""
    held = state.clients.parts["params"]["coefficients"]
    return cluster(spectral, jax.vmap(network.expression.matrix)(held), federation.mask)


def cluster(
    spectral: Spectral, coefficients: Float[Array, "M N N"], mask: Bool[Array, "M N"]
) -> Int[Array, "M N"]:
    """Clusters the examples of every client by its own coefficients, but for their
    diagonal: ids of different clients have nothing to do with each other."""

    def one(coefficients, mask):
        # In LRSC the largest entries of all are there, and say nothing.
        coefficients = losses.off_diagonal(coefficients, mask)
        # Always the same draws: clusters are a function of the state.
        order_key, seed_key = jax.random.split(jax.random.key(0))
        # Where eigenvalues coincide, their vectors follow the order of the examples,
        # which is often that of the classes: it must not tell.
        order = training.shuffle(order_key, mask)
        found = spectral_clustering(
            seed_key,
            spectral.affinity(coefficients[order][:, order], mask[order]),
            spectral.num_clusters,
            mask=mask[order],
            assign_labels=spectral.assign_labels,
        )
        return jnp.zeros_like(found).at[order].set(found)

    return clients.for_each(one, coefficients, mask)
