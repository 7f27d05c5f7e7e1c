"""Images made square: by hand, against Pillow, and from every source."""

import numpy as np
import pytest
from PIL import Image

from fcjax.data import load, load_extra
from fcjax.data.files import read
from fcjax.data.resizing import resized
from tests.data.test_sources import png, prepare


def by_pillow(pixels, size):
    """An image [H, W] or [H, W, 3] as Pillow makes it."""
    return np.asarray(Image.fromarray(pixels).resize((size, size), Image.BILINEAR))


def random(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def test_a_constant_image_stays_constant():
    for dtype, value in ((np.uint8, 201), (np.float32, np.float32(0.3))):
        images = np.full((2, 5, 7, 3), value, dtype)
        for size in (1, 3, 5, 16):
            got = resized(images, size)
            assert got.shape == (2, size, size, 3)
            assert got.dtype == dtype
            np.testing.assert_allclose(got, value, rtol=1e-6)


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
    got = resized(images, 4)
    np.testing.assert_allclose(got[0, ..., 0], expected, atol=1e-6)
    # Rounded to nearest: 8-bit pixels of 100 times that, exact halves aside.
    whole = resized(np.array([0, 40, 80, 20], np.uint8).reshape(1, 2, 2, 1), 4)
    assert whole[0, :, :, 0].tolist() == [
        [0, 10, 30, 40],
        [20, 24, 31, 35],
        [60, 51, 34, 25],
        [80, 65, 35, 20],
    ]


def test_shrinking_averages_over_what_a_pixel_covers():
    """Of four pixels with centres at 0.5 to 3.5 two are made with centres at 1 and 3.
    A pixel at distance d weighs 1 - d / 2: for the first one 3/4, 3/4 and 1/4, in sum
    7/4; of these a stripe in the second column has 3/4, and for the other one 1/4."""
    stripe = np.zeros((1, 4, 4, 1), np.float32)
    stripe[:, :, 1] = 1.0
    got = resized(stripe, 2)[0, ..., 0]
    np.testing.assert_allclose(got, [[3 / 7, 1 / 7]] * 2, rtol=1e-5)


@pytest.mark.parametrize(("shape", "size"), [((9, 13), 32), ((40, 25), 8)])
def test_uint8_is_as_pillow_makes_it(shape, size):
    grey, colour = random(2, *shape, 1), random(2, *shape, 3)
    np.testing.assert_array_equal(
        resized(grey, size)[1, ..., 0], by_pillow(grey[1, ..., 0], size)
    )
    np.testing.assert_array_equal(resized(colour, size)[1], by_pillow(colour[1], size))
    # Four channels are four grey images, without a meaning of the last.
    four = random(1, *shape, 4)
    for channel in range(4):
        np.testing.assert_array_equal(
            resized(four, size)[0, ..., channel], by_pillow(four[0, ..., channel], size)
        )


def test_floats_are_resized_by_channel_and_stay_in_their_range():
    images = np.random.default_rng(0).random((2, 9, 6, 3), np.float32)
    got = resized(images, 12)
    assert got.dtype == np.float32
    assert got.min() >= images.min()
    assert got.max() <= images.max()
    np.testing.assert_array_equal(got[1, ..., 2], by_pillow(images[1, ..., 2], 12))


def test_images_of_that_size_are_left_alone():
    images = random(3, 6, 6, 1)
    assert resized(images, 6) is images


def test_every_source_gives_the_same_images(tmp_path):
    images, labels = random(4, 5, 9), np.array([0, 0, 1, 1])
    expected = np.stack([by_pillow(image, 7) for image in images])[..., None]
    np.savez(tmp_path / "x.npz", x=images, y=labels)
    table = np.column_stack([images.reshape(4, -1), labels])
    np.savetxt(tmp_path / "x.csv", table, fmt="%d", delimiter=",")
    for i, image in enumerate(images):
        (tmp_path / "folder" / str(labels[i])).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "folder" / str(labels[i]) / f"{i}.png")
    encoded = [(png(image), int(n)) for image, n in zip(images, labels, strict=True)]
    prepare(tmp_path / "tfds", {"train": encoded, "extra": encoded[:2]})

    for got in (
        read(tmp_path / "x.npz", resize=7),
        read(tmp_path / "x.csv", image_shape=(5, 9), resize=7),
        read(tmp_path / "folder", resize=7),
        load("tiny", data_dir=tmp_path / "tfds", resize=7),
    ):
        assert got.examples.dtype == np.uint8
        np.testing.assert_array_equal(got.examples, expected)
        np.testing.assert_array_equal(got.labels, labels)
        assert got.notes[-1] == "images resized to 7x7"
    extra = load_extra("tiny", "extra", data_dir=tmp_path / "tfds", resize=7)
    np.testing.assert_array_equal(extra, expected[:2])


def test_digits():
    plain, got = load("digits"), load("digits", resize=16)
    assert got.examples.shape == (1797, 16, 16, 1)
    np.testing.assert_array_equal(
        got.examples[5, ..., 0], by_pillow(plain.examples[5, ..., 0], 16)
    )
    assert got.notes == ("images resized to 16x16",)
    assert plain.notes == ()


def test_float_images_of_a_file(tmp_path):
    """Converted to 0 to 1 first, then resized."""
    values = np.random.default_rng(0).random((3, 6, 4)) * 200
    np.savez(tmp_path / "x.npz", x=values)
    got = read(tmp_path / "x.npz", resize=5)
    assert got.examples.dtype == np.float32
    expected = by_pillow((values[2] / 255).astype(np.float32), 5)
    np.testing.assert_allclose(got.examples[2, ..., 0], expected, atol=1e-6)
    assert got.notes[1:] == ("images resized to 5x5",)
    assert got.notes[0].endswith("divided by 255")


def mixed_folder(folder):
    """Three colour images, a palette one among them, of three sizes; returns them."""
    folder.mkdir()
    pixels = [random(5, 9, 3, seed=0), random(12, 4, 3, seed=1), random(6, 6, 3)]
    for i, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{i}.png")
    palette = Image.fromarray(random(8, 3, 3, seed=3)).quantize(256)
    palette.save(folder / "3.png")
    return [*pixels, np.asarray(palette.convert("RGB"))]


def test_a_folder_of_mixed_sizes(tmp_path):
    pixels = mixed_folder(tmp_path / "mixed")
    got = read(tmp_path / "mixed", resize=6)
    assert got.examples.shape == (4, 6, 6, 3)
    for image, own in zip(got.examples, pixels, strict=True):
        np.testing.assert_array_equal(image, by_pillow(own, 6))
    with pytest.raises(ValueError, match=r"one size, which --resize gives them$"):
        read(tmp_path / "mixed")


def test_a_tfds_data_set_of_mixed_sizes(tmp_path):
    images = [random(3, 4), random(8, 5, seed=1)]
    prepare(tmp_path, {"train": [(png(image), 0) for image in images]})
    got = load("tiny", data_dir=tmp_path, resize=4).examples
    expected = [by_pillow(image, 4) for image in images]
    np.testing.assert_array_equal(got[..., 0], expected)
    with pytest.raises(ValueError, match=r"one size, which --resize gives them$"):
        load("tiny", data_dir=tmp_path)


def test_what_cannot_be_resized_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.eye(4))
    message = (
        r"x\.npz holds feature vectors, which are not images that --resize takes; give "
        r"--image-shape if they are$"
    )
    with pytest.raises(ValueError, match=message):
        load(str(tmp_path / "x.npz"), resize=4)
    for size in (0, -3):
        message = f"^--resize must be at least 1, got {size}$"
        with pytest.raises(ValueError, match=message):
            load("digits", resize=size)
        with pytest.raises(ValueError, match=message):
            load_extra("tiny", "extra", resize=size)
        with pytest.raises(ValueError, match=message):
            read(tmp_path / "x.npz", resize=size)
