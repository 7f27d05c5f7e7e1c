"""Augmentation of colour on the device, one image at a time.

Every function takes one image [H, W, 3] with values in [0, 1], red first, and returns
one of the same shape and range; the caller vmaps over images and their keys. The laws
are those of torchvision's transforms of floating tensors.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fcjax.data.augment import (
    Image,
    Number,
    check_image,
    random_blur,
    random_flip,
    random_resized_crop,
)
from fcjax.types import PRNGKey

Planes = Float[Array, "3 H W"]
"""The same with colours first: three long rows vectorise where triples do not."""

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
"""The adjustments of `adjust_in_order`, in torchvision's numbering."""


def greyscale(image: Image) -> Image:
    """Luma (0.2989 R + 0.587 G + 0.114 B) in all three channels."""
    return _pixels(jnp.broadcast_to(_luma(_planes(image)), (3, *image.shape[:2])))


def adjust_brightness(image: Image, factor: Number) -> Image:
    """The image times a factor of at least 0: 0 is black, 1 the image."""
    return _pixels(_blend(_planes(image), 0.0, factor))


def adjust_contrast(image: Image, factor: Number) -> Image:
    """The image's distance from its mean luma times a factor of at least 0."""
    planes = _planes(image)
    return _pixels(_blend(planes, _luma(planes).mean(), factor))


def adjust_saturation(image: Image, factor: Number) -> Image:
    """Each pixel's distance from its luma times a factor: 0 is grey, 1 the image."""
    planes = _planes(image)
    return _pixels(_blend(planes, _luma(planes), factor))


def adjust_hue(image: Image, shift: Number) -> Image:
    """The hue of HSV turned by `shift` in [-0.5, 0.5] turns; 1/3 makes red green."""
    return _pixels(_turn(_planes(image), shift))


def adjust_in_order(
    image: Image,
    order: Int[Array, "4"],
    *,
    brightness: Number,
    contrast: Number,
    saturation: Number,
    hue: Number,
) -> Image:
    """The four adjustments, one after another.

    Args:
        image: [H, W, 3] in [0, 1].
        order: a permutation of `BRIGHTNESS`, `CONTRAST`, `SATURATION` and `HUE`, the
            first to be applied first. It may be traced.
        brightness: factor of `adjust_brightness`.
        contrast: factor of `adjust_contrast`.
        saturation: factor of `adjust_saturation`.
        hue: shift of `adjust_hue`.
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
    torchvision's `RandomSolarize`."""
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
    check_image(image)
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
