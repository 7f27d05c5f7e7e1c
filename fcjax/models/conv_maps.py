"""The three maps that a convolution and its gradients are made of.

To the outputs, back to the inputs, and to the kernel. A kernel differs from client to
client: clients side by side make of it a grouped convolution under `vmap`, which is
slow on a CPU and reported so on GPUs, and XLA's CPU gradients of a convolution lose
their threads inside any loop. As slices and one matrix product each they have neither
trouble and need no communication under `shard_map`; for a kernel that clients do not
differ in, as where one is taken after another, XLA's own forward convolution spares a
CPU the slices.

Images have their features last, so that a slice is rows of contiguous floats. For 128
examples on two cores inside a loop, milliseconds (docs/benchmarks/speed.md has more):

| kernel, features at pixels | outputs | inputs | kernel | with features first |
| --- | --- | --- | --- | --- |
| 4x4 by 2, 64 to 128 at 14x14 | 7 | 10 | 10 | 13, 21 both gradients |
| 3x3, 128 at 16x16 | 38 | 38 | 66 | 71, 99 |
| 3x3, 256 at 8x8 | 36 | 35 | 49 | 55, 80 |
| 3x3, 512 at 4x4 | 38 | 40 | 34 | 59, 82 |

A TPU takes XLA's own throughout. Compiled for a v5e, both gradients for 10 clients x
128 images, temporary memory and bytes that are read and written, MiB, as slices and as
XLA's own:

| kernel, features at pixels | memory | | moved | |
| --- | --- | --- | --- | --- |
| 5x5, 1 to 64 at 28x28 | 910 | 245 | 3,710 | 645 |
| 4x4 by 2, 64 to 128 at 14x14 | 859 | 0 | 5,924 | 647 |
| 3x3, 32 to 64 at 28x28 | 12,445 | 122 | 31,896 | 990 |
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float

from fcjax.devices import platform

LARGE = 2**24
"""Bytes of slices from which a batch on a CPU is better taken in tiles."""

TILE = 2**22
"""Bytes of slices in a tile."""


class Geometry(NamedTuple):
    """Of a convolution of images of so many pixels."""

    height: int
    width: int
    size: int
    stride: int
    padding: int

    @property
    def rows(self) -> range:
        """The kernel rows that see more than padding: on small images not all do."""
        return self._taps(self.height)

    @property
    def columns(self) -> range:
        """As `rows`."""
        return self._taps(self.width)

    @property
    def out_height(self) -> int:
        """Pixels of an output."""
        return (self.height + 2 * self.padding - self.size) // self.stride + 1

    @property
    def out_width(self) -> int:
        """As `out_height`."""
        return (self.width + 2 * self.padding - self.size) // self.stride + 1

    def _taps(self, extent: int) -> range:
        steps = (extent + 2 * self.padding - self.size) // self.stride
        first = max(0, self.padding - self.stride * steps)
        return range(first, min(self.size, self.padding + extent))


def to_outputs(
    of: Geometry, x: Float[Array, "B H W C"], kernel: Float[Array, "k k C O"]
) -> Float[Array, "B H2 W2 O"]:
    """Returns what a convolution returns."""
    if platform() == "tpu":
        return _xla(of, x, kernel)

    def product(x, kernel):
        y = _slices(of, x) @ kernel.reshape(-1, kernel.shape[3])
        return y.reshape(len(x), of.out_height, of.out_width, -1)

    def own(x, kernel):
        return _lax_conv(
            x,
            kernel,
            of.stride,
            _around(of.height, of.out_height, of.rows, of.stride, of.padding),
            _around(of.width, of.out_width, of.columns, of.stride, of.padding),
        )

    kernel = _seen(of, kernel)
    return (product if of.size == 1 else _unless_kernels(own, product))(x, kernel)


def to_inputs(
    of: Geometry, dy: Float[Array, "B H2 W2 O"], kernel: Float[Array, "k k C O"]
) -> Float[Array, "B H W C"]:
    """Returns the gradient of a convolution in its images: each output adds the kernel,
    times itself, to the pixels that it was made of."""
    if platform() == "tpu":
        shape = (len(dy), of.height, of.width, kernel.shape[2])
        return _transposed(lambda x: _xla(of, x, kernel), shape, dy)

    def product(dy, kernel):
        features = kernel.shape[3]
        columns = dy.reshape(-1, features) @ kernel.reshape(-1, features).T
        columns = columns.reshape(
            *dy.shape[:3], len(of.rows), len(of.columns), kernel.shape[2]
        )
        return _overlap(of, columns)

    def own(dy, kernel):
        # Pixel i is under output i + padding - t of tap t: taps come turned.
        def around(taps, extent, out_extent):
            before = taps[-1] - of.padding
            return before, extent - out_extent + of.padding - taps[0]

        return _lax_conv(
            dy,
            jnp.swapaxes(kernel[::-1, ::-1], 2, 3),
            1,
            around(of.rows, of.height, of.out_height),
            around(of.columns, of.width, of.out_width),
        )

    kernel = _seen(of, kernel)
    if of.stride > 1 or of.size == 1:
        return product(dy, kernel)
    return _unless_kernels(own, product)(dy, kernel)


def to_kernel(
    of: Geometry, x: Float[Array, "B H W C"], dy: Float[Array, "B H2 W2 O"]
) -> Float[Array, "k k C O"]:
    """Returns the gradient of a convolution in its kernel."""
    if platform() == "tpu":
        shape = (of.size, of.size, x.shape[3], dy.shape[3])
        return _transposed(lambda kernel: _xla(of, x, kernel), shape, dy)

    def product(x, dy):
        dy = dy.reshape(-1, features)
        if not on_cpu:
            return _slices(of, x).T @ dy
        # A product of the form A^T B runs at a third of the rate of A B there, and
        # XLA would make this one of them again.
        dy = lax.optimization_barrier(dy.T)
        return lax.optimization_barrier(dy @ _slices(of, x)).T

    on_cpu = platform() == "cpu"
    batch, channels, features = len(x), x.shape[3], dy.shape[3]
    taps = len(of.rows) * len(of.columns)
    example = taps * channels * of.out_height * of.out_width * x.dtype.itemsize
    if not on_cpu or of.size == 1 or batch * example < LARGE:
        seen = product(x, dy)
    else:
        # The last tile is filled up with images of zeros, fewer than there are tiles.
        tiles = -(-batch // max(1, TILE // example))
        tile = -(-batch // tiles)

        def in_tiles(a):
            a = jnp.pad(a, ((0, tiles * tile - batch), *((0, 0),) * 3))
            return a.reshape(tiles, tile, *a.shape[1:])

        def add(total, pair):
            return total + product(*pair), None

        zero = jnp.zeros((taps * channels, features), x.dtype)
        seen, _ = lax.scan(add, zero, (in_tiles(x), in_tiles(dy)))
    seen = seen.reshape(len(of.rows), len(of.columns), channels, features)
    outside = [(taps[0], of.size - 1 - taps[-1]) for taps in (of.rows, of.columns)]
    return jnp.pad(seen, (*outside, (0, 0), (0, 0)))


def _xla(of: Geometry, x, kernel):
    return _lax_conv(x, kernel, of.stride, *2 * ((of.padding, of.padding),))


def _transposed(linear: Callable, shape, dy):
    (found,) = jax.linear_transpose(linear, jax.ShapeDtypeStruct(shape, dy.dtype))(dy)
    return found


def _seen(of: Geometry, kernel):
    rows, columns = of.rows, of.columns
    return kernel[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _around(extent, out_extent, taps: range, stride, padding):
    """The padding of one axis where these taps alone are left of the kernel."""
    before = padding - taps[0]
    return before, (out_extent - 1) * stride + len(taps) - extent - before


def _lax_conv(x, kernel, stride, *around):
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), around, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _unless_kernels(one: Callable, many: Callable) -> Callable:
    """Of two forms of a function of images and a kernel the first, and where `vmap` has
    a kernel for each of many, the second."""
    one = custom_vmap(one)

    @one.def_vmap
    def batched(count, is_batched, x, kernel):
        of_images, of_kernels = is_batched
        if of_kernels:
            return jax.vmap(many, in_axes=(0 if of_images else None, 0))(
                x, kernel
            ), True
        y = one(x.reshape(-1, *x.shape[2:]), kernel)
        return y.reshape(count, -1, *y.shape[1:]), True

    return one


def _slices(of: Geometry, x: Float[Array, "B H W C"]) -> Float[Array, "P T"]:
    """What the kernel sees at each output pixel, a row each."""
    x = jnp.pad(x, ((0, 0), *2 * ((of.padding, of.padding),), (0, 0)))
    height = of.stride * (of.out_height - 1) + 1
    width = of.stride * (of.out_width - 1) + 1
    slices = [
        x[:, i : i + height : of.stride, j : j + width : of.stride]
        for i in of.rows
        for j in of.columns
    ]
    return jnp.concatenate(slices, axis=3).reshape(-1, len(slices) * x.shape[3])


def _overlap(
    of: Geometry, columns: Float[Array, "B H2 W2 k1 k2 C"]
) -> Float[Array, "B H W C"]:
    """Adds up what the taps give to each pixel: the transpose of `_slices`.

    Pixels whose place is the same modulo the stride get it from the same taps, so each
    kind of them is a sum of a few shifted images.
    """
    height, width = (-(-extent // of.stride) for extent in (of.height, of.width))

    def taps_of(kind: int, taps: range):
        """Of one kind of rows or columns the taps, and under which output the first of
        them lies."""
        firsts = {tap: kind + of.padding - tap for tap in taps}
        return [
            (tap - taps[0], first // of.stride)
            for tap, first in firsts.items()
            if first % of.stride == 0
        ]

    def shifted(i: int, top: int, j: int, left: int):
        # A pad of its own, not one for all: XLA then makes no image of it.
        below = top + height - of.out_height
        beside = left + width - of.out_width
        around = ((0, 0, 0), (-top, below, 0), (-left, beside, 0), (0, 0, 0))
        return lax.pad(columns[:, :, :, i, j], jnp.zeros((), columns.dtype), around)

    def total(row: int, side: int):
        images = [
            shifted(*vertical, *horizontal)
            for vertical in taps_of(row, of.rows)
            for horizontal in taps_of(side, of.columns)
        ]
        zeros = jnp.zeros((batch, height, width, channels), columns.dtype)
        return sum(images, zeros)

    batch, channels = len(columns), columns.shape[5]
    kinds = range(of.stride)
    image = [jnp.stack([total(row, side) for side in kinds], axis=3) for row in kinds]
    image = jnp.stack(image, axis=2)
    image = image.reshape(batch, height * of.stride, width * of.stride, channels)
    return image[:, : of.height, : of.width]
