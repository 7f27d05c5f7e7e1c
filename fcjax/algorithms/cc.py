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
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fcjax import losses
from fcjax.algorithms.averaging import Contrast, Local, Pass, Setup, averaging, start
from fcjax.algorithms.features import assembled
from fcjax.algorithms.parts import Networks, Parts, Views, both, initialize, merge, part
from fcjax.data.augment import to_float
from fcjax.types import FederatedClustering, Federation, Network, PRNGKey, Scalar, State

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
    networks = local.networks(
        encoder=encoder, projector=projector, cluster_projector=cluster_projector
    )

    def contrast(online, _, views, mask):
        z, c, online = heads(networks, online, views, mask)
        loss = losses.nt_xent(*z, temperature=instance_temperature, mask=mask)
        loss += losses.cluster_nt_xent(*c, temperature=cluster_temperature, mask=mask)
        return loss - total_entropy(c, mask), online

    extra = simclr_contrast(networks, temperature=instance_temperature)
    passes = passes_of(contrast, extra, num_clustered)
    return one_stage(Setup(networks, tuple(networks.named), passes, local, num_rounds))


def simclr_contrast(networks: Networks, *, temperature: Scalar) -> Contrast:
    """Returns the instance-level loss: an example's views against those of others."""

    def contrast(online, _, views, mask):
        z, online = both(networks, online, ("encoder", "projector"), views, mask)
        return losses.nt_xent(*z, temperature=temperature, mask=mask), online

    return contrast


def passes_of(
    contrast: Contrast, extra: Contrast, num_clustered: int | None
) -> tuple[Pass, ...]:
    """Returns the epochs by the one loss on rows that are clustered, and before them by
    the other on those that are not."""
    clustered = Pass(contrast, is_clustered(num_clustered))
    if num_clustered is None:
        return (clustered,)
    return Pass(extra, lambda rows: rows >= num_clustered), clustered


def one_stage(setup: Setup) -> FederatedClustering:
    """Builds a method that learns features and clusters at once, by `encoder`,
    `projector` and `cluster_projector`."""
    init, stages = partial(initial_state, setup), (averaging("cluster", setup),)
    encoder, head = (setup.networks.named[x] for x in ("encoder", "cluster_projector"))
    return assembled(encoder, setup.local, init, stages, partial(assign, head))


def initial_state(setup: Setup, key: PRNGKey, federation: Federation) -> State:
    """Returns the state before the first round: see `start_with_head`."""
    path_key, head_key = jax.random.split(key)
    named = setup.networks.named
    path = {name: named[name] for name in ("encoder", "projector")}
    parts = initialize(path_key, path, to_float(federation.pool[:1]))
    return start_with_head(setup, head_key, parts, federation)


def start_with_head(
    setup: Setup,
    key: PRNGKey,
    parts: Parts,
    federation: Federation,
    num_rounds: Int[Array, ""] | int = 0,
) -> State:
    """Returns the state in which a stage begins with a new `cluster_projector`, which
    takes the features of the encoder."""
    named, x = setup.networks.named, to_float(federation.pool[:1])
    h, _ = named["encoder"].apply(part(parts, "encoder"), x, train=False)
    head = initialize(key, {"cluster_projector": named["cluster_projector"]}, h)
    return start(setup, merge(parts, head), federation, num_rounds)


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


def assign(
    cluster_projector: Network, parts: Parts, h: Float[Array, "N D"]
) -> Int[Array, "N"]:
    """Returns the clusters of features: those of their largest soft assignments."""
    variables = part(parts, "cluster_projector")
    c, _ = cluster_projector.apply(variables, h, train=False)
    return jnp.argmax(c, axis=-1).astype(jnp.int32)
