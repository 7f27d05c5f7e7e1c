"""Federated self-supervised learning by BYOL with divergence-aware predictors.

FedU: Collaborative Unsupervised Visual Representation Learning from Decentralized Data
    Weiming Zhuang, Xin Gan, Yonggang Wen, Shuai Zhang, Shuai Yi. ICCV 2021.
    https://arxiv.org/abs/2108.06492
    Authors' code: EasyFL, applications/fedssl, which is followed, but that a client's
    target network is a copy from the beginning: there it is the online network itself
    in the first round. It leaves out a last batch that is not full: `Local.drop_last`.

BYOL: Grill et al., Bootstrap Your Own Latent, 2020. https://arxiv.org/abs/2006.07733
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fcjax import losses
from fcjax.algorithms.averaging import Contrast, Local, Personal
from fcjax.algorithms.parts import Networks, Parts, both, part, put, target_of
from fcjax.algorithms.two_stage import Clustering, two_stages
from fcjax.types import FederatedClustering, Network, PyTree, Scalar


class Memory(NamedTuple):
    """What a client of FedU remembers of its last training."""

    predictor: PyTree
    divergence: Float[Array, ""]


def fedu(
    encoder: Network,
    projector: Network,
    predictor: Network,
    clustering: Clustering,
    local: Local,
    *,
    num_rounds: int = 100,
    threshold: Scalar = 0.4,
    momentum: Scalar = 0.99,
) -> FederatedClustering:
    """Builds FedU: BYOL on the clients, which keep their own predictor where their
    encoder has gone far.

    Args:
        encoder: from examples to features.
        projector: from features to representations, the last part of the online
            encoder.
        predictor: from representations to predictions.
        clustering: the second stage.
        local: how a client trains in a round.
        num_rounds: of the first stage.
        threshold: mu; a client takes over the global predictor if its `divergence` was
            below it.
        momentum: m of the target encoder.

    Returns:
        The method, as `two_stages`.

    Examples:
        >>> import optax
        >>> from fcjax import models
        >>> from fcjax.algorithms.two_stage import feature_kmeans
        >>> from fcjax.data.vectors import vector_view
        >>> heads = [models.byol_head(8, hidden_size=16) for _ in range(2)]
        >>> local = Local(optax.sgd(0.03), vector_view)
        >>> clustering = feature_kmeans(num_clusters=3)
        >>> method = fedu(models.encoder(models.MLP((16,))), *heads, clustering, local)
        >>> [stage.name for stage in method.stages]
        ['representation', 'k-means']
    """

    personal = Personal(begin, partial(take_over, threshold), remember)
    return byol(
        *(encoder, projector, predictor, clustering, local),
        num_rounds=num_rounds,
        momentum=momentum,
        personal=personal,
    )


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
    encoder: Network,
    projector: Network,
    predictor: Network,
    clustering: Clustering,
    local: Local,
    **options: Any,
) -> FederatedClustering:
    """Builds BYOL on the clients under federated averaging, the target encoders being
    their own, with what else `two_stages` takes."""
    networks = local.networks(encoder=encoder, projector=projector, predictor=predictor)
    stages = networks, byol_contrast(networks), clustering, local
    return two_stages(*stages, tracks=("encoder", "projector"), **options)


def byol_contrast(networks: Networks) -> Contrast:
    """Returns BYOL's loss of a batch: the squared distance of a view's unit prediction
    to the other view's unit target, 2 - 2 cos, summed over both directions."""

    def contrast(online, target, views, mask):
        path = ("encoder", "projector")
        p, online = both(networks, online, (*path, "predictor"), views, mask)
        z, _ = both(networks, target_of(online, target), path, views, mask)
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
    all kernels where an encoder has no convolution."""
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
