"""The transposed convolution of the generators: kernel 4, stride 2, padding 1.

It is a convolution's gradient in its images, so it is made of the maps of `conv`: the
product gives each of the 16 taps its columns, and of four of them each pixel of the
doubled image is the sum. Its own gradients are the convolution and that one's gradient
in the kernel. XLA's, by `lhs_dilation`, is 10 to 70 times slower in a loop on a CPU.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fcjax.models.conv_maps import Geometry, to_inputs, to_kernel, to_outputs


def conv_transpose(
    x: Float[Array, "B H W C"], kernel: Float[Array, "4 4 C O"]
) -> Float[Array, "B 2*H 2*W O"]:
    """Doubles a batch, as `torch.nn.functional.conv_transpose2d(stride=2, padding=1)`.

    Input pixel (h, w) adds x[h, w] kernel[i, j] to output pixel (2h + i - 1, 2w + j -
    1), where there is one: the transpose of `conv` in its images.

    Args:
        x: a batch of images.
        kernel: rows, columns, features in, features out.

    Returns:
        The outputs, twice as high and wide.
    """
    return _conv_transpose(x, jnp.swapaxes(kernel, 2, 3))


def _halving(x) -> Geometry:
    """The convolution whose outputs are these."""
    return Geometry(2 * x.shape[1], 2 * x.shape[2], size=4, stride=2, padding=1)


@jax.custom_vjp
def _conv_transpose(x, kernel):
    return to_inputs(_halving(x), x, kernel)


def _forward(x, kernel):
    return _conv_transpose(x, kernel), (x, kernel)


def _backward(saved, dy):
    x, kernel = saved
    of = _halving(x)
    return to_outputs(of, dy, kernel), to_kernel(of, dy, x)


_conv_transpose.defvjp(_forward, _backward)


class ConvTranspose(nn.Module):
    """`conv_transpose` on [B, H, W, C] with a kernel and a bias of its own.

    The kernel starts as `kernel_init` draws it, the bias at zero.
    """

    features: int
    kernel_init: Callable
    use_bias: bool = True

    @nn.compact
    def __call__(self, x):
        shape = (4, 4, x.shape[3], self.features)
        y = conv_transpose(x, self.param("kernel", self.kernel_init, shape))
        if not self.use_bias:
            return y
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return y + bias[None, None, None]
