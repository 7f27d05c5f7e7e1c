"""Layers: initializers, batch norm, pooling, microbatches and convolutions.

A convolution and its gradients need three maps: `to_outputs`, `to_inputs` (the gradient
in the images) and `to_kernel` (the gradient in the kernel). This module computes each
map from slices of the images and one matrix product, because XLA's own convolutions are
slow in two cases:

* Kernels differ between clients. A `vmap` over clients then makes a grouped
  convolution, which is slow on a CPU and, as others report, on a GPU.
* The gradient is computed inside a loop. XLA's CPU gradients then use one thread.

The matrix products also need no communication under `shard_map`. If clients share one
kernel, for example because clients run one after another, a CPU uses XLA's own forward
convolution, which needs no slices.

Images have their features on the last axis, so that a slice consists of contiguous
floats. Milliseconds for 128 examples on two cores inside a loop
(docs/benchmarks/speed.md has more):

| kernel, features at pixels | outputs | inputs | kernel | with features first |
| --- | --- | --- | --- | --- |
| 4x4 by 2, 64 to 128 at 14x14 | 7 | 10 | 10 | 13, 21 both gradients |
| 3x3, 128 at 16x16 | 38 | 38 | 66 | 71, 99 |
| 3x3, 256 at 8x8 | 36 | 35 | 49 | 55, 80 |
| 3x3, 512 at 4x4 | 38 | 40 | 34 | 59, 82 |

A TPU uses XLA's own convolution for all three maps. The next table compares both ways,
compiled for a TPU v5e: both gradients for 10 clients with 128 images each. It shows
temporary memory and bytes read and written, in MiB, first with slices and then with
XLA's own convolution:

| kernel, features at pixels | memory | | moved | |
| --- | --- | --- | --- | --- |
| 5x5, 1 to 64 at 28x28 | 910 | 245 | 3,710 | 645 |
| 4x4 by 2, 64 to 128 at 14x14 | 859 | 0 | 5,924 | 647 |
| 3x3, 32 to 64 at 28x28 | 12,445 | 122 | 31,896 | 990 |

The transposed convolution of the generators has kernel size 4, stride 2 and padding 1.
It is the gradient of a convolution in its images, so it uses the same three maps. A
matrix product computes the 16 kernel positions of each input pixel, and each pixel of
the doubled image is a sum of four of them. XLA's own version, with `lhs_dilation`, is
10 to 70 times slower in a loop on a CPU.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.linen.dtypes import promote_dtype
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Float

from fcjax.parallel.mesh import platform
from fcjax.types import Network, PyTree

# --- Initializers


def fan_in_uniform(fan_in: int):
    """Returns PyTorch's initializer: uniform in +-1/sqrt(fan_in).

    It is used for weights and for biases.

    Args:
        fan_in: number of inputs of one output.

    Returns:
        An initializer (key, shape, dtype) -> array.
    """
    bound = fan_in**-0.5

    def init(key, shape, dtype="float32"):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def compute_dtype() -> Any:
    """Returns the type of activations and operands in the layers of this module.

    It follows `jax.default_matmul_precision`, which is a part of JAX's trace context.

    Returns:
        bfloat16 inside `jax.default_matmul_precision("bfloat16")`, else None: the type
        of the inputs. Parameters and batch statistics always are float32.
    """
    precision = jax.config.jax_default_matmul_precision  # pyright: ignore
    return jnp.bfloat16 if precision == "bfloat16" else None


class Dense(nn.Module):
    """A linear layer on [B, F], initialized as in PyTorch.

    With `is_normalized`, a batch norm follows. It subtracts the bias, so the gradient
    of the bias is set to its exact value 0. A computed gradient would have rounding
    errors, which Adam turns into steps of the learning rate's size.
    """

    features: int
    use_bias: bool = True
    is_normalized: bool = False

    @nn.compact
    def __call__(self, x):
        """Maps x [B, F] to [B, features]."""
        init = fan_in_uniform(x.shape[-1])
        layer = partial(nn.Dense, kernel_init=init, bias_init=init)
        if self.is_normalized:
            layer = partial(layer, promote_dtype=_constant_bias)  # pyright: ignore
        return layer(self.features, use_bias=self.use_bias, dtype=compute_dtype())(x)


def _constant_bias(x, kernel, bias, *, dtype, **kwargs):
    """Promotes the arrays of `nn.Dense` to one type, without a gradient of the bias."""
    return promote_dtype(x, kernel, lax.stop_gradient(bias), dtype=dtype, **kwargs)


# --- Network


def from_linen(module: nn.Module) -> Network:
    """Wraps a Linen module as a pair of pure functions.

    Args:
        module: a module with the call `module(x, *, train, mask)`. x is a batch
            [B, *F]. `train` tells whether the module trains. `mask` [B] is True at
            examples that count in batch statistics; None counts all.

    Returns:
        A `Network`. With `train=True`, `apply` returns the variables with updated batch
        statistics. With `train=False`, it uses the running statistics and returns the
        variables unchanged.

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
            outputs = module.apply(variables, x, train=False, mask=None)
            return _float32(outputs), variables
        outputs, updates = module.apply(
            variables, x, train=True, mask=mask, mutable=["batch_stats"]
        )
        return _float32(outputs), {**variables, **updates}

    return Network(init, apply)


def in_compute_dtype(variables: PyTree) -> PyTree:
    """Casts the kernels of a network that is applied often and not trained.

    Args:
        variables: the variables of the network.

    Returns:
        The variables with kernels of `compute_dtype`. Outputs stay the same.
    """

    def cast(x):
        return optax.tree.cast(x, compute_dtype()) if x.ndim > 1 else x

    return jax.tree.map(cast, variables)


def _float32(outputs: PyTree) -> PyTree:
    """Returns the outputs of a network as float32, for losses and clustering."""
    is_low = compute_dtype() is not None
    return optax.tree.cast(outputs, jnp.float32) if is_low else outputs


VIEWS = "view"
"""Name of the axis of `apply_to_views`."""


def num_views() -> int:
    """Returns the number of views inside `apply_to_views`, and 0 elsewhere."""
    try:
        return lax.axis_size(VIEWS)
    except NameError:  # The axis is not bound.
        return 0


def apply_to_views(
    network: Network,
    variables: PyTree,
    views: Float[Array, "V B *F"],
    mask: Bool[Array, " B"] | None,
) -> tuple[PyTree, PyTree]:
    """Applies a network in training to several views of a batch, in one pass.

    The result is that of one `network.apply` per view, in order. Each view has its own
    batch statistics.

    Args:
        network: the network.
        variables: its variables.
        views: V views of the batch.
        mask: True at examples that count in batch statistics; None counts all.

    Returns:
        The outputs with a leading axis V, and the variables with the batch statistics
        of all views.
    """

    def apply(variables, x):
        outputs, variables = network.apply(variables, x, train=True, mask=mask)
        return variables, outputs

    if platform() != "cpu":
        with contextlib.suppress(ValueError):  # The network has another batch norm.
            in_one_pass = jax.vmap(apply, (None, 0), (None, 0), axis_name=VIEWS)
            variables, outputs = in_one_pass(variables, views)
            return outputs, variables
    outputs = []
    for view in views:
        variables, output = apply(variables, view)
        outputs.append(output)
    return jax.tree.map(lambda *each: jnp.stack(each), *outputs), variables


# --- Batch norm


def batch_norm(
    x: Float[Array, "B ... C"],
    *,
    train: bool,
    mask: Bool[Array, " B"] | None,
    affine: bool = True,
    scale_init: nn.initializers.Initializer = nn.initializers.ones,
) -> Float[Array, "B ... C"]:
    """Applies a batch norm with PyTorch's defaults; call it in a compact module.

    The statistics are taken over all axes except the last one. Running statistics have
    momentum 0.9 and use the biased variance; PyTorch uses the unbiased one.

    Args:
        x: a batch [B, ..., C], features last.
        train: whether to normalize by the statistics of this batch and to update the
            running ones. If False, the running statistics are used.
        mask: [B], True at examples that count in the statistics; None counts all.
        affine: whether a learned scale and shift follow.
        scale_init: initializer of this scale. With zeros, a residual block starts as
            the identity.

    Returns:
        The normalized batch, including the examples that do not count.

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
    return BatchNorm(affine, scale_init)(x, train=train, mask=mask)


class BatchNorm(nn.Module):
    """The layer of `batch_norm`, with its variables.

    The gradient is written by hand: automatic differentiation would also sum terms
    that are zero, and a local training step spends much of its time in these sums.
    """

    affine: bool
    scale_init: nn.initializers.Initializer

    @nn.compact
    def __call__(self, x, *, train, mask):
        """Maps x [B, ..., C] to the normalized batch of the same shape."""
        shape = x.shape[-1:]
        mean = self.variable("batch_stats", "mean", jnp.zeros, shape)
        var = self.variable("batch_stats", "var", jnp.ones, shape)
        scale, bias = jnp.ones(shape), jnp.zeros(shape)
        if self.affine:
            scale = self.param("scale", self.scale_init, shape)
            bias = self.param("bias", nn.initializers.zeros, shape)
        if not train:
            return _scaled(x, mean.value, lax.rsqrt(var.value + EPSILON), scale, bias)
        near = lax.stop_gradient(mean.value)
        y, batch_statistics = _normalized(x, mask, near, scale, bias)
        if self.is_initializing():
            return y
        for old, new in zip((mean, var), batch_statistics, strict=True):
            # The views of a batch update the running statistics one after another.
            for value in _of_views(new):
                old.value = MOMENTUM * old.value + (1 - MOMENTUM) * value
        return y


EPSILON, MOMENTUM = 1e-5, 0.9
"""PyTorch's defaults; PyTorch calls 1 - MOMENTUM the momentum."""


def _of_views(statistic):
    """Returns the statistic of each view, see `apply_to_views`."""
    return lax.all_gather(statistic, VIEWS) if num_views() else [statistic]


def _scaled(x, mean, inverse_deviation, scale, bias):
    """Normalizes x [B, ..., C] by values [C] of each feature."""
    mean, factor, bias = _rows(x, mean, inverse_deviation * scale, bias)
    return ((x - mean) * factor + bias).astype(x.dtype)


def _rows(x, *values):
    """Reshapes values [C] so that they broadcast with x [B, ..., C]."""
    return [value.reshape(*(1,) * (x.ndim - 1), -1) for value in values]


def _sums(*each):
    """Sums arrays [B, ..., C] over all axes but the last one."""
    return [jnp.sum(x, axis=range(x.ndim - 1)) for x in each]


@jax.custom_vjp
def _normalized(x, mask, near, scale, bias):
    """Returns the normalized batch and its (mean, variance)."""
    return _normalized_forward(x, mask, near, scale, bias)[0]


def _normalized_forward(x, mask, near, scale, bias):
    count = x.size // x.shape[-1]
    is_counted = True
    if mask is not None:
        count = count // len(x) * mask.sum()
        is_counted = mask.reshape(-1, *(1,) * (x.ndim - 1))
    # Both sums need one pass. Without the running mean `near` their difference would
    # cancel for features whose mean is large.
    centered = jnp.where(is_counted, x - _rows(x, near)[0], 0)
    total, squares = _sums(centered, jnp.square(centered))
    shift = total / count
    var = jnp.maximum(squares / count - jnp.square(shift), 0)
    mean, inverse_deviation = near + shift, lax.rsqrt(var + EPSILON)
    y = _scaled(x, mean, inverse_deviation, scale, bias)
    saved = x, is_counted, count, mean, inverse_deviation, scale
    return (y, (mean, var)), saved


def _normalized_backward(saved, gradients):
    # No gradient flows through the statistics, which only the running ones use.
    x, is_counted, count, mean, inverse_deviation, scale = saved
    (dy, _), dtype = gradients, x.dtype
    one, zero = jnp.ones_like(mean), jnp.zeros_like(mean)
    x, dy = x.astype(jnp.float32), dy.astype(jnp.float32)
    normalized = _scaled(x, mean, inverse_deviation, one, zero)
    # The barrier prevents XLA from summing once more for the views together.
    sums = lax.optimization_barrier(_sums(dy, dy * normalized))
    dbias, dscale = sums
    shift, slope, factor = _rows(
        x, dbias / count, dscale / count, scale * inverse_deviation
    )
    # The statistics depend on the counted examples alone.
    dx = (dy - jnp.where(is_counted, shift + normalized * slope, 0)) * factor
    return dx.astype(dtype), None, jnp.zeros_like(mean), dscale, dbias


_normalized.defvjp(_normalized_forward, _normalized_backward)


# --- Pooling


def max_pool(
    x: Float[Array, "B H W C"], *, size: int, stride: int, padding: int = 0
) -> Float[Array, "B H2 W2 C"]:
    """Takes the maximum of square windows, as `torch.nn.functional.max_pool2d` does.

    Among equal values, the first one gets the gradient. Padding never is the maximum.

    Args:
        x: a batch of images [B, H, W, C].
        size: side of a window, in pixels.
        stride: step between two windows, in pixels.
        padding: padding on every side, in pixels, at most half a window.

    Returns:
        The maxima [B, H2, W2, C], where H2 = (H + 2 padding - size) // stride + 1, and
        W2 likewise.
    """
    # Comparing slices along one axis, then along the other, is 3.6 times faster on a
    # CPU than `lax.reduce_window`, whose gradient is a scatter.
    for axis in (2, 1):
        widths = [(0, 0)] * 4
        widths[axis] = (padding, padding)
        padded = jnp.pad(x, widths, constant_values=-jnp.inf)
        last = padded.shape[axis] - size + 1
        x, *later_slices = [
            lax.slice_in_dim(padded, i, i + last, stride, axis) for i in range(size)
        ]
        for later in later_slices:
            x = jnp.where(x >= later, x, later)
    return x


# --- Microbatch


def microbatched(network: Network, size: int) -> Network:
    """Limits a network's memory by computing a batch in parts (FedMCC, section VI).

    A contrastive loss couples all outputs of a batch, so the gradient cannot be
    accumulated over parts. Section VI therefore computes it in three steps:

    1. Compute the outputs of all parts, without storing intermediate values. 2. Compute
    the gradient of the loss with respect to the outputs. 3. For each part, repeat the
    forward pass and compute the gradient of the network.

    Differentiating the returned network does the same. Of the whole batch it stores
    only inputs and outputs. Section VI assumes that each output depends on its own
    input only. Batch norm in training breaks this assumption: its statistics here are
    those of a part, in both passes.

    Args:
        network: a network with any layers.
        size: examples per part, at least 1. A batch of at most this size is not split.

    Returns:
        A `Network` with the same variables. In training, batch statistics are those of
        consecutive parts of `size` examples. The running statistics are updated by one
        part after another. A part without any counted example does not update them.

    Raises:
        ValueError: if `size` is below 1.

    Examples:
        >>> from fcjax.nn import projector
        >>> network, x = microbatched(projector(2), 4), jnp.zeros((10, 6))
        >>> variables = network.init(jax.random.key(0), x)
        >>> network.apply(variables, x, train=True)[0].shape  # parts of 4, 4 and 2
        (10, 2)
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")

    def apply(variables, x, *, train, mask=None):
        count = len(x)
        if count <= size:
            return network.apply(variables, x, train=train, mask=mask)
        num_parts = -(-count // size)
        num_fill = num_parts * size - count
        is_counted = jnp.ones(count, bool) if mask is None else mask
        # The last part is filled up with masked examples.
        x = jnp.concatenate([x, x[:num_fill]]).reshape(num_parts, size, *x.shape[1:])
        is_counted = jnp.pad(is_counted, (0, num_fill)).reshape(num_parts, size)
        params = variables["params"]
        statistics = {k: v for k, v in variables.items() if k != "params"}

        def forward(statistics, part):
            x, is_counted = part
            any_counted = is_counted.any()
            # The mean over no example would be NaN, in the gradient too.
            outputs, new = network.apply(
                {"params": params, **statistics},
                x,
                train=train,
                mask=is_counted | ~any_counted,
            )
            new = {k: new[k] for k in statistics}
            statistics = jax.tree.map(
                lambda new, old: jnp.where(any_counted, new, old), new, statistics
            )
            return lax.stop_gradient(statistics), outputs

        statistics, outputs = lax.scan(
            jax.checkpoint(forward, prevent_cse=False), statistics, (x, is_counted)
        )
        outputs = jax.tree.map(
            lambda y: y.reshape(num_parts * size, *y.shape[2:])[:count], outputs
        )
        return outputs, {"params": params, **statistics}

    return Network(network.init, apply)


# --- Convolutions as matrix products

LARGE = 2**24
"""Size of the slices, in bytes, above which `to_kernel` splits a batch into tiles on a
CPU."""

TILE = 2**22
"""Size of the slices of one tile, in bytes."""


class Geometry(NamedTuple):
    """The sizes of a convolution: image, kernel, stride and padding, in pixels."""

    height: int
    width: int
    size: int
    stride: int
    padding: int

    @property
    def rows(self) -> range:
        """Kernel rows that overlap the image; the others see only padding."""
        return self._taps(self.height)

    @property
    def columns(self) -> range:
        """Kernel columns that overlap the image; the others see only padding."""
        return self._taps(self.width)

    @property
    def out_height(self) -> int:
        """Height of the output in pixels."""
        return (self.height + 2 * self.padding - self.size) // self.stride + 1

    @property
    def out_width(self) -> int:
        """Width of the output in pixels."""
        return (self.width + 2 * self.padding - self.size) // self.stride + 1

    def _taps(self, extent: int) -> range:
        """Returns the kernel positions that overlap an image of this extent."""
        steps = (extent + 2 * self.padding - self.size) // self.stride
        first = max(0, self.padding - self.stride * steps)
        return range(first, min(self.size, self.padding + extent))


def to_outputs(
    of: Geometry, x: Float[Array, "B H W C"], kernel: Float[Array, "k k C O"]
) -> Float[Array, "B H2 W2 O"]:
    """Returns the outputs of a convolution.

    Args:
        of: sizes of the convolution.
        x: images [B, H, W, C].
        kernel: kernel [k, k, C, O].

    Returns:
        The outputs [B, H2, W2, O].
    """
    if platform() == "tpu":
        return _xla(of, x, kernel)

    def product(x, kernel):
        y = _slices(of, x) @ kernel.reshape(-1, kernel.shape[3])
        return y.reshape(len(x), of.out_height, of.out_width, -1)

    def by_xla(x, kernel):
        return _lax_conv(
            x,
            kernel,
            of.stride,
            _pads(of.height, of.out_height, of.rows, of.stride, of.padding),
            _pads(of.width, of.out_width, of.columns, of.stride, of.padding),
        )

    kernel = _overlapping(of, kernel)
    # No GPU has shown yet that cuDNN is faster for one kernel.
    if of.size == 1 or platform() != "cpu":
        return product(x, kernel)
    return _by_kernel_count(by_xla, product)(x, kernel)


def to_inputs(
    of: Geometry, dy: Float[Array, "B H2 W2 O"], kernel: Float[Array, "k k C O"]
) -> Float[Array, "B H W C"]:
    """Returns the gradient of a convolution in its images.

    Each output adds the kernel, multiplied by its gradient, to the pixels that it was
    computed from.

    Args:
        of: sizes of the convolution.
        dy: gradients of the outputs [B, H2, W2, O].
        kernel: kernel [k, k, C, O].

    Returns:
        The gradient [B, H, W, C].
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

    def by_xla(dy, kernel):
        # Kernel position t connects pixel i with output i + padding - t, so the kernel
        # is reversed.
        def pads(taps, extent, out_extent):
            before = taps[-1] - of.padding
            return before, extent - out_extent + of.padding - taps[0]

        return _lax_conv(
            dy,
            jnp.swapaxes(kernel[::-1, ::-1], 2, 3),
            1,
            pads(of.rows, of.height, of.out_height),
            pads(of.columns, of.width, of.out_width),
        )

    kernel = _overlapping(of, kernel)
    if of.stride > 1 or of.size == 1 or platform() != "cpu":
        return product(dy, kernel)
    return _by_kernel_count(by_xla, product)(dy, kernel)


def to_kernel(
    of: Geometry, x: Float[Array, "B H W C"], dy: Float[Array, "B H2 W2 O"]
) -> Float[Array, "k k C O"]:
    """Returns the gradient of a convolution in its kernel.

    Args:
        of: sizes of the convolution.
        x: images [B, H, W, C].
        dy: gradients of the outputs [B, H2, W2, O].

    Returns:
        The gradient [k, k, C, O].
    """
    if platform() == "tpu":
        shape = (of.size, of.size, x.shape[3], dy.shape[3])
        return _transposed(lambda kernel: _xla(of, x, kernel), shape, dy)

    def product(x, dy):
        dy = dy.reshape(-1, features)
        if not on_cpu:
            return _slices(of, x).T @ dy
        # On a CPU, a product A^T B runs at a third of the rate of A B. The barriers
        # prevent XLA from turning this product into the form A^T B.
        dy = lax.optimization_barrier(dy.T)
        return lax.optimization_barrier(dy @ _slices(of, x)).T

    on_cpu = platform() == "cpu"
    batch, channels, features = len(x), x.shape[3], dy.shape[3]
    taps = len(of.rows) * len(of.columns)
    bytes_per_example = (
        taps * channels * of.out_height * of.out_width * x.dtype.itemsize
    )
    if not on_cpu or of.size == 1 or batch * bytes_per_example < LARGE:
        gradient = product(x, dy)
    else:
        # The last tile is filled up with fewer zero images than there are tiles.
        tiles = -(-batch // max(1, TILE // bytes_per_example))
        tile = -(-batch // tiles)

        def in_tiles(a):
            a = jnp.pad(a, ((0, tiles * tile - batch), *((0, 0),) * 3))
            return a.reshape(tiles, tile, *a.shape[1:])

        def add(total, pair):
            return total + product(*pair), None

        zero = jnp.zeros((taps * channels, features), jnp.float32)
        gradient, _ = lax.scan(add, zero, (in_tiles(x), in_tiles(dy)))
        gradient = gradient.astype(x.dtype)
    gradient = gradient.reshape(len(of.rows), len(of.columns), channels, features)
    outside = [(taps[0], of.size - 1 - taps[-1]) for taps in (of.rows, of.columns)]
    # Kernel rows and columns that see only padding have gradient 0.
    return jnp.pad(gradient, (*outside, (0, 0), (0, 0)))


def _xla(of: Geometry, x, kernel):
    """Returns the outputs of a convolution by XLA's own convolution."""
    return _lax_conv(x, kernel, of.stride, *2 * ((of.padding, of.padding),))


def _transposed(linear: Callable, shape, dy):
    """Applies the transpose of a linear function of an array of this shape to `dy`."""
    template = jax.ShapeDtypeStruct(shape, dy.dtype)
    (gradient,) = jax.linear_transpose(linear, template)(dy)
    return gradient


def _overlapping(of: Geometry, kernel):
    """Returns the rows and columns of the kernel that overlap the image."""
    rows, columns = of.rows, of.columns
    return kernel[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _pads(extent, out_extent, taps: range, stride, padding):
    """Returns the padding of one axis for a kernel that has only these positions."""
    before = padding - taps[0]
    return before, (out_extent - 1) * stride + len(taps) - extent - before


def _lax_conv(x, kernel, stride, *pads):
    """Calls XLA's convolution on images [B, H, W, C] and a kernel [k, k, C, O]."""
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), pads, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _by_kernel_count(single_kernel: Callable, many_kernels: Callable) -> Callable:
    """Combines two forms of a function of images and a kernel.

    Args:
        single_kernel: the form for one kernel. A `vmap` over images with one kernel
            becomes one larger batch of it.
        many_kernels: the form for a `vmap` over kernels.

    Returns:
        A function (images, kernel) that uses the form that fits.
    """
    single_kernel = custom_vmap(single_kernel)

    @single_kernel.def_vmap
    def batched(count, is_batched, x, kernel):
        has_many_images, has_many_kernels = is_batched
        if has_many_kernels:
            in_axes = (0 if has_many_images else None, 0)
            return jax.vmap(many_kernels, in_axes=in_axes)(x, kernel), True
        y = single_kernel(x.reshape(-1, *x.shape[2:]), kernel)
        return y.reshape(count, -1, *y.shape[1:]), True

    return single_kernel


def _slices(of: Geometry, x: Float[Array, "B H W C"]) -> Float[Array, "P T"]:
    """Returns one row per output pixel: the input pixels under the kernel."""
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
    """Sums the contributions of all kernel positions to each pixel.

    This is the transpose of `_slices`. Pixels with equal coordinates modulo the stride
    get contributions from the same kernel positions. For each such residue, the result
    is a sum of a few shifted images.

    Args:
        of: sizes of the convolution.
        columns: contributions [B, H2, W2, k1, k2, C] of each output and kernel
            position.

    Returns:
        The sums [B, H, W, C].
    """
    height, width = (-(-extent // of.stride) for extent in (of.height, of.width))

    def taps_of(residue: int, taps: range):
        """Returns the kernel positions that reach the rows or columns of a residue.

        Each comes with the index of the output through which it reaches the first row
        or column.
        """
        firsts = {tap: residue + of.padding - tap for tap in taps}
        return [
            (tap - taps[0], first // of.stride)
            for tap, first in firsts.items()
            if first % of.stride == 0
        ]

    def shifted(i: int, top: int, j: int, left: int):
        # XLA fuses a separate pad per term into the sum and stores no padded image.
        bottom = top + height - of.out_height
        right = left + width - of.out_width
        pads = ((0, 0, 0), (-top, bottom, 0), (-left, right, 0), (0, 0, 0))
        return lax.pad(columns[:, :, :, i, j], jnp.zeros((), columns.dtype), pads)

    def total(row: int, column: int):
        images = [
            shifted(*vertical, *horizontal)
            for vertical in taps_of(row, of.rows)
            for horizontal in taps_of(column, of.columns)
        ]
        zeros = jnp.zeros((batch, height, width, channels), columns.dtype)
        return sum(images, zeros)

    batch, channels = len(columns), columns.shape[5]
    residues = range(of.stride)
    image = [
        jnp.stack([total(row, column) for column in residues], axis=3)
        for row in residues
    ]
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
    """Cross-correlates images with a kernel, as `torch.nn.functional.conv2d` does.

    The function has a gradient, but no forward-mode derivative (`jax.jvp`).

    Args:
        x: a batch of images [B, H, W, C].
        kernel: a square kernel [k, k, C, O].
        stride: step between two outputs, in pixels.
        padding: number of zeros on every side of the image.

    Returns:
        The outputs [B, H2, W2, O], where H2 = (H + 2 padding - k) // stride + 1, and W2
        likewise.

    Raises:
        ValueError: if `x` does not have four axes, or if the kernel is larger than the
            padded image.
    """
    if x.ndim != 4:
        raise ValueError(f"x must have shape [B, H, W, C], got shape {x.shape}")
    size, (_, height, width, _) = len(kernel), x.shape
    if size > min(height, width) + 2 * padding:
        raise ValueError(
            f"kernel of {size}x{size} does not fit into images of {height}x{width} "
            f"with padding {padding}; use larger images"
        )
    geometry = Geometry(height, width, size, stride, padding)
    x, kernel = _operands(x, kernel)
    return (_conv_of_views if num_views() else _conv)(geometry, x, kernel)


def _operands(*arrays):
    """Returns the arrays in the type of `compute_dtype`."""
    return (x.astype(compute_dtype() or x.dtype) for x in arrays)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _conv(of: Geometry, x, kernel):
    return to_outputs(of, x, kernel)


def _conv_forward(of: Geometry, x, kernel):
    return to_outputs(of, x, kernel), (x, kernel)


def _conv_backward(of: Geometry, saved, dy):
    x, kernel = saved
    return to_inputs(of, dy, kernel), to_kernel(of, x, dy)


_conv.defvjp(_conv_forward, _conv_backward)


def _conv_of_views(of: Geometry, x, kernel):
    """Applies `_conv` inside `apply_to_views`: the views become one larger batch."""
    apply = partial(_conv, of)

    @custom_vmap
    def of_view(x, kernel):
        return apply(x, kernel)

    @of_view.def_vmap
    def of_views(count, is_batched, x, kernel):
        if is_batched != [True, False]:
            in_axes = [0 if batched else None for batched in is_batched]
            return jax.vmap(apply, in_axes)(x, kernel), True
        y = apply(x.reshape(-1, *x.shape[2:]), kernel)
        return y.reshape(count, -1, *y.shape[1:]), True

    return of_view(x, kernel)


class Conv(nn.Module):
    """A square convolution on [B, H, W, C].

    Without `kernel_init`, the kernel starts as in PyTorch. Without `bias_init`, the
    bias does. With `is_normalized`, a batch norm follows, see `Dense`.
    """

    features: int
    size: int
    stride: int = 1
    padding: int = 0
    use_bias: bool = True
    kernel_init: Callable | None = None
    bias_init: Callable | None = None
    is_normalized: bool = False

    @nn.compact
    def __call__(self, x):
        """Maps images x [B, H, W, C] to outputs [B, H2, W2, features]."""
        init = fan_in_uniform(self.size**2 * x.shape[3])
        shape = (self.size, self.size, x.shape[3], self.features)
        kernel = self.param("kernel", self.kernel_init or init, shape)
        y = conv(x, kernel, stride=self.stride, padding=self.padding)
        if not self.use_bias:
            return y
        bias = self.param("bias", self.bias_init or init, (self.features,))
        if self.is_normalized:
            bias = lax.stop_gradient(bias)
        return (y + bias[None, None, None]).astype(y.dtype)


# --- Transposed convolution


def conv_transpose(
    x: Float[Array, "B H W C"], kernel: Float[Array, "4 4 C O"]
) -> Float[Array, "B 2*H 2*W O"]:
    """Doubles images by a transposed convolution of stride 2 and padding 1.

    This is `torch.nn.functional.conv_transpose2d(stride=2, padding=1)`.

    Input pixel (h, w) adds x[h, w] kernel[i, j] to output pixel (2h + i - 1, 2w + j -
    1) if that pixel exists. This is the transpose of `conv` in its images.

    Args:
        x: a batch of images [B, H, W, C].
        kernel: kernel [4, 4, C, O]: rows, columns, input features, output features.

    Returns:
        The outputs [B, 2 H, 2 W, O].
    """
    x, kernel = _operands(x, kernel)
    return _conv_transpose(x, jnp.swapaxes(kernel, 2, 3))


def _halving(x) -> Geometry:
    """Returns the sizes of the convolution whose outputs have the shape of `x`."""
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
    """A transposed convolution on [B, H, W, C] that doubles images.

    The kernel starts from `kernel_init`, the bias from 0.
    """

    features: int
    kernel_init: Callable
    use_bias: bool = True

    @nn.compact
    def __call__(self, x):
        """Maps images x [B, H, W, C] to outputs [B, 2 H, 2 W, features]."""
        shape = (4, 4, x.shape[3], self.features)
        y = conv_transpose(x, self.param("kernel", self.kernel_init, shape))
        if not self.use_bias:
            return y
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return (y + bias[None, None, None]).astype(y.dtype)
