"""The network of feature vectors against NumPy, and the counting of its examples."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fcjax.models import MLP, batch_norm, from_linen, mlp_simsiam, simsiam

TINY = mlp_simsiam(widths=(5, 4), hidden_size=8, latent_size=6, bottleneck=3)
train_tiny = jax.jit(partial(TINY.apply, train=True))


@pytest.fixture(scope="module")
def vectors():
    return jax.random.uniform(jax.random.key(1), (7, 9))


@pytest.fixture(scope="module")
def variables(vectors):
    """After a step on other vectors, with scales and shifts that are not 1 and 0."""
    variables = TINY.init(jax.random.key(0), vectors)
    leaves, structure = jax.tree.flatten(variables["params"])
    keys = jax.random.split(jax.random.key(2), len(leaves))
    drawn = [
        x + 0.3 * jax.random.normal(k, x.shape)
        for k, x in zip(keys, leaves, strict=True)
    ]
    variables = {**variables, "params": jax.tree.unflatten(structure, drawn)}
    other = jax.random.uniform(jax.random.key(3), (20, 9))
    return train_tiny(variables, other)[1]


def dense(x, params):
    return x @ params["Dense_0"]["kernel"] + params["Dense_0"]["bias"]


def normalise(x, statistics, params=None):
    x = (x - statistics["mean"]) / np.sqrt(statistics["var"] + 1e-5)
    return x if params is None else params["scale"] * x + params["bias"]


def test_evaluation_by_hand(vectors, variables):
    params, stats = jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float64),
        (variables["params"], variables["batch_stats"]),
    )
    encoder, encoder_stats = params["encoder"], stats["encoder"]
    x = np.asarray(vectors, np.float64)
    for i in range(2):
        norm = f"BatchNorm_{i}"
        x = dense(x, encoder[f"Dense_{i}"])
        x = normalise(x, encoder_stats[norm], encoder[norm])
        x = np.where(x > 0, x, 0.2 * x)
    x = normalise(
        dense(x, params["Dense_0"]), stats["BatchNorm_0"], params["BatchNorm_0"]
    )
    expected_z = normalise(
        dense(np.maximum(x, 0), params["Dense_1"]), stats["BatchNorm_1"]
    )
    x = dense(expected_z, params["Dense_2"])
    x = normalise(x, stats["BatchNorm_2"], params["BatchNorm_2"])
    expected_p = dense(np.maximum(x, 0), params["Dense_3"])

    (z, p), after = TINY.apply(variables, vectors, train=False)
    np.testing.assert_allclose(z, expected_z, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(p, expected_p, rtol=1e-4, atol=1e-5)
    assert after is variables


def test_default_sizes(key):
    x = jax.ShapeDtypeStruct((2, 54), jnp.float32)
    params = jax.eval_shape(mlp_simsiam().init, key, x)["params"]
    layers = [params["encoder"][f"Dense_{i}"] for i in range(2)]
    layers += [params[f"Dense_{i}"] for i in range(4)]
    assert [layer["Dense_0"]["kernel"].shape for layer in layers] == [
        (54, 256),
        (256, 256),
        (256, 256),
        (256, 256),
        (256, 16),
        (16, 256),
    ]


def test_a_masked_batch_is_its_subset(vectors, variables):
    mask = jnp.array([True, True, False, True, False, True, True])
    filler = jnp.where(mask[:, None], vectors, 50.0)
    outputs, masked = train_tiny(variables, filler, mask=mask)
    expected, alone = train_tiny(variables, vectors[mask])
    for actual, reference in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(actual[mask], reference, rtol=1e-4, atol=1e-4)
    statistics = masked["batch_stats"], alone["batch_stats"]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), *statistics)
    moved = jax.tree.map(jnp.array_equal, statistics[0], variables["batch_stats"])
    assert not any(jax.tree.leaves(moved))


def test_batch_norm_by_hand(key):
    """Over the batch and the pixels of the counted examples."""

    class Norm(nn.Module):
        affine: bool = True

        @nn.compact
        def __call__(self, x, *, train, mask):
            return batch_norm(x, train=train, mask=mask, affine=self.affine)

    x = jax.random.normal(key, (4, 3, 2, 5))
    mask = jnp.array([True, False, True, True])
    network = from_linen(Norm())
    variables = network.init(key, x)
    y, after = network.apply(variables, x, train=True, mask=mask)

    counted = np.asarray(x)[np.asarray(mask)]
    mean, var = counted.mean(axis=(0, 1, 2)), counted.var(axis=(0, 1, 2))
    expected = (np.asarray(x) - mean) / np.sqrt(var + 1e-5)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    statistics = after["batch_stats"]["BatchNorm_0"]
    np.testing.assert_allclose(statistics["mean"], 0.1 * mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(statistics["var"], 0.9 + 0.1 * var, rtol=1e-4)
    assert set(variables["params"]["BatchNorm_0"]) == {"scale", "bias"}
    assert "params" not in from_linen(Norm(affine=False)).init(key, x)


def test_batch_norm_may_begin_at_zero(key):
    class Residual(nn.Module):
        @nn.compact
        def __call__(self, x, *, train, mask):
            init = nn.initializers.zeros
            return x + batch_norm(x, train=train, mask=mask, scale_init=init)

    network, x = from_linen(Residual()), jax.random.normal(key, (6, 3))
    y, _ = network.apply(network.init(key, x), x, train=True)
    np.testing.assert_array_equal(y, x)


def test_an_encoder_may_be_a_module_or_a_function(key, vectors):
    """A function's layers are numbered with the network's, a module's apart."""

    def encode(x, *, train, mask):
        return MLP((5,))(x, train=train, mask=mask)

    sizes = {"hidden_size": 8, "latent_size": 6, "bottleneck": 3}
    flat, nested = (
        jax.eval_shape(simsiam(encoder, **sizes).init, key, vectors)["params"]
        for encoder in (encode, MLP((5,)))
    )
    assert set(flat) - set(nested) == {"MLP_0"}
    assert set(nested) - set(flat) == {"encoder"}
    assert jax.tree.map(jnp.shape, flat["MLP_0"]) == jax.tree.map(
        jnp.shape, nested["encoder"]
    )
