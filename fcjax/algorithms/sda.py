"""SDA-FC and SDA-FDC: clients train GANs, the server clusters their samples.

Generative adversarial networks that clients train, and what a server makes of them.

Inputs of the generator are a category, one-hot, and normal noise (Eq. 2 of SDA-FDC),
so that what one client's generator makes is more diverse. No label is seen.
Authors' code: https://github.com/Jarvisyan/SDA-FC

SDA-FC and SDA-FDC: the server clusters what the clients' generators make.

Federated deep clustering with GAN-based data synthesis
    Jie Yan, Jing Liu, Ji Qi, Zhong-Yuan Zhang. 2022. https://arxiv.org/abs/2211.16965
    (SDA-FDC, in later papers PPFC-GAN: DCN on the synthetic data)
Federated clustering with GAN-based data synthesis
    The same. 2022. https://arxiv.org/abs/2210.16524
    (SDA-FC-KM, SDA-FC-FCM: k-means or fuzzy c-means on it)
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
from fcjax.data.augment import to_float
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
)

# --- GANs

BATCH = 256
"""Examples that are synthesised at a time."""

Losses = tuple[Float[Array, ""], Float[Array, ""]]
"""Of the discriminator and the generator."""


class Pair(NamedTuple):
    """One value for each network of a GAN: variables, optimisers, or all that a step
    changes.
    """

    generator: Any
    discriminator: Any


class Setup(NamedTuple):
    """The networks and settings that all rounds share; see `sda`.

    A client trains its GAN for one epoch per round. Both optimisers begin anew in every
    round. Their steps are scaled by `gan_decay` to the power of the number of the
    round, as in the authors' code.
    """

    gan: Gan
    optimizers: Pair
    settings: Any
    num_categories: int


def initialize_gan(key: PRNGKey, setup: Setup, x: Shaped[Array, "1 *F"]) -> Pair:
    """Draws the networks of a GAN of such examples."""
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
    """Trains a client's GAN for an epoch: in each batch a step of the discriminator on
    real and synthetic examples, then one of the generator on the same synthetic ones,
    for which the authors' code draws others.

    Args:
        key: of the order and of the noise.
        variables: where to begin.
        examples: the pool.
        rows: the client's.
        mask: True at its own examples.
        setup: of the method.
        number: of the round, from 0.

    Returns:
        The trained networks, and the mean losses of the steps.
    """
    decay = optax.scale(jnp.asarray(setup.settings.gan_decay) ** number)
    optimizers = Pair(*(optax.chain(x, decay) for x in setup.optimizers))
    setup = setup._replace(optimizers=optimizers)

    def one(key, at, slots, counted):
        return step(setup, key, at, to_float(examples[rows[slots]]), counted)

    begun = (
        Client(x, optimizer.init(x["params"]))
        for x, optimizer in zip(variables, optimizers, strict=True)
    )
    at = Pair(*begun)
    at, losses = training.epochs(
        *(key, at, one, mask),
        batch_size=setup.settings.gan_batch_size,
        num_epochs=1,
        zero=(0.0, 0.0),
    )
    return Pair(at.generator.variables, at.discriminator.variables), losses


def step(
    setup: Setup,
    key: PRNGKey,
    at: Pair,
    real: Float[Array, "B *F"],
    counted: Bool[Array, "B"],
) -> tuple[Pair, Losses]:
    """A step of the discriminator on a batch of real examples and as many synthetic
    ones, then one of the generator on the same synthetic ones.
    """
    generator, discriminator = setup.gan
    chosen_key, num_categories = jax.random.fold_in(key, 0), setup.num_categories
    chosen = categories(chosen_key, counted.sum(), len(real), num_categories)
    drawn = noise(setup, key, chosen)

    def generate(params):
        maker = {**at.generator.variables, "params": params}
        return generator.apply(maker, drawn, train=True, mask=counted)

    def tell_apart(params):
        judge = {**at.discriminator.variables, "params": params}
        on_real, judge = discriminator.apply(judge, real, train=True, mask=counted)
        on_fake, judge = discriminator.apply(judge, fake, train=True, mask=counted)
        return discriminator_loss(on_real, on_fake, mask=counted), judge

    def pass_as_real(fake):
        judge = judging.variables
        on_fake, _ = discriminator.apply(judge, fake, train=True, mask=counted)
        return generator_loss(on_fake, mask=counted)

    params = at.generator.variables["params"]
    fake, pull_back, maker = jax.vjp(generate, params, has_aux=True)
    params = at.discriminator.variables["params"]
    (told, judge), gradients = jax.value_and_grad(tell_apart, has_aux=True)(params)
    judging = Client(judge, at.discriminator.opt_state)
    judging = descend(setup.optimizers.discriminator, judging, gradients)
    fooled, gradients = jax.value_and_grad(pass_as_real)(fake)
    making = Client(maker, at.generator.opt_state)
    making = descend(setup.optimizers.generator, making, *pull_back(gradients))
    return Pair(making, judging), (told, fooled)


def descend(
    optimizer: optax.GradientTransformation, client: Client, gradients: PyTree
) -> Client:
    """Returns a network and the state of its optimiser after a step."""
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
    """Returns so many examples of a trained generator, its categories by turns.

    The first ones are the same whatever the count.

    Args:
        key: of the noise.
        generator: the variables of the generator.
        count: N.
        setup: of the method.
        dtype: uint8 rounds to the 256 values of a pixel, as real images have them.
    """

    def one(slot):
        category = slot[None] % setup.num_categories
        return noise(setup, jax.random.fold_in(key, slot), category)[0]

    def batch(slots):
        drawn = jax.vmap(one)(slots)
        x, _ = setup.gan.generator.apply(generator, drawn, train=False)
        return jnp.round(255 * x).astype(dtype) if dtype == jnp.uint8 else x

    return training.in_batches(batch, jnp.arange(count), batch_size=BATCH)


def noise(setup: Setup, key: PRNGKey, chosen: Int[Array, "B"]) -> Float[Array, "B L"]:
    """Returns what a generator takes: categories, one-hot, and normal noise."""
    z = jax.random.normal(key, (len(chosen), setup.settings.noise_size))
    one_hot = jax.nn.one_hot(chosen, setup.num_categories)
    return jnp.concatenate([one_hot, z], axis=1)


def categories(
    key: PRNGKey, count: Int[Array, ""], size: int, num_categories: int
) -> Int[Array, "B"]:
    """Returns the categories of a batch of which the first `count` examples count: all
    of them, or, where there are more categories than examples, different ones.

    SDA-FDC's Eq. 2 draws them uniformly. The authors' code cuts a batch into blocks of
    a K-th of it, rounded, and the last category takes what is left; so it is here,
    wherever something is left. Where the blocks before already fill the batch (of ten
    categories one of up to 9, 15 to 18, 26, 27, 35 or 36 examples), the last ones would
    be trained in no batch of that size, and yet be asked for in the end: there all are
    spread evenly, from a random one on.

    Examples:
        >>> def counts(batch):
        ...     chosen = categories(jax.random.key(0), jnp.int32(batch), batch, 10)
        ...     return jnp.bincount(chosen, length=10)
        >>> print(counts(24))  # nine blocks of 2, the last has the rest
        [2 2 2 2 2 2 2 2 2 6]
        >>> print(jnp.sort(counts(15)))  # blocks of 2 would leave two without any
        [1 1 1 1 1 2 2 2 2 2]
    """
    slots = jnp.arange(size)
    block = jnp.maximum(1, jnp.round(count / num_categories).astype(jnp.int32))
    in_blocks = jnp.minimum(slots // block, num_categories - 1)
    first = jax.random.randint(key, (), 0, num_categories)
    spread = (first + slots * num_categories // jnp.maximum(count, 1)) % num_categories
    return jnp.where((num_categories - 1) * block < count, in_blocks, spread)


# --- SDA-FC and SDA-FDC


class Trained(NamedTuple):
    """What the clients have in the first stage."""

    gans: Pair  # stacked on M
    received: Bool[Array, "M"]  # who has been sent one


class Synthetic(NamedTuple):
    """What the clients' generators make; of a client it counts once it has answered."""

    examples: Shaped[Array, "M S *F"]
    sizes: Int[Array, "M"]  # how many of them count


def sda(
    settings: Any,
    gan: Gan,
    optimizers: Pair,
    clustering: central.Clustering,
    *,
    num_clusters: int,
) -> FederatedClustering:
    """Builds SDA-FC or SDA-FDC: generators go up once, then all is the server's.

    The server sends every client the same GAN, which it trains alone, an epoch a round.
    In the first round after that in which a client answers it uploads its generator and
    how many examples it holds, nothing else. The server makes as many examples with
    each generator that came, or `num_synthetic`, and clusters them; a late one's are
    added to them, and nothing is trained anew for it. A client that is sent its GAN
    late has trained it for fewer epochs, one that is sent none is left out. In the last
    round the server sends what assigns examples.

    Args:
        settings: an `fcjax.methods.SDAFDC`, or another of its family, with one value
            per setting.
        gan: the networks of a client; the generator takes K categories, one-hot, and
            `noise_size` normal numbers.
        optimizers: of the generator and of the discriminator.
        clustering: of the synthetic examples. `by_dcn` is SDA-FDC, `by_codes` its
            ablation (disjoint); `by_kmeans` is SDA-FC-KM, `by_fuzzy_cmeans` SDA-FC-FCM.
        num_clusters: K.

    Returns:
        The method, stages `gan` and the phases of the clustering. Metrics of the first
        are its `loss`, the discriminator's (2 ln 2 where it cannot tell), the
        `generator_loss`, `participants`, `weight_size` and the traffic.

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
    gans = all_rounds("gan", partial(gan_round, setup), settings.gan_rounds)
    first, *others = central.cluster_stages(
        clustering,
        central.Pooling(examples, partial(uploads, setup)),
        rounds_before=settings.gan_rounds,
    )
    begin = partial(begin_clustering, setup, clustering, first.begin)
    stages = (gans, first._replace(begin=begin), *others)
    init = partial(initial_state, setup)
    method = central.pooled_method(init, stages, clustering)
    return method._replace(assign=partial(assign, method.assign))


def gan_round(
    setup: Setup, key: PRNGKey, state: State, federation: Federation
) -> tuple[State, dict[str, Array]]:
    """A round of the first stage: clients that have been sent a GAN train it, each by
    itself, and nothing is uploaded.
    """
    own: Trained = state.clients
    present = server.participants(federation)
    ever = clients.on_this_device(ever_participating(federation), len(present))
    received = (own.received | present) & ever
    number = federation.now.round
    train = partial(train_gan, examples=federation.pool, setup=setup, number=number)

    def client_round(key, own, rows, mask):
        own, (told, fooled) = train(key, own, rows=rows, mask=mask)
        size = training.root_mean_square([network["params"] for network in own])
        return own, {"loss": told, "generator_loss": fooled, "weight_size": size}

    gans, measured = clients.for_each(
        client_round,
        clients.keys(key, len(present)),
        own.gans,
        federation.indices,
        federation.mask,
    )
    gans = clients.keep_absent(received, gans, own.gans)
    measured, answered, trained, new = server.gather(
        (measured, present, received, present & ~own.received)
    )
    one = jax.tree.map(lambda x: x[0], gans)
    metrics = {
        **server.measure(trained, measured),
        "participants": answered.sum(),
        **server.traffic(new, up={}, down={"gan": one}),
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
    """Returns the state in which the server has made examples with all generators, and
    begins the first phase of their clustering; until a client answers, its own count
    nowhere.
    """
    construct_key, begin_key = jax.random.split(key)
    synthesis_key, init_key = jax.random.split(construct_key)
    own, pool, count = state.clients, federation.pool, setup.settings.num_synthetic
    sizes = jnp.where(own.received, federation.mask.sum(axis=1), 0)
    generators, sizes = server.gather((own.gans.generator, sizes))
    if count is None:
        count = federation.indices.shape[1]
    else:
        sizes = jnp.where(sizes > 0, count, 0)
    make = partial(synthesise, setup=setup, dtype=pool.dtype)
    keys = clients.fold_in(synthesis_key, len(sizes))
    made = clients.for_each(partial(make, count=count), keys, generators)
    nothing = jnp.zeros((1, *pool.shape[1:]), pool.dtype)
    begun = clustering.init(init_key, nothing)
    state = central.empty_state(Synthetic(made, sizes), begun, federation)
    return begin(begin_key, state, federation)


def examples(
    source: Synthetic, federation: Federation, arrived: Bool[Array, "M"]
) -> tuple[Shaped[Array, "N *F"], Bool[Array, "N"]]:
    """As in `Pooling`: what was made for those who have answered."""
    arrived = server.gather(arrived) & ever_participating(federation)
    slots = jnp.arange(source.examples.shape[1])[None]
    counted = arrived[:, None] & (slots < source.sizes[:, None])
    return source.examples.reshape(-1, *source.examples.shape[2:]), counted.reshape(-1)


def uploads(
    setup: Setup,
    source: Synthetic,
    federation: Federation,
    sends: Bool[Array, "A"],
) -> dict[str, Int[Array, "2"]]:
    """As in `Pooling`: a generator and a size of each that has been sent a GAN."""
    key, x = jax.random.key(0), federation.pool[:1]
    one = jax.eval_shape(lambda x: initialize_gan(key, setup, x), x)
    message = {"generator": one.generator, "size": source.sizes[0]}
    return server.traffic(sends & (source.sizes > 0), up=message, down={})


def initial_state(setup: Setup, key: PRNGKey, federation: Federation) -> State:
    """Returns the state before the first round: one GAN for all, which nobody has been
    sent.
    """
    one = initialize_gan(key, setup, federation.pool[:1])
    num_clients = len(federation.indices)
    own = Trained(clients.repeat(one, num_clients), jnp.zeros(num_clients, bool))
    return State((), own)


def assign(by_clustering: Callable, state: State, federation: Federation):
    """As in `FederatedClustering`: none before the server clusters."""
    if isinstance(state.clients, Trained):
        return jnp.full(federation.indices.shape, -1, jnp.int32)
    return by_clustering(state, federation)
