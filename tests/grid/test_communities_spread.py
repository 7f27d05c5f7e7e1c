"""Communities of runs whose clients are spread over devices."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax import data, engine, models
from fcjax.algorithms.central import by_kmeans
from fcjax.algorithms.fedcref import fedcref
from fcjax.algorithms.fedcref_start import on_clients
from fcjax.types import Grid
from tests.own_clusters import build


def grid(num_runs, num_clients):
    """Clients of two of three places each, 0 and 1, 1 and 2 or 2 and 0; 1 is absent."""
    pool = np.repeat(np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), 4, axis=0)
    rows = [np.arange(4 * i, 4 * i + 8) % 12 for i in range(num_clients)]
    present = np.arange(num_clients) != 1
    federations = data.federate(
        pool.astype(np.float32),
        [data.Partition(tuple(rows), np.arange(0))] * num_runs,
        [present[None]] * num_runs,
        num_clusters=2,
    )
    # In the last run nothing is near enough.
    near = jnp.array([0.5] * (num_runs - 1) + [0.0])
    return Grid(
        {"near": near}, jax.random.split(jax.random.key(0), num_runs), federations
    )


def found(backend, runs):
    program = engine.Program(partial(build, num_clusters=2), backend=backend)
    return program.communities(runs, program.run(runs))


@pytest.mark.parametrize("num_clients", [8, 5])  # and a client of padding
def test_communities_are_the_loop_s(num_clients):
    num_runs = 2
    runs = grid(num_runs, num_clients)
    looped, spread = found("loop", runs), found("shard_map", runs)
    assert spread.edges.shape == (num_runs, num_clients, 2, num_clients, 2)
    for one, other in zip(spread, looped, strict=True):
        np.testing.assert_array_equal(one, other)
    first, last = np.asarray(looped.edges[0]), np.asarray(looped.edges[-1])
    # Client i has the places i and i + 1 (mod 3); whom the first one shares them with.
    others = np.arange(num_clients)[2:]
    expected = (others % 3 == 0) * 2 + (others % 3 != 0)
    np.testing.assert_array_equal(first[0].sum(axis=(0, 2))[2:], expected)
    assert not first[1].any()
    assert not last.any()


def local_kmeans(num_used):
    return by_kmeans(
        num_clusters=2, num_used=num_used, num_init=2, num_iters=20, unit_length=False
    )


def refining(hyper):
    return fedcref(
        models.reconstructor(2, widths=(3,)),
        optax.sgd(0.5),
        on_clients(local_kmeans, num_clusters=2),
        num_clusters=2,
        num_rounds=2,
        local_epochs=20,
        federated_rounds=2,
        first_epochs=5,
        federated_epochs=5,
        batch_size=8,
        threshold=1.8 * hyper["near"],
        stability=2.0,  # nobody settles
    )


def test_fedcref_refines_as_in_the_loop():
    num_runs, num_clients = 2, 5  # and a client of padding
    runs = grid(num_runs, num_clients)
    noise = 0.1 * np.random.default_rng(0).normal(size=(12, 2))
    pool = jnp.asarray(runs.federations.pool + noise, jnp.float32)
    runs = runs._replace(federations=runs.federations._replace(pool=pool))

    def refined(backend):
        rounds = []
        program = engine.Program(refining, backend=backend)
        state = program.run(runs, on_round=lambda x: rounds.append(x.metrics))
        return program.communities(runs, state), state.clusters, rounds

    (looped, clusters, expected), (spread, own, rounds) = map(
        refined, ("loop", "shard_map")
    )
    np.testing.assert_array_equal(own, clusters)
    for one, other in zip(spread, looped, strict=True):
        np.testing.assert_array_equal(one, other)
    assert looped.edges[0].any()
    assert len(rounds) == len(expected) == 3
    for one, other in zip(rounds, expected, strict=True):
        assert one.keys() == other.keys()
        for name in other:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-5, err_msg=name)
        # Client 1 answers in no round, nor do those that fill up a device.
        assert other["active"].tolist() == [num_clients - 1] * num_runs
        assert (other["isolated"] <= 2 * (num_clients - 1)).all()
