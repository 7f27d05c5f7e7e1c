"""Cluster-contrastive federated clustering.

CCFC: Bridging Federated Clustering and Contrastive Learning
    Jing Liu, Jie Yan, Zhong-Yuan Zhang. 2024. https://arxiv.org/abs/2401.06634
    Authors' code: https://github.com/Jarvisyan/CCFC-pytorch
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from fcjax import losses, ragged
from fcjax.algorithms.rounds import all_rounds
from fcjax.cluster import assign_nearest, kmeans
from fcjax.data.augment import Augment, to_float
from fcjax.federated import clients, server, training
from fcjax.federated.kmeans import (
    HALF,
    Clusters,
    KMeans,
    cluster_means,
    cluster_sums,
    identity,
    means_of,
    no_clusters,
)
from fcjax.types import (
    FederatedClustering,
    Federation,
    Network,
    Now,
    Pool,
    PRNGKey,
    PyTree,
    Scalar,
    State,
)

CONSTANT = optax.constant_schedule(1.0)
"""Every round uses the full learning rate."""


class Server(NamedTuple):
    """The server's uploads and downloads; the optimizers stay on the clients."""

    variables: PyTree  # the global network w^g
    clusters: Clusters  # with the centroids eta^g


class Client(NamedTuple):
    """The state of a client in a round, stacked on M."""

    variables: PyTree
    centroids: PyTree  # [K, D], or as an upload to federated k-means sums and counts
    opt_state: PyTree


class Setup(NamedTuple):
    """The inputs of `ccfc`, which all rounds share."""

    settings: Any
    network: Network
    optimizer: optax.GradientTransformation
    augment: Augment
    num_clusters: int
    schedule: optax.Schedule


def ccfc(
    settings: Any,
    network: Network,
    optimizer: optax.GradientTransformation,
    augment: Augment,
    *,
    num_clusters: int,
    schedule: optax.Schedule = CONSTANT,
) -> FederatedClustering:
    """Builds CCFC: SimSiam pre-training, then rounds of cluster contrast.

    The paper describes the second stage alone. The authors' code trains SimSiam first,
    on two augmented views, and then contrasts clusters without augmentation. With
    `cluster_by="ccfc"` the second stage begins as in the code: every client computes
    centroids with the averaged network, and the server clusters the centroids. With
    it, `pretrain_rounds=0, include_self=False, euclidean=True` is
    Algorithm 1 as printed, with two differences: embeddings z have unit length, and the
    clusters of the loss are those of a batch.

    With `cluster_by="k-means"` the clusters come from federated k-means instead, whose
    result is that of k-means of the pooled embedding. It runs after pre-training until
    the centroids stand still, and measures how unlike the clients are. Unlike clients
    would contrast wrong clusters, which ruins the embedding, so a run whose clients
    have a heterogeneity above `max_heterogeneity` ends after this stage. Alike clients
    go on with the rounds of cluster contrast, which begin with the clusters of k-means
    and take one Lloyd step per round.

    With `standalone` every client trains and clusters alone, and nothing is uploaded or
    downloaded: the local models of Table 4.

    Args:
        settings: one value per setting of `fcjax.methods.CCFC`, which describes them:
            `CCFC(model_weight=0.1).plain()`. Floats may be traced.
        network: maps [B, *F] to projections and predictions, [B, D] each.
        optimizer: of each client. Its state is kept between rounds, as in the code, and
            starts anew with the second stage.
        augment: (key, example) -> a view of the example.
        num_clusters: K, of the clients' k-means and of the server's k-means.
        schedule: (round of the second stage) -> the share of the learning rate. The
            first stage uses the full learning rate, as does the code in both stages.

    Returns:
        The method, with stages `pretrain` and `cluster`, and with `own_init` before
        them `first`, one round of pre-training. With `cluster_by="k-means"` the stage
        `k-means` comes before `cluster`, in SCFC after it. Its metrics are those of
        `fcjax.federated.kmeans.KMeans`. The other metrics are the mean `loss` over
        the participating clients, `participants`, `embedding_spread` of a batch of each
        client (1 if the embedding fills its sphere, 0 if it collapsed), `weight_size`
        (root mean square of the clients' weights), and the traffic.

    Raises:
        ValueError: own_init without a round of pre-training, or k-means for clients
            that train alone.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.data.augment import vector_view
        >>> from fcjax.methods import CCFC
        >>> network = nn.mlp_simsiam(widths=(16,), hidden_size=16, latent_size=8)
        >>> settings = CCFC(pretrain_rounds=20).plain()
        >>> adam = optax.adam(1e-3)
        >>> method = ccfc(settings, network, adam, vector_view, num_clusters=3)
        >>> [(stage.name, stage.num_rounds) for stage in method.stages]
        [('pretrain', 20), ('cluster', 30)]
    """
    if settings.own_init and settings.pretrain_rounds < 1:
        raise ValueError("own_init is a round of pre-training, and there is none")
    if settings.standalone and settings.cluster_by == "k-means":
        raise ValueError("cluster_by k-means needs a server, standalone has none")
    setup = Setup(settings, network, optimizer, augment, num_clusters, schedule)
    # Stages with the same round function are compiled once.
    by_examples, by_clusters = (
        partial(federated_round, setup, contrasts) for contrasts in (False, True)
    )
    first = 1 if settings.own_init else 0
    contrast = all_rounds(
        "cluster",
        by_examples if settings.sample_contrastive else by_clusters,
        settings.cluster_rounds,
        begin=partial(begin_clusters, setup),
    )
    last = (contrast,)
    if settings.cluster_by == "k-means":
        kmeans = KMeans(
            *(partial(points, setup), num_clusters, settings.num_init),
            whitening=HALF if settings.whiten else 0.0,
            cosine=not (settings.whiten or settings.euclidean),
            model=lambda state: {"network": state.server.variables},
        ).stage()
        last = (contrast, kmeans)
        if not settings.sample_contrastive:  # SCFC needs no clusters to train
            contrast = contrast._replace(done=partial(is_unlike, settings))
            last = (kmeans, contrast) if settings.cluster_rounds else (kmeans,)
    return FederatedClustering(
        init=partial(initial_state, setup),
        stages=(
            *([all_rounds("first", by_examples, 1)] if first else []),
            all_rounds("pretrain", by_examples, settings.pretrain_rounds - first),
            *last,
        ),
        embed=partial(embed, setup),
        assign=partial(assign, setup),
        by_size=True,
    )


def federated_round(
    setup: Setup, by_clusters: bool, key: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """A round of Algorithm 1: clients train the global network and compute centroids,
    the server averages the networks and clusters the centroids. With federated k-means
    the clients compute sums and counts by cluster, and the server divides.

    Args:
        setup: of the method.
        by_clusters: contrast clusters, else two views of each example.
        key, state, federation: as in `Stage`.
    """
    present = server.participants(federation)
    clients_key, server_key = jax.random.split(key)
    before = client_states(setup, state, len(present))
    trained, measured = clients.for_each(
        partial(client_round, setup, by_clusters, federation.now, federation.pool),
        clients.keys(clients_key, len(present)),
        before,
        federation.indices,
        federation.mask,
    )
    if setup.settings.standalone:
        measured = server.gather((present, measured))
        after = clients.keep_absent(present, trained, before)
        return State((), after), server.measure(*measured)

    sizes = present * ragged.sizes(federation.mask).astype(float)
    variables, (uploads, answered, measured) = server.receive(
        trained.variables, sizes, (trained.centroids, present, measured)
    )
    opt_state = clients.keep_absent(present, trained.opt_state, before.opt_state)
    network = {"network": variables}
    metrics = server.measure(answered, measured)
    metrics |= server.traffic(answered, up=network, down=network)
    clusters: Clusters = state.server.clusters
    if setup.settings.cluster_by != "k-means":
        is_needed = by_clusters or federation.now.is_evaluated
        centroids = lax.cond(
            is_needed,
            lambda: cluster_centroids(setup, server_key, uploads, answered),
            lambda: clusters.centroids,
        )
        # Clients also uploaded centroids when the stage began.
        begins = by_clusters & (federation.now.stage_round == 0)
        up, times = {"centroids": centroids}, jnp.int32(is_needed)
    elif by_clusters:
        centroids = lloyd_means(setup, uploads, answered, clusters.centroids)
        begins = setup.settings.whiten & (federation.now.stage_round == 0)
        up, times = {"sums": centroids, "counts": uploads[1][0]}, jnp.int32(1)
    else:  # k-means has not begun
        return State(Server(variables, clusters), opt_state), metrics
    down = server.traffic(answered, up={}, down={"centroids": centroids})
    for name, x in (server.traffic(answered, up=up, down={}) | down).items():
        count = times + begins if name.startswith("up") else times
        metrics[name] = x.at[0].multiply(count)
    clusters = clusters._replace(centroids=centroids)
    return State(Server(variables, clusters), opt_state), metrics


def client_states(setup: Setup, state: State, num_clients: int) -> Client:
    """Returns the state in which each client begins a round, stacked on M: the server's
    network and centroids, or the client's own if clients train alone.
    """
    if setup.settings.standalone:
        return state.clients
    return from_server(state, num_clients)


def from_server(state: State, num_clients: int) -> Client:
    """Returns the state of clients that downloaded the server's models."""
    sent: Server = state.server
    models = clients.repeat((sent.variables, sent.clusters.centroids), num_clients)
    return Client(models[0], models[1], state.clients)


def client_round(
    setup: Setup,
    by_clusters: bool,
    now: Now,
    pool: Pool,
    key: PRNGKey,
    before: Client,
    rows: Int[Array, "N"],
    mask: Bool[Array, "N"],
) -> tuple[Client, dict[str, Float[Array, ""]]]:
    """A client trains its network, which stays close to the network of the round's
    start, and computes its part of the server's centroids from its own embedding:
    centroids if they are needed, or with federated k-means sums and counts.
    """
    settings, anchor = setup.settings, before.variables
    train_key, centroids_key, init_key = jax.random.split(key, 3)
    start, labels = anchor, jnp.zeros_like(rows)
    if settings.own_init and not by_clusters:
        own = partial(setup.network.init, init_key, to_float(pool[:1]))
        start = lax.cond(now.round == 0, own, lambda: anchor)
    if by_clusters:
        labels = nearest(setup, encode(setup, pool, anchor, rows), before.centroids)

    def loss(key, variables, slots, counted):
        x = to_float(pool[rows[slots]])
        if by_clusters:
            return cluster_contrast(setup, variables, anchor, x, labels[slots], counted)
        return sample_contrast(
            *(setup.network, variables, anchor, two_views(setup, key, x), counted),
            model_weight=settings.model_weight,
            decorrelation_weight=settings.decorrelation_weight,
        )

    # The round of the second stage, below 0 in the first. SCFC has one function for
    # both.
    number = now.stage_round if by_clusters else now.round - settings.pretrain_rounds
    share = jnp.where(number < 0, 1.0, setup.schedule(jnp.maximum(number, 0)))
    trained, value = training.train(
        train_key,
        clients.Client(start, before.opt_state),
        loss,
        mask,
        optimizer=training.scale_updates(setup.optimizer, share),
        batch_size=settings.batch_size,
        num_epochs=settings.local_epochs,
    )
    centroids = before.centroids
    if settings.cluster_by != "k-means":
        centroids = lax.cond(
            by_clusters or now.is_evaluated,
            lambda: local_centroids(
                setup, centroids_key, trained.variables, pool, rows, mask
            ),
            lambda: before.centroids,
        )
    elif by_clusters:
        z = encode(setup, pool, trained.variables, rows)
        labels = nearest(setup, z, before.centroids)
        centroids = cluster_sums(z, labels, mask, setup.num_clusters)
    few = training.evenly_spaced_indices(mask, settings.batch_size)
    z = encode(setup, pool, trained.variables, rows[few])
    measured = {
        "loss": value,
        "embedding_spread": training.spread(z, mask[few]),
        "weight_size": training.root_mean_square(trained.variables["params"]),
    }
    return Client(trained.variables, centroids, trained.opt_state), measured


def two_views(setup: Setup, key: PRNGKey, x: Float[Array, "B *F"]):
    """Draws two views of each example."""
    keys = jax.vmap(jax.random.split)(clients.fold_in(key, len(x)))
    views = jax.vmap(jax.vmap(setup.augment, in_axes=(0, None)))(keys, x)
    return views[:, 0], views[:, 1]


def sample_contrast(
    network: Network,
    variables: PyTree,
    anchor: PyTree,
    views: tuple[Float[Array, "B *F"], Float[Array, "B *F"]],
    mask: Bool[Array, "B"],
    *,
    model_weight: Scalar,
    decorrelation_weight: Scalar = 0.0,
) -> tuple[Float[Array, ""], PyTree]:
    """Returns SimSiam's loss on two views of a batch, with the pull towards the anchor,
    and the variables with new batch statistics; the loss of the first stage.
    """
    (z1, p1), variables = network.apply(variables, views[0], train=True, mask=mask)
    (z2, p2), variables = network.apply(variables, views[1], train=True, mask=mask)
    (_, g1), _ = network.apply(anchor, views[0], train=False)
    (_, g2), _ = network.apply(anchor, views[1], train=False)
    contrast = (losses.negative_cosine(p1, z2) + losses.negative_cosine(p2, z1)) / 2
    contrast = jnp.sum(contrast, where=mask) / jnp.maximum(mask.sum(), 1)
    pull = losses.model_contrastive(p1, g1, mask=mask)
    pull += losses.model_contrastive(p2, g2, mask=mask)
    few = losses.decorrelation(z1, mask=mask) + losses.decorrelation(z2, mask=mask)
    return contrast + model_weight * pull / 2 + decorrelation_weight * few, variables


def cluster_contrast(
    setup: Setup,
    variables: PyTree,
    anchor: PyTree,
    x: Float[Array, "B *F"],
    labels: Int[Array, "B"],
    mask: Bool[Array, "B"],
) -> tuple[Float[Array, ""], PyTree]:
    """Returns Eq. 4 on a batch under its pseudo-labels, and the variables with new
    batch statistics; the loss of the second stage.
    """
    (z, p), variables = setup.network.apply(variables, x, train=True, mask=mask)
    (_, anchors), _ = setup.network.apply(anchor, x, train=False)
    contrast = losses.cluster_contrastive(
        *(p, z, labels),
        num_clusters=setup.num_clusters,
        include_self=setup.settings.include_self,
        mask=mask,
    )
    pull = losses.model_contrastive(p, anchors, mask=mask)
    few = losses.decorrelation(z, mask=mask)
    loss = contrast + setup.settings.model_weight * pull
    return loss + setup.settings.decorrelation_weight * few, variables


def local_centroids(
    setup: Setup,
    key: PRNGKey,
    variables: PyTree,
    pool: Pool,
    rows: Int[Array, "N"],
    mask: Bool[Array, "N"],
) -> Float[Array, "K D"]:
    """Returns the k-means centroids of a client's own embedding."""
    z, num_init = encode(setup, pool, variables, rows), setup.settings.num_init
    return kmeans(key, z, setup.num_clusters, mask=mask, num_init=num_init).centroids


def cluster_centroids(
    setup: Setup,
    key: PRNGKey,
    local: Float[Array, "M K D"],
    answered: Bool[Array, "M"],
) -> Float[Array, "K D"]:
    """Returns the k-means centroids of the clients' centroids, each counting once, as
    in the code.
    """
    points, num_init = local.reshape(-1, local.shape[-1]), setup.settings.num_init
    mask = jnp.repeat(answered, setup.num_clusters)
    found = kmeans(key, points, setup.num_clusters, mask=mask, num_init=num_init)
    return found.centroids


def lloyd_means(
    setup: Setup,
    uploads: tuple[Float[Array, "M K D"], Float[Array, "M K"]],
    answered: Bool[Array, "M"],
    before: Float[Array, "K D"],
) -> Float[Array, "K D"]:
    """Returns the means of the clusters of all examples by the clients' sums and
    counts; a cluster without examples keeps its centroid.
    """
    sums, counts = uploads
    sums = jnp.sum(sums, axis=0, where=answered[:, None, None])
    totals = jnp.sum(counts, axis=0, where=answered[:, None])
    return means_of(sums, totals, before, cosine=not setup.settings.euclidean)


def initial_state(setup: Setup, key: PRNGKey, federation: Federation) -> State:
    """Returns the state before the first round: one network for all clients."""
    variables = setup.network.init(key, to_float(federation.pool[:1]))
    z = jax.eval_shape(
        partial(encode, setup, federation.pool), variables, jnp.arange(1)
    )
    clusters = no_clusters(setup.num_clusters, z.shape[-1])
    opt_state = setup.optimizer.init(variables["params"])
    opt_state = clients.repeat(opt_state, len(federation.indices))
    state = State(Server(variables, clusters), opt_state)
    if setup.settings.standalone:
        return leave_federation(state, len(federation.indices))
    return state


def leave_federation(state: State, num_clients: int) -> State:
    """Returns the state of clients that leave the federation and train alone, starting
    from the server's network and centroids.
    """
    return State((), from_server(state, num_clients))


def begin_clusters(
    setup: Setup, key: PRNGKey, state: State, federation: Federation
) -> State:
    """Begins the second stage, with new optimizers. The clusters are those of federated
    k-means. With `cluster_by="ccfc"` the participating clients compute centroids with
    the averaged network, and the server clusters these centroids. SCFC uses no
    pseudo-labels and skips this.
    """
    present = server.participants(federation)
    clients_key, server_key = jax.random.split(key)
    before = client_states(setup, state, len(present))
    opt_state = jax.vmap(setup.optimizer.init)(before.variables["params"])
    if setup.settings.sample_contrastive:
        return with_optimizers(setup, state, opt_state)
    if setup.settings.cluster_by == "k-means":
        return with_optimizers(setup, with_means(setup, state, federation), opt_state)
    centroids = all_centroids(setup, clients_key, before.variables, federation)
    if setup.settings.standalone:
        centroids = clients.keep_absent(present, centroids, before.centroids)
        return State((), Client(before.variables, centroids, opt_state))
    centroids, answered = server.gather((centroids, present))
    centroids = cluster_centroids(setup, server_key, centroids, answered)
    clusters = state.server.clusters._replace(centroids=centroids)
    return State(state.server._replace(clusters=clusters), opt_state)


def with_means(setup: Setup, state: State, federation: Federation) -> State:
    """Returns the state with the means of k-means' clusters in the embedding itself, in
    which clusters are contrasted, in place of centroids in the whitened space. A run of
    unlike clients skips the contrast and keeps its centroids.
    """
    clusters: Clusters = state.server.clusters
    if not clusters.whitening:
        return state
    z, present = embed(setup, state, federation), server.participants(federation)
    labels = clients.for_each(clusters.nearest, z)
    cosine = not setup.settings.euclidean
    # A cluster without examples keeps its centroid, without the whitening.
    before = clusters.whitening.undo(clusters.centroids)
    before = losses.normalize(before) if cosine else before
    means = cluster_means(*(z, labels, federation.mask, present, before), cosine=cosine)
    new = clusters._replace(centroids=means, whitening=identity(means.shape[-1]))
    keep = partial(jnp.where, is_unlike(setup.settings, state))
    new = jax.tree.map(keep, clusters, new)
    return state._replace(server=state.server._replace(clusters=new))


def with_optimizers(setup: Setup, state: State, opt_state: PyTree) -> State:
    """Returns the state with other optimizers on the clients."""
    if setup.settings.standalone:
        return State((), state.clients._replace(opt_state=opt_state))
    return State(state.server, opt_state)


def is_unlike(settings: Any, state: State) -> Bool[Array, ""]:
    """Tells whether the clients are too unlike for cluster contrast."""
    return state.server.clusters.heterogeneity > settings.max_heterogeneity


def all_centroids(
    setup: Setup, key: PRNGKey, variables: PyTree, federation: Federation
) -> Float[Array, "M K D"]:
    """Returns the local centroids of every client."""

    def one(key, variables, rows, mask):
        return local_centroids(setup, key, variables, federation.pool, rows, mask)

    keys = clients.keys(key, len(federation.indices))
    return clients.for_each(one, keys, variables, federation.indices, federation.mask)


def embed(
    setup: Setup, state: State, federation: Federation
) -> Float[Array, "M N D"] | ragged.Ragged:
    """As in `FederatedClustering`: projections of unit length by each client's
    network.
    """
    models = client_states(setup, state, len(federation.indices))
    one = partial(encode, setup, federation.pool)
    return clients.for_each(one, models.variables, federation.indices)


def points(
    setup: Setup, state: State, federation: Federation
) -> tuple[Float[Array, "M N D"] | ragged.Ragged, Bool[Array, "M N"] | ragged.Ragged]:
    """Returns the embedding that federated k-means clusters, and the mask."""
    return embed(setup, state, federation), federation.mask


def assign(
    setup: Setup, state: State, federation: Federation
) -> Int[Array, "M N"] | ragged.Ragged:
    """As in `FederatedClustering`: by each client's centroids; -1 before federated
    k-means.
    """
    if setup.settings.cluster_by == "k-means":
        clusters: Clusters = state.server.clusters
        z = embed(setup, state, federation)
        labels = clients.for_each(clusters.nearest, z)
        has_clusters = jnp.any(clusters.centroids != 0)
        return jax.tree.map(lambda x: jnp.where(has_clusters, x, -1), labels)

    def one(variables, centroids, rows):
        z = encode(setup, federation.pool, variables, rows)
        return nearest(setup, z, centroids)

    models = client_states(setup, state, len(federation.indices))
    return clients.for_each(one, models.variables, models.centroids, federation.indices)


def encode(
    setup: Setup,
    pool: Pool,
    variables: PyTree,
    rows: Int[Array, "N"],
) -> Float[Array, "N D"]:
    """Returns the embedding of some rows of the pool."""

    def batch(rows):
        (z, _), _ = setup.network.apply(variables, to_float(pool[rows]), train=False)
        return losses.normalize(z)

    return training.in_batches(batch, rows, batch_size=setup.settings.batch_size)


def nearest(
    setup: Setup, z: Float[Array, "N D"], centroids: Float[Array, "K D"]
) -> Int[Array, "N"]:
    """Returns the pseudo-labels: Eq. 3, or by cosine."""
    if setup.settings.euclidean:
        return assign_nearest(z, centroids)
    # The means of unit vectors are shorter the wider their cluster is.
    directions = losses.normalize(centroids).T
    similarity = jnp.matmul(z, directions, precision=jax.lax.Precision.HIGHEST)
    return jnp.argmax(similarity, axis=-1)
