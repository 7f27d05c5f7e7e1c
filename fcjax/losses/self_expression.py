"""Samples as combinations of each other, as pure functions.

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
