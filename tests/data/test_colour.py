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

from fcjax.data import colour

LUMA = np.array([0.2989, 0.587, 0.114])
FIXED = {"brightness": 1.3, "contrast": 0.6, "saturation": 1.4, "hue": 0.1}
RANDOM = [
    colour.random_color_jitter,
    colour.random_greyscale,
    colour.simsiam_colour,
    partial(colour.simsiam_colour, blur_probability=0.5),
]
ADJUSTMENTS = [
    colour.adjust_brightness,
    colour.adjust_contrast,
    colour.adjust_saturation,
    colour.adjust_hue,
]
adjust_in_order = jax.jit(colour.adjust_in_order)


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
    result = jax.jit(colour.adjust_hue)(jnp.asarray(image), shift)
    np.testing.assert_allclose(result, turned(image, shift), atol=2e-6)


def test_greyscale_by_hand():
    image = random_image()
    expected = np.repeat((image @ LUMA)[..., None], 3, axis=-1)
    result = colour.greyscale(jnp.asarray(image))
    np.testing.assert_allclose(result, expected, atol=1e-6)


@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0, 1.7])
def test_factors_equal_the_formula_and_pil(factor):
    image = random_image()
    luma = (image @ LUMA)[..., None]
    pil = Image.fromarray(np.round(image * 255).astype(np.uint8))
    for adjust, target, enhance in [
        (colour.adjust_brightness, 0.0, ImageEnhance.Brightness),
        (colour.adjust_contrast, luma.mean(), ImageEnhance.Contrast),
        (colour.adjust_saturation, luma, ImageEnhance.Color),
    ]:
        result = adjust(jnp.asarray(image), factor)
        expected = np.clip(factor * image + (1 - factor) * target, 0, 1)
        np.testing.assert_allclose(result, expected, atol=1e-6)
        # PIL rounds luma, its mean and the blend: each by up to half a 255th.
        enhanced = np.asarray(enhance(pil).enhance(factor)) / 255
        np.testing.assert_allclose(result, enhanced, atol=2.5 / 255)


def test_all_orders_equal_the_adjustments_one_by_one():
    image = jnp.asarray(random_image())
    results = []
    for order in itertools.permutations(range(4)):
        expected = image
        for kind in order:
            expected = ADJUSTMENTS[kind](expected, list(FIXED.values())[kind])
        result = adjust_in_order(image, jnp.array(order), **FIXED)
        np.testing.assert_allclose(result, expected, atol=2e-6)
        results.append(np.asarray(result))
    # Some neighbours commute, but most orders are views of their own.
    assert len(np.unique(np.round(results, 4), axis=0)) > 12


def test_all_orders_are_drawn_alike(key, monkeypatch):
    def drawn(image, order, **_):
        return jnp.zeros_like(image).at[0, :, 0].set(order)

    monkeypatch.setattr(colour, "adjust_in_order", drawn)
    jitter = partial(colour.random_color_jitter, probability=1.0)
    views = jax.vmap(jitter, (0, None))(
        jax.random.split(key, 4800), jnp.zeros((1, 4, 3))
    )
    orders, counts = np.unique(views[:, 0, :, 0], axis=0, return_counts=True)
    assert len(orders) == 24
    np.testing.assert_allclose(counts, 200, atol=70)


@pytest.mark.parametrize(("spread", "low", "high"), [(0.4, 0.6, 1.4), (1.5, 0.0, 2.5)])
def test_factors_are_uniform_and_applied_with_probability(
    key, monkeypatch, spread, low, high
):
    names = ("brightness", "contrast", "saturation", "hue")

    def drawn(image, order, **values):
        values = jnp.stack([values[name] for name in names])
        return jnp.tile(values.reshape(2, 2, 1), 3)

    monkeypatch.setattr(colour, "adjust_in_order", drawn)
    jitter = partial(
        colour.random_color_jitter,
        brightness=spread,
        contrast=spread,
        saturation=spread,
        hue=0.2,
        probability=0.7,
    )
    image = jnp.full((2, 2, 3), -9.0)
    views = jax.vmap(jitter, (0, None))(jax.random.split(key, 6000), image)
    values = np.asarray(views)[..., 0].reshape(-1, 4)
    applied = values[:, 0] != -9
    assert abs(applied.mean() - 0.7) < 0.03
    values = values[applied]
    ends = [(low, high)] * 3 + [(-0.2, 0.2)]
    for column, (start, end) in zip(values.T, ends, strict=True):
        width = end - start
        assert start <= column.min() < start + 0.01 * width
        assert end - 0.01 * width < column.max() <= end
        assert abs(column.mean() - (start + end) / 2) < 0.02 * width
        assert abs(column.var() - width**2 / 12) < 0.01 * width**2
    # What is drawn for one adjustment says nothing of another.
    assert np.abs(np.corrcoef(values.T) - np.eye(4)).max() < 0.06


def test_greyscale_probability(key):
    image = jnp.asarray(random_image())
    views = jax.vmap(partial(colour.random_greyscale, probability=0.3), (0, None))(
        jax.random.split(key, 4000), image
    )
    grey = np.ptp(views, axis=-1).max(axis=(1, 2)) == 0
    assert abs(grey.mean() - 0.3) < 0.03
    np.testing.assert_array_equal(views[~grey][0], image)


def test_neutral_parameters_give_the_image_back(key):
    image = jnp.asarray(random_image())
    for adjust in ADJUSTMENTS[:3]:
        np.testing.assert_array_equal(adjust(image, 1.0), image)
    for result in (
        colour.random_color_jitter(key, image, probability=0),
        colour.random_greyscale(key, image, probability=0),
    ):
        np.testing.assert_array_equal(result, image)
    still = {"brightness": 0, "contrast": 0, "saturation": 0, "hue": 0}
    jittered = colour.random_color_jitter(key, image, **still, probability=1)
    np.testing.assert_allclose(jittered, image, atol=1e-6)


@pytest.mark.parametrize(("side", "blurred"), [(32, False), (33, True)])
def test_views_blur_only_images_of_more_than_32_pixels(key, side, blurred):
    """With all else off, a view is the image or that image under SciPy's Gaussian."""
    image = random_image((side, side, 3))
    view = partial(
        colour.simsiam_colour,
        crop_scale=(1.0, 1.0),
        flip_probability=0.0,
        jitter_probability=0.0,
        grey_probability=0.0,
        blur_sigma=(1.5, 1.5),
    )
    keys = jax.random.split(key, 300)
    views = jax.jit(jax.vmap(view, (0, None)))(keys, jnp.asarray(image))
    # A box of full area is the whole image where its aspect ratio rounds to 1.
    expected = ndimage.gaussian_filter(image, (1.5, 1.5, 0), mode="nearest", radius=66)
    same, smooth = (
        np.abs(np.asarray(views) - x).max(axis=(1, 2, 3)) < 1e-5
        for x in (image, expected)
    )
    assert same.any()
    assert smooth.any() == blurred


def test_views_hand_their_parameters_on(key):
    image = jnp.asarray(random_image((8, 8, 3)))
    still = {"crop_scale": (1.0, 1.0), "flip_probability": 0.0}
    view = jax.jit(
        jax.vmap(
            lambda k, jitter, grey: colour.simsiam_colour(
                k, image, **still, jitter_probability=jitter, grey_probability=grey
            ),
            (0, None, None),
        )
    )
    keys = jax.random.split(key, 500)
    grey = np.ptp(view(keys, 0.0, 0.25), axis=-1).max(axis=(1, 2)) == 0
    assert abs(grey.mean() - 0.25) < 0.08
    plain, jittered = view(keys, 0.0, 0.0), view(keys, 0.6, 0.0)
    changed = np.abs(np.asarray(plain - jittered)).max(axis=(1, 2, 3)) > 1e-4
    assert abs(changed.mean() - 0.6) < 0.08


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_colour_images_only(key, channels):
    image = jnp.zeros((4, 4, channels))
    for function in (
        colour.greyscale,
        *(lambda x, f=adjust: f(x, 0.5) for adjust in ADJUSTMENTS),
        *(partial(view, key) for view in RANDOM),
    ):
        with pytest.raises(ValueError, match="3 channels"):
            jax.eval_shape(function, image)


@pytest.mark.parametrize("view", RANDOM)
def test_a_view_depends_on_its_key_alone(key, view):
    keys = jax.random.split(key, 6)
    images = jnp.asarray(random_image((6, 10, 13, 3)))
    views = jax.jit(jax.vmap(view))(keys, images)
    assert views.shape == images.shape
    assert views.dtype == jnp.float32
    assert views.min() >= 0
    assert views.max() <= 1 + 1e-6
    alone = jax.jit(view)(keys[5], images[5])
    np.testing.assert_allclose(alone, views[5], atol=5e-6)
    same_image = jax.jit(jax.vmap(view, (0, None)))(keys, images[0])
    assert len(np.unique(same_image, axis=0)) > 1


def test_every_hyper_parameter_may_be_traced(key):
    image = jnp.asarray(random_image((8, 8, 3)))

    def view(values):
        scale, sigma, *others = values
        names = ("brightness", "contrast", "saturation", "hue")
        names += ("flip_probability", "jitter_probability", "grey_probability")
        names += ("blur_probability",)
        return colour.simsiam_colour(
            key,
            image,
            crop_scale=(scale, 1.0),
            blur_sigma=(0.1, sigma),
            **dict(zip(names, others, strict=True)),
        )

    values = [0.5, 1.5, 0.3, 0.2, 0.4, 0.1, 0.5, 1.0, 0.2, 0.9]
    fixed = jax.jit(lambda: view(values))
    np.testing.assert_allclose(jax.jit(view)(values), fixed(), atol=5e-6)


def test_the_crop_comes_first(key):
    """Contrast is taken about the mean of what is seen, not of the whole image."""
    image = jnp.asarray(random_image((12, 12, 3)))
    view = partial(
        colour.simsiam_colour,
        crop_scale=(0.2, 0.2),
        brightness=0,
        contrast=1,
        saturation=0,
        hue=0,
        jitter_probability=1,
        grey_probability=0,
    )
    for one in jax.random.split(key, 5):
        still = view(one, image, contrast=0)
        lumas = [np.asarray(x) @ LUMA for x in (view(one, image), still)]
        factor = np.median((lumas[0] - lumas[1].mean()) / (lumas[1] - lumas[1].mean()))
        expected = colour.adjust_contrast(still, float(factor))
        np.testing.assert_allclose(view(one, image), expected, atol=1e-3)
