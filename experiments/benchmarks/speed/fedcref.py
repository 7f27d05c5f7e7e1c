"""FedCRef's local training: one small auto-encoder per cluster of each client.

A second case computes the reconstruction errors of all examples under all models. The
PyTorch loop trains the same models on the same clusters, one after another.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.benchmarks.speed.case import Case, Sizes
from fcjax import nn
from fcjax.algorithms.fedcref_models import BATCH, Models, draw, errors_under
from fcjax.algorithms.fedcref_models import train as train_model
from fcjax.federated import clients
from fcjax.methods import FedCRef
from fcjax.types import Federation

LOCAL_EPOCHS, BATCH_SIZE, LEARNING_RATE = 20, 32, 1e-3
"""The settings of `experiments/fedcref.py` for clusters of 500 examples.

Smaller clusters have more epochs in the script. The time of a round is proportional to
the number of epochs."""
SIZES = Sizes(clients=20, examples=400, batch_size=BATCH_SIZE)


def cases(
    sizes: Sizes = SIZES,
    shape: tuple[int, int, int] = (28, 28, 1),
    *,
    num_clusters: int = 4,
    num_epochs: int = LOCAL_EPOCHS,
) -> list[Case]:
    """Returns the training of all models, and the errors of all examples.

    Clusters have equal size. Models are trained further in each round. The method draws
    new models instead, which neither JAX nor PyTorch does here.

    Args:
        sizes: number of clients, examples and batch size.
        shape: shape of an image.
        num_clusters: number of clusters per client.
        num_epochs: number of epochs per round.

    Returns:
        The cases.
    """
    images = np.random.default_rng(0).random((*sizes[:2], *shape), np.float32)
    clusters = np.arange(sizes.examples) % num_clusters
    federation = Federation(
        pool=jnp.asarray(images.reshape(-1, *shape)),
        indices=jnp.arange(images[..., 0, 0, 0].size).reshape(sizes[:2]),
        mask=jnp.ones(sizes[:2], bool),
        present=jnp.ones((1, sizes.clients), bool),
        local_clusters=jnp.full(sizes.clients, num_clusters),
    )
    options = Models(
        nn.reconstructor(math.prod(shape)),
        optax.adam(LEARNING_RATE),
        num_clusters,
        FedCRef().plain(batch_size=sizes.batch_size),
    )
    num_models = sizes.clients * num_clusters
    keys = jax.random.split(jax.random.key(0), num_models)
    variables = jax.vmap(lambda key: draw(options, federation, key))(keys)
    opt_state = jax.vmap(options.optimizer.init)(variables["params"])
    is_member = np.arange(num_clusters)[:, None] == clusters
    is_member = jnp.tile(jnp.asarray(is_member), (sizes.clients, 1))
    rows = jnp.repeat(federation.indices, num_clusters, axis=0)

    def train(state, keys, rows, is_member, federation):
        def train_one(key, client, rows, is_member):
            return train_model(
                options, key, client, rows, is_member, federation, num_epochs=num_epochs
            )

        return clients.for_each(train_one, keys, state, rows, is_member)

    def errors(variables, exist, federation):
        errors_of_models = errors_under(options, variables, exist, federation)
        return variables, errors_of_models

    def training_loop(num_threads: int):
        from experiments.benchmarks.speed.fedcref_torch import Training

        return Training(
            images,
            clusters,
            variables,
            batch_size=sizes.batch_size,
            num_epochs=num_epochs,
            learning_rate=LEARNING_RATE,
            num_threads=num_threads,
        ).round

    def errors_loop(num_threads: int):
        from experiments.benchmarks.speed.fedcref_torch import Errors

        return Errors(
            images,
            variables,
            batch_size=BATCH,
            num_threads=num_threads,
        ).round

    cluster_size = -(-sizes.examples // num_clusters)
    num_examples = sizes.clients * sizes.examples
    workload = (
        f"{sizes.clients} clients x {sizes.examples} images of {shape[0]}x{shape[1]}"
    )
    return [
        Case(
            "fedcref local models",
            f"{workload}, {num_clusters} clusters per client, {num_epochs} epochs, "
            f"batch {sizes.batch_size}",
            train,
            (clients.Client(variables, opt_state), keys, rows, is_member, federation),
            has_client_axis=(True, True, True, True, False),
            num_batches=-(-cluster_size // sizes.batch_size),
            num_examples=num_examples * num_epochs,
            loop=training_loop,
        ),
        Case(
            "fedcref errors",
            f"{workload} under {num_models} models, inference",
            errors,
            (variables, jnp.ones(num_models, bool), federation),
            has_client_axis=(),
            num_batches=num_models,
            num_examples=num_examples * num_models,
            loop=errors_loop,
        ),
    ]
