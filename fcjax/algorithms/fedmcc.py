"""Contrastive clustering (CC), FedMCC, and two-stage clustering.

CC: Contrastive Clustering
    Yunfan Li, Peng Hu, Zitao Liu, Dezhong Peng, Joey Tianyi Zhou, Xi Peng. AAAI 2021.
    https://arxiv.org/abs/2009.09687
    Authors' code: https://github.com/Yunfan-Li/Contrastive-Clustering
    The code leaves out a last batch that is smaller than the others: set
    `Local.drop_last` for this.

With one client, `cc` is CC itself. With several clients, `cc` is the baseline Fed + CC
of the FedMCC paper.

FedMCC, MCC: Federated Momentum Contrastive Clustering
    Runxuan Miao, Erdem Koyuncu. 2022. https://arxiv.org/abs/2206.05093
    There is no public code. Where the text gives no details, this module follows CC,
    which FedMCC extends (`cc`), and EasyFL's FedU, a baseline of FedMCC (`fedu`). The
    losses are those of CC's code, with the positive in the denominator and the entropy
    subtracted. Target networks use the statistics of the batch and stay on their
    clients. Every client begins a round with a new optimizer state.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fcjax import losses
from fcjax.algorithms.averaging import (
    Contrast,
    Local,
    Networks,
    Parts,
    Pass,
    Server,
    Setup,
    Views,
    averaging,
    build_method,
    encode,
    forward_views,
    initialize,
    merge,
    part,
    pick,
    start,
    target_networks,
)
from fcjax.data.augment import to_float
from fcjax.federated.kmeans import KMeans
from fcjax.privacy.guarantee import Noise, updates_in
from fcjax.privacy.kmeans import PrivateKMeans
from fcjax.types import (
    FederatedClustering,
    Federation,
    Network,
    PRNGKey,
    Scalar,
    Stage,
    State,
)

# --- k-means of the features


class FeatureKMeans(NamedTuple):
    """Federated k-means of the encoder's features, as the last stage of a method.

    Examples:
        >>> from fcjax import nn
        >>> stage = FeatureKMeans(num_clusters=3).stage(nn.encoder(nn.MLP((16,))))
        >>> stage.name, stage.num_rounds
        ('k-means', 100)
    """

    num_clusters: int
    """K."""
    num_init: int = 10
    """Number of seedings; the result of the smallest inertia is taken."""
    whitening: float = 0.0
    """Exponent of the whitening, see `fcjax.federated.kmeans.find_whitening`; 0
    disables whitening."""
    max_heterogeneity: Scalar = 1.0
    """Threshold of `fcjax.federated.kmeans.heterogeneity` above which the method uses
    the clusters of k-means instead of the cluster projector."""
    num_clustered: int | None = None
    """Number of examples to cluster: the first ones of the pool; None clusters all."""
    batch_size: int = 128
    """Number of examples per forward pass of a client."""
    noise: Noise | None = None
    """Differential privacy; None clusters without noise."""
    min_members: int = 1
    """Clients withhold clusters with fewer examples."""

    def stage(self, encoder: Network) -> Stage:
        """Returns the stage of federated k-means.

        At its beginning the server drops all networks except the encoder and, if there
        is one, the cluster projector.

        Args:
            encoder: maps examples to features.

        Returns:
            The stage `k-means`, see `fcjax.federated.kmeans.KMeans`.
        """

        def model(state):
            return {"encoder": part(state.server.online, "encoder")}

        points = partial(self.points, encoder)
        if self.noise:
            options = self.noise.kmeans()
            kmeans = PrivateKMeans(points, self.num_clusters, model=model, **options)
        else:
            sizes = (self.num_clusters, self.num_init, self.whitening)
            least = self.min_members
            kmeans = KMeans(points, *sizes, model=model, min_members=least)

        def begin(key: PRNGKey, state: State, federation: Federation) -> State:
            before: Server = state.server
            needed = ("encoder", "cluster_projector")
            names = [name for name in needed if name in before.online["params"]]
            after = Server(pick(before.online, names))
            return kmeans.begin(key, State(after), federation)

        return kmeans.stage()._replace(begin=begin)

    def points(self, encoder: Network, state: State, federation: Federation):
        """Returns the features [M, N, D], and a mask of the examples to cluster.

        Args:
            encoder: maps examples to features.
            state: the state, whose server has the variables of the encoder.
            federation: the federation in the current round.

        Returns:
            The features, and the mask [M, N], which is False at padding and at examples
            that are not clustered.
        """
        online = state.server.online
        h = encode(encoder, online, federation, batch_size=self.batch_size)
        return h, federation.mask & is_clustered(self.num_clustered)(federation.indices)

    def is_heterogeneous(self, server: Server) -> Bool[Array, ""]:
        """Tells whether the clients are too heterogeneous for the cluster projector.

        Args:
            server: the server's state after k-means.

        Returns:
            True if the heterogeneity is above `max_heterogeneity`.
        """
        return server.clusters.heterogeneity > self.max_heterogeneity


# --- CC

Pair = tuple[Float[Array, "B _"], Float[Array, "B _"]]
"""The outputs of a head for both views."""


def cc(
    settings: Any,
    encoder: Network,
    projector: Network,
    cluster_projector: Network,
    local: Local,
    *,
    num_clustered: int | None = None,
    kmeans: FeatureKMeans | None = None,
) -> FederatedClustering:
    """Builds CC: one stage with an instance-level and a cluster-level contrast.

    Args:
        settings: one value per setting of `fcjax.methods.CC` or `FedCC`.
        encoder: maps examples to features.
        projector: maps features to instance-level representations z.
        cluster_projector: maps features to soft assignments.
        local: the local training of a client in a round. For central CC set
            `keep_optimizer`, because its only client trains without interruption.
        num_clustered: number of examples to cluster, the first ones of the pool. In
            every round the clients first train on the other examples, such as STL-10's
            unlabelled images, with the instance-level contrast only. None clusters all.
        kmeans: k-means of the features after the training. Its clusters are used if the
            clients are heterogeneous. None always uses the cluster projector.

    Returns:
        The method, with the stage `cluster`, and with `kmeans` also the stage
        `k-means`. The embedding is the encoder's features.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.data.augment import vector_view
        >>> from fcjax.methods import CC
        >>> local = Local(optax.adam(1e-3), vector_view, keep_optimizer=True)
        >>> encoder = nn.encoder(nn.MLP((16,)))
        >>> heads = nn.projector(8), nn.cluster_projector(3)
        >>> method = cc(CC().plain(), encoder, *heads, local)
        >>> [stage.name for stage in method.stages]
        ['cluster']
    """
    networks = local.networks(
        encoder=encoder, projector=projector, cluster_projector=cluster_projector
    )

    def contrast(online, _, views, mask):
        z, c, online = heads(networks, online, views, mask)
        tau_i, tau_c = settings.instance_temperature, settings.cluster_temperature
        loss = losses.nt_xent(*z, temperature=tau_i, mask=mask)
        loss += losses.cluster_nt_xent(*c, temperature=tau_c, mask=mask)
        return loss - total_entropy(c, mask), online

    extra = simclr_contrast(networks, temperature=settings.instance_temperature)
    passes, parts = passes_of(contrast, extra, num_clustered), tuple(networks.named)
    setup = Setup(networks, parts, passes, local, settings.num_rounds)
    setup = setup._replace(updates=updates_in(settings))
    return one_stage(setup, kmeans)


def simclr_contrast(networks: Networks, *, temperature: Scalar) -> Contrast:
    """Returns SimCLR's loss: contrasts the two views of an example with other views.

    Args:
        networks: the networks `encoder` and `projector`.
        temperature: divisor of the cosine similarities, above 0.

    Returns:
        The loss of a batch. It ignores target networks.
    """

    def contrast(online, _, views, mask):
        z, online = forward_views(
            networks, online, ("encoder", "projector"), views, mask
        )
        return losses.nt_xent(*z, temperature=temperature, mask=mask), online

    return contrast


def passes_of(
    contrast: Contrast, extra: Contrast, num_clustered: int | None
) -> tuple[Pass, ...]:
    """Returns the passes of a client in a round.

    The first pass minimizes `extra` on the examples that are not clustered, if there
    are any. The last pass minimizes `contrast` on the examples that are clustered.

    Args:
        contrast: the loss of a batch of examples to cluster.
        extra: the loss of a batch of other examples.
        num_clustered: number of examples to cluster, the first ones of the pool; None
            clusters all.

    Returns:
        Two passes; only the last one if `num_clustered` is None.
    """
    last = Pass(contrast, is_clustered(num_clustered))
    if num_clustered is None:
        return (last,)
    return Pass(extra, lambda indices: indices >= num_clustered), last


def one_stage(setup: Setup, kmeans: FeatureKMeans | None = None) -> FederatedClustering:
    """Builds a method that learns features and clusters in one stage.

    Args:
        setup: the settings of the stage. Its networks are `encoder`, `projector` and
            `cluster_projector`.
        kmeans: k-means of the features after the training, see `cc`.

    Returns:
        The method.
    """
    encoder, head = (setup.networks.named[x] for x in ("encoder", "cluster_projector"))
    stages = (averaging("cluster", setup),)
    clusters_of = partial(assign, head)
    if kmeans is not None:
        stages += (kmeans.stage(encoder),)
        clusters_of = partial(assign_by_heterogeneity, head, kmeans)
    init = partial(initial_state, setup)
    return build_method(encoder, setup.local, init, stages, clusters_of)


def initial_state(setup: Setup, key: PRNGKey, federation: Federation) -> State:
    """Returns the state before the first round, with new networks.

    Args:
        setup: the settings of the stage. Its networks are `encoder`, `projector` and
            `cluster_projector`.
        key: the key of the networks' initial weights.
        federation: the federation.

    Returns:
        The state.
    """
    path_key, head_key = jax.random.split(key)
    named = setup.networks.named
    path = {name: named[name] for name in ("encoder", "projector")}
    parts = initialize(path_key, path, to_float(federation.pool[:1]))
    return start_with_head(setup, head_key, parts, federation)


def start_with_head(
    setup: Setup, key: PRNGKey, parts: Parts, federation: Federation
) -> State:
    """Returns the state at the beginning of a stage, with a new `cluster_projector`.

    Args:
        setup: the settings of the stage.
        key: the key of the new cluster projector.
        parts: the variables of the other networks.
        federation: the federation.

    Returns:
        The state.
    """
    named, x = setup.networks.named, to_float(federation.pool[:1])
    h, _ = named["encoder"].apply(part(parts, "encoder"), x, train=False)
    head = initialize(key, {"cluster_projector": named["cluster_projector"]}, h)
    return start(setup, merge(parts, head), federation)


def heads(
    networks: Networks, parts: Parts, views: Views, mask: Bool[Array, "B"]
) -> tuple[Pair, Pair, Parts]:
    """Applies the encoder and both heads to both views, in training mode.

    Args:
        networks: the networks `encoder`, `projector` and `cluster_projector`.
        parts: the variables of the networks.
        views: two views of a batch.
        mask: False at padding.

    Returns:
        The representations z, the soft assignments c, and the variables with new batch
        statistics.
    """
    h, parts = forward_views(networks, parts, ("encoder",), views, mask)
    z, parts = forward_views(networks, parts, ("projector",), h, mask)
    c, parts = forward_views(networks, parts, ("cluster_projector",), h, mask)
    return z, c, parts


def total_entropy(c: Pair, mask: Bool[Array, "B"]) -> Float[Array, ""]:
    """Computes the entropy of the mean assignment of each view, and their sum.

    Args:
        c: soft assignments of both views. Each row is a probability distribution.
        mask: False at padding.

    Returns:
        The sum of both entropies in nats, from 0 to 2 log K.
    """
    a, b = (losses.cluster_entropy(view, mask=mask) for view in c)
    return a + b


def is_clustered(
    num_clustered: int | None,
) -> Callable[[Int[Array, "N"]], Bool[Array, "N"]]:
    """Returns a function that selects the examples to cluster.

    Args:
        num_clustered: number of examples to cluster, the first ones of the pool; None
            clusters all.

    Returns:
        A function (indices into the pool) -> True at the examples to cluster.
    """
    if num_clustered is None:
        return lambda indices: indices >= 0
    return lambda indices: indices < num_clustered


def assign(
    cluster_projector: Network, server: Server, h: Float[Array, "N D"]
) -> Int[Array, "N"]:
    """Returns the cluster of each example: the one of the largest soft assignment.

    Args:
        cluster_projector: maps features to soft assignments.
        server: the server's state, with the variables of the cluster projector.
        h: the features of the examples.

    Returns:
        The clusters [N], from 0 to K - 1.
    """
    variables = part(server.online, "cluster_projector")
    c, _ = cluster_projector.apply(variables, h, train=False)
    return jnp.argmax(c, axis=-1).astype(jnp.int32)


# --- Two stage


class Clustering(NamedTuple):
    """The last stages of a two-stage method, which cluster the trained features."""

    stages: Callable[[Network], tuple[Stage, ...]]
    """(encoder) -> the stages. They keep only the trained encoder."""
    assign: Callable[[Server, Float[Array, "N D"]], Int[Array, "N"]]
    """(server, features) -> clusters."""


def two_stages(
    settings: Any,
    networks: Networks,
    contrast: Contrast,
    clustering: Clustering,
    local: Local,
    **options: Any,
) -> FederatedClustering:
    """Builds a method that first learns features and then clusters them.

    Args:
        settings: one value per setting of the method. `num_rounds` is the number of
            rounds of the first stage.
        networks: the chain of networks of the first stage, beginning with `encoder`.
        contrast: the loss of a batch in the first stage.
        clustering: the stages after the first.
        local: the local training of a client in a round of the first stage.
        **options: `tracks`, `momentum`, `average_target` and `personal` of `Setup`.

    Returns:
        The method, with the stage `representation` and the stages of `clustering`. The
        embedding is the encoder's features. Clusters are -1 in the first stage.
    """
    trains, passes = tuple(networks.named), (Pass(contrast),)
    options["updates"] = updates_in(settings)
    setup = Setup(networks, trains, passes, local, settings.num_rounds, **options)

    def init(key, federation: Federation) -> State:
        x = to_float(federation.pool[:1])
        return start(setup, initialize(key, networks.named, x), federation)

    stages = (
        averaging("representation", setup),
        *clustering.stages(networks.named["encoder"]),
    )
    assign = partial(assign_features, clustering)
    return build_method(networks.named["encoder"], local, init, stages, assign)


def assign_features(
    clustering: Clustering, server: Server, h: Float[Array, "N D"]
) -> Int[Array, "N"]:
    """Returns the cluster of each example, or -1 in the first stage.

    Args:
        clustering: the stages after the first stage.
        server: the server's state.
        h: the features of the examples.

    Returns:
        The clusters [N], from 0 to K - 1, or -1.
    """
    if "projector" in server.online["params"]:  # Only the first stage has a projector.
        return jnp.full(len(h), -1, jnp.int32)
    return clustering.assign(server, h)


def feature_kmeans(kmeans: FeatureKMeans) -> Clustering:
    """Returns `+ K-means` of FedMCC's tables: k-means of all clients' features.

    Clients do not upload their features, because federated k-means has the same result.

    Args:
        kmeans: the settings of k-means.

    Returns:
        The clustering.

    Examples:
        >>> from fcjax import nn
        >>> clustering = feature_kmeans(FeatureKMeans(num_clusters=3))
        >>> [stage.name for stage in clustering.stages(nn.encoder(nn.MLP((16,))))]
        ['k-means']
    """
    return Clustering(
        lambda encoder: (kmeans.stage(encoder),),
        lambda server, h: server.clusters.nearest(h),
    )


def by_heterogeneity(
    kmeans: FeatureKMeans, cluster_projector: Network, contrast: Clustering
) -> Clustering:
    """Returns k-means of the features, then a cluster contrast if clients are similar.

    A cluster projector that heterogeneous clients train distributes a client with few
    clusters over all clusters. So its training is skipped for heterogeneous clients.

    Args:
        kmeans: k-means, whose clusters are used if the clients are heterogeneous.
        cluster_projector: the network that `contrast` trains.
        contrast: the training of the cluster projector, see `cluster_contrast`.

    Returns:
        The clustering.
    """

    def stages(encoder: Network) -> tuple[Stage, ...]:
        (training,) = contrast.stages(encoder)

        def done(state: State):
            return kmeans.is_heterogeneous(state.server)

        return kmeans.stage(encoder), training._replace(done=done)

    return Clustering(
        stages, partial(assign_by_heterogeneity, cluster_projector, kmeans)
    )


def assign_by_heterogeneity(
    cluster_projector: Network,
    kmeans: FeatureKMeans,
    server: Server,
    h: Float[Array, "N D"],
) -> Int[Array, "N"]:
    """Returns clusters by k-means for heterogeneous clients, else by the projector.

    Args:
        cluster_projector: maps features to soft assignments.
        kmeans: the settings of k-means, with `max_heterogeneity`.
        server: the server's state.
        h: the features of the examples.

    Returns:
        The clusters [N], from 0 to K - 1.
    """
    if not server.clusters:  # K-means has not begun.
        return assign(cluster_projector, server, h)
    by_kmeans = server.clusters.nearest(h)
    if "cluster_projector" not in server.online["params"]:
        return by_kmeans
    by_projector = assign(cluster_projector, server, h)
    return jnp.where(kmeans.is_heterogeneous(server), by_kmeans, by_projector)


# --- FedMCC


def fedmcc(
    settings: Any,
    encoder: Network,
    projector: Network,
    clustering: Clustering,
    local: Local,
) -> FederatedClustering:
    """Builds FedMCC: an instance-level contrast, then clusters of frozen features.

    Args:
        settings: one value per setting of `fcjax.methods.FedMCC`. The paper's tuned
            momentum is 0.988.
        encoder: f, maps examples to features.
        projector: g_I, maps features to instance-level representations z.
        clustering: the second stage; Algorithm 2 is `cluster_contrast`.
        local: the local training of a client in a round of the first stage. The paper
            has E = 5 epochs and a batch size of 128.

    Returns:
        The method, with the stage `representation` and the stages of `clustering`. The
        embedding is the encoder's features. Clusters are -1 in the first stage.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.data.augment import vector_view
        >>> from fcjax.methods import FedMCC
        >>> settings, local = FedMCC().plain(), Local(optax.adam(1e-3), vector_view)
        >>> encoder, z = nn.encoder(nn.MLP((16,))), nn.projector(8)
        >>> clustering = cluster_contrast(settings, nn.cluster_projector(3), local)
        >>> method = fedmcc(settings, encoder, z, clustering, local)
        >>> [stage.name for stage in method.stages]
        ['representation', 'cluster']
    """
    networks = local.networks(encoder=encoder, projector=projector)
    temperature = settings.instance_temperature
    return two_stages(
        *(settings, networks, instance_contrast(networks, temperature=temperature)),
        *(clustering, local),
        tracks=("encoder", "projector"),
        momentum=settings.momentum,
        average_target=settings.average_target,
    )


def cluster_contrast(
    settings: Any,
    cluster_projector: Network,
    local: Local,
    *,
    num_clustered: int | None = None,
) -> Clustering:
    """Returns Algorithm 2 (`+ MCC` of the tables): trains a cluster-level projector.

    The projector gets the features of the frozen encoder, whose batch norms are in
    evaluation mode.

    Args:
        settings: one value per setting of `fcjax.methods.FedMCC`, or of another method
            with this second stage. See `cluster_level` for `entropy_weight`.
        cluster_projector: g_C, maps features to soft assignments.
        local: the local training of a client in a round of this stage.
        num_clustered: number of examples to cluster, the first ones of the pool. Only
            the first stage trains on the other examples, such as STL-10's unlabelled
            images. None clusters all.

    Returns:
        The clustering.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.data.augment import vector_view
        >>> from fcjax.methods import FedMCC
        >>> settings, local = FedMCC().plain(), Local(optax.adam(1e-3), vector_view)
        >>> clustering = cluster_contrast(settings, nn.cluster_projector(3), local)
        >>> encoder = nn.encoder(nn.MLP((16,)))
        >>> [stage.name for stage in clustering.stages(encoder)]
        ['cluster']
    """

    def stage(encoder: Network) -> Stage:
        trains = ("cluster_projector",)
        networks = local.networks(encoder=encoder, cluster_projector=cluster_projector)
        contrast = frozen_contrast(
            networks,
            temperature=settings.cluster_temperature,
            entropy_weight=settings.entropy_weight,
        )
        passes = (Pass(contrast, is_clustered(num_clustered)),)
        setup = Setup(
            *(networks, trains, passes, local, settings.cluster_rounds, trains),
            momentum=settings.momentum,
            # Only FedMCC has this setting.
            average_target=getattr(settings, "average_target", False),
        )
        return averaging("cluster", setup, begin=partial(begin_clusters, setup))

    return Clustering(
        lambda encoder: (stage(encoder),), partial(assign, cluster_projector)
    )


def begin_clusters(
    setup: Setup, key: PRNGKey, state: State, federation: Federation
) -> State:
    """Begins Algorithm 2: keeps the encoder, with a new cluster-level projector.

    Args:
        setup: the settings of the stage `cluster`.
        key: the key of the new cluster projector.
        state: the last state of the previous stage.
        federation: the federation.

    Returns:
        The first state of the stage. The clusters of k-means, if there are any, are
        kept.
    """
    before: Server = state.server
    parts = pick(before.online, ("encoder",))
    state = start_with_head(setup, key, parts, federation)
    return state._replace(server=state.server._replace(clusters=before.clusters))


def mcc(
    settings: Any,
    encoder: Network,
    projector: Network,
    cluster_projector: Network,
    local: Local,
    *,
    num_clustered: int | None = None,
    kmeans: FeatureKMeans | None = None,
) -> FederatedClustering:
    """Builds MCC: instance-level and cluster-level contrast with target networks.

    With one client it is the central method, Eq. 6. With several clients each client
    minimizes L_I + L_C in one stage. Section III-B of the paper advises against this;
    it is the ablation of the two stages of `fedmcc`.

    Args:
        settings: one value per setting of `fcjax.methods.MCC` or `FedMCCOneStage`. If
            `entropy_weight` is 0.5 and the target networks equal the online networks,
            the gradient is half the gradient of `cc`.
        encoder: f, maps examples to features.
        projector: g_I, maps features to instance-level representations z.
        cluster_projector: g_C, maps features to soft assignments.
        local: the local training of a client in a round. For central MCC set
            `keep_optimizer`, because its only client trains without interruption.
        num_clustered: number of examples to cluster, the first ones of the pool. In
            every round the clients first train on the other examples with the
            instance-level contrast only. None clusters all.
        kmeans: k-means of the features after the training. Its clusters are used if the
            clients are heterogeneous. None always uses the cluster projector.

    Returns:
        The method, with the stage `cluster`, and with `kmeans` also the stage
        `k-means`. The embedding is the encoder's features.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.data.augment import vector_view
        >>> from fcjax.methods import MCC
        >>> local = Local(optax.adam(1e-3), vector_view, keep_optimizer=True)
        >>> encoder = nn.encoder(nn.MLP((16,)))
        >>> heads = nn.projector(8), nn.cluster_projector(3)
        >>> method = mcc(MCC().plain(), encoder, *heads, local)
        >>> [stage.name for stage in method.stages]
        ['cluster']
    """
    networks = local.networks(
        encoder=encoder, projector=projector, cluster_projector=cluster_projector
    )
    tau = settings.instance_temperature

    def contrast(online, target, views, mask):
        z, c, online = heads(networks, online, views, mask)
        targets = target_networks(online, target)
        z_target, c_target, _ = heads(networks, targets, views, mask)
        loss = instance_level(z, z_target, mask, temperature=tau)
        return loss + cluster_level(
            *(c, c_target, mask),
            temperature=settings.cluster_temperature,
            entropy_weight=settings.entropy_weight,
        ), online

    extra = instance_contrast(networks, temperature=tau)
    passes, parts = passes_of(contrast, extra, num_clustered), tuple(networks.named)
    setup = Setup(
        *(networks, parts, passes, local, settings.num_rounds, parts),
        momentum=settings.momentum,
        average_target=settings.average_target,
        updates=updates_in(settings),
    )
    return one_stage(setup, kmeans)


def instance_contrast(networks: Networks, *, temperature: Scalar) -> Contrast:
    """Returns the loss of Algorithm 1, which applies both networks to both views.

    Args:
        networks: the networks `encoder` and `projector`.
        temperature: tau_I, above 0.

    Returns:
        The loss of a batch, see `instance_level`.
    """

    def contrast(online, target, views, mask):
        path = ("encoder", "projector")
        z, online = forward_views(networks, online, path, views, mask)
        z_target, _ = forward_views(
            networks, target_networks(online, target), path, views, mask
        )
        return instance_level(z, z_target, mask, temperature=temperature), online

    return contrast


def frozen_contrast(
    networks: Networks, *, temperature: Scalar, entropy_weight: Scalar = 1.0
) -> Contrast:
    """Returns the loss of Algorithm 2, which trains the cluster-level projector.

    The frozen encoder is applied to both views in evaluation mode. Then the online and
    the target projector are applied to its features.

    Args:
        networks: the networks `encoder` and `cluster_projector`.
        temperature: tau_C.
        entropy_weight: the weight of the entropies, see `cluster_level`.

    Returns:
        The loss of a batch.
    """

    def contrast(online, target, views, mask):
        h, _ = forward_views(networks, online, ("encoder",), views, mask, train=False)
        path = ("cluster_projector",)
        c, online = forward_views(networks, online, path, h, mask)
        c_target, _ = forward_views(
            networks, target_networks(online, target), path, h, mask
        )
        loss = cluster_level(
            *(c, c_target, mask), temperature=temperature, entropy_weight=entropy_weight
        )
        return loss, online

    return contrast


def instance_level(
    z: Pair, z_target: Pair, mask: Bool[Array, "B"], *, temperature: Scalar
) -> Float[Array, ""]:
    """Computes L_I of a batch (Eq. 8): online view against the other target view.

    Args:
        z: representations of both views by the online network.
        z_target: representations of both views by the target network.
        mask: False at padding.
        temperature: tau_I.

    Returns:
        The loss.
    """
    (z_a, z_b), (t_a, t_b) = z, z_target
    loss = losses.nt_xent(z_a, t_b, temperature=temperature, mask=mask)
    loss += losses.nt_xent(t_a, z_b, temperature=temperature, mask=mask)
    return loss / 2


def cluster_level(
    c: Pair,
    c_target: Pair,
    mask: Bool[Array, "B"],
    *,
    temperature: Scalar,
    entropy_weight: Scalar = 1.0,
) -> Float[Array, ""]:
    """Computes L_C of a batch: Eq. 9 with the entropies subtracted.

    The loss is half the sum of two contrasts, minus four entropies. Target networks
    have no gradient. So their entropies are constants, and only one of the two
    contrasts has a gradient for each online view. If the target equals the online
    network, the gradient is half of CC's contrast gradient minus the full gradient of
    CC's entropies. Relative to the entropies, the contrast then weighs half as much as
    in CC.

    Args:
        c: soft assignments of both views by the online network.
        c_target: soft assignments of both views by the target network.
        mask: False at padding.
        temperature: tau_C.
        entropy_weight: weight of the four entropies. 1 is Eq. 9. 0.5 restores the ratio
            of contrast and entropies in CC, and the gradient is half of CC's.

    Returns:
        The loss.
    """
    (c_a, c_b), (t_a, t_b) = c, c_target
    loss = losses.cluster_nt_xent(c_a, t_b, temperature=temperature, mask=mask)
    loss += losses.cluster_nt_xent(t_a, c_b, temperature=temperature, mask=mask)
    loss /= 2
    loss -= entropy_weight * total_entropy(c, mask)
    return loss - entropy_weight * total_entropy(c_target, mask)
