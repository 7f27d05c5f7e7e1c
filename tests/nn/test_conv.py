"""Convolutions and pooling beside XLA's, loops and PyTorch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import lax
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AbstractDevice, AbstractMesh

from fcjax.nn import layers
from fcjax.nn.layers import conv, conv_transpose, max_pool
from tests.nn.layers import double

TPU = AbstractMesh((), (), abstract_device=AbstractDevice("tpu", None, "tpu"))
close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)


def lax_conv(x, kernel, *, stride=1, padding=0):
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        [(padding, padding)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision=lax.Precision.HIGHEST,
    )


def pulled(function, *given):
    """Its outputs and all gradients."""
    y, pull = jax.vjp(function, *given)
    return y, *pull(jnp.cos(jnp.arange(y.size, dtype=float)).reshape(y.shape))


def drawn(key, images, kernel):
    x_key, kernel_key = jax.random.split(key)
    return jax.random.normal(x_key, images), jax.random.normal(kernel_key, kernel)


@pytest.mark.parametrize(
    ("size", "stride", "padding"),
    [
        *[(1, 1, 0), (1, 2, 1), (3, 1, 1), (3, 2, 0), (3, 2, 1)],
        *[(4, 1, 2), (4, 2, 1), (5, 1, 1), (5, 2, 2)],
    ],
)
def test_values_and_gradients_are_those_of_lax(key, size, stride, padding):
    """Of two rows of pixels, a large kernel's outer ones see padding alone."""
    options = {"stride": stride, "padding": padding}
    shapes = [shape for shape in ((5, 6), (2, 6)) if min(shape) + 2 * padding >= size]
    pairs = [drawn(key, (2, *shape, 3), (size, size, 3, 2)) for shape in shapes]

    def each(function):
        function = partial(function, **options)
        return jax.jit(lambda: [pulled(function, *pair) for pair in pairs])()

    jax.tree.map(partial(close, atol=1e-5), each(conv), each(lax_conv))


@pytest.mark.parametrize(
    "function", [partial(conv, stride=2, padding=1), conv_transpose]
)
def test_for_a_tpu_clients_kernels_are_a_grouped_convolution(key, function):
    """Traced for one, the program has no slices and the values of that of the host."""

    def both(x, kernels):
        y, pull = jax.vjp(jax.vmap(function), x, kernels)
        return y, *pull(jnp.cos(y))

    args = drawn(key, (3, 2, 6, 6, 4), (3, 4, 4, 4, 5))
    with jax.sharding.use_abstract_mesh(TPU):
        program = jax.make_jaxpr(both)(*args)
    assert str(program).count("conv_general_dilated[") == 3
    assert "dot_general" not in str(program)
    jax.tree.map(close, tuple(jaxpr_as_fun(program)(*args)), both(*args))


@pytest.fixture
def tiles_of_three(monkeypatch):
    """Any batch is large, and a tile holds three images of 5x6 with 9 taps each."""
    if jax.default_backend() != "cpu":
        pytest.skip("tiles are for CPUs")
    monkeypatch.setattr(layers, "LARGE", 0)
    monkeypatch.setattr(layers, "TILE", 3 * 4 * 9 * 2 * 5 * 6)


@pytest.mark.parametrize(
    ("axes", "stride", "tiled"),
    [
        ((0, 0), 1, False),
        ((None, 0), 2, False),
        ((0, None), 1, False),
        ((0, 0), 1, True),
    ],
)
def test_vmap_over_images_and_kernels_of_clients(key, request, axes, stride, tiled):
    if tiled:
        request.getfixturevalue("tiles_of_three")
    x, kernels = drawn(key, (3, 7, 5, 6, 2), (3, 3, 3, 2, 4))
    pair = x if axes[0] == 0 else x[0], kernels if axes[1] == 0 else kernels[0]
    options = {"stride": stride, "padding": 1}

    def batched(x, kernels):
        return jax.vmap(partial(conv, **options), in_axes=axes)(x, kernels)

    def one_by_one(x, kernels):
        images = x if axes[0] == 0 else [x] * 3
        kernels = kernels if axes[1] == 0 else [kernels] * 3
        return jnp.stack([lax_conv(images[i], kernels[i], **options) for i in range(3)])

    each = [jax.jit(partial(pulled, f))(*pair) for f in (batched, one_by_one)]
    jax.tree.map(close, *each)


@pytest.mark.parametrize(("batch", "stride"), [(1, 1), (6, 1), (7, 1), (7, 2)])
def test_tiles_are_those_of_lax(tiles_of_three, key, batch, stride):
    options = {"stride": stride, "padding": 1}
    pair = drawn(key, (batch, 5, 6, 2), (3, 3, 2, 4))
    ours, theirs = (
        partial(pulled, partial(function, **options)) for function in (conv, lax_conv)
    )
    if stride == 1:
        program = jax.make_jaxpr(ours)(*pair)
        (loop,) = [e for e in program.eqns if e.primitive.name == "scan"]
        assert loop.params["length"] == -(-batch // 3)
    jax.tree.map(close, jax.jit(ours)(*pair), jax.jit(theirs)(*pair))


def test_a_large_batch_keeps_no_slices():
    """For the backward pass: 9 times 8 MB of images, were they kept."""
    if jax.default_backend() != "cpu":
        pytest.skip("tiles are for CPUs")
    x, kernel = jnp.ones((64, 32, 32, 32)), jnp.ones((3, 3, 32, 32))
    gradients = jax.jit(
        jax.grad(lambda x, k: (conv(x, k, padding=1) ** 2).sum(), argnums=(0, 1))
    )
    memory = gradients.lower(x, kernel).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 9 * x.nbytes


transposed = jax.jit(partial(pulled, conv_transpose))


@pytest.mark.parametrize("shape", [(2, 3, 4, 2), (3, 1, 1, 2)])
def test_doubled_values_and_gradients_are_those_of_loops(key, shape):
    """It is bilinear: unit vectors for one argument at a time give its slopes."""
    x, kernel = drawn(key, shape, (4, 4, 2, 2))
    actual = transposed(x, kernel)
    x, kernel = np.asarray(x, float), np.asarray(kernel, float)
    y = double(x, kernel)
    direction = np.cos(np.arange(y.size)).reshape(y.shape)

    def slopes(of_unit, like):
        units = np.eye(like.size).reshape(-1, *like.shape)
        values = [(of_unit(unit) * direction).sum() for unit in units]
        return np.reshape(values, like.shape)

    of_x = slopes(lambda unit: double(unit, kernel), x)
    of_kernel = slopes(lambda unit: double(x, unit), kernel)
    jax.tree.map(close, actual, (y, of_x, of_kernel))


def test_a_client_has_no_grouped_convolution():
    """XLA's own loses its threads in loops on a CPU."""

    def clients(x, kernels):
        return jax.vmap(conv_transpose)(x, kernels).sum()

    x, kernels = jnp.ones((3, 2, 3, 4, 2)), jnp.ones((3, 4, 4, 2, 5))
    program = jax.jit(jax.grad(clients, argnums=(0, 1))).lower(x, kernels).as_text()
    assert "dot_general" in program
    assert "convolution" not in program


@pytest.mark.parametrize(
    ("size", "stride", "padding"), [(3, 2, 1), (2, 2, 0), (3, 1, 1)]
)
def test_max_pool_is_flax_s(key, size, stride, padding):
    """The first of equal values has the gradient."""
    x = jnp.floor(jax.random.uniform(key, (2, 7, 6, 3)) * 4) - 5  # Many ties, below 0.

    def by_flax(x):
        sides = (size, size), (stride, stride), ((padding, padding),) * 2
        return nn.max_pool(x, *sides)

    ours = partial(max_pool, size=size, stride=stride, padding=padding)
    found, expected = (jax.jit(partial(pulled, f))(x) for f in (ours, by_flax))
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], atol=1e-5)
