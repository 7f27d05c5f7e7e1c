"""Generative adversarial networks that clients train, and what a server makes of them.

Inputs of the generator are a category, one-hot, and normal noise (Eq. 2 of SDA-FDC),
so that what one client's generator makes is more diverse. No label is seen.
Authors' code: https://github.com/Jarvisyan/SDA-FC
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Shaped

from fcjax import training
from fcjax.clients import Client
from fcjax.data.augment import to_float
from fcjax.losses import discriminator_loss, generator_loss
from fcjax.models.gan import Gan
from fcjax.types import Pool, PRNGKey, PyTree, Scalar

BATCH = 256
"""Examples that are synthesised at a time."""

Losses = tuple[Float[Array, ""], Float[Array, ""]]
"""Of the discriminator and the generator."""


class Adversarial(NamedTuple):
    """How a client trains its GAN; a round is an epoch.

    Both optimisers begin anew in every round, their steps scaled by the decay to the
    power of the number of the round, as in the authors' code.
    """

    gan: Gan
    generator_optimizer: optax.GradientTransformation
    discriminator_optimizer: optax.GradientTransformation
    num_rounds: int = 50
    batch_size: int = 64
    decay: Scalar = 0.99
    num_categories: int = 10
    noise_size: int = 62


class Pair(NamedTuple):
    """What both networks have: variables, or all that a step changes."""

    generator: Any
    discriminator: Any


def initialize_gan(
    key: PRNGKey, adversarial: Adversarial, x: Shaped[Array, "1 *F"]
) -> Pair:
    """Draws the networks of a GAN of such examples."""
    generator_key, discriminator_key = jax.random.split(key)
    noise = jnp.zeros((1, adversarial.num_categories + adversarial.noise_size))
    generator, discriminator = adversarial.gan
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
    adversarial: Adversarial,
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
        adversarial: how it trains.
        number: of the round, from 0.

    Returns:
        The trained networks, and the mean losses of the steps.
    """
    decay = optax.scale(jnp.asarray(adversarial.decay) ** number)
    of_generator = optax.chain(adversarial.generator_optimizer, decay)
    of_discriminator = optax.chain(adversarial.discriminator_optimizer, decay)
    adversarial = adversarial._replace(
        generator_optimizer=of_generator, discriminator_optimizer=of_discriminator
    )

    def one(key, at, slots, counted):
        return step(adversarial, key, at, to_float(examples[rows[slots]]), counted)

    generator, discriminator = variables
    at = Pair(
        Client(generator, of_generator.init(generator["params"])),
        Client(discriminator, of_discriminator.init(discriminator["params"])),
    )
    at, losses = training.epochs(
        *(key, at, one, mask),
        batch_size=adversarial.batch_size,
        num_epochs=1,
        zero=(0.0, 0.0),
    )
    return Pair(at.generator.variables, at.discriminator.variables), losses


def step(
    adversarial: Adversarial,
    key: PRNGKey,
    at: Pair,
    real: Float[Array, "B *F"],
    counted: Bool[Array, "B"],
) -> tuple[Pair, Losses]:
    """A step of the discriminator on a batch of real examples and as many synthetic
    ones, then one of the generator on the same synthetic ones."""
    generator, discriminator = adversarial.gan
    chosen_key, num_categories = jax.random.fold_in(key, 0), adversarial.num_categories
    chosen = categories(chosen_key, counted.sum(), len(real), num_categories)
    drawn = noise(adversarial, key, chosen)

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
    judging = descend(adversarial.discriminator_optimizer, judging, gradients)
    fooled, gradients = jax.value_and_grad(pass_as_real)(fake)
    making = Client(maker, at.generator.opt_state)
    making = descend(adversarial.generator_optimizer, making, *pull_back(gradients))
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
    adversarial: Adversarial,
    *,
    dtype: jnp.dtype,
) -> Shaped[Array, "N *F"]:
    """Returns so many examples of a trained generator, its categories by turns.

    The first ones are the same whatever the count.

    Args:
        key: of the noise.
        generator: the variables of the generator.
        count: N.
        adversarial: whose networks they are.
        dtype: uint8 rounds to the 256 values of a pixel, as real images have them.
    """

    def one(slot):
        category = slot[None] % adversarial.num_categories
        return noise(adversarial, jax.random.fold_in(key, slot), category)[0]

    def batch(slots):
        drawn = jax.vmap(one)(slots)
        x, _ = adversarial.gan.generator.apply(generator, drawn, train=False)
        return jnp.round(255 * x).astype(dtype) if dtype == jnp.uint8 else x

    return training.in_batches(batch, jnp.arange(count), batch_size=BATCH)


def noise(
    adversarial: Adversarial, key: PRNGKey, chosen: Int[Array, "B"]
) -> Float[Array, "B L"]:
    """Returns what a generator takes: categories, one-hot, and normal noise."""
    z = jax.random.normal(key, (len(chosen), adversarial.noise_size))
    one_hot = jax.nn.one_hot(chosen, adversarial.num_categories)
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
