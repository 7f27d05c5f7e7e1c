"""What CCFC trains and how it augments, by the shape of an example."""

from collections.abc import Mapping
from functools import partial
from math import ceil, log2
from typing import Annotated, Any, Literal

from experiments.encoders import Kind, encoder_of, is_grey, is_tiny
from fcjax import nn
from fcjax.data.augment import (
    Augment,
    affine_grey,
    ccfc_grey,
    simsiam_colour,
    vector_view,
)
from fcjax.sweep.flags import shown
from fcjax.types import Network

Backbone = Annotated[
    Kind | Literal["conv-small"] | None,
    shown(
        "conv-small; --preset paper conv, colour resnet18; colour above 64 pixels "
        "resnet18-imagenet; vectors mlp"
    ),
]
"""A flag. conv has three convolutions of 64 to 256 features, conv-small begins with 32
and has two, more above 32 pixels; else as `encoders.Backbone`."""
View = Literal["affine", "crop"]
"""How a grey image is varied: by an affine map, or as in the authors' code."""


def network_of(settings: Mapping[str, Any], shape: tuple[int, ...]) -> Network:
    """Returns SimSiam over the encoder that was asked for."""
    backbone, latent_size = settings["backbone"], settings["latent_size"]
    if backbone == "mlp" and len(shape) == 1:
        return nn.mlp_simsiam(latent_size=latent_size)
    if backbone == "conv-small" and len(shape) == 3:
        channels = small_channels(max(shape[:2]))
        encoder = encoder_of("conv", shape, channels=channels)
    else:
        encoder = encoder_of(settings["backbone"], shape, channels=(64, 128, 256))
    return nn.simsiam(encoder, hidden_size=256, latent_size=latent_size)


def small_channels(side: int) -> tuple[int, ...]:
    """Returns the features of halving convolutions, two or as many as leave at most 8
    of so many pixels.

    Examples:
        >>> small_channels(28), small_channels(64)
        ((32, 64), (32, 64, 128))
    """
    depth = max(2, ceil(log2(side / 8)))
    return tuple(32 * 2**i for i in range(depth))


def view_of(kind: View | None, shape: tuple[int, ...]) -> Augment:
    """Returns the augmentation for examples of this shape.

    Args:
        kind: of grey images; None of others.
        shape: of an example.

    Raises:
        ValueError: one line that names --view where it does not take the examples.
    """
    if (kind is not None) != is_grey(shape):
        raise ValueError(f"--view {kind} is of grey images, these have {shape}")
    if kind == "affine":
        return affine_grey
    if kind is None:
        return vector_view if len(shape) == 1 else simsiam_colour
    # Few pixels bear little blur, and a nearest-pixel rotation ruins them.
    law = {"blur_probability": 0.0, "order": 1} if is_tiny(shape) else {}
    return partial(ccfc_grey, **law)
