"""Losses of deep clustering, as pure functions: DCN, DEC and self-expression.

* DCN: `deep_kmeans`, the loss of an auto-encoder whose codes lie near their centroids.
* DEC: `student_t`, `target_distribution` and `assignment_kl`, soft assignments that are
  trained towards a sharpened version of themselves.
* Self-expression: `off_diagonal`, `self_expression`, `coefficient_penalty` and
  `locality_alignment`. Each sample is a linear combination of the other samples.

Samples are rows: Z has shape [N, D], and row i of C [N, N] holds the coefficients that
express sample i by the other samples. FDSC has samples as columns and writes Z R, so
its R is C^T.

References:
    Yang et al., `Towards K-means-friendly Spaces: Simultaneous Deep Learning and
    Clustering <https://arxiv.org/abs/1610.04794>`_ (DCN), ICML 2017, equation 5; code
    boyangumn/DCN-New.
    Yan et al., `Federated deep clustering with GAN-based data synthesis
    <https://arxiv.org/abs/2211.16965>`_ (SDA-FDC), 2022, equation 3.
    Xie, Girshick and Farhadi, `Unsupervised Deep Embedding for Clustering Analysis
    <https://arxiv.org/abs/1511.06335>`_ (DEC), ICML 2016, equations 1 to 3.
    Zhang et al., `Federated Deep Subspace Clustering
    <https://arxiv.org/abs/2501.00230>`_ (FDSC), 2025, equations 4 and 8.
    Ji et al., `Deep Subspace Clustering Networks <https://arxiv.org/abs/1709.02508>`_
    (DSC-Net), NIPS 2017; code XifengGuo/DSC-Net.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fcjax.shapes import checked
from fcjax.types import Scalar

# --- DCN


@checked
def deep_kmeans(
    x: Float[Array, "B F"],
    reconstructions: Float[Array, "B F"],
    z: Float[Array, "B D"],
    centroids: Float[Array, "B D"],
    *,
    cluster_weight: Scalar,
    mask: Bool[Array, "B"] | None = None,
) -> Float[Array, ""]:
    """Computes the DCN loss: reconstruction error plus distance of codes to centroids.

    The loss is the mean over examples of
    |x - reconstruction|^2 + cluster_weight / 2 |z - c|^2. The squares are summed over
    features, not averaged. This is equation 5 of DCN with squared errors, and
    equation 3 of SDA-FDC, where `cluster_weight` is lambda.

    The code of DCN instead multiplies the reconstruction by a weight lbd and has no
    factor 1/2. Its loss equals lbd times this loss with `cluster_weight` = 2 / lbd.

    Args:
        x: examples as flat vectors [B, F].
        reconstructions: outputs of the decoder [B, F].
        z: codes, the outputs of the encoder [B, D].
        centroids: [B, D], row i is the centroid of the cluster of example i. No
            gradient flows through the centroids.
        cluster_weight: weight of the distance to the centroids, at least 0. With 0 the
            loss is the reconstruction error of a plain auto-encoder.
        mask: [B], False at examples to ignore. By default no example is ignored.

    Returns:
        A float32 scalar, at least 0. If the mask is False everywhere, the loss and its
        gradient are 0.

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
    """Returns the squared distance of each pair of rows, 0 at masked rows."""
    differences = a.astype(jnp.float32) - b.astype(jnp.float32)
    # Masked rows become 0 before the square, so that their NaN reaches no gradient.
    return jnp.sum(jnp.where(mask[:, None], differences, 0) ** 2, axis=-1)


# --- DEC


@checked
def student_t(
    z: Float[Array, "N D"],
    centroids: Float[Array, "K D"],
    *,
    dof: Scalar = 1.0,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, "N K"]:
    """Computes soft assignments of embeddings to centroids with Student's t kernel.

    The assignment of an embedding to a centroid at distance d is proportional to (1 +
    d^2 / dof)^(-(dof + 1) / 2). This is equation 1 of DEC, where `dof` is alpha. The
    gradient needs memory for N * K * D numbers.

    Args:
        z: embeddings [N, D].
        centroids: cluster centroids [K, D].
        dof: degrees of freedom of Student's t distribution, above 0.
        mask: [N], False at rows to ignore; such rows may contain any values, NaN
            included. Ignored rows get the same assignment to all clusters. They pass no
            gradient to `z` or to `centroids`. By default no row is ignored.

    Returns:
        Soft assignments q, float32 [N, K]. Each row is a probability distribution. The
        gradients are finite at any distance whose square fits into float32, including
        distance 0.

    Examples:
        >>> q = student_t(jnp.array([[0.0]]), jnp.array([[0.0], [1.0]]))
        >>> print((100 * q).round())  # proportional to 1 / (1 + 0) and 1 / (1 + 1)
        [[67. 33.]]
    """
    z, centroids = z.astype(jnp.float32), centroids.astype(jnp.float32)
    # The expansion |z|^2 - 2zc + |c|^2 would lose the digits of short distances.
    differences = z[:, None] - centroids[None]
    if mask is not None:
        differences = jnp.where(mask[:, None, None], differences, 0)
    squares = jnp.sum(differences**2, axis=-1)
    # The softmax of logarithms avoids 0 / 0 at embeddings far from all centroids.
    return jax.nn.softmax(-(dof + 1) / 2 * jnp.log1p(squares / dof), axis=-1)


@checked
def target_distribution(
    q: Float[Array, "N K"], *, mask: Bool[Array, "N"] | None = None
) -> Float[Array, "N K"]:
    """Computes DEC's target distribution: sharper assignments and more even clusters.

    The target p_ij is proportional to q_ij^2 / f_j, where f_j = sum_i q_ij is the soft
    size of cluster j. This is equation 3 of DEC. No gradient flows through the target.

    Args:
        q: soft assignments [N, K] of the whole data set, because f sums over all
            examples. Each row is a probability distribution.
        mask: [N], False at rows to ignore. By default no row is ignored.

    Returns:
        The target p, float32 [N, K]. Each row is a probability distribution. Masked
        rows contain no useful values. A cluster with f_j = 0 gets probability 0.

    Examples:
        >>> q = jnp.array([[0.75, 0.25], [0.25, 0.75]])
        >>> print((100 * target_distribution(q)).round())
        [[90. 10.]
         [10. 90.]]
    """
    q = jax.lax.stop_gradient(q).astype(jnp.float32)
    counted_q = q
    if mask is not None:
        q = jnp.where(mask[:, None], q, 1 / q.shape[1])
        counted_q = jnp.where(mask[:, None], q, 0)
    sizes = counted_q.sum(axis=0, keepdims=True)
    # q * (q / f) and not q^2 / f, because q^2 may underflow; q / f is at most 1.
    shares = q * (q / jnp.where(sizes > 0, sizes, 1))
    return shares / shares.sum(axis=1, keepdims=True)


@checked
def assignment_kl(
    p: Float[Array, "N K"],
    q: Float[Array, "N K"],
    *,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, ""]:
    """Computes the KL divergence of soft assignments from their target distribution.

    KL(P || Q) is the mean over examples of sum_j p_j log(p_j / q_j), with 0 log 0 = 0.
    This is equation 2 of DEC, which prints the sum over examples instead of the mean.

    Args:
        p: target distribution [N, K], for example from `target_distribution`. Each row
            is a probability distribution.
        q: soft assignments [N, K] of the same examples. Each row is a probability
            distribution.
        mask: [N], False at rows to ignore. By default no row is ignored.

    Returns:
        A float32 scalar, at least 0 up to rounding. If the mask is False everywhere,
        the loss and its gradient are 0. Where q_j is 0 and p_j is not, q_j is replaced
        by the smallest normal float32 and gets no gradient.

    Examples:
        >>> loss = assignment_kl(jnp.array([[1.0, 0.0]]), jnp.array([[0.5, 0.5]]))
        >>> print(f"{loss:.4f}")  # log 2
        0.6931
    """
    p, q = p.astype(jnp.float32), q.astype(jnp.float32)
    if mask is not None:
        # Equal rows have divergence 0, and the replaced NaN reaches no gradient.
        p, q = (jnp.where(mask[:, None], rows, 1) for rows in (p, q))
    tiny = jnp.finfo(jnp.float32).tiny
    ratios = jnp.log(jnp.maximum(p, tiny)) - jnp.log(jnp.maximum(q, tiny))
    count = len(p) if mask is None else jnp.maximum(mask.sum(), 1)
    return jnp.sum(p * ratios) / count


# --- Self expression


@checked
def off_diagonal(
    coefficients: Float[Array, "N N"], mask: Bool[Array, "N"] | None = None
) -> Float[Array, "N N"]:
    """Sets the diagonal and the entries of masked samples of a matrix to zero.

    With a zero diagonal no sample expresses itself.

    Args:
        coefficients: C [N, N]. Values on the diagonal and at masked samples, NaN
            included, reach neither the result nor its gradient.
        mask: [N], False at samples to ignore. By default no sample is ignored.

    Returns:
        float32 [N, N]: C with zeros on the diagonal and in the rows and columns of
        masked samples.

    Examples:
        >>> print(off_diagonal(jnp.array([[9.0, 3.0], [4.0, 9.0]])))
        [[0. 3.]
         [4. 0.]]
    """
    is_used = ~jnp.eye(len(coefficients), dtype=bool)
    if mask is not None:
        is_used &= mask[:, None] & mask[None]
    return jnp.where(is_used, coefficients.astype(jnp.float32), 0)


@checked
def self_expression(
    z: Float[Array, "N D"],
    coefficients: Float[Array, "N N"],
    *,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, ""]:
    """Computes the self-expression error |Z - C Z|_F^2.

    The difference is between the samples and their expression by the other samples. It
    is the last term of equation 4 of FDSC. That equation prints the factor lambda_2 /
    2. The public code of DSC-Net has no factor 1/2, and FDSC uses the weights of that
    code, so this function has no factor 1/2 either.

    Args:
        z: codes [N, D]. Gradients flow through both occurrences of Z.
        coefficients: C [N, N]. The diagonal is treated as zero.
        mask: [N], False at samples to ignore; such samples may contain any values, NaN
            included. By default no sample is ignored.

    Returns:
        A float32 scalar, at least 0: the sum (not the mean) over samples and features.

    Examples:
        >>> z = jnp.array([[1.0, 0.0], [2.0, 0.0]])  # each is a multiple of the other
        >>> print(self_expression(z, jnp.array([[0.0, 0.5], [2.0, 0.0]])))
        0.0
        >>> print(self_expression(z, jnp.zeros((2, 2))))  # 1 + 4
        5.0
    """
    z = z.astype(jnp.float32)
    if mask is not None:
        z = jnp.where(mask[:, None], z, 0)
    coefficients = off_diagonal(coefficients, mask)
    # z and the product are nearly equal, and a GPU's default precision (TF32) is too
    # coarse for their difference.
    expressed = jnp.matmul(coefficients, z, precision=jax.lax.Precision.HIGHEST)
    return jnp.sum((z - expressed) ** 2)


@checked
def coefficient_penalty(
    coefficients: Float[Array, "N N"],
    *,
    norm: Literal["frobenius", "l1", "nuclear"] = "frobenius",
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, ""]:
    """Computes a norm of the off-diagonal coefficients: |R|_p in equation 4 of FDSC.

    The paper does not say which norm it uses. "frobenius" is the squared Frobenius
    norm, as in the code of DSC-Net. "l1" is the sum of absolute values. "nuclear" is
    the sum of singular values.

    "l1" and "nuclear" are not differentiable at zero coefficients or zero singular
    values. There the gradient is the subgradient of least norm. It is zero at C = 0,
    with any mask.

    Args:
        coefficients: C [N, N]. The diagonal is treated as zero.
        norm: "frobenius", "l1" or "nuclear". "nuclear" needs a singular value
            decomposition, which is slow for large N.
        mask: [N], False at samples to ignore. By default no sample is ignored.

    Returns:
        A float32 scalar, at least 0. The gradient is finite for any finite C.

    Raises:
        ValueError: if `norm` is none of the three names.

    Examples:
        >>> c = jnp.array([[9.0, 3.0], [-4.0, 9.0]])
        >>> print(coefficient_penalty(c), coefficient_penalty(c, norm="l1"))
        25.0 7.0
    """
    coefficients = off_diagonal(coefficients, mask)
    if norm == "frobenius":
        return jnp.sum(coefficients**2)
    if norm == "l1":
        subgradient = jnp.sign(coefficients)
    elif norm == "nuclear":
        subgradient = _nuclear_subgradient(jax.lax.stop_gradient(coefficients))
    else:
        raise ValueError(f"norm must be 'frobenius', 'l1' or 'nuclear', got {norm!r}")
    # Both norms equal the inner product of C with a subgradient. JAX's own gradients
    # are no use at 0: `jnp.abs` has slope 1 there, and the singular vectors of zero
    # singular values are an arbitrary rotation.
    return jnp.sum(coefficients * jax.lax.stop_gradient(subgradient))


def _nuclear_subgradient(coefficients: Float[Array, "N N"]) -> Float[Array, "N N"]:
    """Returns U V^T over the singular values above the bound of `matrix_rank`."""
    u, singular, vt = jnp.linalg.svd(coefficients)
    rounding = len(coefficients) * jnp.finfo(jnp.float32).eps * singular.max()
    u = jnp.where((singular > rounding)[None], u, 0)
    return jnp.matmul(u, vt, precision=jax.lax.Precision.HIGHEST)


@checked
def locality_alignment(
    coefficients: Float[Array, "N N"],
    adjacency: Float[Array, "N N"] | Bool[Array, "N N"],
    *,
    alpha: Scalar = 1.0,
    beta: Scalar = 1.0,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, ""]:
    """Computes the distance of coefficients from a neighbour graph, off the diagonal.

    The value is |alpha A - beta C|_F^2. Equation 8 of FDSC prints
    `lambda_3 (alpha A - beta R)`, which is a matrix and not a number. The squared
    Frobenius norm is our choice.

    The paper's lambda_3 = 1e6 is too large for this sum if pixels lie in [0, 1]: C
    would equal A, and the self-expression term would have no influence. Two readings
    make it plausible. In the first, the term is the mean over pairs, so the caller
    divides by N^2; for 500 samples the weight is then 4. In the second, pixels lie in
    [0, 255]; for pixels in [0, 1] the weight is then lambda_3 / 255^2 = 15.

    Args:
        coefficients: C [N, N]. The diagonal is ignored.
        adjacency: A [N, N], row i marks the neighbours of sample i. The diagonal is
            ignored. FDSC's R is C^T, which makes no difference for a symmetric A.
        alpha: scale of A. The coefficient of a neighbour is pulled to alpha / beta.
        beta: scale of C.
        mask: [N], False at samples to ignore. By default no sample is ignored.

    Returns:
        A float32 scalar, at least 0: the sum (not the mean) over pairs of samples.

    Examples:
        >>> adjacency = jnp.array([[0.0, 1.0], [1.0, 0.0]])
        >>> print(locality_alignment(jnp.array([[0.0, 1.0], [0.5, 0.0]]), adjacency))
        0.25
    """
    coefficients = off_diagonal(coefficients, mask)
    adjacency = off_diagonal(adjacency.astype(jnp.float32), mask)
    return jnp.sum((alpha * adjacency - beta * coefficients) ** 2)
