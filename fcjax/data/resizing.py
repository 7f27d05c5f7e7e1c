"""Images of any size made square, by Pillow's bilinear filter.

Where it shrinks, a new pixel averages over all that it covers (antialiasing). Height
and width are scaled each on its own and nothing is cropped, as in the evaluation of
Contrastive Clustering (Li et al., 2021).
"""

import numpy as np


def check(size: int | None) -> None:
    """Raises ValueError unless the size is at least 1, or None for none."""
    if size is not None and size < 1:
        raise ValueError(f"resize must be at least 1, got {size}")


def resized(images: np.ndarray, size: int) -> np.ndarray:
    """Returns images [P, H, W, C] as [P, size, size, C]: uint8, rounded to nearest, if
    they are uint8, else float32. Beside the two arrays one image at a time is held."""
    if images.shape[1:3] == (size, size):
        return images
    result = np.empty((len(images), size, size, images.shape[3]), images.dtype)
    for row, image in enumerate(images):
        result[row] = square(image, size)
    return result


def square(image: np.ndarray, size: int) -> np.ndarray:
    """Returns one image [H, W, C] as [size, size, C], see `resized`."""
    from PIL import Image

    def bilinear(pixels):
        target = Image.Resampling.BILINEAR
        return np.asarray(Image.fromarray(pixels).resize((size, size), target))

    # Of two or four channels together Pillow would take the last for opacity.
    if image.dtype == np.uint8 and image.shape[2] == 3:
        return bilinear(image)
    return np.stack([bilinear(plane) for plane in np.moveaxis(image, 2, 0)], axis=2)
