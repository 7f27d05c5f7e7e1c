import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.cluster import subspace_affinity, symmetric_affinity

NO_THRESHOLD = {"keep": 1.0, "dimension": 2, "power": 1.0}


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


def test_symmetric_affinity_by_hand():
    c = jnp.array([[1.0, -2.0], [0.5, -3.0]])
    np.testing.assert_array_equal(symmetric_affinity(c), [[2.0, 2.5], [2.5, 6.0]])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("keep", [0.04, 0.4, 0.9, 1.0, 2.0])
@pytest.mark.parametrize(
    ("dimension", "power", "unit_diagonal"),
    [(3, 1.0, False), (2, 8.0, True), (5, 3.5, False)],
)
def test_equals_numpy(seed, keep, dimension, power, unit_diagonal):
    c = coefficients(seed, 80)
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


@pytest.mark.parametrize("unit_diagonal", [False, True])
@pytest.mark.parametrize("dimension", [2, 6])
def test_masked_equals_numpy_of_the_rest(unit_diagonal, dimension):
    # Of 15 counted samples 6 * 3 + 1 singular values are too many, of 30 they are not.
    c = np.full((30, 30), np.nan, np.float32)
    counted = np.random.default_rng(0).permutation(30)[:15]
    c[np.ix_(counted, counted)] = coefficients(1, 15)
    mask = np.isin(np.arange(30), counted)
    result = subspace_affinity(
        jnp.array(c),
        3,
        keep=0.6,
        dimension=dimension,
        power=2.0,
        unit_diagonal=unit_diagonal,
        mask=jnp.array(mask),
    )
    expected = np.zeros((30, 30))
    rest = numpy_affinity(coefficients(1, 15), 3, 0.6, dimension, 2.0, unit_diagonal)
    expected[np.ix_(counted, counted)] = rest
    np.testing.assert_allclose(result, expected, atol=5e-4)
    np.testing.assert_array_equal(np.array(result)[~mask], 0)
    np.testing.assert_array_equal(np.array(result)[:, ~mask], 0)


def test_threshold_by_hand():
    # Of L1 norms 10, 4 and 3, half is exceeded by one entry, by two (the first alone
    # has just half; then comes the first of equal ones) and by two of three equal ones.
    c = jnp.array([[6.0, 1.0, -1.0], [-3.0, -2.0, 1.0], [1.0, 1.0, 1.0]])
    kept = jnp.array([[6.0, 1.0, -1.0], [0.0, -2.0, 1.0], [0.0, 0.0, 0.0]])
    result = subspace_affinity(c, 1, keep=0.5, dimension=1, power=1.0)
    expected = subspace_affinity(kept, 1, keep=1.0, dimension=1, power=1.0)
    np.testing.assert_array_equal(result, expected)
    # What it is must matter for that to say anything.
    assert np.abs(subspace_affinity(c, 1, **NO_THRESHOLD) - expected).max() > 0.01


def test_rank_by_hand():
    # Pairs with the eigenvalues 6, 5 and -4, of (1, 1), (1, 1) and (1, -1), and one
    # sample without coefficients. Rank 2 has no part in the third pair; the sign of its
    # eigenvalue is lost, so that its samples are opposite all the same in rank 3.
    c = np.zeros((7, 7), np.float32)
    c[:2, :2], c[2:4, 2:4], c[4:6, 4:6] = 3, 2.5, [[-2, 2], [2, -2]]
    pair = np.ones((2, 2))
    expected = np.zeros((7, 7))
    expected[:2, :2] = expected[2:4, 2:4] = pair
    options = {"keep": 1.0, "dimension": 1, "power": 1.0}
    affinity = subspace_affinity(jnp.array(c), 1, **options)
    np.testing.assert_allclose(affinity, expected, atol=1e-5)
    expected[4:6, 4:6] = np.eye(2)
    affinity = subspace_affinity(jnp.array(c), 2, **options)
    np.testing.assert_allclose(affinity, expected, atol=1e-5)


def test_a_sample_without_coefficients_is_like_none():
    # Far fewer eigenvalues than the rank allows: of rounding, some are not quite zero,
    # with eigenvectors of which that sample is a part.
    rows = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    rows[20] = 0
    c = jnp.array(rows @ rows.T)
    affinity = np.array(subspace_affinity(c, 3, keep=1.0, dimension=20, power=1.0))
    np.testing.assert_array_equal(affinity[20], 0)
    np.testing.assert_allclose(np.delete(np.diag(affinity), 20), 1, atol=1e-5)


def test_keeping_all_is_exact():
    # Cumulative sums of sizes this different are rounded to more than the last one.
    c = jnp.exp(3 * jax.random.normal(jax.random.key(0), (500, 500)))
    options = {"dimension": 3, "power": 1.0}
    np.testing.assert_array_equal(
        subspace_affinity(c, 3, keep=1.0, **options),
        subspace_affinity(c, 3, keep=2.0, **options),
    )


def test_keeping_nothing_more_than_the_largest():
    # keep 0: the first entry of each column; they pair 0 with 1 and 2 with 3.
    c = jnp.array(
        [
            [0.1, 0.9, 0.2, 0.0],
            [-0.8, 0.1, 0.0, 0.1],
            [0.3, 0.2, 0.1, 0.7],
            [0.1, 0.0, 0.6, 0.2],
        ]
    )
    result = np.array(subspace_affinity(c, 1, keep=0.0, dimension=2, power=1.0))
    np.testing.assert_allclose(result[:2, 2:], 0, atol=1e-5)
    np.testing.assert_allclose(np.diag(result), 1, atol=1e-5)


@pytest.mark.parametrize("unit_diagonal", [False, True])
def test_zeros_are_finite(unit_diagonal):
    result = subspace_affinity(
        jnp.zeros((6, 6)), 2, unit_diagonal=unit_diagonal, **NO_THRESHOLD
    )
    if not unit_diagonal:
        np.testing.assert_array_equal(result, 0)
    assert np.all(np.isfinite(result))


@pytest.mark.parametrize("num_counted", [0, 1])
def test_too_few_samples_are_finite(num_counted):
    mask = jnp.arange(4) < num_counted
    c = jnp.ones((4, 4))
    result = subspace_affinity(c, 2, mask=mask, **NO_THRESHOLD)
    np.testing.assert_array_equal(result, 0)
    np.testing.assert_array_equal(subspace_affinity(c[:1, :1], 1, **NO_THRESHOLD), 0)


def test_vmapped_and_jitted_with_traced_hyper_parameters():
    c = np.stack([coefficients(seed, 20) for seed in range(4)])
    sizes = [20, 12, 20, 16]
    keeps, powers = [0.2, 0.5, 1.0, 0.8], [1.0, 2.0, 3.5, 8.0]

    @jax.jit
    @jax.vmap
    def affinities(c, keep, power, size):
        mask = jnp.arange(20) < size
        return subspace_affinity(c, 3, keep=keep, dimension=2, power=power, mask=mask)

    results = affinities(*map(jnp.array, (c, keeps, powers, sizes)))
    for i, size in enumerate(sizes):
        expected = np.zeros((20, 20))
        expected[:size, :size] = numpy_affinity(
            c[i, :size, :size], 3, keeps[i], 2, powers[i]
        )
        np.testing.assert_allclose(results[i], expected, atol=5e-4)
