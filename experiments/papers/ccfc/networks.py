"""What CCFC trains and how it augments, by the shape of an example."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from experiments.encoders import encoder_of, is_tiny
from fcjax import models
from fcjax.data.augment import Augment, ccfc_grey
from fcjax.data.colour import simsiam_colour
from fcjax.data.vectors import vector_view
from fcjax.types import Network


def network_of(settings: Mapping[str, Any], shape: tuple[int, ...]) -> Network:
    """Returns SimSiam over the encoder that was asked for."""
    backbone, latent_size = settings["backbone"], settings["latent_size"]
    if backbone == "mlp" and len(shape) == 1:
        return models.mlp_simsiam(latent_size=latent_size)
    encoder = encoder_of(backbone, shape, channels=(64, 128, 256))
    hidden_size = latent_size if backbone == "conv" and is_tiny(shape) else 256
    return models.simsiam(encoder, hidden_size=hidden_size, latent_size=latent_size)


def view_of(shape: tuple[int, ...]) -> Augment:
    """Returns the augmentation for examples of this shape."""
    if len(shape) == 1:
        return vector_view
    if shape[2] == 3:
        return simsiam_colour
    if is_tiny(shape):
        # Eight pixels bear little blur, and a nearest-pixel rotation ruins them.
        return partial(
            ccfc_grey,
            crop_scale=(0.6, 1.0),
            max_degrees=15.0,
            blur_probability=0.0,
            order=1,
        )
    return ccfc_grey
