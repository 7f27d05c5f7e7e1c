"""Residual networks, the usual encoders for self-supervised learning on colour images.

The networks are those of Table 1 of He et al., without the classifier, in the variant
of torchvision:

* A shortcut that changes the shape is a 1x1 convolution with batch norm (option B of
  the paper).
* A bottleneck halves the image in its 3x3 convolution, not in its first 1x1.
* Kernels start from a normal distribution scaled by the number of outputs.
* Convolutions have no bias, because a batch norm follows.

References:
    He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition, CVPR 2016,
    https://arxiv.org/abs/1512.03385.
"""

from typing import Literal

import jax
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from fcjax.nn.layers import Conv, batch_norm, max_pool

Stem = Literal["small", "imagenet"]


def resnet18(stem: Stem = "small") -> "ResNet":
    """Builds ResNet-18 of Table 1 of the paper.

    Args:
        stem: the first layers, "small" for images of about 32 pixels or "imagenet" for
            larger ones; see `ResNet`.

    Returns:
        A Linen module from images [B, H, W, C] in [0, 1] to features [B, 512],
        at least 0. `encoder` turns it into a `Network`.

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
    """Builds ResNet-34 of Table 1 of the paper.

    Args:
        stem: the first layers, "small" for images of about 32 pixels or "imagenet" for
            larger ones; see `ResNet`.

    Returns:
        A Linen module from images [B, H, W, C] in [0, 1] to features [B, 512],
        at least 0. `encoder` turns it into a `Network`.

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
    """Builds ResNet-50 of Table 1 of the paper.

    Args:
        stem: the first layers, "small" for images of about 32 pixels or "imagenet" for
            larger ones; see `ResNet`.

    Returns:
        A Linen module from images [B, H, W, C] in [0, 1] to features [B, 2048],
        at least 0. `encoder` turns it into a `Network`.

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

    This is a Linen module. `encoder` turns it into a `Network`. Features are
    at least 0. F is width * 2 ** (len(stages) - 1), and four times as large with
    bottlenecks.

    Attributes:
        stages: number of blocks of each stage. Every stage except the first halves the
            image and doubles the features.
        block: "basic" (two 3x3 convolutions) or "bottleneck" (a 3x3 convolution between
            two 1x1 convolutions, the last of which has four times as many features).
        stem: the first layers. "imagenet" is the paper's 7x7 convolution of stride 2
            and 3x3 max-pool of stride 2. "small" is a 3x3 convolution of stride 1 for
            images of about 32 pixels, which "imagenet" would reduce to 8 pixels before
            the first block. The paper uses "small" for CIFAR-10 (section 4.2). SimSiam
            and SimCLR use it in ResNet-18 and ResNet-50 for CIFAR (Chen & He 2021,
            appendix D; Chen et al. 2020, appendix B.9).
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
        """Returns the features of a batch of images.

        Args:
            x: images [B, H, W, C] in [0, 1].
            train: whether batch norms use the statistics of this batch.
            mask: [B], True at examples that count in the batch statistics; None counts
                all. In training, the features of these examples do not depend on
                examples where the mask is False.

        Returns:
            Features [B, F], at least 0.
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
    """Two 3x3 convolutions and a shortcut, on [B, H, W, C]."""

    features: int
    stride: int

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Maps images x [B, H, W, C] to the output of the block."""
        y = _conv(x, self.features, 3, stride=self.stride)
        y = jax.nn.relu(batch_norm(y, train=train, mask=mask))
        y = batch_norm(_conv(y, self.features, 3), train=train, mask=mask)
        return jax.nn.relu(y + _shortcut(x, y.shape[3], self.stride, train, mask))


class Bottleneck(nn.Module):
    """Convolutions of 1x1, 3x3 and 1x1 and a shortcut, on [B, H, W, C]."""

    features: int
    stride: int

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Maps images x [B, H, W, C] to the output of the block."""
        y = jax.nn.relu(batch_norm(_conv(x, self.features, 1), train=train, mask=mask))
        y = _conv(y, self.features, 3, stride=self.stride)
        y = jax.nn.relu(batch_norm(y, train=train, mask=mask))
        y = batch_norm(_conv(y, 4 * self.features, 1), train=train, mask=mask)
        return jax.nn.relu(y + _shortcut(x, y.shape[3], self.stride, train, mask))


def _shortcut(x, features, stride, train, mask):
    """Returns `x`, or a 1x1 convolution of it where the shape changes."""
    if stride == 1 and x.shape[3] == features:
        return x
    # A separate name, because EasyFL's divergence of two encoders excludes this layer.
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
