from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fcjax.models import conv_encoder, from_linen, simsiam

SIDES = (28, 8)


TINY = simsiam(conv_encoder((3,)), hidden_size=8, latent_size=6, bottleneck=2)
train_tiny = jax.jit(partial(TINY.apply, train=True))
evaluate_tiny = jax.jit(partial(TINY.apply, train=False))


@pytest.fixture(scope="module")
def images():
    return jax.random.uniform(jax.random.key(1), (6, 8, 8, 1))


@pytest.fixture(scope="module")
def variables(images):
    return jax.jit(TINY.init)(jax.random.key(0), images)


@pytest.fixture(scope="module")
def full_size():
    return jax.jit(simsiam(conv_encoder()).init)(
        jax.random.key(0), jnp.ones((1, 8, 8, 1))
    )


def flat(tree):
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("train", [False, True])
def test_shapes(key, side, train):
    network, x = (
        simsiam(conv_encoder()),
        jax.ShapeDtypeStruct((5, side, side, 1), jnp.float32),
    )
    variables = jax.eval_shape(network.init, key, x)
    (z, p), _ = jax.eval_shape(
        lambda v, x: network.apply(v, x, train=train), variables, x
    )
    assert z.shape == p.shape == (5, 256)


def test_parameters_are_those_of_the_paper(key):
    """28 pixels become 14, 7 and 3: 256 * 3 * 3 = 2304 inputs of the projector."""
    variables = jax.eval_shape(
        simsiam(conv_encoder()).init, key, jnp.ones((1, 28, 28, 1))
    )
    shapes = {name: leaf.shape for name, leaf in flat(variables["params"]).items()}
    kernels = [s for name, s in sorted(shapes.items()) if name.endswith("kernel")]
    assert kernels == [
        (4, 4, 1, 64),
        (4, 4, 64, 128),
        (4, 4, 128, 256),
        (2304, 256),
        (256, 256),
        (256, 16),
        (16, 256),
    ]
    biases = [s for name, s in sorted(shapes.items()) if name.endswith("bias")]
    # Five batch norms have a shift (z's has none), and all seven layers a bias.
    norms = [(64,), (128,), (256,), (256,), (16,)]
    assert biases == [*norms, (64,), (128,), (256,), (256,), (256,), (16,), (256,)]


def test_initialisation_fills_its_bounds(full_size):
    """Kernels and biases alike: uniform in +-1/sqrt(fan_in), as PyTorch draws them."""
    fan_in = {
        "Conv_0": 16,
        "Conv_1": 16 * 64,
        "Conv_2": 16 * 128,
        "Dense_0": 256,
        "Dense_1": 256,
        "Dense_2": 256,
        "Dense_3": 16,
    }
    for layer, count in fan_in.items():
        bound = 1 / np.sqrt(count)
        for name, values in flat(full_size["params"][layer]).items():
            values = np.asarray(values)
            assert np.abs(values).max() <= bound, (layer, name)
            # The furthest of n draws falls short by a share of about 1/n.
            assert np.abs(values).max() > (1 - 10 / values.size) * bound
            deviation = bound / np.sqrt(3)
            assert abs(values.mean()) < 5 * deviation / np.sqrt(values.size)
            if values.size > 100:
                np.testing.assert_allclose(values.std(), deviation, rtol=0.2)


def test_initialisation_draws_kernel_and_bias_apart(full_size):
    params = full_size["params"]
    leaves = [np.ravel(x)[:16] for x in jax.tree.leaves(params) if x.size >= 16]
    drawn = [x for x in leaves if np.ptp(x) > 0]
    for i, one in enumerate(drawn):
        for other in drawn[:i]:
            assert not np.allclose(one / np.ptp(one), other / np.ptp(other))


def test_z_is_standardised_over_the_batch_in_training(images, variables):
    (z, p), _ = train_tiny(variables, images)
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(z.var(axis=0), 1, rtol=2e-2)
    assert abs(p.mean(axis=0)).max() > 1e-2


def test_running_statistics_move_by_a_tenth(images, variables):
    """new = 0.9 old + 0.1 batch, from mean 0 and variance 1, and so once more."""
    _, once = train_tiny(variables, images)
    _, twice = train_tiny(once, images)
    conv = variables["params"]["Conv_0"]
    y = jax.lax.conv_general_dilated(
        images,
        conv["kernel"],
        (2, 2),
        [(1, 1), (1, 1)],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    y = np.asarray(y + conv["bias"][None, None, None]).reshape(-1, 3)
    mean, var = y.mean(axis=0), y.var(axis=0)
    first, second = (v["batch_stats"]["BatchNorm_0"] for v in (once, twice))
    np.testing.assert_allclose(first["mean"], 0.1 * mean, rtol=1e-4)
    np.testing.assert_allclose(first["var"], 0.9 + 0.1 * var, rtol=1e-4)
    np.testing.assert_allclose(second["mean"], 0.19 * mean, rtol=1e-4)
    np.testing.assert_allclose(second["var"], 0.81 + 0.19 * var, rtol=1e-4)
    for name, leaf in flat(variables["params"]).items():
        np.testing.assert_array_equal(flat(twice["params"])[name], leaf)


def test_a_masked_batch_is_its_subset(images, variables):
    """Outputs of the counted rows, running statistics and gradients."""
    mask = jnp.array([True, False, True, True, False, True])
    filler = jnp.where(mask[:, None, None, None], images, 7.0)

    def value(params, x, mask, rows):
        outputs, new = TINY.apply(
            {**variables, "params": params}, x, train=True, mask=mask
        )
        outputs = [y[rows] for y in outputs]
        total = sum(jnp.sum(y * jnp.cos(jnp.arange(4.0))[:, None]) for y in outputs)
        return total, (outputs, new["batch_stats"])

    gradient = jax.jit(jax.grad(value, has_aux=True))
    rows = np.nonzero(np.asarray(mask))[0]
    masked, (outputs, statistics) = gradient(variables["params"], filler, mask, rows)
    alone, (expected, alone_statistics) = gradient(
        variables["params"], images[rows], None, np.arange(4)
    )
    for actual, reference in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(actual, reference, atol=1e-5)
    for tree, reference in [(statistics, alone_statistics), (masked, alone)]:
        for name, leaf in flat(tree).items():
            np.testing.assert_allclose(
                leaf, flat(reference)[name], rtol=1e-4, atol=1e-4, err_msg=name
            )


def test_a_full_mask_is_no_mask(images, variables):
    (z, p), full = train_tiny(variables, images, mask=jnp.ones(6, bool))
    (z2, p2), none = train_tiny(variables, images)
    np.testing.assert_allclose(z, z2, atol=1e-6)
    np.testing.assert_allclose(p, p2, atol=1e-6)
    for name, leaf in flat(full).items():
        np.testing.assert_allclose(leaf, flat(none)[name], atol=1e-6)


def test_evaluation_changes_nothing_and_takes_examples_one_by_one(images, variables):
    _, variables = train_tiny(variables, images)
    (z, p), after = evaluate_tiny(variables, images)
    for name, leaf in flat(variables).items():
        np.testing.assert_array_equal(flat(after)[name], leaf)
    for i in range(len(images)):
        (one_z, one_p), _ = evaluate_tiny(variables, images[i : i + 1])
        np.testing.assert_allclose(one_z[0], z[i], atol=1e-5)
        np.testing.assert_allclose(one_p[0], p[i], atol=1e-5)


def test_images_too_small_for_the_network_are_named(key):
    """Three halvings leave nothing of 7 pixels but a kernel that does not fit."""
    with pytest.raises(ValueError, match="kernel"):
        jax.eval_shape(simsiam(conv_encoder()).init, key, jnp.ones((1, 7, 7, 1)))


def test_from_linen_passes_on_modules_without_batch_statistics(key):
    class Linear(nn.Module):
        @nn.compact
        def __call__(self, x, *, train, mask):
            return nn.Dense(2)(x)

    network, x = from_linen(Linear()), jnp.ones((3, 4))
    variables = network.init(key, x)
    outputs, after = network.apply(variables, x, train=True)
    kernel, bias = variables["params"]["Dense_0"].values()
    expected = np.ones((3, 4)) @ np.asarray(kernel) + np.asarray(bias)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5)
    assert after == variables
