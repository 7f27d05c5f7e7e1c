"""What the term is of batches by hand, its bounds, and what changes nothing."""

from functools import partial

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


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="clients go side by side")
@pytest.mark.skipif(jax.device_count() < 2, reason="a single device")
def test_it_has_the_same_bits_on_however_many_devices():
    z = np.random.default_rng(0).normal(size=(8, 45, 256)).astype(np.float32)
    mask = np.arange(45) < np.arange(30, 38)[:, None]
    step = jax.value_and_grad(lambda z, mask: losses.decorrelation(z, mask=mask))

    def found(devices):
        mesh = jax.make_mesh((len(devices),), ("client",), devices=devices)
        spread = jax.shard_map(
            partial(clients.for_each, step),
            mesh=mesh,
            out_specs=P("client"),
            check_vma=False,
        )
        own = jax.device_put((z, mask), NamedSharding(mesh, P("client")))
        options = compiler_options("cpu", num_bytes=0)
        return jax.jit(spread, compiler_options=options)(*own)

    expected = found(jax.devices()[:1])
    for count in (2, 4)[: jax.device_count() // 2]:
        several = found(jax.devices()[:count])
        jax.tree.map(np.testing.assert_array_equal, several, expected)
