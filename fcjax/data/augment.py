"""Augmentation on the device, one image at a time.

Every function takes one image [H, W, C] with values in [0, 1] and returns one of the
same shape; the caller vmaps over images and their keys, so that a draw depends on
its own key alone. The laws of the random functions are torchvision's.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int, UInt8

from fcjax.types import PRNGKey, Scalar

Image = Float[Array, "H W C"]
Augment = Callable[[PRNGKey, Image], Image]
"""(key, image [H, W, C] in [0, 1]) -> a random view of the same shape and range; of
feature vectors (key, vector [F]) -> a vector [F]."""

Number = Scalar | int
"""A hyper-parameter that may be swept, or the whole number that a user writes."""

NUM_CANDIDATES = 10
"""Boxes drawn before a random crop falls back to the centre; torchvision's."""


def to_float(
    images: UInt8[Array, "*S"] | Float[Array, "*S"],
) -> Float32[Array, "*S"]:
    """Images as networks take them.

    Args:
      images: of any shape.

    Returns:
      float32 of that shape: uint8 divided by 255, so in [0, 1], floating values as they
      are.

    Examples:
      >>> print(to_float(jnp.array([0, 255], jnp.uint8)))
      [0. 1.]
    """
    if jnp.issubdtype(images.dtype, jnp.floating):
        return images.astype(jnp.float32)
    return images.astype(jnp.float32) / 255.0


def check_image(image: Array) -> None:
    """Raises ValueError unless an image is [H, W, C], as feature vectors are not."""
    if image.ndim != 3:
        raise ValueError(
            f"image must be of shape [H, W, C], got {image.shape}; reshape rows of "
            "pixels, and vmap over a batch"
        )


def crop_and_resize(
    image: Image, top: Number, left: Number, height: Number, width: Number
) -> Image:
    """The box scaled up to the whole image, as torchvision's `resized_crop`.

    Bilinear with half-pixel centres and clamped inside the box: nothing bleeds in
    from around it. The box, in whole pixels, lies in the image, so it is never
    scaled down and antialiasing would change nothing.
    """
    check_image(image)
    for axis, start, extent in ((0, top, height), (1, left, width)):
        low, high, weight = _taps(image.shape[axis], start, extent)
        weight = jnp.expand_dims(weight, (1 - axis, 2))
        below, above = _take(image, low, axis), _take(image, high, axis)
        image = (1 - weight) * below + weight * above
    return image


def rotate(image: Image, degrees: Number, *, order: Literal[0, 1] = 1) -> Image:
    """The image turned counter-clockwise about its centre, cut to its own shape.

    Order 0 takes the nearest pixel, which is torchvision's default; order 1 is
    bilinear. The image is surrounded by zeros, and order 1 interpolates between them
    and the border pixels: SciPy's `grid-constant`, torchvision's rule for tensors.
    """
    check_image(image)
    if order not in (0, 1):
        raise ValueError(f"order must be 0 (nearest) or 1 (bilinear), not {order}")
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
    """The image mapped about its centre, cut to its own shape; bilinear.

    What stood at x from the centre, rows first, stands at `matrix` x + `shift`. What
    comes from outside is the median of the border pixels of its channel, taken for the
    background.

    Args:
      image: [H, W, C].
      matrix: invertible.
      shift: in pixels, down and to the right.
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
    """The image under a Gaussian of `sigma` pixels; the border pixels are repeated.

    The kernel reaches twice the longer side, so for any useful sigma it is not
    truncated. Sigma 0 gives the image back.
    """
    check_image(image)
    height, width, _ = image.shape
    radius = 2 * max(height, width)
    # Below 0.05 all weights but the central one are 0 in float32 in any case.
    scaled = jnp.arange(radius + 1) / jnp.maximum(sigma, 0.05)
    weights = jnp.exp(-0.5 * scaled**2)
    # A cumulative sum: the bits of a plain one hang on how many images are blurred.
    weights = weights / (2 * jnp.cumsum(weights[::-1])[-1] - weights[0])
    # Full precision: a GPU's default would round the pixels to ten bits.
    return jnp.einsum(
        "ai,ijc,bj->abc",
        _convolution(weights, height),
        image,
        _convolution(weights, width),
        precision=jax.lax.Precision.HIGHEST,
    )


def flip(image: Image) -> Image:
    """The image mirrored left to right."""
    check_image(image)
    return image[:, ::-1]


def random_resized_crop(
    key: PRNGKey,
    image: Image,
    *,
    scale: tuple[Number, Number] = (0.08, 1.0),
    ratio: tuple[Number, Number] = (3 / 4, 4 / 3),
) -> Image:
    """A random box scaled up to the whole image.

    The box has an area uniform in `scale` (a share of the image) and an aspect ratio
    (width / height) log-uniform in `ratio`, rounded to whole pixels, at a uniform
    position: torchvision's `RandomResizedCrop`.
    """
    check_image(image)
    return crop_and_resize(image, *_random_box(key, image.shape, scale, ratio))


def random_rotation(
    key: PRNGKey, image: Image, *, max_degrees: Number, order: Literal[0, 1] = 1
) -> Image:
    """The image rotated by an angle uniform in [-max_degrees, max_degrees]."""
    degrees = max_degrees * jax.random.uniform(key, minval=-1.0)
    return rotate(image, degrees, order=order)


def random_blur(
    key: PRNGKey,
    image: Image,
    *,
    sigma: tuple[Number, Number] = (0.1, 2.0),
    probability: Number = 0.5,
) -> Image:
    """With `probability`, the image blurred by a sigma uniform in the given range."""
    coin, uniform = jax.random.uniform(key, (2,))
    drawn = sigma[0] + (sigma[1] - sigma[0]) * uniform
    # Sigma 0 rather than a second branch, which vmap would compute as well.
    return gaussian_blur(image, jnp.where(coin < probability, drawn, 0.0))


def random_flip(key: PRNGKey, image: Image, *, probability: Number = 0.5) -> Image:
    """With `probability`, the image mirrored left to right."""
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
    """A view by random resized crop, rotation and blur: CCFC's public code on MNIST.

    That code works on 8-bit PIL images and so rounds to 1/255 after each operation,
    with box filters in place of the Gaussian; here nothing is rounded.

    Args:
      key: of the draws.
      image: [H, W, C] in [0, 1].
      crop_scale: the share of the image that is cropped, from and to.
      max_degrees: of the rotation, to either side.
      blur_sigma: of the Gaussian, from and to, in pixels.
      blur_probability: in [0, 1].
      order: 0 rotates to the nearest pixel, 1 bilinearly; see `rotate`.

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
    check_image(image)
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
    """A view by an affine map, contrast and blur: of small grey pictures of one thing.

    [choice] Of no paper. A hand varies size, place, slant and thickness, and a crop but
    the first two; what each of it does to clusters is measured in
    docs/benchmarks/ccfc.md.

    Args:
      key: of the draws, of which all are uniform but for the zoom's, log-uniform.
      image: [H, W, C] in [0, 1].
      zoom: factor of sizes, from and to.
      max_degrees: of the rotation, to either side.
      max_shear: pixels that a row goes sideways for each that it lies off the centre,
        to either side.
      max_shift: of the place, to each side, as a share of height and width.
      max_log_gamma: of the natural logarithm of the exponent of the pixels, up or down.
      max_blur: of the Gaussian's sigma, as a share of the shorter side.
      blur_probability: in [0, 1].

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
    # Rows first: the shear takes x to x + shear y, then follow rotation and zoom.
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
    """Top, left, height and width of a random box, whole numbers as float32."""
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

    # Without a fitting box: the largest centred one of an allowed aspect ratio.
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
    """The image at these places, surrounded by zeros."""
    height, width, channels = image.shape
    # One ring of zeros, and a clamp onto it, stand for all that lies outside.
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
    """The two pixels that each output pixel of an axis lies between, and its place."""
    position = start + (jnp.arange(size) + 0.5) * (extent / size) - 0.5
    position = jnp.clip(position, start, start + extent - 1)
    low = jnp.floor(position)
    index = low.astype(jnp.int32)
    return index, jnp.minimum(index + 1, size - 1), position - low


def _take(values: Array, indices: Array, axis: int = 0) -> Array:
    """`values` at `indices` of an axis, all of them known to lie inside."""
    # The default mode would mask what lies outside, at a cost for every pixel.
    return jnp.take(values, indices, axis=axis, mode="clip")


def _convolution(weights: Float[Array, " T"], size: int) -> Float[Array, "S S"]:
    """The matrix of a symmetric kernel, given from its centre out, on an axis.

    The weights that reach past an end fall on its last pixel.
    """
    tails = jnp.cumsum(weights[::-1])[::-1]
    i, j = jnp.arange(size)[:, None], jnp.arange(size)[None, :]
    # A look-up costs a fraction of an exponential for each entry and example.
    matrix = weights[jnp.abs(i - j)]
    matrix = jnp.where(j == 0, tails[i], matrix)
    return jnp.where(j == size - 1, tails[size - 1 - i], matrix)
