"""Clustering with auto-encoders: DCN, DEC and their common first phases.

Both methods train an auto-encoder and then cluster its codes by k-means. DCN (`by_dcn`)
goes on to train networks and clusters by turns, with codes pulled to their k-means
centroids. DEC (`by_dec`) goes on to train the encoder and the centroids towards sharper
soft assignments. `by_codes` stops after k-means.

Towards K-means-friendly Spaces: Simultaneous Deep Learning and Clustering
    Bo Yang, Xiao Fu, Nicholas D. Sidiropoulos, Mingyi Hong. 2017.
    https://arxiv.org/abs/1610.04794
    Authors' code: https://github.com/boyangumn/DCN-New

Unsupervised Deep Embedding for Clustering Analysis
    Junyuan Xie, Ross Girshick, Ali Farhadi. 2016.
    https://arxiv.org/abs/1511.06335
    Authors' code: https://github.com/piiswrong/dec
    Keras version with better results: https://github.com/XifengGuo/DEC-keras
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

# --- Auto-encoder and k-means of its codes


NUM_INIT = 20
"""Number of initializations of DEC's k-means; the best result is used."""


class Setup(NamedTuple):
    """The networks and settings that all phases share; see `by_dcn`."""

    autoencoder: AutoEncoder
    optimizer: optax.GradientTransformation
    settings: Any
    """The method's settings, with one value per setting."""
    batch_size: int
    num_init: int
    """Number of initializations of k-means."""
    num_clusters: int
    """Number K of clusters, the size of the arrays."""
    num_used: Int[Array, ""] | int | None = None
    """Number of clusters in use, at most K; None uses all."""


class Trained(NamedTuple):
    """The state of a clustering: networks, centroids and what DCN adds to them."""

    variables: PyTree
    """Variables of encoder and decoder; in DEC's last phase, encoder and centroids."""
    opt_state: PyTree
    centroids: Any = ()
    """[K, D]; () before k-means."""
    joint: Any = ()
    """The `Joint` of DCN's joint phase; () before this phase."""


def by_codes(
    settings: Any,
    autoencoder: AutoEncoder,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int,
) -> Clustering:
    """Builds k-means on the codes of an auto-encoder, SDA-FDC's ablation (disjoint).

    Args:
        settings: an `fcjax.methods.DCNDisjoint` or another method with an auto-encoder,
            with one value per setting.
        autoencoder: encoder and decoder of examples as rows.
        optimizer: optimizer of the auto-encoder.
        num_clusters: number K of clusters.

    Returns:
        The clustering, with phases `autoencoder` and `k-means`.

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
    """Builds a clustering that starts with an auto-encoder and k-means of its codes.

    Args:
        setup: networks and settings of the clustering.
        *later: the phases after k-means.

    Returns:
        The clustering, with phases `autoencoder`, `k-means` and the later ones.
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

    first_phases = (
        Phase("autoencoder", keep_state, partial(train, setup), rounds),
        Phase("k-means", begin_kmeans, partial(cluster, setup)),
    )
    embed = partial(encode_state, autoencoder)
    return Clustering(init, (*first_phases, *later), embed, assign, results)


def encode_state(
    autoencoder: AutoEncoder, state: Trained, x: Examples
) -> Float[Array, "N D"]:
    """Returns the codes of examples with the encoder of a state.

    Args:
        autoencoder: the networks.
        state: the state whose variables are used.
        x: examples [N, *F].

    Returns:
        The codes [N, D].
    """
    return encode(autoencoder, state.variables, x)


def train(
    setup: Setup, key: PRNGKey, state: Trained, x: Examples, mask: Counted, _: Now
) -> tuple[Trained, Float[Array, ""]]:
    """Trains the auto-encoder for one epoch: a round of the phase `autoencoder`.

    Args:
        setup: networks and settings of the clustering.
        key: random key of the round.
        state: the state before the round.
        x: examples [N, *F].
        mask: [N], True at examples that count.

    Returns:
        The state after the round, and the loss: the squared error of an example, summed
        over its features and averaged over examples.
    """
    network = chain(setup.autoencoder._asdict())

    def loss(_, variables, batch_indices, counted):
        rows = counted_rows(x, batch_indices, counted)
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
    """Returns the mean squared error of a batch, and the new variables.

    Args:
        network: a network from rows to their reconstructions.
        variables: variables of the network.
        rows: a batch of rows [B, D].
        counted: [B], True at rows that count.
        per_feature: whether the error of an example is the mean over its features, or
            the sum.

    Returns:
        The mean error of the counted rows, and the variables with new batch statistics.
    """
    decoded, variables = network.apply(variables, rows, train=True, mask=counted)
    errors = losses.reconstruction_error(rows, decoded)
    if per_feature:
        errors /= rows.shape[1]
    return jnp.mean(errors, where=counted), variables


def counted_rows(
    x: Shaped[Array, "N *F"], batch_indices: Int[Array, "B"], counted: Bool[Array, "B"]
) -> Float[Array, "B D"]:
    """Returns a batch of examples as rows, with zeros where an example does not count.

    Examples that do not count may contain NaN, and 0 * NaN would reach the gradients.

    Args:
        x: all examples [N, *F].
        batch_indices: indices of the batch's examples [B].
        counted: [B], True at examples that count.

    Returns:
        The rows [B, D].
    """
    return jnp.where(counted[:, None], as_rows(x[batch_indices], unit_length=False), 0)


def encode(
    autoencoder: AutoEncoder, variables: PyTree, x: Shaped[Array, "N *F"]
) -> Float[Array, "N D"]:
    """Returns the codes of examples.

    Args:
        autoencoder: the networks.
        variables: their variables.
        x: examples [N, *F].

    Returns:
        The codes [N, D].
    """
    rows = as_rows(x, unit_length=False)
    encoder = part(variables, "encoder")
    return autoencoder.encoder.apply(encoder, rows, train=False)[0]


def encode_all(
    autoencoder: AutoEncoder, variables: PyTree, x: Shaped[Array, "N *F"]
) -> Float[Array, "N D"]:
    """Returns the codes of examples, computed in batches to bound the memory.

    Args:
        autoencoder: the networks.
        variables: their variables.
        x: examples [N, *F].

    Returns:
        The codes [N, D].
    """

    def batch(batch_indices):
        return encode(autoencoder, variables, x[batch_indices])

    return training.in_batches(batch, jnp.arange(len(x)), batch_size=BATCH)


def cluster(
    setup: Setup, key: PRNGKey, state: Trained, x: Examples, mask: Counted, _: Now
) -> tuple[Trained, Float[Array, ""]]:
    """Clusters the codes by one complete k-means, the only round of phase `k-means`.

    Args:
        setup: networks and settings of the clustering.
        key: random key of the round.
        state: the state before the round.
        x: examples [N, *F].
        mask: [N], True at examples that count.

    Returns:
        The state with the new centroids, and the loss: the inertia of k-means divided
        by the number of examples.
    """
    result = kmeans(
        *(key, encode_all(setup.autoencoder, state.variables, x), setup.num_clusters),
        num_used=setup.num_used,
        mask=mask,
        num_init=setup.num_init,
    )
    return state._replace(centroids=result.centroids), result.inertia / mask.sum()


# --- DCN

FIRST_COUNT = 100.0
"""Number of examples that a centroid counts as at the start of DCN's joint phase, as in
the authors' code. A larger count means smaller steps of the centroid."""


class Joint(NamedTuple):
    """The state that DCN's joint phase adds to networks and centroids."""

    counts: Float[Array, "K"]
    """Number of examples that each centroid has averaged."""
    assignments: Int[Array, "N"]
    """Cluster of each example when it was last assigned; -1 before that."""


def by_dcn(
    settings: Any,
    autoencoder: AutoEncoder,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int,
) -> Clustering:
    """Builds DCN: an auto-encoder, k-means of its codes, then joint training.

    One step of the joint phase has two parts. First, the networks take a gradient step
    on equation 3 of the SDA-FDC paper, with the stored assignments and centroids. Then
    the batch is encoded and assigned again, and the centroids of its clusters move
    towards its codes.

    As in the authors' code, k-means of all codes runs from the current centroids every
    ten epochs, and from new initial centroids after the joint phase. The last result
    gives the clusters. The counts of the centroids are not reset by these runs of
    k-means.

    Args:
        settings: an `fcjax.methods.DCN` or `SDAFDC` with one value per setting.
            `cluster_weight` is lambda, the weight of half the squared distance of a
            code to its centroid. The other term is the squared reconstruction error.
            Both are sums over features. With `joint_rounds` = 0, the clustering ends
            after the first k-means.
        autoencoder: encoder and decoder of examples as rows, with pixels in [0, 1].
        optimizer: optimizer of the networks in both phases.
        num_clusters: number K of clusters.

    Returns:
        The clustering, with phases `autoencoder`, `k-means`, `joint` and
        `final k-means`. Their losses are, per example: the squared error, the inertia,
        equation 3, and the inertia. The embedding of an example is its code.

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
    """Returns the state at the start of DCN's joint phase.

    Every example that counts is assigned to its nearest centroid. All centroids have
    the count `FIRST_COUNT`.

    Args:
        setup: networks and settings of the clustering.
        state: the state after k-means.
        x: examples [N, *F].
        mask: [N], True at examples that count.

    Returns:
        The state with a new `joint`.
    """
    z = encode_all(setup.autoencoder, state.variables, x)
    nearest = assign_nearest(z, state.centroids)
    counts = jnp.full(setup.num_clusters, FIRST_COUNT, jnp.float32)
    return state._replace(joint=Joint(counts, jnp.where(mask, nearest, -1)))


def train_jointly(
    setup: Setup, key: PRNGKey, state: Trained, x: Examples, mask: Counted, now: Now
) -> tuple[Trained, Float[Array, ""]]:
    """Trains networks and clusters for one epoch: a round of the phase `joint`.

    Every `refresh_every` rounds, k-means of all codes follows.

    Args:
        setup: networks and settings of the clustering.
        key: random key of the round.
        state: the state before the round.
        x: examples [N, *F].
        mask: [N], True at examples that count.
        now: the current round.

    Returns:
        The state after the round, and the mean of equation 3 over the steps.
    """
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
    batch_indices: Int[Array, "B"],
    counted: Bool[Array, "B"],
) -> tuple[Trained, Float[Array, ""]]:
    """Takes one step of DCN's joint phase.

    First the networks take a gradient step with the stored clusters. Then the batch is
    encoded again and moves the centroids.

    Args:
        setup: networks and settings of the clustering.
        x: all examples [N, *F].
        key: random key of the step.
        state: the state before the step.
        batch_indices: indices of the batch's examples [B].
        counted: [B], True at examples that count.

    Returns:
        The state after the step, and the loss of the batch.
    """
    client, value = training.step(
        *(key, clients.Client(state.variables, state.opt_state)),
        *(partial(loss, setup, x, state), batch_indices, counted),
        optimizer=setup.optimizer,
    )
    z = encode(setup.autoencoder, client.variables, x[batch_indices])
    nearest = assign_nearest(z, state.centroids)
    centroids, counts = running_means(
        state.centroids, state.joint.counts, z, nearest, mask=counted
    )
    # Index N is out of bounds, which drops the examples that do not count.
    targets = jnp.where(counted, batch_indices, len(x))
    assignments = state.joint.assignments.at[targets].set(nearest, mode="drop")
    return Trained(*client, centroids, Joint(counts, assignments)), value


def loss(
    setup: Setup,
    x: Shaped[Array, "N *F"],
    state: Trained,
    _: PRNGKey,
    variables: PyTree,
    batch_indices: Int[Array, "B"],
    counted: Bool[Array, "B"],
) -> tuple[Float[Array, ""], PyTree]:
    """Returns equation 3 of the SDA-FDC paper on a batch, and the new variables.

    Args:
        setup: networks and settings of the clustering.
        x: all examples [N, *F].
        state: the state with the stored assignments and centroids.
        variables: variables of the networks.
        batch_indices: indices of the batch's examples [B].
        counted: [B], True at examples that count.

    Returns:
        The loss, and the variables with new batch statistics.
    """
    networks = Networks(setup.autoencoder._asdict())
    rows = counted_rows(x, batch_indices, counted)
    z, variables = forward(networks, variables, ("encoder",), rows, counted)
    decoded, variables = forward(networks, variables, ("decoder",), z, counted)
    stored = state.joint.assignments[batch_indices]
    # Examples that arrived after the last assignment get their nearest cluster.
    nearest = assign_nearest(z, state.centroids)
    centroids = state.centroids[jnp.where(stored < 0, nearest, stored)]
    value = deep_kmeans(
        *(rows, decoded, z, centroids),
        cluster_weight=setup.settings.cluster_weight,
        mask=counted,
    )
    return value, variables


def refresh_clusters(
    setup: Setup, x: Shaped[Array, "N *F"], mask: Bool[Array, "N"], state: Trained
) -> Trained:
    """Runs k-means of all codes from the current centroids.

    Args:
        setup: networks and settings of the clustering.
        x: examples [N, *F].
        mask: [N], True at examples that count.
        state: the state before k-means.

    Returns:
        The state with the new centroids and assignments.
    """
    z = encode_all(setup.autoencoder, state.variables, x)
    result = lloyd(z, state.centroids, mask=mask)
    assignments = jnp.where(mask, result.assignments, -1)
    joint = state.joint._replace(assignments=assignments)
    return state._replace(centroids=result.centroids, joint=joint)


# --- DEC

SGD = optax.sgd(0.01, momentum=0.9)
"""Default optimizer of encoder and centroids in DEC, as in the paper."""


def by_dec(
    settings: Any,
    autoencoder: AutoEncoder,
    optimizer: optax.GradientTransformation,
    *,
    num_clusters: int,
    num_used: Int[Array, ""] | int | None = None,
    joint_optimizer: optax.GradientTransformation = SGD,
) -> Clustering:
    """Builds DEC: an auto-encoder, k-means of its codes, then encoder and centroids.

    The differences from the papers and their code are:

    * The auto-encoder is trained as a whole, as in DEC-keras. The paper first trains it
      layer by layer, with dropout.
    * The target P is updated once per round. The papers' code does so every 140 or 160
      steps, which is half an epoch of MNIST.
    * Batches are drawn at random every epoch. The papers' code takes them in the order
      of the data, which may here be sorted by class.
    * All rounds are run. There is no early stop at few changed assignments.

    Args:
        settings: an `fcjax.methods.DEC` or `FedCRef` with one value per setting. P is
            updated `joint_rounds` times, and one epoch follows each update. 70 rounds
            are about 20,000 steps on MNIST, the maximum of DEC-keras.
        autoencoder: encoder and decoder of examples as rows, with pixels in [0, 1].
        optimizer: optimizer of the auto-encoder.
        num_clusters: number K of clusters.
        num_used: number of clusters in use, if this number is an array and not static.
            The result is then that of `num_clusters=num_used`; see `cluster.kmeans`. By
            default all K are used.
        joint_optimizer: optimizer of encoder and centroids.

    Returns:
        The clustering, with phases `autoencoder`, `k-means` and `dec`. Their losses are
        the squared error per example, the inertia per example, and KL(P || Q)
        (equation 2). The embedding of an example is its code.

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
    """Returns the state at the start of DEC's last phase.

    Its trained parts are the encoder and the centroids, with a new optimizer state.

    Args:
        optimizer: optimizer of encoder and centroids.
        state: the state after k-means.
        *data: examples and mask, unused.

    Returns:
        The state whose variables are those of the encoder and the centroids.
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
    """Updates the target P and trains encoder and centroids for one epoch with it.

    Args:
        setup: networks and settings of the clustering.
        optimizer: optimizer of encoder and centroids.
        key: random key of the round.
        state: the state before the round.
        x: examples [N, *F].
        mask: [N], True at examples that count.

    Returns:
        The state after the round, and the mean loss of the steps.
    """
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
    batch_indices: Int[Array, "B"],
    counted: Bool[Array, "B"],
) -> tuple[Float[Array, ""], PyTree]:
    """Returns KL(P || Q) of a batch (equation 2), and the new variables.

    Args:
        autoencoder: the networks.
        x: all examples [N, *F].
        p: target distribution of all examples [N, K].
        variables: variables of encoder and centroids.
        batch_indices: indices of the batch's examples [B].
        counted: [B], True at examples that count.

    Returns:
        The loss, and the variables with new batch statistics.
    """
    networks = Networks(autoencoder._asdict())
    rows = counted_rows(x, batch_indices, counted)
    z, variables = forward(networks, variables, ("encoder",), rows, counted)
    q = losses.student_t(z, variables["params"]["centroids"], mask=counted)
    return losses.assignment_kl(p[batch_indices], q, mask=counted), variables
