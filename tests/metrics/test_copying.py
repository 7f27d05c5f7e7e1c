"""Data-copying, beside SciPy's U test and scikit-learn's neighbours."""

import math

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, norm
from sklearn.neighbors import NearestNeighbors

from fcjax.metrics import copying, copying_by_distance, nearest, nearest_distances


def draw(count, *, seed, size=5):
    return np.random.default_rng(seed).normal(size=(count, size))


def neighbors(a, b):
    found = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(b).kneighbors(a)
    return found[0][:, 0], found[1][:, 0]


def test_nearest_across_blocks_as_scikit_learn_finds_them():
    a, b = draw(2_100, seed=0), draw(4_200, seed=1)
    distances, rows = neighbors(a, b)
    found = nearest(a, b)
    np.testing.assert_array_equal(found.rows, rows)
    np.testing.assert_allclose(found.distances, distances, rtol=1e-9)
    np.testing.assert_array_equal(nearest_distances(a, b), found.distances)


def test_a_copy_among_near_ones_is_at_distance_0():
    """One value in a million apart, far from the origin."""
    b = (1_000 + draw(1, seed=0, size=800)).astype(np.float32) + np.zeros((50, 1))
    b[np.arange(50), np.arange(50)] += 1e-3
    found = nearest(b[::-1], b)
    assert found.rows.tolist() == list(range(49, -1, -1))
    assert (found.distances == 0).all()
    pixels = np.random.default_rng(0).integers(0, 256, (99, 784), np.uint8)
    assert (nearest_distances(pixels, pixels[::-1]) == 0).all()
    # Of two that are the same it is the first.
    assert nearest(b[:1], b[[1, 0, 0]]).rows == [1]


def test_the_u_test_is_scipys():
    """With ties, which vectors of few whole numbers have."""
    rng = np.random.default_rng(0)
    train = rng.integers(0, 5, (40, 3))
    synthetic, held_out = rng.integers(0, 6, (70, 3)), rng.integers(0, 5, (90, 3))
    made, real = (neighbors(x, train)[0] for x in (synthetic, held_out))
    found = copying(synthetic, train, held_out)
    expected = mannwhitneyu(
        real, made, alternative="greater", method="asymptotic", use_continuity=False
    )
    assert found["copy_probability"] == pytest.approx(expected.statistic / 6_300)
    assert found["copy_z"] == pytest.approx(norm.isf(expected.pvalue))
    assert abs(found["copy_z"]) > 0.5
    assert found["synthetic_distance"] == pytest.approx(np.median(made))
    assert found["held_out_distance"] == pytest.approx(np.median(real))


def test_copies_are_nearer_than_all_that_is_held_out():
    train, held_out = draw(300, seed=0), draw(200, seed=1)
    found = copying(train[:100], train, held_out)
    assert found["copy_probability"] == 1
    assert found["synthetic_distance"] == 0
    assert found["closest_share"] == 1
    # (n m / 2) / sqrt(n m (n + m + 1) / 12), less what 100 equal distances take off.
    tied = (100**3 - 100) / (300 * 299)
    expected = 10_000 / math.sqrt(20_000 / 12 * (301 - tied))
    assert found["copy_z"] == pytest.approx(expected)
    # The least noise that makes them other examples hides none of them.
    near = copying(train[:100] + 1e-3, train, held_out)
    assert near["copy_probability"] > 0.999


def test_the_closest_are_counted_by_the_nearest_hundredth():
    """Held-out distances 1, 2, .., 200: the second nearest is the mark."""
    found = copying_by_distance(np.array([0.5, 2.0, 2.5, 90.0]), np.arange(1.0, 201.0))
    assert found["closest_share"] == 0.5
    # 200, 198 (and half of one), 198 and 110 (and half of one) of 200 are farther.
    expected = (200 + 198.5 + 198 + 110.5) / 800
    assert found["copy_probability"] == pytest.approx(expected)
    # Of fewer than a hundred it is the nearest.
    few = copying_by_distance(np.array([0.5, 1.0, 1.5, 9.0]), np.arange(1.0, 51.0))
    assert few["closest_share"] == 0.5


def test_equal_distances_have_no_z():
    same = np.zeros((4, 2))
    found = copying(same, same, same)
    assert found["copy_probability"] == 0.5
    assert math.isnan(found["copy_z"])
