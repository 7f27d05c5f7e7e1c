"""Copies and membership inference, beside SciPy and scikit-learn."""

import math

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, norm
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

from fcjax.metrics.leakage import auc, copying, flat, nearest


def test_nearest_as_scikit_learn_finds_them_and_0_to_a_copy():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(210, 5)), rng.normal(size=(420, 5))
    found = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(b).kneighbors(a)
    rows, distances = nearest(a, b)
    np.testing.assert_array_equal(rows, found[1][:, 0])
    np.testing.assert_allclose(distances, found[0][:, 0], rtol=1e-9)
    # One value in a million apart, far from the origin.
    close = (1_000 + rng.normal(size=(1, 800))).astype(np.float32) + np.zeros((50, 1))
    close[np.arange(50), np.arange(50)] += 1e-3
    rows, distances = nearest(close[::-1], close)
    assert rows.tolist() == list(range(49, -1, -1))
    assert (distances == 0).all()


def test_the_u_test_is_scipys():
    """With ties, which few whole numbers have."""
    rng = np.random.default_rng(0)
    made, real = rng.integers(0, 7, 70).astype(float), rng.integers(0, 6, 90) + 0.0
    found = copying(made, real)
    expected = mannwhitneyu(
        real, made, alternative="greater", method="asymptotic", use_continuity=False
    )
    assert found["copy_probability"] == pytest.approx(expected.statistic / 6_300)
    assert found["copy_z"] == pytest.approx(norm.isf(expected.pvalue))
    assert found["synthetic_distance"] == np.median(made)
    assert found["held_out_distance"] == np.median(real)
    assert math.isnan(copying(np.zeros(4), np.zeros(4))["copy_z"])


def test_the_closest_are_counted_by_the_nearest_hundredth():
    """Held-out distances 1, 2, .., 200: the second nearest is the mark."""
    found = copying(np.array([0.5, 2.0, 2.5, 90.0]), np.arange(1.0, 201.0))
    assert found["closest_share"] == 0.5
    # Of fewer than a hundred it is the nearest.
    few = copying(np.array([0.5, 1.0, 1.5, 9.0]), np.arange(1.0, 51.0))
    assert few["closest_share"] == 0.5


def test_the_auc_is_scikit_learns_with_ties():
    rng = np.random.default_rng(0)
    one, other = rng.integers(1, 9, 70) + 0.0, rng.integers(0, 7, 90) + 0.0
    expected = roc_auc_score(np.repeat([1, 0], [70, 90]), np.append(one, other))
    assert auc(one, other).value == pytest.approx(expected)


def test_the_interval_by_hand():
    """The pairs of 3 are won, those of 1 by half: shares 1 and 0.5, and likewise of
    the other group. Both variances are 1 / 8, so that the squared error is 1 / 8."""
    value, low, high = auc(np.array([3.0, 1.0]), np.array([2.0, 0.0]))
    assert (value, high) == (0.75, 1.0)
    assert low == pytest.approx(0.75 - 1.96 * math.sqrt(1 / 8))
    assert auc(np.array([5.0, 6.0]), np.array([1.0, 2.0])) == (1, 1, 1)
    assert auc(np.zeros(4), np.zeros(3)) == (0.5, 0.5, 0.5)


def test_the_interval_has_the_true_value_in_95_of_100_draws():
    """Normal scores one apart: the true area is Phi(1 / sqrt(2))."""
    rng, true = np.random.default_rng(0), norm.cdf(math.sqrt(0.5))
    draws = [auc(rng.normal(1, 1, 60), rng.normal(0, 1, 80)) for _ in range(400)]
    inside = [low <= true <= high for _, low, high in draws]
    assert 0.92 <= np.mean(inside) <= 0.98


def test_pixels_are_scaled_and_numbers_are_not():
    images = np.array([[[[0], [255]]]], np.uint8)
    np.testing.assert_array_equal(flat(images), [[0.0, 1.0]])
    np.testing.assert_array_equal(flat(np.array([[7.0, 8.0]])), [[7.0, 8.0]])
