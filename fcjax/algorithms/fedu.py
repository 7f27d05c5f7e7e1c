"""Federated self-supervised learning: FedU, FedEMA, FedSimSiam, FedSimCLR.

FedU: Collaborative Unsupervised Visual Representation Learning from Decentralized Data
    Weiming Zhuang, Xin Gan, Yonggang Wen, Shuai Zhang, Shuai Yi. ICCV 2021.
    https://arxiv.org/abs/2108.06492
    BYOL with divergence-aware predictors.
    Authors' code: EasyFL, applications/fedssl. This module follows the code with one
    difference. In the code, a client's target network is the online network itself in
    the first round. Here, it is a copy. The code leaves out a last batch that is
    smaller than the others: set `Local.drop_last` for this.

BYOL: Grill et al., Bootstrap Your Own Latent, 2020. https://arxiv.org/abs/2006.07733

FedEMA: Divergence-Aware Federated Self-Supervised Learning
    Weiming Zhuang, Yonggang Wen, Shuai Zhang. ICLR 2022.
    https://arxiv.org/abs/2204.04385
    BYOL with moving averages of online networks.
    Authors' code: EasyFL, applications/fedssl, with the same difference.

SimSiam: Exploring Simple Siamese Representation Learning
    Xinlei Chen, Kaiming He. CVPR 2021. https://arxiv.org/abs/2011.10566
    FedSimSiam is SimSiam under federated averaging, a baseline of FedU and FedMCC.

SimCLR: A Simple Framework for Contrastive Learning of Visual Representations
    Ting Chen, Simon Kornblith, Mohammad Norouzi, Geoffrey Hinton. ICML 2020.
    https://arxiv.org/abs/2002.05709
    FedSimCLR is SimCLR under federated averaging, a baseline of FedCA and FedMCC.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fcjax import losses
from fcjax.algorithms.averaging import (
    Contrast,
    Local,
    Networks,
    Parts,
    Personal,
    forward_views,
    part,
    put,
    target_networks,
)
from fcjax.algorithms.fedmcc import Clustering, simclr_contrast, two_stages
from fcjax.types import FederatedClustering, Network, PyTree, Scalar

# --- FedU


class Memory(NamedTuple):
    """The memory of a client of FedU, from its last training."""

    predictor: PyTree
    """The client's predictor after the training."""
    divergence: Float[Array, ""]
    """The distance that training moved the encoder, see `divergence`."""


def fedu(
    settings: Any,
    encoder: Network,
    projector: Network,
    predictor: Network,
    clustering: Clustering,
    local: Local,
) -> FederatedClustering:
    """Builds FedU: BYOL on the clients, with divergence-aware predictors.

    A client downloads the global encoder in every round. It uses the global predictor
    if its last training moved the encoder little. Otherwise it keeps its own predictor.

    Args:
        settings: one value per setting of `fcjax.methods.FedU`. A client uses the
            global predictor if its `divergence` is below the `threshold` mu.
        encoder: maps examples to features.
        projector: maps features to representations. In the paper it is the last part of
            the online encoder.
        predictor: maps representations to predictions.
        clustering: the second stage.
        local: the local training of a client in a round.

    Returns:
        The method, with the stage `representation` and the stages of `clustering`. The
        embedding is the encoder's features. Clusters are -1 in the first stage.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.algorithms.fedmcc import FeatureKMeans, feature_kmeans
        >>> from fcjax.data.augment import vector_view
        >>> from fcjax.methods import FedU
        >>> heads = [nn.byol_head(8, hidden_size=16) for _ in range(2)]
        >>> local = Local(optax.sgd(0.03), vector_view)
        >>> networks = nn.encoder(nn.MLP((16,))), *heads
        >>> clustering = feature_kmeans(FeatureKMeans(num_clusters=3))
        >>> method = fedu(FedU().plain(), *networks, clustering, local)
        >>> [stage.name for stage in method.stages]
        ['representation', 'k-means']
    """
    personal = Personal(begin, partial(take_over, settings.threshold), remember)
    networks = encoder, projector, predictor
    return byol(settings, *networks, clustering, local, personal=personal)


def begin(download: Parts) -> Memory:
    """Returns the memory of a client that has not trained.

    Its divergence makes the client use the global predictor.

    Args:
        download: the networks from the server.

    Returns:
        The memory, with the server's predictor and the divergence -1.
    """
    return Memory(part(download, "predictor"), jnp.float32(-1))  # below any threshold


def take_over(
    threshold: Scalar, download: Parts, memory: Memory, _: Int[Array, ""]
) -> Parts:
    """Returns the global networks, with the global or the client's own predictor.

    Args:
        threshold: mu, at least 0; a client with a smaller divergence uses the global
            predictor.
        download: the networks from the server.
        memory: the memory of the client.

    Returns:
        The networks with which the client begins to train.
    """
    is_near = memory.divergence < threshold
    select = partial(jnp.where, is_near)
    predictor = jax.tree.map(select, part(download, "predictor"), memory.predictor)
    return put(download, "predictor", predictor)


def remember(before: Parts, after: Parts, *_: Any) -> Memory:
    """Returns the predictor after the training, and the divergence of the encoder.

    Args:
        before: the networks before the training.
        after: the networks after the training.

    Returns:
        The new memory of the client.
    """
    return Memory(part(after, "predictor"), divergence(before, after))


def byol(
    settings: Any,
    encoder: Network,
    projector: Network,
    predictor: Network,
    clustering: Clustering,
    local: Local,
    *,
    personal: Personal,
) -> FederatedClustering:
    """Builds BYOL under federated averaging.

    Every client has its own target networks.

    Args:
        settings: one value per setting of the method.
        encoder: maps examples to features.
        projector: maps features to representations.
        predictor: maps representations to predictions.
        clustering: the second stage.
        local: the local training of a client in a round.
        personal: combines the server's networks with the memory of a client.

    Returns:
        The method.
    """
    networks = local.networks(encoder=encoder, projector=projector, predictor=predictor)
    return two_stages(
        *(settings, networks, byol_contrast(networks), clustering, local),
        tracks=("encoder", "projector"),
        momentum=settings.momentum,
        personal=personal,
    )


def byol_contrast(networks: Networks) -> Contrast:
    """Builds the function that computes BYOL's loss of a batch with these networks.

    It is the squared distance, 2 - 2 cos, between the unit prediction of one view and
    the unit target of the other view. The loss sums over both directions.

    Args:
        networks: the networks `encoder`, `projector` and `predictor`.

    Returns:
        The loss of a batch: the mean over the examples, in [0, 8].
    """

    def contrast(online, target, views, mask):
        path = ("encoder", "projector")
        p, online = forward_views(networks, online, (*path, "predictor"), views, mask)
        z, _ = forward_views(
            networks, target_networks(online, target), path, views, mask
        )
        # Padding must not change the gradient, even if its values are NaN.
        (p_a, p_b), (z_a, z_b) = (
            [jnp.where(mask[:, None], x, 0) for x in pair] for pair in (p, z)
        )
        loss = 4 + 2 * (
            losses.negative_cosine(p_a, z_b) + losses.negative_cosine(p_b, z_a)
        )
        return jnp.sum(loss, where=mask) / jnp.maximum(mask.sum(), 1), online

    return contrast


def divergence(before: Parts, after: Parts) -> Float[Array, ""]:
    """Measures how far training moved the encoder.

    It is the L2 norm of the change of a kernel, averaged over the kernels. As in the
    authors' code, these are the kernels of convolutions except shortcuts. An encoder
    without convolutions uses all of its kernels.

    Args:
        before: the networks before the training.
        after: the networks after the training.

    Returns:
        The divergence, at least 0.
    """
    after, before = (parts["params"]["encoder"] for parts in (after, before))
    change = jax.tree.map(jnp.subtract, after, before)
    kernels = {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(change)
        if jax.tree_util.keystr(path[-1:]) == "['kernel']"
    }
    convolutions = [
        leaf
        for path, leaf in kernels.items()
        if leaf.ndim == 4 and "shortcut" not in path
    ]
    norms = [jnp.sqrt(jnp.sum(x**2)) for x in convolutions or kernels.values()]
    return jnp.stack(norms).mean()


# --- FedEMA


class EMAMemory(NamedTuple):
    """The memory of a client of FedEMA, from its last training."""

    online: Parts
    """The client's online networks after the training."""
    divergence: Float[Array, ""]
    """The distance that training moved the encoder, see `divergence`."""
    first_divergence: Float[Array, ""]
    """The divergence of the client's first training; 0 before it."""
    number: Int[Array, ""]
    """The number of the round of the training; -2 before the first one."""


def fedema(
    settings: Any,
    encoder: Network,
    projector: Network,
    predictor: Network,
    clustering: Clustering,
    local: Local,
) -> FederatedClustering:
    """Builds FedEMA: BYOL on the clients, with averages of online networks.

    A client begins a round with a weighted mean of its own online networks and the
    server's. The weight of its own networks, lambda times its `divergence`, increases
    with the distance that its last training moved the encoder.

    Args:
        settings: one value per setting of `fcjax.methods.FedEMA`. The lambda of a
            client is the `autoscale` tau divided by its first `divergence`. So its
            second round begins with a share tau of its own networks. A `scale`, if
            there is one, is the lambda of all clients instead.
        encoder: maps examples to features.
        projector: maps features to representations. In the paper it is the last part of
            the online encoder.
        predictor: maps representations to predictions.
        clustering: the second stage.
        local: the local training of a client in a round.

    Returns:
        The method, with the stage `representation` and the stages of `clustering`. The
        embedding is the encoder's features. Clusters are -1 in the first stage.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.algorithms.fedmcc import FeatureKMeans, feature_kmeans
        >>> from fcjax.data.augment import vector_view
        >>> from fcjax.methods import FedEMA
        >>> heads = [nn.byol_head(8, hidden_size=16) for _ in range(2)]
        >>> local = Local(optax.sgd(0.03), vector_view)
        >>> networks = nn.encoder(nn.MLP((16,))), *heads
        >>> clustering = feature_kmeans(FeatureKMeans(num_clusters=3))
        >>> method = fedema(FedEMA().plain(), *networks, clustering, local)
        >>> [stage.name for stage in method.stages]
        ['representation', 'k-means']
    """
    scale = getattr(settings, "scale", None)  # Replaces tau if it is not None.
    take_over = partial(average_with_global, settings.autoscale, scale)
    personal = Personal(begin_fedema, take_over, remember_divergence)
    networks = encoder, projector, predictor
    return byol(settings, *networks, clustering, local, personal=personal)


def begin_fedema(download: Parts) -> EMAMemory:
    """Returns the memory of a client that has not trained.

    Args:
        download: the networks from the server.

    Returns:
        The memory, with the server's networks. Both divergences are 0, and the number
        of the round is -2.
    """
    return EMAMemory(download, jnp.float32(0), jnp.float32(0), jnp.int32(-2))


def average_with_global(
    autoscale: Scalar,
    scale: Scalar | None,
    download: Parts,
    memory: EMAMemory,
    number: Int[Array, ""],
) -> Parts:
    """Averages the parameters of the client's own networks and of the server's.

    Args:
        autoscale: tau.
        scale: lambda of all clients; None computes it from tau.
        download: the networks from the server.
        memory: the memory of the client.
        number: the number of the round in its stage, from 0.

    Returns:
        The networks with which the client begins to train, with the batch statistics of
        the server.
    """
    first = memory.first_divergence
    weight = autoscale / jnp.where(first > 0, first, 1) if scale is None else scale
    share = jnp.minimum(1, weight * memory.divergence)
    # As in the code, a client that missed the last round uses the server's networks.
    share = jnp.where(memory.number == number - 1, share, 0)

    def mix(local, received):
        return share * local + (1 - share) * received

    mean = jax.tree.map(mix, memory.online["params"], download["params"])
    return {**download, "params": mean}


def remember_divergence(
    before: Parts, after: Parts, memory: EMAMemory, number: Int[Array, ""]
) -> EMAMemory:
    """Returns the online networks after the training, and the encoder's divergence.

    Args:
        before: the networks before the training.
        after: the networks after the training.
        memory: the memory of the client before the round.
        number: the number of the round in its stage, from 0.

    Returns:
        The new memory of the client.
    """
    value = divergence(before, after)
    first = jnp.where(memory.first_divergence > 0, memory.first_divergence, value)
    return EMAMemory(after, value, first, number)


# --- FedSimSiam


def fedsimsiam(
    settings: Any,
    encoder: Network,
    projector: Network,
    predictor: Network,
    clustering: Clustering,
    local: Local,
) -> FederatedClustering:
    """Builds FedSimSiam: SimSiam on the clients under federated averaging.

    The loss pulls the prediction of each view towards the projection of the other view.

    Args:
        settings: one value per setting of `fcjax.methods.FedSimSiam`.
        encoder: maps examples to features.
        projector: maps features to projections z.
        predictor: maps projections to predictions p.
        clustering: the second stage.
        local: the local training of a client in a round.

    Returns:
        The method, with the stage `representation` and the stages of `clustering`. The
        loss is in [-1, 1]. The embedding is the encoder's features. Clusters are -1 in
        the first stage.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.algorithms.fedmcc import FeatureKMeans, feature_kmeans
        >>> from fcjax.data.augment import vector_view
        >>> from fcjax.methods import FedSimSiam
        >>> heads = nn.simsiam_projector(8), nn.simsiam_predictor(8)
        >>> local = Local(optax.sgd(0.03), vector_view)
        >>> networks = nn.encoder(nn.MLP((16,))), *heads
        >>> clustering = feature_kmeans(FeatureKMeans(num_clusters=3))
        >>> method = fedsimsiam(FedSimSiam().plain(), *networks, clustering, local)
        >>> [stage.name for stage in method.stages]
        ['representation', 'k-means']
    """
    networks = local.networks(encoder=encoder, projector=projector, predictor=predictor)

    def contrast(online, _, views, mask):
        z, online = forward_views(
            networks, online, ("encoder", "projector"), views, mask
        )
        z_a, z_b = (jnp.where(mask[:, None], x, 0) for x in z)
        p, online = forward_views(networks, online, ("predictor",), z, mask)
        p_a, p_b = (jnp.where(mask[:, None], x, 0) for x in p)
        loss = losses.negative_cosine(p_a, z_b) + losses.negative_cosine(p_b, z_a)
        return jnp.sum(loss, where=mask) / (2 * jnp.maximum(mask.sum(), 1)), online

    return two_stages(settings, networks, contrast, clustering, local)


# --- FedSimCLR


def fedsimclr(
    settings: Any,
    encoder: Network,
    projector: Network,
    clustering: Clustering,
    local: Local,
) -> FederatedClustering:
    """Builds FedSimCLR: SimCLR on the clients under federated averaging.

    The loss contrasts the two views of an example with the views of other examples. It
    is FedMCC's first stage without target networks.

    Args:
        settings: one value per setting of `fcjax.methods.FedSimCLR`.
        encoder: maps examples to features.
        projector: maps features to representations z.
        clustering: the second stage.
        local: the local training of a client in a round.

    Returns:
        The method, with the stage `representation` and the stages of `clustering`. The
        embedding is the encoder's features. Clusters are -1 in the first stage.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.algorithms.fedmcc import FeatureKMeans, feature_kmeans
        >>> from fcjax.data.augment import vector_view
        >>> from fcjax.methods import FedSimCLR
        >>> networks = nn.encoder(nn.MLP((16,))), nn.projector(8)
        >>> local = Local(optax.adam(1e-3), vector_view)
        >>> clustering = feature_kmeans(FeatureKMeans(num_clusters=3))
        >>> method = fedsimclr(FedSimCLR().plain(), *networks, clustering, local)
        >>> [stage.name for stage in method.stages]
        ['representation', 'k-means']
    """
    networks = local.networks(encoder=encoder, projector=projector)
    contrast = simclr_contrast(networks, temperature=settings.instance_temperature)
    return two_stages(settings, networks, contrast, clustering, local)
