"""The pool where each device has the examples of its own clients alone."""

import jax
from jaxtyping import Array, Int, Shaped


@jax.tree_util.register_pytree_node_class
class OwnPool:
    """Takes the place of the array of examples where clients lie on devices of several
    processes, see `fcjax.devices.deal_pool`.

    `pool[rows]` is a device array of those rows, within a program that is spread over
    the devices; of rows that are neither the first nor its clients' a device has none,
    and gives others.

    Args:
        examples: [A, B, R, *F] on A x B devices: what each of them has.
        places: [A, B, P]: where it has each row of the pool.

    Attributes:
        shape: of all examples.
        dtype: of the examples.

    Examples:
        >>> import jax.numpy as jnp
        >>> examples, places = jnp.array([[[[7.0], [9.0]]]]), jnp.array([[[0, 0, 1]]])
        >>> pool = OwnPool(examples, places)  # of three rows the first and the last
        >>> print(pool.shape, pool[jnp.array([2, 0])][:, 0])
        (3, 1) [9. 7.]
    """

    def __init__(
        self, examples: Shaped[Array, "A B R *F"], places: Int[Array, "A B P"]
    ):
        self.examples, self.places = examples, places

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.places.shape[-1], *self.examples.shape[3:])

    @property
    def dtype(self):
        return self.examples.dtype

    def __getitem__(self, rows: slice | Int[Array, "*S"]) -> Shaped[Array, "..."]:
        return self.examples[0, 0][self.places[0, 0][rows]]

    @property
    def bytes_here(self) -> int:
        """What it takes of this process's memory."""
        parts = (self.examples, self.places)
        return sum(x.data.nbytes for part in parts for x in part.addressable_shards)

    def tree_flatten(self):
        return (self.examples, self.places), None

    @classmethod
    def tree_unflatten(cls, _, parts):
        # What is unflattened need not be arrays.
        pool = object.__new__(cls)
        pool.examples, pool.places = parts
        return pool
