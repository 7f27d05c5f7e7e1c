import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.models import autoencoder


def shapes(network, size):
    x = jax.ShapeDtypeStruct((1, size), jnp.float32)
    variables = jax.eval_shape(network.init, jax.random.key(0), x)
    assert set(variables) == {"params"}
    layers = [variables["params"][f"Dense_{i}"]["Dense_0"] for i in range(4)]
    assert len(variables["params"]) == 4
    for layer in layers:
        assert layer["bias"].shape == layer["kernel"].shape[1:]
    return [layer["kernel"].shape for layer in layers]


def test_the_papers_layers():
    encoder, decoder = autoencoder(784)
    assert shapes(encoder, 784) == [(784, 500), (500, 500), (500, 2000), (2000, 10)]
    assert shapes(decoder, 10) == [(10, 2000), (2000, 500), (500, 500), (500, 784)]


@pytest.mark.parametrize(("part", "size", "out"), [(0, 7, 2), (1, 2, 7)])
def test_outputs_by_hand(key, part, size, out):
    """ReLU between layers, none after the last; `train` and `mask` do nothing."""
    network = autoencoder(7, widths=(6, 5), latent_size=2)[part]
    x = jax.random.normal(key, (4, size))
    variables = network.init(jax.random.key(1), x[:1])
    expected = np.asarray(x, float)
    for i in range(3):
        layer = variables["params"][f"Dense_{i}"]["Dense_0"]
        expected = expected @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"])
        if i < 2:
            expected = np.maximum(expected, 0)
    assert expected.shape == (4, out)
    assert (expected < 0).any()

    mask = jnp.array([True, False, True, False])
    for options in [{"train": False}, {"train": True, "mask": mask}]:
        y, after = network.apply(variables, x, **options)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
        jax.tree.map(np.testing.assert_array_equal, after, variables)


def test_weights_start_as_in_pytorch(key):
    """Uniform in +-1/sqrt(fan_in), biases as well."""
    encoder, _ = autoencoder(25, widths=(400,), latent_size=300)
    params = encoder.init(key, jnp.ones((1, 25)))["params"]
    for name, bound in [("Dense_0", 1 / 5), ("Dense_1", 1 / 20)]:
        for leaf in params[name]["Dense_0"].values():
            assert 0.9 * bound < float(abs(leaf).max()) <= bound
            # Of |x|, uniform between 0 and the bound: four standard errors.
            mean = float(abs(leaf).mean()) / bound
            assert abs(mean - 0.5) < 4 / (12 * leaf.size) ** 0.5
