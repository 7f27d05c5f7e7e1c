"""Data-copying, beside SciPy's U test and scikit-learn's neighbours."""

import math

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, norm
from sklearn.neighbors import NearestNeighbors

from fcjax.metrics.leakage import copying, nearest


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
