"""Subspace clustering: FDSC, DSCN, DLRSC and LRSC.

A client's deep subspace network: what FDSC, DSCN and DLRSC share.

Deep Subspace Clustering Networks
    Pan Ji, Tong Zhang, Hongdong Li, Mathieu Salzmann, Ian Reid. 2017.
    https://arxiv.org/abs/1709.02508
    Authors' code: https://github.com/panji1990/Deep-subspace-clustering-networks

FDSC: a shared encoder, and every client's own decoder and coefficients.

Federated Deep Subspace Clustering
    Yupei Zhang, Ruojia Feng, Yifei Wang, Xuequn Shang. 2025.
    https://arxiv.org/abs/2501.00230

DSCN: a deep subspace network of its own for every client, and nothing is shared.

Deep Subspace Clustering Networks
    Pan Ji, Tong Zhang, Hongdong Li, Mathieu Salzmann, Ian Reid. 2017.
    https://arxiv.org/abs/1709.02508
    Authors' code: https://github.com/panji1990/Deep-subspace-clustering-networks

DLRSC: DSCN whose coefficients have a low rank by construction.

Deep Low-Rank Subspace Clustering
    Mohsen Kheirandishfard, Fariba Zohrizadeh, Farhad Kamangar. 2020. CVPR Workshops.
    Authors' code: https://github.com/mohsenkheirandishfard/DLRSC

LRSC: the coefficients of least nuclear norm, in closed form.

Low Rank Subspace Clustering (LRSC)
    René Vidal, Paolo Favaro. 2014. Pattern Recognition Letters 43, 47-61.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from fcjax import losses
from fcjax.algorithms.averaging import Parts, merge, part, pick, put
from fcjax.algorithms.baselines import plain
from fcjax.algorithms.rounds import all_rounds
from fcjax.cluster import Assign, neighbor_graph, spectral_clustering
from fcjax.cluster.kmeans import clear
from fcjax.data.augment import client_rows, to_float
from fcjax.federated import clients, server, training
from fcjax.nn.autoencoders import AutoEncoder
from fcjax.types import (
    FederatedClustering,
    Federation,
    PRNGKey,
    PyTree,
    Scalar,
    Stage,
    State,
)

# --- Subspace

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
    z = encode_examples(network, part(parts, "encoder"), x)
    parts = put(parts, "decoder", decoder.init(decoder_key, z))
    coefficients = network.expression.init(coefficient_key, num_samples)
    return put(parts, "coefficients", {"params": coefficients})


def encode_examples(
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
    z = encode_examples(network, part(parts, "encoder"), x)
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
    z = encode_examples(network, part(parts, "encoder"), x)
    return _reconstruction(network, parts, x, z, mask)


def _reconstruction(network, parts, x, z, mask):
    decoder = part(parts, "decoder")
    decoded, _ = network.autoencoder.decoder.apply(decoder, z, train=False)
    x = network.pixel_scale * to_float(x)
    errors = losses.reconstruction_error(x, decoded)
    return jnp.sum(jnp.where(mask, errors, 0))


def train_network(
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
    z = encode_examples(local.network, part(parts, "encoder"), x)
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


# --- FDSC


class Server(NamedTuple):
    """What crosses the boundary is the encoder alone."""

    encoder: PyTree  # E_*
    num_rounds: Int[Array, ""]


class Setup(NamedTuple):
    """What all rounds share; see `fdsc`."""

    local: Local
    num_participants: int
    num_neighbors: int
    locality_weight: Scalar
    mean_locality: bool
    adjacency_weight: Scalar
    coefficient_weight: Scalar


def fdsc(
    network: SubspaceNetwork,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int,
    affinity: Affinity,
    num_rounds: int,
    num_participants: int,
    local_steps: int = 7,
    locality_weight: Scalar = 0.0,
    mean_locality: bool = False,
    adjacency_weight: Scalar = 1.0,
    coefficient_weight: Scalar = 1.0,
    num_neighbors: int = 5,
    pretrain_rounds: int = 0,
    fit_steps: int = 0,
    assign_labels: Assign = "kmeans",
) -> FederatedClustering:
    """Builds FDSC (Algorithm 1): FDSC1 with a `locality_weight` of 0, else FDSC2.

    Args:
        network: of which clients share the encoder; lambda_1 and lambda_2 are in it.
        optimizer: of a client. Its state stays there, and begins anew in each stage.
        num_clusters: K, of every client.
        affinity: from coefficients to what is clustered.
        num_rounds: T.
        num_participants: r m, how many clients a round draws among those that answer.
            Their p_i in the mean of encoders sum to 1; Eq. 6 sums over all clients.
        local_steps: tau, steps in a round on all examples of a client at once.
        locality_weight: lambda_3, of the squared Frobenius norm of alpha A - beta C.
            The paper prints the matrix itself, which is no number.
        mean_locality: lambda_3 weighs the mean over pairs of examples instead.
        adjacency_weight: alpha.
        coefficient_weight: beta.
        num_neighbors: k of the graph A of the examples as they are.
        pretrain_rounds: rounds of the auto-encoder without coefficients, before, its
            encoder shared; not in the paper, but in what it builds on.
        fit_steps: of a round before and a round after, in which every client takes the
            server's encoder, lets it stand, and trains decoder and coefficients to fit
            it; 0 leaves both out. The paper does not say how R_i and D_i begin, nor
            what becomes of clients that were not in the last round. A client that
            comes with no coefficients draws the codes of all to zero, by lambda_2.
            `dscn` has the same stages: a client by itself takes the same steps.
        assign_labels: see `cluster.spectral_clustering`.

    Returns:
        The method, stages `pretrain`, `start`, `train` and `fit`, all but `train` where
        they are asked for. Metrics are the `loss`, `participants`, `code_norm` (the
        mean norm of a code, which the objective lets shrink) and the traffic. An
        example's embedding is its code; its cluster is one of its client's K.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.cluster import symmetric_affinity
        >>> autoencoder = nn.autoencoder(5, widths=(8,), latent_size=3)
        >>> network = SubspaceNetwork(autoencoder, dense(), 1.0, 15.0)
        >>> method = fdsc(
        ...     *(network, optax.adam(1e-3)),
        ...     affinity=lambda coefficients, mask: symmetric_affinity(coefficients),
        ...     num_clusters=3, num_rounds=50, num_participants=2,
        ... )
        >>> [stage.name for stage in method.stages]
        ['train']
    """
    local = Local(
        network,
        optimizer,
        *(pretrain_rounds, num_rounds, local_steps, fit_steps),
    )
    spectral = Spectral(num_clusters, affinity, assign_labels)
    setup = Setup(
        *(local, num_participants, num_neighbors, locality_weight, mean_locality),
        *(adjacency_weight, coefficient_weight),
    )
    rounds = (partial(federated_round, setup), partial(fit_round, setup))
    return FederatedClustering(
        init=partial(initial_state, setup),
        stages=stages(local, *rounds),
        embed=partial(embed, setup),
        assign=partial(assign, network, spectral),
    )


def federated_round(
    setup: Setup, trains: Names, key: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """A round of Algorithm 1: clients that are drawn train the server's encoder and
    parts of their own, the server averages the encoders (Eq. 6)."""
    before: Server = state.server
    present = server.all_participants(federation, before.num_rounds)
    drawn = server.choose(key, present, setup.num_participants)
    chosen = clients.own(drawn, len(federation.indices))
    slots = clients.slots_of(chosen, setup.num_participants)
    encoders, private, measured = train(setup, trains, chosen, slots, state, federation)
    sizes = (chosen * federation.mask.sum(axis=1).astype(float))[slots]
    encoder, (answered, measured) = server.receive(
        encoders, sizes, (chosen[slots], measured)
    )
    message = {"encoder": encoder}
    metrics = server.measure(answered, measured)
    metrics |= server.traffic(answered, up=message, down=message)
    return State(Server(encoder, before.num_rounds + 1), private), metrics


def fit_round(
    setup: Setup, trains: Names, _: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """A round in which all clients that are present train what they never send to fit
    the server's encoder, which stands."""
    before: Server = state.server
    present = server.participants(federation, before.num_rounds)
    slots = clients.slots_of(present, len(present))
    private, measured = train(setup, trains, present, slots, state, federation)[1:]
    answered, measured = server.gather((present[slots], measured))
    metrics = server.measure(answered, measured)
    metrics |= server.traffic(answered, up={}, down={"encoder": before.encoder})
    return State(Server(before.encoder, before.num_rounds + 1), private), metrics


def train(
    setup: Setup,
    trains: Names,
    chosen: Bool[Array, "M"],
    slots: Int[Array, "C"],
    state: State,
    federation: Federation,
) -> tuple[PyTree, Private, dict[str, Float[Array, "C"]]]:
    """The chosen clients, who are at these places, train some parts.

    Returns:
        Their encoders, what stays on the clients, and what they measured.
    """
    before: Server = state.server
    private: Private = state.clients

    def one(private: Private, rows, mask):
        parts, x = put(private.parts, "encoder", before.encoder), federation.pool[rows]
        loss = partial(objective, setup, adjacency=private.adjacency)
        parts, opt_state, measured = train_network(
            setup.local, trains, parts, private.opt_state, loss, x, mask
        )
        stays = (pick(parts, PRIVATE), opt_state)
        return part(parts, "encoder"), stays, measured

    own = clients.take((private, federation.indices, federation.mask), slots)
    encoders, trained, measured = clients.for_each(one, *own)
    parts, opt_state = clients.put(private[:2], slots, trained, where=chosen)
    return encoders, Private(parts, opt_state, private.adjacency), measured


def objective(
    setup: Setup,
    parts: Parts,
    x: Shaped[Array, "N *F"],
    mask: Bool[Array, "N"],
    adjacency: Bool[Array, "N N"],
) -> Float[Array, ""]:
    """Returns Eq. 8 of a client, without halves."""
    network = setup.local.network
    locality = losses.locality_alignment(
        network.expression.matrix(parts["params"]["coefficients"]),
        adjacency,
        alpha=setup.adjacency_weight,
        beta=setup.coefficient_weight,
        mask=mask,
    )
    pairs = mask.sum() ** 2 if setup.mean_locality else 1
    value = subspace_loss(network, parts, x, mask)
    return value + setup.locality_weight / pairs * locality


def initial_state(setup: Setup, key: PRNGKey, federation: Federation) -> State:
    """Returns the state before the first round: E_*, each client's D_i and R_i, and its
    graph A_i of nearest neighbours."""
    (num_clients, count), x = federation.indices.shape, federation.pool[:1]
    draw = partial(init, setup.local.network, x=x, num_samples=count)
    private = pick(jax.vmap(draw)(clients.keys(key, num_clients)), PRIVATE)
    adjacency = clients.for_each(
        lambda x, mask: neighbor_graph(x, setup.num_neighbors, mask=mask),
        client_rows(federation, unit_length=False),
        federation.mask,
    )
    shared = Server(part(draw(key), "encoder"), jnp.int32(0))
    return State(shared, Private(private, (), adjacency))


def embed(setup: Setup, state: State, federation: Federation) -> Float[Array, "M N D"]:
    """As in `FederatedClustering`: codes by the server's encoder."""
    encode = partial(encode_examples, setup.local.network, state.server.encoder)
    return clients.for_each(
        lambda rows: encode(federation.pool[rows]),
        federation.indices,
    )


# --- DSCN


def dscn(
    network: SubspaceNetwork,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int,
    affinity: Affinity,
    num_rounds: int,
    local_steps: int = 1,
    pretrain_rounds: int = 0,
    fit_steps: int = 0,
    assign_labels: Assign = "kmeans",
) -> FederatedClustering:
    """Builds DSCN, with the coefficients of DLRSC where `network` has them.

    Args:
        network: what every client trains.
        optimizer: of each stage, beginning anew in the next.
        num_clusters: K, of every client.
        affinity: from coefficients to what is clustered.
        num_rounds: of the whole network.
        local_steps: steps on all examples of a client; rounds are but what is
            reported.
        pretrain_rounds: of the auto-encoder without coefficients, before.
        fit_steps: of a round before and a round after, in which the encoder stands and
            decoder and coefficients are trained to fit it, as in `fdsc`; neither
            DSC-Net nor DLRSC has them. 0 leaves both out.
        assign_labels: see `cluster.spectral_clustering`.

    Returns:
        The method, stages `pretrain`, `start`, `train` and `fit`, all but `train` where
        they are asked for. Metrics are the `loss`, `participants` and `code_norm`, the
        mean norm of a code, which the objective lets shrink. An example's embedding is
        its code, in the space of its client; its cluster is one of its client's K.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.cluster import symmetric_affinity
        >>> autoencoder = nn.autoencoder(5, widths=(8,), latent_size=3)
        >>> network = SubspaceNetwork(autoencoder, dense(), 1.0, 15.0)
        >>> method = dscn(
        ...     *(network, optax.adam(1e-3)),
        ...     affinity=lambda coefficients, mask: symmetric_affinity(coefficients),
        ...     num_clusters=3, num_rounds=50, pretrain_rounds=10,
        ... )
        >>> [stage.name for stage in method.stages]
        ['pretrain', 'train']
    """
    local = Local(
        network,
        optimizer,
        *(pretrain_rounds, num_rounds, local_steps, fit_steps),
    )
    spectral = Spectral(num_clusters, affinity, assign_labels)
    return FederatedClustering(
        init=partial(initial_dscn_state, local),
        stages=stages(local, partial(round, local), partial(round, local)),
        embed=partial(embed_dscn, local),
        assign=partial(assign, network, spectral),
    )


def round(
    local: Local, trains: Names, _: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """A round in which every client trains some of its parts, and nothing crosses: what
    it measures is for the metrics alone."""
    present = server.participants(federation, state.server)
    loss = partial(subspace_loss, local.network)

    def one(private: Private, rows, mask):
        parts, opt_state, measured = train_network(
            local, trains, *private[:2], loss, federation.pool[rows], mask
        )
        return Private(parts, opt_state), measured

    new, measured = clients.for_each(
        *(one, state.clients, federation.indices, federation.mask)
    )
    private = clients.keep_absent(present, new, state.clients)
    metrics = server.measure(*server.gather((present, measured)))
    return State(state.server + 1, private), metrics


def initial_dscn_state(local: Local, key: PRNGKey, federation: Federation) -> State:
    """Returns the state before the first round, every client's drawn by itself; the
    server counts the rounds."""
    (num_clients, count), x = federation.indices.shape, federation.pool[:1]
    draw = partial(init, local.network, x=x, num_samples=count)
    parts = jax.vmap(draw)(clients.keys(key, num_clients))
    return State(jnp.int32(0), Private(parts))


def embed_dscn(
    local: Local, state: State, federation: Federation
) -> Float[Array, "M N D"]:
    """As in `FederatedClustering`: codes, in the space of each client."""

    def codes(encoder, rows):
        return encode_examples(local.network, encoder, federation.pool[rows])

    encoders = part(state.clients.parts, "encoder")
    return clients.for_each(codes, encoders, federation.indices)


# --- DLRSC


def dlrsc(
    network: SubspaceNetwork,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int,
    rank_factor: int = 10,
    **options: Any,
) -> FederatedClustering:
    """Builds DLRSC: every client trains a network of its own, with C = U U^T.

    Args:
        network: what every client trains; its coefficients are replaced, and lambda_1
            weighs |U|^2.
        optimizer, num_clusters: as in `dscn`.
        rank_factor: columns of U for each cluster, as in the authors' code; there are
            at most as many as a client has examples.
        **options: as in `dscn`.

    Returns:
        As `dscn`.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.algorithms.fdsc import dense
        >>> from fcjax.cluster import symmetric_affinity
        >>> autoencoder = nn.autoencoder(5, widths=(8,), latent_size=3)
        >>> method = dlrsc(
        ...     *(SubspaceNetwork(autoencoder, dense(), 1.0, 15.0), optax.adam(1e-3)),
        ...     affinity=lambda coefficients, mask: symmetric_affinity(coefficients),
        ...     num_clusters=3, num_rounds=50,
        ... )
        >>> [stage.name for stage in method.stages]
        ['train']
    """
    network = network._replace(expression=low_rank(rank_factor * num_clusters))
    return dscn(network, optimizer, num_clusters=num_clusters, **options)


# --- LRSC


def lrsc(
    *,
    num_clusters: int,
    affinity: Affinity,
    fidelity: Scalar = 1.0,
    unit_length: bool = True,
    assign_labels: Assign = "kmeans",
) -> FederatedClustering:
    """Builds LRSC: every client by itself, and nothing is shared.

    Args:
        num_clusters: K, of every client.
        affinity: from coefficients to what is clustered; the paper's is
            `cluster.symmetric_affinity`.
        fidelity: tau, of half the squared error beside the nuclear norm; singular
            values up to 1 / sqrt(tau) count as noise.
        unit_length: of the rows that are expressed, see `vectors.as_rows`.
        assign_labels: see `cluster.spectral_clustering`.

    Returns:
        The method, one stage of one round. Metrics are the `loss` (the objective, the
        mean over clients) and `participants`. An example's embedding is its row, its
        cluster one of its client's K.

    Examples:
        >>> from fcjax.cluster import symmetric_affinity
        >>> method = lrsc(
        ...     num_clusters=3,
        ...     affinity=lambda coefficients, mask: symmetric_affinity(coefficients),
        ... )
        >>> [(stage.name, stage.num_rounds) for stage in method.stages]
        [('cluster', 1)]
    """

    def init(_: PRNGKey, federation: Federation) -> State:
        num_clients, num_slots = federation.indices.shape
        nothing = jnp.zeros((num_clients, num_slots, num_slots))
        return State(jnp.int32(0), nothing)  # rounds, and the clients' coefficients

    def round(_: PRNGKey, state: State, federation: Federation):
        present = server.participants(federation, state.server)
        coefficients, objectives = clients.for_each(
            lambda x, mask: low_rank_coefficients(x, fidelity, mask=mask),
            client_rows(federation, unit_length=unit_length),
            federation.mask,
        )
        coefficients = clients.keep_absent(present, coefficients, state.clients)
        metrics = server.measure(*server.gather((present, {"loss": objectives})))
        return State(state.server + 1, coefficients), metrics

    def assign(state: State, federation: Federation):
        spectral = Spectral(num_clusters, affinity, assign_labels)
        return cluster(spectral, state.clients, federation.mask)

    method = plain(init, round, unit_length=unit_length)
    return method._replace(assign=assign)


def low_rank_coefficients(
    x: Float[Array, "N D"], fidelity: Scalar, *, mask: Bool[Array, "N"]
) -> tuple[Float[Array, "N N"], Float[Array, ""]]:
    """Returns the C that minimises |C|_* + fidelity / 2 |X - C X|_F^2, and the minimum.

    With X = U S V^T it is U_1 (1 - S_1^-2 / fidelity) U_1^T over the singular values
    above 1 / sqrt(fidelity) (the paper's Theorem on the noisy case, for examples as
    rows). Its diagonal is not zero. Masked examples have rows and columns of zeros.
    """
    x = clear(x, mask.astype(float))
    gram = jnp.matmul(x, x.T, precision=jax.lax.Precision.HIGHEST)
    squares, vectors = jnp.linalg.eigh(gram)  # of singular values
    is_kept = fidelity * squares > 1
    shrunk = jnp.where(is_kept, 1 - 1 / (fidelity * jnp.where(is_kept, squares, 1)), 0)
    coefficients = jnp.matmul(
        vectors * shrunk[None], vectors.T, precision=jax.lax.Precision.HIGHEST
    )
    # Rounding is left there.
    coefficients = jnp.where(mask[:, None] & mask[None], coefficients, 0)
    errors = (1 - shrunk) ** 2 * jnp.maximum(squares, 0)
    return coefficients, shrunk.sum() + fidelity / 2 * errors.sum()
