"""RealNVP: a density that can be evaluated exactly, sampled and inverted.

Dinh, Sohl-Dickstein, Bengio: Density estimation using Real NVP (ICLR 2017,
https://arxiv.org/abs/1605.08803), Eq. 4 to 9, at a single scale, as UIFCA has it:
FedCRef's footnote 3 gives six affine couplings with alternating checkerboard masks, the
scale through tanh and the shift linear, both from one network of three hidden layers.
[choice] Hidden kernels start as Glorot's uniform, biases from 0; the scale's tanh is
multiplied by a learned factor a feature, from 1; the last layers start from 0, so that
a flow begins as the identity.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax
from jaxtyping import Array, Bool, Float

from fcjax.types import PRNGKey, PyTree

GLOROT = nn.initializers.glorot_uniform()
ZEROS = nn.initializers.zeros


class Flow(NamedTuple):
    """An invertible network as pure functions.

    `variables` holds `params` alone, its couplings stacked on a leading axis.

    Examples:
        >>> flow = realnvp((2,), hidden=(4,))
        >>> x = jnp.array([[3.0, -1.0]])
        >>> variables = flow.init(jax.random.key(0))
        >>> print(flow.inverse(variables, flow.forward(variables, x)[0]))
        [[ 3. -1.]]
    """

    init: Callable[[PRNGKey], PyTree]
    """(key) -> variables."""
    forward: Callable[
        [PyTree, Float[Array, "B *F"]], tuple[Float[Array, "B D"], Float[Array, "B"]]
    ]
    """(variables, x) -> the codes z, flat, and log |det dz/dx| of each example."""
    inverse: Callable[[PyTree, Float[Array, "B D"]], Float[Array, "B *F"]]
    """(variables, z) -> x."""


def realnvp(
    shape: Sequence[int],
    *,
    num_couplings: int = 6,
    hidden: Sequence[int] = (512, 512, 512),
) -> Flow:
    """Builds the flow of examples of this shape.

    Args:
        shape: (F,) of vectors, whose even and odd features take turns, or (H, W, C) of
            images, whose pixels do by a checkerboard, all channels alike.
        num_couplings: how often one half is scaled and shifted by what the other says.
        hidden: widths of the ReLU layers that say it.

    Returns:
        The flow between examples [B, *shape] of any value and codes [B, D], D the
        product of the shape; `forward` also returns the log-determinants [B].

    Raises:
        ValueError: with less than two couplings a half would stay as it is; with less
            than two features or pixels there are no halves.

    Examples:
        >>> flow = realnvp((2,), hidden=(4,))
        >>> variables = flow.init(jax.random.key(0))
        >>> z, log_det = flow.forward(variables, jnp.array([[3.0, -1.0]]))
        >>> print(z, log_det)  # it begins as the identity
        [[ 3. -1.]] [0.]
    """
    if num_couplings < 2:
        raise ValueError(f"num_couplings must be at least 2, got {num_couplings}")
    even = first_half(shape)
    turns = np.arange(num_couplings)[:, None] % 2 == 0
    kept_halves = jnp.asarray(turns == even[None])
    conditioner = Conditioner(tuple(hidden), len(even))

    def init(key):
        x = jnp.zeros((1, len(even)))
        keys = jax.random.split(key, num_couplings)
        return jax.vmap(lambda key: conditioner.init(key, x))(keys)

    def affine(coupling, kept, x):
        """Of the half that changes, from the half that is kept."""
        outputs: Any = conditioner.apply(coupling, jnp.where(kept[None], x, 0))
        scale, shift = outputs
        return jnp.where(kept[None], 0, scale), jnp.where(kept[None], 0, shift)

    # A scan: unrolled, the couplings of K flows take long to compile.
    def forward(variables, x):
        def couple(carry, each):
            (z, log_det), (coupling, kept) = carry, each
            scale, shift = affine(coupling, kept, z)
            return (z * jnp.exp(scale) + shift, log_det + scale.sum(axis=1)), None

        begun = (x.reshape(len(x), -1), jnp.zeros(len(x)))
        return lax.scan(couple, begun, (variables, kept_halves))[0]

    def inverse(variables, z):
        def uncouple(x, each):
            coupling, kept = each
            scale, shift = affine(coupling, kept, x)
            return (x - shift) * jnp.exp(-scale), None

        x, _ = lax.scan(uncouple, z, (variables, kept_halves), reverse=True)
        return x.reshape(-1, *shape)

    return Flow(init, forward, inverse)


def first_half(shape: Sequence[int]) -> Bool[np.ndarray, "D"]:
    """Returns which features, flat, the first coupling keeps.

    Raises:
        ValueError: the shape is of neither vectors nor images, or has only one half.
    """
    if len(shape) not in (1, 3):
        raise ValueError(f"a flow's shape is (F,) or (H, W, C), got {tuple(shape)}")
    places = np.indices(shape[:2] if len(shape) == 3 else shape).sum(axis=0)
    if places.size < 2:
        raise ValueError(f"a flow has two features or pixels or more, got {shape}")
    channels = math.prod(shape) // places.size
    return np.repeat(places.ravel() % 2 == 0, channels)


class Conditioner(nn.Module):
    """The scale, as a logarithm, and the shift [B, D] that x [B, D] asks for."""

    widths: tuple[int, ...]
    features: int

    @nn.compact
    def __call__(self, x):
        for width in self.widths:
            x = jax.nn.relu(nn.Dense(width, kernel_init=GLOROT)(x))
        scale = nn.Dense(self.features, kernel_init=ZEROS, name="scale")(x)
        shift = nn.Dense(self.features, kernel_init=ZEROS, name="shift")(x)
        factor = self.param("factor", nn.initializers.ones, (self.features,))
        return factor[None] * jnp.tanh(scale), shift
