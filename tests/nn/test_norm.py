from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fcjax.nn import batch_norm, from_linen


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
