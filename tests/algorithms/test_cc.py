"""CC: the loss of a batch, its gradient, and rows that are not clustered."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax.algorithms.averaging import Local
from fcjax.algorithms.cc import cc, is_clustered, total_entropy
from tests.algorithms import plain
from tests.algorithms.federations import federate
from tests.algorithms.plain import matrix, noisy

STEP, TAU_I, TAU_C, NUM_CLUSTERED = 0.5, 0.4, 0.9, 9


@pytest.fixture(scope="module")
def problem():
    """One client; rows from 9 on are extra. A round has a batch of each kind."""
    pool = np.random.default_rng(0).normal(size=(14, 4)).astype(np.float32)
    federation = federate(pool, (np.arange(14),))
    method = cc(
        *(matrix(5), matrix(3), matrix(3, soft=True)),
        Local(optax.sgd(STEP), noisy, num_epochs=1, batch_size=20),
        num_rounds=1,
        instance_temperature=TAU_I,
        cluster_temperature=TAU_C,
        num_clustered=NUM_CLUSTERED,
    )
    state = method.init(jax.random.key(0), federation)
    key = jax.random.key(1)
    new, metrics = jax.jit(method.stages[0].round)(key, state, federation)
    return pool, key, kernels(state), kernels(new), metrics


def kernels(state):
    return {name: part["params"]["kernel"] for name, part in state.online.items()}


def instance_loss(w, views, xp):
    z = [x @ w["encoder"] @ w["projector"] for x in views]
    return plain.nt_xent(*z, TAU_I, xp)


def loss(w, views, xp):
    """The sum of CC's two losses, the entropies of both views subtracted."""
    y = [x @ w["encoder"] @ w["cluster_projector"] for x in views]
    c = [xp.exp(x) / xp.exp(x).sum(axis=1, keepdims=True) for x in y]
    clusters = plain.nt_xent(c[0].T, c[1].T, TAU_C, xp)
    entropies = sum(plain.entropy(x, xp) for x in c)
    return instance_loss(w, views, xp) + clusters - entropies


def gradient_of(loss):
    return jax.jit(jax.grad(partial(loss, xp=jnp)))


def test_extra_rows_come_first_and_by_the_instance_loss_alone(problem):
    pool, key, before, after, metrics = problem
    extra = np.arange(len(pool)) >= NUM_CLUSTERED
    ((slots, step_key),) = plain.steps(key, extra, number=0)
    assert sorted(slots) == [9, 10, 11, 12, 13]
    pair = plain.views(step_key, pool[slots])
    gradient = gradient_of(instance_loss)(before, pair)
    between = jax.tree.map(lambda w, g: w - STEP * g, before, gradient)
    np.testing.assert_array_equal(
        between["cluster_projector"], before["cluster_projector"]
    )

    ((slots, step_key),) = plain.steps(key, ~extra, number=1)
    pair = plain.views(step_key, pool[slots])
    gradient = gradient_of(loss)(between, pair)
    for name, w in between.items():
        np.testing.assert_allclose(
            after[name], w - STEP * gradient[name], rtol=1e-4, atol=1e-5
        )
    values = [np.asarray(x, np.float64) for x in pair]
    expected = loss(jax.tree.map(np.asarray, between), values, np)
    assert float(metrics["loss"]) == pytest.approx(expected, rel=1e-5)


def test_heads_go_up_and_down_and_there_is_no_target(problem):
    *_, metrics = problem
    sizes = {"encoder": 4 * 5, "projector": 5 * 3, "cluster_projector": 5 * 3}
    traffic = {k: list(v) for k, v in metrics.items() if k[:3] in ("up_", "dow")}
    assert traffic == {
        f"{way}_{name}": [1, 4 * size]
        for way in ("up", "down")
        for name, size in sizes.items()
    }


def test_the_cluster_of_an_example_is_its_largest_soft_assignment(problem):
    pool, _, before, *_ = problem
    method = cc(
        *(matrix(5), matrix(3), matrix(3, soft=True)), Local(optax.sgd(STEP), noisy)
    )
    federation = federate(pool, (np.arange(14),))
    state = method.init(jax.random.key(0), federation)
    y = pool @ np.asarray(before["encoder"] @ before["cluster_projector"])
    np.testing.assert_array_equal(method.assign(state, federation)[0], y.argmax(axis=1))


def test_entropy_is_that_of_the_rows_that_count():
    c = np.array([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]], np.float32)
    mask = jnp.array([True, True, False])
    pair = (jnp.asarray(c), jnp.asarray(c[:, ::-1]))
    expected = -2 * (0.375 * np.log(0.375) + 0.625 * np.log(0.625))
    assert float(total_entropy(pair, mask)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("count", "expected"), [(None, [True, True]), (3, [True, False])]
)
def test_the_first_rows_are_clustered_or_all(count, expected):
    np.testing.assert_array_equal(is_clustered(count)(jnp.array([2, 3])), expected)
