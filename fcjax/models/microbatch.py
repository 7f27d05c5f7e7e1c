"""A network that takes a batch a part at a time, in the memory of one part."""

import jax
import jax.numpy as jnp
from jax import lax

from fcjax.types import Network


def microbatched(network: Network, size: int) -> Network:
    """Bounds the memory that a network takes, however large the batch.

    The loss of a batch couples all its outputs, so that its gradient cannot be
    accumulated part by part. FedMCC's section VI computes the outputs first, without
    what a backward pass needs, then the loss's gradient with respect to them, and then
    part by part the network's, for which each part goes forward once more. That is what
    differentiating this network does; of the whole batch only inputs and outputs are
    kept. Section VI has each output depend on its own input alone, which batch norm in
    training breaks: here statistics are those of a part, in both passes.

    Args:
        network: whatever its layers.
        size: examples a part; a batch no longer than that goes as it is.

    Returns:
        A `Network` with the same variables. In training, statistics are those of
        consecutive parts of `size` examples, and the running ones learn from one part
        after another; a part of which no example counts teaches them nothing.

    Raises:
        ValueError: if size is below 1.

    Examples:
        >>> from fcjax.models import projector
        >>> network, x = microbatched(projector(2), 4), jnp.zeros((10, 6))
        >>> variables = network.init(jax.random.key(0), x)
        >>> network.apply(variables, x, train=True)[0].shape  # by parts of 4, 4 and 2
        (10, 2)
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")

    def apply(variables, x, *, train, mask=None):
        count = len(x)
        if count <= size:
            return network.apply(variables, x, train=train, mask=mask)
        num_parts = -(-count // size)
        slack = num_parts * size - count
        counts = jnp.ones(count, bool) if mask is None else mask
        # The last part is filled up with examples that do not count.
        x = jnp.concatenate([x, x[:slack]]).reshape(num_parts, size, *x.shape[1:])
        counts = jnp.pad(counts, (0, slack)).reshape(num_parts, size)
        params = variables["params"]
        statistics = {k: v for k, v in variables.items() if k != "params"}

        def forward(statistics, part):
            x, counts = part
            any_counts = counts.any()
            # The mean over no example is no number, in the gradient too.
            outputs, new = network.apply(
                {"params": params, **statistics},
                x,
                train=train,
                mask=counts | ~any_counts,
            )
            new = {k: new[k] for k in statistics}
            statistics = jax.tree.map(
                lambda new, old: jnp.where(any_counts, new, old), new, statistics
            )
            return lax.stop_gradient(statistics), outputs

        statistics, outputs = lax.scan(
            jax.checkpoint(forward, prevent_cse=False), statistics, (x, counts)
        )
        outputs = jax.tree.map(
            lambda y: y.reshape(num_parts * size, *y.shape[2:])[:count], outputs
        )
        return outputs, {"params": params, **statistics}

    return Network(network.init, apply)
