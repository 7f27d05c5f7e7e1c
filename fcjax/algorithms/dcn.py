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
from jaxtyping import Array, Bool, Float, Int, Shaped

from fcjax import clients, training
from fcjax.algorithms import autoencoding
from fcjax.algorithms.autoencoding import Codes, encode_all
from fcjax.algorithms.parts import Networks, forward
from fcjax.algorithms.pooling import Clustering, Counted, Examples, Phase
from fcjax.algorithms.rounds import go_on
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
    centroids: Any = ()  # [K, D]; () before k-means
    counts: Any = ()  # [K], examples seen by each; () before the joint phase
    assignments: Any = ()  # [N], when last seen, else -1; () before the joint phase
    num_rounds: Any = ()  # of the joint phase so far; () before it


class Setup(NamedTuple):
    """What the rounds of the joint phase share; see `by_dcn`."""

    codes: Codes
    cluster_weight: Scalar
    refresh_every: int


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
    codes = Codes(autoencoder, optimizer, num_clusters, batch_size, num_init)
    setup = Setup(codes, cluster_weight, refresh_every)
    jointly = partial(begin_joint, codes), partial(train_jointly, setup)
    joint = Phase("joint", *jointly, joint_rounds)
    last = Phase("final k-means", go_on, partial(autoencoding.cluster, codes, put))
    later = (joint, last) if joint_rounds else ()
    return autoencoding.clustering(
        codes, DCNState, put, lambda state: state.centroids, pretrain_rounds, later
    )


def put(state: DCNState, centroids: Float[Array, "K D"]) -> DCNState:
    """Returns the state with these centroids."""
    return state._replace(centroids=centroids)


def begin_joint(
    codes: Codes, _: PRNGKey, state: DCNState, x: Examples, mask: Counted
) -> DCNState:
    """Returns the state in which every example that has come is of its nearest
    centroid, and centroids stand for few examples."""
    z = encode_all(codes.autoencoder, state.variables, x)
    nearest = assign_nearest(z, state.centroids)
    return state._replace(
        counts=jnp.full(codes.num_clusters, FIRST_COUNT, jnp.float32),
        assignments=jnp.where(mask, nearest, -1),
        num_rounds=jnp.int32(0),
    )


def train_jointly(
    setup: Setup, key: PRNGKey, state: DCNState, x: Examples, mask: Counted
) -> tuple[DCNState, Float[Array, ""]]:
    """An epoch of networks and clusters by turns, and now and then k-means."""
    state, value = training.epochs(
        *(key, state, partial(joint_step, setup, x), mask),
        batch_size=setup.codes.batch_size,
        num_epochs=1,
    )
    number = state.num_rounds + 1
    refresh = partial(refresh_clusters, setup.codes, x, mask)
    is_due = number % setup.refresh_every == 0
    state = lax.cond(is_due, refresh, lambda state: state, state)
    return state._replace(num_rounds=number), value


def joint_step(
    setup: Setup,
    x: Shaped[Array, "N *F"],
    key: PRNGKey,
    state: DCNState,
    slots: Int[Array, "B"],
    counted: Bool[Array, "B"],
) -> tuple[DCNState, Float[Array, ""]]:
    """A step of the networks by the clusters that are stored, then of the centroids by
    the codes that the batch has now."""
    client, value = training.step(
        *(key, clients.Client(state.variables, state.opt_state)),
        *(partial(loss, setup, x, state), slots, counted),
        optimizer=setup.codes.optimizer,
    )
    z = autoencoding.encode(setup.codes.autoencoder, client.variables, x[slots])
    nearest = assign_nearest(z, state.centroids)
    centroids, counts = running_means(
        state.centroids, state.counts, z, nearest, mask=counted
    )
    counting = jnp.where(counted, slots, len(x))  # no slot: dropped
    assignments = state.assignments.at[counting].set(nearest, mode="drop")
    return DCNState(*client, centroids, counts, assignments, state.num_rounds), value


def loss(
    setup: Setup,
    x: Shaped[Array, "N *F"],
    state: DCNState,
    _: PRNGKey,
    variables: PyTree,
    slots: Int[Array, "B"],
    counted: Bool[Array, "B"],
) -> tuple[Float[Array, ""], PyTree]:
    """Returns Eq. 3 of the SDA-FDC paper on a batch, by the clusters that are stored,
    and the variables with new batch statistics."""
    networks = Networks(setup.codes.autoencoder._asdict())
    rows = autoencoding.counted_rows(x, slots, counted)
    z, variables = forward(networks, variables, ("encoder",), rows, counted)
    decoded, variables = forward(networks, variables, ("decoder",), z, counted)
    seen = state.assignments[slots]
    # What came only now belongs to the cluster that is nearest now.
    new = assign_nearest(z, state.centroids)
    own = state.centroids[jnp.where(seen < 0, new, seen)]
    value = deep_kmeans(
        *(rows, decoded, z, own), cluster_weight=setup.cluster_weight, mask=counted
    )
    return value, variables


def refresh_clusters(
    codes: Codes, x: Shaped[Array, "N *F"], mask: Bool[Array, "N"], state: DCNState
) -> DCNState:
    """K-means of all codes, from the centroids that there are."""
    z = encode_all(codes.autoencoder, state.variables, x)
    found = lloyd(z, state.centroids, mask=mask)
    assignments = jnp.where(mask, found.assignments, -1)
    return state._replace(centroids=found.centroids, assignments=assignments)
