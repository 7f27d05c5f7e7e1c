"""The convolution that every network uses, on images [B, H, W, C]."""

from collections.abc import Callable
from functools import partial

import jax
from flax import linen as nn
from jaxtyping import Array, Float

from fcjax.models.conv_maps import Geometry, to_inputs, to_kernel, to_outputs
from fcjax.models.initializers import fan_in_uniform


def conv(
    x: Float[Array, "B H W C"],
    kernel: Float[Array, "k k C O"],
    *,
    stride: int = 1,
    padding: int = 0,
) -> Float[Array, "B H2 W2 O"]:
    """Cross-correlates a batch with a kernel, as `torch.nn.functional.conv2d` does.

    It has a gradient, but no forward derivative (`jax.jvp`).

    Args:
        x: a batch of images.
        kernel: a square kernel.
        stride: the step between two outputs, in pixels.
        padding: how many zeros surround the image on every side.

    Returns:
        The outputs, H2 = (H + 2 padding - k) // stride + 1 high and likewise wide.
    """
    if x.ndim != 4:
        raise ValueError(f"x must be images [B, H, W, C], got shape {x.shape}")
    size, (_, height, width, _) = len(kernel), x.shape
    if size > min(height, width) + 2 * padding:
        raise ValueError(
            f"a kernel of {size}x{size} does not fit into images of {height}x{width} "
            f"with padding {padding}"
        )
    return _conv(Geometry(height, width, size, stride, padding), x, kernel)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _conv(of: Geometry, x, kernel):
    return to_outputs(of, x, kernel)


def _forward(of: Geometry, x, kernel):
    return to_outputs(of, x, kernel), (x, kernel)


def _backward(of: Geometry, saved, dy):
    x, kernel = saved
    return to_inputs(of, dy, kernel), to_kernel(of, x, dy)


_conv.defvjp(_forward, _backward)


class Conv(nn.Module):
    """A square convolution on [B, H, W, C].

    The kernel starts as in PyTorch without a `kernel_init`, and the bias without a
    `bias_init`.
    """

    features: int
    size: int
    stride: int = 1
    padding: int = 0
    use_bias: bool = True
    kernel_init: Callable | None = None
    bias_init: Callable | None = None

    @nn.compact
    def __call__(self, x):
        init = fan_in_uniform(self.size**2 * x.shape[3])
        shape = (self.size, self.size, x.shape[3], self.features)
        kernel = self.param("kernel", self.kernel_init or init, shape)
        y = conv(x, kernel, stride=self.stride, padding=self.padding)
        if not self.use_bias:
            return y
        bias = self.param("bias", self.bias_init or init, (self.features,))
        return y + bias[None, None, None]
