"""Contrastive clustering, central or under federated averaging.

CC: Contrastive Clustering
    Yunfan Li, Peng Hu, Zitao Liu, Dezhong Peng, Joey Tianyi Zhou, Xi Peng. AAAI 2021.
    https://arxiv.org/abs/2009.09687
    Authors' code: https://github.com/Yunfan-Li/Contrastive-Clustering
    It leaves out a last batch that is not full: `Local.drop_last`.

A federation of one client is the method itself, one of several is the baseline Fed + CC
of the FedMCC paper (https://arxiv.org/abs/2206.05093).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fcjax import losses
from fcjax.algorithms.averaging import (
    Contrast,
    Local,
    Pass,
    averaging,
    start,
)
from fcjax.algorithms.features import assembled
from fcjax.algorithms.parts import (
    Networks,
    Parts,
    Views,
    both,
    initialize,
)
from fcjax.algorithms.rounds import go_on
from fcjax.data.augment import to_float
from fcjax.types import FederatedClustering, Federation, Network, Scalar, State

Pair = tuple[Float[Array, "B _"], Float[Array, "B _"]]
"""What a head makes of both views."""


def cc(
    encoder: Network,
    projector: Network,
    cluster_projector: Network,
    local: Local,
    *,
    num_rounds: int = 100,
    instance_temperature: Scalar = 0.5,
    cluster_temperature: Scalar = 1.0,
    num_clustered: int | None = None,
) -> FederatedClustering:
    """Builds CC: contrast of examples and of clusters at once.

    Args:
        encoder: from examples to features.
        projector: from features to instance-level representations z.
        cluster_projector: from features to soft assignments.
        local: how a client trains in a round; in CC itself, the only client trains
            without end, so that its optimiser is to be kept.
        num_rounds: rounds.
        instance_temperature: tau_I.
        cluster_temperature: tau_C.
        num_clustered: cluster the first so many rows of the pool alone; the others, as
            STL-10's unlabelled images, come first in every round and by the
            instance-level contrast alone. None is all.

    Returns:
        The method, of one stage, `cluster`, whose embedding is the encoder's features.

    Examples:
        >>> import optax
        >>> from fcjax import models
        >>> from fcjax.data.vectors import vector_view
        >>> local = Local(optax.adam(1e-3), vector_view, keep_optimizer=True)
        >>> encoder = models.encoder(models.MLP((16,)))
        >>> heads = models.projector(8), models.cluster_projector(3)
        >>> method = cc(encoder, *heads, local)
        >>> [stage.name for stage in method.stages]
        ['cluster']
    """
    networks = both_levels(encoder, projector, cluster_projector, local)

    def instance_contrast(online, target, views, mask):
        del target
        z, online = both(networks, online, ("encoder", "projector"), views, mask)
        return losses.nt_xent(*z, temperature=instance_temperature, mask=mask), online

    def contrast(online, target, views, mask):
        del target
        z, c, online = heads(networks, online, views, mask)
        loss = losses.nt_xent(*z, temperature=instance_temperature, mask=mask)
        loss += losses.cluster_nt_xent(*c, temperature=cluster_temperature, mask=mask)
        return loss - total_entropy(c, mask), online

    return one_stage(
        networks,
        instance_contrast,
        contrast,
        local,
        num_rounds=num_rounds,
        num_clustered=num_clustered,
    )


def both_levels(
    encoder: Network, projector: Network, cluster_projector: Network, local: Local
) -> Networks:
    """Returns the networks of a method that contrasts examples and clusters."""
    named = {
        "encoder": encoder,
        "projector": projector,
        "cluster_projector": cluster_projector,
    }
    return Networks(named, local.microbatch)


def one_stage(
    networks: Networks,
    instance_contrast: Contrast,
    contrast: Contrast,
    local: Local,
    *,
    num_rounds: int,
    num_clustered: int | None,
    tracks: tuple[str, ...] = (),
    momentum: Scalar = 0.99,
    average_target: bool = False,
) -> FederatedClustering:
    """Builds a method that learns features and clusters at once.

    Args:
        networks: `encoder`, `projector` and `cluster_projector`.
        instance_contrast: the loss on rows that are not clustered.
        contrast: the loss on those that are.
        local: how a client trains in a round.
        num_rounds, num_clustered: as in `cc`.
        tracks, momentum, average_target: as in `averaging`.
    """
    trains = tuple(networks.named)
    encoder = networks.named["encoder"]

    def init(key, federation: Federation) -> State:
        path_key, head_key = jax.random.split(key)
        x = to_float(federation.pool[:1])
        path = {name: networks.named[name] for name in ("encoder", "projector")}
        parts = initialize(path_key, path, x)
        h, _ = encoder.apply(parts["encoder"], x, train=False)
        head = {"cluster_projector": networks.named["cluster_projector"]}
        parts |= initialize(head_key, head, h)
        return start(parts, local, federation, trains=trains, tracks=tracks)

    passes = (Pass(contrast, is_clustered(num_clustered)),)
    if num_clustered is not None:
        extra = Pass(instance_contrast, lambda rows: rows >= num_clustered)
        passes = (extra, *passes)
    stage = averaging(
        "cluster",
        num_rounds,
        go_on,
        passes,
        local,
        encoder=encoder,
        trains=trains,
        momentum=momentum,
        average_target=average_target,
    )
    assign = assign_by(networks.named["cluster_projector"])
    return assembled(init, (stage,), assign, local, encoder=encoder)


def heads(
    networks: Networks, parts: Parts, views: Views, mask: Bool[Array, "B"]
) -> tuple[Pair, Pair, Parts]:
    """Applies encoder and both heads to both views, in training.

    Returns:
        The representations z, the soft assignments, and the parts with new batch
        statistics.
    """
    h, parts = both(networks, parts, ("encoder",), views, mask)
    z, parts = both(networks, parts, ("projector",), h, mask)
    c, parts = both(networks, parts, ("cluster_projector",), h, mask)
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


def assign_by(
    cluster_projector: Network,
) -> Callable[[Parts, Float[Array, "N D"]], Int[Array, "N"]]:
    """Returns how features get a cluster: that of their largest soft assignment."""

    def assign(parts, h):
        c, _ = cluster_projector.apply(parts["cluster_projector"], h, train=False)
        return jnp.argmax(c, axis=-1).astype(jnp.int32)

    return assign
