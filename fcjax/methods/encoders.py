"""The encoders of the methods, and the default encoder for a shape of examples."""

from collections.abc import Sequence
from typing import Annotated, Literal

from fcjax import nn
from fcjax.nn.heads import Encoder
from fcjax.nn.resnet import resnet18, resnet34, resnet50
from fcjax.settings import shown

Kind = Literal[
    "conv",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet18-imagenet",
    "resnet34-imagenet",
    "resnet50-imagenet",
    "mlp",
]
Backbone = Annotated[
    Kind | None,
    shown(
        "by the data: conv for grey images, resnet18 for colour images, "
        "resnet18-imagenet above 64 pixels, mlp for feature vectors"
    ),
]
"""Type of the setting `backbone`. A resnet begins with a 3x3 convolution. A
resnet-imagenet begins with a 7x7 convolution and a max-pool, which both halve the
image."""
RESNETS = {"resnet18": resnet18, "resnet34": resnet34, "resnet50": resnet50}


def backbone_of(shape: tuple[int, ...], *, resnet: str = "resnet18") -> Kind:
    """Returns the default encoder for examples of a shape.

    Args:
        shape: shape of one example, (F,) or (H, W, C).
        resnet: name of the ResNet for colour images.

    Returns:
        "mlp" for vectors, "conv" for grey images, and the ResNet for colour images.
        Large colour images get the variant of the ResNet for ImageNet.
    """
    if len(shape) == 1:
        return "mlp"
    if shape[2] == 1:
        return "conv"
    return resnet if is_small(shape) else f"{resnet}-imagenet"  # pyright: ignore[reportReturnType]


def is_grey(shape: tuple[int, ...]) -> bool:
    """Returns whether the examples are grey images.

    Args:
        shape: shape of one example, (F,) or (H, W, C).

    Returns:
        True for images with one channel.
    """
    return len(shape) == 3 and shape[2] == 1


def is_small(shape: tuple[int, ...]) -> bool:
    """Returns whether the examples are images of at most 64 pixels per side.

    These are images such as those of CIFAR-10 and Tiny ImageNet.

    Args:
        shape: shape of one example, (F,) or (H, W, C).

    Returns:
        True for images of at most 64 x 64 pixels; False for vectors.
    """
    return len(shape) == 3 and max(shape[:2]) <= 64


def is_tiny(shape: tuple[int, ...]) -> bool:
    """Returns whether the examples are images below 16 pixels per side.

    Three convolutions that halve such an image would leave less than two pixels.

    Args:
        shape: shape of one example, (F,) or (H, W, C).

    Returns:
        True if the shorter side of the image is below 16 pixels; False for vectors.
    """
    return len(shape) == 3 and min(shape[:2]) < 16


def encoder_of(
    backbone: str, shape: tuple[int, ...], *, channels: Sequence[int]
) -> Encoder:
    """Builds the layers of an encoder.

    Args:
        backbone: name of the encoder, one of `Kind`.
        shape: shape of an example.
        channels: output features of the convolutions of `conv` and of the layers of
            `mlp`. For images below 16 pixels, `conv` has two convolutions instead, with
            32 and 64 features.

    Returns:
        The encoder.

    Raises:
        ValueError: the encoder does not accept examples of this shape.
    """
    if (backbone == "mlp") != (len(shape) == 1):
        kind, choice = "images", "conv or a resnet"
        if len(shape) == 1:
            kind, choice = "feature vectors", "mlp"
        raise ValueError(f"`backbone` {backbone} does not take {kind}, choose {choice}")
    if backbone == "mlp":
        return nn.MLP(tuple(channels))
    if backbone == "conv":
        if min(shape[:2]) < 8:
            raise ValueError(
                f"`backbone` conv needs at least 8x8 pixels, the images have {shape}"
            )
        return nn.conv_encoder((32, 64) if is_tiny(shape) else channels)
    name, _, stem = backbone.partition("-")
    return RESNETS[name]("imagenet" if stem else "small")
