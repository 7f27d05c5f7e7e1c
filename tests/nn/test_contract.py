"""What holds of every network: its layers, its modes, its masks, its clients."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.nn.layers import NETWORKS, Layers, in_numpy

EVERYBODY, COUNTED = np.ones(6, bool), np.array([1, 1, 0, 1, 0, 1], bool)
WEIGHTS = np.linspace(-1, 1, 6)
close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)


@cache
def prepared(name):
    """Variables as if trained, a batch, and steps of training and evaluation."""
    network, takes, _ = NETWORKS[name]
    x = jax.random.uniform(jax.random.key(1), (6, *takes))
    draw = np.random.default_rng(2)

    def drawn(path, leaf):
        if path[-1].key in ("scale", "var"):
            return jnp.asarray(draw.uniform(0.5, 2, leaf.shape), leaf.dtype)
        return jnp.asarray(0.3 * draw.standard_normal(leaf.shape), leaf.dtype)

    @jax.jit
    def step(variables, x, mask, weights):
        """Outputs, new variables and the gradients of a sum over the batch."""

        def loss(params, x):
            both = {**variables, "params": params}
            outputs, new = network.apply(both, x, train=True, mask=mask)
            total = 0.0
            for y in jax.tree.leaves(outputs):
                y = jnp.tensordot(weights, y, 1).ravel()
                total += jnp.cos(jnp.arange(y.size)) @ y
            return total, (outputs, new)

        both = jax.grad(loss, argnums=(0, 1), has_aux=True)
        gradients, (outputs, new) = both(variables["params"], x)
        return outputs, new, gradients

    variables = jax.eval_shape(network.init, jax.random.key(0), x)
    variables = jax.tree_util.tree_map_with_path(drawn, variables)
    return variables, x, step, jax.jit(partial(network.apply, train=False))


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_are_those_of_the_layers(name):
    ops = in_numpy()
    variables, x, step, evaluate = prepared(name)
    trained, *_ = step(variables, x, EVERYBODY, WEIGHTS)
    for outputs, train in ((trained, True), (evaluate(variables, x)[0], False)):
        layers = Layers(ops, jax.tree.map(ops.array, variables), train)
        expected = layers.outputs(ops.array(x), NETWORKS[name][2])
        for y, reference in zip(jax.tree.leaves(outputs), expected, strict=True):
            assert (y.shape, y.dtype) == (tuple(reference.shape), np.float32)
            assert np.ptp(y) > 0.01
            close(y, reference)


@pytest.mark.parametrize("name", NETWORKS)
def test_training_moves_all_statistics_and_evaluation_nothing(name):
    variables, x, step, evaluate = prepared(name)
    outputs, after, gradients = step(variables, x, EVERYBODY, WEIGHTS)
    jax.tree.map(np.testing.assert_array_equal, after["params"], variables["params"])
    pairs = zip(*map(jax.tree.leaves, (after, variables)), strict=True)
    moved = sum(bool((a != b).any()) for a, b in pairs)
    assert moved == len(jax.tree.leaves(variables.get("batch_stats")))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))

    expected, after = evaluate(variables, x)
    jax.tree.map(np.testing.assert_array_equal, after, variables)
    if not moved:
        jax.tree.map(np.testing.assert_array_equal, outputs, expected)
    # Examples are taken one by one.
    y, _ = evaluate(variables, x.at[1:].mul(0.5))
    jax.tree.map(lambda a, b: close(a[0], b[0]), y, expected)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_masked_batch_is_its_subset(name):
    """Outputs, statistics and gradients; forward, NaNs do not count either."""
    variables, x, step, _ = prepared(name)
    rows, weights = COUNTED.reshape(-1, *[1] * (x.ndim - 1)), COUNTED * WEIGHTS
    expected, alone, (of_params, of_x) = step(
        variables, x[COUNTED], None, WEIGHTS[COUNTED]
    )
    for filler in (50.0, np.nan):
        filled = jnp.where(rows, x, filler)
        outputs, masked, gradients = step(variables, filled, COUNTED, weights)
        jax.tree.map(lambda a, b: close(a[COUNTED], b), outputs, expected)
        jax.tree.map(close, masked, alone)
        if filler == 50:
            jax.tree.map(partial(close, atol=1e-4), gradients[0], of_params)
            close(gradients[1][COUNTED], of_x, atol=1e-4)
            np.testing.assert_array_equal(gradients[1][~COUNTED], 0)


@pytest.mark.parametrize("name", ["codes", "images", "basic"])
def test_clients_with_their_own_weights(name):
    variables, x, step, _ = prepared(name)
    clients = [variables, jax.tree.map(lambda leaf: 1.1 * leaf, variables)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *clients)
    arguments = (x, EVERYBODY, WEIGHTS)
    together = jax.jit(jax.vmap(lambda own: step(own, *arguments)))(stacked)
    alone = [step(own, *arguments) for own in clients]
    jax.tree.map(
        lambda a, *b: close(a, np.stack(b), rtol=1e-3, atol=1e-4), together, *alone
    )
