"""DCN: an auto-encoder whose codes are drawn to their k-means centroids.

Towards K-means-friendly Spaces: Simultaneous Deep Learning and Clustering
    Bo Yang, Xiao Fu, Nicholas D. Sidiropoulos, Mingyi Hong. 2017.
    https://arxiv.org/abs/1610.04794
    Authors' code: https://github.com/boyangumn/DCN-New
"""

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int

from fcjax import clients, training
from fcjax.algorithms import autoencoding
from fcjax.algorithms.autoencoding import flat
from fcjax.algorithms.parts import swap
from fcjax.algorithms.pooling import Clustering, Phase, go_on
from fcjax.cluster import assign_nearest, lloyd, running_means
from fcjax.losses import deep_kmeans
from fcjax.models.autoencoder import AutoEncoder
from fcjax.types import PRNGKey, PyTree, Scalar

FIRST_COUNT = 100.0
"""How many examples a centroid of k-means stands for, as in the authors' code."""


class DCNState(NamedTuple):
    """The networks, and from the phase on that finds them the clusters."""

    variables: PyTree  # of encoder and decoder
    opt_state: PyTree
    centroids: Any  # [K, D]; () before k-means
    counts: Any  # [K], examples seen by each; () before the joint phase
    assignments: Any  # [*N], when last seen, else -1; () before the joint phase
    num_rounds: Any  # of the joint phase so far; () before it


def by_dcn(
    autoencoder: AutoEncoder,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int,
    pretrain_rounds: int = 50,
    joint_rounds: int = 50,
    batch_size: int = 128,
    cluster_weight: Scalar = 20.0,
    num_init: int = 20,
    refresh_every: int = 10,
) -> Clustering:
    """Returns DCN: an auto-encoder, k-means of its codes, then both by turns.

    In a step of the joint phase the networks follow Eq. 3 of the SDA-FDC paper with the
    assignments and centroids that are stored; then the batch is encoded and assigned
    anew and moves the centroids. As in the authors' code, k-means of all codes goes on
    from the centroids every ten epochs, and is begun anew when training has ended: its
    clusters are the result. How many examples a centroid stands for is left as it is.

    Args:
        autoencoder: of the rows of examples, pixels in [0, 1].
        optimizer: of both phases.
        num_clusters: K.
        pretrain_rounds: epochs of the auto-encoder alone, a round each.
        joint_rounds: epochs with the clusters; 0 is SDA-FDC's ablation (disjoint): it
            ends with the first k-means.
        batch_size: examples a step.
        cluster_weight: lambda, of half the squared distance to the centroid beside the
            squared error of an example, both summed over features.
        num_init: seedings of k-means, before and after the joint phase.
        refresh_every: joint epochs after which k-means goes on from the centroids; with
            more than joint_rounds they only run along with the batches.

    Returns:
        The clustering, phases `autoencoder`, `k-means`, `joint` and `final k-means`.
        Their losses are that of Eq. 3 with weight 0, the inertia a code, Eq. 3, and the
        inertia again. An example's embedding is its code.

    Examples:
        >>> import optax
        >>> from fcjax import models
        >>> autoencoder = models.autoencoder(5, widths=(8,), latent_size=3)
        >>> clustering = by_dcn(autoencoder, optax.adam(1e-3), num_clusters=3)
        >>> [(phase.name, phase.num_rounds) for phase in clustering.phases]
        [('autoencoder', 50), ('k-means', 1), ('joint', 50), ('final k-means', 1)]
    """

    def init(key: PRNGKey, x):
        client = autoencoding.begin(key, autoencoder, optimizer, x)
        return DCNState(*client, (), (), (), ())

    def encode(state: DCNState, x):
        return autoencoding.encode(autoencoder, state.variables, x)

    def train_autoencoder(key, state: DCNState, x, mask):
        client, value = autoencoding.train(
            *(key, client_of(state), autoencoder, *flat(x, mask)),
            optimizer=optimizer,
            batch_size=batch_size,
        )
        return state._replace(**client._asdict()), value

    def begin_kmeans(key, state: DCNState, x, mask):
        del key
        x, _ = flat(x, mask)
        return state._replace(
            centroids=autoencoding.no_centroids(
                autoencoder, state.variables, x, num_clusters
            )
        )

    def cluster_codes(key, state: DCNState, x, mask):
        centroids, value = autoencoding.cluster_codes(
            *(key, autoencoder, state.variables, *flat(x, mask)),
            num_clusters=num_clusters,
            num_init=num_init,
        )
        return state._replace(centroids=centroids), value

    def begin_joint(key, state: DCNState, x, mask):
        del key
        z = autoencoding.encode_all(autoencoder, state.variables, flat(x, mask)[0])
        nearest = assign_nearest(z, state.centroids).reshape(mask.shape)
        return state._replace(
            counts=jnp.full(num_clusters, FIRST_COUNT, jnp.float32),
            assignments=jnp.where(mask, nearest, -1),
            num_rounds=jnp.int32(0),
        )

    def loss(x, state: DCNState, key, variables, slots, counted):
        del key
        rows = autoencoding.counted_rows(x, slots, counted)
        parts = swap(variables)
        z, parts["encoder"] = autoencoder.encoder.apply(
            parts["encoder"], rows, train=True, mask=counted
        )
        decoded, parts["decoder"] = autoencoder.decoder.apply(
            parts["decoder"], z, train=True, mask=counted
        )
        seen = state.assignments[slots]
        # What came only now belongs to the cluster that is nearest now.
        new = assign_nearest(z, state.centroids)
        own = state.centroids[jnp.where(seen < 0, new, seen)]
        value = deep_kmeans(
            *(rows, decoded, z, own), cluster_weight=cluster_weight, mask=counted
        )
        return value, swap(parts)

    def train_jointly(key, state: DCNState, x, mask):
        shape = mask.shape
        x, mask = flat(x, mask)

        def step(key, state: DCNState, slots, counted):
            client, value = training.step(
                key,
                client_of(state),
                partial(loss, x, state),
                slots,
                counted,
                optimizer=optimizer,
            )
            state = state._replace(**client._asdict())
            z = encode(state, x[slots])
            nearest = assign_nearest(z, state.centroids)
            centroids, counts = running_means(
                state.centroids, state.counts, z, nearest, mask=counted
            )
            counting = jnp.where(counted, slots, len(x))  # no slot: dropped
            assignments = state.assignments.at[counting].set(nearest, mode="drop")
            state = state._replace(
                centroids=centroids, counts=counts, assignments=assignments
            )
            return state, value

        state, value = training.epochs(
            key,
            state._replace(assignments=state.assignments.reshape(-1)),
            step,
            mask,
            batch_size=batch_size,
            num_epochs=1,
        )
        number = state.num_rounds + 1

        def refresh(state: DCNState):
            z = autoencoding.encode_all(autoencoder, state.variables, x)
            found = lloyd(z, state.centroids, mask=mask)
            return state._replace(
                centroids=found.centroids,
                assignments=jnp.where(mask, found.assignments, -1),
            )

        state = lax.cond(number % refresh_every == 0, refresh, lambda s: s, state)
        assignments = state.assignments.reshape(shape)
        return state._replace(assignments=assignments, num_rounds=number), value

    def assign(state: DCNState, z: Float[Array, "N D"]) -> Int[Array, "N"]:
        if isinstance(state.centroids, tuple):  # there are none yet
            return jnp.full(len(z), -1, jnp.int32)
        return assign_nearest(z, state.centroids)

    def results(state: DCNState):
        encoder = swap(state.variables)["encoder"]
        return {"encoder": encoder, "centroids": state.centroids}

    phases = (
        Phase("autoencoder", go_on, train_autoencoder, pretrain_rounds),
        Phase("k-means", begin_kmeans, cluster_codes),
        Phase("joint", begin_joint, train_jointly, joint_rounds),
        Phase("final k-means", go_on, cluster_codes),
    )
    return Clustering(
        init, phases if joint_rounds else phases[:2], encode, assign, results
    )


def client_of(state: DCNState) -> clients.Client:
    """Returns what the optimiser changes."""
    return clients.Client(state.variables, state.opt_state)
