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

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from fcjax import losses
from fcjax.algorithms.averaging import Networks, chained, forward, part, pick, put
from fcjax.algorithms.central import BATCH, Clustering, Counted, Examples, Phase
from fcjax.algorithms.rounds import go_on
from fcjax.cluster import assign_nearest, kmeans, lloyd, running_means
from fcjax.data.augment import as_rows
from fcjax.federated import clients, training
from fcjax.federated.clients import Client
from fcjax.losses import deep_kmeans
from fcjax.nn.autoencoders import AutoEncoder
from fcjax.types import Network, PRNGKey, PyTree, Scalar

# --- Autoencoding


class Codes(NamedTuple):
    """How an auto-encoder is trained and its codes are clustered; see `by_dec`."""

    autoencoder: AutoEncoder
    optimizer: optax.GradientTransformation
    num_clusters: int
    batch_size: int
    num_init: int
    num_used: Int[Array, ""] | int | None = None


def clustering(
    codes: Codes,
    new: Callable,
    put: Callable,
    centroids_of: Callable,
    pretrain_rounds: int,
    later: tuple[Phase, ...],
) -> Clustering:
    """Returns the clustering that begins with an auto-encoder and k-means of its codes.

    Args:
        codes: of the auto-encoder.
        new: (variables, opt_state) -> a state that has both; variables are by kind, and
            then by part, `encoder` and `decoder`.
        put: (state, centroids) -> the state that has them.
        centroids_of: (state) -> its centroids [K, D], () where there are none yet.
        pretrain_rounds: epochs of the auto-encoder.
        later: the phases that follow.
    """
    kmeans_of_codes = partial(begin_kmeans, codes, put), partial(cluster, codes, put)
    phases = (
        Phase("autoencoder", go_on, partial(train, codes), pretrain_rounds),
        Phase("k-means", *kmeans_of_codes),
        *later,
    )

    def init(key, x):
        rows = as_rows(x, unit_length=False)
        variables = chained(codes.autoencoder._asdict()).init(key, rows)
        return new(variables, codes.optimizer.init(variables["params"]))

    def embed(state, x):
        return encode(codes.autoencoder, state.variables, x)

    def assign(state, z):
        centroids = centroids_of(state)
        if isinstance(centroids, tuple):
            return jnp.full(len(z), -1, jnp.int32)
        return assign_nearest(z, centroids)

    def results(state):
        encoder = part(state.variables, "encoder")
        return {"encoder": encoder, "centroids": centroids_of(state)}

    return Clustering(init, phases, embed, assign, results)


def train(codes: Codes, key: PRNGKey, state: Any, x: Examples, mask: Counted):
    """Trains an auto-encoder for an epoch: as in `Phase`, of a state that has
    `variables` and `opt_state`. The loss is an example's squared error, summed over
    features."""
    network = chained(codes.autoencoder._asdict())

    def loss(_, variables, slots, counted):
        rows = counted_rows(x, slots, counted)
        return reconstruction(network, variables, rows, counted)

    client, value = training.train(
        *(key, Client(state.variables, state.opt_state), loss, mask),
        optimizer=codes.optimizer,
        batch_size=codes.batch_size,
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
    number, and 0 * NaN would reach the gradients."""
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


def begin_kmeans(
    codes: Codes, put: Callable, _: PRNGKey, state: Any, x: Examples, mask: Counted
):
    """Returns the state with zeros for centroids."""
    code = jax.eval_shape(partial(encode, codes.autoencoder), state.variables, x[:1])
    return put(state, jnp.zeros((codes.num_clusters, code.shape[-1])))


def cluster(
    codes: Codes, put: Callable, key: PRNGKey, state: Any, x: Examples, mask: Counted
):
    """Clusters the codes of the examples that count by k-means: as in `Phase`; the loss
    is the inertia a code."""
    found = kmeans(
        *(key, encode_all(codes.autoencoder, state.variables, x), codes.num_clusters),
        num_used=codes.num_used,
        mask=mask,
        num_init=codes.num_init,
    )
    return put(state, found.centroids), found.inertia / mask.sum()


# --- DCN

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


class DCNSetup(NamedTuple):
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
        >>> from fcjax import nn
        >>> autoencoder = nn.autoencoder(5, widths=(8,), latent_size=3)
        >>> clustering = by_dcn(autoencoder, optax.adam(1e-3), num_clusters=3)
        >>> [(phase.name, phase.num_rounds) for phase in clustering.phases]
        [('autoencoder', 50), ('k-means', 1), ('joint', 50), ('final k-means', 1)]
    """
    codes = Codes(autoencoder, optimizer, num_clusters, batch_size, num_init)
    setup = DCNSetup(codes, cluster_weight, refresh_every)
    jointly = partial(begin_joint, codes), partial(train_jointly, setup)
    joint = Phase("joint", *jointly, joint_rounds)
    last = Phase("final k-means", go_on, partial(cluster, codes, put_centroids))
    later = (joint, last) if joint_rounds else ()
    return clustering(
        codes,
        DCNState,
        put_centroids,
        lambda state: state.centroids,
        pretrain_rounds,
        later,
    )


def put_centroids(state: DCNState, centroids: Float[Array, "K D"]) -> DCNState:
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
    setup: DCNSetup, key: PRNGKey, state: DCNState, x: Examples, mask: Counted
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
    setup: DCNSetup,
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
    z = encode(setup.codes.autoencoder, client.variables, x[slots])
    nearest = assign_nearest(z, state.centroids)
    centroids, counts = running_means(
        state.centroids, state.counts, z, nearest, mask=counted
    )
    counting = jnp.where(counted, slots, len(x))  # no slot: dropped
    assignments = state.assignments.at[counting].set(nearest, mode="drop")
    return DCNState(*client, centroids, counts, assignments, state.num_rounds), value


def loss(
    setup: DCNSetup,
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
    rows = counted_rows(x, slots, counted)
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


# --- DEC

SGD = optax.sgd(0.01, momentum=0.9)
"""The optimiser of the paper's clusters."""


class DECSetup(NamedTuple):
    """What the rounds of the joint phase share; see `by_dec`."""

    codes: Codes
    optimizer: optax.GradientTransformation
    num_epochs: int


def by_dec(
    autoencoder: AutoEncoder,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int,
    num_used: Int[Array, ""] | int | None = None,
    pretrain_rounds: int = 300,
    joint_rounds: int = 70,
    joint_epochs: int = 1,
    batch_size: int = 256,
    num_init: int = 20,
    joint_optimizer: optax.GradientTransformation = SGD,
) -> Clustering:
    """Returns DEC: an auto-encoder, k-means of its codes, then encoder and centroids.

    The auto-encoder is trained whole, as in DEC-keras; the paper begins with one layer
    after another, and dropout. The target P is refreshed once a round, the papers' code
    does so every 140 or 160 steps, half an epoch of MNIST. Batches are drawn anew every
    epoch, where the papers' code takes them in the order of the data: here that order
    may be by class. All rounds are run: nothing stops at few changed assignments.

    Args:
        autoencoder: of the rows of examples, pixels in [0, 1].
        optimizer: of the auto-encoder.
        num_clusters: K.
        num_used: how many of them are used, all by default, where that is data: the
            clustering is that of `num_clusters=num_used`; see `cluster.kmeans`.
        pretrain_rounds: epochs of the auto-encoder, a round each; 300 as in DEC-keras.
        joint_rounds: how often P is refreshed; with an epoch each, 70 are about the
            20,000 steps on MNIST after which DEC-keras stops at the latest.
        joint_epochs: epochs by one P, more where they are short.
        batch_size: examples a step.
        num_init: seedings of k-means.
        joint_optimizer: of encoder and centroids.

    Returns:
        The clustering, phases `autoencoder`, `k-means` and `dec`. Their losses are the
        squared error and the inertia an example, and KL(P || Q), Eq. 2. An example's
        embedding is its code. A state is a `Client` whose parts are `encoder` and
        first `decoder`, then `centroids`.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> autoencoder = nn.autoencoder(5, widths=(8,), latent_size=3)
        >>> clustering = by_dec(autoencoder, optax.adam(1e-3), num_clusters=3)
        >>> [(phase.name, phase.num_rounds) for phase in clustering.phases]
        [('autoencoder', 300), ('k-means', 1), ('dec', 70)]
    """
    codes = Codes(autoencoder, optimizer, num_clusters, batch_size, num_init, num_used)
    setup = DECSetup(codes, joint_optimizer, joint_epochs)
    dec = Phase("dec", partial(begin, setup), partial(sharpen, setup), joint_rounds)
    later = (dec,) if joint_rounds else ()
    return clustering(
        codes, Client, begin_clusters, centroids_of, pretrain_rounds, later
    )


def begin_clusters(state: Client, centroids: Float[Array, "K D"]) -> Client:
    """Returns the state that has an encoder and these centroids."""
    encoder = pick(state.variables, ("encoder",))
    return Client(put(encoder, "centroids", {"params": centroids}), ())


def centroids_of(state: Client) -> Any:
    """Returns the centroids, () before k-means."""
    return state.variables["params"].get("centroids", ())


def begin(
    setup: DECSetup, _: PRNGKey, state: Client, x: Examples, mask: Counted
) -> Client:
    """Returns the state in which encoder and centroids have not taken a step yet."""
    return state._replace(opt_state=setup.optimizer.init(state.variables["params"]))


def sharpen(
    setup: DECSetup, key: PRNGKey, state: Client, x: Examples, mask: Counted
) -> tuple[Client, Float[Array, ""]]:
    """A round: P of all examples, then some epochs of encoder and centroids by it."""
    autoencoder = setup.codes.autoencoder
    z = encode_all(autoencoder, state.variables, x)
    q = losses.student_t(z, centroids_of(state), mask=mask)
    p = losses.target_distribution(q, mask=mask)
    return training.train(
        *(key, state, partial(divergence, autoencoder, x, p), mask),
        optimizer=setup.optimizer,
        batch_size=setup.codes.batch_size,
        num_epochs=setup.num_epochs,
    )


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
    statistics."""
    networks = Networks(autoencoder._asdict())
    rows = counted_rows(x, slots, counted)
    z, variables = forward(networks, variables, ("encoder",), rows, counted)
    q = losses.student_t(z, variables["params"]["centroids"], mask=counted)
    return losses.assignment_kl(p[slots], q, mask=counted), variables
