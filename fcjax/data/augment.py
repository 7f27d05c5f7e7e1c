"""Random views (augmentations) of grey images, colour images and feature vectors.

All functions run on the device. Each takes one example with values in [0, 1] and
returns one of the same shape. An example is an image [H, W, C], with red as the first
channel of colour images, or a vector [F]. Use `jax.vmap` over examples and keys; each
draw then depends on its own key only. The random functions have the distributions of
torchvision's transforms of floating tensors.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int, Shaped, UInt8

from fcjax import losses
from fcjax.federated import clients
from fcjax.ragged import Ragged
from fcjax.types import Federation, PRNGKey, Scalar

# --- Augment

Image = Float[Array, "H W C"]
Augment = Callable[[PRNGKey, Image], Image]
"""Maps (key, image [H, W, C] in [0, 1]) to a random view of the same shape and range.
For feature vectors, maps (key, vector [F]) to a vector [F]."""

Number = Scalar | int
"""A hyper-parameter that may be swept, or an int."""

NUM_CANDIDATES = 10
"""The number of candidate boxes before a random crop falls back to the centre, as in
torchvision."""


def to_float(
    images: UInt8[Array, "*S"] | Float[Array, "*S"],
) -> Float32[Array, "*S"]:
    """Converts images to float32 in [0, 1].

    Args:
      images: an array of any shape, uint8 or floating.

    Returns:
      float32 of the same shape: uint8 values divided by 255, floating values unchanged.

    Examples:
      >>> print(to_float(jnp.array([0, 255], jnp.uint8)))
      [0. 1.]
    """
    if jnp.issubdtype(images.dtype, jnp.floating):
        return images.astype(jnp.float32)
    return images.astype(jnp.float32) / 255.0


def check_image(image: Array) -> None:
    """Checks that an array is an image [H, W, C].

    Args:
      image: the array.

    Raises:
      ValueError: the array does not have three axes.
    """
    if image.ndim != 3:
        raise ValueError(
            f"image must have the shape [H, W, C], got {image.shape}; reshape rows of "
            "pixels, and use vmap for a batch"
        )


def crop_and_resize(
    image: Image, top: Number, left: Number, height: Number, width: Number
) -> Image:
    """Returns a box of the image, scaled up to the whole image, as `resized_crop`.

    The interpolation is bilinear with half-pixel centres, and clamped to the box, so
    pixels outside the box have no influence. The box, in whole pixels, lies in the
    image. So it is never scaled down, and antialiasing would change nothing.

    Args:
      image: [H, W, C] values.
      top: the first row of the box.
      left: the first column of the box.
      height: the height of the box in pixels.
      width: the width of the box in pixels.

    Returns:
      The image [H, W, C].
    """
    check_image(image)
    for axis, start, extent in ((0, top, height), (1, left, width)):
        low, high, weight = _taps(image.shape[axis], start, extent)
        weight = jnp.expand_dims(weight, (1 - axis, 2))
        below, above = _take(image, low, axis), _take(image, high, axis)
        image = (1 - weight) * below + weight * above
    return image


def rotate(image: Image, degrees: Number, *, order: Literal[0, 1] = 1) -> Image:
    """Rotates the image counter-clockwise about its centre, cropped to its own shape.

    The image is surrounded by zeros. Order 1 interpolates between these zeros and the
    border pixels, as SciPy's `grid-constant` and torchvision's rule for tensors.

    Args:
      image: [H, W, C] values.
      degrees: the angle in degrees.
      order: 0 takes the nearest pixel, torchvision's default; 1 is bilinear.

    Returns:
      The image [H, W, C].

    Raises:
      ValueError: order is neither 0 nor 1, or the array is not an image.
    """
    check_image(image)
    if order not in (0, 1):
        raise ValueError(f"order must be 0 (nearest) or 1 (bilinear), got {order}")
    height, width, channels = image.shape
    angle = jnp.deg2rad(degrees)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    y = (jnp.arange(height) - (height - 1) / 2)[:, None]
    x = (jnp.arange(width) - (width - 1) / 2)[None, :]
    source_y = sin * x + cos * y + (height - 1) / 2
    source_x = cos * x - sin * y + (width - 1) / 2

    if order == 0:
        row, column = jnp.floor(source_y + 0.5), jnp.floor(source_x + 0.5)
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        index = (row * width + column).astype(jnp.int32)
        pixels = image.reshape(height * width, channels)
        return jnp.where(inside[..., None], _take(pixels, index), 0.0)

    return _bilinear(image, source_y, source_x)


def affine(
    image: Image, matrix: Float[Array, "2 2"], shift: Float[Array, "2"]
) -> Image:
    """Applies an affine map about the centre of the image, bilinearly.

    The pixel at x, relative to the centre and with the row first, moves to `matrix` x +
    `shift`. Pixels from outside the image have the background value: for each channel,
    the median of the border pixels.

    Args:
      image: [H, W, C] values.
      matrix: an invertible [2, 2] matrix.
      shift: [2] the shift in pixels, down and to the right.

    Returns:
      The image [H, W, C].
    """
    check_image(image)
    height, width, _ = image.shape
    centre = jnp.array([height - 1, width - 1]) / 2
    y, x = jnp.arange(height)[:, None], jnp.arange(width)[None, :]
    to_y, to_x = y - centre[0] - shift[0], x - centre[1] - shift[1]
    (a, b), (c, d) = matrix
    determinant = a * d - b * c
    source_y = (d * to_y - b * to_x) / determinant + centre[0]
    source_x = (a * to_x - c * to_y) / determinant + centre[1]
    border = (image[0], image[-1], image[1:-1, 0], image[1:-1, -1])
    background = jnp.median(jnp.concatenate(border), axis=0)[None, None]
    return _bilinear(image - background, source_y, source_x) + background


def gaussian_blur(image: Image, sigma: Number) -> Image:
    """Blurs the image by a Gaussian; border pixels are repeated outside the image.

    The kernel reaches twice the longer side, so it is not truncated for any useful
    sigma.

    Args:
      image: [H, W, C] values.
      sigma: the standard deviation in pixels; 0 returns the image unchanged.

    Returns:
      The image [H, W, C].
    """
    check_image(image)
    height, width, _ = image.shape
    radius = 2 * max(height, width)
    # For sigma below 0.05, all weights except the central one are 0 in float32.
    scaled = jnp.arange(radius + 1) / jnp.maximum(sigma, 0.05)
    weights = jnp.exp(-0.5 * scaled**2)
    # The rounding of a plain sum depends on the number of images. A cumulative sum has
    # no such dependence.
    weights = weights / (2 * jnp.cumsum(weights[::-1])[-1] - weights[0])
    # The default precision of GPUs would round the pixels to ten bits.
    return jnp.einsum(
        "ai,ijc,bj->abc",
        _convolution(weights, height),
        image,
        _convolution(weights, width),
        precision=jax.lax.Precision.HIGHEST,
    )


def flip(image: Image) -> Image:
    """Mirrors the image left to right.

    Args:
      image: [H, W, C] values.

    Returns:
      The image [H, W, C].

    Raises:
      ValueError: the image does not have the shape [H, W, C].
    """
    check_image(image)
    return image[:, ::-1]


def random_resized_crop(
    key: PRNGKey,
    image: Image,
    *,
    scale: tuple[Number, Number] = (0.08, 1.0),
    ratio: tuple[Number, Number] = (3 / 4, 4 / 3),
) -> Image:
    """Scales a random box up to the whole image, as torchvision's `RandomResizedCrop`.

    The area of the box is uniform in `scale`, and its aspect ratio is log-uniform in
    `ratio`. Height and width are rounded to whole pixels. The position is uniform.

    Args:
      key: the random key.
      image: [H, W, C] values.
      scale: the minimum and maximum area of the box, as a share of the image.
      ratio: the minimum and maximum aspect ratio (width / height) of the box.

    Returns:
      The image [H, W, C].
    """
    check_image(image)
    return crop_and_resize(image, *_random_box(key, image.shape, scale, ratio))


def random_rotation(
    key: PRNGKey, image: Image, *, max_degrees: Number, order: Literal[0, 1] = 1
) -> Image:
    """Rotates the image by an angle uniform in [-max_degrees, max_degrees].

    Args:
      key: the random key.
      image: [H, W, C] values.
      max_degrees: the maximum angle in degrees, in both directions.
      order: 0 rotates to the nearest pixel, 1 rotates bilinearly; see `rotate`.

    Returns:
      The image [H, W, C].
    """
    degrees = max_degrees * jax.random.uniform(key, minval=-1.0)
    return rotate(image, degrees, order=order)


def random_blur(
    key: PRNGKey,
    image: Image,
    *,
    sigma: tuple[Number, Number] = (0.1, 2.0),
    probability: Number = 0.5,
) -> Image:
    """Blurs the image with a given probability, with sigma uniform in a range.

    Args:
      key: the random key.
      image: [H, W, C] values.
      sigma: the minimum and maximum standard deviation in pixels.
      probability: the probability of blurring, in [0, 1].

    Returns:
      The image [H, W, C].
    """
    coin, uniform = jax.random.uniform(key, (2,))
    random_sigma = sigma[0] + (sigma[1] - sigma[0]) * uniform
    # Sigma 0 replaces a second branch, because vmap would compute both branches.
    return gaussian_blur(image, jnp.where(coin < probability, random_sigma, 0.0))


def random_flip(key: PRNGKey, image: Image, *, probability: Number = 0.5) -> Image:
    """Mirrors the image left to right with a given probability.

    Args:
      key: the random key.
      image: [H, W, C] values.
      probability: the probability of mirroring, in [0, 1].

    Returns:
      The image [H, W, C].
    """
    return jnp.where(jax.random.uniform(key) < probability, flip(image), image)


def ccfc_grey(
    key: PRNGKey,
    image: Image,
    *,
    crop_scale: tuple[Number, Number] = (0.5, 1.0),
    max_degrees: Number = 10.0,
    blur_sigma: tuple[Number, Number] = (0.1, 2.0),
    blur_probability: Number = 0.5,
    order: Literal[0, 1] = 0,
) -> Image:
    """Returns a view by crop, rotation and blur, as in CCFC's code for MNIST.

    CCFC's public code uses 8-bit PIL images, so it rounds to 1/255 after each
    operation, and it uses box filters in place of the Gaussian. Here nothing is
    rounded.

    Args:
      key: the random key.
      image: [H, W, C] values in [0, 1].
      crop_scale: the minimum and maximum area of the crop, as a share of the image.
      max_degrees: the maximum angle of the rotation in degrees, in both directions.
      blur_sigma: the minimum and maximum standard deviation of the blur, in pixels.
      blur_probability: the probability of the blur, in [0, 1].
      order: 0 rotates to the nearest pixel, 1 rotates bilinearly; see `rotate`.

    Returns:
      A view [H, W, C] in [0, 1].

    Raises:
      ValueError: the order is neither 0 nor 1.

    References:
      Liu et al., CCFC, 2024; code Jarvisyan/CCFC-pytorch.

    Examples:
      >>> images = jnp.zeros((4, 28, 28, 1))
      >>> keys = jax.random.split(jax.random.key(0), 4)
      >>> jax.eval_shape(jax.vmap(ccfc_grey), keys, images).shape
      (4, 28, 28, 1)
    """
    crop_key, rotation_key, blur_key = jax.random.split(key, 3)
    image = random_resized_crop(crop_key, image, scale=crop_scale)
    image = random_rotation(rotation_key, image, max_degrees=max_degrees, order=order)
    return random_blur(blur_key, image, sigma=blur_sigma, probability=blur_probability)


def affine_grey(
    key: PRNGKey,
    image: Image,
    *,
    zoom: tuple[Number, Number] = (0.75, 1.3),
    max_degrees: Number = 15.0,
    max_shear: Number = 0.3,
    max_shift: Number = 0.1,
    max_log_gamma: Number = 0.7,
    max_blur: Number = 1 / 16,
    blur_probability: Number = 0.5,
) -> Image:
    """Returns a view by an affine map, contrast and blur, for small grey images.

    [choice] This view is from no paper. Handwriting varies in size, position, slant and
    thickness; a crop varies only size and position. docs/benchmarks/ccfc.md measures
    the effect of each part. All draws are uniform, except that the zoom is log-uniform.

    Args:
      key: the random key.
      image: [H, W, C] values in [0, 1].
      zoom: the minimum and maximum factor of the size.
      max_degrees: the maximum angle of the rotation in degrees, in both directions.
      max_shear: the maximum shear, in both directions: the horizontal shift in pixels
        per pixel of vertical distance to the centre.
      max_shift: the maximum shift in each direction, as a share of height and width.
      max_log_gamma: the maximum absolute value of the natural logarithm of gamma, the
        exponent of the pixel values.
      max_blur: the maximum standard deviation of the blur, as a share of the shorter
        side.
      blur_probability: the probability of the blur, in [0, 1].

    Returns:
      A view [H, W, C] in [0, 1].

    Examples:
      >>> images = jnp.zeros((4, 16, 16, 1))
      >>> keys = jax.random.split(jax.random.key(0), 4)
      >>> jax.eval_shape(jax.vmap(affine_grey), keys, images).shape
      (4, 16, 16, 1)
    """
    check_image(image)
    map_key, blur_key = jax.random.split(key)
    angle, shear, gamma, size, *place = jax.random.uniform(map_key, (6,), minval=-1.0)
    angle, shear = jnp.deg2rad(max_degrees) * angle, max_shear * shear
    low, high = jnp.log(zoom[0]), jnp.log(zoom[1])
    size = jnp.exp((low + high) / 2 + (high - low) / 2 * size)
    cos, sin = size * jnp.cos(angle), size * jnp.sin(angle)
    # The row comes first. The shear maps x to x + shear y; rotation and zoom follow.
    matrix = jnp.array([[cos - sin * shear, -sin], [sin + cos * shear, cos]])
    shift = max_shift * jnp.array(image.shape[:2]) * jnp.stack(place)
    image = jnp.clip(affine(image, matrix, shift), 0, 1)
    image = image ** jnp.exp(max_log_gamma * gamma)
    sigma = (0.0, max_blur * min(image.shape[:2]))
    return random_blur(blur_key, image, sigma=sigma, probability=blur_probability)


def _random_box(
    key: PRNGKey,
    shape: tuple[int, ...],
    scale: tuple[Number, Number],
    ratio: tuple[Number, Number],
) -> tuple[Float[Array, ""], ...]:
    """Returns the top, left, height and width of a random box, in whole pixels."""
    height, width = shape[:2]
    uniforms = jax.random.uniform(key, (2 * NUM_CANDIDATES + 2,))
    area_uniform, ratio_uniform = uniforms[:-2].reshape(2, NUM_CANDIDATES)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * area_uniform)
    low, high = jnp.log(ratio[0]), jnp.log(ratio[1])
    aspect = jnp.exp(low + (high - low) * ratio_uniform)
    heights = jnp.round(jnp.sqrt(area / aspect))
    widths = jnp.round(jnp.sqrt(area * aspect))
    fits = (heights > 0) & (heights <= height) & (widths > 0) & (widths <= width)
    first = jnp.argmax(fits)

    # If no candidate fits, take the largest centred box of an allowed aspect ratio.
    any_fits = fits.any()
    highest = jnp.minimum(jnp.round(width / ratio[0]), height)
    widest = jnp.minimum(jnp.round(height * ratio[1]), width)
    box_height = jnp.where(any_fits, heights[first], highest)
    box_width = jnp.where(any_fits, widths[first], widest)
    spaces = height - box_height, width - box_width
    top, left = (
        jnp.where(any_fits, jnp.floor(uniform * (space + 1)), jnp.floor(space / 2))
        for uniform, space in zip(uniforms[-2:], spaces, strict=True)
    )
    return top, left, box_height, box_width


def _bilinear(
    image: Image, source_y: Float[Array, "H W"], source_x: Float[Array, "H W"]
) -> Image:
    """Interpolates the image bilinearly at the given positions, with zeros outside."""
    height, width, channels = image.shape
    # A ring of zeros, with positions clamped to it, represents everything outside.
    pixels = jnp.pad(image, ((1, 1), (1, 1), (0, 0))).reshape(-1, channels)
    source_y = jnp.clip(source_y + 1, 0, height + 1)
    source_x = jnp.clip(source_x + 1, 0, width + 1)
    row = jnp.minimum(jnp.floor(source_y), height)
    column = jnp.minimum(jnp.floor(source_x), width)
    index = (row * (width + 2) + column).astype(jnp.int32)
    weight_y = (source_y - row)[..., None]
    weight_x = (source_x - column)[..., None]
    upper, lower = (
        (1 - weight_x) * _take(pixels, start) + weight_x * _take(pixels, start + 1)
        for start in (index, index + width + 2)
    )
    return (1 - weight_y) * upper + weight_y * lower


def _taps(
    size: int, start: Number, extent: Number
) -> tuple[Int[Array, " S"], Int[Array, " S"], Float[Array, " S"]]:
    """Returns the two source pixels of each output pixel, and the offset between."""
    position = start + (jnp.arange(size) + 0.5) * (extent / size) - 0.5
    position = jnp.clip(position, start, start + extent - 1)
    low = jnp.floor(position)
    index = low.astype(jnp.int32)
    return index, jnp.minimum(index + 1, size - 1), position - low


def _take(values: Array, indices: Array, axis: int = 0) -> Array:
    """Returns `values` at indices of an axis; all indices must be valid."""
    # The default mode would mask invalid indices, at a cost for every pixel.
    return jnp.take(values, indices, axis=axis, mode="clip")


def _convolution(weights: Float[Array, " T"], size: int) -> Float[Array, "S S"]:
    """Returns the matrix of a symmetric kernel on an axis.

    The weights start at the centre of the kernel. Weights beyond an end are added to
    the last pixel.
    """
    tails = jnp.cumsum(weights[::-1])[::-1]
    i, j = jnp.arange(size)[:, None], jnp.arange(size)[None, :]
    # A look-up is much cheaper than an exponential for each entry and example.
    matrix = weights[jnp.abs(i - j)]
    matrix = jnp.where(j == 0, tails[i], matrix)
    return jnp.where(j == size - 1, tails[size - 1 - i], matrix)


# --- Colour

Planes = Float[Array, "3 H W"]
"""An image with the colour axis first. Three long rows vectorise better than
triples."""

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
"""The numbers of the adjustments of `adjust_in_order`, as in torchvision."""


def greyscale(image: Image) -> Image:
    """Returns the luma (0.2989 R + 0.587 G + 0.114 B) in all three channels.

    Args:
      image: [H, W, 3] values.

    Returns:
      The grey image [H, W, 3].
    """
    return _pixels(jnp.broadcast_to(_luma(_planes(image)), (3, *image.shape[:2])))


def adjust_in_order(
    image: Image,
    order: Int[Array, "4"],
    *,
    brightness: Number,
    contrast: Number,
    saturation: Number,
    hue: Number,
) -> Image:
    """Applies torchvision's four colour adjustments in a given order.

    Args:
        image: [H, W, 3] values in [0, 1].
        order: a permutation of `BRIGHTNESS`, `CONTRAST`, `SATURATION` and `HUE` in the
            order of application. It may be traced.
        brightness: factor >= 0 of the values: 0 is black, 1 is the image.
        contrast: factor >= 0 of the difference from the image's mean luma.
        saturation: factor >= 0 of each pixel's difference from its luma: 0 is grey.
        hue: the rotation of the hue (HSV) in full turns, in [-0.5, 0.5]; 1/3 makes red
            green.

    Returns:
        The image [H, W, 3] in [0, 1].
    """
    # Under vmap all branches are computed, and the hue costs most. So the hue is
    # rotated once, with three blends before and three blends after it. A blend on the
    # wrong side has factor 1, which changes no bit. Six blends and one rotation replace
    # four times all four adjustments.
    factors = jnp.stack([jnp.float32(x) for x in (brightness, contrast, saturation, 1)])
    turn = jnp.argmax(order == HUE)

    def blend(planes, position, active):
        kind = order[position]
        luma = _luma(planes)
        target = jnp.where(kind == SATURATION, luma, luma.mean())
        target = jnp.where(kind == BRIGHTNESS, 0.0, target)
        return _blend(planes, target, jnp.where(active, factors[kind], 1.0))

    planes = _planes(image)
    for position in range(3):
        planes = blend(planes, position, position < turn)
    planes = _shift_hue(planes, hue)
    for position in range(1, 4):
        planes = blend(planes, position, position > turn)
    return _pixels(planes)


def random_color_jitter(
    key: PRNGKey,
    image: Image,
    *,
    brightness: Number = 0.4,
    contrast: Number = 0.4,
    saturation: Number = 0.4,
    hue: Number = 0.1,
    probability: Number = 0.8,
) -> Image:
    """Applies random colour adjustments, as torchvision's `ColorJitter`.

    The four adjustments are in random order. Each factor is uniform in [max(0, 1 - b),
    1 + b], where b is the argument of the same name. The rotation of the hue is uniform
    in [-hue, hue].

    Args:
      key: the random key.
      image: [H, W, 3] values in [0, 1].
      brightness: the maximum change of the brightness factor, at least 0.
      contrast: the maximum change of the contrast factor, at least 0.
      saturation: the maximum change of the saturation factor, at least 0.
      hue: the maximum rotation of the hue in full turns, in [0, 0.5].
      probability: the probability of any adjustment, in [0, 1].

    Returns:
      The image [H, W, 3] in [0, 1].
    """
    order_key, uniform_key = jax.random.split(key)
    coin, *uniforms, turn = jax.random.uniform(uniform_key, (5,))
    spreads = {"brightness": brightness, "contrast": contrast, "saturation": saturation}
    factors = {}
    for (name, spread), uniform in zip(spreads.items(), uniforms, strict=True):
        low = jnp.maximum(0.0, 1.0 - spread)
        factors[name] = low + (1 + spread - low) * uniform
    order = jax.random.permutation(order_key, 4)
    adjusted = adjust_in_order(image, order, hue=hue * (2 * turn - 1), **factors)
    return jnp.where(coin < probability, adjusted, image)


def random_greyscale(key: PRNGKey, image: Image, *, probability: Number = 0.2) -> Image:
    """Makes the image grey with a given probability.

    Args:
      key: the random key.
      image: [H, W, 3] values.
      probability: the probability of a grey image, in [0, 1].

    Returns:
      The image [H, W, 3].
    """
    return jnp.where(jax.random.uniform(key) < probability, greyscale(image), image)


def random_solarize(
    key: PRNGKey, image: Image, *, threshold: Number = 0.5, probability: Number = 0.2
) -> Image:
    """Inverts values from a threshold on, as torchvision's `RandomSolarize`.

    Args:
      key: the random key.
      image: [H, W, C] values in [0, 1].
      threshold: the smallest value that is inverted.
      probability: the probability of inverting, in [0, 1].

    Returns:
      The image [H, W, C] in [0, 1].
    """
    inverted = jnp.where(image >= threshold, 1 - image, image)
    return jnp.where(jax.random.uniform(key) < probability, inverted, image)


def simsiam_colour(
    key: PRNGKey,
    image: Image,
    *,
    crop_scale: tuple[Number, Number] = (0.2, 1.0),
    flip_probability: Number = 0.5,
    brightness: Number = 0.4,
    contrast: Number = 0.4,
    saturation: Number = 0.4,
    hue: Number = 0.1,
    jitter_probability: Number = 0.8,
    grey_probability: Number = 0.2,
    blur_sigma: tuple[Number, Number] = (0.1, 2.0),
    blur_probability: Number | None = None,
) -> Image:
    """Returns a view by crop, flip, colour jitter, greyscale and blur, as in SimSiam.

    The parameters are those of facebookresearch/simsiam (main_simsiam.py), at the
    image's own size. Values are neither rounded to 8 bits nor normalised by ImageNet's
    mean and deviation.

    Args:
      key: the random key.
      image: [H, W, 3] values in [0, 1].
      crop_scale: the minimum and maximum area of the crop, as a share of the image.
      flip_probability: the probability of mirroring, in [0, 1].
      brightness: the maximum change of the brightness factor, see
        `random_color_jitter`.
      contrast: the maximum change of the contrast factor.
      saturation: the maximum change of the saturation factor.
      hue: the maximum rotation of the hue in full turns, in [0, 0.5].
      jitter_probability: the probability of the colour jitter, in [0, 1].
      grey_probability: the probability of a grey image, in [0, 1].
      blur_sigma: the minimum and maximum standard deviation of the blur, in pixels.
      blur_probability: the probability of the blur, in [0, 1]. None means 0.5, but 0
        for images of at most 32 pixels, as in PatrickHua/SimSiam
        (augmentations/simsiam_aug.py).

    Returns:
      A view [H, W, 3] in [0, 1].

    Raises:
      ValueError: the image has not 3 channels.

    References:
      Chen and He, Exploring simple Siamese representation learning, 2021.

    Examples:
      >>> images = jnp.zeros((4, 32, 32, 3))
      >>> keys = jax.random.split(jax.random.key(0), 4)
      >>> jax.eval_shape(jax.vmap(simsiam_colour), keys, images).shape
      (4, 32, 32, 3)
    """
    crop_key, flip_key, jitter_key, grey_key, blur_key = jax.random.split(key, 5)
    image = random_resized_crop(crop_key, image, scale=crop_scale)
    image = random_flip(flip_key, image, probability=flip_probability)
    image = random_color_jitter(
        jitter_key,
        image,
        brightness=brightness,
        contrast=contrast,
        saturation=saturation,
        hue=hue,
        probability=jitter_probability,
    )
    image = random_greyscale(grey_key, image, probability=grey_probability)
    if blur_probability is None:
        if max(image.shape[:2]) <= 32:
            return image
        blur_probability = 0.5
    return random_blur(blur_key, image, sigma=blur_sigma, probability=blur_probability)


def _planes(image: Image) -> Planes:
    if image.shape[-1] != 3:
        raise ValueError(f"a colour image must have 3 channels, got {image.shape}")
    return jnp.moveaxis(image, -1, 0)


def _pixels(planes: Planes) -> Image:
    return jnp.moveaxis(planes, 0, -1)


def _luma(planes: Planes) -> Float[Array, "1 H W"]:
    red, green, blue = planes
    return (0.2989 * red + 0.587 * green + 0.114 * blue)[None]


def _blend(planes: Planes, target: Array | float, factor: Number) -> Planes:
    """Blends from the target (factor 0) to the image (factor 1) and beyond, clipped."""
    return jnp.clip(factor * planes + (1 - factor) * target, 0.0, 1.0)


def _shift_hue(planes: Planes, shift: Number) -> Planes:
    """Rotates the hue through HSV without branches for the six sectors.

    A channel whose hue is n sixths of a turn is value - chroma * clip(d - 1, 0, 1).
    Here d is the distance of the pixel's hue from n around the circle, in sixths.
    """
    red, green, blue = planes
    value = planes.max(axis=0)
    chroma = value - planes.min(axis=0)
    divisor = jnp.where(chroma > 0, chroma, 1.0)
    sector = jnp.where(
        value == red,
        (green - blue) / divisor,
        jnp.where(
            value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor
        ),
    )
    turns = sector / 6 + shift
    channels = []
    for channel_hue in (0.0, 1 / 3, 2 / 3):
        offset = turns - channel_hue
        distance = 6 * jnp.abs(offset - jnp.round(offset))
        channels.append(value - chroma * jnp.clip(distance - 1, 0.0, 1.0))
    return jnp.clip(jnp.stack(channels), 0.0, 1.0)


# --- Vectors

Vector = Float[Array, " F"]


def as_rows(
    examples: Shaped[Array, "N *F"], *, unit_length: bool
) -> Float32[Array, "N D"]:
    """Returns examples as flat rows, with pixels in [0, 1].

    Args:
      examples: [N, *F] images or vectors, uint8 or floating.
      unit_length: whether to scale each row to L2 norm 1, as in the code of SDA-FC. The
        k-means results of the CCFC and SDA-FDC papers require it.

    Returns:
      float32 [N, D], where D is the product of F. uint8 values are divided by 255,
      floating values are unchanged, and then rows are scaled if `unit_length`.

    Examples:
      >>> print(as_rows(jnp.array([[[3.0, 0.0]], [[0.0, 5.0]]]), unit_length=True))
      [[1. 0.]
       [0. 1.]]
    """
    rows = to_float(examples).reshape(examples.shape[0], -1)
    return losses.normalize(rows) if unit_length else rows


def row_reader(
    federation: Federation, *, unit_length: bool
) -> Callable[[Int[Array, " N"]], Float32[Array, "N D"]]:
    """Returns the function that reads examples as flat rows; see `as_rows`.

    A method that reads the rows of one client at a time needs no second copy of the
    data set.

    Args:
      federation: the federation of one run.
      unit_length: whether to scale each row to L2 norm 1.

    Returns:
      (indices into the pool) -> the rows of these examples.
    """

    def read(indices):
        return as_rows(federation.pool[indices], unit_length=unit_length)

    return read


def client_rows(
    federation: Federation, *, unit_length: bool
) -> Float32[Array, "M N D"] | Ragged:
    """Returns the examples of every client as flat rows; see `as_rows`.

    Args:
      federation: the federation of one run.
      unit_length: whether to scale each row to L2 norm 1.

    Returns:
      float32 [M, N, D], ragged if the federation is. Padding rows, where
      `federation.mask` is False, repeat a client's examples.

    Examples:
      >>> federation = Federation(
      ...     pool=jnp.array([[0, 255], [255, 0]], jnp.uint8),
      ...     indices=jnp.array([[0, 1], [1, 1]]),
      ...     mask=jnp.array([[True, True], [True, False]]),
      ...     present=jnp.array([[True, True]]),
      ...     local_clusters=jnp.array([2, 2]),
      ... )
      >>> print(client_rows(federation, unit_length=False)[0])
      [[0. 1.]
       [1. 0.]]
    """
    return clients.for_each(
        row_reader(federation, unit_length=unit_length), federation.indices
    )


def jitter(key: PRNGKey, x: Vector, *, scale: Number) -> Vector:
    """Adds normal noise, and clips the result to [0, 1].

    Args:
      key: the random key.
      x: [F] feature vector.
      scale: the standard deviation of the noise.

    Returns:
      The vector [F] in [0, 1].
    """
    return jnp.clip(x + scale * jax.random.normal(key, x.shape), 0.0, 1.0)


def feature_dropout(key: PRNGKey, x: Vector, *, probability: Number) -> Vector:
    """Sets each feature of a vector to 0 with a given probability, independently.

    The other features are not scaled up, unlike in dropout layers. Scaling would leave
    [0, 1], and evaluation uses the unscaled values. SCARF replaces a feature by the
    value of another example (https://arxiv.org/abs/2106.15147), which needs more than
    one vector.

    Args:
      key: the random key.
      x: a vector [F] in [0, 1].
      probability: the probability of dropping a feature, in [0, 1].

    Returns:
      A vector [F] in [0, 1].
    """
    return jnp.where(jax.random.uniform(key, x.shape) < probability, 0.0, x)


def vector_view(
    key: PRNGKey, x: Vector, *, scale: Number = 0.1, probability: Number = 0.2
) -> Vector:
    """Returns a view of a feature vector by noise, then dropout.

    Dropout comes last, so dropped features are exactly 0. This view is from no paper;
    it is a choice of this library for tables.

    Args:
      key: the random key.
      x: a vector [F] in [0, 1].
      scale: the standard deviation of the noise, at least 0.
      probability: the probability of dropping a feature, in [0, 1].

    Returns:
      A vector [F] in [0, 1].

    Examples:
      >>> x = jnp.array([0.25, 0.5, 0.75])
      >>> print(vector_view(jax.random.key(0), x, scale=0.0, probability=0.0))
      [0.25 0.5  0.75]
      >>> print(vector_view(jax.random.key(0), x, probability=1.0))
      [0. 0. 0.]
    """
    jitter_key, dropout_key = jax.random.split(key)
    x = jitter(jitter_key, x, scale=scale)
    return feature_dropout(dropout_key, x, probability=probability)
