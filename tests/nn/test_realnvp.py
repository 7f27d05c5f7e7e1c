import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.nn import realnvp
from fcjax.nn.generative import first_half


@pytest.mark.parametrize("shape", [(5,), (3, 3, 2)])
def test_a_flow_begins_as_the_identity_and_is_inverted(key, shape):
    """Its log-determinants are those of the Jacobian."""
    flow = realnvp(shape, hidden=(8, 8))
    x = jax.random.normal(key, (4, *shape))

    @jax.jit
    def both_ways(variables):
        def one(example):
            return flow.forward(variables, example[None])[0][0]

        z, log_det = flow.forward(variables, x)
        return z, log_det, flow.inverse(variables, z), jax.vmap(jax.jacfwd(one))(x)

    variables, draw = flow.init(key), np.random.default_rng(1)
    z, log_det, *_ = both_ways(variables)
    np.testing.assert_array_equal(z, x.reshape(4, -1))
    np.testing.assert_array_equal(log_det, np.zeros(4))
    noisy = jax.tree.map(lambda p: p + 0.3 * draw.normal(size=p.shape), variables)
    z, log_det, found, jacobians = both_ways(jax.tree.map(jnp.float32, noisy))
    assert np.abs(z - x.reshape(4, -1)).max() > 0.5
    np.testing.assert_allclose(found, x, atol=1e-4)
    size = z.shape[1]
    expected = np.linalg.slogdet(np.reshape(jacobians, (4, size, size)))[1]
    np.testing.assert_allclose(log_det, expected, atol=1e-4)


def test_codes_by_hand(key):
    """Eq. 4 and 9 in NumPy: even features are kept first, then odd ones."""
    flow = realnvp((5,), num_couplings=3, hidden=(7, 6))
    draw = np.random.default_rng(0)
    variables = jax.tree.map(
        lambda leaf: 0.3 * draw.normal(size=leaf.shape), jax.eval_shape(flow.init, key)
    )
    x = draw.normal(size=(4, 5))
    z, total = x.copy(), 0.0
    for i in range(3):
        layers = jax.tree.map(lambda p, i=i: p[i], variables["params"])
        kept = np.arange(5) % 2 == i % 2
        h = np.where(kept, z, 0)
        for name in ("Dense_0", "Dense_1"):
            h = np.maximum(h @ layers[name]["kernel"] + layers[name]["bias"], 0)
        raw, shift = (
            h @ layers[name]["kernel"] + layers[name]["bias"]
            for name in ("scale", "shift")
        )
        scale = layers["factor"] * np.tanh(raw)
        z = np.where(kept, z, z * np.exp(scale) + shift)
        total += scale[:, ~kept].sum(axis=1)
    found, log_det = flow.forward(*jax.tree.map(jnp.float32, (variables, x)))
    np.testing.assert_allclose(found, z, atol=1e-5)
    np.testing.assert_allclose(log_det, total, atol=1e-5)


def test_halves_take_turns():
    np.testing.assert_array_equal(first_half((5,)), [1, 0, 1, 0, 1])
    np.testing.assert_array_equal(first_half((2, 3, 1)), [1, 0, 1, 0, 1, 0])
    np.testing.assert_array_equal(first_half((2, 2, 1)), [1, 0, 0, 1])
    np.testing.assert_array_equal(first_half((1, 2, 2)), [1, 1, 0, 0])


def test_the_papers_layers(key):
    params = jax.eval_shape(realnvp((28, 28, 1)).init, key)["params"]
    params.pop("factor")
    assert {name: layer["kernel"].shape for name, layer in params.items()} == {
        "Dense_0": (6, 784, 512),
        "Dense_1": (6, 512, 512),
        "Dense_2": (6, 512, 512),
        "scale": (6, 512, 784),
        "shift": (6, 512, 784),
    }
