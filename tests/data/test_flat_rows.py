"""Rows of pixels where an image is needed end in one line."""

import subprocess
import sys

CODE = """
import jax
import jax.numpy as jnp

from fcjax.data import augment
from fcjax.nn import layers

rows, key = jnp.zeros((8, 64)), jax.random.key(0)
laws = [
    augment.ccfc_grey,
    augment.affine_grey,
    augment.random_resized_crop,
    augment.simsiam_colour,
]
calls = [lambda law=law: jax.vmap(law)(jax.random.split(key, 8), rows) for law in laws]
calls += [
    lambda: augment.flip(rows[0]),
    lambda: augment.rotate(rows[0], 10.0),
    lambda: augment.gaussian_blur(rows[0], 1.0),
    lambda: layers.conv(rows, jnp.zeros((3, 3, 1, 4))),
]
for call in calls:
    try:
        call()
    except ValueError as error:
        print(error)
"""


def test_rows_of_pixels_are_refused_with_their_shape():
    """In a process of its own: these tests run under jaxtyping's checks."""
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    lines = found.stdout.splitlines()
    told = "reshape rows of pixels, and use vmap for a batch"
    image = f"image must have the shape [H, W, C], got (64,); {told}"
    assert lines[:7] == [image] * 7, found.stderr
    assert lines[7:] == ["x must have shape [B, H, W, C], got shape (8, 64)"]
