"""Images made square: by hand, against Pillow, and from every source."""

import numpy as np
import pytest
from PIL import Image

from fcjax.data import Source, load, load_extra
from fcjax.data.images import resize_images
from tests.data.test_files import IMAGES, LABELS, write_csv, write_npz, write_pngs
from tests.data.test_sources import png, prepare


def by_pillow(pixels, size):
    """An image [H, W] or [H, W, 3] as Pillow makes it."""
    return np.asarray(Image.fromarray(pixels).resize((size, size), Image.BILINEAR))


def random(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def test_two_by_two_to_four_by_four_by_hand():
    """Pixel i of four has its centre at (i + 0.5) / 2 - 0.5 of two: -0.25, 0.25, 0.75
    and 1.25; outside the centres 0 and 1 the border holds. So its value is (1 - a) (1 -
    b) x00 + (1 - a) b x01 + a (1 - b) x10 + a b x11 with a, b in 0, 1/4, 3/4 and 1."""
    images = np.array([[0.0, 0.4], [0.8, 0.2]], np.float32).reshape(1, 2, 2, 1)
    expected = [
        [0.0, 0.1, 0.3, 0.4],
        [0.2, 0.2375, 0.3125, 0.35],
        [0.6, 0.5125, 0.3375, 0.25],
        [0.8, 0.65, 0.35, 0.2],
    ]
    got = resize_images(images, 4)
    np.testing.assert_allclose(got[0, ..., 0], expected, atol=1e-6)
    # Rounded to nearest: 8-bit pixels of 100 times that, exact halves aside.
    whole = resize_images(np.array([0, 40, 80, 20], np.uint8).reshape(1, 2, 2, 1), 4)
    rounded = [[0, 10, 30, 40], [20, 24, 31, 35], [60, 51, 34, 25], [80, 65, 35, 20]]
    assert whole[0, :, :, 0].tolist() == rounded


@pytest.mark.parametrize(("shape", "size"), [((9, 13), 32), ((40, 25), 8)])
def test_pixels_are_as_pillow_makes_them(shape, size):
    colour = random(2, *shape, 3)
    np.testing.assert_array_equal(
        resize_images(colour, size)[1], by_pillow(colour[1], size)
    )
    # Any other channels are grey images, without a meaning of the last, as are floats.
    for images in (random(2, *shape, 4), random(2, *shape, 3) / np.float32(255)):
        got = resize_images(images, size)
        for channel in range(images.shape[-1]):
            expected = by_pillow(images[1, ..., channel], size)
            np.testing.assert_array_equal(got[1, ..., channel], expected)


def test_every_source_gives_the_same_images(tmp_path):
    expected = np.stack([by_pillow(image, 7) for image in IMAGES])[..., None]
    (tmp_path / "folder").mkdir()
    encoded = [(png(image), int(n)) for image, n in zip(IMAGES, LABELS, strict=True)]
    prepare(tmp_path / "tfds", {"train": encoded, "extra": encoded[:2]})
    for got in (
        load(write_npz(tmp_path), resize=7),
        load(write_csv(tmp_path), image_shape=(2, 3), resize=7),
        load(write_pngs(tmp_path / "folder"), resize=7),
        load("tiny", data_dir=tmp_path / "tfds", resize=7),
    ):
        np.testing.assert_array_equal(got.examples, expected)
        np.testing.assert_array_equal(got.labels, LABELS)
    extra = load_extra(
        Source("tiny", extra_split="extra", data_dir=tmp_path / "tfds", resize=7)
    )
    np.testing.assert_array_equal(extra, expected[:2])


def test_images_of_mixed_sizes(tmp_path):
    colours = [random(5, 9, 3), random(12, 4, 3, seed=1)]
    for i, image in enumerate(colours):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    palette = Image.fromarray(random(8, 3, 3, seed=3)).quantize(256)
    palette.save(tmp_path / "3.png")
    greys = [random(3, 4), random(8, 5, seed=1)]
    prepare(tmp_path / "tfds", {"train": [(png(image), 0) for image in greys]})
    for got, pixels in (
        (load(tmp_path, resize=4), [*colours, np.asarray(palette.convert("RGB"))]),
        (load("tiny", data_dir=tmp_path / "tfds", resize=4), greys),
    ):
        for image, own in zip(got.examples.squeeze(), pixels, strict=True):
            np.testing.assert_array_equal(image, by_pillow(own, 4))


def test_feature_vectors_are_not_resized(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.eye(4))
    message = r"x\.npz has feature vectors, but `resize` is only for images"
    with pytest.raises(ValueError, match=message):
        load(str(tmp_path / "x.npz"), resize=4)
