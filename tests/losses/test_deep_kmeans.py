"""DCN's loss by hand, against NumPy and PyTorch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from fcjax.losses import deep_kmeans

MASK = np.array([True, False, True, True, False, False, True])


@pytest.fixture
def batch(key):
    """Seven examples, their reconstructions, codes and centroids."""
    shapes = [(7, 5), (7, 5), (7, 3), (7, 3)]
    keys = jax.random.split(key, len(shapes))
    return tuple(jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True))


def equation_3(x, reconstructions, z, centroids, weight):
    """SDA-FDC's equation 3 over the number of examples."""
    rows = zip(x, reconstructions, z, centroids, strict=True)
    return np.mean(
        [
            np.linalg.norm(np.float64(x - r)) ** 2
            + weight / 2 * np.linalg.norm(np.float64(z - c)) ** 2
            for x, r, z, c in rows
        ]
    )


def test_by_hand():
    x, reconstructions = jnp.array([[1.0, 2.0], [0.0, 0.0]]), jnp.zeros((2, 2))
    z, centroids = jnp.array([[3.0], [1.0]]), jnp.array([[1.0], [4.0]])
    # Squares of 5 and 0 for examples, of 4 and 9 for codes.
    for weight, expected in ((0.0, 5 / 2), (1.0, (5 + 2 + 4.5) / 2), (20.0, 67.5)):
        loss = deep_kmeans(x, reconstructions, z, centroids, cluster_weight=weight)
        np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.parametrize("weight", [0.0, 0.5, 20.0])
def test_value_is_that_of_the_equation(batch, weight):
    loss = deep_kmeans(*batch, cluster_weight=weight)
    np.testing.assert_allclose(loss, equation_3(*batch, weight), rtol=1e-5)


@pytest.mark.parametrize("lbd", [0.05, 1.0])
def test_value_and_gradients_are_those_of_the_code_of_dcn(batch, lbd):
    """Over lbd, as it weighs the reconstruction and we the clusters."""
    torch = pytest.importorskip("torch")
    x, centroids = (torch.tensor(np.asarray(batch[i])) for i in (0, 3))
    reconstructions, z = (
        torch.tensor(np.asarray(batch[i]), requires_grad=True) for i in (1, 2)
    )
    expected = ((z - centroids) ** 2).sum(dim=1).mean()
    expected = expected + lbd * ((x - reconstructions) ** 2).sum(dim=1).mean()
    (expected / lbd).backward()
    value, gradients = jax.value_and_grad(
        partial(deep_kmeans, cluster_weight=2 / lbd), argnums=(1, 2)
    )(*batch)
    np.testing.assert_allclose(value, expected.item() / lbd, rtol=1e-5)
    np.testing.assert_allclose(gradients[0], reconstructions.grad.numpy(), atol=1e-6)
    np.testing.assert_allclose(gradients[1], z.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_centroids_are_held_fixed(batch):
    gradients = jax.grad(partial(deep_kmeans, cluster_weight=2.0), (2, 3))(*batch)
    expected = 2 * (np.asarray(batch[2]) - np.asarray(batch[3])) / 7
    np.testing.assert_allclose(gradients[0], expected, rtol=1e-5)
    np.testing.assert_array_equal(gradients[1], 0)


def test_no_weight_is_the_auto_encoders_loss(batch):
    x, reconstructions = batch[:2]
    value, gradient = jax.value_and_grad(deep_kmeans, argnums=2)(
        *batch, cluster_weight=0.0
    )
    expected = 5 * np.mean((np.asarray(x) - np.asarray(reconstructions)) ** 2)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_array_equal(gradient, 0)


def test_gradients_are_differences(batch):
    x, reconstructions, z, centroids = batch
    # check_grads itself passes NumPy arrays.
    check_grads(
        lambda r, z: deep_kmeans(
            x, jnp.asarray(r), jnp.asarray(z), centroids, cluster_weight=3.0
        ),
        (reconstructions, z),
        order=1,
        modes=["rev"],
        atol=1e-2,
        rtol=1e-2,
    )


def test_same_under_jit_and_vmap(batch):
    both = jax.value_and_grad(partial(deep_kmeans, cluster_weight=3.0), argnums=(1, 2))
    doubled = tuple(2 * array for array in batch)
    expected = [both(*batch), both(*doubled)]
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(close, jax.jit(both)(*batch), expected[0])
    pairs = [jnp.stack(pair) for pair in zip(batch, doubled, strict=True)]
    stacked = jax.jit(jax.vmap(both))(*pairs)
    for i in range(2):
        jax.tree.map(lambda x, y, i=i: close(x[i], y), stacked, expected[i])


def test_weights_may_be_swept(batch):
    swept = jax.jit(jax.vmap(lambda w: deep_kmeans(*batch, cluster_weight=w)))
    weights = (0.0, 0.5, 20.0)
    expected = [equation_3(*batch, weight) for weight in weights]
    np.testing.assert_allclose(swept(jnp.array(weights)), expected, rtol=1e-5)


def test_lower_precision_is_computed_in_float32(batch):
    """In float16 squares of 300 would overflow."""
    halves = [(300 * array).astype(jnp.float16) for array in batch]
    loss = deep_kmeans(*halves, cluster_weight=3.0)
    assert loss.dtype == jnp.float32
    wide = [np.asarray(array, np.float32) for array in halves]
    np.testing.assert_allclose(loss, equation_3(*wide, 3.0), rtol=1e-5)


@pytest.mark.parametrize("spoiler", [np.nan, np.inf, 1e30])
def test_masked_examples_may_hold_anything(batch, spoiler):
    mask = jnp.asarray(MASK)
    spoilt = [jnp.where(mask[:, None], array, spoiler) for array in batch]
    loss = partial(deep_kmeans, cluster_weight=3.0)
    value, gradients = jax.value_and_grad(loss, argnums=(0, 1, 2, 3))(
        *spoilt, mask=mask
    )
    subset = [array[MASK] for array in batch]
    references = jax.grad(loss, argnums=(0, 1, 2, 3))(*subset)
    np.testing.assert_allclose(value, equation_3(*subset, 3.0), rtol=1e-5)
    for gradient, reference in zip(gradients, references, strict=True):
        np.testing.assert_allclose(gradient[MASK], reference, atol=1e-6)
        np.testing.assert_array_equal(gradient[~MASK], 0)


def test_nothing_left_is_zero(batch):
    value, gradients = jax.value_and_grad(deep_kmeans, argnums=(1, 2))(
        *batch, cluster_weight=3.0, mask=jnp.zeros(7, bool)
    )
    assert value == 0
    for gradient in gradients:
        np.testing.assert_array_equal(gradient, 0)
