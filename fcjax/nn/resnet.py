"""Residual networks: the encoders of self-supervised learning on colour images.

He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition (CVPR 2016),
https://arxiv.org/abs/1512.03385, Table 1, without the classifier. Read as torchvision
reads it: a shortcut whose shape changes is a 1x1 convolution with batch norm (the
paper's option B), a bottleneck halves the image in its 3x3 convolution and not in the
first 1x1, kernels start from a normal distribution scaled by their outputs, and no
convolution has a bias, as a batch norm follows.
"""

from typing import Literal

import jax
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from fcjax.nn.layers import Conv, batch_norm, max_pool

Stem = Literal["small", "imagenet"]


def resnet18(stem: Stem = "small") -> "ResNet":
    """Builds ResNet-18, the column of that name in the paper's Table 1.

    Args:
        stem: see `ResNet`.

    Returns:
        A Linen module from images [B, H, W, C] in [0, 1] to features [B, 512] of at
        least 0; `encoder` makes a `Network` of it.

    Examples:
        >>> import jax.numpy as jnp
        >>> from fcjax.nn import encoder
        >>> network, x = encoder(resnet18("imagenet")), jnp.zeros((1, 64, 64, 3))
        >>> variables = jax.eval_shape(network.init, jax.random.key(0), x)
        >>> sum(w.size for w in jax.tree.leaves(variables["params"]))  # without fc
        11176512
    """
    return ResNet((2, 2, 2, 2), stem=stem)


def resnet34(stem: Stem = "small") -> "ResNet":
    """Builds ResNet-34, the column of that name in the paper's Table 1.

    Args:
        stem: see `ResNet`.

    Returns:
        A Linen module from images [B, H, W, C] in [0, 1] to features [B, 512] of at
        least 0; `encoder` makes a `Network` of it.

    Examples:
        >>> import jax.numpy as jnp
        >>> from fcjax.nn import encoder
        >>> network, x = encoder(resnet34("imagenet")), jnp.zeros((1, 64, 64, 3))
        >>> variables = jax.eval_shape(network.init, jax.random.key(0), x)
        >>> sum(w.size for w in jax.tree.leaves(variables["params"]))  # without fc
        21284672
    """
    return ResNet((3, 4, 6, 3), stem=stem)


def resnet50(stem: Stem = "small") -> "ResNet":
    """Builds ResNet-50, the column of that name in the paper's Table 1.

    Args:
        stem: see `ResNet`.

    Returns:
        A Linen module from images [B, H, W, C] in [0, 1] to features [B, 2048] of at
        least 0; `encoder` makes a `Network` of it.

    Examples:
        >>> import jax.numpy as jnp
        >>> from fcjax.nn import encoder
        >>> network, x = encoder(resnet50("imagenet")), jnp.zeros((1, 64, 64, 3))
        >>> variables = jax.eval_shape(network.init, jax.random.key(0), x)
        >>> sum(w.size for w in jax.tree.leaves(variables["params"]))  # without fc
        23508032
    """
    return ResNet((3, 4, 6, 3), block="bottleneck", stem=stem)


class ResNet(nn.Module):
    """A residual network from images [B, H, W, C] in [0, 1] to features [B, F].

    A Linen module; `encoder` makes a `Network` of it. Features are at least 0, and
    F = width * 2 ** (len(stages) - 1), four times that with bottlenecks.

    Attributes:
        stages: how many blocks each stage has; every stage but the first halves the
            image and doubles the features.
        block: `basic`, two 3x3 convolutions, or `bottleneck`, a 3x3 between two 1x1
            of which the last has four times the features.
        stem: `imagenet`, the paper's 7x7 convolution of stride 2 and 3x3 max-pool of
            stride 2, or `small`, a 3x3 convolution of stride 1 for images of about
            32 pixels, which the other would leave with 8 before the first block. The
            paper has it in its networks for CIFAR-10 (section 4.2); SimSiam and
            SimCLR put it on ResNet-18 and -50 for CIFAR (Chen & He 2021, appendix D;
            Chen et al. 2020, appendix B.9).
        width: features of the first stage.

    Examples:
        >>> import jax.numpy as jnp
        >>> from fcjax.nn import encoder
        >>> network, x = encoder(ResNet((1, 1), width=8)), jnp.zeros((2, 8, 8, 3))
        >>> def outputs(key):
        ...     return network.apply(network.init(key, x), x, train=False)[0]
        >>> jax.eval_shape(outputs, jax.random.key(0)).shape  # 8 * 2
        (2, 16)
    """

    stages: tuple[int, ...]
    block: Literal["basic", "bottleneck"] = "basic"
    stem: Stem = "small"
    width: int = 64

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B H W C"],
        *,
        train: bool,
        mask: Bool[Array, "B"] | None,
    ) -> Float[Array, "B F"]:
        """Returns the features; in training, those of rows that `mask` counts do not
        depend on the other rows.
        """
        block = {"basic": BasicBlock, "bottleneck": Bottleneck}[self.block]
        if self.stem == "small":
            x = jax.nn.relu(batch_norm(_conv(x, self.width, 3), train=train, mask=mask))
        else:
            x = jax.nn.relu(
                batch_norm(_conv(x, self.width, 7, stride=2), train=train, mask=mask)
            )
            x = max_pool(x, size=3, stride=2, padding=1)
        for i, blocks in enumerate(self.stages):
            for j in range(blocks):
                stride = 2 if i > 0 and j == 0 else 1
                x = block(self.width * 2**i, stride)(x, train=train, mask=mask)
        return x.mean(axis=(1, 2))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, on [B, H, W, C]."""

    features: int
    stride: int

    @nn.compact
    def __call__(self, x, *, train, mask):
        y = _conv(x, self.features, 3, stride=self.stride)
        y = jax.nn.relu(batch_norm(y, train=train, mask=mask))
        y = batch_norm(_conv(y, self.features, 3), train=train, mask=mask)
        return jax.nn.relu(y + _shortcut(x, y.shape[3], self.stride, train, mask))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut, on [B, H, W, C]."""

    features: int
    stride: int

    @nn.compact
    def __call__(self, x, *, train, mask):
        y = jax.nn.relu(batch_norm(_conv(x, self.features, 1), train=train, mask=mask))
        y = _conv(y, self.features, 3, stride=self.stride)
        y = jax.nn.relu(batch_norm(y, train=train, mask=mask))
        y = batch_norm(_conv(y, 4 * self.features, 1), train=train, mask=mask)
        return jax.nn.relu(y + _shortcut(x, y.shape[3], self.stride, train, mask))


def _shortcut(x, features, stride, train, mask):
    if stride == 1 and x.shape[3] == features:
        return x
    # Named apart: EasyFL's divergence of two encoders leaves it out.
    x = _conv(x, features, 1, stride=stride, name="shortcut")
    return batch_norm(x, train=train, mask=mask)


def _conv(x, features, size, *, stride=1, name=None):
    init = nn.initializers.variance_scaling(2.0, "fan_out", "normal")
    return Conv(
        features,
        size,
        stride,
        padding=size // 2,
        use_bias=False,
        kernel_init=init,
        name=name,
    )(x)
