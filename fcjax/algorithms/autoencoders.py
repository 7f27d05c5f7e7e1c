"""Clustering with auto-encoders: DCN and DEC.

Auto-encoders of rows: what DEC and DCN share, and how FedCRef knows a cluster.

DEC and DCN begin alike: an auto-encoder is trained whole, then its codes are clustered
by k-means.

DCN: an auto-encoder whose codes are drawn to their k-means centroids.

Towards K-means-friendly Spaces: Simultaneous Deep Learning and Clustering
    Bo Yang, Xiao Fu, Nicholas D. Sidiropoulos, Mingyi Hong. 2017.
    https://arxiv.org/abs/1610.04794
    Authors' code: https://github.com/boyangumn/DCN-New

DEC: an encoder and centroids that sharpen their own soft assignments.

Unsupervised Deep Embedding for Clustering Analysis
    Junyuan Xie, Ross Girshick, Ali Farhadi. 2016.
    https://arxiv.org/abs/1511.06335
    Authors' code: https://github.com/piiswrong/dec; in Keras, with the better figures:
    https://github.com/XifengGuo/DEC-keras
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from fcjax import losses
from fcjax.algorithms.averaging import Networks, chain, forward, part, pick, put
from fcjax.algorithms.central import BATCH, Clustering, Counted, Examples, Phase
from fcjax.algorithms.rounds import keep_state
from fcjax.cluster import assign_nearest, kmeans, lloyd, running_means
from fcjax.data.augment import as_rows
from fcjax.federated import clients, training
from fcjax.federated.clients import Client
from fcjax.losses import deep_kmeans
from fcjax.nn.autoencoders import AutoEncoder
from fcjax.types import Network, Now, PRNGKey, PyTree

# --- Autoencoding


NUM_INIT = 20
"""Seedings of DEC's k-means."""


class Setup(NamedTuple):
    """The auto-encoder and the settings that all phases share; see `by_dcn`."""

    autoencoder: AutoEncoder
    optimizer: optax.GradientTransformation
    settings: Any
    batch_size: int
    num_init: int
    num_clusters: int
    num_used: Int[Array, ""] | int | None = None


class Trained(NamedTuple):
    """The networks, and the clusters from the phase on that makes them."""

    variables: PyTree  # of encoder and decoder; in DEC's joint phase encoder, centroids
    opt_state: PyTree
    centroids: Any = ()  # [K, D]; () before k-means
    joint: Any = ()  # the state of DCN's joint phase; () before it


def by_codes(
    settings: Any,
    autoencoder: AutoEncoder,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int,
) -> Clustering:
    """Returns k-means of the codes of an auto-encoder, SDA-FDC's ablation (disjoint).

    Args:
        settings: as in `by_dcn`, without those of the joint phase.
        autoencoder, optimizer, num_clusters: as in `by_dcn`.

    Returns:
        The clustering, the first two phases of `by_dcn`.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.methods import DCNDisjoint
        >>> autoencoder = nn.autoencoder(5, widths=(8,), latent_size=3)
        >>> parts = DCNDisjoint().plain(), autoencoder, optax.adam(1e-3)
        >>> [phase.name for phase in by_codes(*parts, num_clusters=3).phases]
        ['autoencoder', 'k-means']
    """
    sizes = settings.batch_size, settings.num_init
    setup = Setup(autoencoder, optimizer, settings, *sizes, num_clusters)
    return clustering(setup)


def clustering(setup: Setup, *later: Phase) -> Clustering:
    """Returns the clustering that begins with an auto-encoder and k-means of its codes.

    Args:
        setup: of the clustering.
        later: the phases that follow.
    """
    rounds, autoencoder = setup.settings.pretrain_rounds, setup.autoencoder

    def init(key, x):
        rows = as_rows(x, unit_length=False)
        variables = chain(autoencoder._asdict()).init(key, rows)
        return Trained(variables, setup.optimizer.init(variables["params"]))

    def begin_kmeans(_, state, x, mask):
        code = jax.eval_shape(partial(encode, autoencoder), state.variables, x[:1])
        zeros = jnp.zeros((setup.num_clusters, code.shape[-1]))
        return state._replace(centroids=zeros)

    def assign(state, z):
        if isinstance(state.centroids, tuple):
            return jnp.full(len(z), -1, jnp.int32)
        return assign_nearest(z, state.centroids)

    def results(state):
        encoder = part(state.variables, "encoder")
        return {"encoder": encoder, "centroids": state.centroids}

    first = (
        Phase("autoencoder", keep_state, partial(train, setup), rounds),
        Phase("k-means", begin_kmeans, partial(cluster, setup)),
    )
    embed = partial(encode_state, autoencoder)
    return Clustering(init, (*first, *later), embed, assign, results)


def encode_state(
    autoencoder: AutoEncoder, state: Trained, x: Examples
) -> Float[Array, "N D"]:
    """Returns the codes of examples by the networks of a state."""
    return encode(autoencoder, state.variables, x)


def train(
    setup: Setup, key: PRNGKey, state: Trained, x: Examples, mask: Counted, _: Now
) -> tuple[Trained, Float[Array, ""]]:
    """Trains an auto-encoder for an epoch: as in `Phase`. The loss is an example's
    squared error, summed over features.
    """
    network = chain(setup.autoencoder._asdict())

    def loss(_, variables, slots, counted):
        rows = counted_rows(x, slots, counted)
        return reconstruction(network, variables, rows, counted)

    client, value = training.train(
        *(key, Client(state.variables, state.opt_state), loss, mask),
        optimizer=setup.optimizer,
        batch_size=setup.batch_size,
        num_epochs=1,
    )
    return state._replace(**client._asdict()), value


def reconstruction(
    network: Network,
    variables: PyTree,
    rows: Float[Array, "B D"],
    counted: Bool[Array, "B"],
    *,
    per_feature: bool = False,
) -> tuple[Float[Array, ""], PyTree]:
    """Returns the mean squared error of a batch, and the variables with new batch
    statistics.

    Args:
        network: from rows to their reconstructions.
        variables: of the network.
        rows: of the batch.
        counted: which of them count.
        per_feature: whether an example's error is the mean over its features, or the
            sum.
    """
    decoded, variables = network.apply(variables, rows, train=True, mask=counted)
    errors = losses.reconstruction_error(rows, decoded)
    if per_feature:
        errors /= rows.shape[1]
    return jnp.mean(errors, where=counted), variables


def counted_rows(
    x: Shaped[Array, "N *F"], slots: Int[Array, "B"], counted: Bool[Array, "B"]
) -> Float[Array, "B D"]:
    """Returns a batch of examples as rows, zeros where one does not count: it may be no
    number, and 0 * NaN would reach the gradients.
    """
    return jnp.where(counted[:, None], as_rows(x[slots], unit_length=False), 0)


def encode(
    autoencoder: AutoEncoder, variables: PyTree, x: Shaped[Array, "N *F"]
) -> Float[Array, "N D"]:
    """Returns the codes of examples."""
    rows = as_rows(x, unit_length=False)
    encoder = part(variables, "encoder")
    return autoencoder.encoder.apply(encoder, rows, train=False)[0]


def encode_all(
    autoencoder: AutoEncoder, variables: PyTree, x: Shaped[Array, "N *F"]
) -> Float[Array, "N D"]:
    """Returns the codes of however many examples, in bounded memory."""

    def batch(slots):
        return encode(autoencoder, variables, x[slots])

    return training.in_batches(batch, jnp.arange(len(x)), batch_size=BATCH)


def cluster(
    setup: Setup, key: PRNGKey, state: Trained, x: Examples, mask: Counted, _: Now
) -> tuple[Trained, Float[Array, ""]]:
    """Clusters the codes of the examples that count by k-means: as in `Phase`; the loss
    is the inertia a code.
    """
    found = kmeans(
        *(key, encode_all(setup.autoencoder, state.variables, x), setup.num_clusters),
        num_used=setup.num_used,
        mask=mask,
        num_init=setup.num_init,
    )
    return state._replace(centroids=found.centroids), found.inertia / mask.sum()


# --- DCN

FIRST_COUNT = 100.0
"""How many examples a centroid of k-means stands for, as in the authors' code."""


class Joint(NamedTuple):
    """What DCN's joint phase keeps of the clusters."""

    counts: Float[Array, "K"]  # examples seen by each centroid
    assignments: Int[Array, "N"]  # when last seen, else -1


def by_dcn(
    settings: Any,
    autoencoder: AutoEncoder,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int,
) -> Clustering:
    """Returns DCN: an auto-encoder, k-means of its codes, then both by turns.

    In a step of the joint phase the networks follow Eq. 3 of the SDA-FDC paper with the
    assignments and centroids that are stored; then the batch is encoded and assigned
    anew and moves the centroids. As in the authors' code, k-means of all codes goes on
    from the centroids every ten epochs, and is begun anew when training has ended: its
    clusters are the result. How many examples a centroid stands for is left as it is.

    Args:
        settings: an `fcjax.methods.DCN` or `SDAFDC` with one value per setting.
            `cluster_weight` is lambda, of half the squared distance to the centroid
            beside the squared error of an example, both summed over features. Without
            `joint_rounds` the clustering ends with the first k-means.
        autoencoder: of the rows of examples, pixels in [0, 1].
        optimizer: of both phases.
        num_clusters: K.

    Returns:
        The clustering, phases `autoencoder`, `k-means`, `joint` and `final k-means`.
        Their losses are that of Eq. 3 with weight 0, the inertia a code, Eq. 3, and the
        inertia again. An example's embedding is its code.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> autoencoder = nn.autoencoder(5, widths=(8,), latent_size=3)
        >>> from fcjax.methods import DCN
        >>> parts = DCN().plain(), autoencoder, optax.adam(1e-3)
        >>> clustering = by_dcn(*parts, num_clusters=3)
        >>> [(phase.name, phase.num_rounds) for phase in clustering.phases]
        [('autoencoder', 50), ('k-means', 1), ('joint', 50), ('final k-means', 1)]
    """
    sizes = settings.batch_size, settings.num_init
    setup = Setup(autoencoder, optimizer, settings, *sizes, num_clusters)
    jointly = partial(begin_joint, setup), partial(train_jointly, setup)
    joint = Phase("joint", *jointly, settings.joint_rounds)
    last = Phase("final k-means", keep_state, partial(cluster, setup))
    return clustering(setup, *((joint, last) if settings.joint_rounds else ()))


def begin_joint(
    setup: Setup, _: PRNGKey, state: Trained, x: Examples, mask: Counted
) -> Trained:
    """Returns the state in which every example that has come is of its nearest
    centroid, and centroids stand for few examples.
    """
    z = encode_all(setup.autoencoder, state.variables, x)
    nearest = assign_nearest(z, state.centroids)
    counts = jnp.full(setup.num_clusters, FIRST_COUNT, jnp.float32)
    return state._replace(joint=Joint(counts, jnp.where(mask, nearest, -1)))


def train_jointly(
    setup: Setup, key: PRNGKey, state: Trained, x: Examples, mask: Counted, now: Now
) -> tuple[Trained, Float[Array, ""]]:
    """An epoch of networks and clusters by turns, and now and then k-means."""
    state, value = training.epochs(
        *(key, state, partial(joint_step, setup, x), mask),
        batch_size=setup.batch_size,
        num_epochs=1,
    )
    refresh = partial(refresh_clusters, setup, x, mask)
    is_due = (now.stage_round + 1) % setup.settings.refresh_every == 0
    return lax.cond(is_due, refresh, lambda state: state, state), value


def joint_step(
    setup: Setup,
    x: Shaped[Array, "N *F"],
    key: PRNGKey,
    state: Trained,
    slots: Int[Array, "B"],
    counted: Bool[Array, "B"],
) -> tuple[Trained, Float[Array, ""]]:
    """A step of the networks by the clusters that are stored, then of the centroids by
    the codes that the batch has now.
    """
    client, value = training.step(
        *(key, clients.Client(state.variables, state.opt_state)),
        *(partial(loss, setup, x, state), slots, counted),
        optimizer=setup.optimizer,
    )
    z = encode(setup.autoencoder, client.variables, x[slots])
    nearest = assign_nearest(z, state.centroids)
    centroids, counts = running_means(
        state.centroids, state.joint.counts, z, nearest, mask=counted
    )
    counting = jnp.where(counted, slots, len(x))  # no slot: dropped
    assignments = state.joint.assignments.at[counting].set(nearest, mode="drop")
    return Trained(*client, centroids, Joint(counts, assignments)), value


def loss(
    setup: Setup,
    x: Shaped[Array, "N *F"],
    state: Trained,
    _: PRNGKey,
    variables: PyTree,
    slots: Int[Array, "B"],
    counted: Bool[Array, "B"],
) -> tuple[Float[Array, ""], PyTree]:
    """Returns Eq. 3 of the SDA-FDC paper on a batch, by the clusters that are stored,
    and the variables with new batch statistics.
    """
    networks = Networks(setup.autoencoder._asdict())
    rows = counted_rows(x, slots, counted)
    z, variables = forward(networks, variables, ("encoder",), rows, counted)
    decoded, variables = forward(networks, variables, ("decoder",), z, counted)
    seen = state.joint.assignments[slots]
    # What came only now belongs to the cluster that is nearest now.
    new = assign_nearest(z, state.centroids)
    own = state.centroids[jnp.where(seen < 0, new, seen)]
    value = deep_kmeans(
        *(rows, decoded, z, own),
        cluster_weight=setup.settings.cluster_weight,
        mask=counted,
    )
    return value, variables


def refresh_clusters(
    setup: Setup, x: Shaped[Array, "N *F"], mask: Bool[Array, "N"], state: Trained
) -> Trained:
    """K-means of all codes, from the centroids that there are."""
    z = encode_all(setup.autoencoder, state.variables, x)
    found = lloyd(z, state.centroids, mask=mask)
    assignments = jnp.where(mask, found.assignments, -1)
    joint = state.joint._replace(assignments=assignments)
    return state._replace(centroids=found.centroids, joint=joint)


# --- DEC

SGD = optax.sgd(0.01, momentum=0.9)
"""The optimiser of the paper's clusters."""


def by_dec(
    settings: Any,
    autoencoder: AutoEncoder,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int,
    num_used: Int[Array, ""] | int | None = None,
    joint_optimizer: optax.GradientTransformation = SGD,
) -> Clustering:
    """Returns DEC: an auto-encoder, k-means of its codes, then encoder and centroids.

    The auto-encoder is trained whole, as in DEC-keras; the paper begins with one layer
    after another, and dropout. The target P is refreshed once a round, the papers' code
    does so every 140 or 160 steps, half an epoch of MNIST. Batches are drawn anew every
    epoch, where the papers' code takes them in the order of the data: here that order
    may be by class. All rounds are run: nothing stops at few changed assignments.

    Args:
        settings: an `fcjax.methods.DEC` or `FedCRef` with one value per setting; P is
            refreshed `joint_rounds` times, with one epoch each. 70 rounds are about the
            20,000 steps on MNIST after which DEC-keras stops at the latest.
        autoencoder: of the rows of examples, pixels in [0, 1].
        optimizer: of the auto-encoder.
        num_clusters: K.
        num_used: how many of them are used, all by default, where that is data: the
            clustering is that of `num_clusters=num_used`; see `cluster.kmeans`.
        joint_optimizer: of encoder and centroids.

    Returns:
        The clustering, phases `autoencoder`, `k-means` and `dec`. Their losses are the
        squared error and the inertia an example, and KL(P || Q), Eq. 2. An example's
        embedding is its code.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> autoencoder = nn.autoencoder(5, widths=(8,), latent_size=3)
        >>> from fcjax.methods import DEC
        >>> parts = DEC().plain(), autoencoder, optax.adam(1e-3)
        >>> clustering = by_dec(*parts, num_clusters=3)
        >>> [(phase.name, phase.num_rounds) for phase in clustering.phases]
        [('autoencoder', 50), ('k-means', 1), ('dec', 20)]
    """
    sizes = settings.dec_batch_size, NUM_INIT, num_clusters, num_used
    setup = Setup(autoencoder, optimizer, settings, *sizes)
    joint = partial(begin, joint_optimizer), partial(sharpen, setup, joint_optimizer)
    dec = Phase("dec", *joint, settings.joint_rounds)
    return clustering(setup, *((dec,) if settings.joint_rounds else ()))


def begin(
    optimizer: optax.GradientTransformation, _: PRNGKey, state: Trained, *data: object
) -> Trained:
    """Returns the state in which the parts are the encoder and the centroids, which
    have not taken a step yet.
    """
    parts = pick(state.variables, ("encoder",))
    parts = put(parts, "centroids", {"params": state.centroids})
    return Trained(parts, optimizer.init(parts["params"]), state.centroids)


def sharpen(
    setup: Setup,
    optimizer: optax.GradientTransformation,
    key: PRNGKey,
    state: Trained,
    x: Examples,
    mask: Counted,
    _: Now,
) -> tuple[Trained, Float[Array, ""]]:
    """A round: P of all examples, then an epoch of encoder and centroids by it."""
    z = encode_all(setup.autoencoder, state.variables, x)
    q = losses.student_t(z, state.centroids, mask=mask)
    p = losses.target_distribution(q, mask=mask)
    client, value = training.train(
        *(key, Client(state.variables, state.opt_state)),
        *(partial(divergence, setup.autoencoder, x, p), mask),
        optimizer=optimizer,
        batch_size=setup.batch_size,
        num_epochs=1,
    )
    return Trained(*client, client.variables["params"]["centroids"]), value


def divergence(
    autoencoder: AutoEncoder,
    x: Shaped[Array, "N *F"],
    p: Float[Array, "N K"],
    _: PRNGKey,
    variables: PyTree,
    slots: Int[Array, "B"],
    counted: Bool[Array, "B"],
) -> tuple[Float[Array, ""], PyTree]:
    """Returns KL(P || Q) on a batch, Eq. 2, and the variables with new batch
    statistics.
    """
    networks = Networks(autoencoder._asdict())
    rows = counted_rows(x, slots, counted)
    z, variables = forward(networks, variables, ("encoder",), rows, counted)
    q = losses.student_t(z, variables["params"]["centroids"], mask=counted)
    return losses.assignment_kl(p[slots], q, mask=counted), variables
