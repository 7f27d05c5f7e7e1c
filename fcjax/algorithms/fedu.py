"""Federated self-supervised learning: FedU, FedEMA, FedSimSiam, FedSimCLR.

Federated self-supervised learning by BYOL with divergence-aware predictors.

FedU: Collaborative Unsupervised Visual Representation Learning from Decentralized Data
    Weiming Zhuang, Xin Gan, Yonggang Wen, Shuai Zhang, Shuai Yi. ICCV 2021.
    https://arxiv.org/abs/2108.06492
    Authors' code: EasyFL, applications/fedssl, which is followed, but that a client's
    target network is a copy from the beginning: there it is the online network itself
    in the first round. It leaves out a last batch that is not full: `Local.drop_last`.

BYOL: Grill et al., Bootstrap Your Own Latent, 2020. https://arxiv.org/abs/2006.07733

Federated self-supervised learning by BYOL with moving averages of online networks.

FedEMA: Divergence-Aware Federated Self-Supervised Learning
    Weiming Zhuang, Yonggang Wen, Shuai Zhang. ICLR 2022.
    https://arxiv.org/abs/2204.04385
    Authors' code: EasyFL, applications/fedssl, which is followed but for what `fedu`
    says.

SimSiam on the clients, averaged by the server: a baseline of FedU and FedMCC.

SimSiam: Exploring Simple Siamese Representation Learning
    Xinlei Chen, Kaiming He. CVPR 2021. https://arxiv.org/abs/2011.10566

SimCLR on the clients, averaged by the server: a baseline of FedCA and FedMCC.

SimCLR: A Simple Framework for Contrastive Learning of Visual Representations
    Ting Chen, Simon Kornblith, Mohammad Norouzi, Geoffrey Hinton. ICML 2020.
    https://arxiv.org/abs/2002.05709
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
    """What a client of FedU remembers of its last training."""

    predictor: PyTree
    divergence: Float[Array, ""]


def fedu(
    settings: Any,
    encoder: Network,
    projector: Network,
    predictor: Network,
    clustering: Clustering,
    local: Local,
) -> FederatedClustering:
    """Builds FedU: BYOL on the clients, which keep their own predictor where their
    encoder has gone far.

    Args:
        settings: an `fcjax.methods.FedU` with one value per setting. A client takes
            over the global predictor if its `divergence` was below the `threshold` mu.
        encoder: from examples to features.
        projector: from features to representations, the last part of the online
            encoder.
        predictor: from representations to predictions.
        clustering: the second stage.
        local: how a client trains in a round.

    Returns:
        The method, as `two_stages`.

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


def begin(sent: Parts) -> Memory:
    """Returns what makes a client that has not trained take over the server's."""
    return Memory(part(sent, "predictor"), jnp.float32(-1))  # below any threshold


def take_over(
    threshold: Scalar, sent: Parts, memory: Memory, _: Int[Array, ""]
) -> Parts:
    """Returns the server's parts, or all but its predictor."""
    is_near = memory.divergence < threshold
    ours, own = part(sent, "predictor"), memory.predictor
    return put(sent, "predictor", jax.tree.map(partial(jnp.where, is_near), ours, own))


def remember(began: Parts, trained: Parts, *_: Any) -> Memory:
    """Returns the predictor, and how far the encoder has gone."""
    return Memory(part(trained, "predictor"), divergence(began, trained))


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
    """Builds BYOL on the clients under federated averaging, the target encoders being
    their own.
    """
    networks = local.networks(encoder=encoder, projector=projector, predictor=predictor)
    return two_stages(
        *(settings, networks, byol_contrast(networks), clustering, local),
        tracks=("encoder", "projector"),
        momentum=settings.momentum,
        personal=personal,
    )


def byol_contrast(networks: Networks) -> Contrast:
    """Returns BYOL's loss of a batch: the squared distance of a view's unit prediction
    to the other view's unit target, 2 - 2 cos, summed over both directions.
    """

    def contrast(online, target, views, mask):
        path = ("encoder", "projector")
        p, online = forward_views(networks, online, (*path, "predictor"), views, mask)
        z, _ = forward_views(
            networks, target_networks(online, target), path, views, mask
        )
        # A row that does not count must not reach the gradient, whatever it holds.
        (p_a, p_b), (z_a, z_b) = (
            [jnp.where(mask[:, None], x, 0) for x in pair] for pair in (p, z)
        )
        loss = 4 + 2 * (
            losses.negative_cosine(p_a, z_b) + losses.negative_cosine(p_b, z_a)
        )
        return jnp.sum(loss, where=mask) / jnp.maximum(mask.sum(), 1), online

    return contrast


def divergence(began: Parts, ended: Parts) -> Float[Array, ""]:
    """Returns how far training has moved the encoder: the L2 norm of the difference of
    a convolution's kernel, averaged over those that are no shortcut, as in the code; of
    all kernels where an encoder has no convolution.
    """
    ended, began = (parts["params"]["encoder"] for parts in (ended, began))
    moved = jax.tree.map(jnp.subtract, ended, began)
    kernels = {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(moved)
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
    """What a client of FedEMA remembers of its last training."""

    online: Parts
    divergence: Float[Array, ""]
    first_divergence: Float[Array, ""]  # 0 before the first training
    number: Int[Array, ""]  # of its round; -2 before the first


def fedema(
    settings: Any,
    encoder: Network,
    projector: Network,
    predictor: Network,
    clustering: Clustering,
    local: Local,
) -> FederatedClustering:
    """Builds FedEMA: a client begins with a mean of its own online network and the
    server's, more of its own the farther it has gone.

    Args:
        settings: an `fcjax.methods.FedEMA` with one value per setting. A client's
            lambda is the `autoscale` tau over the first `divergence` that it sees, so
            that its second round begins with a share tau of its own network. A `scale`
            is a lambda that is the same for all clients and rounds, instead.
        encoder, projector, predictor, clustering, local: as in `fedu`.

    Returns:
        The method, as `two_stages`.

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
    scale = getattr(settings, "scale", None)  # in place of tau, where it is given
    take_over = partial(average_with_global, settings.autoscale, scale)
    personal = Personal(begin_fedema, take_over, remember_divergence)
    networks = encoder, projector, predictor
    return byol(settings, *networks, clustering, local, personal=personal)


def begin_fedema(sent: Parts) -> EMAMemory:
    """Returns the memory of a client that has not trained."""
    return EMAMemory(sent, jnp.float32(0), jnp.float32(0), jnp.int32(-2))


def average_with_global(
    autoscale: Scalar,
    scale: Scalar | None,
    sent: Parts,
    memory: EMAMemory,
    number: Int[Array, ""],
) -> Parts:
    """Returns the mean of the client's own parameters and the server's, whose batch
    statistics it takes.
    """
    seen = memory.first_divergence
    weight = autoscale / jnp.where(seen > 0, seen, 1) if scale is None else scale
    share = jnp.minimum(1, weight * memory.divergence)
    # One that was absent meanwhile, as in the code, goes on from the server's.
    share = jnp.where(memory.number == number - 1, share, 0)

    def mix(own, ours):
        return share * own + (1 - share) * ours

    mixed = jax.tree.map(mix, memory.online["params"], sent["params"])
    return {**sent, "params": mixed}


def remember_divergence(
    began: Parts, trained: Parts, memory: EMAMemory, number: Int[Array, ""]
) -> EMAMemory:
    """Returns the online network, and how far its encoder has gone."""
    gone = divergence(began, trained)
    first = jnp.where(memory.first_divergence > 0, memory.first_divergence, gone)
    return EMAMemory(trained, gone, first, number)


# --- FedSimSiam


def fedsimsiam(
    settings: Any,
    encoder: Network,
    projector: Network,
    predictor: Network,
    clustering: Clustering,
    local: Local,
) -> FederatedClustering:
    """Builds FedSimSiam: each view's prediction is drawn to the other's projection.

    Args:
        settings: an `fcjax.methods.FedSimSiam` with one value per setting.
        encoder, projector, predictor: from examples to features, to projections z, to
            predictions p.
        clustering: the second stage.
        local: how a client trains in a round.

    Returns:
        The method, as `two_stages`; its loss lies in [-1, 1].

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
    """Builds FedSimCLR: two views of an example against those of the others.

    FedMCC's first stage without its target network.

    Args:
        settings: an `fcjax.methods.FedSimCLR` with one value per setting.
        encoder, projector: from examples to features, to representations z.
        clustering: the second stage.
        local: how a client trains in a round.

    Returns:
        The method, as `two_stages`.

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
