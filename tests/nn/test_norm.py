import re
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fcjax.federated import training
from fcjax.nn import batch_norm, conv_encoder, from_linen, layers, simsiam
from fcjax.nn.layers import apply_to_views


class Norm(nn.Module):
    affine: bool = True

    @nn.compact
    def __call__(self, x, *, train, mask):
        return batch_norm(x, train=train, mask=mask, affine=self.affine)


def test_running_statistics_by_hand(key):
    """Over the batch and the pixels of the counted examples, and so once more."""
    x = jax.random.normal(key, (4, 3, 2, 5))
    mask = jnp.array([True, False, True, True])
    network = from_linen(Norm())
    variables = network.init(key, x)
    train = jax.jit(partial(network.apply, x=x, train=True, mask=mask))
    _, once = train(variables)
    _, twice = train(once)

    counted = np.asarray(x)[np.asarray(mask)]
    mean, var = counted.mean(axis=(0, 1, 2)), counted.var(axis=(0, 1, 2))
    # new = 0.9 old + 0.1 batch, from mean 0 and variance 1
    for after, share in ((once, 0.1), (twice, 0.19)):
        found = after["batch_stats"]["BatchNorm_0"]
        np.testing.assert_allclose(found["mean"], share * mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found["var"], 1 - share + share * var, rtol=1e-4)
    assert set(variables["params"]["BatchNorm_0"]) == {"scale", "bias"}
    assert "params" not in from_linen(Norm(affine=False)).init(key, x)


def test_gradients_equal_those_of_linen(key):
    """Linen's batch norm is differentiated automatically, also for masked examples."""
    x = 3 + 2 * jax.random.normal(key, (6, 3, 2, 4))
    weights = jax.random.normal(jax.random.fold_in(key, 1), x.shape)
    mask = jnp.array([True, False, True, True, True, False])
    scale, bias = jnp.arange(1.0, 5), jnp.arange(4.0)

    def by_linen(x, scale, bias):
        norm = nn.BatchNorm(use_running_average=False, use_fast_variance=False)
        variables = norm.init(key, x)
        variables = {**variables, "params": {"scale": scale, "bias": bias}}
        y, _ = norm.apply(
            variables, x, mask=mask[:, None, None, None], mutable=["batch_stats"]
        )
        return jnp.sum(jnp.sin(y) * weights)

    def ours(x, scale, bias):
        network = from_linen(Norm())
        variables = network.init(key, x)
        variables["params"] = {"BatchNorm_0": {"scale": scale, "bias": bias}}
        y, _ = network.apply(variables, x, train=True, mask=mask)
        return jnp.sum(jnp.sin(y) * weights)

    for mine, theirs in zip(
        jax.grad(ours, (0, 1, 2))(x, scale, bias),
        jax.grad(by_linen, (0, 1, 2))(x, scale, bias),
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_variance_of_features_with_a_large_mean():
    """The running mean is near the mean, so the difference of squares is exact."""
    x = jnp.array([[1000.0], [1001.0], [1002.0]])
    network = from_linen(Norm(affine=False))
    variables = network.init(jax.random.key(0), x)
    variables["batch_stats"]["BatchNorm_0"]["mean"] = jnp.array([990.0])
    y, _ = network.apply(variables, x, train=True)
    np.testing.assert_allclose(y[:, 0], [-(1.5**0.5), 0, 1.5**0.5], rtol=1e-4)


class ByLinen(nn.Module):
    """A network whose batch norm is Linen's own."""

    @nn.compact
    def __call__(self, x, *, train, mask):
        return nn.BatchNorm(use_running_average=not train, momentum=0.5)(x)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize(
    "network", [simsiam(conv_encoder((4, 8))), from_linen(ByLinen())]
)
def test_views_in_one_pass_are_one_pass_per_view(key, network, platform, monkeypatch):
    """Outputs, gradients and running statistics, with masked examples."""
    views = jax.random.uniform(key, (2, 6, 8, 8, 1))
    mask = jnp.arange(6) < 5
    variables = network.init(key, views[0])
    params, statistics = training.split(variables)

    def loss(outputs):
        return sum(jnp.mean(jnp.sin(y)) for y in jax.tree.leaves(outputs))

    def one_by_one(params):
        variables, total = {"params": params, **statistics}, 0.0
        for view in views:
            outputs, variables = network.apply(variables, view, train=True, mask=mask)
            total += loss(outputs) / 2
        return total, variables["batch_stats"]

    def together(params):
        variables = {"params": params, **statistics}
        outputs, variables = apply_to_views(network, variables, views, mask)
        return loss(outputs), variables["batch_stats"]

    expected = jax.value_and_grad(one_by_one, has_aux=True)(params)
    monkeypatch.setattr(layers, "platform", lambda: platform)
    found = jax.value_and_grad(together, has_aux=True)(params)
    chex.assert_trees_all_close(found, expected, rtol=1e-3, atol=1e-5)


def test_bfloat16_keeps_parameters_statistics_and_outputs_in_float32(key):
    network, x = simsiam(conv_encoder((4, 8))), jax.random.uniform(key, (16, 8, 8, 1))
    variables = network.init(key, x)

    def apply(params, x):
        return network.apply({**variables, "params": params}, x, train=True)

    exact, _ = apply(variables["params"], x)
    with jax.default_matmul_precision("bfloat16"):
        (z, p), after = apply(variables["params"], x)
        gradient = jax.grad(lambda params: apply(params, x)[0][1].sum())
        gradients = gradient(variables["params"])
        text = jax.make_jaxpr(apply)(variables["params"], x).pretty_print()
    for leaf in jax.tree.leaves((z, p, after, gradients)):
        assert leaf.dtype == jnp.float32
    # bfloat16 has 8 bits: close to float32 and not equal.
    error = float(jnp.abs(z - exact[0]).max())
    assert 1e-4 < error < 0.2
    products = re.findall(r":(\w+)\[[\d,]*\] = (?:dot|conv)_general", text)
    assert products
    assert {*products} == {"bf16"}


def test_a_bias_before_a_batch_norm_has_gradient_zero(key):
    """The norm subtracts the bias, so zero is the exact gradient."""
    network, x = simsiam(conv_encoder((4,))), jax.random.uniform(key, (6, 8, 8, 1))
    variables = network.init(key, x)

    def loss(params):
        (_, p), _ = network.apply({**variables, "params": params}, x, train=True)
        return p.sum()

    gradients = jax.grad(loss)(variables["params"])
    assert not jnp.any(gradients["Conv_0"]["bias"])
    for i, follows_norm in enumerate((True, True, True, False)):
        assert jnp.any(gradients[f"Dense_{i}"]["Dense_0"]["bias"]) != follows_norm


def test_initialization_leaves_the_running_statistics(key):
    """As in Linen, also if a module is initialized in training."""
    x = 5 + jax.random.normal(key, (6, 3))
    statistics = Norm().init(key, x, train=True, mask=None)["batch_stats"]
    np.testing.assert_array_equal(statistics["BatchNorm_0"]["mean"], np.zeros(3))
    np.testing.assert_array_equal(statistics["BatchNorm_0"]["var"], np.ones(3))
