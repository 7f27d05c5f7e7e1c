"""How alike samples are by the coefficients that express each through the others.

References:
    Ji, Zhang, Li, Salzmann and Reid, `Deep Subspace Clustering Networks
    <https://arxiv.org/abs/1709.02508>`_ (DSC-Net), NeurIPS 2017; code
    panji1990/Deep-subspace-clustering-networks.
    Vidal and Favaro, Low rank subspace clustering (LRSC), 2014.
    Haeffele, You and Vidal, `A Critique of Self-Expressive Deep Subspace Clustering
    <https://arxiv.org/abs/2010.03697>`_, ICLR 2021.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fcjax.cluster.spectral import unit_rows
from fcjax.types import Scalar


def symmetric_affinity(coefficients: Float[Array, "N N"]) -> Float[Array, "N N"]:
    """Returns |C| + |C|^T, the affinity of LRSC: non-negative and symmetric.

    Examples:
        >>> print(symmetric_affinity(jnp.array([[0.0, -1.0], [3.0, 0.0]])))
        [[0. 4.]
         [4. 0.]]
    """
    size = jnp.abs(coefficients)
    return size + size.T


def subspace_affinity(
    coefficients: Float[Array, "N N"],
    num_clusters: int,
    *,
    keep: Scalar,
    dimension: int,
    power: Scalar,
    unit_diagonal: bool = False,
    mask: Bool[Array, "N"] | None = None,
) -> Float[Array, "N N"]:
    """The affinity that DSC-Net's code makes of its coefficients C.

    In order: the small entries of each column give way to zeros, C becomes
    (C + C^T) / 2, then U sqrt(S) of its truncated singular value decomposition with
    rows of unit length; the inner products of those rows, 0 where they are negative,
    raised to a power and divided by the largest, are the affinity.

    Much of what deep subspace clustering is reported to gain lies here and not in the
    network (Haeffele, You and Vidal): baselines must share it, or be compared without.

    Samples that are masked, have no coefficient or no part in the leading singular
    vectors are like no other, nor like themselves: their rows and columns are zero
    (DSC-Net's code scales what rounding has left there). So is all of it where fewer
    than two samples count.

    Args:
        coefficients: C of codes Z = C Z with samples in rows, as in DSC-Net's code; for
            Z = Z R with samples in columns, as FDSC writes it, C is R^T. Computed in
            float32.
        num_clusters: number K of clusters.
        keep: the share of a column's L1 norm that its largest entries must exceed; they
            are kept up to the one that does so, of equal ones the first. 1 and more
            keeps all. DSC-Net's: 0.04 for COIL, 0.2 for ORL.
        dimension: of one subspace, d: the rank is d K + 1, or the number of counted
            samples less 1 where that is smaller. DSC-Net's: 12 for COIL, 3 for ORL.
        power: above 0; the larger, the less moderate likeness counts. DSC-Net's: 8 for
            COIL, 1 for ORL.
        unit_diagonal: whether C's diagonal becomes ones before the decomposition, as
            for COIL20.
        mask: False at samples to leave out, whose coefficients may be anything; all
            count by default.

    Returns:
        In [0, 1], symmetric; the diagonal is 1, or 0 at samples like no other.

    Examples:
        >>> swap = jnp.array([[0.0, 1.0], [1.0, 0.0]])
        >>> c = jnp.kron(jnp.eye(2), swap)  # 0 and 1 express each other, so do 2 and 3
        >>> options = dict(keep=1.0, dimension=1, power=1.0, unit_diagonal=True)
        >>> print(subspace_affinity(c, 2, **options).round(2)[0])
        [1. 1. 0. 0.]
    """
    if mask is None:
        mask = jnp.ones(len(coefficients), bool)
    return _affinity(
        coefficients, mask, keep, power, num_clusters * dimension + 1, unit_diagonal
    )


@partial(jax.jit, static_argnames=("rank", "unit_diagonal"))
def _affinity(
    coefficients: Float[Array, "N N"],
    mask: Bool[Array, "N"],
    keep: Scalar,
    power: Scalar,
    rank: int,
    unit_diagonal: bool,
) -> Float[Array, "N N"]:
    counted = mask[:, None] & mask[None]
    c = _threshold(jnp.where(counted, coefficients, 0).astype(jnp.float32), keep)
    c = (c + c.T) / 2
    if unit_diagonal:
        c = jnp.where(jnp.eye(len(c), dtype=bool), mask[:, None], c)

    # C is symmetric: its singular values are the sizes of its eigenvalues, and its left
    # singular vectors are its eigenvectors.
    eigenvalues, eigenvectors = jnp.linalg.eigh(c)
    rank = min(rank, len(c) - 1)
    sizes, largest = jax.lax.top_k(jnp.abs(eigenvalues), rank)
    sizes = jnp.where(jnp.arange(rank) < mask.sum() - 1, sizes, 0)
    present = jnp.any(c != 0, axis=1)
    u = unit_rows(eigenvectors[:, largest], jnp.sqrt(sizes), present)
    z = jnp.matmul(u, u.T, precision=jax.lax.Precision.HIGHEST)
    z = jnp.where(z > 0, z, 0) ** power
    z = z / jnp.where(z.max() > 0, z.max(), 1)
    return (z + z.T) / 2


def _threshold(c: Float[Array, "N N"], keep: Scalar) -> Float[Array, "N N"]:
    """Keeps each column's largest entries, up to the one that exceeds the share."""
    order = jnp.argsort(-jnp.abs(c), axis=0)
    sizes = jnp.abs(jnp.take_along_axis(c, order, axis=0))
    covered = jnp.cumsum(sizes, axis=0)
    needed = (covered - sizes <= keep * covered[-1:]) | (keep >= 1)
    kept = jnp.put_along_axis(
        jnp.zeros(c.shape, bool), order, needed, axis=0, inplace=False
    )
    return jnp.where(kept, c, 0)
