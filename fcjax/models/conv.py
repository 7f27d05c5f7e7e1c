"""The convolution that every network uses.

A convolution whose kernel differs from client to client becomes a grouped convolution
under `vmap`, and XLA's CPU convolution loses its threads inside any loop. The same
sum as slices and one matrix product has neither trouble, needs no communication under
`shard_map`, and with features first ([C, B, H, W]) its two gradients are products of
the fast kinds (A B and A B^T) as well. BENCHMARKS.md has the measurements.
"""

import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jaxtyping import Array, Float

from fcjax.models.initializers import fan_in_uniform


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
    """A square convolution with bias on [C, B, H, W], initialised as in PyTorch."""

    features: int
    size: int
    stride: int = 1
    padding: int = 0

    @nn.compact
    def __call__(self, x):
        fan_in = self.size**2 * x.shape[0]
        shape = (self.size, self.size, x.shape[0], self.features)
        kernel = self.param("kernel", fan_in_uniform(fan_in), shape)
        bias = self.param("bias", fan_in_uniform(fan_in), (self.features,))
        y = conv(x, kernel, stride=self.stride, padding=self.padding)
        return y + bias[:, None, None, None]
