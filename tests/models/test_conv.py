import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fcjax.models import conv_maps
from fcjax.models.conv import Conv, conv

SHAPES = ((5, 6), (2, 2))


def lax_conv(x, kernel, *, stride, padding):
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        [(padding, padding)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision=lax.Precision.HIGHEST,
    )


@pytest.fixture(autouse=True)
def full_precision():
    with jax.default_matmul_precision("highest"):
        yield


@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [1, 3, 4, 5])
def test_values_and_gradients_are_those_of_lax(key, size, stride, padding):
    options = {"stride": stride, "padding": padding}
    shapes = [shape for shape in SHAPES if min(shape) + 2 * padding >= size]
    assert shapes
    kernel = jax.random.normal(key, (size, size, 3, 2))
    inputs = [jax.random.normal(key, (2, *shape, 3)) for shape in shapes]

    def values_and_gradients(function):
        def one(x):
            y, pull = jax.vjp(
                lambda x, kernel: function(x, kernel, **options), x, kernel
            )
            direction = jnp.cos(jnp.arange(y.size, dtype=float)).reshape(y.shape)
            return y, *pull(direction)

        return jax.jit(lambda: [one(x) for x in inputs])()

    for ours, theirs in zip(
        values_and_gradients(conv), values_and_gradients(lax_conv), strict=True
    ):
        for actual, expected in zip(ours, theirs, strict=True):
            assert actual.shape == expected.shape
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_taps_that_see_only_padding():
    """One output: of the 4x4 kernel only the inner 2x2 meets the image."""
    x = jnp.array([[1.0, 2.0], [3.0, 4.0]]).reshape(1, 2, 2, 1)
    kernel = jnp.arange(16.0).reshape(4, 4, 1, 1)

    def output(x, kernel):
        return conv(x, kernel, stride=2, padding=1)

    # 1 * 5 + 2 * 6 + 3 * 9 + 4 * 10
    np.testing.assert_array_equal(output(x, kernel), [[[[84.0]]]])
    dx, dkernel = jax.grad(lambda *a: output(*a).sum(), argnums=(0, 1))(x, kernel)
    np.testing.assert_array_equal(dx[0, :, :, 0], [[5, 6], [9, 10]])
    expected = [[0, 0, 0, 0], [0, 1, 2, 0], [0, 3, 4, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(dkernel[:, :, 0, 0], expected)


def test_unused_taps_pass_on_nothing_whatever_they_hold():
    x = jnp.ones((1, 2, 2, 1))
    kernel = jnp.full((4, 4, 1, 1), jnp.nan).at[1:3, 1:3].set(1.0)
    np.testing.assert_array_equal(conv(x, kernel, stride=2, padding=1), [[[[4.0]]]])


def test_non_square_images_drop_taps_of_one_axis_only(key):
    """Two rows and six columns: outer kernel rows see padding, columns do not."""
    x, kernel = jnp.ones((1, 2, 6, 1)), jax.random.normal(key, (4, 4, 1, 1))

    def total(kernel):
        return conv(x, kernel, stride=2, padding=1).sum()

    used = jax.grad(total)(kernel)[:, :, 0, 0] != 0
    np.testing.assert_array_equal(used.any(axis=1), [False, True, True, False])
    np.testing.assert_array_equal(used.any(axis=0), [True, True, True, True])


@pytest.mark.parametrize("shared_images", [False, True])
def test_vmap_over_kernels_of_clients(key, shared_images):
    options = {"stride": 2, "padding": 1}
    kernels = jax.random.normal(key, (3, 4, 4, 2, 5))
    x = jax.random.normal(key, (4, 7, 6, 2) if shared_images else (3, 4, 7, 6, 2))
    axes = (None if shared_images else 0, 0)

    def batched(x, kernels):
        y = jax.vmap(lambda x, k: conv(x, k, **options), in_axes=axes)(x, kernels)
        return (y**2).sum(), y

    def one_by_one(x, kernels):
        images = [x] * 3 if shared_images else x
        y = [lax_conv(images[i], kernels[i], **options) for i in range(3)]
        return sum((y**2).sum() for y in y), jnp.stack(y)

    def outputs_and_gradients(function):
        both = jax.value_and_grad(function, argnums=(0, 1), has_aux=True)
        (_, y), gradients = jax.jit(both)(x, kernels)
        return y, gradients

    actual, gradients = outputs_and_gradients(batched)
    expected, references = outputs_and_gradients(one_by_one)
    assert actual.shape == (3, 4, 3, 3, 5)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    for gradient, reference in zip(gradients, references, strict=True):
        np.testing.assert_allclose(gradient, reference, rtol=1e-4, atol=1e-4)


@pytest.fixture
def tiles_of_three(monkeypatch):
    """Any batch is large, and a tile holds three images of 5x6 with 9 taps each."""
    if jax.default_backend() != "cpu":
        pytest.skip("tiles are for CPUs")
    monkeypatch.setattr(conv_maps, "LARGE", 0)
    monkeypatch.setattr(conv_maps, "TILE", 3 * 4 * 9 * 2 * 5 * 6)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("batch", [1, 6, 7])
def test_tiles_are_those_of_lax(tiles_of_three, key, batch, stride):
    options = {"stride": stride, "padding": 1}
    x = jax.random.normal(key, (batch, 5, 6, 2))
    kernel = jax.random.normal(key, (3, 3, 2, 4))

    def outputs_and_gradients(function):
        def values(x, kernel):
            y = function(x, kernel, **options)
            return (jnp.cos(jnp.arange(float(y.size))).reshape(y.shape) * y).sum(), y

        return jax.jit(jax.grad(values, argnums=(0, 1), has_aux=True))(x, kernel)

    if stride == 1:
        program = jax.make_jaxpr(
            jax.grad(lambda kernel: conv(x, kernel, **options).sum())
        )(kernel)
        (loop,) = [e for e in program.eqns if e.primitive.name == "scan"]
        assert loop.params["length"] == -(-batch // 3)
    actual = outputs_and_gradients(conv)
    expected = outputs_and_gradients(lax_conv)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
        actual,
        expected,
    )


def test_tiles_of_clients(tiles_of_three, key):
    x = jax.random.normal(key, (3, 7, 5, 6, 2))
    kernels = jax.random.normal(key, (3, 3, 3, 2, 4))

    def pull(x, kernel):
        y, pull = jax.vjp(lambda *a: conv(*a, padding=1), x, kernel)
        return y, *pull(jnp.sin(y))

    batched = jax.jit(jax.vmap(pull))(x, kernels)
    each = [jax.jit(pull)(x[i], kernels[i]) for i in range(3)]
    jax.tree.map(
        lambda a, *b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
        batched,
        *each,
    )


def test_a_large_batch_keeps_no_slices(key):
    """For the backward pass: 9 times 8 MB of images, were they kept."""
    if jax.default_backend() != "cpu":
        pytest.skip("tiles are for CPUs")
    x, kernel = jnp.ones((64, 32, 32, 32)), jnp.ones((3, 3, 32, 32))
    gradients = jax.jit(
        jax.grad(lambda x, k: (conv(x, k, padding=1) ** 2).sum(), argnums=(0, 1))
    )
    memory = gradients.lower(x, kernel).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 9 * x.nbytes


@pytest.mark.parametrize(
    ("image", "size", "padding"), [((2, 2), 5, 1), ((5, 2), 3, 0), ((1, 1), 4, 1)]
)
def test_an_image_smaller_than_the_kernel_is_named(image, size, padding):
    with pytest.raises(ValueError, match=f"{size}"):
        conv(jnp.ones((1, *image, 1)), jnp.ones((size, size, 1, 1)), padding=padding)


def test_module_adds_a_bias_to_each_feature(key):
    x = jax.random.normal(key, (3, 5, 5, 2))
    module = Conv(4, 3, stride=2, padding=1)
    variables = module.init(key, x)
    kernel, bias = variables["params"]["kernel"], variables["params"]["bias"]
    assert kernel.shape == (3, 3, 2, 4)
    assert bias.shape == (4,)
    expected = lax_conv(x, kernel, stride=2, padding=1)
    expected += np.asarray(bias)[None, None, None]
    np.testing.assert_allclose(module.apply(variables, x), expected, atol=1e-5)


def test_module_without_bias_and_with_its_own_initialisation(key):
    module = Conv(4, 3, use_bias=False, kernel_init=jax.nn.initializers.ones)
    variables = module.init(key, jnp.ones((1, 3, 3, 2)))
    assert list(variables["params"]) == ["kernel"]
    y = module.apply(variables, jnp.ones((1, 3, 3, 2)))
    np.testing.assert_array_equal(y, np.full((1, 1, 1, 4), 2 * 9))
