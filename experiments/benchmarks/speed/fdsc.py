"""FDSC's local training: of the auto-encoder alone, and of FDSC2 with coefficients.

The PyTorch side takes the same steps on all examples of a client, from the same weights
and graphs of neighbours.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.speed.case import Case, Sizes
from fcjax.algorithms import fdsc
from fcjax.algorithms.averaging import pick
from fcjax.algorithms.fdsc import ALL, OUTER, Local, Setup, objective
from fcjax.cluster import neighbor_graph
from fcjax.federated import clients
from fcjax.methods.fdsc import (
    locality_of,
    network_of,
    optimizer_of,
)

MNIST: dict[str, Any] = {
    "norm": "frobenius",
    "penalty_weight": 1.0,
    "expression_weight": 15.0,
    "pixel_scale": 1.0,
    "locality_weight": 1e6,
    "locality": "sum",
    "adjacency_weight": 1.0,
    "coefficient_weight": 1.0,
    "num_neighbors": 5,
    "optimizer": "adam",
    "learning_rate": 1e-3,
    "local_steps": 7,
}
"""The settings of `experiments/fdsc.py`."""


SIZES = Sizes(clients=20, examples=200, batch_size=200)


def cases(
    sizes: Sizes = SIZES, shape: tuple[int, int, int] = (28, 28, 1)
) -> list[Case]:
    """Every client takes its steps of a round on all of its examples at once, as their
    coefficients ask for: the batch size plays no part."""
    height, width, _ = shape
    images = np.random.default_rng(0).random((*sizes[:2], *shape), np.float32)
    x = jnp.asarray(images)
    mask = jnp.ones(x.shape[:2], bool)
    locality = locality_of(MNIST)
    adjacency = jax.lax.map(
        lambda x: neighbor_graph(x.reshape(len(x), -1), locality["num_neighbors"]), x
    )
    network, optimizer = network_of(MNIST, shape), optimizer_of(MNIST)
    start = fdsc.init(network, jax.random.key(0), x[0, :1], sizes.examples)

    local = Local(
        *(network, optimizer),
        **dict.fromkeys(("pretrain_rounds", "num_rounds", "fit_steps"), 0),
        local_steps=MNIST["local_steps"],
    )
    setup = Setup(local, sizes.clients, **locality)

    def case(name, trains) -> Case:
        parts = pick(start, trains)

        def train(state, x, mask, adjacency):
            return clients.for_each(train_one, *state, x, mask, adjacency)

        def train_one(parts, opt_state, x, mask, adjacency):
            loss = partial(objective, setup, adjacency=adjacency)
            parts, opt_state, measured = fdsc.train_network(
                local, trains, parts, opt_state, loss, x, mask
            )
            # A sum of squares: of each pixel, it can be compared with small tolerance.
            return (parts, opt_state), measured["loss"] / x.size

        def loop(num_threads: int):
            from experiments.benchmarks.speed.fdsc_torch import Loop

            return Loop(
                images,
                np.asarray(adjacency),
                parts,
                penalty_weight=MNIST["penalty_weight"],
                expression_weight=MNIST["expression_weight"],
                locality_weight=locality["locality_weight"],
                learning_rate=MNIST["learning_rate"],
                num_steps=MNIST["local_steps"],
                num_threads=num_threads,
            ).round

        state = parts, optimizer.init(parts["params"])
        return Case(
            name,
            f"{sizes.clients} clients x {sizes.examples} images of {height}x{width}, "
            "all at once",
            train,
            (clients.repeat(state, sizes.clients), x, mask, adjacency),
            by_client=(True, True, True, True),
            num_batches=MNIST["local_steps"],
            num_examples=sizes.clients * sizes.examples * MNIST["local_steps"],
            loop=loop,
        )

    return [case("fdsc pretrain", OUTER), case("fdsc train", ALL)]
