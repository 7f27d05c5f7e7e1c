"""Batch norm over the examples that count."""

from flax import linen as nn
from jaxtyping import Array, Bool, Float


def batch_norm(
    x: Float[Array, "B ... C"],
    *,
    train: bool,
    mask: Bool[Array, " B"] | None,
    affine: bool = True,
    scale_init: nn.initializers.Initializer = nn.initializers.ones,
) -> Float[Array, "B ... C"]:
    """A layer of the compact module that calls it, in PyTorch's defaults.

    Statistics are over all axes but the features', and over all examples if the mask
    is None. Running ones move by a tenth in training and take the biased variance,
    where PyTorch takes the unbiased one.

    Args:
        x: a batch, its features last.
        train: whether to use, and to learn from, the batch's statistics.
        mask: the examples that count in them.
        affine: whether a learnt scale and shift follow.
        scale_init: of that scale; zeros let a residual block begin as the identity.

    Returns:
        The normalised batch, examples that do not count included.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> class Norm(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x, *, train, mask):
        ...         return batch_norm(x, train=train, mask=mask)
        >>> x, mask = jnp.array([[1.0], [3.0], [9.0]]), jnp.array([True, True, False])
        >>> y, _ = Norm().init_with_output(jax.random.key(0), x, train=True, mask=mask)
        >>> print(y[:, 0].round())  # the first two have mean 2 and variance 1
        [-1.  1.  7.]
    """
    norm = nn.BatchNorm(
        use_running_average=not train,
        momentum=0.9,
        epsilon=1e-5,
        use_fast_variance=False,
        use_scale=affine,
        use_bias=affine,
        scale_init=scale_init,
    )
    if mask is not None:
        mask = mask.reshape(-1, *(1,) * (x.ndim - 1))
    return norm(x, mask=mask)
