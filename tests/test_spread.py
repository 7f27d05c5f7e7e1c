"""Fewer runs than devices: the clients of a run over the rest of them."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax import engine
from fcjax.data import HostPool
from fcjax.engine import at_round
from fcjax.federated import clients, server
from fcjax.parallel.mesh import CLIENTS, SERVER, STATE, over_runs, shard_pool
from fcjax.types import Federation, Grid, State
from tests import test_contract as contract
from tests.methods import METHODS


def grid_of(num_runs, pool, indices, mask, present):
    """Runs that are dealt alike."""
    one = (indices, mask, present[None], jnp.full(len(indices), 3))
    return Grid(
        jnp.arange(float(num_runs)),
        jax.random.split(jax.random.key(5), num_runs),
        Federation(pool, *jax.tree.map(lambda x: jnp.stack([x] * num_runs), one)),
    )


def numbered_clients(num_runs, num_clients, *, on_host=False):
    """Client i holds row i of a pool, alone; client 2 is absent."""
    pool = np.arange(num_clients, dtype=np.float32)[:, None]
    indices = jnp.arange(num_clients)[:, None]
    present = jnp.arange(num_clients) != 2
    pool = HostPool(pool) if on_host else jnp.asarray(pool)
    return grid_of(num_runs, pool, indices, indices >= 0, present)


spread = partial(over_runs, backend="shard_map")


def begin(start):
    return spread(start, results=STATE)


def remember(num_clusters):
    """A made-up method: clients that remember their draws, a server that remembers
    every client's, and as many centroids as there are clients."""

    def start(hyper, key, federation):
        num_clients = len(federation.indices)
        _, everyone = server.receive((), jnp.ones(num_clients), jnp.zeros(num_clients))
        known = {
            "everyone": everyone,
            "centroids": jnp.zeros((num_clusters, 2)),
        }
        return State(known, {"own": jnp.zeros((num_clients, 2))})

    def advance(hyper, key, federation, state):
        num_clients = len(federation.indices)
        draws = jax.vmap(jax.random.normal)(clients.keys(key, num_clients))
        draws += federation.pool[federation.indices[:, 0]][:, 0]
        known = state.server
        present = clients.on_this_device(federation.present[0], num_clients)
        own = state.clients["own"] + jnp.where(present, draws, jnp.nan)[:, None]
        mean, everyone = server.receive(own, present.astype(float), draws)
        known = {
            "everyone": known["everyone"] + everyone,
            "centroids": known["centroids"] + mean[None] + hyper,
        }
        return State(known, {"own": own}), draws

    return start, spread(advance, results=(STATE, CLIENTS), donate=True)


@pytest.mark.parametrize(
    ("num_runs", "num_clients", "on_host", "shape"),
    [
        (2, 4, False, (2, 2)),
        (2, 5, False, (2, 2)),  # one is padding
        (2, 5, True, (2, 2)),
        (1, 6, False, (1, 3)),  # two a device: a fourth would make nobody faster
        (3, 11, False, (3, 1)),  # a device is left over
        (4, 11, True, (4, 1)),
    ],
)
def test_clients_have_the_devices_that_runs_leave(
    num_runs, num_clients, on_host, shape
):
    """Of those that fill the devices up the server never knows."""
    start, step = remember(num_clients)
    runs = numbered_clients(num_runs, num_clients, on_host=on_host)
    state, seen = begin(start)(runs), []
    for _ in range(2):
        state, draws = step(runs, state)
        seen.append(np.asarray(draws))
    known, own = state.server, state.clients["own"]
    assert len(own.sharding.device_set) == np.prod(shape)

    def drawn(key):
        keys = [jax.random.fold_in(key, i) for i in range(num_clients)]
        return [i + jax.random.normal(k) for i, k in enumerate(keys)]

    expected = np.array([drawn(key) for key in runs.keys])
    np.testing.assert_allclose(seen, [expected] * 2, rtol=1e-6)
    np.testing.assert_allclose(known["everyone"], 2 * expected, rtol=1e-6)
    present = np.arange(num_clients) != 2
    each = np.where(present, 2 * expected, np.nan)
    np.testing.assert_allclose(own, np.stack([each] * 2, -1), rtol=1e-6)
    # Of the first round's sums and of twice them in the second.
    mean = 3 * expected[:, present].mean(axis=1) + 2 * np.arange(num_runs)
    assert known["centroids"].shape == (num_runs, num_clients, 2)
    for run in range(num_runs):
        np.testing.assert_allclose(known["centroids"][run], mean[run], rtol=1e-5)


def test_every_device_holds_its_own_clients():
    start, step = remember(3)
    runs, init = numbered_clients(2, 4), begin(start)
    for state in (init(runs), step(runs, init(runs))[0]):
        parts = ((state.clients["own"], (1, 2, 2)), (state.server["everyone"], (1, 4)))
        for part, shape in parts:
            shards = part.addressable_shards
            found = {shard.device: shard.data.shape for shard in shards}
            assert found == dict.fromkeys(jax.devices(), shape)


@pytest.mark.parametrize("num_others", [1, 3])
def test_other_clients_than_those_of_the_state_are_not_spread(num_others):
    """As those left out of training, which the global model alone embeds."""
    start, _ = remember(3)

    def embed(hyper, key, federation, state):
        rows = federation.pool[federation.indices]
        return rows + state.server["centroids"][0, 0] + len(federation.indices)

    runs, others = numbered_clients(2, 5), numbered_clients(2, num_others)
    found = spread(embed, results=CLIENTS)(others, begin(start)(runs))
    expected = np.arange(num_others, dtype=np.float32) + num_others
    np.testing.assert_array_equal(found[..., 0, 0], [expected] * 2)


# --- what crosses devices


def collectives(compiled):
    names = "all-gather|all-to-all|collective-permute|reduce-scatter|all-reduce"
    return re.findall(rf"= .*? ({names})(?:-start)?\(", compiled.as_text())


def test_a_round_spread_over_devices_takes_sums_alone():
    method, runs = METHODS["ccfc"], at_round(contract.grid(), "pretrain", number=1)

    def init(weight, key, federation):
        return method(weight).init(key, federation)

    def advance(weight, key, federation, state):
        return method(weight).stages[0].round(key, state, federation)

    step = spread(advance, results=(STATE, SERVER))
    compiled = jax.jit(step).lower(runs, jax.eval_shape(begin(init), runs)).compile()
    # On a CPU a device goes on with the sums of the one before it.
    more = {"collective-permute"} if jax.default_backend() == "cpu" else set()
    assert set(collectives(compiled)) == {"all-reduce"} | more


def test_a_round_of_a_run_a_device_does_not_communicate():
    start, step = remember(3)
    runs = numbered_clients(4, 4)
    state = jax.eval_shape(begin(start), runs)
    assert collectives(jax.jit(step).lower(runs, state).compile()) == []


@pytest.mark.parametrize("name", ["ccfc", "sda-fdc", "fdsc", "uifca", "fedcref"])
def test_each_device_needs_the_examples_of_its_own_clients_alone(name):
    """Two runs on two devices each: five clients, one of them repeated."""
    whole = contract.grid((0.1, 0.7), seeds=(1, 2))
    held = whole.federations
    pool = shard_pool(
        np.asarray(held.pool), np.asarray(held.indices), devices=jax.local_devices()
    )
    # A row of examples that no device needs, but the first, is on none.
    assert pool.examples.shape[:2] == (2, 2)
    assert pool.examples.shape[2] < len(held.pool)
    dealt = whole._replace(federations=held._replace(pool=pool))
    method = METHODS[name]
    expected = contract.first_round(engine.Program(method), whole)
    contract.assert_same(expected, contract.first_round(engine.Program(method), dealt))


# --- bits


def on_devices(monkeypatch, count):
    first = jax.devices()[:count]
    monkeypatch.setattr(jax, "local_devices", lambda: first)
    monkeypatch.setattr(jax, "local_device_count", lambda: count)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="promised on a CPU alone")
@pytest.mark.parametrize("name", ["exact-fcm", "ccfc", "fedcref"])
def test_a_seed_is_a_seed(name, monkeypatch):
    """On however many devices, and whatever runs beside it, in whatever order."""

    def run_of_seed_3(num_devices, seeds):
        on_devices(monkeypatch, num_devices)
        runs = contract.grid([0.1] * len(seeds), seeds=seeds)
        state = contract.first_round(engine.Program(METHODS[name]), runs)
        return jax.tree.map(lambda x: x[seeds.index(3)], state)

    alone = run_of_seed_3(1, (3,))
    for num_devices, seeds in ((4, (3,)), (2, (4, 2, 3))):
        contract.assert_same(alone, run_of_seed_3(num_devices, seeds))
