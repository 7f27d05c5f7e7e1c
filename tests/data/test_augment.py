"""Augmentation against PIL and SciPy on fixed parameters, and the laws of its draws."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from fcjax.data import augment

SHAPES = [(28, 28, 1), (12, 17, 3), (15, 9, 2)]
RANDOM = [
    augment.random_resized_crop,
    partial(augment.random_rotation, max_degrees=30.0, order=0),
    partial(augment.random_rotation, max_degrees=30.0, order=1),
    augment.random_blur,
    augment.random_flip,
    augment.ccfc_grey,
    partial(augment.ccfc_grey, crop_scale=(0.6, 1), max_degrees=15, order=1),
]
# Compiled once a shape, with their parameters traced.
crop_and_resize = jax.jit(augment.crop_and_resize)
rotate = jax.jit(augment.rotate, static_argnames="order")
gaussian_blur = jax.jit(augment.gaussian_blur)


def random_image(shape, seed=0):
    return np.random.default_rng(seed).random(shape, np.float32)


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
@pytest.mark.parametrize(
    "box", [(0, 0, 5, 7), (2, 1, 6, 5), (1, 3, 1, 1), (3, 0, 4, 8)]
)
def test_crop_and_resize_equals_pil(shape, box):
    image = random_image(shape)
    top, left, height, width = box

    def oracle(channel):
        cropped = Image.fromarray(channel[top : top + height, left : left + width])
        return cropped.resize((shape[1], shape[0]), Image.Resampling.BILINEAR)

    result = crop_and_resize(jnp.asarray(image), *map(float, box))
    np.testing.assert_allclose(result, by_channel(image, oracle), atol=1e-6)


def test_crop_does_not_bleed():
    image = np.ones((9, 9, 1), np.float32)
    image[2:6, 3:8] = 0.0
    assert not augment.crop_and_resize(jnp.asarray(image), 2, 3, 4, 5).any()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("degrees", [10.0, -7.3, 45.5, 91.0, 180.0])
def test_rotate_bilinear_equals_scipy(shape, degrees):
    image = random_image(shape)
    coordinates = source_coordinates(shape, degrees)

    def oracle(channel):
        return ndimage.map_coordinates(
            channel, coordinates, order=1, mode="grid-constant"
        )

    result = rotate(jnp.asarray(image), degrees)
    np.testing.assert_allclose(result, by_channel(image, oracle), atol=2e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("degrees", [0.0, 10.0, -7.3, 29.9, 91.0, 200.0])
def test_rotate_nearest_equals_pil(shape, degrees):
    image = random_image(shape)

    def oracle(channel):
        return Image.fromarray(channel).rotate(degrees, Image.Resampling.NEAREST)

    result = np.asarray(rotate(jnp.asarray(image), degrees, order=0))
    # A source half-way between two pixels goes either way with the last rounding.
    fraction = source_coordinates(shape, degrees) % 1.0
    decided = (np.abs(fraction - 0.5) > 1e-4).all(axis=0)
    assert decided.mean() > 0.9
    np.testing.assert_array_equal(result[decided], by_channel(image, oracle)[decided])


def test_rotate_by_a_quarter_is_counter_clockwise():
    image = random_image((8, 8, 3))
    result = rotate(jnp.asarray(image), 90.0, order=1)
    np.testing.assert_allclose(result, np.rot90(image), atol=1e-5)


def test_rotate_takes_order_0_or_1():
    with pytest.raises(Exception, match="order"):
        augment.rotate(jnp.zeros((4, 4, 1)), 5.0, order=3)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0, 2.0])
def test_gaussian_blur_equals_scipy(shape, sigma):
    image = random_image(shape)

    def oracle(channel):
        return ndimage.gaussian_filter(
            channel, sigma, mode="nearest", radius=2 * max(shape)
        )

    result = gaussian_blur(jnp.asarray(image), sigma)
    np.testing.assert_allclose(result, by_channel(image, oracle), atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_flip_equals_numpy(shape):
    image = random_image(shape)
    np.testing.assert_array_equal(augment.flip(jnp.asarray(image)), image[:, ::-1])


@pytest.mark.parametrize("shape", [(12, 17, 3), (1, 6, 1)])
def test_neutral_parameters_give_the_image_back(shape, key):
    image = jnp.asarray(random_image(shape))
    height, width, _ = shape
    for result in (
        augment.crop_and_resize(image, 0, 0, height, width),
        augment.rotate(image, 0.0, order=0),
        augment.rotate(image, 0.0, order=1),
        augment.gaussian_blur(image, 0.0),
        augment.random_rotation(key, image, max_degrees=0),
        augment.random_blur(key, image, probability=0),
        augment.random_flip(key, image, probability=0),
    ):
        np.testing.assert_array_equal(result, image)


def test_a_square_box_of_full_area_is_the_whole_image(key):
    image = jnp.asarray(random_image((8, 8, 1)))
    crop = partial(augment.random_resized_crop, scale=(1, 1), ratio=(1, 1))
    np.testing.assert_array_equal(crop(key, image), image)


def boxes(key, shape, scale, ratio, num_draws=4000):
    draw = jax.jit(jax.vmap(lambda k: augment._random_box(k, shape, scale, ratio)))
    return np.stack(draw(jax.random.split(key, num_draws)))


def test_boxes_follow_torchvisions_law(key):
    side = 1000
    top, left, height, width = drawn = boxes(key, (side, side, 1), (0.2, 0.6), (0.5, 2))
    np.testing.assert_array_equal(drawn, np.round(drawn))
    area, aspect = height * width / side**2, np.log(width / height)
    # At most 0.6 in area and 2 in ratio, so a box is rejected only above 1000 wide.
    assert 0.199 < area.min() < 0.21
    assert 0.59 > area.max() - 0.011 > 0.5
    assert np.abs(aspect).max() < np.log(2) + 0.01
    small = area < 0.45
    assert abs(area[small].mean() - 0.325) < 0.01
    assert abs(aspect[small].mean()) < 0.03
    assert abs(aspect[small].var() - np.log(2) ** 2 / 3) < 0.02
    for start, extent in ((top, height), (left, width)):
        assert (start >= 0).all()
        assert (start + extent <= side).all()
        assert abs((start / np.maximum(side - extent, 1)).mean() - 0.5) < 0.03


def test_box_positions_reach_both_ends(key):
    top, _, height, _ = boxes(key, (8, 8, 1), (0.25, 0.25), (1.0, 1.0))
    assert (height == 4).all()
    counts = np.bincount(top.astype(int), minlength=5)
    assert len(counts) == 5
    np.testing.assert_allclose(counts / counts.sum(), 0.2, atol=0.03)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 40, 1), (0, 17, 4, 5)),
        ((40, 4, 1), (17, 0, 5, 4)),
        ((8, 8, 1), (0, 0, 8, 8)),
    ],
)
def test_boxes_that_never_fit_fall_back_to_the_centre(key, shape, expected):
    # Twice the image's area fits nowhere.
    drawn = boxes(key, shape, (2.0, 2.0), (3 / 4, 4 / 3), num_draws=5)
    np.testing.assert_array_equal(drawn, np.tile(expected, (5, 1)).T)


def test_rotation_angles_are_uniform(key):
    # A ramp along x turns into its angle's sine along y at the centre.
    y, x = np.indices((9, 9)) - 4.0
    ramp = jnp.asarray((x / 8 + 0.5 + 0 * y)[..., None], jnp.float32)
    draw = jax.jit(
        jax.vmap(partial(augment.random_rotation, max_degrees=20), (0, None))
    )
    views = np.asarray(draw(jax.random.split(key, 4000), ramp))[..., 0]
    degrees = np.rad2deg(np.arcsin((views[:, 3, 4] - views[:, 5, 4]) * 4))
    assert degrees.min() < -19.9
    assert degrees.max() > 19.9
    assert np.abs(degrees).max() <= 20.01
    assert abs(degrees.mean()) < 0.6
    assert abs(degrees.var() - 20**2 / 3) < 8


def test_blur_probability_and_range(key):
    impulse = jnp.zeros((15, 15, 1)).at[7, 7, 0].set(1.0)
    blur = partial(augment.random_blur, sigma=(0.5, 1.5), probability=0.3)
    views = np.asarray(jax.vmap(blur, (0, None))(jax.random.split(key, 4000), impulse))[
        ..., 0
    ]
    blurred = views[:, 7, 7] < 1
    assert abs(blurred.mean() - 0.3) < 0.03
    # The ratio of neighbours in the kernel is exp(-1 / (2 sigma^2)).
    ratio = views[blurred, 7, 8] / views[blurred, 7, 7]
    sigma = np.sqrt(-0.5 / np.log(ratio))
    assert 0.499 < sigma.min() < 0.51
    assert 1.49 < sigma.max() < 1.501
    assert abs(sigma.mean() - 1.0) < 0.03


def test_flip_probability(key):
    image = jnp.asarray(random_image((2, 2, 1)))
    random_flip = jax.vmap(partial(augment.random_flip, probability=0.2), (0, None))
    views = np.asarray(random_flip(jax.random.split(key, 4000), image))
    flipped = (views == np.asarray(image)[:, ::-1]).all(axis=(1, 2, 3))
    assert abs(flipped.mean() - 0.2) < 0.03
    np.testing.assert_array_equal(
        views[~flipped], np.tile(image, (sum(~flipped), 1, 1, 1))
    )


@pytest.mark.parametrize("view", RANDOM)
def test_a_view_depends_on_its_key_alone(key, view):
    keys = jax.random.split(key, 6)
    images = jnp.asarray(random_image((6, 10, 13, 3)))
    views = jax.jit(jax.vmap(view))(keys, images)
    assert views.shape == images.shape
    assert views.dtype == jnp.float32
    assert views.min() >= 0
    assert views.max() <= 1 + 1e-6
    for i in (0, 5):
        alone = view(keys[i], images[i])
        np.testing.assert_allclose(alone, views[i], atol=2e-6)
        np.testing.assert_array_equal(alone, view(keys[i], images[i]))
    smaller = jax.jit(jax.vmap(view))(keys[:2], images[:2])
    np.testing.assert_allclose(smaller, views[:2], atol=2e-6)
    same_image = jax.jit(jax.vmap(view, (0, None)))(keys, images[0])
    assert len(np.unique(same_image, axis=0)) > 1


def test_every_hyper_parameter_may_be_traced(key):
    image = jnp.asarray(random_image((8, 8, 1)))

    def view(scale, degrees, sigma, probability):
        return augment.ccfc_grey(
            key,
            image,
            crop_scale=(scale, 1.0),
            max_degrees=degrees,
            blur_sigma=(0.1, sigma),
            blur_probability=probability,
            order=1,
        )

    values = (0.6, 15.0, 1.5, 0.9)
    np.testing.assert_allclose(jax.jit(view)(*values), view(*values), atol=2e-6)

    def fixed(top, degrees, sigma):
        cropped = augment.crop_and_resize(image, top, 1, 5, 6)
        return augment.gaussian_blur(augment.rotate(cropped, degrees), sigma)

    values = (2.0, 15.0, 1.5)
    np.testing.assert_allclose(jax.jit(fixed)(*values), fixed(*values), atol=2e-6)


def test_to_float():
    pixels = np.arange(256, dtype=np.uint8).reshape(4, 64)
    result = augment.to_float(jnp.asarray(pixels))
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(result, pixels / 255, rtol=1e-6)
    halves = jnp.asarray([0.25, 0.5], jnp.float16)
    np.testing.assert_array_equal(augment.to_float(halves), np.float32([0.25, 0.5]))
    assert augment.to_float(halves).dtype == jnp.float32
