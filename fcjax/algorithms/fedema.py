"""Federated self-supervised learning by BYOL with moving averages of online networks.

FedEMA: Divergence-Aware Federated Self-Supervised Learning
    Weiming Zhuang, Yonggang Wen, Shuai Zhang. ICLR 2022.
    https://arxiv.org/abs/2204.04385
    Authors' code: EasyFL, applications/fedssl, which is followed but for what `fedu`
    says.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fcjax.algorithms.averaging import Local, Personal
from fcjax.algorithms.fedu import byol, divergence
from fcjax.algorithms.parts import Parts
from fcjax.algorithms.two_stage import Clustering
from fcjax.types import FederatedClustering, Network, Scalar


class Memory(NamedTuple):
    """What a client of FedEMA remembers of its last training."""

    online: Parts
    divergence: Float[Array, ""]
    first_divergence: Float[Array, ""]  # 0 before the first training
    number: Int[Array, ""]  # of its round; -2 before the first


def fedema(
    encoder: Network,
    projector: Network,
    predictor: Network,
    clustering: Clustering,
    local: Local,
    *,
    num_rounds: int = 100,
    autoscale: Scalar = 0.7,
    scale: Scalar | None = None,
    momentum: Scalar = 0.99,
) -> FederatedClustering:
    """Builds FedEMA: a client begins with a mean of its own online network and the
    server's, more of its own the farther it has gone.

    Args:
        encoder, projector, predictor, clustering, local, num_rounds, momentum: as in
            `fedu`.
        autoscale: tau; a client's lambda is tau over the first `divergence` that it
            sees, so that its second round begins with a share tau of its own network.
        scale: lambda, the same for all clients and rounds, instead.

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
        >>> encoder = models.encoder(models.MLP((16,)))
        >>> method = fedema(encoder, *heads, clustering, local)
        >>> [stage.name for stage in method.stages]
        ['representation', 'k-means']
    """

    personal = Personal(begin, partial(take_over, autoscale, scale), remember)
    return byol(
        *(encoder, projector, predictor, clustering, local),
        num_rounds=num_rounds,
        momentum=momentum,
        personal=personal,
    )


def begin(sent: Parts) -> Memory:
    """Returns the memory of a client that has not trained."""
    return Memory(sent, jnp.float32(0), jnp.float32(0), jnp.int32(-2))


def take_over(
    autoscale: Scalar,
    scale: Scalar | None,
    sent: Parts,
    memory: Memory,
    number: Int[Array, ""],
) -> Parts:
    """Returns the mean of the client's own parameters and the server's, whose batch
    statistics it takes."""
    seen = memory.first_divergence
    weight = autoscale / jnp.where(seen > 0, seen, 1) if scale is None else scale
    share = jnp.minimum(1, weight * memory.divergence)
    # One that was absent meanwhile, as in the code, goes on from the server's.
    share = jnp.where(memory.number == number - 1, share, 0)

    def mix(own, ours):
        return share * own + (1 - share) * ours

    mixed = jax.tree.map(mix, memory.online["params"], sent["params"])
    return {**sent, "params": mixed}


def remember(
    began: Parts, trained: Parts, memory: Memory, number: Int[Array, ""]
) -> Memory:
    """Returns the online network, and how far its encoder has gone."""
    gone = divergence(began, trained)
    first = jnp.where(memory.first_divergence > 0, memory.first_divergence, gone)
    return Memory(trained, gone, first, number)
