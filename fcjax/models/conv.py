"""The convolution that every network uses.

A convolution whose kernel differs from client to client becomes a grouped convolution
under `vmap`, and XLA's CPU convolution loses its threads inside any loop. The same
sum as slices and one matrix product has neither trouble, needs no communication under
`shard_map`, and with features first ([C, B, H, W]) its two gradients are products of
the fast kinds (A B and A B^T) as well. BENCHMARKS.md has the measurements.

The slices take k * k times the memory of the images. Where that is much, a CPU spends
its time on fresh memory pages, so the batch goes through in tiles whose slices stay in
cache, and the backward pass slices anew. For 128 examples on one core, milliseconds
forward and backward:

| 3x3, features at pixels | whole | in tiles | `lax.conv` | PyTorch |
| --- | --- | --- | --- | --- |
| 64 at 32x32 | 722 | 260 | 456 | 255 |
| 128 at 16x16 | 282 | 184 | 326 | 159 |
| 256 at 8x8 | 270 | 175 | 278 | 133 |
| 512 at 4x4 | 183 | 163 | 198 | 137 |

Slower than tiles: one product for each tap or each kernel row, Winograd F(2x2, 3x3),
and the input's gradient as a convolution with the turned kernel.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jaxtyping import Array, Float

from fcjax.models.initializers import fan_in_uniform

LARGE = 2**25
"""Bytes of slices from which a batch on a CPU is better taken in tiles."""

TILE = 2**22
"""Bytes of slices in a tile; from 1 to 4 MiB it makes no difference."""


def conv(
    x: Float[Array, "C B H W"],
    kernel: Float[Array, "k k C O"],
    *,
    stride: int = 1,
    padding: int = 0,
) -> Float[Array, "O B H2 W2"]:
    """Cross-correlates a batch with a kernel, as `torch.nn.functional.conv2d` does.

    Args:
        x: a batch with its features first.
        kernel: a square kernel.
        stride: the step between two outputs, in pixels.
        padding: how many zeros surround the image on every side.

    Returns:
        The outputs, H2 = (H + 2 padding - k) // stride + 1 high and likewise wide.
    """
    size, _, in_features, out_features = kernel.shape
    _, batch, height, width = x.shape
    if size > min(height, width) + 2 * padding:
        raise ValueError(
            f"a kernel of {size}x{size} does not fit into images of {height}x{width} "
            f"with padding {padding}"
        )
    out_height = (height + 2 * padding - size) // stride + 1
    out_width = (width + 2 * padding - size) // stride + 1
    taps = len(_taps(size, height, stride, padding))
    taps *= len(_taps(size, width, stride, padding))
    example = taps * in_features * out_height * out_width * x.dtype.itemsize

    # An accelerator wants all its work at once, and a single tap copies nothing.
    on_cpu = jax.default_backend() == "cpu"
    if not on_cpu or taps == 1 or batch * example < LARGE:
        return _slices_product(x, kernel, stride, padding)

    # The last tile is filled up with images of zeros, fewer than there are tiles.
    tiles = -(-batch // max(1, TILE // example))
    tile = -(-batch // tiles)
    x = jnp.pad(x, ((0, 0), (0, tiles * tile - batch), (0, 0), (0, 0)))
    x = x.reshape(in_features, tiles, tile, height, width)

    @jax.checkpoint
    def of_tile(x: Float[Array, "C B H W"]):
        return _slices_product(x, kernel, stride, padding)

    y = jnp.moveaxis(lax.map(of_tile, jnp.moveaxis(x, 1, 0)), 0, 1)
    return y.reshape(out_features, -1, out_height, out_width)[:, :batch]


def _slices_product(
    x: Float[Array, "C B H W"],
    kernel: Float[Array, "k k C O"],
    stride: int,
    padding: int,
) -> Float[Array, "O B H2 W2"]:
    size, _, in_features, out_features = kernel.shape
    _, batch, height, width = x.shape
    rows = _taps(size, height, stride, padding)
    columns = _taps(size, width, stride, padding)
    x = jnp.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    out_height = (height + 2 * padding - size) // stride + 1
    out_width = (width + 2 * padding - size) // stride + 1
    slices = [
        lax.slice(
            x,
            (0, 0, i, j),
            (
                in_features,
                batch,
                i + stride * (out_height - 1) + 1,
                j + stride * (out_width - 1) + 1,
            ),
            (1, 1, stride, stride),
        )
        for i in rows
        for j in columns
    ]
    patches = jnp.stack(slices).reshape(-1, batch * out_height * out_width)
    weights = kernel[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    y = weights.reshape(-1, out_features).T @ patches
    return y.reshape(out_features, batch, out_height, out_width)


def _taps(size: int, extent: int, stride: int, padding: int) -> range:
    """The kernel rows that see more than padding: on small images not all do."""
    steps = (extent + 2 * padding - size) // stride
    first = max(0, padding - stride * steps)
    return range(first, min(size, padding + extent))


class Conv(nn.Module):
    """A square convolution on [C, B, H, W].

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
        init = fan_in_uniform(self.size**2 * x.shape[0])
        shape = (self.size, self.size, x.shape[0], self.features)
        kernel = self.param("kernel", self.kernel_init or init, shape)
        y = conv(x, kernel, stride=self.stride, padding=self.padding)
        if not self.use_bias:
            return y
        bias = self.param("bias", self.bias_init or init, (self.features,))
        return y + bias[:, None, None, None]
