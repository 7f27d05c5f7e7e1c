"""CCFC's pre-training: SimSiam with the model-contrastive term."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.benchmarks.speed.case import Case, Sizes
from fcjax import nn
from fcjax.algorithms.ccfc import sample_contrast
from fcjax.federated import clients, training

LATENT_SIZE, BOTTLENECK = 256, 16
LEARNING_RATE, MODEL_WEIGHT = 1e-3, 1e-3
ENCODERS = {"conv": nn.conv_encoder, "resnet18": nn.resnet18}
SHAPES = {"conv": (28, 28, 1), "resnet18": (32, 32, 3)}


SIZES = Sizes(clients=10, examples=1000, batch_size=128)


def cases(
    sizes: Sizes = SIZES, backbone: str = "conv", *, torch_device: str = "cpu"
) -> list[Case]:
    """Returns one epoch of all clients on two fixed views of each image.

    Augmentation is left out, because a PyTorch program does it on the host.

    Args:
        sizes: number of clients, examples and batch size.
        backbone: `conv` or `resnet18`.
        torch_device: device of the PyTorch loop.

    Returns:
        The case.
    """
    shape = (2, sizes.clients, sizes.examples, *SHAPES[backbone])
    views = np.random.default_rng(0).random(shape, np.float32)
    network = nn.simsiam(
        ENCODERS[backbone](), latent_size=LATENT_SIZE, bottleneck=BOTTLENECK
    )
    first, second = (jnp.asarray(view) for view in views)
    anchor = network.init(jax.random.key(0), first[0, :1])
    optimizer = optax.adam(LEARNING_RATE)
    client = clients.Client(anchor, optimizer.init(anchor["params"]))
    keys = jax.random.split(jax.random.key(1), sizes.clients)
    mask = jnp.ones(views.shape[1:3], bool)

    def train(state, anchor, keys, first, second, mask):
        return clients.for_each(
            partial(train_one, anchor), keys, state, first, second, mask
        )

    def train_one(anchor, key, client, first, second, mask):
        def loss(key, variables, batch_indices, batch_mask):
            del key
            batch = (first[batch_indices], second[batch_indices])
            return sample_contrast(
                network, variables, anchor, batch, batch_mask, model_weight=MODEL_WEIGHT
            )

        return training.train(
            key,
            client,
            loss,
            mask,
            optimizer=optimizer,
            batch_size=sizes.batch_size,
            num_epochs=1,
        )

    def loop(num_threads: int):
        from experiments.benchmarks.speed.ccfc_torch import Loop

        return Loop(
            views,
            anchor,
            backbone=backbone,
            batch_size=sizes.batch_size,
            learning_rate=LEARNING_RATE,
            model_weight=MODEL_WEIGHT,
            num_threads=num_threads,
            device=torch_device,
        ).round

    height, width = SHAPES[backbone][:2]
    return [
        Case(
            f"ccfc {backbone}",
            f"{sizes.clients} clients x {sizes.examples} images of {height}x{width}, "
            f"batch {sizes.batch_size}",
            train,
            (clients.repeat(client, sizes.clients), anchor, keys, first, second, mask),
            has_client_axis=(True, False, True, True, True, True),
            num_batches=-(-sizes.examples // sizes.batch_size),
            num_examples=sizes.clients * sizes.examples,
            loop=loop,
        )
    ]
