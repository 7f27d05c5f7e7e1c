"""Agreement of two networks on the cluster of an example, as a pure function.

References:
    Lubana, Tang, Kawsar, Dick and Mathur, `Orchestra
    <https://arxiv.org/abs/2205.11506>`_, ICML 2022; code akhilmathurs/orchestra.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fcjax.losses.contrastive import normalize
from fcjax.types import Scalar


def cluster_agreement(
    projections: Float[Array, "B D"],
    target_projections: Float[Array, "B D"],
    centroids: Float[Array, "K D"],
    *,
    temperature: Scalar = 0.1,
    mask: Bool[Array, "B"] | None = None,
) -> Float[Array, ""]:
    """How well projections tell the soft cluster that a target has for an example.

    The cross-entropy of softmax(c_k . v / T) against softmax(c_k . u / T), v and u the
    projections and the target's at unit length, the mean over the batch. No gradient
    flows through the target's or the centroids.

    Args:
        projections: of the network that is trained.
        target_projections: of the other view, in the same order.
        centroids: of the clusters, in Orchestra of unit length.
        temperature: T.
        mask: False at rows that count nowhere; all rows count by default.

    Returns:
        A float32 scalar of at least the mean entropy of the target's assignments, which
        it has where both agree; 0 with zero gradient where no row counts.

    Examples:
        >>> centroids, z = jnp.eye(2), jnp.array([[1.0, 1.0]])
        >>> print(f"{cluster_agreement(z, z, centroids):.3f}")  # log 2
        0.693
    """
    kept = jnp.ones(len(projections), bool) if mask is None else mask
    v, u = (
        normalize(jnp.where(kept[:, None], x.astype(jnp.float32), 0))
        for x in (projections, jax.lax.stop_gradient(target_projections))
    )
    directions = jax.lax.stop_gradient(centroids.astype(jnp.float32)).T

    def logits(z):
        cosines = jnp.matmul(z, directions, precision=jax.lax.Precision.HIGHEST)
        return cosines / temperature

    target, own = jax.nn.softmax(logits(u)), jax.nn.log_softmax(logits(v))
    each = -jnp.sum(target * own, axis=1)
    return jnp.sum(each, where=kept) / jnp.maximum(kept.sum(), 1)
