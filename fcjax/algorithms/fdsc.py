"""FDSC: a shared encoder, and every client's own decoder and coefficients.

Federated Deep Subspace Clustering
    Yupei Zhang, Ruojia Feng, Yifei Wang, Xuequn Shang. 2025.
    https://arxiv.org/abs/2501.00230
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Shaped

from fcjax import clients, losses, server
from fcjax.algorithms import subspace
from fcjax.algorithms.parts import Parts, part, pick, put
from fcjax.algorithms.subspace import Affinity, Local, Names, Private, SubspaceNetwork
from fcjax.cluster import Assign, neighbor_graph
from fcjax.data.vectors import client_rows
from fcjax.types import FederatedClustering, Federation, PRNGKey, PyTree, Scalar, State


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
        >>> from fcjax import models
        >>> from fcjax.cluster import symmetric_affinity
        >>> autoencoder = models.autoencoder(5, widths=(8,), latent_size=3)
        >>> network = SubspaceNetwork(autoencoder, subspace.dense(), 1.0, 15.0)
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
    spectral = subspace.Spectral(num_clusters, affinity, assign_labels)
    setup = Setup(
        *(local, num_participants, num_neighbors, locality_weight, mean_locality),
        *(adjacency_weight, coefficient_weight),
    )
    rounds = (partial(federated_round, setup), partial(fit_round, setup))
    return FederatedClustering(
        init=partial(initial_state, setup),
        stages=subspace.stages(local, *rounds),
        embed=partial(embed, setup),
        assign=partial(subspace.assign, network, spectral),
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
        parts, opt_state, measured = subspace.train(
            setup.local, trains, parts, private.opt_state, loss, x, mask
        )
        stays = (pick(parts, subspace.PRIVATE), opt_state)
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
    value = subspace.subspace_loss(network, parts, x, mask)
    return value + setup.locality_weight / pairs * locality


def initial_state(setup: Setup, key: PRNGKey, federation: Federation) -> State:
    """Returns the state before the first round: E_*, each client's D_i and R_i, and its
    graph A_i of nearest neighbours."""
    (num_clients, count), x = federation.indices.shape, federation.pool[:1]
    draw = partial(subspace.init, setup.local.network, x=x, num_samples=count)
    private = pick(jax.vmap(draw)(clients.keys(key, num_clients)), subspace.PRIVATE)
    adjacency = clients.for_each(
        lambda x, mask: neighbor_graph(x, setup.num_neighbors, mask=mask),
        client_rows(federation, unit_length=False),
        federation.mask,
    )
    shared = Server(part(draw(key), "encoder"), jnp.int32(0))
    return State(shared, Private(private, (), adjacency))


def embed(setup: Setup, state: State, federation: Federation) -> Float[Array, "M N D"]:
    """As in `FederatedClustering`: codes by the server's encoder."""
    encode = partial(subspace.encode, setup.local.network, state.server.encoder)
    return clients.for_each(
        lambda rows: encode(federation.pool[rows]),
        federation.indices,
    )
