"""DSC-Net's layers by hand and against torch, and images of every size."""

from functools import partial
from math import ceil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.models import conv_autoencoder


@pytest.fixture(autouse=True)
def full_precision():
    with jax.default_matmul_precision("highest"):
        yield


def shapes(network, x):
    variables = jax.eval_shape(network.init, jax.random.key(0), x)
    assert set(variables) == {"params"}
    return {
        name: (layer["kernel"].shape, layer["bias"].shape)
        for name, layer in variables["params"].items()
    }


def drawn(network, x):
    """Variables whose biases are not zero, as they start."""
    variables = jax.eval_shape(network.init, jax.random.key(0), x)
    draw = np.random.default_rng(1)
    return jax.tree.map(
        lambda leaf: jnp.asarray(0.2 * draw.standard_normal(leaf.shape), leaf.dtype),
        variables,
    )


def outputs(network, variables, x):
    return jax.jit(partial(network.apply, train=False))(variables, x)[0]


def code_size(height, width):
    return ceil(height / 4) * ceil(width / 4) * 10


def test_default_layers():
    encoder, decoder = conv_autoencoder((28, 28, 1))
    assert shapes(encoder, jnp.ones((1, 28, 28, 1))) == {
        "Conv_0": ((5, 5, 1, 20), (20,)),
        "Conv_1": ((3, 3, 20, 10), (10,)),
    }
    assert shapes(decoder, jnp.ones((1, 490))) == {
        "ConvTranspose_0": ((4, 4, 10, 20), (20,)),
        "ConvTranspose_1": ((4, 4, 20, 1), (1,)),
    }


def test_three_layers():
    """As DSC-Net's on Extended Yale B: 48x42 become 6x6."""
    encoder, decoder = conv_autoencoder(
        (48, 42, 1), channels=(10, 20, 30), kernel_sizes=[5, 3, 3]
    )
    assert shapes(encoder, jnp.ones((1, 48, 42, 1))) == {
        "Conv_0": ((5, 5, 1, 10), (10,)),
        "Conv_1": ((3, 3, 10, 20), (20,)),
        "Conv_2": ((3, 3, 20, 30), (30,)),
    }
    assert shapes(decoder, jnp.ones((1, 6 * 6 * 30))) == {
        "ConvTranspose_0": ((4, 4, 30, 20), (20,)),
        "ConvTranspose_1": ((4, 4, 20, 10), (10,)),
        "ConvTranspose_2": ((4, 4, 10, 1), (1,)),
    }


@pytest.mark.parametrize(
    "shape", [(28, 28, 1), (32, 32, 3), (8, 8, 1), (30, 27, 2), (3, 3, 1)]
)
def test_codes_and_images(shape):
    encoder, decoder = conv_autoencoder(shape)
    height, width, _ = shape
    x = jnp.ones((2, *shape))
    codes, _ = jax.eval_shape(partial(encoder.apply, train=False), drawn(encoder, x), x)
    assert codes.shape == (2, code_size(height, width))
    codes = jnp.ones(codes.shape)
    images, _ = jax.eval_shape(
        partial(decoder.apply, train=False), drawn(decoder, codes), codes
    )
    assert images.shape == x.shape
    assert images.dtype == jnp.float32


@pytest.mark.parametrize("shape", [(8, 8, 1), (10, 7, 2)])
def test_encoder_is_that_of_torch(key, shape):
    torch = pytest.importorskip("torch")
    encoder, _ = conv_autoencoder(shape)
    x = jax.random.uniform(key, (3, *shape))
    variables = drawn(encoder, x)
    expected = torch.tensor(np.transpose(x, (0, 3, 1, 2)))
    for name, padding in [("Conv_0", 2), ("Conv_1", 1)]:
        layer = variables["params"][name]
        kernel = torch.tensor(np.transpose(layer["kernel"], (3, 2, 0, 1)))
        bias = torch.tensor(np.asarray(layer["bias"]))
        expected = torch.nn.functional.conv2d(
            expected, kernel, bias, stride=2, padding=padding
        ).relu()
    codes = outputs(encoder, variables, x)
    expected = expected.flatten(1).numpy()
    assert (expected > 0).any()
    assert (expected == 0).any()
    np.testing.assert_allclose(codes, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(8, 8, 1), (10, 7, 2)])
def test_decoder_is_that_of_torch(key, shape):
    """Then cut at the bottom and on the right."""
    torch = pytest.importorskip("torch")
    _, decoder = conv_autoencoder(shape)
    height, width, _ = shape
    codes = jax.random.normal(key, (3, code_size(height, width)))
    variables = drawn(decoder, codes)
    expected = torch.tensor(np.asarray(codes))
    expected = expected.reshape(3, 10, ceil(height / 4), ceil(width / 4))
    for name in ["ConvTranspose_0", "ConvTranspose_1"]:
        layer = variables["params"][name]
        kernel = torch.tensor(np.transpose(layer["kernel"], (2, 3, 0, 1)))
        bias = torch.tensor(np.asarray(layer["bias"]))
        expected = torch.nn.functional.conv_transpose2d(
            expected, kernel, bias, stride=2, padding=1
        ).relu()
    images = outputs(decoder, variables, codes)
    expected = expected.permute(0, 2, 3, 1).numpy()[:, :height, :width]
    assert (expected > 0).any()
    assert (expected == 0).any()
    np.testing.assert_allclose(images, expected, rtol=1e-4, atol=1e-5)


def test_a_code_is_where_its_patch_is(key):
    """Row 2 and column 1 of the codes are of the 4x4 pixels from row 8 and column 4;
    what comes back reaches three pixels further on every side."""
    _, decoder = conv_autoencoder((16, 12, 1))
    codes = jnp.zeros((10, 4, 3)).at[6, 2, 1].set(1.0).reshape(1, -1)
    variables = jax.tree.map(abs, jax.jit(decoder.init)(key, codes))
    images = outputs(decoder, variables, codes)
    rows, columns = np.nonzero(np.asarray(images[0, :, :, 0]))
    assert (rows.min(), rows.max()) == (8 - 3, 8 + 6)
    assert (columns.min(), columns.max()) == (4 - 3, 4 + 6)


@pytest.mark.parametrize("part", [0, 1])
def test_train_and_mask_make_no_difference(key, part):
    network = conv_autoencoder((8, 8, 1))[part]
    x = jax.random.uniform(key, (4, 8, 8, 1) if part == 0 else (4, 40))
    variables = drawn(network, x[:1])
    expected = outputs(network, variables, x)
    mask = jnp.array([True, False, True, False])
    for options in [{"train": True}, {"train": True, "mask": mask}]:
        y, after = jax.jit(partial(network.apply, **options))(variables, x)
        np.testing.assert_array_equal(y, expected)
        jax.tree.map(np.testing.assert_array_equal, after, variables)


def test_kernels_start_as_xaviers_and_biases_at_zero(key):
    """Uniform in +-sqrt(6 / (fan_in + fan_out)), both over the kernel's pixels."""
    encoder, decoder = conv_autoencoder((16, 16, 3), channels=(40, 30))
    params = {
        **jax.jit(encoder.init)(key, jnp.ones((1, 16, 16, 3)))["params"],
        **jax.jit(decoder.init)(key, jnp.ones((1, 480)))["params"],
    }
    bounds = {
        "Conv_0": (6 / (25 * (3 + 40))) ** 0.5,
        "Conv_1": (6 / (9 * (40 + 30))) ** 0.5,
        "ConvTranspose_0": (6 / (16 * (30 + 40))) ** 0.5,
        "ConvTranspose_1": (6 / (16 * (40 + 3))) ** 0.5,
    }
    assert set(params) == set(bounds)
    for name, bound in bounds.items():
        kernel = params[name]["kernel"]
        assert 0.99 * bound < float(abs(kernel).max()) <= bound * (1 + 1e-6)
        # Of |x|, uniform between 0 and the bound: four standard errors.
        mean = float(abs(kernel).mean()) / bound
        assert abs(mean - 0.5) < 4 / (12 * kernel.size) ** 0.5
        np.testing.assert_array_equal(params[name]["bias"], 0)


def test_clients_of_their_own(key):
    """Under jit, vmap and grad."""
    encoder, decoder = conv_autoencoder((6, 5, 1), channels=(3, 2))
    x, codes = jax.random.uniform(key, (3, 4, 6, 5, 1)), jnp.ones((1, 8))
    first = drawn(encoder, x[0]), drawn(decoder, codes)
    clients = [jax.tree.map(lambda leaf, i=i: leaf / i, first) for i in (1, 2, 3)]

    @jax.grad
    def gradient(variables, x):
        codes, _ = encoder.apply(variables[0], x, train=True)
        images, _ = decoder.apply(variables[1], codes, train=True)
        return jnp.sum((images - x) ** 2)

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *clients)
    together = jax.jit(jax.vmap(gradient))(stacked, x)
    alone = jax.jit(gradient)
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    for i, client in enumerate(clients):
        jax.tree.map(lambda a, b, i=i: close(a[i], b), together, alone(client, x[i]))


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((8, 8, 1), {"channels": (4,)}, r"one entry for each layer.*\(4,\) and \(5, 3"),
        ((8, 8, 1), {"channels": (), "kernel_sizes": ()}, "at least one layer"),
        ((8, 8, 1), {"kernel_sizes": (5, 4)}, r"odd, got \(5, 4\)"),
        ((8, 8, 1), {"kernel_sizes": (-1, 3)}, r"odd, got \(-1, 3\)"),
        ((8, 2, 1), {}, "2 layers halves images of at least 3 pixels a side, got 8x2"),
        (
            (4, 28, 1),
            {"channels": (1, 2, 3), "kernel_sizes": (3, 3, 3)},
            "at least 5 pixels a side, got 4x28",
        ),
    ],
)
def test_what_cannot_be_built(shape, options, message):
    with pytest.raises(ValueError, match=message) as error:
        conv_autoencoder(shape, **options)
    assert "\n" not in str(error.value)
