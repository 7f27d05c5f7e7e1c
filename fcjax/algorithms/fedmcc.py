"""Momentum contrastive clustering, federated and central.

FedMCC, MCC: Federated Momentum Contrastive Clustering
    Runxuan Miao, Erdem Koyuncu. 2022. https://arxiv.org/abs/2206.05093
    No public code. Where the text is silent it is read as Contrastive Clustering, which
    it extends (`cc`), and as EasyFL's FedU, which it compares with (`fedu`): the losses
    are those of CC's code, with the positive in the denominator and the entropy
    subtracted; target networks take the statistics of the batch and stay on their
    clients from round to round; every client begins a round with a new optimiser.
"""

from functools import partial

from jaxtyping import Array, Bool, Float

from fcjax import losses
from fcjax.algorithms import cc
from fcjax.algorithms.averaging import Contrast, Local, Pass, Server, Setup, averaging
from fcjax.algorithms.parts import Networks, both, pick, target_of
from fcjax.algorithms.two_stage import Clustering, two_stages
from fcjax.types import FederatedClustering, Federation, Network, PRNGKey, Scalar, State


def fedmcc(
    encoder: Network,
    projector: Network,
    clustering: Clustering,
    local: Local,
    *,
    num_rounds: int = 100,
    instance_temperature: Scalar = 0.5,
    momentum: Scalar = 0.99,
    average_target: bool = False,
) -> FederatedClustering:
    """Builds FedMCC: instance-level contrast, then clusters of the frozen features.

    Args:
        encoder: f, from examples to features.
        projector: g_I, from features to instance-level representations z.
        clustering: the second stage; Algorithm 2 is `cluster_contrast`.
        local: how a client trains in a round of the first stage; E = 5 epochs of
            batches of 128 in the paper.
        num_rounds: R of Algorithm 1.
        instance_temperature: tau_I.
        momentum: m of the target networks; 0.988 is the paper's tuned value.
        average_target: average the target networks too and send them back (Table VII).

    Returns:
        The method, as `two_stages`.

    Examples:
        >>> import optax
        >>> from fcjax import models
        >>> from fcjax.data.vectors import vector_view
        >>> local = Local(optax.adam(1e-3), vector_view)
        >>> encoder, z = models.encoder(models.MLP((16,))), models.projector(8)
        >>> clustering = cluster_contrast(models.cluster_projector(3), local)
        >>> method = fedmcc(encoder, z, clustering, local)
        >>> [stage.name for stage in method.stages]
        ['representation', 'cluster']
    """
    networks = local.networks(encoder=encoder, projector=projector)
    contrast = instance_contrast(networks, temperature=instance_temperature)
    return two_stages(
        *(networks, contrast, clustering, local),
        num_rounds=num_rounds,
        tracks=("encoder", "projector"),
        momentum=momentum,
        average_target=average_target,
    )


def cluster_contrast(
    cluster_projector: Network,
    local: Local,
    *,
    num_rounds: int = 10,
    cluster_temperature: Scalar = 1.0,
    entropy_weight: Scalar = 1.0,
    momentum: Scalar = 0.99,
    average_target: bool = False,
    num_clustered: int | None = None,
) -> Clustering:
    """Returns Algorithm 2, `+ MCC` of the tables: a cluster-level projector is trained
    on the features of the frozen encoder, which is in evaluation.

    Args:
        cluster_projector: g_C, from features to soft assignments.
        local: how a client trains in a round of this stage.
        num_rounds: R of Algorithm 2.
        cluster_temperature: tau_C.
        entropy_weight: of the entropies in L_C, see `cluster_level`; 1 is the paper's
            equation 9, 0.5 has the ratio of CC.
        momentum: m of the projector's target network.
        average_target: average it too (Table VII).
        num_clustered: cluster the first so many rows of the pool alone; the others, as
            STL-10's unlabelled images, have served the first stage. None is all.

    Examples:
        >>> import optax
        >>> from fcjax import models
        >>> from fcjax.data.vectors import vector_view
        >>> local = Local(optax.adam(1e-3), vector_view)
        >>> clustering = cluster_contrast(models.cluster_projector(3), local)
        >>> encoder = models.encoder(models.MLP((16,)))
        >>> clustering.stage(encoder, 100).name  # after 100 rounds of the first stage
        'cluster'
    """

    def stage(encoder: Network, rounds_before: int):
        trains = ("cluster_projector",)
        networks = local.networks(encoder=encoder, cluster_projector=cluster_projector)
        contrast = frozen_contrast(
            networks, temperature=cluster_temperature, entropy_weight=entropy_weight
        )
        passes = (Pass(contrast, cc.is_clustered(num_clustered)),)
        setup = Setup(
            *(networks, trains, passes, local, num_rounds),
            *(trains, momentum, average_target),
            rounds_before=rounds_before,
        )
        return averaging("cluster", setup, begin=partial(begin_clusters, setup))

    return Clustering(stage, partial(cc.assign, cluster_projector))


def begin_clusters(
    setup: Setup, key: PRNGKey, state: State, federation: Federation
) -> State:
    """Begins Algorithm 2: the encoder of Algorithm 1 alone of all that was trained, and
    a new cluster-level projector (line 1)."""
    before: Server = state.server
    parts = pick(before.online, ("encoder",))
    return cc.start_with_head(setup, key, parts, federation, before.num_rounds)


def mcc(
    encoder: Network,
    projector: Network,
    cluster_projector: Network,
    local: Local,
    *,
    num_rounds: int = 100,
    instance_temperature: Scalar = 0.5,
    cluster_temperature: Scalar = 1.0,
    entropy_weight: Scalar = 1.0,
    momentum: Scalar = 0.99,
    average_target: bool = False,
    num_clustered: int | None = None,
) -> FederatedClustering:
    """Builds MCC: contrast of examples and of clusters at once, against a target.

    A federation of one client is the central method, Eq. 6. One of several is the loss
    L_I + L_C at each user, which section III-B advises against: the ablation of the two
    stages of `fedmcc`.

    Args:
        encoder, projector, cluster_projector: f, g_I and g_C.
        entropy_weight: as in `cluster_contrast`; at 0.5, and with targets that equal
            the online networks, the gradient is half of that of `cc`.
        momentum: m of the target networks.
        average_target: average them too (Table VII).
        local, num_rounds, instance_temperature, cluster_temperature, num_clustered: as
            in `cc`.

    Returns:
        The method, of one stage, `cluster`, whose embedding is the encoder's features.

    Examples:
        >>> import optax
        >>> from fcjax import models
        >>> from fcjax.data.vectors import vector_view
        >>> local = Local(optax.adam(1e-3), vector_view, keep_optimizer=True)
        >>> encoder = models.encoder(models.MLP((16,)))
        >>> heads = models.projector(8), models.cluster_projector(3)
        >>> method = mcc(encoder, *heads, local)
        >>> [stage.name for stage in method.stages]
        ['cluster']
    """
    networks = local.networks(
        encoder=encoder, projector=projector, cluster_projector=cluster_projector
    )

    def contrast(online, target, views, mask):
        z, c, online = cc.heads(networks, online, views, mask)
        tracked = target_of(online, target)
        z_target, c_target, _ = cc.heads(networks, tracked, views, mask)
        loss = instance_level(z, z_target, mask, temperature=instance_temperature)
        return loss + cluster_level(
            *(c, c_target, mask),
            temperature=cluster_temperature,
            entropy_weight=entropy_weight,
        ), online

    extra = instance_contrast(networks, temperature=instance_temperature)
    passes, parts = cc.passes_of(contrast, extra, num_clustered), tuple(networks.named)
    return cc.one_stage(
        Setup(
            *(networks, parts, passes, local, num_rounds),
            *(parts, momentum, average_target),
        )
    )


def instance_contrast(networks: Networks, *, temperature: Scalar) -> Contrast:
    """Returns the loss of Algorithm 1: both views through both networks."""

    def contrast(online, target, views, mask):
        path = ("encoder", "projector")
        z, online = both(networks, online, path, views, mask)
        z_target, _ = both(networks, target_of(online, target), path, views, mask)
        return instance_level(z, z_target, mask, temperature=temperature), online

    return contrast


def frozen_contrast(
    networks: Networks, *, temperature: Scalar, entropy_weight: Scalar = 1.0
) -> Contrast:
    """Returns the loss of Algorithm 2: both views through the frozen encoder, which is
    in evaluation, and through both cluster-level projectors."""

    def contrast(online, target, views, mask):
        h, _ = both(networks, online, ("encoder",), views, mask, train=False)
        path = ("cluster_projector",)
        c, online = both(networks, online, path, h, mask)
        c_target, _ = both(networks, target_of(online, target), path, h, mask)
        loss = cluster_level(
            *(c, c_target, mask), temperature=temperature, entropy_weight=entropy_weight
        )
        return loss, online

    return contrast


def instance_level(
    z: cc.Pair, z_target: cc.Pair, mask: Bool[Array, "B"], *, temperature: Scalar
) -> Float[Array, ""]:
    """Returns L_I of a batch, Eq. 8: each view of the online network against the other
    view of the target's."""
    (z_a, z_b), (t_a, t_b) = z, z_target
    loss = losses.nt_xent(z_a, t_b, temperature=temperature, mask=mask)
    loss += losses.nt_xent(t_a, z_b, temperature=temperature, mask=mask)
    return loss / 2


def cluster_level(
    c: cc.Pair,
    c_target: cc.Pair,
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
    loss -= entropy_weight * cc.total_entropy(c, mask)
    return loss - entropy_weight * cc.total_entropy(c_target, mask)
