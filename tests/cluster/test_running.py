"""Running means against DCN's loop over single examples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.cluster import running_means


@pytest.fixture
def batch(key):
    """Four centroids, and forty rows that none of is the last one's."""
    c_key, x_key, a_key = jax.random.split(key, 3)
    return (
        jax.random.normal(c_key, (4, 3)),
        jnp.array([100.0, 1.0, 0.0, 7.0]),
        5 + 2 * jax.random.normal(x_key, (40, 3)),
        jax.random.randint(a_key, (40,), 0, 3),
    )


def one_by_one(centroids, counts, x, assignments):
    """As DCN's code: the count grows first, and its inverse is the step."""
    centroids, counts = np.array(centroids, np.float64), np.array(counts, np.float64)
    for row, k in zip(np.asarray(x, np.float64), np.asarray(assignments), strict=True):
        counts[k] += 1
        centroids[k] += (row - centroids[k]) / counts[k]
    return centroids, counts


def assert_moved(moved, expected):
    np.testing.assert_allclose(moved[0], expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(moved[1], expected[1])


@pytest.mark.parametrize("size", [8, 40])
def test_batch_after_batch_is_the_loop_over_single_rows(batch, size):
    centroids, counts, x, assignments = batch
    moved = (centroids, counts)
    for start in range(0, 40, size):
        rows = slice(start, start + size)
        moved = running_means(*moved, x[rows], assignments[rows])
    assert_moved(moved, one_by_one(*batch))
    assert moved[0].dtype == moved[1].dtype == jnp.float32


def test_a_cluster_without_rows_stays_exactly():
    """Also one of a count that count * c / count would not give back, or of none."""
    centroids = jnp.array([[0.1, -1e-20], [1 / 3, 1e20], [5.0, 5.0]])
    counts = jnp.array([0.0, 1_234_567.0, 2.0])
    x, assignments = jnp.full((4, 2), 9.0), jnp.full(4, 2)
    moved, after = running_means(centroids, counts, x, assignments)
    np.testing.assert_array_equal(moved[:2], centroids[:2])
    np.testing.assert_array_equal(after, [0, 1_234_567, 6])
    np.testing.assert_allclose(moved[2], 46 / 6, rtol=1e-6)


def test_ten_million_rows_are_counted_and_averaged():
    """From 100 rows at 5 on, batches of 256 at 6 and of 256 at 4 in turn."""
    x = jnp.stack([jnp.full((256, 1), 6.0), jnp.full((256, 1), 4.0)])
    start, step = (jnp.full((1, 1), 5.0), jnp.array([100.0])), jnp.zeros(256, int)

    @jax.jit
    def run(state):
        return jax.lax.fori_loop(
            0, 40_000, lambda i, s: running_means(*s, x[i % 2], step), state
        )

    centroids, counts = run(start)
    np.testing.assert_array_equal(counts, [100 + 40_000 * 256])
    np.testing.assert_allclose(centroids, 5, rtol=1e-5)
