"""SDA-FDC's training: the clients' GANs, and DCN on the server.

A case is one epoch, with the networks and settings of `experiments/sda_fdc.py` for
MNIST. A second GAN has the settings for Pendigits. The PyTorch loop takes the same
steps from the same weights.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.speed.case import Case, Sizes
from fcjax import nn
from fcjax.algorithms.autoencoders import by_dcn
from fcjax.algorithms.sda import Setup, initialize_gan, train_gan
from fcjax.federated import clients
from fcjax.methods import SDAFDC
from fcjax.methods.sda_fdc import VECTORS, adam_of, gan_of, optimizers_of
from fcjax.types import Now

SIZES = Sizes(clients=10, examples=1000, batch_size=64)
NUM_CLUSTERS, NUM_COLUMNS = 10, 16
OF_IMAGES = SDAFDC()
OF_ROWS = SDAFDC(**VECTORS)
BETAS = {"images": (0.5, 0.999), "rows": (0.5, 0.9)}
"""Betas of the GANs' Adam, by kind of data."""


def cases(
    sizes: Sizes = SIZES,
    *,
    side: int = 28,
    pooled_batch_size: int = 128,
) -> list[Case]:
    """Returns one epoch of the clients' GANs and of both phases of DCN.

    Args:
        sizes: sizes for the GANs. The server has the examples of all clients.
        side: side of the images in pixels.
        pooled_batch_size: batch size of DCN.

    Returns:
        The cases.
    """
    shape = (sizes.clients, sizes.examples)
    rng = np.random.default_rng(0)
    images = rng.random((*shape, side, side, 1), np.float32)
    rows = rng.random((*shape, NUM_COLUMNS), np.float32)
    size = {"gan_batch_size": sizes.batch_size}
    return [
        gan_case("sda-fdc gan", images, OF_IMAGES.plain(**size), BETAS["images"]),
        gan_case("sda-fdc gan of rows", rows, OF_ROWS.plain(**size), BETAS["rows"]),
        *dcn_cases(images, OF_IMAGES.plain(batch_size=pooled_batch_size)),
    ]


def gan_case(
    name: str,
    examples: np.ndarray,
    settings: Any,
    betas: tuple[float, float],
) -> Case:
    """Returns the first epoch of every client's GAN.

    Args:
        name: name of the case.
        examples: the examples of all clients [M, N, *F].
        settings: settings of SDA-FDC.
        betas: betas of Adam.

    Returns:
        The case.
    """
    num_clients, num_examples, *shape = examples.shape
    networks = gan_of(tuple(shape)), optimizers_of(settings, tuple(shape))
    setup = Setup(*networks, settings, num_categories=NUM_CLUSTERS)
    pool = jnp.asarray(examples.reshape(-1, *shape))
    gan = initialize_gan(jax.random.key(0), setup, pool[:1])
    keys = jax.random.split(jax.random.key(1), num_clients)
    rows = jnp.arange(len(pool)).reshape(num_clients, num_examples)

    def train(gans, keys, pool, rows, mask):
        def train_one(key, gan, rows, mask):
            number = jnp.int32(0)
            return train_gan(key, gan, pool, rows, mask, setup, number=number)

        gans, losses = clients.for_each(train_one, keys, gans, rows, mask)
        return gans, jnp.stack(losses, axis=1)

    def loop(num_threads: int, **options):
        from experiments.benchmarks.speed.sda_fdc_torch import GanLoop

        return GanLoop(
            examples,
            gan,
            batch_size=settings.gan_batch_size,
            generator_learning_rate=settings.generator_learning_rate,
            discriminator_learning_rate=settings.discriminator_learning_rate,
            betas=betas,
            num_categories=NUM_CLUSTERS,
            noise_size=settings.noise_size,
            num_threads=num_threads,
            **options,
        ).round

    return Case(
        name,
        f"{num_clients} clients x {num_examples} {describe(shape)}, "
        f"batch {settings.gan_batch_size}",
        train,
        (
            clients.repeat(gan, num_clients),
            keys,
            pool,
            rows,
            jnp.ones(rows.shape, bool),
        ),
        has_client_axis=(True, True, False, True, True),
        num_batches=-(-num_examples // settings.gan_batch_size),
        num_examples=num_clients * num_examples,
        loop=loop,
    )


def dcn_cases(examples: np.ndarray, settings: Any) -> list[Case]:
    """Returns one epoch of the auto-encoder alone and one with clustering of the codes.

    Args:
        examples: the examples of all clients [M, S, *F].
        settings: settings of SDA-FDC.

    Returns:
        The cases.
    """
    num_clients, per_client, *shape = examples.shape
    count, batch_size = num_clients * per_client, settings.batch_size
    parts = settings, nn.autoencoder(math.prod(shape)), adam_of(settings)
    clustering = by_dcn(*parts, num_clusters=NUM_CLUSTERS)
    autoencoder, _, joint, _ = clustering.phases
    x, mask = jnp.asarray(examples.reshape(count, *shape)), jnp.ones(count, bool)
    now = Now(jnp.int32(0), jnp.int32(0), jnp.array(False))
    state = clustering.init(jax.random.key(0), x[:1])
    # The time does not depend on the centroids, so k-means is left out.
    codes = clustering.embed(state, x[:NUM_CLUSTERS])
    clustered = joint.begin(jax.random.key(1), state._replace(centroids=codes), x, mask)

    def case(phase, state, cluster_weight):
        def train(state, key, x, mask):
            return phase.round(key, state, x, mask, now)

        def loop(num_threads: int):
            from experiments.benchmarks.speed.sda_fdc_torch import DcnLoop

            return DcnLoop(
                examples.reshape(count, -1),
                state,
                batch_size=batch_size,
                learning_rate=settings.learning_rate,
                cluster_weight=cluster_weight,
                num_threads=num_threads,
            ).round

        return Case(
            f"sda-fdc {phase.name}",
            f"{count} {describe(shape)} pooled, batch {batch_size}",
            train,
            (state, jax.random.key(2), x, mask),
            has_client_axis=(),
            num_batches=-(-count // batch_size),
            num_examples=count,
            loop=loop,
        )

    return [
        case(autoencoder, state, None),
        case(joint, clustered, settings.cluster_weight),
    ]


def describe(shape: list[int]) -> str:
    """Returns the kind of examples of this shape as text."""
    return (
        f"vectors of {shape[0]} numbers"
        if len(shape) == 1
        else "images of {}x{}".format(*shape)
    )
