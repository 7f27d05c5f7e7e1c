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
from fcjax.algorithms.baselines import one_stage_method
from fcjax.algorithms.rounds import all_rounds
from fcjax.cluster import (
    neighbor_graph,
    spectral_clustering,
    subspace_affinity,
    symmetric_affinity,
)
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
"""The start of every coefficient, as in the PyTorch port of DSC-Net, from which the
weights of FDSC come. The authors' code starts with 0 for ORL, 1e-8 for COIL20 and 1e-4
for COIL100."""
FIRST_FACTOR = 1e-4
"""The standard deviation of DLRSC's factor at the start, as in its authors' code."""
ALL = ("encoder", "decoder", "coefficients")
OUTER = ("encoder", "decoder")
"""The parts that pre-training trains."""
PRIVATE = ("decoder", "coefficients")
"""The parts that a client of FDSC never sends."""
LARGEST_PIXEL = 255

Names = tuple[str, ...]
Parts = dict[str, PyTree]
"""By name: the variables of encoder and decoder, and the parameters of the
coefficients."""
Norm = Literal["frobenius", "l1", "nuclear"]


class Expression(NamedTuple):
    """A parametrization of a client's coefficients: row i of the matrix expresses
    example i by the other examples.
    """

    init: Callable[[PRNGKey, int], PyTree]
    """(key, N) -> parameters."""
    matrix: Callable[[PyTree], Float[Array, "N N"]]
    """(parameters) -> the matrix; its diagonal is never used."""
    penalty: Callable[[PyTree, Bool[Array, "N"]], Float[Array, ""]]
    """(parameters, mask) -> the norm that lambda_1 weighs."""


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


class Setup(NamedTuple):
    """The method's parts and settings, which all rounds share; see `fdsc`.

    A client trains an auto-encoder with a self-expressive layer between its halves.
    Squared errors are sums over features and examples, not means, and have no halves,
    as in the code of the lineage. FDSC's equations 2, 4 and 8 print halves.
    """

    autoencoder: AutoEncoder
    expression: Expression
    optimizer: optax.GradientTransformation
    settings: Any
    num_clusters: int
    is_aligned: bool = False
    """Whether coefficients are drawn to the graph of nearest neighbours (FDSC2)."""


class Private(NamedTuple):
    """The clients' state, which no client sends, [M, ...]."""

    parts: Parts  # decoder D_i and coefficients R_i; in DSCN also the encoder
    opt_state: PyTree = ()  # of the parts that the stage trains
    adjacency: Any = ()  # FDSC2's graph A_i, [M, N, N]


def stages(setup: Setup, round: Callable, fit: Callable) -> tuple[Stage, ...]:
    """Returns stages `pretrain`, `start`, `train` and `fit`, those that have rounds.

    Args:
        setup: of the method.
        round: trains the encoder and other parts. Takes the setup and the names of the
            parts, then the arguments of `Stage.round`.
        fit: trains the parts of `PRIVATE`; arguments as those of `round`.
    """
    settings, once = setup.settings, int(setup.settings.fit_steps > 0)
    rounds: dict[Names, Callable] = {
        OUTER: partial(round, setup, OUTER),
        ALL: partial(round, setup, ALL),
        PRIVATE: partial(fit, setup, PRIVATE),  # compiled once for two stages
    }
    every = (
        ("pretrain", OUTER, settings.pretrain_rounds),
        ("start", PRIVATE, once),
        ("train", ALL, settings.num_rounds),
        ("fit", PRIVATE, once),
    )
    return tuple(
        all_rounds(name, rounds[trains], n, begin=partial(begin_stage, setup, trains))
        for name, trains, n in every
        if n > 0
    )


def begin_stage(
    setup: Setup, trains: Names, _: PRNGKey, state: State, federation: Federation
) -> State:
    """Returns the state with new optimisers for the parts that the stage trains."""
    parts = state.clients.parts
    if "encoder" not in parts:  # it is shared
        sent = clients.repeat(state.server, len(federation.indices))
        parts = {**parts, "encoder": sent}
    opt_state = jax.vmap(setup.optimizer.init)(pick(parts, trains))
    return state._replace(clients=state.clients._replace(opt_state=opt_state))


def pick(parts: Parts, names: Names) -> Parts:
    """Returns the parts of these names."""
    return {name: parts[name] for name in names}


def init(
    setup: Setup, key: PRNGKey, x: Shaped[Array, "1 *F"], num_samples: int
) -> Parts:
    """Draws encoder, decoder and coefficients of a client with `num_samples` slots."""
    encoder_key, decoder_key, coefficient_key = jax.random.split(key, 3)
    encoder = setup.autoencoder.encoder.init(encoder_key, to_float(x))
    z = encode_examples(setup, encoder, x)
    decoder = setup.autoencoder.decoder.init(decoder_key, z)
    coefficients = setup.expression.init(coefficient_key, num_samples)
    return {"encoder": encoder, "decoder": decoder, "coefficients": coefficients}


def encode_examples(
    setup: Setup, encoder: PyTree, x: Shaped[Array, "N *F"]
) -> Float[Array, "N D"]:
    """Returns the codes Z."""
    x = setup.settings.pixel_scale * to_float(x)
    return setup.autoencoder.encoder.apply(encoder, x, train=False)[0]


def autoencoder_loss(
    setup: Setup, parts: Parts, x: Shaped[Array, "N *F"], mask: Bool[Array, "N"]
) -> Float[Array, ""]:
    """Returns |X - X'|^2, where X' is decoded from Z: pre-training."""
    z = encode_examples(setup, parts["encoder"], x)
    return _reconstruction(setup, parts, x, z, mask)


def subspace_loss(
    setup: Setup, parts: Parts, x: Shaped[Array, "N *F"], mask: Bool[Array, "N"]
) -> Float[Array, ""]:
    """Returns |X - X'|^2 + lambda_1 |C|^2 + lambda_2 |Z - C Z|^2, where X' is decoded
    from C Z: FDSC's Eq. 4.
    """
    settings, (_, matrix, penalty) = setup.settings, setup.expression
    z, held = encode_examples(setup, parts["encoder"], x), parts["coefficients"]
    expressed = losses.off_diagonal(matrix(held), mask) @ z
    return (
        _reconstruction(setup, parts, x, expressed, mask)
        + settings.penalty_weight * penalty(held, mask)
        + settings.expression_weight
        * losses.self_expression(z, matrix(held), mask=mask)
    )


def _reconstruction(setup, parts, x, z, mask):
    decoder = setup.autoencoder.decoder
    decoded, _ = decoder.apply(parts["decoder"], z, train=False)
    x = setup.settings.pixel_scale * to_float(x)
    errors = losses.reconstruction_error(x, decoded)
    return jnp.sum(jnp.where(mask, errors, 0))


def aligned_loss(
    setup: Setup,
    parts: Parts,
    x: Shaped[Array, "N *F"],
    mask: Bool[Array, "N"],
    adjacency: Bool[Array, "N N"],
) -> Float[Array, ""]:
    """Returns Eq. 8 of a client, without halves: FDSC2's loss."""
    settings = setup.settings
    locality = losses.locality_alignment(
        setup.expression.matrix(parts["coefficients"]),
        adjacency,
        alpha=settings.adjacency_weight,
        beta=settings.coefficient_weight,
        mask=mask,
    )
    pairs = mask.sum() ** 2 if settings.locality == "mean" else 1
    value = subspace_loss(setup, parts, x, mask)
    return value + locality_weight(settings) / pairs * locality


def locality_weight(settings: Any) -> Scalar:
    """Returns lambda_3 for the scale of the pixels.

    The setting is lambda_3 for pixels of 0 to 255 where it weighs the sum, and of 0 to
    1 where it weighs the mean. All other terms grow with the square of the scale.
    """
    largest = {"sum": LARGEST_PIXEL, "mean": 1}[settings.locality]
    scale = settings.pixel_scale / largest
    return settings.locality_weight * scale**2


def train_network(
    setup: Setup,
    trains: Names,
    own: Private,
    x: Shaped[Array, "N *F"],
    mask: Bool[Array, "N"],
) -> tuple[Private, dict[str, Float[Array, ""]]]:
    """Takes steps on all examples of a client at once, because coefficients tie each
    example to all others.

    Args:
        setup: of the method.
        trains: the parts that change; `OUTER` are trained without coefficients.
        own: the client's state, with an encoder.
        x: the client's examples.
        mask: False at padding.

    Returns:
        The client's new state, and its metrics: the mean `loss` of the steps, and
        `code_norm`, the mean norm of the codes.
    """
    settings = setup.settings
    num_steps = settings.fit_steps if trains == PRIVATE else settings.local_steps
    loss = partial(autoencoder_loss if trains == OUTER else subspace_loss, setup)
    if setup.is_aligned and trains != OUTER:
        loss = partial(aligned_loss, setup, adjacency=own.adjacency)

    def objective(trained):
        return loss({**own.parts, **trained}, x=x, mask=mask)

    def step(carry, _):
        trained, opt_state = carry
        value, gradients = jax.value_and_grad(objective)(trained)
        updates, opt_state = setup.optimizer.update(gradients, opt_state, trained)
        return (jax.tree.map(jnp.add, trained, updates), opt_state), value

    carry = (pick(own.parts, trains), own.opt_state)
    (trained, opt_state), values = lax.scan(step, carry, None, length=num_steps)
    parts = {**own.parts, **trained}
    z = encode_examples(setup, parts["encoder"], x)
    norm = jnp.mean(jnp.linalg.norm(z, axis=-1), where=mask)
    measured = {"loss": values.mean(), "code_norm": norm}
    return Private(parts, opt_state, own.adjacency), measured


def assign(setup: Setup, state: State, federation: Federation) -> Int[Array, "M N"]:
    """As in `FederatedClustering`: by each client's own coefficients."""
    held = state.clients.parts["coefficients"]
    coefficients = jax.vmap(setup.expression.matrix)(held)
    return cluster(setup.settings, setup.num_clusters, coefficients, federation.mask)


def cluster(
    settings: Any,
    num_clusters: int,
    coefficients: Float[Array, "M N N"],
    mask: Bool[Array, "M N"],
) -> Int[Array, "M N"]:
    """Clusters the examples of every client by its own coefficients without their
    diagonal. Equal cluster ids on two clients have no relation.
    """

    def one(coefficients, mask):
        # In LRSC the diagonal has the largest entries, which carry no information.
        coefficients = losses.off_diagonal(coefficients, mask)
        # The same draws every time: clusters are a function of the state.
        order_key, seed_key = jax.random.split(jax.random.key(0))
        # Eigenvectors of equal eigenvalues depend on the order of the examples, which
        # is often by class: a random order hides the classes.
        order = training.shuffle(order_key, mask)
        found = spectral_clustering(
            seed_key,
            affinity(
                settings, num_clusters, coefficients[order][:, order], mask[order]
            ),
            num_clusters,
            mask=mask[order],
            assign_labels=settings.assign_labels,
        )
        return jnp.zeros_like(found).at[order].set(found)

    return clients.for_each(one, coefficients, mask)


def affinity(
    settings: Any,
    num_clusters: int,
    coefficients: Float[Array, "N N"],
    mask: Bool[Array, "N"],
) -> Float[Array, "N N"]:
    """Returns |C| + |C|^T, or with post-processing the affinity of DSC-Net's code."""
    if not settings.post_processing:
        return symmetric_affinity(coefficients)
    return subspace_affinity(
        coefficients,
        num_clusters=num_clusters,
        keep=settings.keep,
        dimension=settings.dimension,
        power=settings.power,
        unit_diagonal=settings.unit_diagonal,
        mask=mask,
    )


# --- FDSC


def fdsc(
    settings: Any,
    autoencoder: AutoEncoder,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int,
    is_aligned: bool = True,
) -> FederatedClustering:
    """Builds FDSC (Algorithm 1).

    A round draws `num_participants` clients among those present. Their p_i in the mean
    of the encoders sum to 1, where Eq. 6 sums over all clients. lambda_3 weighs the
    squared Frobenius norm of alpha A - beta C; the paper prints the matrix itself.

    With `fit_steps` there is a round before and a round after, in which every client
    trains decoder and coefficients for the server's encoder, which does not change. The
    paper does not say how R_i and D_i begin, nor what happens to clients that miss the
    last round. A client whose coefficients are still zero would draw all codes to zero,
    by lambda_2. `dscn` has the same stages.

    Args:
        settings: an `fcjax.methods.FDSC` or `FDSC1` with one value per setting.
        autoencoder: of a client; clients share the encoder.
        optimizer: of a client. Its state stays there, and begins anew in each stage.
        num_clusters: K, of every client.
        is_aligned: True is FDSC2, False is FDSC1, without the graph of neighbours.

    Returns:
        The method, stages `pretrain`, `start`, `train` and `fit`; those without rounds
        are left out. Metrics are the `loss`, `participants`, `code_norm` (the mean norm
        of a code, which the objective lets shrink) and the traffic. An example's
        embedding is its code; its cluster is one of its client's K.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.methods import FDSC
        >>> autoencoder = nn.autoencoder(5, widths=(8,), latent_size=3)
        >>> settings = FDSC(num_rounds=50, num_participants=2).plain(pretrain_rounds=0)
        >>> method = fdsc(settings, autoencoder, optax.adam(1e-3), num_clusters=3)
        >>> [stage.name for stage in method.stages]
        ['start', 'train', 'fit']
    """
    expression = dense(norm=settings.norm)
    setup = Setup(
        autoencoder, expression, optimizer, settings, num_clusters, is_aligned
    )
    return FederatedClustering(
        init=partial(initial_state, setup),
        stages=stages(setup, federated_round, fit_round),
        embed=partial(embed, setup),
        assign=partial(assign, setup),
    )


def federated_round(
    setup: Setup, trains: Names, key: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """A round of Algorithm 1: the drawn clients train the server's encoder and parts of
    their own, and the server averages the encoders (Eq. 6).
    """
    num_participants = setup.settings.num_participants
    present = server.all_participants(federation)
    drawn = server.choose(key, present, num_participants)
    chosen = clients.on_this_device(drawn, len(federation.indices))
    slots = clients.sampled_indices(chosen, num_participants)
    encoders, private, measured = train(setup, trains, chosen, slots, state, federation)
    sizes = (chosen * federation.mask.sum(axis=1).astype(float))[slots]
    encoder, (answered, measured) = server.receive(
        encoders, sizes, (chosen[slots], measured)
    )
    message = {"encoder": encoder}
    metrics = server.measure(answered, measured)
    metrics |= server.traffic(answered, up=message, down=message)
    return State(encoder, private), metrics


def fit_round(
    setup: Setup, trains: Names, _: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """A round in which all clients that are present train their private parts for the
    server's encoder, which does not change.
    """
    present = server.participants(federation)
    slots = clients.sampled_indices(present, len(present))
    _, private, measured = train(setup, trains, present, slots, state, federation)
    answered, measured = server.gather((present[slots], measured))
    metrics = server.measure(answered, measured)
    metrics |= server.traffic(answered, up={}, down={"encoder": state.server})
    return state._replace(clients=private), metrics


def train(
    setup: Setup,
    trains: Names,
    chosen: Bool[Array, "M"],
    slots: Int[Array, "C"],
    state: State,
    federation: Federation,
) -> tuple[PyTree, Private, dict[str, Float[Array, "C"]]]:
    """Trains some parts of the chosen clients.

    Args:
        setup, trains: see `train_network`.
        chosen: the clients that train.
        slots: their indices.
        state, federation: as in `Stage`.

    Returns:
        Their encoders, the state of all clients, and the metrics of the chosen ones.
    """
    private: Private = state.clients

    def one(own: Private, rows, mask):
        own = own._replace(parts={**own.parts, "encoder": state.server})
        new, measured = train_network(setup, trains, own, federation.pool[rows], mask)
        stays = pick(new.parts, PRIVATE), new.opt_state
        return new.parts["encoder"], stays, measured

    own = clients.take((private, federation.indices, federation.mask), slots)
    encoders, trained, measured = clients.for_each(one, *own)
    parts, opt_state = clients.put(private[:2], slots, trained, where=chosen)
    return encoders, Private(parts, opt_state, private.adjacency), measured


def initial_state(setup: Setup, key: PRNGKey, federation: Federation) -> State:
    """Returns the state before the first round: E_*, each client's D_i and R_i, and in
    FDSC2 its graph A_i of nearest neighbours.
    """
    (num_clients, count), x = federation.indices.shape, federation.pool[:1]
    draw = partial(init, setup, x=x, num_samples=count)
    private = Private(pick(jax.vmap(draw)(clients.keys(key, num_clients)), PRIVATE))
    if setup.is_aligned:
        count = setup.settings.num_neighbors
        adjacency = clients.for_each(
            lambda x, mask: neighbor_graph(x, count, mask=mask),
            client_rows(federation, unit_length=False),
            federation.mask,
        )
        private = private._replace(adjacency=adjacency)
    return State(draw(key)["encoder"], private)  # E_* is all that crosses


def embed(setup: Setup, state: State, federation: Federation) -> Float[Array, "M N D"]:
    """As in `FederatedClustering`: codes by the server's encoder."""
    encode = partial(encode_examples, setup, state.server)
    return clients.for_each(
        lambda rows: encode(federation.pool[rows]), federation.indices
    )


# --- DSCN and DLRSC


def dscn(
    settings: Any,
    autoencoder: AutoEncoder,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int,
) -> FederatedClustering:
    """Builds DSCN: every client trains a network of its own.

    With `fit_steps` there is a round before and a round after, in which only decoder
    and coefficients are trained, as in `fdsc`; neither DSC-Net nor DLRSC has these.

    Args:
        settings: an `fcjax.methods.DSCN` with one value per setting.
        autoencoder: of every client.
        optimizer: of each stage, beginning anew in the next.
        num_clusters: K, of every client.

    Returns:
        The method, stages `pretrain`, `start`, `train` and `fit`; those without rounds
        are left out. Metrics are the `loss`, `participants` and `code_norm`, the mean
        norm of a code, which the objective lets shrink. An example's embedding is its
        code, in the space of its client; its cluster is one of its client's K.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.methods import DSCN
        >>> autoencoder = nn.autoencoder(5, widths=(8,), latent_size=3)
        >>> settings = DSCN(num_rounds=50, fit_steps=0).plain(pretrain_rounds=10)
        >>> method = dscn(settings, autoencoder, optax.adam(1e-3), num_clusters=3)
        >>> [stage.name for stage in method.stages]
        ['pretrain', 'train']
    """
    expression = dense(norm=settings.norm)
    return alone(Setup(autoencoder, expression, optimizer, settings, num_clusters))


def dlrsc(
    settings: Any,
    autoencoder: AutoEncoder,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int,
) -> FederatedClustering:
    """Builds DLRSC: DSCN with C = U U^T, where lambda_1 weighs |U|^2.

    U has `rank_factor` columns for each cluster, as in the authors' code, and at most
    as many as a client has examples.

    Args:
        settings: an `fcjax.methods.DLRSC` with one value per setting.
        autoencoder, optimizer, num_clusters: as in `dscn`.

    Returns:
        As `dscn`.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.methods import DLRSC
        >>> autoencoder = nn.autoencoder(5, widths=(8,), latent_size=3)
        >>> settings = DLRSC(num_rounds=50, fit_steps=0).plain(pretrain_rounds=0)
        >>> method = dlrsc(settings, autoencoder, optax.adam(1e-3), num_clusters=3)
        >>> [stage.name for stage in method.stages]
        ['train']
    """
    expression = low_rank(settings.rank_factor * num_clusters)
    return alone(Setup(autoencoder, expression, optimizer, settings, num_clusters))


def alone(setup: Setup) -> FederatedClustering:
    """Returns the method in which every client trains its network by itself."""
    return FederatedClustering(
        init=partial(initial_networks, setup),
        stages=stages(setup, local_round, local_round),
        embed=partial(own_codes, setup),
        assign=partial(assign, setup),
    )


def local_round(
    setup: Setup, trains: Names, _: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """A round in which every client trains some of its parts. Nothing is sent; the
    server only sees metrics.
    """
    present = server.participants(federation)

    def one(own: Private, rows, mask):
        return train_network(setup, trains, own, federation.pool[rows], mask)

    new, measured = clients.for_each(
        one, state.clients, federation.indices, federation.mask
    )
    private = clients.keep_absent(present, new, state.clients)
    metrics = server.measure(*server.gather((present, measured)))
    return State((), private), metrics


def initial_networks(setup: Setup, key: PRNGKey, federation: Federation) -> State:
    """Returns the state before the first round, in which every client has drawn its own
    network.
    """
    (num_clients, count), x = federation.indices.shape, federation.pool[:1]
    draw = partial(init, setup, x=x, num_samples=count)
    parts = jax.vmap(draw)(clients.keys(key, num_clients))
    return State((), Private(parts))


def own_codes(
    setup: Setup, state: State, federation: Federation
) -> Float[Array, "M N D"]:
    """As in `FederatedClustering`: codes, in the space of each client."""

    def codes(encoder, rows):
        return encode_examples(setup, encoder, federation.pool[rows])

    return clients.for_each(codes, state.clients.parts["encoder"], federation.indices)


# --- LRSC


def lrsc(settings: Any, *, num_clusters: int) -> FederatedClustering:
    """Builds LRSC: every client by itself, and nothing is shared.

    `fidelity` is tau, the weight of half the squared error beside the nuclear norm;
    singular values up to 1 / sqrt(tau) count as noise.

    Args:
        settings: an `fcjax.methods.LRSC` with one value per setting.
        num_clusters: K, of every client.

    Returns:
        The method, one stage of one round. Metrics are the `loss` (the objective, the
        mean over clients) and `participants`. An example's embedding is its row, its
        cluster one of its client's K.

    Examples:
        >>> from fcjax.methods import LRSC
        >>> method = lrsc(LRSC().plain(), num_clusters=3)
        >>> [(stage.name, stage.num_rounds) for stage in method.stages]
        [('cluster', 1)]
    """

    def init(_: PRNGKey, federation: Federation) -> State:
        num_clients, padded_size = federation.indices.shape
        nothing = jnp.zeros((num_clients, padded_size, padded_size))
        return State((), nothing)  # the clients' coefficients

    def round(_: PRNGKey, state: State, federation: Federation):
        present = server.participants(federation)
        coefficients, objectives = clients.for_each(
            lambda x, mask: low_rank_coefficients(x, settings.fidelity, mask=mask),
            client_rows(federation, unit_length=settings.unit_length),
            federation.mask,
        )
        coefficients = clients.keep_absent(present, coefficients, state.clients)
        metrics = server.measure(*server.gather((present, {"loss": objectives})))
        return State((), coefficients), metrics

    def assign(state: State, federation: Federation):
        return cluster(settings, num_clusters, state.clients, federation.mask)

    method = one_stage_method(init, round, unit_length=settings.unit_length)
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
