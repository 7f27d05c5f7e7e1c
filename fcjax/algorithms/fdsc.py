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
from fcjax.algorithms.parts import Parts
from fcjax.algorithms.rounds import all_rounds
from fcjax.algorithms.subspace import (
    ALL,
    OUTER,
    PRIVATE,
    Affinity,
    SubspaceNetwork,
    pick,
)
from fcjax.cluster import Assign, neighbor_graph
from fcjax.data.vectors import client_rows
from fcjax.types import FederatedClustering, Federation, PRNGKey, PyTree, Scalar, State


class Server(NamedTuple):
    """What crosses the boundary is the encoder alone."""

    encoder: PyTree  # E_*
    num_rounds: Int[Array, ""]


class Private(NamedTuple):
    """What no client sends, [M, ...]."""

    parts: Parts  # D_i and R_i: decoder, coefficients
    opt_state: PyTree  # of all that the stage trains
    adjacency: Bool[Array, "M N N"]  # A_i


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
    client_axis: clients.ClientAxis | None = None,
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
        client_axis: how clients run, see `clients.for_each`.

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

    def init(key: PRNGKey, federation: Federation) -> State:
        num_clients, num_slots = federation.indices.shape

        def one(key):
            return subspace.init(network, key, federation.pool[:1], num_slots)

        encoder = one(key)["encoder"]
        private = jax.vmap(one)(clients.keys(key, num_clients))
        del private["encoder"]
        adjacency = clients.for_each(
            lambda x, mask: neighbor_graph(x, num_neighbors, mask=mask),
            client_rows(federation, unit_length=False),
            federation.mask,
            axis=client_axis,
        )
        begun = State(Server(encoder, jnp.int32(0)), Private(private, (), adjacency))
        return stages[0].begin(key, begun, federation)

    def begin(trains, key: PRNGKey, state: State, federation: Federation):
        del key
        sent = clients.repeat(state.server.encoder, len(federation.indices))
        trained = pick({"encoder": sent, **state.clients.parts}, trains)
        opt_state = jax.vmap(partial(subspace.begin_optimizer, optimizer))(trained)
        return state._replace(clients=state.clients._replace(opt_state=opt_state))

    def autoencoder_loss(parts, x, mask, adjacency):
        del adjacency
        return subspace.autoencoder_loss(network, parts, x, mask)

    def loss(parts, x, mask, adjacency):
        return objective(
            network,
            parts,
            x,
            mask,
            adjacency,
            locality_weight=locality_weight,
            mean_locality=mean_locality,
            adjacency_weight=adjacency_weight,
            coefficient_weight=coefficient_weight,
        )

    def train(
        trains, loss, num_steps, chosen, count, state: State, federation: Federation
    ):
        """The chosen clients, `count` at most, train some parts.

        Returns the encoders that they have then, what stays on the clients, and for the
        server who they are, how many examples each has, and what they measured.
        """
        private: Private = state.clients

        def one(private: Private, rows, mask):
            x = federation.pool[rows]
            parts = {"encoder": state.server.encoder, **private.parts}
            trained, opt_state, value = subspace.train(
                pick(parts, trains),
                private.opt_state,
                lambda trained: loss({**parts, **trained}, x, mask, private.adjacency),
                optimizer=optimizer,
                num_steps=num_steps,
            )
            parts = {**parts, **trained}
            encoder = parts.pop("encoder")
            z = subspace.encode(network, encoder, x)
            norm = jnp.mean(jnp.linalg.norm(z, axis=-1), where=mask)
            measured = {"loss": value, "code_norm": norm}
            return encoder, (parts, opt_state), measured

        slots = clients.slots_of(chosen, count)
        own = (private, federation.indices, federation.mask)
        encoders, trained, measured = clients.for_each(
            one, *clients.take(own, slots), axis=client_axis
        )
        parts, opt_state = clients.put(private[:2], slots, trained, where=chosen)
        private = private._replace(parts=parts, opt_state=opt_state)
        sizes = federation.mask.sum(axis=1).astype(float)
        return encoders, private, (chosen[slots], (chosen * sizes)[slots], measured)

    def federated_round(
        trains, loss, key: PRNGKey, state: State, federation: Federation
    ):
        before: Server = state.server
        present = server.participants(federation, before.num_rounds)
        chosen = server.choose(key, present, num_participants)
        encoders, private, (answered, sizes, measured) = train(
            trains, loss, local_steps, chosen, num_participants, state, federation
        )
        encoder, received = server.receive(encoders, sizes, (answered, measured))
        message = {"encoder": encoder}
        metrics = server.measure(*received)
        metrics |= server.traffic(received[0], up=message, down=message)
        return State(Server(encoder, before.num_rounds + 1), private), metrics

    def fit(key: PRNGKey, state: State, federation: Federation):
        del key
        before: Server = state.server
        present = server.participants(federation, before.num_rounds)
        _, private, (answered, _, measured) = train(
            PRIVATE, loss, fit_steps, present, len(present), state, federation
        )
        received = server.gather((answered, measured))
        metrics = server.measure(*received)
        message = {"encoder": before.encoder}
        metrics |= server.traffic(received[0], up={}, down=message)
        return State(Server(before.encoder, before.num_rounds + 1), private), metrics

    def embed(state: State, federation: Federation):
        def one(rows):
            return subspace.encode(network, state.server.encoder, federation.pool[rows])

        return clients.for_each(one, federation.indices, axis=client_axis)

    def assign(state: State, federation: Federation):
        of_client = partial(subspace.coefficients_of, network)
        return subspace.cluster(
            jax.vmap(of_client)(state.clients.parts, federation.mask),
            federation.mask,
            affinity=affinity,
            num_clusters=num_clusters,
            assign_labels=assign_labels,
            client_axis=client_axis,
        )

    def stage(name, round, trains, num_rounds):
        return all_rounds(name, round, num_rounds, begin=partial(begin, trains))

    pretrain = partial(federated_round, OUTER, autoencoder_loss)
    joint = partial(federated_round, ALL, loss)
    once = int(fit_steps > 0)
    stages = (
        stage("pretrain", pretrain, OUTER, pretrain_rounds),
        stage("start", fit, PRIVATE, once),
        stage("train", joint, ALL, num_rounds),
        stage("fit", fit, PRIVATE, once),
    )
    stages = tuple(stage for stage in stages if stage.num_rounds)
    return FederatedClustering(init, stages, embed, assign)


def objective(
    network: SubspaceNetwork,
    parts: Parts,
    x: Shaped[Array, "N *F"],
    mask: Bool[Array, "N"],
    adjacency: Bool[Array, "N N"],
    *,
    locality_weight: Scalar,
    mean_locality: bool,
    adjacency_weight: Scalar,
    coefficient_weight: Scalar,
) -> Float[Array, ""]:
    """Returns Eq. 8 of a client, without halves; the weights are those of `fdsc`."""
    locality = losses.locality_alignment(
        network.expression.matrix(parts["coefficients"]["params"]),
        adjacency,
        alpha=adjacency_weight,
        beta=coefficient_weight,
        mask=mask,
    )
    pairs = mask.sum() ** 2 if mean_locality else 1
    value = subspace.subspace_loss(network, parts, x, mask)
    return value + locality_weight / pairs * locality
