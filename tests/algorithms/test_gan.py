"""A client's GAN against its steps written out in NumPy, and what a generator makes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax import training
from fcjax.algorithms.gan import (
    Adversarial,
    GanVariables,
    categories,
    initialize_gan,
    synthesise,
    train_gan,
)
from fcjax.models.gan import Gan
from fcjax.types import Network
from tests.algorithms.plain import matrix

NUM_CATEGORIES, NOISE_SIZE, NUM_FEATURES, BATCH = 3, 2, 4, 4
RATES, MOMENTUM, DECAY = (0.3, 0.2), 0.9, 0.5


def linear_judge() -> Network:
    """A matrix of one column, whose logits come without their axis."""
    network = matrix(1)

    def apply(variables, x, *, train, mask=None):
        logits, variables = network.apply(variables, x, train=train, mask=mask)
        return logits[:, 0], variables

    return Network(network.init, apply)


def adversarial(**options):
    rates = [optax.sgd(rate, momentum=MOMENTUM) for rate in RATES]
    return Adversarial(
        Gan(matrix(NUM_FEATURES, centre=True), linear_judge()),
        *rates,
        batch_size=BATCH,
        decay=DECAY,
        num_categories=NUM_CATEGORIES,
        noise_size=NOISE_SIZE,
        **options,
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


draw_categories = jax.jit(categories, static_argnums=(2, 3))


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (64, [6] * 9 + [10]),
        (24, [2] * 9 + [6]),
        (25, [2] * 9 + [7]),  # 2.5 is rounded to the even 2, as Python does
        (10, [1] * 10),
        (11, [1] * 9 + [2]),
        (12, [1] * 9 + [3]),
        (13, [1] * 9 + [4]),
        (14, [1] * 9 + [5]),
        (19, [2] * 9 + [1]),
        (20, [2] * 10),
    ],
)
def test_categories_come_in_the_blocks_of_the_authors_code(key, count, expected):
    chosen = draw_categories(key, jnp.int32(count), 64, 10)
    assert chosen.shape == (64,)
    chosen = np.asarray(chosen)[:count]
    np.testing.assert_array_equal(np.bincount(chosen, minlength=10), expected)
    assert (np.diff(chosen) >= 0).all()


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        # Blocks of 2, 3 or 4 would leave nothing to the last, or the last two.
        (15, [1] * 5 + [2] * 5),
        (16, [1] * 4 + [2] * 6),
        (17, [1] * 3 + [2] * 7),
        (18, [1] * 2 + [2] * 8),
        (26, [2] * 4 + [3] * 6),
        (27, [2] * 3 + [3] * 7),
        (35, [3] * 5 + [4] * 5),
        (36, [3] * 4 + [4] * 6),
        # Fewer examples than categories: different ones.
        (9, [0] + [1] * 9),
        (4, [0] * 6 + [1] * 4),
        (1, [0] * 9 + [1]),
    ],
)
def test_no_category_is_left_out_by_rounding(count, expected):
    """How many examples they have is by hand; which has one more is drawn."""
    often = np.zeros(10)
    for seed in range(60):
        chosen = draw_categories(jax.random.key(seed), jnp.int32(count), 64, 10)
        found = np.bincount(np.asarray(chosen)[:count], minlength=10)
        np.testing.assert_array_equal(np.sort(found), expected)
        often += found
    assert (often > 0).all()
    # None is favoured: at most a fair coin in each draw, whose 60 spread by 4.
    assert np.abs(often - 6 * count).max() < 16


@pytest.mark.parametrize("num_categories", [1, 2, 3, 7, 10, 26])
def test_a_batch_trains_every_category_that_it_has_room_for(key, num_categories):
    for count in range(1, 101):
        chosen = draw_categories(key, jnp.int32(count), 100, num_categories)
        found = np.unique(np.asarray(chosen)[:count])
        assert len(found) == min(count, num_categories), count
        assert found.min() >= 0
        assert found.max() < num_categories


# --- training


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softplus(x):
    return np.logaddexp(0, x)


class Descent:
    """Steps of SGD with momentum, from nothing."""

    def __init__(self, rate):
        self.rate, self.trace = rate, 0.0

    def step(self, w, gradient):
        self.trace = gradient + MOMENTUM * self.trace
        return w - self.rate * self.trace


def epoch(key, w, v, running, real, held, number):
    """The generator's matrix w, whose batches are centred, the discriminator's vector
    v, and the mean that the generator runs along. `held` are the true slots."""
    of_w, of_v = (Descent(rate * DECAY**number) for rate in RATES)
    order_key, step_key = jax.random.split(jax.random.fold_in(key, 0))
    order = np.asarray(training.shuffle(order_key, jnp.asarray(held)))[: held.sum()]
    losses = []
    for i, start in enumerate(range(0, len(order), BATCH)):
        x = real[order[start : start + BATCH]].astype(np.float64)
        n = len(x)
        of_step = jax.random.fold_in(step_key, i)
        normal = jax.random.normal(of_step, (BATCH, NOISE_SIZE))
        first_key = jax.random.fold_in(of_step, 0)
        one_hot = np.eye(NUM_CATEGORIES)[blocks(first_key, n, NUM_CATEGORIES)]
        drawn = np.concatenate([one_hot, np.asarray(normal)[:n]], axis=1)
        made = drawn @ w
        running = 0.9 * running + 0.1 * made.mean(axis=0)
        made = made - made.mean(axis=0)

        told = softplus(-x @ v).mean() + softplus(made @ v).mean()
        gradient = (sigmoid(made @ v) @ made - sigmoid(-x @ v) @ x) / n
        v = of_v.step(v, gradient)

        # Against the new discriminator; all its -log D, not log(1 - D).
        fooled = softplus(-made @ v).mean()
        to_made = -np.outer(sigmoid(-made @ v), v) / n
        w = of_w.step(w, (drawn - drawn.mean(axis=0)).T @ to_made)
        losses.append((told, fooled))
    return w, v, running, np.mean(losses, axis=0)


def as_plain(gan: GanVariables):
    statistics = gan.generator["batch_stats"]["mean"]
    kernels = [network["params"]["kernel"] for network in gan]
    w, v, running = (np.asarray(x, np.float64) for x in (*kernels, statistics))
    return w, v[:, 0], running


@pytest.fixture(scope="module")
def pool():
    return np.random.default_rng(0).integers(0, 256, (20, NUM_FEATURES), np.uint8)


@pytest.fixture(scope="module")
def train(pool):
    @jax.jit
    def train(key, gan, rows, mask, number):
        pixels = jnp.asarray(pool)
        return train_gan(key, gan, pixels, rows, mask, adversarial(), number=number)

    return train


@pytest.fixture(scope="module")
def start():
    return initialize_gan(
        jax.random.key(3), adversarial(), jnp.zeros((1, NUM_FEATURES))
    )


HELD = np.arange(12) < 10  # batches of 4, 4 and 2
ROWS = np.r_[np.arange(10) + 5, [0, 1]]  # 0 and 1 are nobody's


def test_two_rounds_are_those_of_the_authors_loop(train, start, pool):
    """First the discriminator, then the generator against it; both optimisers begin
    anew in every round, a decay slower."""
    gan, expected = start, as_plain(start)
    for number, key in ((3, jax.random.key(1)), (4, jax.random.key(2))):
        gan, losses = train(key, gan, ROWS, HELD, number)
        *expected, means = epoch(key, *expected, pool[ROWS] / 255, HELD, number)
        for found, x in zip(as_plain(gan), expected, strict=True):
            np.testing.assert_allclose(found, x, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(losses, means, rtol=1e-5)


def test_a_round_moves_by_its_decay(train, start):
    """A single step: half as far in the next round."""
    few = np.arange(12) < 4
    key = jax.random.key(1)
    first, second = (train(key, start, ROWS, few, number)[0] for number in (0, 1))

    def moved(gan):
        return as_plain(gan)[1] - as_plain(start)[1]

    assert np.abs(moved(first)).max() > 1e-2
    np.testing.assert_allclose(moved(second), 0.5 * moved(first), rtol=1e-4)


def test_what_the_padding_holds_changes_nothing(train, start):
    key = jax.random.key(1)
    others = np.r_[ROWS[:10], [18, 19]]
    jax.tree.map(
        np.testing.assert_array_equal,
        train(key, start, ROWS, HELD, 0),
        train(key, start, others, HELD, 0),
    )


def test_a_key_decides_the_draws(train, start):
    one, other = (train(jax.random.key(i), start, ROWS, HELD, 0)[0] for i in (1, 2))
    assert np.abs(as_plain(one)[0] - as_plain(other)[0]).max() > 1e-3


# --- synthesis


@pytest.fixture(scope="module")
def generator():
    """From inputs to colours between 0 and 1, by its running mean."""
    rng = np.random.default_rng(1)
    kernel = np.concatenate(
        [rng.uniform(0.4, 0.6, (3, 4)), 0.02 * rng.normal(size=(2, 4))]
    )
    mean = rng.uniform(0.0, 0.2, 4)
    return {
        "params": {"kernel": jnp.asarray(kernel, jnp.float32)},
        "batch_stats": {"mean": jnp.asarray(mean, jnp.float32), "calls": 0.0},
    }


@pytest.fixture(scope="module")
def make():
    return jax.jit(
        partial(synthesise, adversarial=adversarial()),
        static_argnames=("count", "dtype"),
    )


def made_plainly(key, generator, count):
    """Each example by itself: its category by turns, its noise by its own key."""
    rows = []
    for slot in range(count):
        normal = jax.random.normal(jax.random.fold_in(key, slot), (NOISE_SIZE,))
        drawn = np.concatenate([np.eye(NUM_CATEGORIES)[slot % NUM_CATEGORIES], normal])
        kernel = np.asarray(generator["params"]["kernel"], np.float64)
        rows.append(drawn @ kernel - np.asarray(generator["batch_stats"]["mean"]))
    return np.array(rows)


def test_examples_are_the_generators_in_evaluation(key, generator, make):
    x = make(key, generator, count=7, dtype=np.dtype("float32"))
    np.testing.assert_allclose(x, made_plainly(key, generator, 7), atol=1e-6)


def test_pixels_are_rounded_as_real_ones_are(key, generator, make):
    x = make(key, generator, count=7, dtype=np.dtype("uint8"))
    assert x.dtype == np.uint8
    expected = 255 * made_plainly(key, generator, 7)
    assert 20 < expected.min() < expected.max() < 250
    np.testing.assert_allclose(np.asarray(x, float), expected, atol=0.501)


def test_the_first_examples_are_the_same_whatever_the_count(key, generator, make):
    few, many = (
        make(key, generator, count=count, dtype=np.dtype("float32"))
        for count in (7, 600)
    )
    assert many.shape == (600, NUM_FEATURES)
    np.testing.assert_allclose(few, many[:7], atol=1e-6)
    assert len(np.unique(np.asarray(many), axis=0)) == 600  # over several batches
