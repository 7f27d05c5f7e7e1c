"""Layers: initializers, batch norm, pooling, convolutions, microbatches.

The three maps that a convolution and its gradients are made of.

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

The transposed convolution of the generators: kernel 4, stride 2, padding 1.

It is a convolution's gradient in its images, so it is made of the maps of `conv`: the
product gives each of the 16 taps its columns, and of four of them each pixel of the
doubled image is the sum. Its own gradients are the convolution and that one's gradient
in the kernel. XLA's, by `lhs_dilation`, is 10 to 70 times slower in a loop on a CPU.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Float

from fcjax.parallel.mesh import platform
from fcjax.types import Network

# --- Initializers


def fan_in_uniform(fan_in: int):
    """Returns an initialiser: uniform in +-1/sqrt(fan_in), for weights and biases."""
    bound = fan_in**-0.5

    def init(key, shape, dtype="float32"):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


class Dense(nn.Module):
    """A linear layer on [B, F], initialised as in PyTorch."""

    features: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, x):
        init = fan_in_uniform(x.shape[-1])
        layer = partial(nn.Dense, kernel_init=init, bias_init=init)
        return layer(self.features, use_bias=self.use_bias)(x)


# --- Network


def from_linen(module: nn.Module) -> Network:
    """Wraps a Linen module as a pair of pure functions.

    Args:
        module: its call is `module(x, *, train, mask)`, of a batch [B, *F], whether it
            trains, and which examples [B] count in batch statistics, None for all.

    Returns:
        A `Network`. In training `apply` returns the variables with new batch
        statistics; in evaluation it uses the running ones and returns them unchanged.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> class Linear(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x, *, train, mask):
        ...         return nn.Dense(2)(x)
        >>> network, x = from_linen(Linear()), jnp.zeros((3, 6))
        >>> network.apply(network.init(jax.random.key(0), x), x, train=False)[0].shape
        (3, 2)
    """

    def init(key, x):
        return module.init(key, x, train=False, mask=None)

    def apply(variables, x, *, train, mask=None):
        if not train:
            return module.apply(variables, x, train=False, mask=None), variables
        outputs, updates = module.apply(
            variables, x, train=True, mask=mask, mutable=["batch_stats"]
        )
        return outputs, {**variables, **updates}

    return Network(init, apply)


# --- Batch norm


def batch_norm(
    x: Float[Array, "B ... C"],
    *,
    train: bool,
    mask: Bool[Array, " B"] | None,
    affine: bool = True,
    scale_init: nn.initializers.Initializer = nn.initializers.ones,
) -> Float[Array, "B ... C"]:
    """A layer of the compact module that calls it, in PyTorch's defaults.

    Statistics are over all axes but the features', and over all examples if the mask
    is None. Running ones move by a tenth in training and take the biased variance,
    where PyTorch takes the unbiased one.

    Args:
        x: a batch, its features last.
        train: whether to use, and to learn from, the batch's statistics.
        mask: the examples that count in them.
        affine: whether a learnt scale and shift follow.
        scale_init: of that scale; zeros let a residual block begin as the identity.

    Returns:
        The normalised batch, examples that do not count included.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> class Norm(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x, *, train, mask):
        ...         return batch_norm(x, train=train, mask=mask)
        >>> x, mask = jnp.array([[1.0], [3.0], [9.0]]), jnp.array([True, True, False])
        >>> y, _ = Norm().init_with_output(jax.random.key(0), x, train=True, mask=mask)
        >>> print(y[:, 0].round())  # the first two have mean 2 and variance 1
        [-1.  1.  7.]
    """
    norm = nn.BatchNorm(
        use_running_average=not train,
        momentum=0.9,
        epsilon=1e-5,
        use_fast_variance=False,
        use_scale=affine,
        use_bias=affine,
        scale_init=scale_init,
    )
    if mask is not None:
        mask = mask.reshape(-1, *(1,) * (x.ndim - 1))
    return norm(x, mask=mask)


# --- Pooling


def max_pool(
    x: Float[Array, "B H W C"], *, size: int, stride: int, padding: int = 0
) -> Float[Array, "B H2 W2 C"]:
    """Takes the maximum of square windows, as `torch.nn.functional.max_pool2d` does.

    Of equal values the first gets the gradient, and padding never wins.

    Args:
        x: a batch of images.
        size: the side of a window.
        stride: the step between two windows, in pixels.
        padding: how much surrounds the image on every side, at most half a window.

    Returns:
        The maxima, H2 = (H + 2 padding - size) // stride + 1 high and likewise wide.
    """
    # Comparing slices along one axis, then along the other, is 3.6 times faster on a
    # CPU than `lax.reduce_window`, whose gradient is a scatter.
    for axis in (2, 1):
        around = [(0, 0)] * 4
        around[axis] = (padding, padding)
        padded = jnp.pad(x, around, constant_values=-jnp.inf)
        last = padded.shape[axis] - size + 1
        x, *others = [
            lax.slice_in_dim(padded, i, i + last, stride, axis) for i in range(size)
        ]
        for other in others:
            x = jnp.where(x >= other, x, other)
    return x


# --- Microbatch


def microbatched(network: Network, size: int) -> Network:
    """Bounds the memory that a network takes, however large the batch.

    The loss of a batch couples all its outputs, so that its gradient cannot be
    accumulated part by part. FedMCC's section VI computes the outputs first, without
    what a backward pass needs, then the loss's gradient with respect to them, and then
    part by part the network's, for which each part goes forward once more. That is what
    differentiating this network does; of the whole batch only inputs and outputs are
    kept. Section VI has each output depend on its own input alone, which batch norm in
    training breaks: here statistics are those of a part, in both passes.

    Args:
        network: whatever its layers.
        size: examples a part; a batch no longer than that goes as it is.

    Returns:
        A `Network` with the same variables. In training, statistics are those of
        consecutive parts of `size` examples, and the running ones learn from one part
        after another; a part of which no example counts teaches them nothing.

    Raises:
        ValueError: if size is below 1.

    Examples:
        >>> from fcjax.nn import projector
        >>> network, x = microbatched(projector(2), 4), jnp.zeros((10, 6))
        >>> variables = network.init(jax.random.key(0), x)
        >>> network.apply(variables, x, train=True)[0].shape  # by parts of 4, 4 and 2
        (10, 2)
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")

    def apply(variables, x, *, train, mask=None):
        count = len(x)
        if count <= size:
            return network.apply(variables, x, train=train, mask=mask)
        num_parts = -(-count // size)
        slack = num_parts * size - count
        counts = jnp.ones(count, bool) if mask is None else mask
        # The last part is filled up with examples that do not count.
        x = jnp.concatenate([x, x[:slack]]).reshape(num_parts, size, *x.shape[1:])
        counts = jnp.pad(counts, (0, slack)).reshape(num_parts, size)
        params = variables["params"]
        statistics = {k: v for k, v in variables.items() if k != "params"}

        def forward(statistics, part):
            x, counts = part
            any_counts = counts.any()
            # The mean over no example is no number, in the gradient too.
            outputs, new = network.apply(
                {"params": params, **statistics},
                x,
                train=train,
                mask=counts | ~any_counts,
            )
            new = {k: new[k] for k in statistics}
            statistics = jax.tree.map(
                lambda new, old: jnp.where(any_counts, new, old), new, statistics
            )
            return lax.stop_gradient(statistics), outputs

        statistics, outputs = lax.scan(
            jax.checkpoint(forward, prevent_cse=False), statistics, (x, counts)
        )
        outputs = jax.tree.map(
            lambda y: y.reshape(num_parts * size, *y.shape[2:])[:count], outputs
        )
        return outputs, {"params": params, **statistics}

    return Network(network.init, apply)


# --- Convolutions as matrix products

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
    times itself, to the pixels that it was made of.
    """
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
    a kernel for each of many, the second.
    """
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
        them lies.
        """
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


# --- Convolution


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


def _conv_forward(of: Geometry, x, kernel):
    return to_outputs(of, x, kernel), (x, kernel)


def _conv_backward(of: Geometry, saved, dy):
    x, kernel = saved
    return to_inputs(of, dy, kernel), to_kernel(of, x, dy)


_conv.defvjp(_conv_forward, _conv_backward)


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


# --- Transposed convolution


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


def _transposed_forward(x, kernel):
    return _conv_transpose(x, kernel), (x, kernel)


def _transposed_backward(saved, dy):
    x, kernel = saved
    of = _halving(x)
    return to_outputs(of, dy, kernel), to_kernel(of, dy, x)


_conv_transpose.defvjp(_transposed_forward, _transposed_backward)


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
