"""Fewer runs than devices: the clients of a run over the rest of them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax import clients, models, server
from fcjax.algorithms.ccfc import ccfc
from fcjax.backends import over_runs
from fcjax.data import HostPool
from fcjax.types import Federation, Grid


def grid_of(num_runs, pool, indices, mask, present):
    """Runs that are dealt alike."""
    one = (indices, mask, present[None], jnp.full(len(indices), 3))
    return Grid(
        jnp.arange(float(num_runs)),
        jax.random.split(jax.random.key(5), num_runs),
        Federation(pool, *(jnp.stack([x] * num_runs) for x in one)),
    )


def numbered_clients(num_runs, num_clients, *, on_host=False):
    """Client i holds row i of a pool, alone; client 2 is absent."""
    pool = np.arange(num_clients, dtype=np.float32)[:, None]
    indices = jnp.arange(num_clients)[:, None]
    present = jnp.arange(num_clients) != 2
    pool = HostPool(pool) if on_host else jnp.asarray(pool)
    return grid_of(num_runs, pool, indices, indices >= 0, present)


def spread(function, start, **options):
    """A function of a run and its state, which is like that of its start."""

    def like(_, *run):
        return (start(*run),)

    return over_runs(function, "shard_map", like=like, **options)


def begin(start):
    return over_runs(start, "shard_map", like=lambda *_: ())


def remember(num_clusters):
    """A made-up method: clients that remember their draws, a server that remembers
    every client's, and as many centroids as there are clients."""

    def start(hyper, key, federation):
        num_clients = len(federation.indices)
        _, everyone = server.receive((), jnp.ones(num_clients), jnp.zeros(num_clients))
        return {
            "own": jnp.zeros((num_clients, 2)),
            "everyone": everyone,
            "centroids": jnp.zeros((num_clusters, 2)),
            "num_rounds": jnp.int32(0),
        }

    def advance(hyper, key, federation, state):
        num_clients = len(federation.indices)
        draws = jax.vmap(jax.random.normal)(clients.keys(key, num_clients))
        draws += federation.pool[federation.indices[:, 0]][:, 0]
        present = server.participants(federation, state["num_rounds"])
        own = state["own"] + jnp.where(present, draws, jnp.nan)[:, None]
        mean, everyone = server.receive(own, present.astype(float), draws)
        return {
            "own": own,
            "everyone": state["everyone"] + everyone,
            "centroids": state["centroids"] + mean[None] + hyper,
            "num_rounds": state["num_rounds"] + 1,
        }, {"each": draws}

    return start, spread(advance, start, donate=True)


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
def test_which_arrays_have_a_client_axis_is_found(
    num_runs, num_clients, on_host, shape
):
    """K equals M, and the server's memory has the length of the clients'."""
    start, step = remember(num_clients)
    runs = numbered_clients(num_runs, num_clients, on_host=on_host)
    state, seen = begin(start)(runs), []
    for _ in range(2):
        state, metrics = step(runs, state)
        seen.append(np.asarray(metrics["each"]))
    assert len(state["num_rounds"].sharding.device_set) == np.prod(shape)

    def draws(key):
        keys = [jax.random.fold_in(key, i) for i in range(num_clients)]
        return [i + jax.random.normal(k) for i, k in enumerate(keys)]

    expected = np.array([draws(key) for key in runs.keys])
    np.testing.assert_allclose(seen, [expected] * 2, rtol=1e-6)
    np.testing.assert_allclose(state["everyone"], 2 * expected, rtol=1e-6)
    present = np.arange(num_clients) != 2
    own = np.where(present, 2 * expected, np.nan)
    np.testing.assert_allclose(state["own"], np.stack([own] * 2, -1), rtol=1e-6)
    # Of the first round's sums and of twice them in the second.
    mean = 3 * expected[:, present].mean(axis=1) + 2 * np.arange(num_runs)
    assert state["centroids"].shape == (num_runs, num_clients, 2)
    for run in range(num_runs):
        np.testing.assert_allclose(state["centroids"][run], mean[run], rtol=1e-5)
    np.testing.assert_array_equal(state["num_rounds"], 2)


def test_every_device_holds_its_own_clients():
    start, step = remember(3)
    runs, init = numbered_clients(2, 4), begin(start)
    for state in (init(runs), step(runs, init(runs))[0]):
        for name, shape in [("own", (1, 2, 2)), ("everyone", (1, 4))]:
            shards = state[name].addressable_shards
            found = {shard.device: shard.data.shape for shard in shards}
            assert found == dict.fromkeys(jax.devices(), shape)


@pytest.mark.parametrize("num_others", [1, 3])
def test_other_clients_than_those_of_the_state_are_not_spread(num_others):
    """As those left out of training, which the global model alone embeds."""
    start, _ = remember(3)

    def embed(hyper, key, federation, state):
        rows = federation.pool[federation.indices]
        return rows + state["centroids"][0, 0] + len(federation.indices)

    runs, others = numbered_clients(2, 5), numbered_clients(2, num_others)
    found = spread(embed, start)(others, begin(start)(runs))
    expected = np.arange(num_others, dtype=np.float32) + num_others
    np.testing.assert_array_equal(found[..., 0, 0], [expected] * 2)


def test_an_array_that_counts_clients_otherwise_is_refused():
    def start(hyper, key, federation):
        return jnp.zeros((3 * len(federation.indices), 3))

    step = spread(lambda *run: run[-1], start)
    with pytest.raises(ValueError, match="a leading axis that counts clients"):
        step(numbered_clients(2, 4), jnp.zeros((2, 12, 3)))


# --- the convolutional network


def build_conv(weight):
    return ccfc(
        models.simsiam(models.conv_encoder()),
        optax.sgd(0.05, momentum=0.9),
        lambda key, x: x + 0.05 * jax.random.normal(key, x.shape),
        num_clusters=2,
        pretrain_rounds=1,
        cluster_rounds=1,
        batch_size=8,
        model_weight=weight,
    )


def start_conv(weight, key, federation):
    return build_conv(weight).init(key, federation)


def advance_conv(weight, key, federation, state):
    return build_conv(weight).stages[0].round(key, state, federation)


def images():
    """Two runs of images of 28x28 pixels on two clients, one of 8 and one of 5."""
    pool = np.random.default_rng(2).integers(0, 256, (13, 7, 7, 1), np.uint8)
    pool = jnp.asarray(pool.repeat(4, axis=1).repeat(4, axis=2))
    rows = (np.arange(8), np.arange(8, 13))
    indices = jnp.array([np.resize(r, 8) for r in rows], jnp.int32)
    mask = jnp.array([np.arange(8) < len(r) for r in rows])
    return grid_of(2, pool, indices, mask, jnp.ones(2, bool))


def collectives(compiled):
    names = "all-gather|all-to-all|collective-permute|reduce-scatter|all-reduce"
    return re.findall(rf"= .*? ({names})(?:-start)?\(", compiled.as_text())


def test_a_round_spread_over_devices_agrees_with_the_loop_and_takes_one_sum():
    started = images(), over_runs(start_conv, "loop")(images())
    compiled = jax.jit(spread(advance_conv, start_conv)).lower(*started).compile()
    assert collectives(compiled) == ["all-reduce"]

    def close(path, x, y):
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5, err_msg=name)

    looped = over_runs(advance_conv, "loop")(*started)
    jax.tree_util.tree_map_with_path(close, compiled(*started), looped)


def test_a_round_of_a_run_a_device_does_not_communicate():
    start, step = remember(3)
    runs = numbered_clients(4, 4)
    state = jax.eval_shape(begin(start), runs)
    assert collectives(jax.jit(step).lower(runs, state).compile()) == []
