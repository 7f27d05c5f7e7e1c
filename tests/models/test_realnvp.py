import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax import losses
from fcjax.models import realnvp
from fcjax.models.realnvp import first_half

SHAPES = [(5,), (3, 3, 2)]


def drawn(flow, key, scale=0.3):
    """Variables of which none is zero."""
    leaves, tree = jax.tree.flatten(flow.init(key))
    keys = jax.random.split(jax.random.fold_in(key, 1), len(leaves))
    noisy = [
        x + scale * jax.random.normal(key, x.shape)
        for key, x in zip(keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(tree, noisy)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_flow_begins_as_the_identity(key, shape):
    flow = realnvp(shape, hidden=(8, 8, 8))
    x = jax.random.normal(key, (4, *shape))
    z, log_det = flow.forward(flow.init(key), x)
    np.testing.assert_array_equal(z, x.reshape(4, -1))
    np.testing.assert_array_equal(log_det, np.zeros(4))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_inverse_finds_the_examples(key, shape):
    flow = realnvp(shape, hidden=(16, 16, 16))
    variables = drawn(flow, key, scale=0.1)
    x = jax.random.normal(key, (50, *shape))
    z, _ = flow.forward(variables, x)
    assert np.abs(z - x.reshape(50, -1)).max() > 0.5
    np.testing.assert_allclose(flow.inverse(variables, z), x, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_log_determinants_are_those_of_the_jacobian(key, shape):
    flow = realnvp(shape, hidden=(8, 8, 8))
    variables = drawn(flow, key)
    x = jax.random.normal(key, (4, *shape))
    _, log_det = flow.forward(variables, x)
    for one, found in zip(x, log_det, strict=True):
        jacobian = jax.jacfwd(lambda y: flow.forward(variables, y[None])[0][0])(one)
        matrix = np.asarray(jacobian, float).reshape(one.size, -1)
        assert abs(found) > 0.1
        np.testing.assert_allclose(found, np.linalg.slogdet(matrix)[1], atol=1e-4)


def test_codes_by_hand(key):
    """Eq. 4 and 9 in NumPy: even features are kept first, then odd ones."""
    flow = realnvp((5,), num_couplings=3, hidden=(7, 6))
    variables = drawn(flow, key)
    x = np.asarray(jax.random.normal(key, (4, 5)), float)
    z, total = x.copy(), 0.0
    for i in range(3):
        layers = jax.tree.map(lambda p, i=i: np.asarray(p[i], float), variables)
        layers = layers["params"]
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
    found, log_det = flow.forward(variables, jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(found, z, atol=1e-5)
    np.testing.assert_allclose(log_det, total, atol=1e-5)


def test_a_density_integrates_to_one(key):
    flow = realnvp((2,), hidden=(16, 16, 16))
    variables = drawn(flow, key, scale=0.2)
    axis = np.linspace(-15, 15, 601)
    places = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    x = jnp.asarray(places, jnp.float32)
    density = np.exp(losses.flow_log_likelihood(*flow.forward(variables, x)))
    normal = np.exp(-(places**2).sum(axis=1) / 2) / (2 * np.pi)
    assert np.abs(density - normal).max() > 0.05
    assert density.sum() * (axis[1] - axis[0]) ** 2 == pytest.approx(1, abs=1e-2)


def test_halves_take_turns():
    np.testing.assert_array_equal(first_half((5,)), [1, 0, 1, 0, 1])
    np.testing.assert_array_equal(first_half((2, 3, 1)), [1, 0, 1, 0, 1, 0])
    np.testing.assert_array_equal(first_half((2, 2, 1)), [1, 0, 0, 1])
    np.testing.assert_array_equal(first_half((1, 2, 2)), [1, 1, 0, 0])


def test_the_papers_layers():
    variables = jax.eval_shape(realnvp((28, 28, 1)).init, jax.random.key(0))
    kernels = {
        name: layer["kernel"].shape
        for name, layer in variables["params"].items()
        if name != "factor"
    }
    assert kernels == {
        "Dense_0": (6, 784, 512),
        "Dense_1": (6, 512, 512),
        "Dense_2": (6, 512, 512),
        "scale": (6, 512, 784),
        "shift": (6, 512, 784),
    }


@pytest.mark.parametrize(
    ("shape", "options", "said"),
    [
        ((5,), {"num_couplings": 1}, "num_couplings must be at least 2, got 1"),
        ((1,), {}, "two features or pixels"),
        ((1, 1, 3), {}, "two features or pixels"),
        ((8, 8), {}, "shape is"),
    ],
)
def test_what_has_no_halves_is_refused(shape, options, said):
    with pytest.raises(ValueError, match=said):
        realnvp(shape, **options)
