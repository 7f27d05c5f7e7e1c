"""PyTorch's default initialisation, which the papers' networks start from."""

from functools import partial

import jax
from flax import linen as nn


def fan_in_uniform(fan_in: int):
    """Returns an initialiser: uniform in +-1/sqrt(fan_in), for weights and biases."""
    bound = fan_in**-0.5

    def init(key, shape, dtype="float32"):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


class Dense(nn.Module):
    """A linear layer on [B, F], initialised as in PyTorch."""

    features: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, x):
        init = fan_in_uniform(x.shape[-1])
        layer = partial(nn.Dense, kernel_init=init, bias_init=init)
        return layer(self.features, use_bias=self.use_bias)(x)
