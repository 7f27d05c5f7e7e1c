"""Batch norm over the examples that count."""

from flax import linen as nn
from jaxtyping import Array, Bool, Float


def batch_norm(
    x: Float[Array, "..."],
    axis: int,
    *,
    train: bool,
    mask: Bool[Array, " B"] | None,
    affine: bool = True,
    scale_init: nn.initializers.Initializer = nn.initializers.ones,
) -> Float[Array, "..."]:
    """A layer of the compact module that calls it, in PyTorch's defaults.

    Statistics are over all axes but the features', and over all examples if the mask
    is None. Running ones move by a tenth in training and take the biased variance,
    where PyTorch takes the unbiased one.

    Args:
        x: features first, [C, B, ...], or last, [B, ..., C].
        axis: where the features are, 0 or -1.
        train: whether to use, and to learn from, the batch's statistics.
        mask: the examples that count in them.
        affine: whether a learnt scale and shift follow.
        scale_init: of that scale; zeros let a residual block begin as the identity.

    Returns:
        The normalised batch, examples that do not count included.
    """
    if axis not in (0, -1):
        raise ValueError(f"axis must be 0 or -1, got {axis}")
    norm = nn.BatchNorm(
        use_running_average=not train,
        axis=axis,
        momentum=0.9,
        epsilon=1e-5,
        use_fast_variance=False,
        use_scale=affine,
        use_bias=affine,
        scale_init=scale_init,
    )
    if mask is not None:
        shape = [1] * x.ndim
        shape[1 if axis == 0 else 0] = -1
        mask = mask.reshape(shape)
    return norm(x, mask=mask)
