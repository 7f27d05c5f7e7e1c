"""FDSC's local training: the auto-encoder alone, and FDSC2 with coefficients.

The PyTorch loop takes the same steps on all examples of a client, from the same weights
and neighbour graphs.
"""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.speed.case import Case, Sizes
from fcjax.algorithms import fdsc
from fcjax.algorithms.fdsc import ALL, OUTER, Private, Setup, dense, pick
from fcjax.cluster import neighbor_graph
from fcjax.federated import clients
from fcjax.methods import FDSC
from fcjax.methods.fdsc import autoencoder_of, optimizer_of

SETTINGS = FDSC()
"""The settings of `experiments/fdsc.py` for MNIST."""
SIZES = Sizes(clients=20, examples=200, batch_size=200)


def cases(
    sizes: Sizes = SIZES, shape: tuple[int, int, int] = (28, 28, 1)
) -> list[Case]:
    """Returns one round of all clients, for each of the two trainings.

    A step uses all examples of a client, because the coefficients connect all of them.
    The batch size has no effect.

    Args:
        sizes: number of clients and examples.
        shape: shape of an image.

    Returns:
        The cases.
    """
    height, width, _ = shape
    images = np.random.default_rng(0).random((*sizes[:2], *shape), np.float32)
    x = jnp.asarray(images)
    mask = jnp.ones(x.shape[:2], bool)
    settings = SETTINGS.plain()
    adjacency = jax.lax.map(
        lambda x: neighbor_graph(x.reshape(len(x), -1), settings.num_neighbors), x
    )
    setup = Setup(
        *(autoencoder_of(shape), dense(), optimizer_of(settings), settings),
        num_clusters=10,
        is_aligned=True,
    )
    start = fdsc.init(setup, jax.random.key(0), x[0, :1], sizes.examples)

    def case(name, part_names) -> Case:
        parts = pick(start, part_names)

        def train(state, x, mask, adjacency):
            return clients.for_each(train_one, *state, x, mask, adjacency)

        def train_one(parts, opt_state, x, mask, adjacency):
            private = Private(parts, opt_state, adjacency)
            private, metrics = fdsc.train_network(setup, part_names, private, x, mask)
            # The loss is a sum over pixels. Its mean allows a small tolerance.
            return private[:2], metrics["loss"] / x.size

        def loop(num_threads: int):
            from experiments.benchmarks.speed.fdsc_torch import Loop

            return Loop(
                images,
                np.asarray(adjacency),
                parts,
                penalty_weight=settings.penalty_weight,
                expression_weight=settings.expression_weight,
                locality_weight=float(fdsc.locality_weight(settings)),
                learning_rate=settings.learning_rate,
                num_steps=settings.local_steps,
                num_threads=num_threads,
            ).round

        state = parts, setup.optimizer.init(parts)
        return Case(
            name,
            f"{sizes.clients} clients x {sizes.examples} images of {height}x{width}, "
            "all at once",
            train,
            (clients.repeat(state, sizes.clients), x, mask, adjacency),
            has_client_axis=(True, True, True, True),
            num_batches=settings.local_steps,
            num_examples=sizes.clients * sizes.examples * settings.local_steps,
            loop=loop,
        )

    return [case("fdsc pretrain", OUTER), case("fdsc train", ALL)]
