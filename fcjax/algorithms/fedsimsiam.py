"""SimSiam on the clients, averaged by the server: a baseline of FedU and FedMCC.

SimSiam: Exploring Simple Siamese Representation Learning
    Xinlei Chen, Kaiming He. CVPR 2021. https://arxiv.org/abs/2011.10566
"""

import jax.numpy as jnp

from fcjax import losses
from fcjax.algorithms.averaging import Local
from fcjax.algorithms.parts import both
from fcjax.algorithms.two_stage import Clustering, two_stages
from fcjax.types import FederatedClustering, Network


def fedsimsiam(
    encoder: Network,
    projector: Network,
    predictor: Network,
    clustering: Clustering,
    local: Local,
    *,
    num_rounds: int = 100,
) -> FederatedClustering:
    """Builds FedSimSiam: each view's prediction is drawn to the other's projection.

    Args:
        encoder, projector, predictor: from examples to features, to projections z, to
            predictions p.
        clustering: the second stage.
        local: how a client trains in a round.
        num_rounds: of the first stage.

    Returns:
        The method, as `two_stages`; its loss lies in [-1, 1].

    Examples:
        >>> import optax
        >>> from fcjax import models
        >>> from fcjax.algorithms.two_stage import feature_kmeans
        >>> from fcjax.data.vectors import vector_view
        >>> heads = models.simsiam_projector(8), models.simsiam_predictor(8)
        >>> local = Local(optax.sgd(0.03), vector_view)
        >>> clustering = feature_kmeans(num_clusters=3)
        >>> encoder = models.encoder(models.MLP((16,)))
        >>> method = fedsimsiam(encoder, *heads, clustering, local)
        >>> [stage.name for stage in method.stages]
        ['representation', 'k-means']
    """
    networks = local.networks(encoder=encoder, projector=projector, predictor=predictor)

    def contrast(online, _, views, mask):
        z, online = both(networks, online, ("encoder", "projector"), views, mask)
        z_a, z_b = (jnp.where(mask[:, None], x, 0) for x in z)
        p, online = both(networks, online, ("predictor",), z, mask)
        p_a, p_b = (jnp.where(mask[:, None], x, 0) for x in p)
        loss = losses.negative_cosine(p_a, z_b) + losses.negative_cosine(p_b, z_a)
        return jnp.sum(loss, where=mask) / (2 * jnp.maximum(mask.sum(), 1)), online

    return two_stages(networks, contrast, clustering, local, num_rounds=num_rounds)
