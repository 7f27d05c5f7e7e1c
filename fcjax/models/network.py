"""From a Linen module to the pair of pure functions that algorithms use."""

from flax import linen as nn

from fcjax.types import Network


def from_linen(module: nn.Module) -> Network:
    """Wraps a module whose call is `module(x, *, train, mask)`.

    Returns:
        A `Network`. In training `apply` returns the variables with new batch
        statistics; in evaluation it uses the running ones and returns them unchanged.
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
