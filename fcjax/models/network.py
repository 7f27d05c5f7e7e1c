"""From a Linen module to the pair of pure functions that algorithms use."""

from flax import linen as nn

from fcjax.types import Network


def from_linen(module: nn.Module) -> Network:
    """Wraps a Linen module as a pair of pure functions.

    Args:
        module: its call is `module(x, *, train, mask)`, of a batch [B, *F], whether it
            trains, and which examples [B] count in batch statistics, None for all.

    Returns:
        A `Network`. In training `apply` returns the variables with new batch
        statistics; in evaluation it uses the running ones and returns them unchanged.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> class Linear(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x, *, train, mask):
        ...         return nn.Dense(2)(x)
        >>> network, x = from_linen(Linear()), jnp.zeros((3, 6))
        >>> network.apply(network.init(jax.random.key(0), x), x, train=False)[0].shape
        (3, 2)
    """

    def init(key, x):
        return module.init(key, x, train=False, mask=None)

    def apply(variables, x, *, train, mask=None):
        if not train:
            return module.apply(variables, x, train=False, mask=None), variables
        outputs, updates = module.apply(
            variables, x, train=True, mask=mask, mutable=["batch_stats"]
        )
        return outputs, {**variables, **updates}

    return Network(init, apply)
