"""An auto-encoder whose codes lie near their centroids, as a pure function.

References:
    Yang et al., `Towards K-means-friendly Spaces: Simultaneous Deep Learning and
    Clustering <https://arxiv.org/abs/1610.04794>`_ (DCN), ICML 2017, equation 5; code
    boyangumn/DCN-New.
    Yan et al., `Federated deep clustering with GAN-based data synthesis
    <https://arxiv.org/abs/2211.16965>`_ (SDA-FDC), 2022, equation 3.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fcjax.types import Scalar


def deep_kmeans(
    x: Float[Array, "B F"],
    reconstructions: Float[Array, "B F"],
    z: Float[Array, "B D"],
    centroids: Float[Array, "B D"],
    *,
    cluster_weight: Scalar,
    mask: Bool[Array, "B"] | None = None,
) -> Float[Array, ""]:
    """Reconstructs examples from codes, and draws each code to its centroid.

    The mean over examples of |x - reconstruction|^2 + cluster_weight / 2 |z - c|^2,
    squares summed over features: DCN's equation 5 with squared errors, SDA-FDC's
    equation 3, where `cluster_weight` is lambda. The code of DCN weighs the
    reconstruction instead, by lbd, and has no half: its loss is lbd times this one at a
    `cluster_weight` of 2 / lbd. No gradient flows through `centroids`.

    Args:
        x: examples, flat.
        reconstructions: the decoder's outputs.
        z: codes, the encoder's outputs.
        centroids: in row i the centroid that example i is assigned to.
        cluster_weight: at least 0; 0 is the auto-encoder's loss alone.
        mask: False at examples that count nowhere; all count by default.

    Returns:
        A float32 scalar of at least 0; 0 with zero gradient where no example counts.

    Examples:
        >>> x, reconstruction = jnp.array([[1.0, 2.0]]), jnp.array([[1.0, 1.0]])
        >>> z, centroid = jnp.array([[3.0]]), jnp.array([[1.0]])
        >>> loss = deep_kmeans(x, reconstruction, z, centroid, cluster_weight=0.5)
        >>> print(f"{loss:.2f}")  # 1 + 0.5 / 2 * 4
        2.00
    """
    if mask is None:
        mask = jnp.ones(len(x), bool)
    reconstruction = _squared_distances(x, reconstructions, mask)
    clustering = _squared_distances(z, jax.lax.stop_gradient(centroids), mask)
    losses = reconstruction + cluster_weight / 2 * clustering
    return losses.sum() / jnp.maximum(mask.sum(), 1)


def _squared_distances(
    a: Float[Array, "B D"], b: Float[Array, "B D"], mask: Bool[Array, "B"]
) -> Float[Array, "B"]:
    differences = a.astype(jnp.float32) - b.astype(jnp.float32)
    # Cleared before they are squared, so that a NaN reaches no gradient.
    return jnp.sum(jnp.where(mask[:, None], differences, 0) ** 2, axis=-1)
