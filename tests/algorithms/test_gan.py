"""A client's GAN against its steps written out in NumPy, and what a generator makes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fcjax.algorithms.sda import (
    Pair,
    Setup,
    categories,
    initialize_gan,
    synthesise,
    train_gan,
)
from fcjax.methods import SDAFDC
from fcjax.nn.generative import Gan
from fcjax.types import Network
from tests.algorithms.plain import epochs, matrix

NUM_CATEGORIES, NOISE_SIZE, NUM_FEATURES, BATCH = 3, 2, 4, 4
RATES, MOMENTUM, DECAY = (0.3, 0.2), 0.9, 0.5


def linear_judge() -> Network:
    """A matrix of one column, whose logits come without their axis."""
    network = matrix(1)

    def apply(variables, x, *, train, mask=None):
        logits, variables = network.apply(variables, x, train=train, mask=mask)
        return logits[:, 0], variables

    return Network(network.init, apply)


SETTINGS = SDAFDC().plain(gan_batch_size=BATCH, gan_decay=DECAY, noise_size=NOISE_SIZE)
SETUP = Setup(
    Gan(matrix(NUM_FEATURES, centre=True), linear_judge()),
    Pair(*(optax.sgd(rate, momentum=MOMENTUM) for rate in RATES)),
    SETTINGS,
    num_categories=NUM_CATEGORIES,
)


def blocks(key, count, num_categories):
    """As the authors fill the columns of their one-hot labels, if all get anything."""
    size = max(1, round(count / num_categories))
    if (num_categories - 1) * size >= count:
        first = int(jax.random.randint(key, (), 0, num_categories))
        return (first + np.arange(count) * num_categories // count) % num_categories
    chosen = np.zeros(count, int)
    for i in range(num_categories):
        end = count if i == num_categories - 1 else (i + 1) * size
        chosen[i * size : end] = i
    return chosen


BY_HAND = {
    64: [6] * 9 + [10],
    24: [2] * 9 + [6],
    25: [2] * 9 + [7],  # 2.5 is rounded to the even 2, as Python does
    10: [1] * 10,
    19: [1] + [2] * 9,
    20: [2] * 10,
    # Blocks of 2, 3 or 4 would leave nothing to the last, or the last two.
    15: [1] * 5 + [2] * 5,
    18: [1] * 2 + [2] * 8,
    26: [2] * 4 + [3] * 6,
    36: [3] * 4 + [4] * 6,
    # Fewer examples than categories: different ones.
    9: [0] + [1] * 9,
    1: [0] * 9 + [1],
}


def test_by_hand_no_category_is_left_out_by_rounding():
    """Ten of them; which has one more is drawn."""
    draw = jax.jit(
        jax.vmap(lambda key, count: categories(key, count, 64, 10), (0, None))
    )
    for count, expected in BY_HAND.items():
        chosen = draw(jax.random.split(jax.random.key(count), 60), jnp.int32(count))
        found = [np.bincount(own[:count], minlength=10) for own in np.asarray(chosen)]
        np.testing.assert_array_equal(np.sort(found, axis=1), [expected] * 60)
        if count in (1, 9, 15, 18, 26, 36):
            # None is favoured: at most a fair coin in each draw, whose 60 spread by 4.
            assert np.abs(np.sum(found, axis=0) - 6 * count).max() < 16


# --- training


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.logaddexp(0, x)


def epoch(key, w, v, running, real, held, number):
    """The generator's matrix w, whose batches are centred, the discriminator's vector
    v, and the mean that the generator runs along. `held` are the true slots."""
    (rate_w, rate_v), to_w, to_v = np.array(RATES) * DECAY**number, 0.0, 0.0
    losses = []
    for slots, of_step in epochs(key, held, batch_size=BATCH):
        x, n = real[slots].astype(np.float64), len(slots)
        normal = jax.random.normal(of_step, (BATCH, NOISE_SIZE))
        first_key = jax.random.fold_in(of_step, 0)
        one_hot = np.eye(NUM_CATEGORIES)[blocks(first_key, n, NUM_CATEGORIES)]
        drawn = np.concatenate([one_hot, np.asarray(normal)[:n]], axis=1)
        made = drawn @ w
        running = 0.9 * running + 0.1 * made.mean(axis=0)
        made = made - made.mean(axis=0)

        told = softplus(-x @ v).mean() + softplus(made @ v).mean()
        slope = (sigmoid(made @ v) @ made - sigmoid(-x @ v) @ x) / n
        to_v = slope + MOMENTUM * to_v
        v = v - rate_v * to_v

        # Against the new discriminator; all its -log D, not log(1 - D).
        fooled = softplus(-made @ v).mean()
        to_made = -np.outer(sigmoid(-made @ v), v) / n
        to_w = (drawn - drawn.mean(axis=0)).T @ to_made + MOMENTUM * to_w
        w = w - rate_w * to_w
        losses.append((told, fooled))
    return w, v, running, np.mean(losses, axis=0)


def as_plain(gan: Pair):
    statistics = gan.generator["batch_stats"]["mean"]
    kernels = [network["params"]["kernel"] for network in gan]
    w, v, running = (np.asarray(x, np.float64) for x in (*kernels, statistics))
    return w, v[:, 0], running


def test_two_rounds_are_those_of_the_authors_loop():
    """First the discriminator, then the generator against it; both optimisers begin
    anew in every round, a decay slower. What the padding holds counts nowhere."""
    pool = np.random.default_rng(0).integers(0, 256, (20, NUM_FEATURES), np.uint8)
    held = np.arange(12) < 10  # batches of 4, 4 and 2
    rows = np.r_[np.arange(10) + 5, [0, 1]]  # 0 and 1 are nobody's
    train = jax.jit(
        lambda key, gan, number: train_gan(
            key,
            gan,
            *map(jnp.asarray, (pool, rows, held)),
            SETUP,
            number=number,
        )
    )
    example = jnp.zeros((1, NUM_FEATURES))
    gan = initialize_gan(jax.random.key(3), SETUP, example)
    expected = as_plain(gan)
    for number, key in ((3, jax.random.key(1)), (4, jax.random.key(2))):
        gan, losses = train(key, gan, number)
        *expected, means = epoch(key, *expected, pool[rows] / 255, held, number)
        for found, x in zip(as_plain(gan), expected, strict=True):
            np.testing.assert_allclose(found, x, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(losses, means, rtol=1e-5)


# --- synthesis


def test_examples_are_the_generators_in_evaluation(key):
    """Each by itself: its category by turns, its noise by its own key; pixels are
    rounded as real ones are."""
    rng = np.random.default_rng(1)
    # From inputs to colours between 0 and 1, by the running mean.
    kernel = np.r_[rng.uniform(0.4, 0.6, (3, 4)), 0.02 * rng.normal(size=(2, 4))]
    mean = rng.uniform(0.0, 0.2, 4)
    generator = {
        "params": {"kernel": jnp.asarray(kernel, jnp.float32)},
        "batch_stats": {"mean": jnp.asarray(mean, jnp.float32), "calls": 0.0},
    }

    def make(count, dtype):
        return synthesise(key, generator, count, SETUP, dtype=np.dtype(dtype))

    expected = []
    for slot in range(7):
        normal = jax.random.normal(jax.random.fold_in(key, slot), (NOISE_SIZE,))
        drawn = np.concatenate([np.eye(NUM_CATEGORIES)[slot % NUM_CATEGORIES], normal])
        expected.append(drawn @ kernel - mean)
    expected = np.array(expected)
    np.testing.assert_allclose(make(7, "float32"), expected, atol=1e-6)
    many = make(600, "float32")  # over several batches
    np.testing.assert_allclose(many[:7], expected, atol=1e-6)
    assert len(np.unique(np.asarray(many), axis=0)) == 600

    pixels = make(7, "uint8")
    assert pixels.dtype == np.uint8
    assert 20 < 255 * expected.min() < 255 * expected.max() < 250
    np.testing.assert_allclose(np.asarray(pixels, float), 255 * expected, atol=0.501)
