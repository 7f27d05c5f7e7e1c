"""What the term is of batches by hand, its bounds, and what changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fcjax import losses
from fcjax.federated import clients
from fcjax.parallel.exact import compiler_options


def decorrelation(z):
    return losses.decorrelation(jnp.asarray(z))


def standardised(z):
    z = z - z.mean(axis=0)
    return z / z.std(axis=0)


def white(count, size, seed=0):
    """Centred columns of norm sqrt(count), each at a right angle to the others."""
    x = np.random.default_rng(seed).normal(size=(count, size))
    x -= x.mean(axis=0)
    u, _, vt = np.linalg.svd(x, full_matrices=False)
    return np.sqrt(count) * u @ vt


def participation(z):
    values = np.linalg.eigvalsh(np.cov(z.T, bias=True))
    return values.sum() ** 2 / (values**2).sum()


def test_it_is_the_inverse_of_an_effective_rank():
    rng = np.random.default_rng(1)
    assert float(decorrelation(white(64, 16))) == pytest.approx(1 / 16, rel=1e-5)
    line = standardised(rng.normal(size=(64, 1)) * rng.choice([-1, 1], 16))
    assert float(decorrelation(line)) == pytest.approx(1, rel=1e-5)
    mixed = standardised(rng.normal(size=(64, 3)) @ rng.normal(size=(3, 16)))
    assert float(decorrelation(mixed)) == pytest.approx(1 / participation(mixed), 1e-5)


@pytest.mark.parametrize("size", [5, 40, 256])
def test_a_batch_of_unit_variances_has_a_floor(size):
    """A batch of 128 lies in 127 directions at most."""
    floor = max(1 / size, 1 / 127)
    for seed in range(3):
        z = standardised(np.random.default_rng(seed).normal(size=(128, size)))
        assert floor * 0.9999 <= float(decorrelation(z)) <= 1


def test_through_a_batch_norm_the_diagonal_and_the_scale_are_without_effect():
    """The gradient is that of the off-diagonal correlations alone, and that of a mean
    that is a constant."""
    z = jnp.array(np.random.default_rng(3).normal(size=(20, 4)) @ np.diag([1, 2, 3, 4]))

    def normed(z):
        z = z - z.mean(axis=0, keepdims=True)
        return z / jnp.sqrt((z**2).mean(axis=0, keepdims=True))

    def off_diagonal(z):
        z = normed(z)
        correlation = z.T @ z / len(z)
        return jnp.sum((correlation * (1 - jnp.eye(4))) ** 2) / 16

    def constant_mean(z):
        z = z - jax.lax.stop_gradient(z.mean(axis=0, keepdims=True))
        return jnp.sum((z.T @ z / len(z)) ** 2) / 16

    full = jax.grad(lambda z: decorrelation(normed(z)))(z)
    np.testing.assert_allclose(full, jax.grad(off_diagonal)(z), rtol=1e-4, atol=1e-6)
    of_z = jax.grad(decorrelation)(z)
    np.testing.assert_allclose(of_z, jax.grad(constant_mean)(z), rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="clients go side by side")
@pytest.mark.skipif(jax.device_count() < 2, reason="a single device")
def test_it_has_the_same_bits_on_however_many_devices():
    def found(num_devices):
        mesh = jax.make_mesh((num_devices,), ("client",), devices=devices[:num_devices])
        there = NamedSharding(mesh, P("client"))
        spread = jax.shard_map(each, mesh=mesh, out_specs=P("client"), check_vma=False)
        options = compiler_options("cpu", num_bytes=0)
        own = jax.device_put((z, mask), there)
        return jax.tree.leaves(jax.jit(spread, compiler_options=options)(*own))

    def each(*own):
        def loss(z, mask):
            return losses.decorrelation(z, mask=mask)

        return clients.for_each(jax.value_and_grad(loss), *own)

    devices = jax.devices()
    z = np.random.default_rng(0).normal(size=(8, 45, 256)).astype(np.float32)
    mask = np.arange(45) < np.arange(30, 38)[:, None]
    expected = found(1)
    for num_devices in (2, 4)[: len(devices) // 2]:
        for x, y in zip(found(num_devices), expected, strict=True):
            np.testing.assert_array_equal(x, y)
