"""Which encoder suits which examples."""

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
    shown("conv; colour resnet18, -imagenet above 64 pixels; vectors mlp"),
]
"""A flag. A resnet begins with a 3x3 convolution, -imagenet with a 7x7 and a max-pool,
which halve the image twice."""
RESNETS = {"resnet18": resnet18, "resnet34": resnet34, "resnet50": resnet50}


def backbone_of(shape: tuple[int, ...], *, resnet: str = "resnet18") -> Kind:
    """Returns the encoder for examples of this shape."""
    if len(shape) == 1:
        return "mlp"
    if shape[2] == 1:
        return "conv"
    return resnet if is_small(shape) else f"{resnet}-imagenet"  # pyright: ignore[reportReturnType]


def is_grey(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[2] == 1


def is_small(shape: tuple[int, ...]) -> bool:
    """Whether these are images of CIFAR's kind, up to Tiny ImageNet's 64 pixels."""
    return len(shape) == 3 and max(shape[:2]) <= 64


def is_tiny(shape: tuple[int, ...]) -> bool:
    """Whether these are images that three halving convolutions leave too little."""
    return len(shape) == 3 and min(shape[:2]) < 16


def encoder_of(
    backbone: str, shape: tuple[int, ...], *, channels: Sequence[int]
) -> Encoder:
    """Returns the layers of an encoder.

    Args:
        backbone: which.
        shape: of the examples.
        channels: features of the convolutions of `conv` and of the layers of `mlp`; on
            tiny images `conv` has but two, of 32 and 64.

    Raises:
        ValueError: the backbone does not take the examples.
    """
    if (backbone == "mlp") != (len(shape) == 1):
        kind = "feature vectors" if len(shape) == 1 else "images"
        raise ValueError(f"`backbone` {backbone} does not take {kind}")
    if backbone == "mlp":
        return nn.MLP(tuple(channels))
    if backbone == "conv":
        if min(shape[:2]) < 8:
            raise ValueError(
                f"`backbone` conv needs 8x8 pixels, the images have {shape}"
            )
        return nn.conv_encoder((32, 64) if is_tiny(shape) else channels)
    name, _, stem = backbone.partition("-")
    return RESNETS[name]("imagenet" if stem else "small")
