"""Local training and contrast written out plainly, for tests to compare with.

The draws alone are the library's: which examples a batch has, and the key of a view.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from fcjax.federated import training
from fcjax.types import Network


def matrix(size: int, *, centre=False, soft=False) -> Network:
    """One matrix; `centre` subtracts the mean of the batch, as batch norm does, and
    counts in its statistics how often it was trained; `soft` ends in a softmax."""

    def init(key, x):
        kernel = jax.random.normal(key, (x.shape[-1], size))
        variables = {"params": {"kernel": kernel}}
        if centre:
            statistics = {"mean": jnp.zeros(size), "calls": jnp.float32(0)}
            variables["batch_stats"] = statistics
        return variables

    def apply(variables, x, *, train, mask=None):
        y = x @ variables["params"]["kernel"]
        if centre:
            mean, calls = (variables["batch_stats"][k] for k in ("mean", "calls"))
            if train:
                counted = None if mask is None else mask[:, None]
                new = y.mean(axis=0, where=counted)
                statistics = {"mean": 0.9 * mean + 0.1 * new, "calls": calls + 1}
                variables = {**variables, "batch_stats": statistics}
                mean = new
            y = y - mean[None]
        return (jax.nn.softmax(y) if soft else y), variables

    return Network(init, apply)


def noisy(key, x):
    return x + 0.3 * jax.random.normal(key, x.shape)


def steps(
    key, counted, *, client=0, number=0, **options
) -> Iterator[tuple[np.ndarray, jax.Array]]:
    """The slots and the key of every step of a client's pass in a round."""
    key = jax.random.fold_in(jax.random.fold_in(key, client), number)
    return epochs(key, counted, **options)


def epochs(key, counted, *, num_epochs=1, batch_size=100):
    """The slots and the key of every step of `training.epochs`."""
    counted = jnp.asarray(counted)
    for epoch in range(num_epochs):
        order_key, step_key = jax.random.split(jax.random.fold_in(key, epoch))
        order = np.asarray(training.shuffle(order_key, counted))[: int(counted.sum())]
        for i, start in enumerate(range(0, len(order), batch_size)):
            yield order[start : start + batch_size], jax.random.fold_in(step_key, i)


def views(key, x):
    """Two views by `noisy` of each row, drawn by a key of its own."""
    keys = [jax.random.split(jax.random.fold_in(key, i)) for i in range(len(x))]
    pairs = [[noisy(k, row) for k in pair] for pair, row in zip(keys, x, strict=True)]
    return tuple(np.stack(view) for view in zip(*pairs, strict=True))


def kernels(parts):
    """The only weights of each part."""
    return {name: params["kernel"] for name, params in parts["params"].items()}


def unit(x):
    return x / (x**2).sum(axis=-1, keepdims=True) ** 0.5


def cosine(a, b):
    return (unit(a) * unit(b)).sum(axis=-1)


def nt_xent(views, temperature):
    """L of two views: 2n anchors, each with its other view among 2n - 1 others."""
    z = unit(jnp.concatenate(views))
    similarity = jnp.exp(z @ z.T / temperature)
    itself = np.eye(len(z), dtype=z.dtype)
    positive = (similarity * np.roll(itself, len(z) // 2, axis=1)).sum(axis=1)
    among = (similarity * (1 - itself)).sum(axis=1)
    return -jnp.log(positive / among).mean()


def crosswise(views, target, temperature):
    """Eq. 8 of FedMCC: half of L of each view with the other view of the target."""
    (a, b), (t_a, t_b) = views, target
    return (nt_xent((a, t_b), temperature) + nt_xent((t_a, b), temperature)) / 2


def columns(views):
    return [c.T for c in views]


def entropies(views):
    """The sum over views of the entropy of their mean soft assignment."""
    means = [c.sum(axis=0) / c.sum() for c in views]
    return -sum((p * jnp.log(p)).sum() for p in means)
