"""A pool that stays in the host's memory and streams to the device batch by batch."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Shaped


@jax.tree_util.register_static
class HostPool:
    """Takes the place of the array of examples where it does not fit on the device.

    `pool[rows]` is a device array of those rows, also inside compiled programs and
    under vmap and shard_map, where the host is called for every batch. A pytree
    without leaves: nothing of it is copied when it is passed to one.
    """

    def __init__(self, examples: Shaped[np.ndarray, "P *F"]):
        self._examples = examples
        self.shape = examples.shape
        self.dtype = examples.dtype

    def __getitem__(self, rows: slice | Int[Array, "*S"]) -> Shaped[Array, "..."]:
        if isinstance(rows, slice):
            return jnp.asarray(self._examples[rows])
        rows = jnp.asarray(rows)
        shape = jax.ShapeDtypeStruct((*rows.shape, *self.shape[1:]), self.dtype)
        # broadcast_all: one call fetches the batches of all clients and runs.
        return jax.pure_callback(self._fetch, shape, rows, vmap_method="broadcast_all")

    def _fetch(self, rows: jax.Array) -> np.ndarray:
        return self._examples[np.asarray(rows)]
