"""The transposed convolution of the generators: kernel 4, stride 2, padding 1.

Every client's generator has kernels of its own, so it is made of what `conv` is made
of, a matrix product and shifts: the product gives each of the 16 taps its columns
[4, 4, O, B, H, W], and of four neighbouring taps each pixel of the doubled image is
the sum. Its gradient slices anew, as `conv` does, and keeps no columns. For 64
examples on one core inside a loop, milliseconds forward and backward:

| features, at pixels | here | transpose of `conv` | `lax` | PyTorch |
| --- | --- | --- | --- | --- |
| 128 to 64, 7x7 | 16 | 36 | 878 | 17 |
| 64 to 1, 14x14 | 1.1 | 1.4 | 20 | 3.5 |
| 64 to 3, 16x16 | 2.9 | 5.2 | 213 | 6.8 |
| 256 to 128, 12x12 | 219 | 258 | | 192 |

`lax` is `lax.conv_general_dilated` with `lhs_dilation`; two steps of the last row had
not ended after two minutes on a shared core. No faster: tiles as in `conv`, and
overlapping rows before columns or both at once. Four products of slices, one for each
phase of the outputs, take 198 in the last row, but 14 and 23 in the two before.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jaxtyping import Array, Float


def conv_transpose(
    x: Float[Array, "C B H W"], kernel: Float[Array, "4 4 C O"]
) -> Float[Array, "O B 2*H 2*W"]:
    """Doubles a batch, as `torch.nn.functional.conv_transpose2d(stride=2, padding=1)`.

    Input pixel (h, w) adds x[h, w] kernel[i, j] to output pixel (2h + i - 1, 2w + j -
    1), where there is one: the transpose of `conv` in its images.

    Args:
        x: a batch with its features first.
        kernel: rows, columns, features in, features out.

    Returns:
        The outputs, twice as high and wide.
    """
    in_features, batch, height, width = x.shape
    out_features = kernel.shape[3]
    weights = jnp.swapaxes(kernel, 2, 3).reshape(-1, in_features)
    columns = weights @ x.reshape(in_features, -1)
    return _overlap(columns.reshape(4, 4, out_features, batch, height, width))


@jax.custom_vjp
def _overlap(columns: Float[Array, "4 4 O B H W"]) -> Float[Array, "O B 2*H 2*W"]:
    """Row 2h is of tap 1 at h and tap 3 at h - 1, row 2h + 1 of tap 2 at h and tap 0
    at h + 1; likewise the columns."""
    *_, features, batch, height, width = columns.shape
    taps = [columns[:, j] for j in range(4)]
    even, odd = taps[1] + _before(taps[3], 4), taps[2] + _after(taps[0], 4)
    taps = jnp.stack([even, odd], axis=-1)
    even, odd = taps[1] + _before(taps[3], 2), taps[2] + _after(taps[0], 2)
    y = jnp.stack([even, odd], axis=3)
    return y.reshape(features, batch, 2 * height, 2 * width)


def _before(x: Float[Array, "..."], axis: int) -> Float[Array, "..."]:
    """At each place what was one place before, and first zeros."""
    rest = lax.slice_in_dim(x, 0, x.shape[axis] - 1, axis=axis)
    return jnp.pad(rest, [(i == axis, 0) for i in range(x.ndim)])


def _after(x: Float[Array, "..."], axis: int) -> Float[Array, "..."]:
    """At each place what was one place after, and last zeros."""
    rest = lax.slice_in_dim(x, 1, x.shape[axis], axis=axis)
    return jnp.pad(rest, [(0, i == axis) for i in range(x.ndim)])


def _overlap_forward(columns):
    return _overlap(columns), None


def _overlap_backward(_, dy):
    """Each tap's own pixels: with XLA's transpose of `_overlap` the first row of the
    table would be 24."""
    features, batch, height, width = dy.shape
    dy = jnp.pad(dy, ((0, 0), (0, 0), (1, 1), (1, 1)))
    slices = [
        lax.slice(
            dy,
            (0, 0, i, j),
            (features, batch, i + height - 1, j + width - 1),
            (1, 1, 2, 2),
        )
        for i in range(4)
        for j in range(4)
    ]
    slices = jnp.stack(slices)
    return (slices.reshape(4, 4, features, batch, height // 2, width // 2),)


_overlap.defvjp(_overlap_forward, _overlap_backward)


class ConvTranspose(nn.Module):
    """`conv_transpose` on [C, B, H, W] with a kernel and a bias of its own.

    The kernel starts as `kernel_init` draws it, the bias at zero.
    """

    features: int
    kernel_init: Callable
    use_bias: bool = True

    @nn.compact
    def __call__(self, x):
        shape = (4, 4, x.shape[0], self.features)
        y = conv_transpose(x, self.param("kernel", self.kernel_init, shape))
        if not self.use_bias:
            return y
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return y + bias[:, None, None, None]
