"""A server with examples in phases: which it has in which round, and what is sent."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.algorithms.central import central
from fcjax.algorithms.pooling import (
    Clustering,
    Phase,
    Pooling,
    PoolingState,
    cluster_stages,
)
from tests.algorithms.federations import federate

ROWS = (np.array([4, 0, 5]), np.array([1]), np.array([3, 2]))
PRESENT = np.array([[1, 0, 0], [0, 0, 1], [1, 0, 1], [0, 0, 0], [0, 1, 1]], bool)


class Total(NamedTuple):
    """Made up: sums of the examples that count, and how often a phase began."""

    sums: jax.Array
    begun: jax.Array


def adding_up() -> Clustering:
    def total(x, mask):
        return jnp.sum(x, where=mask[:, None], axis=0)

    def begin(key, state, x, mask):
        return Total(state.sums, state.begun + total(x, mask))

    def round(key, state, x, mask):
        sums = state.sums + total(x, mask)
        return Total(sums, state.begun), sums.sum()

    return Clustering(
        lambda key, x: Total(0 * x[0], 0 * x[0]),
        (Phase("one", begin, round, 2), Phase("two", begin, round, 3)),
        embed=lambda state, x: x + state.sums[None],
        assign=lambda state, z: (z[:, 0] > state.sums[0] + 10).astype(jnp.int32),
        results=lambda state: {"sums": state.sums, "pair": (state.sums, state.begun)},
    )


@pytest.fixture(scope="module")
def pool():
    return 2.0 ** np.arange(6)[:, None]  # so that a sum tells who is in it


@pytest.fixture(scope="module")
def data(pool):
    return federate(pool, ROWS)._replace(present=jnp.asarray(PRESENT))


def run(method, key, federation):
    state, states, metrics = method.init(key, federation), [], []
    for stage in method.stages:
        state = stage.begin(key, state, federation)
        for _ in range(stage.num_rounds):
            state, measured = stage.round(key, state, federation)
            states.append(state)
            metrics.append(measured)
    return states, metrics


@pytest.fixture(scope="module")
def found(data):
    return run(central(adding_up()), jax.random.key(0), data)


def test_a_phase_has_the_examples_of_those_who_came_by_then(found, pool):
    first, second, third = (pool[rows].sum() for rows in ROWS)
    of_rounds = [first, *[first + third] * 3, first + second + third]
    sums = np.cumsum(of_rounds)
    states, metrics = found
    np.testing.assert_allclose([state.clustering.sums[0] for state in states], sums)
    np.testing.assert_allclose([row["loss"] for row in metrics], sums)
    # A phase begins with what is there, which is nothing before the first round.
    begun = [state.clustering.begun[0] for state in states]
    np.testing.assert_allclose(begun, [0, 0, *[first + third] * 3])
    arrived = [state.arrived for state in states]
    np.testing.assert_array_equal(arrived, np.logical_or.accumulate(PRESENT))
    assert [int(state.num_rounds) for state in states] == [1, 2, 3, 4, 5]


def test_examples_go_up_once_and_results_down_in_the_last_round(found):
    _, metrics = found
    # An example is one float32, the results three of them.
    sent = [[3, 4], [2, 4], [0, 4], [0, 4], [1, 4]]
    np.testing.assert_array_equal([row["up_examples"] for row in metrics], sent)
    for name, size in (("down_sums", 4), ("down_pair", 8)):
        pairs = np.array([row[name] for row in metrics])
        np.testing.assert_array_equal(pairs, [[0, size]] * 4 + [[2, size]])
    assert [int(row["participants"]) for row in metrics] == [1, 1, 2, 0, 2]
    names = {"loss", "participants", "up_examples", "down_sums", "down_pair"}
    assert all(set(row) == names for row in metrics)


def test_clients_embed_and_assign_as_the_clustering(data, pool):
    method = central(adding_up())
    state = method.init(jax.random.key(0), data)
    rows = pool[np.asarray(data.indices)]
    np.testing.assert_allclose(method.embed(state, data), rows)
    np.testing.assert_array_equal(method.assign(state, data), rows[..., 0] > 10)


def test_rounds_are_counted_on_from_those_before(data):
    """As of a stage of the clients: who is present, and which is the last."""
    pooling = Pooling(
        lambda source, federation, arrived: (federation.pool, jnp.ones(6, bool)),
        lambda source, federation, sends: {"up_who": sends},
    )
    one, two = cluster_stages(adding_up(), pooling, rounds_before=2)
    assert (one.num_rounds, two.num_rounds) == (2, 3)
    start = PoolingState(
        (), jnp.zeros(3, bool), Total(*jnp.zeros((2, 1))), jnp.int32(2)
    )
    later = data._replace(present=jnp.concatenate([~data.present[:2], data.present]))
    key, state, who, down = jax.random.key(0), start, [], []
    for stage in (one, one, two, two, two):
        state, metrics = stage.round(key, state, later)
        who.append(np.asarray(metrics["up_who"]))
        down.append(int(metrics["down_sums"][0]))
    first = [[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0], [0, 1, 0]]
    np.testing.assert_array_equal(who, first)
    assert down == [0, 0, 0, 0, 2]
