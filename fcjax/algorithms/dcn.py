"""DCN: an auto-encoder whose codes are drawn to their k-means centroids.

Towards K-means-friendly Spaces: Simultaneous Deep Learning and Clustering
    Bo Yang, Xiao Fu, Nicholas D. Sidiropoulos, Mingyi Hong. 2017.
    https://arxiv.org/abs/1610.04794
    Authors' code: https://github.com/boyangumn/DCN-New
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from fcjax import clients
from fcjax.algorithms.parts import initialize, swap
from fcjax.algorithms.pooling import BATCH, Clustering, Phase
from fcjax.cluster import assign_nearest, kmeans, running_means
from fcjax.data.vectors import as_rows
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
) -> Clustering:
    """Returns DCN: an auto-encoder, k-means of its codes, then both by turns.

    In a step of the joint phase the networks follow Eq. 3 of the SDA-FDC paper with the
    assignments and centroids that are stored; then the batch is encoded and assigned
    anew and moves the centroids.

    Args:
        autoencoder: of the rows of examples, pixels in [0, 1].
        optimizer: of both phases.
        num_clusters: K.
        pretrain_rounds: epochs of the auto-encoder alone, a round each.
        joint_rounds: epochs with the clusters; 0 is SDA-FDC's ablation (disjoint).
        batch_size: examples a step.
        cluster_weight: lambda, of half the squared distance to the centroid beside the
            squared error of an example, both summed over features.
        num_init: seedings of k-means.

    Returns:
        The clustering, phases `autoencoder`, `k-means` and `joint`. Their losses are
        that of Eq. 3 with weight 0, the inertia a code, and Eq. 3. An example's
        embedding is its code.
    """

    def init(key: PRNGKey, x):
        networks = autoencoder._asdict()
        variables = swap(initialize(key, networks, as_rows(x, unit_length=False)))
        opt_state = optimizer.init(variables["params"])
        return DCNState(variables, opt_state, (), (), ())

    def encode(state: DCNState, x):
        variables = swap(state.variables)["encoder"]
        rows = as_rows(x, unit_length=False)
        return autoencoder.encoder.apply(variables, rows, train=False)[0]

    def encode_all(state: DCNState, x):
        batch = partial(clients.in_batches, batch_size=BATCH)
        return batch(lambda slots: encode(state, x[slots]), jnp.arange(len(x)))

    def loss(x, state: DCNState, weight, key, variables, slots, counted):
        del key
        # What does not count may be no number, and 0 * NaN would reach the gradients.
        rows = jnp.where(counted[:, None], as_rows(x[slots], unit_length=False), 0)
        parts = swap(variables)
        z, parts["encoder"] = autoencoder.encoder.apply(
            parts["encoder"], rows, train=True, mask=counted
        )
        decoded, parts["decoder"] = autoencoder.decoder.apply(
            parts["decoder"], z, train=True, mask=counted
        )
        own = z  # before there are clusters
        if weight is not None:
            seen = state.assignments[slots]
            # What came only now belongs to the cluster that is nearest now.
            new = assign_nearest(z, state.centroids)
            own = state.centroids[jnp.where(seen < 0, new, seen)]
        value = deep_kmeans(
            rows,
            decoded,
            z,
            own,
            cluster_weight=0.0 if weight is None else weight,
            mask=counted,
        )
        return value, swap(parts)

    def stay(key, state, x, mask):
        del key, x, mask
        return state

    def train_autoencoder(key, state: DCNState, x, mask):
        x = flat(x, mask)
        client, value = clients.train(
            key,
            clients.Client(state.variables, state.opt_state),
            partial(loss, x, state, None),
            mask.reshape(-1),
            optimizer=optimizer,
            batch_size=batch_size,
            num_epochs=1,
        )
        trained = state._replace(variables=client.variables, opt_state=client.opt_state)
        return trained, value

    def begin_kmeans(key, state: DCNState, x, mask):
        del key
        code = jax.eval_shape(encode, state, flat(x, mask)[:1])
        return state._replace(centroids=jnp.zeros((num_clusters, code.shape[-1])))

    def cluster_codes(key, state: DCNState, x, mask):
        found = kmeans(
            key,
            encode_all(state, flat(x, mask)),
            num_clusters,
            mask=mask.reshape(-1),
            num_init=num_init,
        )
        return state._replace(centroids=found.centroids), found.inertia / mask.sum()

    def begin_joint(key, state: DCNState, x, mask):
        del key
        z = encode_all(state, flat(x, mask))
        nearest = assign_nearest(z, state.centroids).reshape(mask.shape)
        return state._replace(
            counts=jnp.full(num_clusters, FIRST_COUNT, jnp.float32),
            assignments=jnp.where(mask, nearest, -1),
        )

    def train_jointly(key, state: DCNState, x, mask):
        shape, x = mask.shape, flat(x, mask)

        def step(key, state: DCNState, slots, counted):
            client, value = clients.step(
                key,
                clients.Client(state.variables, state.opt_state),
                partial(loss, x, state, cluster_weight),
                slots,
                counted,
                optimizer=optimizer,
            )
            state = state._replace(
                variables=client.variables, opt_state=client.opt_state
            )
            z = encode(state, x[slots])
            nearest = assign_nearest(z, state.centroids)
            centroids, counts = running_means(
                state.centroids, state.counts, z, nearest, mask=counted
            )
            counting = jnp.where(counted, slots, len(x))  # no slot: dropped
            assignments = state.assignments.at[counting].set(nearest, mode="drop")
            return DCNState(*state[:2], centroids, counts, assignments), value

        state, value = clients.epochs(
            key,
            state._replace(assignments=state.assignments.reshape(-1)),
            step,
            mask.reshape(-1),
            batch_size=batch_size,
            num_epochs=1,
        )
        return state._replace(assignments=state.assignments.reshape(shape)), value

    def assign(state: DCNState, z: Float[Array, "N D"]) -> Int[Array, "N"]:
        if isinstance(state.centroids, tuple):  # there are none yet
            return jnp.full(len(z), -1, jnp.int32)
        return assign_nearest(z, state.centroids)

    def results(state: DCNState):
        encoder = swap(state.variables)["encoder"]
        return {"encoder": encoder, "centroids": state.centroids}

    phases = (
        Phase("autoencoder", stay, train_autoencoder, pretrain_rounds),
        Phase("k-means", begin_kmeans, cluster_codes),
        Phase("joint", begin_joint, train_jointly, joint_rounds),
    )
    return Clustering(
        init, phases if joint_rounds else phases[:2], encode, assign, results
    )


def flat(x, mask: Bool[Array, "*N"]):
    """Returns the examples on one axis."""
    return x.reshape(-1, *x.shape[mask.ndim :])
