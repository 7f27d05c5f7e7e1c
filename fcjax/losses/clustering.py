"""Losses of deep clustering: DCN, DEC and self-expression.

An auto-encoder whose codes lie near their centroids, as a pure function.

References:
    Yang et al., `Towards K-means-friendly Spaces: Simultaneous Deep Learning and
    Clustering <https://arxiv.org/abs/1610.04794>`_ (DCN), ICML 2017, equation 5; code
    boyangumn/DCN-New.
    Yan et al., `Federated deep clustering with GAN-based data synthesis
    <https://arxiv.org/abs/2211.16965>`_ (SDA-FDC), 2022, equation 3.

Soft assignments that sharpen themselves, as pure functions.

References:
    Xie, Girshick and Farhadi, `Unsupervised Deep Embedding for Clustering Analysis
    <https://arxiv.org/abs/1511.06335>`_ (DEC), ICML 2016, equations 1 to 3.

Samples as combinations of each other, as pure functions.

Samples are rows here, Z [N, D], and row i of C [N, N] expresses sample i by the others.
FDSC has samples as columns and writes Z R: its R is C^T.

References:
    Zhang et al., `Federated Deep Subspace Clustering
    <https://arxiv.org/abs/2501.00230>`_ (FDSC), 2025, equations 4 and 8.
    Ji et al., `Deep Subspace Clustering Networks <https://arxiv.org/abs/1709.02508>`_
    (DSC-Net), NIPS 2017; code XifengGuo/DSC-Net.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fcjax.types import Scalar

# --- DCN


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


# --- DEC


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


# --- Self expression


def off_diagonal(
    coefficients: Float[Array, "N N"], mask: Bool[Array, "N"] | None = None
) -> Float[Array, "N N"]:
    """Coefficients by which no sample expresses itself, nor a masked one anything.

    Args:
        coefficients: C; what it holds on its diagonal and at masked samples, NaN for
            one, reaches neither value nor gradient.
        mask: False at samples that count nowhere; all count by default.

    Returns:
        float32 [N, N], C with zeros on its diagonal and in the rows and columns of
        masked samples.

    Examples:
        >>> print(off_diagonal(jnp.array([[9.0, 3.0], [4.0, 9.0]])))
        [[0. 3.]
         [4. 0.]]
    """
    kept = ~jnp.eye(len(coefficients), dtype=bool)
    if mask is not None:
        kept &= mask[:, None] & mask[None]
    return jnp.where(kept, coefficients.astype(jnp.float32), 0)


def self_expression(
    z: Float[Array, "N D"],
    coefficients: Float[Array, "N N"],
    *,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, ""]:
    """How far samples are from their expressions by the others.

    |Z - C Z|_F^2: the last term of FDSC's equation 4, which prints half of it
    (lambda_2 / 2). The public code of DSC-Net, whose weights FDSC's are to the digit,
    has no half, and neither has this.

    Args:
        z: codes; gradients flow through both of their places.
        coefficients: C; its diagonal counts as zero.
        mask: False at samples that neither are expressed nor express others, and may
            hold anything; all count by default.

    Returns:
        A float32 scalar of at least 0, a sum over samples and features and no mean.

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
    # Differences of nearly equal rows: a GPU's default would round the product.
    expressed = jnp.matmul(coefficients, z, precision=jax.lax.Precision.HIGHEST)
    return jnp.sum((z - expressed) ** 2)


def coefficient_penalty(
    coefficients: Float[Array, "N N"],
    *,
    norm: Literal["frobenius", "l1", "nuclear"] = "frobenius",
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, ""]:
    """The size of off-diagonal coefficients, |R|_p of FDSC's equation 4.

    The paper leaves p open: "frobenius" is the squared Frobenius norm, as in the code
    of DSC-Net, "l1" the sum of absolute values, "nuclear" the sum of singular values.
    Where the latter two have a kink, at zero coefficients and zero singular values,
    the gradient is the shortest subgradient: zero at C = 0, whatever masked samples
    there are.

    Args:
        coefficients: C; its diagonal counts as zero.
        norm: which size. The nuclear one takes a singular value decomposition.
        mask: False at samples that count nowhere; all count by default.

    Returns:
        A float32 scalar of at least 0, with a finite gradient at any finite C.

    Raises:
        ValueError: if the norm is none of the three.

    Examples:
        >>> c = jnp.array([[9.0, 3.0], [-4.0, 9.0]])
        >>> print(coefficient_penalty(c), coefficient_penalty(c, norm="l1"))
        25.0 7.0
    """
    coefficients = off_diagonal(coefficients, mask)
    if norm == "frobenius":
        return jnp.sum(coefficients**2)
    if norm == "l1":
        slopes = jnp.sign(coefficients)
    elif norm == "nuclear":
        slopes = _nuclear_slopes(jax.lax.stop_gradient(coefficients))
    else:
        raise ValueError(f"norm is frobenius, l1 or nuclear, got {norm!r}")
    # Either norm is the inner product with its subgradient. By themselves `jnp.abs`
    # has slope 1 at 0, and `jnp.linalg.svd` some rotation of the null space.
    return jnp.sum(coefficients * jax.lax.stop_gradient(slopes))


def _nuclear_slopes(coefficients: Float[Array, "N N"]) -> Float[Array, "N N"]:
    """U V^T of the singular values above rounding, the bound of `matrix_rank`."""
    u, singular, vt = jnp.linalg.svd(coefficients)
    rounding = len(coefficients) * jnp.finfo(jnp.float32).eps * singular.max()
    u = jnp.where((singular > rounding)[None], u, 0)
    return jnp.matmul(u, vt, precision=jax.lax.Precision.HIGHEST)


def locality_alignment(
    coefficients: Float[Array, "N N"],
    adjacency: Float[Array, "N N"] | Bool[Array, "N N"],
    *,
    alpha: Scalar = 1.0,
    beta: Scalar = 1.0,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, ""]:
    """How far coefficients are from a graph of neighbours, off the diagonal.

    |alpha A - beta C|_F^2. FDSC's equation 8 prints `lambda_3 (alpha A - beta R)`, a
    matrix and no number; [choice] the squared Frobenius norm. With pixels in [0, 1] the
    paper's lambda_3 of 1e6 on this sum would make C equal to A and leave nothing to
    self-expression. It makes sense of the mean over pairs, for which the caller divides
    by their number N^2 (4 remains for 500 samples), or with pixels up to 255 (lambda_3
    / 255^2 = 15 remains for those in [0, 1]).

    Args:
        coefficients: C; its diagonal does not count.
        adjacency: A, whose row i has the neighbours of sample i; its diagonal does not
            count. FDSC's R is C^T, which is one to a symmetric A.
        alpha: what a neighbour's coefficient is drawn to, times beta.
        beta: the scale of C.
        mask: False at samples that count nowhere; all count by default.

    Returns:
        A float32 scalar of at least 0, a sum over pairs and no mean.

    Examples:
        >>> adjacency = jnp.array([[0.0, 1.0], [1.0, 0.0]])
        >>> print(locality_alignment(jnp.array([[0.0, 1.0], [0.5, 0.0]]), adjacency))
        0.25
    """
    coefficients = off_diagonal(coefficients, mask)
    adjacency = off_diagonal(adjacency.astype(jnp.float32), mask)
    return jnp.sum((alpha * adjacency - beta * coefficients) ** 2)
