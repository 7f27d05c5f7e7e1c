"""DSCN: a deep subspace network of its own for every client, and nothing is shared.

Deep Subspace Clustering Networks
    Pan Ji, Tong Zhang, Hongdong Li, Mathieu Salzmann, Ian Reid. 2017.
    https://arxiv.org/abs/1709.02508
    Authors' code: https://github.com/panji1990/Deep-subspace-clustering-networks
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fcjax import clients, server
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
from fcjax.cluster import Assign
from fcjax.types import FederatedClustering, Federation, PRNGKey, PyTree, State


class Private(NamedTuple):
    """A client's own: everything. The server counts the rounds."""

    parts: Parts  # encoder, decoder, coefficients
    opt_state: PyTree


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
    client_axis: clients.ClientAxis | None = None,
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
        client_axis: how clients run, see `clients.for_each`.

    Returns:
        The method, stages `pretrain`, `start`, `train` and `fit`, all but `train` where
        they are asked for. Metrics are the `loss`, `participants` and `code_norm`, the
        mean norm of a code, which the objective lets shrink. An example's embedding is
        its code, in the space of its client; its cluster is one of its client's K.

    Examples:
        >>> import optax
        >>> from fcjax import models
        >>> from fcjax.cluster import symmetric_affinity
        >>> autoencoder = models.autoencoder(5, widths=(8,), latent_size=3)
        >>> network = SubspaceNetwork(autoencoder, subspace.dense(), 1.0, 15.0)
        >>> method = dscn(
        ...     *(network, optax.adam(1e-3)),
        ...     affinity=lambda coefficients, mask: symmetric_affinity(coefficients),
        ...     num_clusters=3, num_rounds=50, pretrain_rounds=10,
        ... )
        >>> [stage.name for stage in method.stages]
        ['pretrain', 'train']
    """

    def init(key: PRNGKey, federation: Federation) -> State:
        num_clients, num_slots = federation.indices.shape

        def one(key):
            return subspace.init(network, key, federation.pool[:1], num_slots)

        parts = jax.vmap(one)(clients.keys(key, num_clients))
        begun = State(jnp.int32(0), Private(parts, ()))
        return stages[0].begin(key, begun, federation)

    def begin(trains, key: PRNGKey, state: State, federation: Federation):
        del key, federation
        trained = pick(state.clients.parts, trains)
        opt_state = jax.vmap(partial(subspace.begin_optimizer, optimizer))(trained)
        return state._replace(clients=state.clients._replace(opt_state=opt_state))

    def round(
        trains, loss, num_steps, key: PRNGKey, state: State, federation: Federation
    ):
        del key
        present = server.participants(federation, state.server)

        def one(private: Private, rows, mask):
            parts, opt_state = private
            x = federation.pool[rows]
            trained, opt_state, value = subspace.train(
                pick(parts, trains),
                opt_state,
                lambda trained: loss(network, {**parts, **trained}, x, mask),
                optimizer=optimizer,
                num_steps=num_steps,
            )
            parts = {**parts, **trained}
            z = subspace.encode(network, parts["encoder"], x)
            norm = jnp.mean(jnp.linalg.norm(z, axis=-1), where=mask)
            return Private(parts, opt_state), {"loss": value, "code_norm": norm}

        new, measured = clients.for_each(
            one, state.clients, federation.indices, federation.mask, axis=client_axis
        )
        private = clients.keep_absent(present, new, state.clients)
        metrics = server.measure(*server.gather((present, measured)))
        return State(state.server + 1, private), metrics

    def embed(state: State, federation: Federation):
        def one(encoder, rows):
            return subspace.encode(network, encoder, federation.pool[rows])

        encoders = state.clients.parts["encoder"]
        return clients.for_each(one, encoders, federation.indices, axis=client_axis)

    def assign(state: State, federation: Federation):
        of_client = partial(subspace.coefficients_of, network)
        coefficients = jax.vmap(of_client)(state.clients.parts, federation.mask)
        return subspace.cluster(
            coefficients,
            federation.mask,
            affinity=affinity,
            num_clusters=num_clusters,
            assign_labels=assign_labels,
            client_axis=client_axis,
        )

    def stage(name, trains, loss, num_rounds, num_steps):
        one = partial(round, trains, loss, num_steps)
        return all_rounds(name, one, num_rounds, begin=partial(begin, trains))

    once, whole = int(fit_steps > 0), subspace.subspace_loss
    stages = (
        stage(
            *("pretrain", OUTER, subspace.autoencoder_loss),
            *(pretrain_rounds, local_steps),
        ),
        stage("start", PRIVATE, whole, once, fit_steps),
        stage("train", ALL, whole, num_rounds, local_steps),
        stage("fit", PRIVATE, whole, once, fit_steps),
    )
    stages = tuple(stage for stage in stages if stage.num_rounds)
    return FederatedClustering(init, stages, embed, assign)
