"""Random views of grey images, colour images and feature vectors, on the device.

Every function takes one example with values in [0, 1], an image [H, W, C] (colour: red
first) or a vector [F], and returns one of the same shape. The caller vmaps over
examples and keys, so a draw depends on its own key alone. The distributions of the
random functions are those of torchvision's transforms of floating tensors.
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

    The pixel at x from the centre, rows first, moves to `matrix` x + `shift`. Pixels
    from outside the image have the background's value: the median of the border pixels
    of the channel.

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

    [choice] This view is from no paper. Handwriting varies in size, place, slant and
    thickness; a crop varies only size and place. docs/benchmarks/ccfc.md measures the
    effect of each part.

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


# --- Colour

Planes = Float[Array, "3 H W"]
"""The same with colours first: three long rows vectorise where triples do not."""

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
"""The adjustments of `adjust_in_order`, in torchvision's numbering."""


def greyscale(image: Image) -> Image:
    """Luma (0.2989 R + 0.587 G + 0.114 B) in all three channels."""
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
    """The four adjustments of torchvision, one after another.

    Args:
        image: [H, W, 3] in [0, 1].
        order: a permutation of `BRIGHTNESS`, `CONTRAST`, `SATURATION` and `HUE`, the
            first to be applied first. It may be traced.
        brightness: factor >= 0 of the values: 0 is black, 1 the image.
        contrast: factor >= 0 of the image's distance from its mean luma.
        saturation: factor >= 0 of each pixel's distance from its luma: 0 is grey.
        hue: turns of the hue of HSV, in [-0.5, 0.5]; 1/3 makes red green.
    """
    # Under vmap all branches are computed, and hue costs most. So hue is turned once,
    # amid blends before and after it; those on its wrong side have factor 1, which
    # changes no bit. Six blends and one turn do the work of four times all four.
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
    planes = _turn(planes, hue)
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
    """With `probability`, four random adjustments in random order.

    Factors are uniform in [max(0, 1 - b), 1 + b], b the parameter of that name, and
    the shift in [-hue, hue]: torchvision's `ColorJitter`.
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
    """With `probability`, the image without its colours."""
    return jnp.where(jax.random.uniform(key) < probability, greyscale(image), image)


def random_solarize(
    key: PRNGKey, image: Image, *, threshold: Number = 0.5, probability: Number = 0.2
) -> Image:
    """With `probability`, the image with its values from `threshold` on inverted:
    torchvision's `RandomSolarize`.
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
    """A view by crop, flip, colour jitter, greyscale and blur: SimSiam's.

    Parameters are those of facebookresearch/simsiam (main_simsiam.py) at the image's
    own size. Blur has probability 0.5 by default, but none for images of 32 pixels
    and less, as in PatrickHua/SimSiam (augmentations/simsiam_aug.py). Neither
    rounding to 8 bits nor ImageNet's mean and deviation are applied.

    Args:
      key: of the draws.
      image: [H, W, 3] in [0, 1].
      crop_scale: the share of the image that is cropped, from and to.
      flip_probability: in [0, 1], as all probabilities.
      brightness: of `random_color_jitter`, as the four that follow.
      contrast: see there.
      saturation: see there.
      hue: see there.
      jitter_probability: see there.
      grey_probability: of losing the colours.
      blur_sigma: of the Gaussian, from and to, in pixels.
      blur_probability: None for the default above.

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
        raise ValueError(f"a colour image has 3 channels, got shape {image.shape}")
    return jnp.moveaxis(image, -1, 0)


def _pixels(planes: Planes) -> Image:
    return jnp.moveaxis(planes, 0, -1)


def _luma(planes: Planes) -> Float[Array, "1 H W"]:
    red, green, blue = planes
    return (0.2989 * red + 0.587 * green + 0.114 * blue)[None]


def _blend(planes: Planes, target: Array | float, factor: Number) -> Planes:
    """From the target (factor 0) through the image (1) and beyond, clipped."""
    return jnp.clip(factor * planes + (1 - factor) * target, 0.0, 1.0)


def _turn(planes: Planes, shift: Number) -> Planes:
    """To HSV and back, without the branches over six sectors.

    A channel whose own hue is n sixths of a turn is value - chroma * clip(d - 1, 0, 1)
    where d, in sixths, is how far the pixel's hue lies from n around the circle.
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
    for own in (0.0, 1 / 3, 2 / 3):
        offset = turns - own
        distance = 6 * jnp.abs(offset - jnp.round(offset))
        channels.append(value - chroma * jnp.clip(distance - 1, 0.0, 1.0))
    return jnp.clip(jnp.stack(channels), 0.0, 1.0)


# --- Vectors

Vector = Float[Array, " F"]


def as_rows(
    examples: Shaped[Array, "N *F"], *, unit_length: bool
) -> Float32[Array, "N D"]:
    """Examples as flat rows, pixels in [0, 1].

    Args:
      examples: images or vectors, uint8 or floating.
      unit_length: scale each row to L2 norm 1, as the code of SDA-FC does; the k-means
        figures of the CCFC and SDA-FDC papers follow from that and not from raw pixels.

    Returns:
      float32 [N, D], D the product of F: uint8 divided by 255, floating values as they
      are, before any scaling of the rows.

    Examples:
      >>> print(as_rows(jnp.array([[[3.0, 0.0]], [[0.0, 5.0]]]), unit_length=True))
      [[1. 0.]
       [0. 1.]]
    """
    rows = to_float(examples).reshape(examples.shape[0], -1)
    return losses.normalize(rows) if unit_length else rows


def client_rows(
    federation: Federation, *, unit_length: bool
) -> Float32[Array, "M N D"] | Ragged:
    """The examples of every client by `as_rows`.

    Args:
      federation: of one run.
      unit_length: as in `as_rows`.

    Returns:
      float32 [M, N, D], ragged as the federation is; a short client's repeated rows,
      where `federation.mask` is False, are among them.

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

    def rows(indices):
        return as_rows(federation.pool[indices], unit_length=unit_length)

    return clients.for_each(rows, federation.indices)


def jitter(key: PRNGKey, x: Vector, *, scale: Number) -> Vector:
    """The vector plus normal noise of standard deviation `scale`, clipped to [0, 1]."""
    return jnp.clip(x + scale * jax.random.normal(key, x.shape), 0.0, 1.0)


def feature_dropout(key: PRNGKey, x: Vector, *, probability: Number) -> Vector:
    """The vector with each feature set to 0 with `probability`, one by one.

    What is kept is not scaled up, unlike in a network's dropout: values would leave
    [0, 1], and evaluation sees the kept ones as they are. SCARF replaces by another
    example's value (https://arxiv.org/abs/2106.15147), which one vector alone cannot.
    """
    return jnp.where(jax.random.uniform(key, x.shape) < probability, 0.0, x)


def vector_view(
    key: PRNGKey, x: Vector, *, scale: Number = 0.1, probability: Number = 0.2
) -> Vector:
    """A view by noise and then dropout, so that what is dropped is exactly 0.

    This library's own choice, for tables; it is taken from no paper.

    Args:
      key: of the draws.
      x: a vector [F] in [0, 1].
      scale: standard deviation of the noise, at least 0.
      probability: of dropping a feature, in [0, 1].

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
