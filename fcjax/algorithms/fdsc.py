"""Subspace clustering: FDSC, DSCN, DLRSC and LRSC.

In all four methods, each client expresses each of its examples by its other examples
and clusters the coefficients of this expression. Cluster ids of different clients are
not related.

* `fdsc`: FDSC. Clients share an encoder. Each has its own decoder and coefficients.
* `dscn`: DSCN. Every client trains its own deep subspace network; nothing is shared.
* `dlrsc`: DLRSC. DSCN with coefficients of low rank.
* `lrsc`: LRSC. Coefficients of least nuclear norm on the raw examples, in closed form.

Federated Deep Subspace Clustering
    Yupei Zhang, Ruojia Feng, Yifei Wang, Xuequn Shang. 2025.
    https://arxiv.org/abs/2501.00230

Deep Subspace Clustering Networks
    Pan Ji, Tong Zhang, Hongdong Li, Mathieu Salzmann, Ian Reid. 2017.
    https://arxiv.org/abs/1709.02508
    Authors' code: https://github.com/panji1990/Deep-subspace-clustering-networks

Deep Low-Rank Subspace Clustering
    Mohsen Kheirandishfard, Fariba Zohrizadeh, Farhad Kamangar. 2020. CVPR Workshops.
    Authors' code: https://github.com/mohsenkheirandishfard/DLRSC

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

# --- The subspace network of a client

FIRST_COEFFICIENT = 1e-8
"""Initial value of every coefficient, as in the PyTorch port of DSC-Net, whose weights
FDSC uses. The authors' code starts with 0 for ORL, 1e-8 for COIL20 and 1e-4 for
COIL100."""
FIRST_FACTOR = 1e-4
"""Initial standard deviation of DLRSC's factor U, as in its authors' code."""
ALL = ("encoder", "decoder", "coefficients")
"""The names of all parts of a client's network."""
OUTER = ("encoder", "decoder")
"""The parts that pre-training trains."""
PRIVATE = ("decoder", "coefficients")
"""The parts that a client of FDSC never uploads."""
LARGEST_PIXEL = 255
"""Largest value of an 8-bit pixel."""

Names = tuple[str, ...]
"""Names of parts, some of `ALL`."""
Parts = dict[str, PyTree]
"""Parts by name: the variables of encoder and decoder, and the parameters of the
coefficients."""
Norm = Literal["frobenius", "l1", "nuclear"]
"""The norm of the coefficients, see `losses.coefficient_penalty`."""


class Expression(NamedTuple):
    """A parametrization of a client's coefficients.

    Row i of the coefficient matrix expresses example i by the other examples.
    """

    init: Callable[[PRNGKey, int], PyTree]
    """(key, N) -> initial parameters for N examples."""
    matrix: Callable[[PyTree], Float[Array, "N N"]]
    """(parameters) -> the coefficient matrix; its diagonal is never used."""
    penalty: Callable[[PyTree, Bool[Array, "N"]], Float[Array, ""]]
    """(parameters, mask) -> the penalty that lambda_1 multiplies."""


def dense(*, norm: Norm = "frobenius") -> Expression:
    """Returns a parametrization by a full N x N matrix, as in DSC-Net and FDSC.

    Args:
        norm: norm of the coefficients in the penalty.

    Returns:
        The parametrization.
    """
    return Expression(
        lambda key, count: jnp.full((count, count), jnp.float32(FIRST_COEFFICIENT)),
        lambda c: c,
        lambda c, mask: losses.coefficient_penalty(c, norm=norm, mask=mask),
    )


def low_rank(rank: int) -> Expression:
    """Returns the parametrization C = U U^T with a factor U [N, rank], as in DLRSC.

    Args:
        rank: number of columns of U, at least 1. A client with N examples uses at most
            N.

    Returns:
        The parametrization. Its penalty is |U|_F^2.
    """

    def init(key: PRNGKey, count: int):
        row = partial(jax.random.normal, shape=(min(rank, count),))
        return FIRST_FACTOR * jax.vmap(row)(clients.fold_in(key, count))

    def penalty(factor, mask):
        return jnp.sum(jnp.where(mask[:, None], factor, 0) ** 2)

    return Expression(init, lambda factor: factor @ factor.T, penalty)


class Setup(NamedTuple):
    """The networks and settings that all rounds share; see `fdsc`.

    A client trains an auto-encoder with a self-expressive layer between encoder and
    decoder. Squared errors are sums over features and examples, not means, and have no
    factor 1/2, as in the code of DSC-Net. Equations 2, 4 and 8 of FDSC print a factor
    1/2.
    """

    autoencoder: AutoEncoder
    expression: Expression
    optimizer: optax.GradientTransformation
    settings: Any
    """The method's settings, with one value per setting."""
    num_clusters: int
    is_aligned: bool = False
    """Whether coefficients are pulled to the graph of nearest neighbours (FDSC2)."""


class Private(NamedTuple):
    """The clients' private state [M, ...], which is never uploaded."""

    parts: Parts
    """Decoder D_i and coefficients R_i of each client; in DSCN also its encoder."""
    opt_state: PyTree = ()
    """Optimizer state of the parts that the current stage trains."""
    adjacency: Any = ()
    """FDSC2's neighbour graphs A_i [M, N, N]; () in the other methods."""


def stages(setup: Setup, round: Callable, fit: Callable) -> tuple[Stage, ...]:
    """Returns the stages `pretrain`, `start`, `train` and `fit`.

    Stages without rounds are left out.

    Args:
        setup: networks and settings of the method.
        round: trains the encoder and other parts in a round. Its arguments are the
            setup, the names of the parts, and the arguments of `Stage.round`.
        fit: trains the parts of `PRIVATE` in a round. Its arguments are those of
            `round`.

    Returns:
        The stages.
    """
    settings, once = setup.settings, int(setup.settings.fit_steps > 0)
    rounds: dict[Names, Callable] = {
        OUTER: partial(round, setup, OUTER),
        ALL: partial(round, setup, ALL),
        # The stages `start` and `fit` share this function, so it is compiled once.
        PRIVATE: partial(fit, setup, PRIVATE),
    }
    all_stages = (
        ("pretrain", OUTER, settings.pretrain_rounds),
        ("start", PRIVATE, once),
        ("train", ALL, settings.num_rounds),
        ("fit", PRIVATE, once),
    )
    return tuple(
        all_rounds(name, rounds[trains], n, begin=partial(begin_stage, setup, trains))
        for name, trains, n in all_stages
        if n > 0
    )


def begin_stage(
    setup: Setup, trains: Names, _: PRNGKey, state: State, federation: Federation
) -> State:
    """Returns the state at the start of a stage, with new optimizer states.

    Args:
        setup: networks and settings of the method.
        trains: names of the parts that the stage trains.
        state: the state after the previous stage.
        federation: the clients' data.

    Returns:
        The state before the first round of the stage.
    """
    parts = state.clients.parts
    if "encoder" not in parts:  # The encoder is shared and part of the server's state.
        encoders = clients.repeat(state.server, len(federation.indices))
        parts = {**parts, "encoder": encoders}
    opt_state = jax.vmap(setup.optimizer.init)(pick(parts, trains))
    return state._replace(clients=state.clients._replace(opt_state=opt_state))


def pick(parts: Parts, names: Names) -> Parts:
    """Returns the parts with these names.

    Args:
        parts: parts by name.
        names: names of parts.

    Returns:
        The selected parts by name.
    """
    return {name: parts[name] for name in names}


def init(
    setup: Setup, key: PRNGKey, x: Shaped[Array, "1 *F"], num_samples: int
) -> Parts:
    """Draws encoder, decoder and coefficients of one client.

    Args:
        setup: networks and settings of the method.
        key: random key.
        x: one example [1, *F]; only its shape and type are used.
        num_samples: padded number N of the client's examples.

    Returns:
        All parts by name.
    """
    encoder_key, decoder_key, coefficient_key = jax.random.split(key, 3)
    encoder = setup.autoencoder.encoder.init(encoder_key, to_float(x))
    z = encode_examples(setup, encoder, x)
    decoder = setup.autoencoder.decoder.init(decoder_key, z)
    coefficients = setup.expression.init(coefficient_key, num_samples)
    return {"encoder": encoder, "decoder": decoder, "coefficients": coefficients}


def encode_examples(
    setup: Setup, encoder: PyTree, x: Shaped[Array, "N *F"]
) -> Float[Array, "N D"]:
    """Returns the codes of examples.

    Args:
        setup: networks and settings of the method.
        encoder: variables of the encoder.
        x: examples [N, *F].

    Returns:
        The codes Z [N, D].
    """
    x = setup.settings.pixel_scale * to_float(x)
    return setup.autoencoder.encoder.apply(encoder, x, train=False)[0]


def autoencoder_loss(
    setup: Setup, parts: Parts, x: Shaped[Array, "N *F"], mask: Bool[Array, "N"]
) -> Float[Array, ""]:
    """Returns the loss of pre-training, |X - X'|^2, where X' is decoded from Z.

    Args:
        setup: networks and settings of the method.
        parts: parts of a client.
        x: the client's examples [N, *F].
        mask: [N], False at padding.

    Returns:
        The sum of squared errors.
    """
    z = encode_examples(setup, parts["encoder"], x)
    return _reconstruction(setup, parts, x, z, mask)


def subspace_loss(
    setup: Setup, parts: Parts, x: Shaped[Array, "N *F"], mask: Bool[Array, "N"]
) -> Float[Array, ""]:
    """Returns the loss of a deep subspace network: equation 4 of FDSC.

    The loss is |X - X'|^2 + lambda_1 |C|^2 + lambda_2 |Z - C Z|^2, where X' is decoded
    from C Z.

    Args:
        setup: networks and settings of the method.
        parts: parts of a client.
        x: the client's examples [N, *F].
        mask: [N], False at padding.

    Returns:
        The loss, a sum over examples.
    """
    settings, (_, matrix, penalty) = setup.settings, setup.expression
    z, coefficients = encode_examples(setup, parts["encoder"], x), parts["coefficients"]
    expressed = losses.off_diagonal(matrix(coefficients), mask) @ z
    return (
        _reconstruction(setup, parts, x, expressed, mask)
        + settings.penalty_weight * penalty(coefficients, mask)
        + settings.expression_weight
        * losses.self_expression(z, matrix(coefficients), mask=mask)
    )


def _reconstruction(setup, parts, x, z, mask):
    """Returns |X - X'|^2, where X' is decoded from the codes `z`."""
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
    """Returns FDSC2's loss of one client: equation 8 without factors 1/2.

    Args:
        setup: networks and settings of the method.
        parts: parts of a client.
        x: the client's examples [N, *F].
        mask: [N], False at padding.
        adjacency: neighbour graph of the client's examples [N, N].

    Returns:
        The loss, a sum over examples.
    """
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
    """Returns lambda_3 for the scale of the pixels in use.

    All other terms of the loss grow with the square of the pixel scale, so lambda_3 has
    to do so, too. The setting `locality_weight` refers to pixels of 0 to 255 if it
    multiplies the sum over pairs, and to pixels of 0 to 1 if it multiplies the mean.

    Args:
        settings: settings of the method.

    Returns:
        The weight of the locality term.
    """
    largest = {"sum": LARGEST_PIXEL, "mean": 1}[settings.locality]
    scale = settings.pixel_scale / largest
    return settings.locality_weight * scale**2


def train_network(
    setup: Setup,
    trains: Names,
    client: Private,
    x: Shaped[Array, "N *F"],
    mask: Bool[Array, "N"],
) -> tuple[Private, dict[str, Float[Array, ""]]]:
    """Trains some parts of one client's network.

    Each step uses all examples of the client at once, because the coefficients connect
    each example to all others.

    Args:
        setup: networks and settings of the method.
        trains: names of the parts to train. `OUTER` is trained without coefficients.
        client: the client's state, encoder included.
        x: the client's examples [N, *F].
        mask: [N], False at padding.

    Returns:
        The client's new state and its metrics: the mean `loss` of the steps, and
        `code_norm`, the mean norm of the codes.
    """
    settings = setup.settings
    num_steps = settings.fit_steps if trains == PRIVATE else settings.local_steps
    loss = partial(autoencoder_loss if trains == OUTER else subspace_loss, setup)
    if setup.is_aligned and trains != OUTER:
        loss = partial(aligned_loss, setup, adjacency=client.adjacency)

    def objective(trained):
        return loss({**client.parts, **trained}, x=x, mask=mask)

    def step(carry, _):
        trained, opt_state = carry
        value, gradients = jax.value_and_grad(objective)(trained)
        updates, opt_state = setup.optimizer.update(gradients, opt_state, trained)
        return (jax.tree.map(jnp.add, trained, updates), opt_state), value

    carry = (pick(client.parts, trains), client.opt_state)
    (trained, opt_state), values = lax.scan(step, carry, None, length=num_steps)
    parts = {**client.parts, **trained}
    z = encode_examples(setup, parts["encoder"], x)
    norm = jnp.mean(jnp.linalg.norm(z, axis=-1), where=mask)
    measured = {"loss": values.mean(), "code_norm": norm}
    return Private(parts, opt_state, client.adjacency), measured


def assign(setup: Setup, state: State, federation: Federation) -> Int[Array, "M N"]:
    """Clusters every client's examples by the client's own coefficients.

    Args:
        setup: networks and settings of the method.
        state: the current state.
        federation: the clients' data.

    Returns:
        The clusters [M, N].
    """
    parameters = state.clients.parts["coefficients"]
    coefficients = jax.vmap(setup.expression.matrix)(parameters)
    return cluster(setup.settings, setup.num_clusters, coefficients, federation.mask)


def cluster(
    settings: Any,
    num_clusters: int,
    coefficients: Float[Array, "M N N"],
    mask: Bool[Array, "M N"],
) -> Int[Array, "M N"]:
    """Clusters the examples of every client by spectral clustering of its coefficients.

    The diagonal of the coefficients is ignored. Equal cluster ids of two clients are
    not related.

    Args:
        settings: settings of the method.
        num_clusters: number K of clusters of each client.
        coefficients: coefficients of each client [M, N, N].
        mask: [M, N], False at padding.

    Returns:
        The clusters [M, N].
    """

    def cluster_client(coefficients, mask):
        # In LRSC, the diagonal has the largest entries, which carry no information.
        coefficients = losses.off_diagonal(coefficients, mask)
        # A constant key makes the clusters a function of the state.
        order_key, seed_key = jax.random.split(jax.random.key(0))
        # Eigenvectors of equal eigenvalues depend on the order of the examples, which
        # are often sorted by class. A random order prevents a leak of the classes.
        order = training.shuffle(order_key, mask)
        clusters = spectral_clustering(
            seed_key,
            affinity(
                settings, num_clusters, coefficients[order][:, order], mask[order]
            ),
            num_clusters,
            mask=mask[order],
            assign_labels=settings.assign_labels,
        )
        return jnp.zeros_like(clusters).at[order].set(clusters)

    return clients.for_each(cluster_client, coefficients, mask)


def affinity(
    settings: Any,
    num_clusters: int,
    coefficients: Float[Array, "N N"],
    mask: Bool[Array, "N"],
) -> Float[Array, "N N"]:
    """Returns |C| + |C|^T, or the affinity of DSC-Net's code with post-processing.

    Args:
        settings: settings of the method; `post_processing` selects the affinity.
        num_clusters: number K of clusters.
        coefficients: coefficients of one client [N, N].
        mask: [N], False at padding.

    Returns:
        The affinity matrix [N, N].
    """
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

    In each round, `num_participants` of the available clients are drawn. The mean of
    their encoders uses weights p_i that sum to 1 over the drawn clients; equation 6
    sums over all clients. lambda_3 multiplies the squared Frobenius norm of alpha A -
    beta C; the paper prints the matrix itself.

    With `fit_steps` above 0, there is one extra round before training and one after it.
    In it, every client trains its decoder and coefficients for the server's encoder,
    which stays unchanged. The paper does not say how R_i and D_i start, nor what
    happens to clients that are not drawn in the last round. A client whose coefficients
    are still zero would pull all codes to zero through the term of lambda_2. `dscn` has
    the same stages.

    Args:
        settings: an `fcjax.methods.FDSC` or `FDSC1` with one value per setting.
        autoencoder: encoder and decoder of a client; clients share the encoder.
        optimizer: optimizer of a client. Its state stays on the client and starts again
            in each stage.
        num_clusters: number K of clusters of every client.
        is_aligned: True builds FDSC2; False builds FDSC1, without the neighbour graph.

    Returns:
        The method, with stages `pretrain`, `start`, `train` and `fit`; stages without
        rounds are left out. Metrics are the `loss`, `participants`, `code_norm` (the
        mean norm of a code, which may shrink during training) and the traffic. The
        embedding of an example is its code. Its cluster is one of the K clusters of its
        client.

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
    """Runs a round of Algorithm 1.

    The drawn clients train the server's encoder and parts of their own. The server
    averages the encoders (equation 6).

    Args:
        setup: networks and settings of the method.
        trains: names of the parts to train.
        key: random key of the round.
        state: the state before the round.
        federation: the clients' data.

    Returns:
        The state after the round, and its metrics.
    """
    num_participants = setup.settings.num_participants
    present = server.all_participants(federation)
    drawn_of_all = server.choose(key, present, num_participants)
    chosen = clients.on_this_device(drawn_of_all, len(federation.indices))
    client_indices = clients.sampled_indices(chosen, num_participants)
    encoders, private, measured = train(
        setup, trains, chosen, client_indices, state, federation
    )
    sizes = (chosen * federation.mask.sum(axis=1).astype(float))[client_indices]
    encoder, (participating, measured) = server.receive(
        encoders, sizes, (chosen[client_indices], measured)
    )
    message = {"encoder": encoder}
    metrics = server.measure(participating, measured)
    metrics |= server.traffic(participating, up=message, down=message)
    return State(encoder, private), metrics


def fit_round(
    setup: Setup, trains: Names, _: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """Runs a round in which all available clients train their private parts.

    They train for the server's encoder, which stays unchanged.

    Args:
        setup: networks and settings of the method.
        trains: names of the parts to train.
        state: the state before the round.
        federation: the clients' data.

    Returns:
        The state after the round, and its metrics.
    """
    present = server.participants(federation)
    client_indices = clients.sampled_indices(present, len(present))
    _, private, measured = train(
        setup, trains, present, client_indices, state, federation
    )
    participating, measured = server.gather((present[client_indices], measured))
    metrics = server.measure(participating, measured)
    metrics |= server.traffic(participating, up={}, down={"encoder": state.server})
    return state._replace(clients=private), metrics


def train(
    setup: Setup,
    trains: Names,
    chosen: Bool[Array, "M"],
    client_indices: Int[Array, "C"],
    state: State,
    federation: Federation,
) -> tuple[PyTree, Private, dict[str, Float[Array, "C"]]]:
    """Trains some parts of the chosen clients.

    Args:
        setup: networks and settings of the method.
        trains: names of the parts to train.
        chosen: [M], True at clients that train.
        client_indices: indices of the clients that train, then of others [C].
        state: the state before the round.
        federation: the clients' data.

    Returns:
        The encoders of the clients at `client_indices`, the private state of all
        clients, and the metrics of the clients at `client_indices`.
    """
    private: Private = state.clients

    def train_client(client: Private, rows, mask):
        client = client._replace(parts={**client.parts, "encoder": state.server})
        new, measured = train_network(
            setup, trains, client, federation.pool[rows], mask
        )
        new_private = pick(new.parts, PRIVATE), new.opt_state
        return new.parts["encoder"], new_private, measured

    inputs = clients.take(
        (private, federation.indices, federation.mask), client_indices
    )
    encoders, trained, measured = clients.for_each(train_client, *inputs)
    parts, opt_state = clients.put(private[:2], client_indices, trained, where=chosen)
    return encoders, Private(parts, opt_state, private.adjacency), measured


def initial_state(setup: Setup, key: PRNGKey, federation: Federation) -> State:
    """Returns the state before the first round.

    It consists of the encoder E_*, each client's decoder D_i and coefficients R_i, and
    in FDSC2 each client's graph A_i of nearest neighbours.

    Args:
        setup: networks and settings of the method.
        key: random key.
        federation: the clients' data.

    Returns:
        The initial state.
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
    return State(draw(key)["encoder"], private)


def embed(setup: Setup, state: State, federation: Federation) -> Float[Array, "M N D"]:
    """Returns the codes of every client's examples with the server's encoder.

    Args:
        setup: networks and settings of the method.
        state: the current state.
        federation: the clients' data.

    Returns:
        The codes [M, N, D].
    """
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
    """Builds DSCN: every client trains its own deep subspace network.

    With `fit_steps` above 0, there is one extra round before training and one after it,
    in which only decoder and coefficients are trained, as in `fdsc`. The papers of
    DSC-Net and DLRSC do not have these rounds.

    Args:
        settings: an `fcjax.methods.DSCN` with one value per setting.
        autoencoder: encoder and decoder of every client.
        optimizer: optimizer of a client. Its state starts again in each stage.
        num_clusters: number K of clusters of every client.

    Returns:
        The method, with stages `pretrain`, `start`, `train` and `fit`; stages without
        rounds are left out. Metrics are the `loss`, `participants` and `code_norm` (the
        mean norm of a code, which may shrink during training). The embedding of an
        example is its code, in a space that differs between clients. Its cluster is one
        of the K clusters of its client.

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
    return without_server(
        Setup(autoencoder, expression, optimizer, settings, num_clusters)
    )


def dlrsc(
    settings: Any,
    autoencoder: AutoEncoder,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int,
) -> FederatedClustering:
    """Builds DLRSC: DSCN with coefficients C = U U^T.

    lambda_1 multiplies |U|_F^2. U has `rank_factor` columns per cluster, as in the
    authors' code, but not more columns than a client has examples.

    Args:
        settings: an `fcjax.methods.DLRSC` with one value per setting.
        autoencoder: encoder and decoder of every client.
        optimizer: optimizer of a client. Its state starts again in each stage.
        num_clusters: number K of clusters of every client.

    Returns:
        The method, with the stages, metrics, embeddings and clusters of `dscn`.

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
    return without_server(
        Setup(autoencoder, expression, optimizer, settings, num_clusters)
    )


def without_server(setup: Setup) -> FederatedClustering:
    """Builds a method in which every client trains its network alone.

    Args:
        setup: networks and settings of the method.

    Returns:
        The method.
    """
    return FederatedClustering(
        init=partial(initial_networks, setup),
        stages=stages(setup, local_round, local_round),
        embed=partial(local_codes, setup),
        assign=partial(assign, setup),
    )


def local_round(
    setup: Setup, trains: Names, _: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """Runs a round in which every available client trains some of its parts.

    Nothing is uploaded except metrics.

    Args:
        setup: networks and settings of the method.
        trains: names of the parts to train.
        state: the state before the round.
        federation: the clients' data.

    Returns:
        The state after the round, and its metrics.
    """
    present = server.participants(federation)

    def train_client(client: Private, rows, mask):
        return train_network(setup, trains, client, federation.pool[rows], mask)

    new, measured = clients.for_each(
        train_client, state.clients, federation.indices, federation.mask
    )
    private = clients.keep_absent(present, new, state.clients)
    metrics = server.measure(*server.gather((present, measured)))
    return State((), private), metrics


def initial_networks(setup: Setup, key: PRNGKey, federation: Federation) -> State:
    """Returns the state before the first round: a random network for every client.

    Args:
        setup: networks and settings of the method.
        key: random key.
        federation: the clients' data.

    Returns:
        The initial state.
    """
    (num_clients, count), x = federation.indices.shape, federation.pool[:1]
    draw = partial(init, setup, x=x, num_samples=count)
    parts = jax.vmap(draw)(clients.keys(key, num_clients))
    return State((), Private(parts))


def local_codes(
    setup: Setup, state: State, federation: Federation
) -> Float[Array, "M N D"]:
    """Returns the codes of every client's examples with the client's own encoder.

    Args:
        setup: networks and settings of the method.
        state: the current state.
        federation: the clients' data.

    Returns:
        The codes [M, N, D], in a space that differs between clients.
    """

    def codes(encoder, rows):
        return encode_examples(setup, encoder, federation.pool[rows])

    return clients.for_each(codes, state.clients.parts["encoder"], federation.indices)


# --- LRSC


def lrsc(settings: Any, *, num_clusters: int) -> FederatedClustering:
    """Builds LRSC: each client clusters alone, with coefficients in closed form.

    The coefficients C minimize |C|_* + tau / 2 |X - C X|_F^2, where tau is the setting
    `fidelity`. Singular values of X up to 1 / sqrt(tau) are treated as noise.

    Args:
        settings: an `fcjax.methods.LRSC` with one value per setting.
        num_clusters: number K of clusters of every client.

    Returns:
        The method, with one stage of one round. Metrics are the `loss` (the minimum of
        the objective, averaged over clients) and `participants`. The embedding of an
        example is its row of features. Its cluster is one of the K clusters of its
        client.

    Examples:
        >>> from fcjax.methods import LRSC
        >>> method = lrsc(LRSC().plain(), num_clusters=3)
        >>> [(stage.name, stage.num_rounds) for stage in method.stages]
        [('cluster', 1)]
    """

    def init(_: PRNGKey, federation: Federation) -> State:
        num_clients, padded_size = federation.indices.shape
        coefficients = jnp.zeros((num_clients, padded_size, padded_size))
        return State((), coefficients)

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
    """Returns the C that minimizes |C|_* + fidelity / 2 |X - C X|_F^2, and the minimum.

    With X = U S V^T, the solution is C = U_1 (1 - S_1^-2 / fidelity) U_1^T over the
    singular values above 1 / sqrt(fidelity). This is the theorem of the paper on noisy
    data, for examples as rows. The diagonal of C is not zero.

    Args:
        x: examples X as rows [N, D].
        fidelity: weight tau of the squared error, above 0.
        mask: [N], False at padding.

    Returns:
        The coefficients C [N, N], with zeros in rows and columns of padding, and the
        minimum of the objective.
    """
    x = clear(x, mask.astype(float))
    gram = jnp.matmul(x, x.T, precision=jax.lax.Precision.HIGHEST)
    # The eigenvalues are the squares of the singular values of X.
    squares, vectors = jnp.linalg.eigh(gram)
    is_kept = fidelity * squares > 1
    shrunk = jnp.where(is_kept, 1 - 1 / (fidelity * jnp.where(is_kept, squares, 1)), 0)
    coefficients = jnp.matmul(
        vectors * shrunk[None], vectors.T, precision=jax.lax.Precision.HIGHEST
    )
    # Rounding errors remain at padding.
    coefficients = jnp.where(mask[:, None] & mask[None], coefficients, 0)
    errors = (1 - shrunk) ** 2 * jnp.maximum(squares, 0)
    return coefficients, shrunk.sum() + fidelity / 2 * errors.sum()
