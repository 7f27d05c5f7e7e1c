"""Soft assignments that sharpen themselves, as pure functions.

References:
    Xie, Girshick and Farhadi, `Unsupervised Deep Embedding for Clustering Analysis
    <https://arxiv.org/abs/1511.06335>`_ (DEC), ICML 2016, equations 1 to 3.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fcjax.types import Scalar


def student_t(
    z: Float[Array, "N D"],
    centroids: Float[Array, "K D"],
    *,
    dof: Scalar = 1.0,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, "N K"]:
    """How much of every embedding belongs to each centroid, by Student's t.

    In proportion to (1 + d^2 / dof)^(-(dof + 1) / 2) at a distance of d: DEC's equation
    1, where `dof` is its alpha. The gradient holds N K D numbers at once.

    Args:
        z: embeddings.
        centroids: of the clusters.
        dof: degrees of freedom, above 0.
        mask: False at rows that may hold anything; they belong to all clusters alike
            and pass no gradient, to the centroids neither.

    Returns:
        float32 [N, K], q; rows are probabilities, with finite gradients at any distance
        whose square float32 holds, 0 included.

    Examples:
        >>> q = student_t(jnp.array([[0.0]]), jnp.array([[0.0], [1.0]]))
        >>> print((100 * q).round())  # in proportion to 1 / (1 + 0) and 1 / (1 + 1)
        [[67. 33.]]
    """
    z, centroids = z.astype(jnp.float32), centroids.astype(jnp.float32)
    # Differences, not |z|^2 - 2zc + |c|^2, which loses the digits of short distances.
    differences = z[:, None] - centroids[None]
    if mask is not None:
        differences = jnp.where(mask[:, None, None], differences, 0)
    squares = jnp.sum(differences**2, axis=-1)
    # By logarithms: far from all centroids the powers themselves would be 0 / 0.
    return jax.nn.softmax(-(dof + 1) / 2 * jnp.log1p(squares / dof), axis=-1)


def target_distribution(
    q: Float[Array, "N K"], *, mask: Bool[Array, "N"] | None = None
) -> Float[Array, "N K"]:
    """Sharpens soft assignments, and evens out the sizes of the clusters.

    In proportion to q^2 / f, where f is how much of all rows a cluster has: DEC's
    equation 3. It is a target and held fixed: no gradient flows through it.

    Args:
        q: soft assignments of the whole data set, as f is summed over it; rows are
            probabilities.
        mask: False at rows that count nowhere; all rows count by default.

    Returns:
        float32 [N, K], p; rows are probabilities, those of masked rows of no use. A
        cluster that nobody belongs to gets nothing.

    Examples:
        >>> q = jnp.array([[0.75, 0.25], [0.25, 0.75]])
        >>> print((100 * target_distribution(q)).round())
        [[90. 10.]
         [10. 90.]]
    """
    q = jax.lax.stop_gradient(q).astype(jnp.float32)
    counted = q
    if mask is not None:
        q = jnp.where(mask[:, None], q, 1 / q.shape[1])
        counted = jnp.where(mask[:, None], q, 0)
    sizes = counted.sum(axis=0, keepdims=True)
    # In this order, as q^2 may leave float32; q / f is at most 1.
    shares = q * (q / jnp.where(sizes > 0, sizes, 1))
    return shares / shares.sum(axis=1, keepdims=True)


def assignment_kl(
    p: Float[Array, "N K"],
    q: Float[Array, "N K"],
    *,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, ""]:
    """Draws soft assignments towards their target.

    KL(P || Q), the mean over examples of sum_j p_j log(p_j / q_j), where 0 log 0 is 0:
    DEC's equation 2, which prints the sum over examples.

    Args:
        p: the target's rows, probabilities.
        q: soft assignments of the same examples; rows are probabilities.
        mask: False at rows that count nowhere; all rows count by default.

    Returns:
        A float32 scalar of at least 0, but for rounding; 0 with zero gradient where no
        row counts. Zeros of q that p has not count as float32's smallest and pass no
        gradient.

    Examples:
        >>> loss = assignment_kl(jnp.array([[1.0, 0.0]]), jnp.array([[0.5, 0.5]]))
        >>> print(f"{loss:.4f}")  # log 2
        0.6931
    """
    p, q = p.astype(jnp.float32), q.astype(jnp.float32)
    if mask is not None:
        # Rows that are alike have no divergence, and hide a NaN from the gradient.
        p, q = (jnp.where(mask[:, None], rows, 1) for rows in (p, q))
    tiny = jnp.finfo(jnp.float32).tiny
    ratios = jnp.log(jnp.maximum(p, tiny)) - jnp.log(jnp.maximum(q, tiny))
    count = len(p) if mask is None else jnp.maximum(mask.sum(), 1)
    return jnp.sum(p * ratios) / count
