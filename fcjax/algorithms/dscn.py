"""DSCN: a deep subspace network of its own for every client, and nothing is shared.

Deep Subspace Clustering Networks
    Pan Ji, Tong Zhang, Hongdong Li, Mathieu Salzmann, Ian Reid. 2017.
    https://arxiv.org/abs/1709.02508
    Authors' code: https://github.com/panji1990/Deep-subspace-clustering-networks
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from fcjax import clients, server
from fcjax.algorithms import subspace
from fcjax.algorithms.parts import part
from fcjax.algorithms.subspace import Affinity, Local, Names, Private, SubspaceNetwork
from fcjax.cluster import Assign
from fcjax.types import FederatedClustering, Federation, PRNGKey, State


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
    local = Local(
        network,
        optimizer,
        *(pretrain_rounds, num_rounds, local_steps, fit_steps),
    )
    spectral = subspace.Spectral(num_clusters, affinity, assign_labels)
    return FederatedClustering(
        init=partial(initial_state, local),
        stages=subspace.stages(local, partial(round, local), partial(round, local)),
        embed=partial(embed, local),
        assign=partial(subspace.assign, network, spectral),
    )


def round(
    local: Local, trains: Names, _: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """A round in which every client trains some of its parts, and nothing crosses: what
    it measures is for the metrics alone."""
    present = server.participants(federation, state.server)
    loss = partial(subspace.subspace_loss, local.network)

    def one(private: Private, rows, mask):
        parts, opt_state, measured = subspace.train(
            local, trains, *private[:2], loss, federation.pool[rows], mask
        )
        return Private(parts, opt_state), measured

    new, measured = clients.for_each(
        *(one, state.clients, federation.indices, federation.mask)
    )
    private = clients.keep_absent(present, new, state.clients)
    metrics = server.measure(*server.gather((present, measured)))
    return State(state.server + 1, private), metrics


def initial_state(local: Local, key: PRNGKey, federation: Federation) -> State:
    """Returns the state before the first round, every client's drawn by itself; the
    server counts the rounds."""
    (num_clients, count), x = federation.indices.shape, federation.pool[:1]
    draw = partial(subspace.init, local.network, x=x, num_samples=count)
    parts = jax.vmap(draw)(clients.keys(key, num_clients))
    return State(jnp.int32(0), Private(parts))


def embed(local: Local, state: State, federation: Federation) -> Float[Array, "M N D"]:
    """As in `FederatedClustering`: codes, in the space of each client."""

    def codes(encoder, rows):
        return subspace.encode(local.network, encoder, federation.pool[rows])

    encoders = part(state.clients.parts, "encoder")
    return clients.for_each(codes, encoders, federation.indices)
