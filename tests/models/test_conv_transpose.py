import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fcjax.models.conv import conv
from fcjax.models.conv_transpose import ConvTranspose, conv_transpose


@pytest.fixture(autouse=True)
def full_precision():
    with jax.default_matmul_precision("highest"):
        yield


def naive(x, kernel):
    """Every input pixel adds its kernel around twice its place, less the padding."""
    batch, height, width, _ = x.shape
    padded = np.zeros((batch, 2 * height + 2, 2 * width + 2, kernel.shape[3]))
    for h in range(height):
        for w in range(width):
            for i in range(4):
                for j in range(4):
                    padded[:, 2 * h + i, 2 * w + j] += x[:, h, w] @ kernel[i, j]
    return padded[:, 1:-1, 1:-1]


def drawn(key, shape, out_features=2):
    x_key, kernel_key, direction_key = jax.random.split(key, 3)
    batch, height, width, features = shape
    x = jax.random.normal(x_key, shape)
    kernel = jax.random.normal(kernel_key, (4, 4, features, out_features))
    direction = jax.random.normal(
        direction_key, (batch, 2 * height, 2 * width, out_features)
    )
    return x, kernel, direction


@jax.jit
def pulled(x, kernel, direction):
    y, pull = jax.vjp(conv_transpose, x, kernel)
    return y, *pull(direction)


def test_one_pixel_by_hand():
    """Of its 4x4 kernel the inner 2x2 falls into the image."""
    kernel = jnp.arange(16.0).reshape(4, 4, 1, 1)
    y = jax.jit(conv_transpose)(jnp.full((1, 1, 1, 1), 2.0), kernel)
    np.testing.assert_array_equal(y[0, :, :, 0], [[10, 12], [18, 20]])


def test_two_pixels_by_hand():
    """Side by side: the inner kernel columns 0 to 3 of one meet those of the other."""
    kernel = jnp.arange(16.0).reshape(4, 4, 1, 1)
    y = jax.jit(conv_transpose)(jnp.array([[[[1.0], [10.0]]]]), kernel)
    # Rows 1 and 2 of the kernel: 5, 6 + 10 * 4, 7 + 10 * 5, 10 * 6; likewise 9 to 11.
    np.testing.assert_array_equal(y[0, :, :, 0], [[5, 46, 57, 60], [9, 90, 101, 100]])


@pytest.mark.parametrize("shape", [(2, 3, 4, 2), (3, 1, 1, 2), (1, 3, 1, 1)])
def test_values_and_gradients_are_those_of_loops(key, shape):
    """It is bilinear: unit vectors for one argument at a time give its slopes."""
    x, kernel, direction = drawn(key, shape)
    y, *gradients = pulled(x, kernel, direction)
    x, kernel, direction = (np.asarray(a, float) for a in (x, kernel, direction))

    def slopes(of_unit, like):
        units = np.eye(like.size).reshape(-1, *like.shape)
        values = [(of_unit(unit) * direction).sum() for unit in units]
        return np.reshape(values, like.shape)

    expected = [
        naive(x, kernel),
        slopes(lambda unit: naive(unit, kernel), x),
        slopes(lambda unit: naive(x, unit), kernel),
    ]
    for actual, reference in zip([y, *gradients], expected, strict=True):
        np.testing.assert_allclose(actual, reference, rtol=1e-4, atol=1e-4)


def test_it_is_the_transpose_of_the_convolution(key):
    """<conv_transpose(x), y> = <x, conv(y)> with the same kernel."""
    x, kernel, y = drawn(key, (2, 3, 4, 2))
    doubled, *_ = pulled(x, kernel, y)
    halved = conv(y, jnp.swapaxes(kernel, 2, 3), stride=2, padding=1)
    np.testing.assert_allclose(jnp.vdot(doubled, y), jnp.vdot(x, halved), rtol=1e-4)


def test_values_and_gradients_are_those_of_torch(key):
    torch = pytest.importorskip("torch")
    x, kernel, direction = drawn(key, (2, 3, 4, 2))
    y, dx, dkernel = pulled(x, kernel, direction)

    # Features and pixels change places, and so do kernels and features.
    x = torch.tensor(np.moveaxis(x, 3, 1), requires_grad=True)
    kernel = torch.tensor(np.transpose(kernel, (2, 3, 0, 1)), requires_grad=True)
    expected = torch.nn.functional.conv_transpose2d(x, kernel, stride=2, padding=1)
    expected.backward(torch.tensor(np.moveaxis(direction, 3, 1)))
    for actual, reference in [
        (jnp.moveaxis(y, 3, 1), expected.detach()),
        (jnp.moveaxis(dx, 3, 1), x.grad),
        (jnp.transpose(dkernel, (2, 3, 0, 1)), kernel.grad),
    ]:
        np.testing.assert_allclose(actual, reference.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mapped", [jax.vmap, lambda f: lambda a: lax.map(f, a)])
def test_kernels_of_clients(key, mapped):
    clients = [drawn(k, (2, 3, 4, 2)) for k in jax.random.split(key, 3)]
    stacked = [jnp.stack(leaves) for leaves in zip(*clients, strict=True)]
    together = jax.jit(mapped(lambda client: pulled(*client)))(stacked)
    for i, client in enumerate(clients):
        for actual, expected in zip(together, pulled(*client), strict=True):
            np.testing.assert_allclose(actual[i], expected, rtol=1e-4, atol=1e-4)


def test_a_client_has_no_grouped_convolution():
    """XLA's own loses its threads in loops on a CPU."""

    def clients(x, kernels):
        return jax.vmap(conv_transpose)(x, kernels).sum()

    x, kernels = jnp.ones((3, 2, 3, 4, 2)), jnp.ones((3, 4, 4, 2, 5))
    program = jax.jit(jax.grad(clients, argnums=(0, 1))).lower(x, kernels).as_text()
    assert "dot_general" in program
    assert "convolution" not in program


def test_module_adds_a_bias_to_each_feature(key):
    x, kernel, _ = drawn(key, (2, 3, 4, 2))
    module = ConvTranspose(2, jax.nn.initializers.ones)
    params = module.init(key, x)["params"]
    np.testing.assert_array_equal(params["kernel"], np.ones((4, 4, 2, 2)))
    np.testing.assert_array_equal(params["bias"], [0, 0])
    params = {"kernel": kernel, "bias": jnp.array([1.0, -2.0])}
    expected = naive(np.asarray(x, float), np.asarray(kernel, float))
    expected += np.array([1, -2])[None, None, None]
    y = jax.jit(module.apply)({"params": params}, x)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_module_without_bias(key):
    module = ConvTranspose(2, jax.nn.initializers.ones, use_bias=False)
    variables = module.init(key, jnp.ones((1, 1, 1, 3)))
    assert list(variables["params"]) == ["kernel"]
