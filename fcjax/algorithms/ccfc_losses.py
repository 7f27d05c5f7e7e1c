"""The losses of a batch by which a client of CCFC trains its siamese network.

See `fcjax.algorithms.ccfc` for the paper.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fcjax import losses
from fcjax.types import Network, PyTree, Scalar


def sample_contrast(
    network: Network,
    variables: PyTree,
    anchor: PyTree,
    views: tuple[Float[Array, "B *F"], Float[Array, "B *F"]],
    mask: Bool[Array, "B"],
    *,
    model_weight: Scalar,
) -> tuple[Float[Array, ""], PyTree]:
    """Returns SimSiam's loss on two views of a batch, with the pull towards the anchor,
    and the variables with new batch statistics; the loss of the first stage."""
    (z1, p1), variables = network.apply(variables, views[0], train=True, mask=mask)
    (z2, p2), variables = network.apply(variables, views[1], train=True, mask=mask)
    (_, g1), _ = network.apply(anchor, views[0], train=False)
    (_, g2), _ = network.apply(anchor, views[1], train=False)
    contrast = (losses.negative_cosine(p1, z2) + losses.negative_cosine(p2, z1)) / 2
    contrast = jnp.sum(contrast, where=mask) / jnp.maximum(mask.sum(), 1)
    pull = losses.model_contrastive(p1, g1, mask=mask)
    pull += losses.model_contrastive(p2, g2, mask=mask)
    return contrast + model_weight * pull / 2, variables


def cluster_contrast(
    network: Network,
    variables: PyTree,
    anchor: PyTree,
    x: Float[Array, "B *F"],
    labels: Int[Array, "B"],
    mask: Bool[Array, "B"],
    *,
    num_clusters: int,
    model_weight: Scalar,
    include_self: bool,
) -> tuple[Float[Array, ""], PyTree]:
    """Returns Eq. 4 on a batch under its pseudo-labels, and the variables with new
    batch statistics; the loss of the second stage."""
    (z, p), variables = network.apply(variables, x, train=True, mask=mask)
    (_, anchors), _ = network.apply(anchor, x, train=False)
    contrast = losses.cluster_contrastive(
        p, z, labels, num_clusters=num_clusters, include_self=include_self, mask=mask
    )
    pull = losses.model_contrastive(p, anchors, mask=mask)
    return contrast + model_weight * pull, variables
