import jax
import jax.numpy as jnp
import numpy as np
from scipy import special, stats

from fcjax.losses import dequantize, standard_normal_log_density


def test_the_normal_density_is_that_of_scipy(key):
    z = 2 * jax.random.normal(key, (6, 3))
    expected = stats.multivariate_normal(np.zeros(3)).logpdf(np.asarray(z, float))
    np.testing.assert_allclose(standard_normal_log_density(z), expected, rtol=1e-5)


def test_midpoints_by_hand():
    x = jnp.array([[0, 85], [170, 255]], jnp.uint8)
    y, log_det = dequantize(None, x, levels=4, eps=0.1)
    places = 0.1 + 0.8 * np.array([[0.5, 1.5], [2.5, 3.5]]) / 4
    np.testing.assert_allclose(y, np.log(places / (1 - places)), rtol=1e-5)
    slopes = 0.8 / 4 / (places * (1 - places))
    np.testing.assert_allclose(log_det, np.log(slopes).sum(axis=1), rtol=1e-5)
    of_floats = dequantize(None, x / 255.0, levels=4, eps=0.1)
    np.testing.assert_allclose(of_floats[0], y, rtol=1e-6)


def test_noise_stays_within_a_level_and_fills_it(key):
    x = jnp.tile(jnp.arange(256, dtype=jnp.uint8)[None, :, None], (40, 1, 1))
    y, log_det = dequantize(key, x)
    assert y.shape == x.shape
    assert log_det.shape == (40,)
    back = (special.expit(np.asarray(y, float)) - 0.05) / 0.9 * 256
    noise = back - np.arange(256)[None, :, None]
    assert noise.min() > -1e-3
    assert noise.max() < 1 + 1e-3
    assert stats.kstest(noise.ravel(), "uniform").pvalue > 1e-3
    # The slope of y by v + u, pixel by pixel.
    places = special.expit(np.asarray(y, float))
    slopes = np.log(0.9 / 256 / (places * (1 - places))).sum(axis=(1, 2))
    np.testing.assert_allclose(log_det, slopes, rtol=1e-4)


def test_what_is_not_quantised_stays_as_it_is(key):
    x = jax.random.normal(key, (3, 2))
    y, log_det = dequantize(key, x, levels=None)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(log_det, np.zeros(3))
