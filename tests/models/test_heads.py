"""Encoders and heads against NumPy, and their sizes against the authors'."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.models import (
    MLP,
    byol_head,
    cluster_projector,
    conv_encoder,
    encoder,
    projector,
    resnet18,
    simsiam_predictor,
    simsiam_projector,
)

HEADS = {
    "projector": projector(3, hidden_size=6),
    "cluster_projector": cluster_projector(4),
    "byol_head": byol_head(3, hidden_size=6),
    "simsiam_projector": simsiam_projector(3, hidden_size=6),
    "simsiam_predictor": simsiam_predictor(3, hidden_size=6),
}


@pytest.fixture(scope="module")
def features():
    return jax.random.normal(jax.random.key(1), (7, 5))


def perturbed(network, x):
    """Variables in which every scale, shift and running statistic matters."""
    leaves, tree = jax.tree.flatten(network.init(jax.random.key(0), x))
    rng = np.random.default_rng(0)
    noise = [rng.uniform(0.0, 0.3, leaf.shape).astype(np.float32) for leaf in leaves]
    return jax.tree.unflatten(tree, [a + b for a, b in zip(leaves, noise, strict=True)])


def in_numpy(name, variables, x, *, train):
    """The layers that each head's docstring names."""
    params, statistics = jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float64),
        (variables["params"], variables.get("batch_stats")),
    )

    def dense(x, i):
        layer = params[f"Dense_{i}"]["Dense_0"]
        return x @ layer["kernel"] + layer["bias"]

    def norm(x, i):
        layer, running = params[f"BatchNorm_{i}"], statistics[f"BatchNorm_{i}"]
        mean, var = running["mean"], running["var"]
        if train:
            mean, var = x.mean(axis=0), x.var(axis=0)
        return layer["scale"] * (x - mean) / np.sqrt(var + 1e-5) + layer["bias"]

    x = dense(np.asarray(x, np.float64), 0)
    if name in ("byol_head", "simsiam_projector", "simsiam_predictor"):
        x = norm(x, 0)
    x = dense(np.maximum(x, 0), 1)
    if name == "simsiam_projector":
        x = norm(x, 1)
    if name == "cluster_projector":
        x = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    return x


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_values_by_hand(features, name, train):
    variables = perturbed(HEADS[name], features)
    y, after = HEADS[name].apply(variables, features, train=train)
    expected = in_numpy(name, variables, features, train=train)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    assert jax.tree.structure(after) == jax.tree.structure(variables)


@pytest.mark.parametrize("name", HEADS)
def test_initialisation_is_pytorchs(features, name):
    """Uniform in +-1/sqrt(fan_in), biases too."""
    params = HEADS[name].init(jax.random.key(0), features)["params"]
    for i in range(2):
        layer = params[f"Dense_{i}"]["Dense_0"]
        bound = len(layer["kernel"]) ** -0.5
        for leaf in layer.values():
            assert 0.2 * bound < np.abs(leaf).max() <= bound


def test_soft_assignments_are_probabilities(features):
    network = cluster_projector(4)
    variables = network.init(jax.random.key(0), features)
    c, _ = network.apply(variables, 100 * features, train=True)
    assert c.shape == (7, 4)
    assert (c >= 0).all()
    np.testing.assert_allclose(c.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("network", "widths"),
    [
        # CC: hidden as wide as the features, 128 out, K of clusters.
        (projector(), (512, 512, 128)),
        (projector(64, hidden_size=256), (512, 256, 64)),
        (cluster_projector(10), (512, 512, 10)),
        (cluster_projector(10, hidden_size=64), (512, 64, 10)),
        # EasyFL's BYOL and PatrickHua's SimSiam.
        (byol_head(), (512, 4096, 2048)),
        (simsiam_projector(), (512, 2048, 2048)),
        (simsiam_predictor(), (512, 512, 2048)),
    ],
)
def test_default_sizes(key, network, widths):
    x = jax.ShapeDtypeStruct((2, 512), jnp.float32)
    params = jax.eval_shape(network.init, key, x)["params"]
    kernels = [params[f"Dense_{i}"]["Dense_0"]["kernel"].shape for i in range(2)]
    assert kernels == [widths[:2], widths[1:]]


@pytest.mark.parametrize(
    ("layers", "shape", "size"),
    [
        (MLP((6, 4)), (9,), 4),
        (conv_encoder((3, 5)), (8, 8, 1), 5 * 2 * 2),
        (resnet18(), (32, 32, 3), 512),
    ],
)
@pytest.mark.parametrize("train", [False, True])
def test_an_encoder_maps_examples_to_features(key, layers, shape, size, train):
    network = encoder(layers)
    x = jax.ShapeDtypeStruct((3, *shape), jnp.float32)
    variables = jax.eval_shape(network.init, key, x)
    y, after = jax.eval_shape(
        lambda v, x: network.apply(v, x, train=train), variables, x
    )
    assert y.shape == (3, size)
    assert jax.tree.structure(after) == jax.tree.structure(variables)


def test_an_encoder_is_its_layers(features):
    layers = MLP((6, 4))
    network = encoder(layers)
    variables = perturbed(network, features)
    y, after = network.apply(variables, features, train=True)
    inner = {collection: tree["layers"] for collection, tree in variables.items()}
    expected, updates = layers.apply(
        inner, features, train=True, mask=None, mutable=["batch_stats"]
    )
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    jax.tree.map(
        np.testing.assert_array_equal,
        after["batch_stats"]["layers"],
        updates["batch_stats"],
    )


@pytest.mark.parametrize("name", ["byol_head", "simsiam_projector"])
def test_rows_left_out_change_nothing(features, name):
    network = HEADS[name]
    variables = perturbed(network, features)
    mask = np.array([True, False, True, True, False, True, True])
    spoilt = jnp.where(mask[:, None], features, 50.0)
    y, masked = network.apply(variables, spoilt, train=True, mask=jnp.asarray(mask))
    expected, alone = network.apply(variables, features[mask], train=True)
    np.testing.assert_allclose(y[mask], expected, rtol=1e-4, atol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        masked,
        alone,
    )
