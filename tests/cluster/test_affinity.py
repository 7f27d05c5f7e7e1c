import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.cluster import subspace_affinity


def coefficients(seed, n, num_clusters=3, noise=0.3):
    """Larger within clusters than between them, as a network learns them."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % num_clusters
    within = labels[:, None] == labels[None]
    return (within * rng.random((n, n)) + noise * rng.normal(size=(n, n))).astype("f4")


def numpy_threshold(c, keep):
    """Column by column and entry by entry."""
    if keep >= 1:
        return c
    result = np.zeros_like(c)
    for j in range(len(c)):
        column = np.abs(c[:, j])
        order = np.argsort(-column, kind="stable")
        covered = 0.0
        for i in order:
            result[i, j] = c[i, j]
            covered += column[i]
            if covered > keep * column.sum():
                break
    return result


def numpy_affinity(c, num_clusters, keep, dimension, power, unit_diagonal=False):
    c = numpy_threshold(c.astype(np.float64), keep)
    n = len(c)
    c = (c + c.T) / 2
    if unit_diagonal:
        np.fill_diagonal(c, 1)
    rank = min(dimension * num_clusters + 1, n - 1)
    u, s, _ = np.linalg.svd(c)
    u = u[:, :rank] @ np.diag(np.sqrt(s[:rank]))
    for i in range(n):
        norm = np.linalg.norm(u[i])
        u[i] = u[i] / norm if norm > 1e-9 else 0
    z = u @ u.T
    z[z < 0] = 0
    z = z**power
    z = z / z.max()
    return (z + z.T) / 2


@pytest.mark.parametrize(
    ("dimension", "power", "unit_diagonal"),
    [(3, 1.0, False), (2, 8.0, True), (5, 3.5, False)],
)
def test_equals_numpy(dimension, power, unit_diagonal):
    for seed, keep in enumerate([0.0, 0.04, 0.4, 0.9, 1.0]):
        c = coefficients(seed, 40)
        result = subspace_affinity(
            jnp.array(c),
            3,
            keep=keep,
            dimension=dimension,
            power=power,
            unit_diagonal=unit_diagonal,
        )
        expected = numpy_affinity(c, 3, keep, dimension, power, unit_diagonal)
        np.testing.assert_allclose(result, expected, atol=5e-4)
        assert result.dtype == jnp.float32


def test_a_sample_without_coefficients_is_like_none():
    # Far fewer eigenvalues than the rank allows: of rounding, some are not quite zero,
    # with eigenvectors of which that sample is a part.
    rows = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    rows[20] = 0
    c = jnp.array(rows @ rows.T)
    affinity = np.array(subspace_affinity(c, 3, keep=1.0, dimension=20, power=1.0))
    np.testing.assert_array_equal(affinity[20], 0)
    np.testing.assert_allclose(np.delete(np.diag(affinity), 20), 1, atol=1e-5)
