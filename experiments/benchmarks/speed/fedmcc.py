"""FedMCC's local training against a target network, in both stages.

Every client trains one epoch on two fixed views of its images, with the networks of
`experiments/fedmcc.py` for MNIST. The PyTorch loop takes the same steps from the same
weights.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.benchmarks.speed.case import Case, Sizes
from fcjax import nn
from fcjax.algorithms.averaging import (
    Contrast,
    Networks,
    Parts,
    follow,
    initialize,
    merge,
    part,
    pick,
    split_target,
)
from fcjax.algorithms.fedmcc import frozen_contrast, instance_contrast
from fcjax.federated import clients, training

SIZES = Sizes(clients=10, examples=1000, batch_size=128)
CHANNELS, HIDDEN_SIZE, LATENT_SIZE, NUM_CLUSTERS = (16, 32, 64), 256, 128, 10
LEARNING_RATE, MOMENTUM = 1e-3, 0.9
INSTANCE_TEMPERATURE, CLUSTER_TEMPERATURE = 0.5, 1.0


def cases(sizes: Sizes = SIZES, *, side: int = 28) -> list[Case]:
    """Returns one epoch of each stage.

    Args:
        sizes: number of clients, examples and batch size.
        side: side of the images in pixels.

    Returns:
        The cases.
    """
    shape = (2, sizes.clients, sizes.examples, side, side, 1)
    views = np.random.default_rng(0).random(shape, np.float32)
    path = {
        "encoder": nn.encoder(nn.conv_encoder(CHANNELS)),
        "projector": nn.projector(LATENT_SIZE, hidden_size=HIDDEN_SIZE),
    }
    head = {
        "cluster_projector": nn.cluster_projector(NUM_CLUSTERS, hidden_size=HIDDEN_SIZE)
    }
    x = jnp.asarray(views[0, 0, :1])
    trained = initialize(jax.random.key(0), path, x)
    frozen = pick(trained, ("encoder",))
    h, _ = path["encoder"].apply(part(frozen, "encoder"), x, train=False)
    in_case = partial(_case, sizes, views)
    return [
        in_case(
            "representation",
            instance_contrast(Networks(path), temperature=INSTANCE_TEMPERATURE),
            trained,
            {},
        ),
        in_case(
            "cluster",
            frozen_contrast(Networks(path | head), temperature=CLUSTER_TEMPERATURE),
            initialize(jax.random.key(1), head, h),
            frozen,
        ),
    ]


def _case(
    sizes: Sizes,
    views: np.ndarray,
    stage: str,
    contrast: Contrast,
    trained: Parts,
    frozen: Parts,
) -> Case:
    """Returns one epoch of a stage with the given contrast."""
    optimizer = optax.adam(LEARNING_RATE)
    # As in `averaging`, images are in a pool and every round has a new optimizer.
    pools = [jnp.asarray(view.reshape(-1, *view.shape[2:])) for view in views]
    rows = jnp.arange(len(pools[0])).reshape(sizes.clients, sizes.examples)
    keys = jax.random.split(jax.random.key(1), sizes.clients)
    state = {**trained, "target": trained["params"]}
    state = clients.repeat(state, sizes.clients)

    def train(state, frozen, keys, rows, mask, *pools):
        train_client = partial(train_one, frozen, pools)
        return clients.for_each(train_client, keys, state, rows, mask)

    def train_one(frozen, pools, key, variables, rows, mask):
        def loss(key, variables, batch_indices, batch_mask):
            del key
            online, target = split_target(variables)
            batch = tuple(pool[rows[batch_indices]] for pool in pools)
            value, online = contrast(merge(frozen, online), target, batch, batch_mask)
            return value, {**pick(online, target), "target": target}

        client, value = training.train(
            key,
            clients.Client(variables, optimizer.init(variables["params"])),
            loss,
            mask,
            optimizer=optimizer,
            batch_size=sizes.batch_size,
            num_epochs=1,
            after_step=partial(follow, MOMENTUM),
        )
        return client.variables, value

    def loop(num_threads: int):
        from experiments.benchmarks.speed import fedmcc_torch

        return fedmcc_torch.Loop(
            views,
            trained,
            frozen,
            batch_size=sizes.batch_size,
            learning_rate=LEARNING_RATE,
            momentum=MOMENTUM,
            temperature=CLUSTER_TEMPERATURE if frozen else INSTANCE_TEMPERATURE,
            num_threads=num_threads,
        ).round

    return Case(
        f"fedmcc {stage}",
        f"{sizes.clients} clients x {sizes.examples} images of "
        f"{views.shape[3]}x{views.shape[4]}, batch {sizes.batch_size}",
        train,
        (state, frozen, keys, rows, jnp.ones(rows.shape, bool), *pools),
        has_client_axis=(True, False, True, True, True, *(False for _ in pools)),
        num_batches=-(-sizes.examples // sizes.batch_size),
        num_examples=sizes.clients * sizes.examples,
        loop=loop,
    )
