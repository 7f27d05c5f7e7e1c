"""Cluster-contrastive federated clustering.

CCFC: Bridging Federated Clustering and Contrastive Learning
    Jing Liu, Jie Yan, Zhong-Yuan Zhang. 2024. https://arxiv.org/abs/2401.06634
    Authors' code: https://github.com/Jarvisyan/CCFC-pytorch
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from fcjax import losses, ragged
from fcjax.algorithms.rounds import all_rounds, ever_present
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
    uploaded_means,
    withhold,
)
from fcjax.nn.layers import apply_to_views, in_compute_dtype
from fcjax.privacy.guarantee import least_members, noise_in, updates_in
from fcjax.privacy.kmeans import PrivateKMeans
from fcjax.types import (
    FederatedClustering,
    Federation,
    Network,
    Now,
    Pool,
    PRNGKey,
    PyTree,
    Scalar,
    Stage,
    State,
    Uploads,
)

CONSTANT = optax.constant_schedule(1.0)
"""Every round uses the full learning rate."""


class Server(NamedTuple):
    """The server's state; the clients' optimizer states stay on the clients."""

    variables: PyTree
    """The global network w^g."""
    clusters: Clusters
    """The global clusters, with the centroids eta^g."""
    clip: PyTree = ()
    """The largest norm of a client's update in the next private round; () without
    differential privacy."""


class Client(NamedTuple):
    """The state of a client in a round, stacked on M."""

    variables: PyTree
    """The client's network."""
    centroids: PyTree
    """Centroids [K, D]; with federated k-means the trained client holds its upload, the
    sums [K, D] and counts [K] of its clusters."""
    opt_state: PyTree
    """The state of the client's optimizer."""


class Setup(NamedTuple):
    """The arguments of `ccfc`, which all rounds share."""

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
    centroids with the averaged network, and the server clusters the centroids. If also
    `pretrain_rounds=0, include_self=False, euclidean=True`, the method is Algorithm 1
    as printed, with two differences: embeddings z have unit length, and the loss uses
    the clusters within a batch.

    With `cluster_by="k-means"` the clusters come from federated k-means, which equals
    k-means of the pooled embedding. This stage runs after pre-training until the
    centroids converge, and it measures the heterogeneity of the clients. Heterogeneous
    clients would contrast wrong clusters, which ruins the embedding. So a run whose
    heterogeneity exceeds `max_heterogeneity` ends after this stage. Other runs continue
    with the rounds of cluster contrast. These rounds begin with the clusters of k-means
    and run one Lloyd step per round.

    With `standalone` every client trains and clusters alone, without any upload or
    download. These are the local models of Table 4.

    Args:
        settings: one value per setting of `fcjax.methods.CCFC`, which describes them:
            `CCFC(model_weight=0.1).plain()`. Floats may be traced.
        network: maps [B, *F] to projections and predictions, [B, D] each.
        optimizer: the optimizer of each client. With `optimizer_state` "kept", each
            client keeps its state between rounds, as in the code, and initializes it
            again at the second stage.
        augment: (key, example) -> a view of the example.
        num_clusters: K, of the clients' k-means and of the server's k-means.
        schedule: (round of the second stage) -> the share of the learning rate. The
            first stage uses the full learning rate, as does the code in both stages.

    Returns:
        The method, with the stages `pretrain` and `cluster`. With `own_init` a stage
        `first`, one round of pre-training, comes before them. With
        `cluster_by="k-means"` the stage `k-means` comes before `cluster`, or after
        `cluster` in SCFC. The metrics of `k-means` are those of
        `fcjax.federated.kmeans.KMeans`. The metrics of the other stages are means over
        the participating clients: `loss`, `embedding_spread` (about 1 if the embedding
        fills its sphere, 0 if it collapsed) and `weight_size` (root mean square of the
        weights). Other metrics are `participants` and the traffic.

    Raises:
        ValueError: if `own_init` is set and there is no round of pre-training, or if
            `standalone` is set and `cluster_by` is "k-means".

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
        raise ValueError(
            "`own_init` needs a round of pre-training, but `pretrain_rounds` is "
            f"{settings.pretrain_rounds}; set `pretrain_rounds` to at least 1"
        )
    if settings.standalone and settings.cluster_by == "k-means":
        raise ValueError(
            "`standalone` clients have no server, but `cluster_by` k-means needs one; "
            "set `cluster_by` to ccfc"
        )
    setup = Setup(settings, network, optimizer, augment, num_clusters, schedule)
    # Stages that share a round function share its compiled program.
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
        kmeans = kmeans_stage(setup)
        last = (contrast, kmeans)
        if not settings.sample_contrastive:  # SCFC needs no clusters to train
            contrast = contrast._replace(done=partial(is_heterogeneous, settings))
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
        # Noisy uploads cannot be computed again from the examples.
        uploads=None
        if settings.standalone or noise_in(settings)
        else partial(client_uploads, setup),
    )


def kmeans_stage(setup: Setup) -> Stage:
    """Returns the stage of federated k-means of the embedding.

    Args:
        setup: the arguments of `ccfc`.

    Returns:
        The stage `k-means`, with noise if the run has differential privacy.
    """
    settings, num_clusters = setup.settings, setup.num_clusters
    cosine = not (settings.whiten or settings.euclidean)

    def model(state):
        return {"network": state.server.variables}

    options = {"cosine": cosine, "model": model}
    embedded = partial(points, setup)
    if noise := noise_in(settings):
        options |= noise.kmeans()
        return PrivateKMeans(embedded, num_clusters, **options).stage()
    whitening = HALF if settings.whiten else 0.0
    options |= {"num_init": settings.num_init, "whitening": whitening}
    options |= {"min_members": least_members(settings)}
    return KMeans(embedded, num_clusters, **options).stage()


def federated_round(
    setup: Setup, by_clusters: bool, key: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """Runs one round of Algorithm 1.

    The clients train the global network and compute centroids. The server averages the
    networks and clusters the centroids. With federated k-means the clients compute the
    sums and counts of their clusters, and the server computes the means.

    Args:
        setup: the arguments of `ccfc`.
        by_clusters: True contrasts clusters, False contrasts two views of each example.
        key: the key of the round.
        state: the state before the round.
        federation: the federation in the current round.

    Returns:
        The state after the round, and the metrics of the round.
    """
    updates = updates_in(setup.settings)
    if updates is None:
        present = server.participants(federation)
    else:
        present = updates.sample(key, federation)
    clients_key, server_key = jax.random.split(key)
    train = partial(client_round, setup, by_clusters, federation.now, federation.pool)
    keys = clients.keys(clients_key, len(present))
    data = federation.indices, federation.mask
    if setup.settings.standalone:
        trained, values = clients.for_each(train, keys, state.clients, *data)
        gathered = server.gather((present, values))
        after = clients.keep_absent(present, trained, state.clients)
        return State((), after), server.measure(*gathered)

    number = server.gather(present).sum() if updates else jnp.int32(0)

    def upload(key, opt_state, indices, mask):
        trained, values = train(key, downloaded(state, opt_state), indices, mask)
        network = trained.variables
        if updates:
            network = updates.upload(
                key, network, state.server.variables, number, state.server.clip
            )
        return network, (trained.centroids, values, trained.opt_state)

    sizes = present * ragged.sizes(federation.mask).astype(float)
    if updates:  # Every client has the same weight.
        sizes = present.astype(float)
    variables, (uploads, values, opt_state) = server.mean_of_each(
        upload, sizes, keys, state.clients, *data
    )
    uploads, participating, values = server.gather((uploads, present, values))
    clip = state.server.clip
    if updates:
        before = state.server.variables
        variables, clip = updates.receive(
            server_key, variables, before, participating, clip
        )
    opt_state = clients.keep_absent(present, opt_state, state.clients)
    network = {"network": variables}
    metrics = server.measure(participating, values)
    if updates:
        network |= updates.messages(clip)
        metrics |= updates.messages(clip)
    metrics |= server.traffic(participating, up=network, down=network)
    clusters: Clusters = state.server.clusters
    if setup.settings.cluster_by != "k-means":
        is_needed = by_clusters or federation.now.is_evaluated
        centroids = lax.cond(
            is_needed,
            lambda: cluster_centroids(setup, server_key, uploads, participating),
            lambda: clusters.centroids,
        )
        # At the beginning of the stage the clients also uploaded centroids.
        begins = by_clusters & (federation.now.stage_round == 0)
        up, times = {"centroids": centroids}, jnp.int32(is_needed)
    elif by_clusters:
        centroids = lloyd_means(setup, uploads, participating, clusters.centroids)
        begins = setup.settings.whiten & (federation.now.stage_round == 0)
        up, times = {"sums": centroids, "counts": uploads[1][0]}, jnp.int32(1)
    else:  # Federated k-means has not begun, so there are no centroids.
        return State(Server(variables, clusters, clip), opt_state), metrics
    down = server.traffic(participating, up={}, down={"centroids": centroids})
    for name, x in (server.traffic(participating, up=up, down={}) | down).items():
        count = times + begins if name.startswith("up") else times
        metrics[name] = x.at[0].multiply(count)
    clusters = clusters._replace(centroids=centroids)
    return State(Server(variables, clusters, clip), opt_state), metrics


def downloaded(state: State, opt_state: PyTree = ()) -> Client:
    """Returns the state of a client that downloaded the network and the centroids.

    Args:
        state: the state of the method, with a server.
        opt_state: the state of the client's optimizer.

    Returns:
        The state of the client.
    """
    download: Server = state.server
    return Client(download.variables, download.clusters.centroids, opt_state)


def for_each_client(
    setup: Setup, state: State, fn: Callable[..., PyTree], *stacked: PyTree
) -> PyTree:
    """Applies a function to every client and its network and centroids.

    They are the server's, or with `standalone` the client's.

    Args:
        setup: the arguments of `ccfc`.
        state: the state of the method.
        fn: (variables, centroids, *values of one client) -> a tree of arrays.
        *stacked: the values of all clients, with a leading client axis.

    Returns:
        The results, stacked on a leading client axis, see `clients.for_each`.
    """
    if setup.settings.standalone:
        return clients.for_each(fn, *state.clients[:2], *stacked)
    return clients.for_each(partial(fn, *downloaded(state)[:2]), *stacked)


def client_round(
    setup: Setup,
    by_clusters: bool,
    now: Now,
    pool: Pool,
    key: PRNGKey,
    before: Client,
    indices: Int[Array, "N"],
    mask: Bool[Array, "N"],
) -> tuple[Client, dict[str, Float[Array, ""]]]:
    """Trains one client and computes its upload.

    The loss keeps the network close to the global network. The upload has the client's
    centroids if they are needed, or with federated k-means the sums and counts of its
    clusters.

    Args:
        setup: the arguments of `ccfc`.
        by_clusters: True contrasts clusters, False contrasts two views of each example.
        now: the number of the current round.
        pool: all examples.
        key: the key of the client in this round.
        before: the state of the client at the beginning of the round.
        indices: the client's examples, as indices into the pool.
        mask: False at padding.

    Returns:
        The new state of the client, with its upload as `centroids`, and its metrics
        `loss`, `embedding_spread` and `weight_size`.
    """
    settings, anchor = setup.settings, before.variables
    train_key, centroids_key, init_key = jax.random.split(key, 3)
    start, labels, opt_state = anchor, jnp.zeros_like(indices), before.opt_state
    if settings.own_init and not by_clusters:
        init = partial(setup.network.init, init_key, to_float(pool[:1]))
        start = lax.cond(now.round == 0, init, lambda: anchor)
    if settings.optimizer_state == "reset":
        opt_state = setup.optimizer.init(start["params"])
    if by_clusters:
        labels = nearest(setup, encode(setup, pool, anchor, indices), before.centroids)
    anchor = in_compute_dtype(anchor)

    def loss(key, variables, batch, batch_mask):
        x = to_float(pool[indices[batch]])
        if by_clusters:
            return cluster_contrast(
                setup, variables, anchor, x, labels[batch], batch_mask
            )
        return sample_contrast(
            *(setup.network, variables, anchor, two_views(setup, key, x), batch_mask),
            model_weight=settings.model_weight,
            decorrelation_weight=settings.decorrelation_weight,
        )

    # The number is negative in the first stage. SCFC uses this function for the second
    # stage, too.
    number = now.stage_round if by_clusters else now.round - settings.pretrain_rounds
    share = jnp.where(number < 0, 1.0, setup.schedule(jnp.maximum(number, 0)))
    trained, value = training.train(
        train_key,
        clients.Client(start, opt_state),
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
                setup, centroids_key, trained.variables, pool, indices, mask
            ),
            lambda: before.centroids,
        )
    elif by_clusters:
        z = encode(setup, pool, trained.variables, indices)
        labels = nearest(setup, z, before.centroids)
        sums = cluster_sums(z, labels, mask, setup.num_clusters)
        centroids = withhold(*sums, least_members(settings))
    subset = training.evenly_spaced_indices(mask, settings.batch_size)
    z = encode(setup, pool, trained.variables, indices[subset])
    values = {
        "loss": value,
        "embedding_spread": training.spread(z, mask[subset]),
        "weight_size": training.root_mean_square(trained.variables["params"]),
    }
    opt_state = () if settings.optimizer_state == "reset" else trained.opt_state
    return Client(trained.variables, centroids, opt_state), values


def two_views(setup: Setup, key: PRNGKey, x: Float[Array, "B *F"]):
    """Draws two views of each example, [B, *F] each.

    Args:
        setup: the arguments of `ccfc`.
        key: the key of all random draws.
        x: the examples of the batch.

    Returns:
        The first and the second view of the batch, [B, *F] each.
    """
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
    """Computes the loss of the first stage on one batch: SimSiam and a model contrast.

    The model contrast pulls the predictions towards those of the anchor.

    Args:
        network: maps [B, *F] to projections and predictions, [B, D] each.
        variables: the variables of the client's network.
        anchor: the variables of the global network.
        views: two views of each example.
        mask: False at padding.
        model_weight: weight of the model contrast.
        decorrelation_weight: weight of the decorrelation of the features.

    Returns:
        The loss, and the variables with new batch statistics.
    """
    (z, p), variables = apply_to_views(network, variables, jnp.stack(views), mask)
    (_, anchors), _ = network.apply(anchor, jnp.concatenate(views), train=False)
    anchors = anchors.reshape(p.shape)
    # Each view's predictions are compared with the other view's projections.
    contrast = jax.vmap(losses.negative_cosine)(p, z[::-1]).mean(axis=0)
    contrast = jnp.sum(contrast, where=mask) / jnp.maximum(mask.sum(), 1)
    pull = jax.vmap(partial(losses.model_contrastive, mask=mask))(p, anchors).mean()
    penalty = jax.vmap(partial(losses.decorrelation, mask=mask))(z).sum()
    loss = contrast + model_weight * pull
    return loss + decorrelation_weight * penalty, variables


def cluster_contrast(
    setup: Setup,
    variables: PyTree,
    anchor: PyTree,
    x: Float[Array, "B *F"],
    labels: Int[Array, "B"],
    mask: Bool[Array, "B"],
) -> tuple[Float[Array, ""], PyTree]:
    """Computes the loss of the second stage on one batch: Eq. 4 by pseudo-labels.

    Args:
        setup: the arguments of `ccfc`.
        variables: the variables of the client's network.
        anchor: the variables of the global network.
        x: the examples of the batch.
        labels: the pseudo-labels of the examples, from 0 to K - 1.
        mask: False at padding.

    Returns:
        The loss, and the variables with new batch statistics.
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
    penalty = losses.decorrelation(z, mask=mask)
    loss = contrast + setup.settings.model_weight * pull
    return loss + setup.settings.decorrelation_weight * penalty, variables


def local_centroids(
    setup: Setup,
    key: PRNGKey,
    variables: PyTree,
    pool: Pool,
    indices: Int[Array, "N"],
    mask: Bool[Array, "N"],
) -> Float[Array, "K D"]:
    """Runs k-means on the embedding of one client, and returns the centroids.

    Args:
        setup: the arguments of `ccfc`.
        key: the key of the seedings.
        variables: the variables of the client's network.
        pool: all examples.
        indices: the client's examples, as indices into the pool.
        mask: False at padding.

    Returns:
        The centroids [K, D] of the client's clusters.
    """
    z, num_init = encode(setup, pool, variables, indices), setup.settings.num_init
    return kmeans(key, z, setup.num_clusters, mask=mask, num_init=num_init).centroids


def cluster_centroids(
    setup: Setup,
    key: PRNGKey,
    local: Float[Array, "M K D"],
    participating: Bool[Array, "M"],
) -> Float[Array, "K D"]:
    """Runs k-means on the centroids of the participating clients, with equal weights.

    The authors' code weighs the centroids equally, too.

    Args:
        setup: the arguments of `ccfc`.
        key: the key of the seedings.
        local: the centroids of all clients.
        participating: the participating clients; the others are ignored.

    Returns:
        The global centroids [K, D].
    """
    points, num_init = local.reshape(-1, local.shape[-1]), setup.settings.num_init
    mask = jnp.repeat(participating, setup.num_clusters)
    result = kmeans(key, points, setup.num_clusters, mask=mask, num_init=num_init)
    return result.centroids


def lloyd_means(
    setup: Setup,
    uploads: tuple[Float[Array, "M K D"], Float[Array, "M K"]],
    participating: Bool[Array, "M"],
    before: Float[Array, "K D"],
) -> Float[Array, "K D"]:
    """Computes the mean of each cluster from the clients' sums and counts.

    Clusters without examples keep their centroids of `before`.

    Args:
        setup: the arguments of `ccfc`.
        uploads: the sums and the counts of each client's clusters, see `cluster_sums`.
        participating: the participating clients; the others are ignored.
        before: the global centroids before the round.

    Returns:
        The centroids [K, D], of unit length unless `euclidean` is set.
    """
    sums, counts = uploads
    sums = jnp.sum(sums, axis=0, where=participating[:, None, None])
    totals = jnp.sum(counts, axis=0, where=participating[:, None])
    return means_of(sums, totals, before, cosine=not setup.settings.euclidean)


def initial_state(setup: Setup, key: PRNGKey, federation: Federation) -> State:
    """Returns the state before the first round: all clients have the same network.

    Args:
        setup: the arguments of `ccfc`.
        key: the key of the network's initial weights.
        federation: the federation.

    Returns:
        The state. All centroids are 0.
    """
    variables = setup.network.init(key, to_float(federation.pool[:1]))
    z = jax.eval_shape(
        partial(encode, setup, federation.pool), variables, jnp.arange(1)
    )
    clusters = no_clusters(setup.num_clusters, z.shape[-1])
    num_clients = len(federation.indices)
    updates = updates_in(setup.settings)
    clip = updates.first_clip if updates else ()
    state = State(Server(variables, clusters, clip))
    if setup.settings.standalone:
        state = leave_federation(state, num_clients)
    return with_new_optimizers(setup, state, num_clients)


def leave_federation(state: State, num_clients: int) -> State:
    """Returns the state of clients that leave the federation and train alone.

    Args:
        state: the state of the federation. The clients start with its network and its
            centroids.
        num_clients: M.

    Returns:
        The state for the setting `standalone`.
    """
    variables, centroids = clients.repeat(downloaded(state)[:2], num_clients)
    return State((), Client(variables, centroids, state.clients))


def begin_clusters(
    setup: Setup, key: PRNGKey, state: State, federation: Federation
) -> State:
    """Begins the second stage: new optimizer states, and the first clusters.

    With `cluster_by="k-means"` the clusters are those of federated k-means. With
    `cluster_by="ccfc"` the participating clients compute centroids with the averaged
    network, and the server clusters these centroids. SCFC computes no clusters, because
    it uses no pseudo-labels.

    Args:
        setup: the arguments of `ccfc`.
        key: the key of the beginning of the stage.
        state: the last state of the previous stage.
        federation: the federation in the current round.

    Returns:
        The first state of the second stage.
    """
    present = server.participants(federation)
    clients_key, server_key = jax.random.split(key)
    state = with_new_optimizers(setup, state, len(present))
    if setup.settings.sample_contrastive:
        return state
    if setup.settings.cluster_by == "k-means":
        return with_means(setup, state, federation)
    centroids = all_centroids(setup, clients_key, state, federation)
    if setup.settings.standalone:
        before: Client = state.clients
        centroids = clients.keep_absent(present, centroids, before.centroids)
        return State((), before._replace(centroids=centroids))
    centroids, participating = server.gather((centroids, present))
    centroids = cluster_centroids(setup, server_key, centroids, participating)
    clusters = state.server.clusters._replace(centroids=centroids)
    return state._replace(server=state.server._replace(clusters=clusters))


def with_means(setup: Setup, state: State, federation: Federation) -> State:
    """Replaces centroids in the whitened space by cluster means of the embedding.

    The cluster contrast works in the embedding without whitening. A run of
    heterogeneous clients skips the cluster contrast, so its clusters do not change.

    Args:
        setup: the arguments of `ccfc`.
        state: the state after federated k-means.
        federation: the federation in the current round.

    Returns:
        The new state. It is the given state if there is no whitening.
    """
    clusters: Clusters = state.server.clusters
    if not clusters.whitening:
        return state
    z, present = embed(setup, state, federation), server.participants(federation)
    labels = clients.for_each(clusters.nearest, z)
    cosine = not setup.settings.euclidean
    # A cluster without examples keeps its centroid, mapped back to the embedding.
    before = clusters.whitening.undo(clusters.centroids)
    before = losses.normalize(before) if cosine else before
    means = cluster_means(
        *(z, labels, federation.mask, present, before),
        cosine=cosine,
        min_members=least_members(setup.settings),
    )
    new = clusters._replace(centroids=means, whitening=identity(means.shape[-1]))
    keep = partial(jnp.where, is_heterogeneous(setup.settings, state))
    new = jax.tree.map(keep, clusters, new)
    return state._replace(server=state.server._replace(clusters=new))


def with_new_optimizers(setup: Setup, state: State, num_clients: int) -> State:
    """Returns the state with new optimizer states of the clients.

    Args:
        setup: the arguments of `ccfc`.
        state: the state before the change.
        num_clients: M, the number of clients on this device.

    Returns:
        The new state. Clients that reset their optimizers in every round have no
        optimizer state.
    """
    init, opt_state = setup.optimizer.init, ()
    is_kept = setup.settings.optimizer_state != "reset"
    if setup.settings.standalone:
        before: Client = state.clients
        if is_kept:
            opt_state = jax.vmap(init)(before.variables["params"])
        return State((), before._replace(opt_state=opt_state))
    if is_kept:
        opt_state = clients.repeat(init(state.server.variables["params"]), num_clients)
    return state._replace(clients=opt_state)


def is_heterogeneous(settings: Any, state: State) -> Bool[Array, ""]:
    """Tells whether the clients are too heterogeneous for the cluster contrast.

    Args:
        settings: one value per setting of `fcjax.methods.CCFC`.
        state: the state after federated k-means.

    Returns:
        True if the heterogeneity is above `max_heterogeneity`.
    """
    return state.server.clusters.heterogeneity > settings.max_heterogeneity


def all_centroids(
    setup: Setup, key: PRNGKey, state: State, federation: Federation
) -> Float[Array, "M K D"]:
    """Runs k-means on the embedding of every client, and returns the centroids.

    Args:
        setup: the arguments of `ccfc`.
        key: the key of the seedings of all clients.
        state: the state of the method.
        federation: the federation.

    Returns:
        The centroids [M, K, D] of the clients' clusters.
    """

    def of_client(variables, _, key, indices, mask):
        return local_centroids(setup, key, variables, federation.pool, indices, mask)

    keys = clients.keys(key, len(federation.indices))
    stacked = keys, federation.indices, federation.mask
    return for_each_client(setup, state, of_client, *stacked)


def embed(
    setup: Setup, state: State, federation: Federation
) -> Float[Array, "M N D"] | ragged.Ragged:
    """Computes the embedding of every example: projections of unit length.

    With `standalone` each client uses its own network, else the global network.

    Args:
        setup: the arguments of `ccfc`.
        state: the state of the method.
        federation: the federation, whose examples are embedded.

    Returns:
        The embedding [M, N, D], a `Ragged` array for size classes.
    """

    def of_client(variables, _, indices):
        return encode(setup, federation.pool, variables, indices)

    return for_each_client(setup, state, of_client, federation.indices)


def points(
    setup: Setup, state: State, federation: Federation
) -> tuple[Float[Array, "M N D"] | ragged.Ragged, Bool[Array, "M N"] | ragged.Ragged]:
    """Returns the embedding for federated k-means, and the mask of the examples.

    Args:
        setup: the arguments of `ccfc`.
        state: the state of the method.
        federation: the federation in the current round.

    Returns:
        The embedding [M, N, D], and the mask [M, N], which is False at padding. Both
        are `Ragged` arrays for size classes.
    """
    return embed(setup, state, federation), federation.mask


def assign(
    setup: Setup, state: State, federation: Federation
) -> Int[Array, "M N"] | ragged.Ragged:
    """Returns the cluster of every example: its nearest centroid.

    With `cluster_by="k-means"` clusters are -1 before federated k-means.

    Args:
        setup: the arguments of `ccfc`.
        state: the state of the method.
        federation: the federation, whose examples are clustered.

    Returns:
        The clusters [M, N], from 0 to K - 1, a `Ragged` array for size classes.
    """
    if setup.settings.cluster_by == "k-means":
        clusters: Clusters = state.server.clusters
        z = embed(setup, state, federation)
        labels = clients.for_each(clusters.nearest, z)
        has_clusters = jnp.any(clusters.centroids != 0)
        return jax.tree.map(lambda x: jnp.where(has_clusters, x, -1), labels)

    def of_client(variables, centroids, indices):
        z = encode(setup, federation.pool, variables, indices)
        return nearest(setup, z, centroids)

    return for_each_client(setup, state, of_client, federation.indices)


def client_uploads(
    setup: Setup, key: PRNGKey, state: State, federation: Federation
) -> Uploads:
    """Returns the last uploads of the clients about their clusters.

    With `cluster_by="k-means"` these are the means of the embedding in each cluster,
    which the server can compute from the sums and counts. They are computed with the
    final network. If the run ended in whitened federated k-means, the clients uploaded
    the means of the whitened embedding, and the means of the embedding stand for them.
    With `cluster_by="ccfc"` they are local centroids, computed with the final network.

    The networks that the clients upload are not part of the result.

    Args:
        setup: the arguments of `ccfc`.
        key: the key of the seedings of the local centroids.
        state: the state after the last round.
        federation: the federation.

    Returns:
        The means or centroids of each client, with their numbers of examples.
    """
    pool, (variables, centroids, _) = federation.pool, downloaded(state)

    def of_client(key, indices, mask, present):
        z, means = encode(setup, pool, variables, indices), centroids
        if setup.settings.cluster_by == "k-means":
            labels = state.server.clusters.nearest(z)
        else:
            means = local_centroids(setup, key, variables, pool, indices, mask)
            labels = assign_nearest(z, means)
        least = least_members(setup.settings)
        return uploaded_means(z, mask, present, labels, means, min_members=least)

    keys, present = (
        clients.keys(key, len(federation.indices)),
        ever_present(federation),
    )
    data = federation.indices, federation.mask
    return Uploads(*clients.for_each(of_client, keys, *data, present))


def encode(
    setup: Setup,
    pool: Pool,
    variables: PyTree,
    indices: Int[Array, "N"],
) -> Float[Array, "N D"]:
    """Computes the embedding of some examples of the pool: unit-length projections.

    Args:
        setup: the arguments of `ccfc`.
        pool: all examples.
        variables: the variables of the network.
        indices: the indices of the examples in the pool.

    Returns:
        The projections [N, D], of L2 norm 1.
    """

    def encode_batch(batch):
        (z, _), _ = setup.network.apply(variables, to_float(pool[batch]), train=False)
        return losses.normalize(z)

    batch_size = setup.settings.batch_size
    return training.in_batches(encode_batch, indices, batch_size=batch_size)


def nearest(
    setup: Setup, z: Float[Array, "N D"], centroids: Float[Array, "K D"]
) -> Int[Array, "N"]:
    """Returns the pseudo-labels: the nearest centroid (Eq. 3), or the one by cosine.

    Args:
        setup: the arguments of `ccfc`.
        z: the embedding of the examples, of L2 norm 1.
        centroids: the centroids of the clusters.

    Returns:
        The pseudo-labels [N], from 0 to K - 1.
    """
    if setup.settings.euclidean:
        return assign_nearest(z, centroids)
    # The mean of unit vectors is short if their cluster is wide.
    directions = losses.normalize(centroids).T
    similarity = jnp.matmul(z, directions, precision=jax.lax.Precision.HIGHEST)
    return jnp.argmax(similarity, axis=-1)
