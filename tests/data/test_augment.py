"""Augmentation against PIL and SciPy on fixed parameters, and the laws of its draws, of
images and of feature vectors."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from fcjax.data import augment

SHAPES = [(12, 17, 3), (15, 9, 1)]
# Compiled once a shape, with their parameters traced.
crop_and_resize = jax.jit(augment.crop_and_resize)
rotate = jax.jit(augment.rotate, static_argnames="order")
gaussian_blur = jax.jit(augment.gaussian_blur)


def random_image(shape):
    return np.random.default_rng(0).random(shape, np.float32)


def by_channel(image, function):
    channels = [function(image[..., c]) for c in range(image.shape[-1])]
    return np.stack([np.asarray(channel) for channel in channels], axis=-1)


def source_coordinates(shape, degrees):
    """Where each output pixel of a counter-clockwise rotation comes from, [2, H, W]."""
    centre = (np.array(shape[:2]) - 1.0)[:, None, None] / 2
    y, x = np.indices(shape[:2]) - centre
    angle = np.deg2rad(degrees)
    rows = np.cos(angle) * y + np.sin(angle) * x
    columns = -np.sin(angle) * y + np.cos(angle) * x
    return np.stack([rows, columns]) + centre


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("box", [(0, 0, 5, 7), (1, 3, 1, 1), (3, 0, 4, 8)])
def test_crop_and_resize_equals_pil(shape, box):
    image = random_image(shape)
    top, left, height, width = box

    def oracle(channel):
        cropped = Image.fromarray(channel[top : top + height, left : left + width])
        return cropped.resize((shape[1], shape[0]), Image.Resampling.BILINEAR)

    result = crop_and_resize(image, *map(float, box))
    np.testing.assert_allclose(result, by_channel(image, oracle), atol=1e-6)


@pytest.mark.parametrize("shape", [*SHAPES, (1, 7, 1)])
@pytest.mark.parametrize("degrees", [0.0, 10.0, -7.3, 45.5, 91.0, 180.0])
def test_rotation_equals_scipy_and_pil(shape, degrees):
    image = random_image(shape)
    source = source_coordinates(shape, degrees)
    bilinear = partial(ndimage.map_coordinates, order=1, mode="grid-constant")
    expected = by_channel(image, lambda channel: bilinear(channel, source))
    np.testing.assert_allclose(rotate(image, degrees), expected, atol=2e-5)

    def nearest(channel):
        return Image.fromarray(channel).rotate(degrees, Image.Resampling.NEAREST)

    # A source half-way between two pixels goes either way with the last rounding.
    decided = (np.abs(source % 1.0 - 0.5) > 1e-4).all(axis=0)
    assert decided.mean() > 0.9
    result = np.asarray(rotate(image, degrees, order=0))
    expected = by_channel(image, nearest)
    np.testing.assert_array_equal(result[decided], expected[decided])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("shift", [(0.0, 0.0), (1.5, -2.25)])
@pytest.mark.parametrize("matrix", [np.eye(2), np.array([[0.8, 0.3], [-0.2, 1.4]])])
def test_an_affine_map_equals_scipy_on_the_median_of_the_border(shape, matrix, shift):
    image, inverse = random_image(shape), np.linalg.inv(matrix)
    centre = (np.array(shape[:2]) - 1) / 2

    def oracle(channel):
        inner = np.zeros(channel.shape, bool)
        inner[1:-1, 1:-1] = True
        law = {"order": 1, "mode": "grid-constant", "cval": np.median(channel[~inner])}
        offset = centre - inverse @ (centre + shift)
        return ndimage.affine_transform(channel, inverse, offset, **law)

    result = jax.jit(augment.affine)(image, matrix, np.array(shift))
    np.testing.assert_allclose(result, by_channel(image, oracle), atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sigma", [0.1, 0.5, 2.0])
def test_gaussian_blur_equals_scipy(shape, sigma):
    image = random_image(shape)
    law = {"sigma": sigma, "mode": "nearest", "radius": 2 * max(shape)}
    expected = by_channel(image, partial(ndimage.gaussian_filter, **law))
    np.testing.assert_allclose(gaussian_blur(image, sigma), expected, atol=1e-6)


@partial(jax.jit, static_argnums=1)
def boxes(key, shape, scale, ratio):
    """Tops, lefts, heights and widths of 4000 boxes."""
    keys = jax.random.split(key, 4000)
    return jax.vmap(lambda k: augment._random_box(k, shape, scale, ratio))(keys)


def test_boxes_follow_torchvisions_law(key):
    side = 1000
    drawn = np.stack(boxes(key, (side, side, 1), (0.2, 0.6), (0.5, 2.0)))
    top, left, height, width = drawn
    area, aspect = height * width / side**2, np.log(width / height)
    # At most 0.6 in area and 2 in ratio, so a box is rejected only above 1000 wide.
    assert 0.199 < area.min() < 0.21
    assert 0.59 > area.max() - 0.011 > 0.5
    assert np.abs(aspect).max() < np.log(2) + 0.01
    for start, extent in ((top, height), (left, width)):
        assert ((start >= 0) & (start + extent <= side)).all()
        assert abs((start / np.maximum(side - extent, 1)).mean() - 0.5) < 0.03


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((4, 40, 1), (0, 17, 4, 5)), ((40, 4, 1), (17, 0, 5, 4))],
)
def test_boxes_that_never_fit_fall_back_to_the_centre(key, shape, expected):
    # Twice the image's area fits nowhere.
    drawn = boxes(key, shape, (2.0, 2.0), (3 / 4, 4 / 3))
    np.testing.assert_array_equal(np.transpose(drawn), np.tile(expected, (4000, 1)))


def draws(key, function, image, **parameters):
    """4000 views [4000, H, W, C] of one image."""
    view = jax.vmap(partial(function, **parameters), (0, None))
    return np.asarray(jax.jit(view)(jax.random.split(key, 4000), jnp.asarray(image)))


def test_rotation_angles_are_uniform(key):
    # A ramp along x turns into its angle's sine along y at the centre.
    ramp = np.tile(np.linspace(0, 1, 9, dtype=np.float32)[:, None], (9, 1, 1))
    views = draws(key, augment.random_rotation, ramp, max_degrees=20)[..., 0]
    degrees = np.rad2deg(np.arcsin((views[:, 3, 4] - views[:, 5, 4]) * 4))
    assert np.abs(degrees).max() <= 20.01
    assert abs(degrees.mean()) < 0.6
    assert abs(degrees.var() - 20**2 / 3) < 8


def test_blur_probability_and_range(key):
    impulse = np.zeros((15, 15, 1), np.float32)
    impulse[7, 7] = 1
    law = {"sigma": (0.5, 1.5), "probability": 0.3}
    views = draws(key, augment.random_blur, impulse, **law)[..., 0]
    blurred = views[:, 7, 7] < 1
    assert abs(blurred.mean() - 0.3) < 0.03
    assert (views[~blurred] == impulse[..., 0]).all()
    # The ratio of neighbours in the kernel is exp(-1 / (2 sigma^2)).
    ratio = views[blurred, 7, 8] / views[blurred, 7, 7]
    sigma = np.sqrt(-0.5 / np.log(ratio))
    assert abs(sigma.mean() - 1.0) < 0.03


STILL = {"zoom": (1.0, 1.0)} | dict.fromkeys(
    ["max_degrees", "max_shear", "max_shift", "max_log_gamma", "blur_probability"], 0.0
)


def test_an_affine_view_varies_what_its_arguments_say(key):
    """Of a Gaussian spot that is twice as high as wide, by its moments."""
    y, x = np.indices((41, 41)) - 20.0
    spot = np.exp(-(y**2) / 32 - x**2 / 8)[..., None].astype(np.float32)

    def moments(**law):
        views = draws(key, augment.affine_grey, spot, **STILL | law)[..., 0]
        weights = views / views.sum(axis=(1, 2), keepdims=True)
        first = np.stack([(weights * g).sum(axis=(1, 2)) for g in (y, x)])
        second = [(weights * g).sum(axis=(1, 2)) for g in (y * y, x * x, y * x)]
        return first, np.array(second), views

    def uniform(values, most):
        assert np.abs(values).max() <= most * 1.02
        np.testing.assert_allclose(
            [values.mean(), values.std()], [0, most / 3**0.5], atol=most / 30
        )

    _, (high, wide, _), views = moments()
    np.testing.assert_allclose(views, np.tile(spot[..., 0], (4000, 1, 1)), atol=1e-5)
    places, _, _ = moments(max_shift=0.1)
    for place in places:
        uniform(place, 4.1)
    _, (high, wide, _), _ = moments(zoom=(0.8, 1.25))
    uniform(np.log(high / 16) / 2, np.log(1.25) + 0.01)
    _, (high, _, tilt), _ = moments(max_shear=0.3)
    uniform(tilt / high, 0.3)
    _, (high, wide, tilt), _ = moments(max_degrees=20.0)
    uniform(np.rad2deg(np.arctan2(-2 * tilt, high - wide) / 2), 20)
    _, (high, _, _), _ = moments(max_log_gamma=0.7)  # a power of a Gaussian is one
    uniform(np.log(16 / high), 0.7)


def test_flips_mirror_left_to_right_with_probability(key):
    image = random_image((3, 4, 2))
    views = draws(key, augment.random_flip, image, probability=0.2)
    flipped = (views == image[:, ::-1]).all(axis=(1, 2, 3))
    assert abs(flipped.mean() - 0.2) < 0.03
    assert (views[~flipped] == image).all()


COMMON = {"crop_scale": (0.6, 1.0), "blur_sigma": (0.1, 1.5), "blur_probability": 0.6}
JITTER = {"brightness": 0.3, "contrast": 0.2, "saturation": 0.4, "hue": 0.1}
COINS = {"flip_probability": 0.5, "jitter_probability": 0.8, "grey_probability": 0.2}


@pytest.mark.parametrize(
    ("view", "values", "atol"),
    [
        (partial(augment.ccfc_grey, order=0), COMMON | {"max_degrees": 15.0}, 2e-6),
        (partial(augment.ccfc_grey, order=1), COMMON | {"max_degrees": 15.0}, 2e-6),
        (augment.affine_grey, {"zoom": (0.8, 1.3), "max_degrees": 15.0}, 5e-6),
        (augment.simsiam_colour, COMMON | JITTER | COINS, 5e-6),
        (augment.vector_view, {"scale": 0.2, "probability": 0.3}, 1e-6),
    ],
)
def test_a_view_depends_on_its_key_alone_and_may_be_swept(key, view, values, atol):
    """Many at a time with traced parameters are, one by one, those of plain numbers."""
    shape = (6, 9) if view is augment.vector_view else (6, 10, 13, 3)
    keys, images = jax.random.split(key, 6), jnp.asarray(random_image(shape))
    together = jax.jit(jax.vmap(lambda k, x, v: view(k, x, **v), (0, 0, None)))
    views = together(keys, images, values)
    assert views.shape == images.shape
    assert views.min() >= 0
    assert views.max() <= 1 + 1e-6
    alone = jax.jit(partial(view, **values))
    for i in (0, 5):
        np.testing.assert_allclose(alone(keys[i], images[i]), views[i], atol=atol)
    same_image = together(keys, jnp.stack([images[0]] * 6), values)
    assert len(np.unique(same_image, axis=0)) == 6


@pytest.mark.parametrize("view", [augment.ccfc_grey, augment.affine_grey])
def test_a_view_has_the_same_bits_among_however_many(key, view):
    """So that the clients of a device may be all of them or some."""
    images = jnp.asarray(random_image((10, 45, 8, 8, 1)))
    keys, views = jax.random.split(key, (10, 45)), jax.jit(jax.vmap(jax.vmap(view)))
    np.testing.assert_array_equal(views(keys, images)[:5], views(keys[:5], images[:5]))


# --- feature vectors

VALUES = jnp.concatenate([jnp.full(20000, 0.5), jnp.tile(jnp.array([0.0, 1.0]), 500)])


def test_dropped_features_are_0_and_the_others_as_they_were(key):
    x = jnp.linspace(0.1, 1.0, 50)
    drop = jax.vmap(partial(augment.feature_dropout, probability=0.3), (0, None))
    views = np.asarray(jax.jit(drop)(jax.random.split(key, 2000), x))
    dropped = views == 0
    np.testing.assert_array_equal(views, np.where(dropped, 0, x))
    np.testing.assert_allclose(dropped.mean(axis=0), 0.3, atol=0.05)
    # Independent of each other: the count has the binomial's variance.
    assert abs(dropped.sum(axis=1).var() - 50 * 0.3 * 0.7) < 1.5


def test_a_view_is_noise_and_then_dropout_drawn_apart(key):
    view = jax.jit(augment.vector_view)
    still = view(key, VALUES, scale=0.0, probability=0.0)
    np.testing.assert_array_equal(still, VALUES)
    assert (view(key, VALUES, scale=0.1, probability=1.0) == 0).all()
    noisy = np.asarray(augment.vector_view(key, VALUES))[:20000]
    dropped = noisy == 0
    assert abs(dropped.mean() - 0.2) < 0.015
    assert abs(noisy[~dropped].mean() - 0.5) < 0.005
    assert abs(noisy[~dropped].std() - 0.1) < 0.005
