"""Figures as text of a page: what a browser would draw of them."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from fcjax.results.figures import images


def decoded(uri):
    kind, data = re.fullmatch(r"data:image/(\w+);base64,(.+)", uri).groups()
    return kind, Image.open(io.BytesIO(base64.b64decode(data)))


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_a_small_image_is_embedded_to_the_last_bit(channels, mode):
    pixels = np.random.default_rng(0).random((64, 48, channels)).astype(np.float32)
    whole = np.round(pixels * 255).astype(np.uint8)
    for given in (pixels, whole):
        kind, image = decoded(images.image(given))
        assert (kind, image.mode) == ("png", mode)
        np.testing.assert_array_equal(np.asarray(image), whole.squeeze())


def test_a_large_image_becomes_a_thumbnail_of_the_same_form():
    large = np.full((300, 600, 3), [200, 100, 0], np.uint8)
    assert not images.is_small(large)
    kind, image = decoded(images.image(large))
    assert (kind, image.size) == ("jpeg", (128, 64))
    np.testing.assert_allclose(np.asarray(image)[32, 64], [200, 100, 0], atol=4)


def test_points_keep_their_place_colour_and_name():
    """Twice as wide as high: the width, 600 of 640, sets the scale."""
    points = np.array([[0.0, 0.0], [10.0, 5.0], [10.0, 5.0]])
    drawn = images.scatter(points, np.array([0, 1, 1]), ["<a>", "b", "c"], num_groups=2)
    found = re.findall(
        r'<circle cx="(\S+)" cy="(\S+)" r="4" fill="(\S+)"><title>(.+?)</title>', drawn
    )
    assert found == [
        ("20.0", "390.0", "#1f77b4", "&lt;a&gt;"),
        ("620.0", "90.0", "#ff7f0e", "b"),
        ("620.0", "90.0", "#ff7f0e", "c"),
    ]
    assert '<text x="620.0" y="90.0">1</text>' in drawn


def test_a_curve_has_its_extremes_named_and_the_place_in_question_filled():
    drawn = images.curve("a < b", {4.0: 3.0, 2.0: 1.0, 8.0: np.nan}, marked=4.0)
    assert "a &lt; b" in drawn
    for axis, named in (("x", ["2", "4"]), ("y", ["1", "3"])):
        assert re.findall(rf'class="{axis}"[^>]*>([^<]+)<', drawn) == named
    low, high = re.findall(r'<circle cx="(\S+)" cy="(\S+)" r="4"(.*?)/>', drawn)
    assert float(low[0]) < float(high[0])
    assert float(low[1]) > float(high[1])
    assert (low[2], high[2]) == ("", ' class="marked"')
