"""How well an auto-encoder knows each example, as a pure function."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def reconstruction_error(
    x: Float[Array, "B *F"], reconstructions: Float[Array, "B *F"]
) -> Float[Array, "B"]:
    """The squared error of each example, summed over its features.

    Summed over examples it is |X - X^|_F^2, twice the first term of FDSC's equation 4.

    Args:
        x: examples of any shape.
        reconstructions: the decoder's outputs.

    Returns:
        float32 [B], at least 0; no row depends on any other.

    Examples:
        >>> x = jnp.array([[0.0, 0.0], [1.0, 1.0]])
        >>> print(reconstruction_error(x, jnp.array([[0.0, 1.0], [3.0, 1.0]])))
        [1. 4.]
    """
    differences = x.astype(jnp.float32) - reconstructions.astype(jnp.float32)
    return jnp.sum(differences**2, axis=tuple(range(1, x.ndim)))
