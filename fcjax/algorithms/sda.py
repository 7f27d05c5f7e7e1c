"""SDA-FC and SDA-FDC: clients train GANs, the server clusters synthetic examples.

Each client trains a GAN on its own examples and uploads the generator. The server draws
synthetic examples from all generators and clusters them. The input of a generator is a
one-hot category and normal noise (equation 2 of SDA-FDC), which makes its examples more
diverse. The category is random, not a label.

Federated deep clustering with GAN-based data synthesis
    Jie Yan, Jing Liu, Ji Qi, Zhong-Yuan Zhang. 2022. https://arxiv.org/abs/2211.16965
    SDA-FDC (later papers call it PPFC-GAN): DCN on the synthetic data.

Federated clustering with GAN-based data synthesis
    Jie Yan, Jing Liu, Ji Qi, Zhong-Yuan Zhang. 2022. https://arxiv.org/abs/2210.16524
    SDA-FC-KM and SDA-FC-FCM: k-means or fuzzy c-means on the synthetic data.
    Authors' code of SDA-FC: https://github.com/Jarvisyan/SDA-FC
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Shaped

from fcjax.algorithms import central
from fcjax.algorithms.rounds import all_rounds, ever_participating
from fcjax.data.augment import as_rows, to_float
from fcjax.federated import clients, server, training
from fcjax.federated.clients import Client
from fcjax.losses import discriminator_loss, generator_loss
from fcjax.nn.generative import Gan
from fcjax.types import (
    FederatedClustering,
    Federation,
    Pool,
    PRNGKey,
    PyTree,
    State,
    Uploads,
)

# --- GANs

BATCH = 256
"""Number of examples that are generated in one batch."""

UPLOADED = 100
"""Largest number of synthetic examples per client in a report on privacy."""

Losses = tuple[Float[Array, ""], Float[Array, ""]]
"""The losses of the discriminator and of the generator."""


class Pair(NamedTuple):
    """One value for each network of a GAN, such as its variables or its optimizer."""

    generator: Any
    discriminator: Any


class Setup(NamedTuple):
    """The networks and settings that all rounds share; see `sda`.

    A client trains its GAN for one epoch per round. Both optimizers start again in
    every round. In round r (from 0), their steps are multiplied by `gan_decay` ** r, as
    in the authors' code.
    """

    gan: Gan
    optimizers: Pair
    settings: Any
    num_categories: int


def initialize_gan(key: PRNGKey, setup: Setup, x: Shaped[Array, "1 *F"]) -> Pair:
    """Draws the initial variables of a GAN.

    Args:
        key: random key.
        setup: networks and settings of the method.
        x: one example [1, *F]; only its shape and type are used.

    Returns:
        The variables of the generator and of the discriminator.
    """
    generator_key, discriminator_key = jax.random.split(key)
    noise = jnp.zeros((1, setup.num_categories + setup.settings.noise_size))
    generator, discriminator = setup.gan
    return Pair(
        generator.init(generator_key, noise),
        discriminator.init(discriminator_key, to_float(x)),
    )


def train_gan(
    key: PRNGKey,
    variables: Pair,
    examples: Pool,
    rows: Int[Array, "N"],
    mask: Bool[Array, "N"],
    setup: Setup,
    *,
    number: Int[Array, ""],
) -> tuple[Pair, Losses]:
    """Trains a client's GAN for one epoch.

    For each batch, the discriminator takes a step on real and synthetic examples. Then
    the generator takes a step on the same synthetic examples; the authors' code draws
    new ones for this step.

    Args:
        key: random key of the batch order and of the noise.
        variables: initial variables of both networks.
        examples: the pool of all examples.
        rows: indices of the client's examples in the pool [N].
        mask: [N], True at the client's own examples, False at padding.
        setup: networks and settings of the method.
        number: number of the round, from 0.

    Returns:
        The trained variables, and the mean losses of the steps.
    """
    decay = optax.scale(jnp.asarray(setup.settings.gan_decay) ** number)
    optimizers = Pair(*(optax.chain(x, decay) for x in setup.optimizers))
    setup = setup._replace(optimizers=optimizers)

    def batch_step(key, networks, batch_indices, counted):
        real = to_float(examples[rows[batch_indices]])
        return step(setup, key, networks, real, counted)

    networks = Pair(
        *(
            Client(x, optimizer.init(x["params"]))
            for x, optimizer in zip(variables, optimizers, strict=True)
        )
    )
    networks, losses = training.epochs(
        *(key, networks, batch_step, mask),
        batch_size=setup.settings.gan_batch_size,
        num_epochs=1,
        zero=(0.0, 0.0),
    )
    trained = Pair(networks.generator.variables, networks.discriminator.variables)
    return trained, losses


def step(
    setup: Setup,
    key: PRNGKey,
    networks: Pair,
    real: Float[Array, "B *F"],
    counted: Bool[Array, "B"],
) -> tuple[Pair, Losses]:
    """Takes one step of the discriminator and one of the generator on a batch.

    Both use the same synthetic examples, as many as there are real ones.

    Args:
        setup: networks and settings of the method.
        key: random key of categories and noise.
        networks: variables and optimizer states of both networks.
        real: a batch of real examples [B, *F], as floats.
        counted: [B], True at examples that count.

    Returns:
        Both networks after their steps, and the losses of both.
    """
    generator, discriminator = setup.gan
    chosen_key, num_categories = jax.random.fold_in(key, 0), setup.num_categories
    chosen = categories(chosen_key, counted.sum(), len(real), num_categories)
    inputs = noise(setup, key, chosen)

    def generate(params):
        variables = {**networks.generator.variables, "params": params}
        return generator.apply(variables, inputs, train=True, mask=counted)

    def loss_of_discriminator(params):
        variables = {**networks.discriminator.variables, "params": params}
        real_logits, variables = discriminator.apply(
            variables, real, train=True, mask=counted
        )
        fake_logits, variables = discriminator.apply(
            variables, fake, train=True, mask=counted
        )
        return discriminator_loss(real_logits, fake_logits, mask=counted), variables

    def loss_of_generator(fake):
        fake_logits, _ = discriminator.apply(
            new_discriminator.variables, fake, train=True, mask=counted
        )
        return generator_loss(fake_logits, mask=counted)

    params = networks.generator.variables["params"]
    fake, pull_back, variables = jax.vjp(generate, params, has_aux=True)
    new_generator = Client(variables, networks.generator.opt_state)

    params = networks.discriminator.variables["params"]
    (loss, variables), gradients = jax.value_and_grad(
        loss_of_discriminator, has_aux=True
    )(params)
    new_discriminator = Client(variables, networks.discriminator.opt_state)
    new_discriminator = descend(
        setup.optimizers.discriminator, new_discriminator, gradients
    )

    loss_of_fake, gradients = jax.value_and_grad(loss_of_generator)(fake)
    new_generator = descend(
        setup.optimizers.generator, new_generator, *pull_back(gradients)
    )
    return Pair(new_generator, new_discriminator), (loss, loss_of_fake)


def descend(
    optimizer: optax.GradientTransformation, client: Client, gradients: PyTree
) -> Client:
    """Takes one optimizer step.

    Args:
        optimizer: optimizer of the network.
        client: the network's variables and optimizer state.
        gradients: gradients of its parameters.

    Returns:
        The network's variables and optimizer state after the step.
    """
    params = client.variables["params"]
    updates, opt_state = optimizer.update(gradients, client.opt_state, params)
    params = optax.apply_updates(params, updates)
    return Client({**client.variables, "params": params}, opt_state)


def synthesise(
    key: PRNGKey,
    generator: PyTree,
    count: int,
    setup: Setup,
    *,
    dtype: jnp.dtype,
) -> Shaped[Array, "N *F"]:
    """Generates examples with a trained generator.

    The categories alternate: 0, 1, ..., 0, 1, ... The first examples are the same for
    every `count`.

    Args:
        key: random key of the noise.
        generator: variables of the generator.
        count: number N of examples.
        setup: networks and settings of the method.
        dtype: type of the examples. With uint8 they are rounded to the 256 values of a
            pixel, as in real images.

    Returns:
        The examples [N, *F].
    """

    def input_of(number):
        category = number[None] % setup.num_categories
        return noise(setup, jax.random.fold_in(key, number), category)[0]

    def batch(numbers):
        inputs = jax.vmap(input_of)(numbers)
        x, _ = setup.gan.generator.apply(generator, inputs, train=False)
        return jnp.round(255 * x).astype(dtype) if dtype == jnp.uint8 else x

    return training.in_batches(batch, jnp.arange(count), batch_size=BATCH)


def noise(setup: Setup, key: PRNGKey, chosen: Int[Array, "B"]) -> Float[Array, "B L"]:
    """Draws the inputs of a generator: one-hot categories and normal noise.

    Args:
        setup: networks and settings of the method.
        key: random key of the noise.
        chosen: category of each example [B].

    Returns:
        The inputs [B, L]: K one-hot columns, then `noise_size` columns of noise.
    """
    z = jax.random.normal(key, (len(chosen), setup.settings.noise_size))
    one_hot = jax.nn.one_hot(chosen, setup.num_categories)
    return jnp.concatenate([one_hot, z], axis=1)


def categories(
    key: PRNGKey, count: Int[Array, ""], size: int, num_categories: int
) -> Int[Array, "B"]:
    """Returns the categories of a batch, so that all categories occur if possible.

    If there are more categories than examples that count, the categories are all
    different.

    Equation 2 of SDA-FDC draws categories uniformly. The authors' code instead divides
    a batch into K blocks of round(B / K) examples, one per category, and the last
    category gets the rest. This function does the same if there is a rest. If not, the
    last categories would never be trained. For 10 categories this happens with batches
    of up to 9, 15 to 18, 26, 27, 35 or 36 examples. The function then spreads all
    categories evenly over the batch, from a random first category on.

    Args:
        key: random key of the first category.
        count: number of examples that count; they come first in the batch.
        size: size B of the batch.
        num_categories: number K of categories.

    Returns:
        The category of each example [B].

    Examples:
        >>> def counts(batch):
        ...     chosen = categories(jax.random.key(0), jnp.int32(batch), batch, 10)
        ...     return jnp.bincount(chosen, length=10)
        >>> print(counts(24))  # nine blocks of 2, the last category gets the rest
        [2 2 2 2 2 2 2 2 2 6]
        >>> print(jnp.sort(counts(15)))  # blocks of 2 would leave two categories empty
        [1 1 1 1 1 2 2 2 2 2]
    """
    index = jnp.arange(size)
    block = jnp.maximum(1, jnp.round(count / num_categories).astype(jnp.int32))
    in_blocks = jnp.minimum(index // block, num_categories - 1)
    first = jax.random.randint(key, (), 0, num_categories)
    spread = (first + index * num_categories // jnp.maximum(count, 1)) % num_categories
    return jnp.where((num_categories - 1) * block < count, in_blocks, spread)


# --- SDA-FC and SDA-FDC


class Trained(NamedTuple):
    """The clients' state in the stage `gan`."""

    gans: Pair
    """The variables of each client's GAN [M, ...]."""
    received: Bool[Array, "M"]
    """Which clients have received the initial GAN from the server."""


class Synthetic(NamedTuple):
    """The examples of the clients' generators; each client's count after its upload."""

    examples: Shaped[Array, "M S *F"]
    sizes: Int[Array, "M"]
    """Number of each client's examples that count, at most S."""


def sda(
    settings: Any,
    gan: Gan,
    optimizers: Pair,
    clustering: central.Clustering,
    *,
    num_clusters: int,
) -> FederatedClustering:
    """Builds SDA-FC or SDA-FDC: clients upload generators once, the server clusters.

    The server sends every client the same GAN. Each client trains it alone, one epoch
    per round. In its first round after that, a client uploads its generator and its
    number of examples, and nothing else. The server generates as many examples with
    each generator (or `num_synthetic` of them) and clusters all of them. Examples of a
    late client are added, but finished rounds are not repeated for them. In the last
    round, the server sends what is needed to assign examples to clusters.

    A client that receives its GAN late trains for fewer epochs. A client that receives
    none is left out.

    Args:
        settings: an `fcjax.methods.SDAFDC`, or another of its family, with one value
            per setting.
        gan: the networks of a client. The generator takes K one-hot columns and
            `noise_size` columns of normal noise.
        optimizers: optimizers of the generator and of the discriminator.
        clustering: the clustering of the synthetic examples. `by_dcn` gives SDA-FDC,
            `by_codes` its ablation (disjoint), `by_kmeans` SDA-FC-KM, and
            `by_fuzzy_cmeans` SDA-FC-FCM.
        num_clusters: number K of clusters, and of categories.

    Returns:
        The method, with the stage `gan` and one stage per phase of the clustering. The
        metrics of `gan` are the `loss` of the discriminator (2 ln 2 if it cannot tell
        real from synthetic examples), the `generator_loss`, `participants`,
        `weight_size` and the traffic.

    Examples:
        >>> import optax
        >>> from fcjax import nn
        >>> from fcjax.algorithms.central import by_kmeans
        >>> from fcjax.methods import SDAFCKM
        >>> adams = Pair(optax.adam(1e-3, b1=0.5), optax.adam(1e-3, b1=0.5))
        >>> settings = SDAFCKM().plain(gan_rounds=2)
        >>> clustering = by_kmeans(settings, num_clusters=3)
        >>> method = sda(settings, nn.mlp_gan(5), adams, clustering, num_clusters=3)
        >>> [(stage.name, stage.num_rounds) for stage in method.stages]
        [('gan', 2), ('cluster', 1)]
    """
    setup = Setup(gan, optimizers, settings, num_categories=num_clusters)
    gan_stage = all_rounds("gan", partial(gan_round, setup), settings.gan_rounds)
    first, *later_stages = central.cluster_stages(
        clustering,
        central.Pooling(examples, partial(uploads, setup)),
        rounds_before=settings.gan_rounds,
    )
    begin = partial(begin_clustering, setup, clustering, first.begin)
    stages = (gan_stage, first._replace(begin=begin), *later_stages)
    init = partial(initial_state, setup)
    method = central.pooled_method(init, stages, clustering)
    assign_all = partial(assign, method.assign)
    return method._replace(assign=assign_all, uploads=synthetic_uploads)


def gan_round(
    setup: Setup, key: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """Runs a round of the stage `gan`: clients train their GANs and upload nothing.

    A client trains from its first round on, in which it receives the GAN.

    Args:
        setup: networks and settings of the method.
        key: random key of the round.
        state: the state before the round.
        federation: the clients' data.

    Returns:
        The state after the round, and its metrics.
    """
    local: Trained = state.clients
    present = server.participants(federation)
    ever = clients.on_this_device(ever_participating(federation), len(present))
    received = (local.received | present) & ever
    number = federation.now.round
    train = partial(train_gan, examples=federation.pool, setup=setup, number=number)

    def client_round(key, gan, rows, mask):
        gan, (loss, loss_of_generator) = train(key, gan, rows=rows, mask=mask)
        size = training.root_mean_square([network["params"] for network in gan])
        metrics = {
            "loss": loss,
            "generator_loss": loss_of_generator,
            "weight_size": size,
        }
        return gan, metrics

    gans, measured = clients.for_each(
        client_round,
        clients.keys(key, len(present)),
        local.gans,
        federation.indices,
        federation.mask,
    )
    gans = clients.keep_absent(received, gans, local.gans)
    measured, participating, trained, new = server.gather(
        (measured, present, received, present & ~local.received)
    )
    message = jax.tree.map(lambda x: x[0], gans)
    metrics = {
        **server.measure(trained, measured),
        "participants": participating.sum(),
        **server.traffic(new, up={}, down={"gan": message}),
    }
    return State((), Trained(gans, received)), metrics


def begin_clustering(
    setup: Setup,
    clustering: central.Clustering,
    begin: Callable,
    key: PRNGKey,
    state: State,
    federation: Federation,
) -> State:
    """Returns the state at the start of the clustering, with all synthetic examples.

    The server generates the examples of all clients here and starts the first phase of
    the clustering. A client's examples count only after its upload.

    Args:
        setup: networks and settings of the method.
        clustering: the clustering of the synthetic examples.
        begin: `Stage.begin` of its first phase.
        key: random key of the stage.
        state: the state after the stage `gan`.
        federation: the clients' data.

    Returns:
        The state before the first round of the clustering.
    """
    construct_key, begin_key = jax.random.split(key)
    synthesis_key, init_key = jax.random.split(construct_key)
    local, pool, count = state.clients, federation.pool, setup.settings.num_synthetic
    sizes = jnp.where(local.received, federation.mask.sum(axis=1), 0)
    generators, sizes = server.gather((local.gans.generator, sizes))
    if count is None:
        count = federation.indices.shape[1]
    else:
        sizes = jnp.where(sizes > 0, count, 0)
    make = partial(synthesise, setup=setup, dtype=pool.dtype)
    keys = clients.fold_in(synthesis_key, len(sizes))
    synthetic = clients.for_each(partial(make, count=count), keys, generators)
    template = jnp.zeros((1, *pool.shape[1:]), pool.dtype)
    initial = clustering.init(init_key, template)
    state = central.empty_state(Synthetic(synthetic, sizes), initial, federation)
    return begin(begin_key, state, federation)


def examples(
    source: Synthetic, federation: Federation, arrived: Bool[Array, "M"]
) -> tuple[Shaped[Array, "N *F"], Bool[Array, "N"]]:
    """Returns the synthetic examples and which of them count, for `central.Pooling`.

    Args:
        source: the synthetic examples of all clients.
        federation: the clients' data.
        arrived: [M], True at clients that have uploaded their generator.

    Returns:
        All synthetic examples [N, *F], and True at those that count [N].
    """
    arrived = server.gather(arrived) & ever_participating(federation)
    index = jnp.arange(source.examples.shape[1])[None]
    counted = arrived[:, None] & (index < source.sizes[:, None])
    return source.examples.reshape(-1, *source.examples.shape[2:]), counted.reshape(-1)


def uploads(
    setup: Setup,
    source: Synthetic,
    federation: Federation,
    sends: Bool[Array, "A"],
) -> dict[str, Int[Array, "2"]]:
    """Returns the traffic of the uploads, for `central.Pooling`.

    Each client that has received a GAN uploads its generator and its number of
    examples.

    Args:
        setup: networks and settings of the method.
        source: the synthetic examples of all clients.
        federation: the clients' data.
        sends: True at the clients that upload in this round, on all devices.

    Returns:
        The traffic metrics of `server.traffic`.
    """
    key, x = jax.random.key(0), federation.pool[:1]
    gan = jax.eval_shape(lambda x: initialize_gan(key, setup, x), x)
    message = {"generator": gan.generator, "size": source.sizes[0]}
    return server.traffic(sends & (source.sizes > 0), up=message, down={})


def initial_state(setup: Setup, key: PRNGKey, federation: Federation) -> State:
    """Returns the initial state: one GAN, which no client has received yet.

    Args:
        setup: networks and settings of the method.
        key: random key of the GAN.
        federation: the clients' data.

    Returns:
        The initial state.
    """
    gan = initialize_gan(key, setup, federation.pool[:1])
    num_clients = len(federation.indices)
    local = Trained(clients.repeat(gan, num_clients), jnp.zeros(num_clients, bool))
    return State((), local)


def assign(by_clustering: Callable, state: State, federation: Federation):
    """Returns the cluster of every example; -1 before the server clusters.

    Args:
        by_clustering: assigns examples after the stage `gan`.
        state: the current state.
        federation: the clients' data.

    Returns:
        The clusters [M, N].
    """
    if isinstance(state.clients, Trained):
        return jnp.full(federation.indices.shape, -1, jnp.int32)
    return by_clustering(state, federation)


def synthetic_uploads(_: PRNGKey, state: State, federation: Federation) -> Uploads:
    """Returns synthetic examples of the generators that the clients have uploaded.

    Args:
        state: the state after the last round.
        federation: the clients' data.

    Returns:
        The first examples of each client's generator, at most `UPLOADED`.
    """
    source: Synthetic = state.server.source
    examples, arrived = source.examples[:, :UPLOADED], state.clients
    examples, sizes = server.rows_on_this_device(
        (examples, source.sizes), len(federation.indices)
    )
    num_clients, count = examples.shape[:2]
    rows = as_rows(examples.reshape(-1, *examples.shape[2:]), unit_length=False)
    rows = rows.reshape(num_clients, count, -1)
    exists = arrived[:, None] & (jnp.arange(count)[None] < sizes[:, None])
    points = jnp.where(exists[..., None], rows, jnp.nan)
    return Uploads(points, jnp.full((num_clients, count), -1))
