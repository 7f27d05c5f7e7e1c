"""A server with examples in phases: which it has in which round, and what is sent."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.algorithms.central import (
    Clustering,
    Phase,
    Pooling,
    central,
    cluster_stages,
    pooled,
)
from tests.algorithms.federations import all_rounds, federate, traffic

ROWS = (np.array([4, 0, 5]), np.array([1]), np.array([3, 2]))
PRESENT = np.array([[1, 0, 0], [0, 0, 1], [1, 0, 1], [0, 0, 0], [0, 1, 1]], bool)
POOL = 2.0 ** np.arange(6)[:, None]  # so that a sum tells who is in it


class Total(NamedTuple):
    """Made up: sums of the examples that count, and how often a phase began."""

    sums: jax.Array
    begun: jax.Array


def total(x, mask):
    return jnp.sum(x, where=mask[:, None], axis=0)


def begin(key, state, x, mask):
    return Total(state.sums, state.begun + total(x, mask))


def add_up(key, state, x, mask):
    sums = state.sums + total(x, mask)
    return Total(sums, state.begun), sums.sum()


ADDING_UP = Clustering(
    lambda key, x: Total(0 * x[0], 0 * x[0]),
    (Phase("one", begin, add_up, 2), Phase("two", begin, add_up, 3)),
    embed=lambda state, x: x + state.sums[None],
    assign=lambda state, z: (z[:, 0] > state.sums[0] + 10).astype(jnp.int32),
    results=lambda state: {"sums": state.sums, "pair": (state.sums, state.begun)},
)


@pytest.fixture(scope="module")
def data():
    return federate(POOL, ROWS)._replace(present=jnp.asarray(PRESENT))


def test_a_phase_has_the_examples_of_those_who_came_by_then(data):
    first, second, third = (POOL[rows].sum() for rows in ROWS)
    of_rounds = [first, *[first + third] * 3, first + second + third]
    sums = np.cumsum(of_rounds)
    found = all_rounds(central(ADDING_UP), jax.random.key(0), data)
    states, metrics = zip(*found, strict=True)
    servers = [state.server for state in states]
    np.testing.assert_allclose([x.clustering.sums[0] for x in servers], sums)
    np.testing.assert_allclose([row["loss"] for row in metrics], sums)
    # A phase begins with what is there, which is nothing before the first round.
    begun = [x.clustering.begun[0] for x in servers]
    np.testing.assert_allclose(begun, [0, 0, *[first + third] * 3])
    arrived = [state.clients for state in states]
    np.testing.assert_array_equal(arrived, np.logical_or.accumulate(PRESENT))
    assert [int(x.num_rounds) for x in servers] == [1, 2, 3, 4, 5]

    # Examples go up once and results down in the last round: an example is one float32,
    # the results three of them.
    uploads = [[3, 4], [2, 4], [0, 4], [0, 4], [1, 4]]
    receivers = [0, 0, 0, 0, 2]
    for row, up, down in zip(metrics, uploads, receivers, strict=True):
        sent = {"up_examples": up, "down_sums": [down, 4], "down_pair": [down, 8]}
        assert traffic(row) == sent
        assert set(row) == {"loss", "participants", *sent}
    assert [int(row["participants"]) for row in metrics] == [1, 1, 2, 0, 2]


def test_clients_embed_and_assign_as_the_clustering(data):
    method = central(ADDING_UP)
    state = method.init(jax.random.key(0), data)
    rows = POOL[np.asarray(data.indices)]
    np.testing.assert_allclose(method.embed(state, data), rows)
    np.testing.assert_array_equal(method.assign(state, data), rows[..., 0] > 10)


def test_rounds_are_counted_on_from_those_before(data):
    """As of a stage of the clients: who is present, and which is the last."""
    pooling = Pooling(
        lambda source, federation, arrived: (federation.pool, jnp.ones(6, bool)),
        lambda source, federation, sends: {"up_who": sends},
    )
    one, two = cluster_stages(ADDING_UP, pooling, rounds_before=2)
    assert (one.num_rounds, two.num_rounds) == (2, 3)
    state = pooled((), Total(*jnp.zeros((2, 1))), data, 2)
    later = data._replace(present=jnp.concatenate([~data.present[:2], data.present]))
    who, down = [], []
    for stage in (one, one, two, two, two):
        state, metrics = jax.jit(stage.round)(jax.random.key(0), state, later)
        who.append(np.asarray(metrics["up_who"]))
        down.append(int(metrics["down_sums"][0]))
    first = [[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0], [0, 1, 0]]
    np.testing.assert_array_equal(who, first)
    assert down == [0, 0, 0, 0, 2]
