"""The GANs' layers by hand, against torch, and the counting of their examples."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.models import dcgan, mlp_gan

SHAPE = (8, 12, 2)
TINY = dcgan(SHAPE, channels=3, hidden_size=10)
TINY_VECTORS = mlp_gan(4, widths=(6, 5))
NETWORKS = {
    "images": (TINY.generator, (7,)),
    "judged images": (TINY.discriminator, SHAPE),
    "vectors": (TINY_VECTORS.generator, (7,)),
    "judged vectors": (TINY_VECTORS.discriminator, (4,)),
}


@cache
def trained(kind):
    """A network's steps of training and evaluation, variables as if trained, and a
    batch."""
    network, shape = NETWORKS[kind]
    x = jax.random.uniform(jax.random.key(1), (6, *shape))
    variables = jax.eval_shape(network.init, jax.random.key(0), x)
    draw = np.random.default_rng(2)

    def drawn(path, leaf):
        if path[-1].key in ("scale", "var"):
            return jnp.asarray(draw.uniform(0.5, 2, leaf.shape), leaf.dtype)
        return jnp.asarray(0.5 * draw.standard_normal(leaf.shape), leaf.dtype)

    return (
        jax.jit(partial(network.apply, train=True)),
        jax.jit(lambda *a: network.apply(*a, train=False)[0]),
        jax.tree_util.tree_map_with_path(drawn, variables),
        x,
    )


def shapes(network, *shape):
    """Of parameters, batch norms left out but for their number of features."""
    x = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    params = jax.eval_shape(network.init, jax.random.key(0), x)["params"]
    for layer in params.values():
        if set(layer) == {"scale", "bias"}:
            assert layer["scale"].shape == layer.pop("bias").shape
    return jax.tree.map(lambda leaf: leaf.shape, params)


def size(network, *shape):
    x = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    params = jax.eval_shape(network.init, jax.random.key(0), x)["params"]
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def test_the_papers_generator():
    assert shapes(dcgan((28, 28, 1)).generator, 72) == {
        "Dense_0": {"kernel": (72, 1024)},
        "BatchNorm_0": {"scale": (1024,)},
        "Dense_1": {"kernel": (1024, 6272)},
        "BatchNorm_1": {"scale": (6272,)},
        "ConvTranspose_0": {"kernel": (4, 4, 128, 64)},
        "BatchNorm_2": {"scale": (64,)},
        "ConvTranspose_1": {"kernel": (4, 4, 64, 1), "bias": (1,)},
    }


def test_the_papers_discriminator():
    assert shapes(dcgan((28, 28, 1)).discriminator, 28, 28, 1) == {
        "Conv_0": {"kernel": (4, 4, 1, 64)},
        "BatchNorm_0": {"scale": (64,)},
        "Conv_1": {"kernel": (4, 4, 64, 128)},
        "BatchNorm_1": {"scale": (128,)},
        "Conv_2": {"kernel": (4, 4, 128, 256)},
        "BatchNorm_2": {"scale": (256,)},
        "Dense_0": {"kernel": (2304, 1024)},
        "BatchNorm_3": {"scale": (1024,)},
        "Dense_1": {"kernel": (1024, 1), "bias": (1,)},
    }


def test_number_of_parameters():
    """PyTorch's layers have 1024 + 6272 + 64 biases more in the one, 64 + 128 + 256 +
    1024 in the other, in front of batch norms."""
    gan = dcgan((28, 28, 1))
    # 72 * 1024 + 2 * 1024 + 1024 * 6272 + 2 * 6272
    # + 16 * 128 * 64 + 2 * 64 + 16 * 64 + 1
    assert size(gan.generator, 72) == 6_643_073
    # 16 * (64 + 64 * 128 + 128 * 256) + 2 * (64 + 128 + 256)
    # + 2304 * 1024 + 2 * 1024 + 1024 + 1
    assert size(gan.discriminator, 28, 28, 1) == 3_019_649


@pytest.mark.parametrize(
    ("shape", "drawn", "transposed", "convolved", "rest"),
    [
        # 8 doubled twice; halved three times to 4
        ((32, 32, 3), 128 * 64, [64, 3], [64, 128, 256], 256 * 16),
        # 6 doubled four times; halved five times to 3
        (
            (96, 96, 3),
            512 * 36,
            [256, 128, 64, 3],
            [64, 128, 256, 512, 1024],
            1024 * 9,
        ),
        # 2 doubled twice; halved three times to 1
        ((8, 8, 1), 128 * 4, [64, 1], [64, 128, 256], 256),
        # 8x4 doubled three times, as the longer side asks for
        ((64, 32, 1), 256 * 32, [128, 64, 1], [64, 128, 256, 512], 512 * 8),
    ],
)
def test_other_images(shape, drawn, transposed, convolved, rest):
    gan = dcgan(shape)
    layers = shapes(gan.generator, 72)
    assert layers["Dense_1"]["kernel"] == (1024, drawn)
    kernels = [layers[f"ConvTranspose_{i}"]["kernel"] for i in range(len(transposed))]
    assert [kernel[3] for kernel in kernels] == transposed
    assert f"ConvTranspose_{len(transposed)}" not in layers

    layers = shapes(gan.discriminator, *shape)
    kernels = [layers[f"Conv_{i}"]["kernel"] for i in range(len(convolved))]
    assert [kernel[3] for kernel in kernels] == convolved
    assert f"Conv_{len(convolved)}" not in layers
    assert layers["Dense_0"]["kernel"] == (rest, 1024)

    def images_and_logits(key):
        noise = jnp.ones((5, 72))
        variables = gan.generator.init(key, noise)
        images, _ = gan.generator.apply(variables, noise, train=True)
        variables = gan.discriminator.init(key, images)
        return images, gan.discriminator.apply(variables, images, train=True)[0]

    images, logits = jax.eval_shape(images_and_logits, jax.random.key(0))
    assert images.shape == (5, *shape)
    assert logits.shape == (5,)


def test_the_networks_of_vectors():
    gan = mlp_gan(16)
    hidden = {
        "BatchNorm_0": {"scale": (256,)},
        "Dense_1": {"kernel": (256, 256)},
        "BatchNorm_1": {"scale": (256,)},
    }
    assert shapes(gan.generator, 15) == {
        **hidden,
        "Dense_0": {"kernel": (15, 256)},
        "Dense_2": {"kernel": (256, 16), "bias": (16,)},
    }
    assert shapes(gan.discriminator, 16) == {
        **hidden,
        "Dense_0": {"kernel": (16, 256)},
        "Dense_2": {"kernel": (256, 1), "bias": (1,)},
    }


@pytest.mark.parametrize(
    ("shape", "accepted", "got"),
    [
        ((30, 30, 1), "multiples of 4 and at least 8", "30x30"),
        ((28, 30, 3), "multiples of 4 and at least 8", "28x30"),
        ((4, 4, 1), "multiples of 4 and at least 8", "4x4"),
        ((100, 100, 3), "multiples of 16 and at least 32", "100x100"),
        ((16, 96, 3), "multiples of 16 and at least 32", "16x96"),
    ],
)
def test_images_that_cannot_be_halved_are_refused(shape, accepted, got):
    with pytest.raises(ValueError, match=rf"{accepted}, got {got}; .*--resize 32") as e:
        dcgan(shape)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (dcgan((8, 8, 3)).generator, (72,)),
        (dcgan((8, 8, 3)).discriminator, (8, 8, 3)),
        (mlp_gan(16).generator, (15,)),
        (mlp_gan(16).discriminator, (16,)),
    ],
)
def test_weights_start_normal_and_biases_zero(key, network, shape):
    params = jax.jit(network.init)(key, jnp.zeros((1, *shape)))["params"]
    for name, layer in params.items():
        if name.startswith("BatchNorm"):
            np.testing.assert_array_equal(layer["scale"], 1)
        else:
            weights = np.asarray(layer["kernel"]).ravel() / 0.02
            # Four standard errors of the mean and of the standard deviation.
            assert abs(weights.mean()) < 4 / weights.size**0.5
            assert abs(weights.std() - 1) < 4 / (2 * weights.size) ** 0.5
            # Neither uniform nor cut off: 4.55 % lie beyond two.
            beyond = (abs(weights) > 2).mean()
            assert abs(beyond - 0.0455) < 4 * (0.0455 / weights.size) ** 0.5
        np.testing.assert_array_equal(layer.get("bias", 0), 0)


@pytest.mark.parametrize("kind", ["images", "vectors"])
def test_examples_lie_between_0_and_1(kind):
    step, _, variables, _ = trained(kind)
    y, _ = step(variables, 100 * jax.random.normal(jax.random.key(3), (6, 7)))
    assert float(y.min()) >= 0
    assert float(y.max()) <= 1
    assert float(y.max() - y.min()) > 0.5


def torch_network(torch, kind, variables, x, train):
    """The same layers by torch's functions, on its own order of axes."""
    functional = torch.nn.functional
    params, stats = jax.tree.map(
        lambda leaf: torch.tensor(np.asarray(leaf)),
        (variables["params"], variables["batch_stats"]),
    )
    x = torch.tensor(np.asarray(x))

    def dense(i, x):
        layer = params[f"Dense_{i}"]
        return functional.linear(x, layer["kernel"].T, layer.get("bias"))

    def norm(i, x):
        layer, running = params[f"BatchNorm_{i}"], stats[f"BatchNorm_{i}"]
        return functional.batch_norm(
            x,
            running["mean"].clone(),
            running["var"].clone(),
            layer["scale"],
            layer["bias"],
            training=train,
        )

    def leaky(x):
        return functional.leaky_relu(x, 0.2)

    if kind == "images":
        x = functional.relu(norm(0, dense(0, x)))
        x = functional.relu(norm(1, dense(1, x))).view(-1, 6, 2, 3)
        for i in range(2):
            layer = params[f"ConvTranspose_{i}"]
            kernel = layer["kernel"].permute(2, 3, 0, 1)
            x = functional.conv_transpose2d(
                x, kernel, layer.get("bias"), stride=2, padding=1
            )
            if i == 0:
                x = functional.relu(norm(2, x))
        x = torch.sigmoid(x).permute(0, 2, 3, 1)
    elif kind == "judged images":
        x = x.permute(0, 3, 1, 2)
        for i in range(3):
            kernel = params[f"Conv_{i}"]["kernel"].permute(3, 2, 0, 1)
            x = leaky(norm(i, functional.conv2d(x, kernel, stride=2, padding=1)))
        x = leaky(norm(3, dense(0, x.flatten(1))))
        x = dense(1, x)[:, 0]
    else:
        for i in range(2):
            x = leaky(norm(i, dense(i, x)))
        x = dense(2, x)
        x = torch.sigmoid(x) if kind == "vectors" else x[:, 0]
    return x.numpy()


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("kind", NETWORKS)
def test_outputs_are_those_of_torch(kind, train):
    torch = pytest.importorskip("torch")
    step, evaluate, variables, x = trained(kind)
    if train:
        actual, after = step(variables, x)
        moved = jax.tree.map(
            lambda a, b: bool((a != b).any()),
            after["batch_stats"],
            variables["batch_stats"],
        )
        assert all(jax.tree.leaves(moved))
    else:
        actual = evaluate(variables, x)
    expected = torch_network(torch, kind, variables, x, train)
    assert actual.shape == expected.shape
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("filler", [50.0, np.nan])
@pytest.mark.parametrize("kind", NETWORKS)
def test_rows_that_do_not_count_leave_the_others_alone(kind, filler):
    """NaNs too, going forward; a gradient would multiply them by zero."""
    step, _, variables, x = trained(kind)
    counted = np.array([True, True, False, True, False, True])
    rows = jnp.where(counted.reshape(-1, *[1] * (x.ndim - 1)), x, filler)
    outputs, masked = step(variables, rows, mask=jnp.asarray(counted))
    expected, alone = step(variables, x[counted])
    np.testing.assert_allclose(outputs[counted], expected, rtol=1e-4, atol=1e-5)
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
        masked["batch_stats"],
        alone["batch_stats"],
    )


def test_gradients_know_no_rows_that_do_not_count():
    """Of the generator through the discriminator, as in training."""
    *_, variables, noise = trained("vectors")
    *_, judge, _ = trained("judged vectors")
    counted = jnp.array([True, True, False, True, False, True])

    def loss(params, noise):
        both = {**variables, "params": params}
        options = {"train": True, "mask": counted}
        rows, _ = TINY_VECTORS.generator.apply(both, noise, **options)
        logits, _ = TINY_VECTORS.discriminator.apply(judge, rows, **options)
        return jnp.where(counted, jax.nn.softplus(-logits), 0).sum()

    gradient = jax.jit(jax.grad(loss))
    expected = gradient(variables["params"], noise)
    filled = jnp.where(counted[:, None], noise, 50.0)
    actual = gradient(variables["params"], filled)
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), actual, expected
    )
    largest = [float(abs(leaf).max()) for leaf in jax.tree.leaves(actual)]
    assert min(largest) > 1e-3
