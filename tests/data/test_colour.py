"""Colour against colorsys, PIL and torchvision's formulas, and the laws of draws."""

import colorsys
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance
from scipy import ndimage

from fcjax.data import augment

LUMA = np.array([0.2989, 0.587, 0.114])
NAMES = ("brightness", "contrast", "saturation", "hue")
NEUTRAL = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.0}


@partial(jax.jit, static_argnums=1)
def adjusted(image, name, value):
    """The image after one adjustment alone."""
    return augment.adjust_in_order(
        image, jnp.arange(4), **NEUTRAL | {name: jnp.float32(value)}
    )


COINS = ("flip_probability", "jitter_probability", "grey_probability")
PLAIN = dict.fromkeys(COINS, 0.0) | dict.fromkeys(NAMES, 0.3)
PLAIN |= {"crop_scale": (1.0, 1.0), "blur_sigma": (1.5, 1.5)}


@jax.jit
def views(keys, images, values):
    """Views by traced parameters, compiled once for all images of 33x33."""
    view = jax.vmap(lambda k, x: augment.simsiam_colour(k, x, **values))
    return view(keys, jnp.broadcast_to(images, (len(keys), *images.shape[-3:])))


def random_image(shape=(7, 9, 3), seed=0):
    """Whole 255ths, so that PIL sees the same image; greys and primaries included."""
    image = np.random.default_rng(seed).integers(0, 256, shape)
    image[0, 0] = 128
    image[0, 1], image[0, 2], image[0, 3] = (255, 0, 0), (255, 255, 0), (0, 0, 0)
    return (image / 255).astype(np.float32)


def turned(image, shift):
    def turn(pixel):
        h, s, v = colorsys.rgb_to_hsv(*map(float, pixel))
        return colorsys.hsv_to_rgb((h + shift) % 1.0, s, v)

    return np.apply_along_axis(turn, -1, image)


@pytest.mark.parametrize("shift", [-0.5, -0.21, 0.0, 0.1, 1 / 3, 0.5])
def test_hue_equals_colorsys(shift):
    image = random_image()
    result = adjusted(jnp.asarray(image), "hue", shift)
    np.testing.assert_allclose(result, turned(image, shift), atol=2e-6)


@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0, 1.7])
def test_factors_equal_the_formula_and_pil(factor):
    image = random_image()
    luma = (image @ LUMA)[..., None]
    pil = Image.fromarray(np.round(image * 255).astype(np.uint8))
    for adjustment, target, enhance in [
        ("brightness", 0.0, ImageEnhance.Brightness),
        ("contrast", luma.mean(), ImageEnhance.Contrast),
        ("saturation", luma, ImageEnhance.Color),
    ]:
        result = adjusted(jnp.asarray(image), adjustment, factor)
        expected = np.clip(factor * image + (1 - factor) * target, 0, 1)
        np.testing.assert_allclose(result, expected, atol=1e-6)
        # PIL rounds luma, its mean and the blend: each by up to half a 255th.
        enhanced = np.asarray(enhance(pil).enhance(factor)) / 255
        np.testing.assert_allclose(result, enhanced, atol=2.5 / 255)


def test_all_orders_equal_the_adjustments_one_by_one():
    image, values = jnp.asarray(random_image()), (1.3, 0.6, 1.4, 0.1)
    orders = list(itertools.permutations(range(4)))
    kinds = dict(zip(NAMES, values, strict=True))
    in_order = jax.jit(jax.vmap(partial(augment.adjust_in_order, **kinds), (None, 0)))
    results = np.asarray(in_order(image, jnp.array(orders)))
    for order, result in zip(orders, results, strict=True):
        expected = image
        for kind in order:
            expected = adjusted(expected, NAMES[kind], values[kind])
        np.testing.assert_allclose(result, expected, atol=2e-6)
    # Some neighbours commute, but most orders are views of their own.
    assert len(np.unique(np.round(results, 4), axis=0)) > 12


def test_orders_and_factors_are_uniform_and_applied_with_probability(key, monkeypatch):
    def drawn(image, order, **values):
        values = jnp.stack([values[name] for name in NAMES])
        return jnp.stack([order, values])[..., None].repeat(3, axis=-1)

    monkeypatch.setattr(augment, "adjust_in_order", drawn)

    @jax.jit
    def draw(spread):
        law = dict.fromkeys(NAMES, spread) | {"hue": 0.2, "probability": 0.7}
        jitter = jax.vmap(partial(augment.random_color_jitter, **law), (0, None))
        return jitter(jax.random.split(key, 6800), jnp.full((2, 4, 3), -9.0))

    for spread, low, high in ((0.4, 0.6, 1.4), (1.5, 0.0, 2.5)):
        orders, values = np.moveaxis(np.asarray(draw(spread))[..., 0], 1, 0)
        applied = values[:, 0] != -9
        assert abs(applied.mean() - 0.7) < 0.03
        orders, times = np.unique(orders[applied], axis=0, return_counts=True)
        assert len(orders) == 24
        np.testing.assert_allclose(times, 200, atol=70)
        ends = [(low, high)] * 3 + [(-0.2, 0.2)]
        for column, (start, end) in zip(values[applied].T, ends, strict=True):
            assert start <= column.min() < column.max() <= end
            assert abs(column.var() - (end - start) ** 2 / 12) < (end - start) ** 2 / 99


def test_an_image_becomes_its_luma_with_probability(key):
    image = random_image()
    view = jax.vmap(partial(augment.random_greyscale, probability=0.3), (0, None))
    found = np.asarray(jax.jit(view)(jax.random.split(key, 4000), jnp.asarray(image)))
    grey = np.ptp(found, axis=-1).max(axis=(1, 2)) == 0
    assert abs(grey.mean() - 0.3) < 0.03
    assert (found[~grey] == image).all()
    expected = np.repeat((image @ LUMA)[..., None], 3, axis=-1)
    np.testing.assert_allclose(found[grey][0], expected, atol=1e-6)


@pytest.mark.parametrize(("side", "blurred"), [(32, False), (33, True)])
def test_views_blur_only_images_of_more_than_32_pixels(key, side, blurred):
    """With all else off, a view is the image or that image under SciPy's Gaussian."""
    image = random_image((side, side, 3))
    found = np.asarray(views(jax.random.split(key, 300), jnp.asarray(image), PLAIN))
    # A box of full area is the whole image where its aspect ratio rounds to 1.
    expected = ndimage.gaussian_filter(image, (1.5, 1.5, 0), mode="nearest", radius=66)
    same, smooth = (np.abs(found - x).max((1, 2, 3)) < 1e-5 for x in (image, expected))
    assert same.any()
    assert smooth.any() == blurred


@pytest.mark.parametrize("channels", [1, 4])
def test_colour_images_only(key, channels):
    for function in (augment.greyscale, partial(augment.simsiam_colour, key)):
        with pytest.raises(ValueError, match="3 channels"):
            jax.eval_shape(function, jnp.zeros((4, 4, channels)))


def test_the_crop_comes_first(key):
    """Contrast is taken about the mean of what is seen, not of the whole image."""
    image = jnp.asarray(random_image((33, 33, 3)))
    small = {"crop_scale": (0.2, 0.2), "blur_sigma": (0.0, 0.0)}
    still = dict.fromkeys(NAMES, 0.0) | {"jitter_probability": 1.0}
    keys, values = jax.random.split(key, 300), PLAIN | small | still
    plain = np.asarray(views(keys, image, values))
    found = np.asarray(views(keys, image, values | {"contrast": 1.0}))
    for own, seen in zip(plain[:5], found[:5], strict=True):
        distance, about = own @ LUMA - (own @ LUMA).mean(), (own @ LUMA).mean()
        factor = np.median((seen @ LUMA - about) / distance)
        expected = np.clip(factor * own + (1 - factor) * about, 0, 1)
        np.testing.assert_allclose(seen, expected, atol=1e-3)
