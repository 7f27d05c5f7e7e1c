"""Contrast between two views, of examples and of clusters, as pure functions.

References:
    Li et al., `Contrastive Clustering <https://arxiv.org/abs/2009.09687>`_ (CC), AAAI
    2021, sections 3.2 and 3.3; code Yunfan-Li/Contrastive-Clustering.
    Chen et al., `A Simple Framework for Contrastive Learning of Visual Representations
    <https://arxiv.org/abs/2002.05709>`_ (SimCLR), ICML 2020, section 2.1.
    Miao and Koyuncu, `Federated Momentum Contrastive Clustering
    <https://arxiv.org/abs/2206.05093>`_ (FedMCC), 2022, equations 1 to 3.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fcjax.losses.contrastive import normalize
from fcjax.types import Scalar


def nt_xent(
    z_a: Float[Array, "B D"],
    z_b: Float[Array, "B D"],
    *,
    temperature: Scalar,
    mask: Bool[Array, "B"] | None = None,
) -> Float[Array, ""]:
    """Tells the other view of an example from all views of the others.

    The mean, over 2B anchors, of the cross-entropy of the positive pair among the
    2B - 1 other rows of both views, by cosine similarity over `temperature`: CC's
    equations 2 and 3, as in its code. FedMCC's equation 1 takes the anchors of the
    first view alone and leaves the positive out of the denominator; its loss can then
    be negative.

    Args:
        z_a: one view of each example; rows of any length.
        z_b: the other view, in the same order.
        temperature: above 0.
        mask: False at examples that count nowhere, neither as anchors nor as negatives;
            all count by default.

    Returns:
        A float32 scalar of at least 0; 0 with zero gradient where fewer than two
        examples count.

    Examples:
        >>> z = jnp.eye(2)
        >>> print(f"{nt_xent(z, z, temperature=1.0):.4f}")  # log(e + 2) - 1
        0.5514
    """
    if mask is None:
        mask = jnp.ones(len(z_a), bool)
    z = jnp.concatenate([z_a, z_b]).astype(jnp.float32)
    counted = jnp.concatenate([mask, mask])
    # A zero row adds nothing to any gradient, and hides a NaN from it.
    z = normalize(jnp.where(counted[:, None], z, 0))
    similarity = jnp.matmul(z, z.T, precision=jax.lax.Precision.HIGHEST) / temperature
    row, column = jnp.arange(len(z))[:, None], jnp.arange(len(z))[None]
    # Not -inf: where nothing counts, the gradient would be inf - inf.
    lowest = jnp.finfo(jnp.float32).min
    others = jnp.where(counted[None] & (row != column), similarity, lowest)
    among = jax.nn.logsumexp(others, axis=1)
    # Out of the same product, so that a positive alone is told without any loss.
    paired = column == (row + len(z_a)) % len(z)
    positive = jnp.sum(similarity, axis=1, where=paired)
    total = jnp.sum(among - positive, where=counted)
    return total / jnp.maximum(counted.sum(), 1)


def cluster_nt_xent(
    c_a: Float[Array, "B K"],
    c_b: Float[Array, "B K"],
    *,
    temperature: Scalar,
    mask: Bool[Array, "B"] | None = None,
) -> Float[Array, ""]:
    """Tells a cluster of one view from the other clusters of both.

    `nt_xent` of the columns of soft assignments, each of which says how much every
    example of the batch belongs to a cluster: CC's equations 4 and 5, without its
    entropy, which is `cluster_entropy`.

    Args:
        c_a: soft assignments of one view; rows are probabilities.
        c_b: those of the other view, in the same order.
        temperature: above 0.
        mask: False at examples that count nowhere; all count by default.

    Returns:
        A float32 scalar of at least 0; log(2K - 1) where all clusters are alike.

    Examples:
        >>> c = jnp.full((4, 2), 0.5)
        >>> print(f"{cluster_nt_xent(c, c, temperature=1.0):.4f}")  # log 3
        1.0986
    """
    if mask is not None:
        c_a, c_b = (jnp.where(mask[:, None], c, 0) for c in (c_a, c_b))
    return nt_xent(c_a.T, c_b.T, temperature=temperature)


def cluster_entropy(
    c: Float[Array, "B K"], *, mask: Bool[Array, "B"] | None = None
) -> Float[Array, ""]:
    """How evenly a batch spreads over the clusters: the entropy of its mean assignment.

    FedMCC's equation 3. It is to be maximised, so a loss subtracts it, as CC's code
    does; FedMCC's equations 2, 6 and 9 print a plus, which would reward collapse.

    Args:
        c: soft assignments; rows are probabilities.
        mask: False at examples that do not count; all count by default.

    Returns:
        A float32 scalar in nats, from 0 (one cluster has all) to log K (all are equal);
        0 with zero gradient where no example counts.

    Examples:
        >>> print(f"{cluster_entropy(jnp.eye(2)):.4f}")  # log 2: each has one example
        0.6931
    """
    c = c.astype(jnp.float32)
    if mask is not None:
        c = jnp.where(mask[:, None], c, 0)
    shares = c.sum(axis=0)
    total = shares.sum()
    shares /= jnp.where(total > 0, total, 1)
    # The logarithm's derivative at a share of 0 would be infinite.
    tiny = jnp.finfo(jnp.float32).tiny
    return -jnp.sum(shares * jnp.log(jnp.maximum(shares, tiny)))
