import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.models.pool import max_pool
from fcjax.models.resnet import ResNet, resnet18, resnet34, resnet50

TINY = {
    "basic": ResNet((1, 1), width=4),
    "bottleneck": ResNet((1, 1), block="bottleneck", width=2),
    "imagenet": ResNet((1, 2), stem="imagenet", width=3),
}


@pytest.fixture(autouse=True)
def full_precision():
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture(scope="module")
def images():
    return jax.random.uniform(jax.random.key(1), (5, 12, 12, 3))


def perturbed(network, x):
    """Variables in which every shift, scale and running statistic matters."""
    init = jax.jit(lambda key, x: network.init(key, x, train=False, mask=None))
    leaves, tree = jax.tree.flatten(init(jax.random.key(0), x))
    rng = np.random.default_rng(0)
    noise = [rng.uniform(0.0, 0.3, leaf.shape).astype(np.float32) for leaf in leaves]
    return jax.tree.unflatten(tree, [a + b for a, b in zip(leaves, noise, strict=True)])


def trained(network, params, stats, x, mask=None):
    return network.apply(
        {"params": params, "batch_stats": stats},
        x,
        train=True,
        mask=mask,
        mutable=["batch_stats"],
    )


@pytest.mark.parametrize("stem", ["small", "imagenet"])
@pytest.mark.parametrize(
    ("build", "total", "classifier", "features"),
    [
        (resnet18, 11_689_512, 513_000, 512),
        (resnet34, 21_797_672, 513_000, 512),
        (resnet50, 25_557_032, 2_049_000, 2048),
    ],
)
def test_parameters_are_those_of_torchvision(
    key, build, total, classifier, features, stem
):
    """torchvision's published counts, without the classifier: F * 1000 + 1000."""
    network, side = build(stem), 32 if stem == "small" else 64
    x = jax.ShapeDtypeStruct((2, side, side, 3), jnp.float32)
    y, variables = jax.eval_shape(
        lambda key, x: network.init_with_output(key, x, train=False, mask=None), key, x
    )
    assert y.shape == (2, features)
    count = sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))
    smaller_stem = (7 * 7 - 3 * 3) * 3 * 64 if stem == "small" else 0
    assert count == total - classifier - smaller_stem


@pytest.mark.parametrize(
    ("build", "shortcuts"), [(resnet18, 3), (resnet34, 3), (resnet50, 4)]
)
def test_shortcuts_have_their_own_name(key, build, shortcuts):
    """1x1 convolutions where a shape changes: the first stage of bottlenecks too."""
    x = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    variables = jax.eval_shape(
        lambda key, x: build().init(key, x, train=False, mask=None), key, x
    )
    blocks = variables["params"].values()
    named = [block["shortcut"] for block in blocks if "shortcut" in block]
    assert len(named) == shortcuts
    for layer in named:
        assert set(layer) == {"kernel"}
        assert layer["kernel"].shape[:2] == (1, 1)
    # The paper's count of layers has the classifier, and shortcuts not.
    layers = {resnet18: 18, resnet34: 34, resnet50: 50}[build]
    assert str(variables["params"]).count("Conv_") == layers - 1


def test_initialisation_is_scaled_by_the_outputs(key):
    """Kaiming's normal: variance 2 / (k k O), not cut off; batch norms are neutral."""
    x = jnp.ones((1, 4, 4, 3))
    network = ResNet((1,), width=64)
    init = jax.jit(lambda key: network.init(key, x, train=False, mask=None))
    params = init(key)["params"]
    kernel = np.asarray(params["BasicBlock_0"]["Conv_0"]["kernel"])
    assert kernel.shape == (3, 3, 64, 64)
    np.testing.assert_allclose(kernel.std(), np.sqrt(2 / (9 * 64)), rtol=0.02)
    assert np.abs(kernel).max() > 3 * kernel.std()
    np.testing.assert_array_equal(params["BatchNorm_0"]["scale"], 1)
    np.testing.assert_array_equal(params["BatchNorm_0"]["bias"], 0)


def torch_resnet(torch, network, params, stats, x, *, train):
    """torchvision's forward pass, from variables named as here."""
    functional = torch.nn.functional

    def convolve(params, name, x, stride=1):
        kernel = params[name]["kernel"].permute(3, 2, 0, 1)
        padding = (kernel.shape[-1] - 1) // 2
        return functional.conv2d(x, kernel, stride=stride, padding=padding)

    def norm(params, stats, i, x):
        p, s = params[f"BatchNorm_{i}"], stats[f"BatchNorm_{i}"]
        running = s["mean"].clone(), s["var"].clone()
        return functional.batch_norm(x, *running, p["scale"], p["bias"], train)

    def block(params, stats, x, stride):
        strides = {"basic": [stride, 1], "bottleneck": [1, stride, 1]}[network.block]
        y = x
        for i, step in enumerate(strides):
            y = norm(params, stats, i, convolve(params, f"Conv_{i}", y, step))
            if i < len(strides) - 1:
                y = torch.relu(y)
        if y.shape != x.shape:
            x = convolve(params, "shortcut", x, stride)
            x = norm(params, stats, len(strides), x)
        return torch.relu(y + x)

    large = network.stem == "imagenet"
    x = x.permute(0, 3, 1, 2)
    x = norm(params, stats, 0, convolve(params, "Conv_0", x, 2 if large else 1))
    x = torch.relu(x)
    if large:
        x = functional.max_pool2d(x, 3, 2, 1)
    kind = {"basic": "BasicBlock", "bottleneck": "Bottleneck"}[network.block]
    strides = [
        2 if i > 0 and j == 0 else 1
        for i, blocks in enumerate(network.stages)
        for j in range(blocks)
    ]
    for i, stride in enumerate(strides):
        x = block(params[f"{kind}_{i}"], stats[f"{kind}_{i}"], x, stride)
    return x.mean(dim=(2, 3))


def tensors(torch, tree, *, requires_grad=False):
    return jax.tree.map(
        lambda leaf: torch.tensor(np.asarray(leaf), requires_grad=requires_grad), tree
    )


@pytest.mark.parametrize("name", TINY)
def test_features_in_evaluation_are_those_of_torch(images, name):
    torch = pytest.importorskip("torch")
    network = TINY[name]
    variables = perturbed(network, images)
    evaluate = jax.jit(lambda v, x: network.apply(v, x, train=False, mask=None))
    copies = tensors(torch, (variables["params"], variables["batch_stats"], images))
    expected = torch_resnet(torch, network, *copies, train=False)
    y = evaluate(variables, images)
    np.testing.assert_allclose(y, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TINY)
def test_features_and_gradients_in_training_are_those_of_torch(images, name):
    torch = pytest.importorskip("torch")
    network = TINY[name]
    variables = perturbed(network, images)
    params, stats = variables["params"], variables["batch_stats"]

    @jax.jit
    def features_and_gradients(params, x):
        def loss(params, x):
            y, _ = trained(network, params, stats, x)
            return jnp.sum(jnp.cos(jnp.arange(y.size)).reshape(y.shape) * y), y

        return jax.grad(loss, argnums=(0, 1), has_aux=True)(params, x)

    gradients, y = features_and_gradients(params, images)

    copies = tensors(torch, (params, images), requires_grad=True)
    parameters, x = copies
    expected = torch_resnet(
        torch, network, parameters, tensors(torch, stats), x, train=True
    )
    direction = torch.cos(torch.arange(expected.numel())).reshape(expected.shape)
    (direction * expected).sum().backward()
    np.testing.assert_allclose(y, expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(
        jax.tree.leaves(gradients), jax.tree.leaves(copies), strict=True
    ):
        scale = float(theirs.grad.abs().max())
        np.testing.assert_allclose(ours, theirs.grad.numpy(), atol=2e-4 * scale)


def test_rows_left_out_change_nothing(images):
    """Features, running statistics and gradients of three rows of five."""
    network = TINY["bottleneck"]
    variables = perturbed(network, images)
    params, stats = variables["params"], variables["batch_stats"]

    @jax.jit
    def results(x, mask):
        def loss(params):
            y, updates = trained(network, params, stats, x, mask)
            return (y[:3] ** 2).sum(), (y[:3], updates)

        return jax.grad(loss, has_aux=True)(params)

    masked = results(images.at[3:].mul(7.0), jnp.arange(5) < 3)
    alone = results(images[:3], None)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
        masked,
        alone,
    )


def test_clients_with_their_own_weights(images):
    network = TINY["basic"]
    one = perturbed(network, images)
    clients = jax.tree.map(lambda leaf: jnp.stack([leaf, 1.1 * leaf]), one)

    def features(variables):
        return trained(network, variables["params"], variables["batch_stats"], images)

    batched = jax.jit(jax.vmap(features))(clients)
    single = jax.jit(features)
    each = [single(jax.tree.map(lambda x, i=i: x[i], clients)) for i in range(2)]
    jax.tree.map(
        lambda a, *b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
        batched,
        *each,
    )


@pytest.mark.parametrize(
    ("size", "stride", "padding"), [(3, 2, 1), (2, 2, 0), (3, 1, 1)]
)
def test_max_pool_by_hand(key, size, stride, padding):
    """Window by window; the first of equal values has the gradient."""
    x = np.floor(jax.random.uniform(key, (2, 3, 7, 6)) * 4) - 5  # Many ties, below 0.
    height, width = [(n + 2 * padding - size) // stride + 1 for n in x.shape[2:]]
    expected, gradient = np.zeros((2, 3, height, width)), np.zeros(x.shape)
    weights = np.cos(np.arange(expected.size)).reshape(expected.shape)
    for c, b, i, j in np.ndindex(*expected.shape):
        top, left = i * stride - padding, j * stride - padding
        window = [
            (row, column)
            for row in range(max(top, 0), min(top + size, x.shape[2]))
            for column in range(max(left, 0), min(left + size, x.shape[3]))
        ]
        best = max(window, key=lambda at: x[(c, b, *at)])
        expected[c, b, i, j] = x[(c, b, *best)]
        gradient[(c, b, *best)] += weights[c, b, i, j]

    @jax.jit
    def pool(x):
        images = jnp.transpose(x, (1, 2, 3, 0))
        pooled = max_pool(images, size=size, stride=stride, padding=padding)
        return jnp.transpose(pooled, (3, 0, 1, 2))

    np.testing.assert_array_equal(pool(x), expected)
    actual = jax.grad(lambda x: (weights * pool(x)).sum())(jnp.asarray(x))
    np.testing.assert_allclose(actual, gradient, atol=1e-5)
