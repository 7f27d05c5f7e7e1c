"""Contrastive clustering (CC), FedMCC, and two-stage clustering.

Contrastive clustering, central or under federated averaging.

CC: Contrastive Clustering
    Yunfan Li, Peng Hu, Zitao Liu, Dezhong Peng, Joey Tianyi Zhou, Xi Peng. AAAI 2021.
    https://arxiv.org/abs/2009.09687
    Authors' code: https://github.com/Yunfan-Li/Contrastive-Clustering
    It leaves out a last batch that is not full: `Local.drop_last`.

A federation of one client is the method itself, one of several is the baseline Fed + CC
of the FedMCC paper (https://arxiv.org/abs/2206.05093).

Momentum contrastive clustering, federated and central.

FedMCC, MCC: Federated Momentum Contrastive Clustering
    Runxuan Miao, Erdem Koyuncu. 2022. https://arxiv.org/abs/2206.05093
    No public code. Where the text is silent it is read as Contrastive Clustering, which
    it extends (`cc`), and as EasyFL's FedU, which it compares with (`fedu`): the losses
    are those of CC's code, with the positive in the denominator and the entropy
    subtracted; target networks take the statistics of the batch and stay on their
    clients from round to round; every client begins a round with a new optimiser.
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
    """Federated k-means of the encoder's features.

    Examples:
        >>> from fcjax import nn
        >>> stage = FeatureKMeans(num_clusters=3).stage(nn.encoder(nn.MLP((16,))))
        >>> stage.name, stage.num_rounds
        ('k-means', 100)
    """

    num_clusters: int
    num_init: int = 10
    """Seedings; the best by inertia counts."""
    whitening: float = 0.0
    """Exponent, see `fcjax.federated.kmeans.find_whitening`; 0 clusters the features
    as they are."""
    max_heterogeneity: Scalar = 1.0
    """Clients are unlike above this value of `fcjax.federated.kmeans.heterogeneity`."""
    num_clustered: int | None = None
    """Cluster the first so many rows of the pool alone; None is all."""
    batch_size: int = 128
    """Examples that a client encodes at a time."""

    def stage(self, encoder: Network) -> Stage:
        """Returns the stage. The server then holds only the encoder and, if there is
        one, the cluster projector.
        """
        kmeans = KMeans(
            partial(self.points, encoder),
            *(self.num_clusters, self.num_init, self.whitening),
            model=lambda state: {"encoder": part(state.server.online, "encoder")},
        )

        def begin(key: PRNGKey, state: State, federation: Federation) -> State:
            before: Server = state.server
            needed = ("encoder", "cluster_projector")
            names = [name for name in needed if name in before.online["params"]]
            after = Server(pick(before.online, names))
            return kmeans.begin(key, State(after), federation)

        return kmeans.stage()._replace(begin=begin)

    def points(self, encoder: Network, state: State, federation: Federation):
        """Returns the features of all examples, and which are clustered."""
        online = state.server.online
        h = encode(encoder, online, federation, batch_size=self.batch_size)
        return h, federation.mask & is_clustered(self.num_clustered)(federation.indices)

    def are_unlike(self, server: Server) -> Bool[Array, ""]:
        """Tells whether the clients are unlike by the clusters of k-means."""
        return server.clusters.heterogeneity > self.max_heterogeneity


# --- CC

Pair = tuple[Float[Array, "B _"], Float[Array, "B _"]]
"""What a head makes of both views."""


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
    """Builds CC: contrast of examples and of clusters at once.

    Args:
        settings: an `fcjax.methods.CC` or `FedCC` with one value per setting.
        encoder: from examples to features.
        projector: from features to instance-level representations z.
        cluster_projector: from features to soft assignments.
        local: how a client trains in a round; in CC itself, the only client trains
            without end, so that its optimiser is to be kept.
        num_clustered: cluster the first so many rows of the pool alone; the others, as
            STL-10's unlabelled images, come first in every round and by the
            instance-level contrast alone. None is all.
        kmeans: clusters the features after training; its clusters are used where the
            clients are unlike. None uses the cluster projector always.

    Returns:
        The method, of a stage `cluster` and with `kmeans` one more, `k-means`. The
        embedding is the encoder's features.

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
    return one_stage(setup, kmeans)


def simclr_contrast(networks: Networks, *, temperature: Scalar) -> Contrast:
    """Returns the instance-level loss: an example's views against those of others."""

    def contrast(online, _, views, mask):
        z, online = forward_views(
            networks, online, ("encoder", "projector"), views, mask
        )
        return losses.nt_xent(*z, temperature=temperature, mask=mask), online

    return contrast


def passes_of(
    contrast: Contrast, extra: Contrast, num_clustered: int | None
) -> tuple[Pass, ...]:
    """Returns the epochs by the one loss on rows that are clustered, and before them by
    the other on those that are not.
    """
    clustered = Pass(contrast, is_clustered(num_clustered))
    if num_clustered is None:
        return (clustered,)
    return Pass(extra, lambda rows: rows >= num_clustered), clustered


def one_stage(setup: Setup, kmeans: FeatureKMeans | None = None) -> FederatedClustering:
    """Builds a method that learns features and clusters at once, by `encoder`,
    `projector` and `cluster_projector`.
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
    """Returns the state before the first round: see `start_with_head`."""
    path_key, head_key = jax.random.split(key)
    named = setup.networks.named
    path = {name: named[name] for name in ("encoder", "projector")}
    parts = initialize(path_key, path, to_float(federation.pool[:1]))
    return start_with_head(setup, head_key, parts, federation)


def start_with_head(
    setup: Setup, key: PRNGKey, parts: Parts, federation: Federation
) -> State:
    """Returns the state in which a stage begins with a new `cluster_projector`, which
    takes the features of the encoder.
    """
    named, x = setup.networks.named, to_float(federation.pool[:1])
    h, _ = named["encoder"].apply(part(parts, "encoder"), x, train=False)
    head = initialize(key, {"cluster_projector": named["cluster_projector"]}, h)
    return start(setup, merge(parts, head), federation)


def heads(
    networks: Networks, parts: Parts, views: Views, mask: Bool[Array, "B"]
) -> tuple[Pair, Pair, Parts]:
    """Applies encoder and both heads to both views, in training.

    Returns:
        The representations z, the soft assignments, and the parts with new batch
        statistics.
    """
    h, parts = forward_views(networks, parts, ("encoder",), views, mask)
    z, parts = forward_views(networks, parts, ("projector",), h, mask)
    c, parts = forward_views(networks, parts, ("cluster_projector",), h, mask)
    return z, c, parts


def total_entropy(c: Pair, mask: Bool[Array, "B"]) -> Float[Array, ""]:
    """Returns the entropy of the mean assignment, summed over both views."""
    a, b = (losses.cluster_entropy(view, mask=mask) for view in c)
    return a + b


def is_clustered(
    num_clustered: int | None,
) -> Callable[[Int[Array, "N"]], Bool[Array, "N"]]:
    """Returns which rows of the pool are clustered: the first ones, or all."""
    if num_clustered is None:
        return lambda rows: rows >= 0
    return lambda rows: rows < num_clustered


def assign(
    cluster_projector: Network, server: Server, h: Float[Array, "N D"]
) -> Int[Array, "N"]:
    """Returns the clusters of features: those of their largest soft assignments."""
    variables = part(server.online, "cluster_projector")
    c, _ = cluster_projector.apply(variables, h, train=False)
    return jnp.argmax(c, axis=-1).astype(jnp.int32)


# --- Two stage


class Clustering(NamedTuple):
    """The clustering of trained features."""

    stages: Callable[[Network], tuple[Stage, ...]]
    """(encoder) -> the stages, which go on with the trained encoder alone."""
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
    """Builds a method that learns features on the clients, then clusters them.

    Args:
        settings: of the method, of which the first stage has `num_rounds`.
        networks: of the first stage, `encoder` first, each fed by the one before.
        contrast: the loss of a batch.
        clustering: the second stage.
        local: how a client trains in a round of the first stage.
        **options: tracks, momentum, average_target and personal, as in `Setup`.

    Returns:
        The method, with stages `representation` and those of `clustering`, whose
        embedding is the encoder's features. It has no clusters (-1) before the second.
    """
    trains, passes = tuple(networks.named), (Pass(contrast),)
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
    """Returns the clusters of features by a second stage, -1 before it."""
    if "projector" in server.online["params"]:  # the first stage goes on
        return jnp.full(len(h), -1, jnp.int32)
    return clustering.assign(server, h)


def feature_kmeans(kmeans: FeatureKMeans) -> Clustering:
    """Returns `+ K-means` of FedMCC's tables: k-means of all clients' features.

    The features stay with the clients: federated k-means has the same result.

    Args:
        kmeans: the clustering.

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
    """Returns k-means of the features, and for alike clients a trained head after it.

    A head that is trained on unlike clients scatters a client of few clusters over all
    of them, so its training is skipped then.

    Args:
        kmeans: the clustering of unlike clients.
        cluster_projector: of `contrast`.
        contrast: the clustering of alike clients, see `cluster_contrast`.
    """

    def stages(encoder: Network) -> tuple[Stage, ...]:
        (trained,) = contrast.stages(encoder)

        def done(state: State):
            return kmeans.are_unlike(state.server)

        return kmeans.stage(encoder), trained._replace(done=done)

    return Clustering(
        stages, partial(assign_by_heterogeneity, cluster_projector, kmeans)
    )


def assign_by_heterogeneity(
    cluster_projector: Network,
    kmeans: FeatureKMeans,
    server: Server,
    h: Float[Array, "N D"],
) -> Int[Array, "N"]:
    """Returns the clusters by k-means for unlike clients, else by the trained head."""
    if not server.clusters:  # training goes on
        return assign(cluster_projector, server, h)
    by_kmeans = server.clusters.nearest(h)
    if "cluster_projector" not in server.online["params"]:
        return by_kmeans
    by_head = assign(cluster_projector, server, h)
    return jnp.where(kmeans.are_unlike(server), by_kmeans, by_head)


# --- FedMCC


def fedmcc(
    settings: Any,
    encoder: Network,
    projector: Network,
    clustering: Clustering,
    local: Local,
) -> FederatedClustering:
    """Builds FedMCC: instance-level contrast, then clusters of the frozen features.

    Args:
        settings: an `fcjax.methods.FedMCC` with one value per setting. The paper's
            tuned momentum is 0.988.
        encoder: f, from examples to features.
        projector: g_I, from features to instance-level representations z.
        clustering: the second stage; Algorithm 2 is `cluster_contrast`.
        local: how a client trains in a round of the first stage; E = 5 epochs of
            batches of 128 in the paper.

    Returns:
        The method, as `two_stages`.

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
    """Returns Algorithm 2, `+ MCC` of the tables: a cluster-level projector is trained
    on the features of the frozen encoder, which is in evaluation.

    Args:
        settings: an `fcjax.methods.FedMCC` with one value per setting, or another whose
            second stage this is. `entropy_weight` is explained at `cluster_level`.
        cluster_projector: g_C, from features to soft assignments.
        local: how a client trains in a round of this stage.
        num_clustered: cluster the first so many rows of the pool alone; the others, as
            STL-10's unlabelled images, have served the first stage. None is all.

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
            # A setting of FedMCC alone.
            average_target=getattr(settings, "average_target", False),
        )
        return averaging("cluster", setup, begin=partial(begin_clusters, setup))

    return Clustering(
        lambda encoder: (stage(encoder),), partial(assign, cluster_projector)
    )


def begin_clusters(
    setup: Setup, key: PRNGKey, state: State, federation: Federation
) -> State:
    """Begins Algorithm 2: the encoder of Algorithm 1 alone of all that was trained, and
    a new cluster-level projector (line 1).
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
    """Builds MCC: contrast of examples and of clusters at once, against a target.

    A federation of one client is the central method, Eq. 6. One of several is the loss
    L_I + L_C at each user, which section III-B advises against: the ablation of the two
    stages of `fedmcc`.

    Args:
        settings: an `fcjax.methods.MCC` or `FedMCCOneStage` with one value per setting.
            At an `entropy_weight` of 0.5, and with targets that equal the online
            networks, the gradient is half of that of `cc`.
        encoder, projector, cluster_projector: f, g_I and g_C.
        local, num_clustered, kmeans: as in `cc`.

    Returns:
        The method, of stages as in `cc`, whose embedding is the encoder's features.

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
        tracked = target_networks(online, target)
        z_target, c_target, _ = heads(networks, tracked, views, mask)
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
    )
    return one_stage(setup, kmeans)


def instance_contrast(networks: Networks, *, temperature: Scalar) -> Contrast:
    """Returns the loss of Algorithm 1: both views through both networks."""

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
    """Returns the loss of Algorithm 2: both views through the frozen encoder, which is
    in evaluation, and through both cluster-level projectors.
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
    """Returns L_I of a batch, Eq. 8: each view of the online network against the other
    view of the target's.
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
    """Returns L_C of a batch, Eq. 9 with the entropies subtracted.

    No gradient reaches a target, whose entropies are constants, and of the two terms
    under the half one alone reaches each online view. Where the target equals the
    online network, the gradient is therefore half of CC's contrast, less *all* of CC's
    entropy of either view: against the entropy, the contrast weighs half of what it
    does in CC.

    Args:
        c: soft assignments of both views by the online network.
        c_target: those by the target.
        mask: the examples that count.
        temperature: tau_C.
        entropy_weight: of the four entropies. 1 is Eq. 9; 0.5 has the ratio of CC, and
            then half of its gradient.
    """
    (c_a, c_b), (t_a, t_b) = c, c_target
    loss = losses.cluster_nt_xent(c_a, t_b, temperature=temperature, mask=mask)
    loss += losses.cluster_nt_xent(t_a, c_b, temperature=temperature, mask=mask)
    loss /= 2
    loss -= entropy_weight * total_entropy(c, mask)
    return loss - entropy_weight * total_entropy(c_target, mask)
