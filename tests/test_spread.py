"""Fewer runs than devices: the clients of a run over the rest of them.

What is here needs eight devices; the last test runs the file again with as many.
"""

import os
import re
import subprocess
import sys
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax import clients, engine, models, server
from fcjax.algorithms.ccfc import ccfc
from fcjax.backends import over_runs
from fcjax.checkpoints import Checkpoints
from fcjax.data import HostPool
from fcjax.types import Federation, Grid
from tests.methods import METHODS
from tests.test_contract import assert_same, grid

eight_devices = pytest.mark.skipif(
    jax.device_count() != 8, reason="run with eight devices by the last test"
)
# Of a batch of two, alike in a feature, the usual epsilon makes much of mere rounding.
OWN_INIT = partial(METHODS["scfc"], own_init=True, epsilon=1e-2)
SPREAD = {**METHODS, "scfc": OWN_INIT}
SIZES = (7, 11, 4, 8, 6)  # of two runs: two clients a device, and one alone


class Stopped(Exception):
    pass


@pytest.fixture(autouse=True)
def programs_of_one_test():
    """Those of eight devices and all methods together are more than a process holds."""
    yield
    jax.clear_caches()


@cache
def program(name, backend):
    return engine.Program(SPREAD[name], backend=backend)


def after_a_round(program, grid):
    """The state, metrics and assignments after one round of the first stage."""
    rounds = []

    def on_round(round):
        clusters = program.assign(grid, round.state)
        rounds.append(jax.device_get((round.state, round.metrics, clusters)))
        raise Stopped

    with pytest.raises(Stopped):
        program.run(grid, on_round=on_round)
    return rounds[0]


def assert_agree(one, other):
    def close(path, x, y):
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5, err_msg=name)

    jax.tree_util.tree_map_with_path(close, one, other)


@eight_devices
@pytest.mark.parametrize("name", SPREAD)
def test_a_method_spread_over_devices_agrees_with_the_loop(name):
    runs = grid(sizes=SIZES, absent=(1,), spoil=(1,))
    looped = after_a_round(program(name, "loop"), runs)
    assert_agree(after_a_round(program(name, "shard_map"), runs), looped)


def numbered_clients(num_runs, num_clients, *, on_host=False):
    """Runs whose client i holds row i of a pool, alone; client 2 is absent."""
    pool = np.arange(num_clients, dtype=np.float32)[:, None]
    indices = jnp.tile(jnp.arange(num_clients)[:, None], (num_runs, 1, 1))
    present = jnp.arange(num_clients) != 2
    return Grid(
        jnp.arange(float(num_runs)),
        jax.random.split(jax.random.key(5), num_runs),
        Federation(
            HostPool(pool) if on_host else jnp.asarray(pool),
            indices,
            indices >= 0,
            jnp.tile(present, (num_runs, 1, 1)),
            jnp.full((num_runs, num_clients), 3),
        ),
    )


def remember(num_clusters):
    """A made-up method: clients that remember their draws, a server that remembers
    every client's, and as many centroids as there are clients."""

    def start(hyper, key, federation):
        num_clients = len(federation.indices)
        _, everyone = server.receive((), jnp.ones(num_clients), jnp.zeros(num_clients))
        return (
            {
                "own": jnp.zeros((num_clients, 2)),
                "everyone": everyone,
                "centroids": jnp.zeros((num_clusters, 2)),
                "num_rounds": jnp.int32(0),
            },
        )

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

    return start, advance


@eight_devices
@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize(
    ("num_runs", "num_clients", "shape"),
    [
        (2, 4, (2, 4)),
        (2, 5, (2, 3)),  # one is padding
        (1, 11, (1, 6)),  # two a device: a seventh device would make nobody faster
        (3, 11, (3, 2)),  # two devices are left over
        (8, 11, (8, 1)),
    ],
)
def test_which_arrays_have_a_client_axis_is_found(
    num_runs, num_clients, shape, on_host
):
    """K equals M, and the server's memory has the length of the clients'."""
    start, advance = remember(num_clients)
    runs = numbered_clients(num_runs, num_clients, on_host=on_host)
    init = over_runs(lambda *run: start(*run)[0], "shard_map", like=lambda *_: ())
    step = over_runs(
        advance, "shard_map", donate=True, like=lambda _, *run: start(*run)
    )
    state = init(runs)
    seen = []
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


@eight_devices
def test_every_device_holds_its_own_clients():
    start, advance = remember(3)
    runs = numbered_clients(2, 8)
    init = over_runs(lambda *run: start(*run)[0], "shard_map", like=lambda *_: ())
    step = over_runs(
        advance, "shard_map", donate=True, like=lambda _, *run: start(*run)
    )
    for state in (init(runs), step(runs, init(runs))[0]):
        for name, shape in [("own", (1, 2, 2)), ("everyone", (1, 8))]:
            shards = state[name].addressable_shards
            found = {shard.device: shard.data.shape for shard in shards}
            assert found == dict.fromkeys(jax.devices(), shape)


@eight_devices
@pytest.mark.parametrize("num_others", [1, 2, 7])
def test_other_clients_than_those_of_the_state_are_not_spread(num_others):
    """As those left out of training, which the global model alone embeds."""
    start, _ = remember(3)

    def embed(hyper, key, federation, state):
        rows = federation.pool[federation.indices]
        return rows + state["centroids"][0, 0] + len(federation.indices)

    runs, others = numbered_clients(2, 5), numbered_clients(2, num_others)
    init = over_runs(lambda *run: start(*run)[0], "shard_map", like=lambda *_: ())
    found = over_runs(embed, "shard_map", like=lambda _, *run: start(*run))(
        others, init(runs)
    )
    expected = np.arange(num_others, dtype=np.float32) + num_others
    np.testing.assert_array_equal(found[..., 0, 0], [expected] * 2)


@eight_devices
def test_a_resumed_run_ends_with_the_same_bits(tmp_path):
    runs, standalone = grid(sizes=SIZES), program("standalone", "shard_map")
    whole = standalone.run(runs)

    def stop(round):
        if round.position == (1, 2):
            raise Stopped

    with pytest.raises(Stopped):
        standalone.run(
            runs, on_round=stop, checkpoints=Checkpoints(tmp_path, interval=0.0)
        )
    assert_same(standalone.run(runs, checkpoints=Checkpoints(tmp_path)), whole)


@eight_devices
def test_an_array_that_counts_clients_otherwise_is_refused():
    def start(hyper, key, federation):
        return (jnp.zeros((2 * len(federation.indices), 3)),)

    step = over_runs(
        lambda *run: run[-1], "shard_map", like=lambda _, *run: start(*run)
    )
    with pytest.raises(ValueError, match="a leading axis that counts clients"):
        step(numbered_clients(2, 4), jnp.zeros((2, 8, 3)))


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
    return (build_conv(weight).init(key, federation),)


def advance_conv(weight, key, federation, state):
    return build_conv(weight).stages[0].round(key, state, federation)


def images(num_runs):
    """Images of 28x28 pixels on two clients, one of 8 and one of 5."""
    pool = np.random.default_rng(2).integers(0, 256, (13, 7, 7, 1), np.uint8)
    pool = pool.repeat(4, axis=1).repeat(4, axis=2)
    rows = (np.arange(8), np.arange(8, 13))
    indices = jnp.array([np.resize(r, 8) for r in rows], jnp.int32)
    mask = jnp.array([np.arange(8) < len(r) for r in rows])
    one = (indices, mask, jnp.ones((1, 2), bool), jnp.full(2, 2))
    return Grid(
        jnp.linspace(0.1, 0.7, num_runs),
        jax.random.split(jax.random.key(0), num_runs),
        Federation(jnp.asarray(pool), *(jnp.stack([x] * num_runs) for x in one)),
    )


@pytest.fixture(scope="module")
def started():
    """Two runs, with their states before the round."""
    (state,) = over_runs(start_conv, "loop")(images(2))
    return images(2), state


@pytest.fixture(scope="module")
def looped(started):
    return over_runs(advance_conv, "loop")(*started)


@pytest.fixture(scope="module")
def compiled(started):
    step = over_runs(advance_conv, "shard_map", like=lambda _, *run: start_conv(*run))
    return jax.jit(step).lower(*started).compile()


@eight_devices
def test_convolutions_spread_over_devices_agree_with_the_loop(
    started, compiled, looped
):
    assert_agree(compiled(*started), looped)


@eight_devices
def test_convolutions_in_pmap_agree_with_the_loop(started, looped):
    assert_agree(over_runs(advance_conv, "pmap")(*started), looped)


def collectives(compiled):
    names = "all-gather|all-to-all|collective-permute|reduce-scatter|all-reduce"
    return re.findall(rf"= .*? ({names})(?:-start)?\(", compiled.as_text())


@eight_devices
def test_a_round_of_two_runs_takes_one_sum_over_devices(compiled):
    assert collectives(compiled) == ["all-reduce"]


@eight_devices
def test_a_round_of_eight_runs_does_not_communicate():
    runs = images(8)
    step = over_runs(advance_conv, "shard_map", like=lambda _, *run: start_conv(*run))
    (state,) = jax.eval_shape(over_runs(start_conv, "loop"), runs)
    assert collectives(jax.jit(step).lower(runs, state).compile()) == []


def test_all_of_this_with_eight_devices():
    flag = "--xla_force_host_platform_device_count=8"
    if flag in os.environ.get("XLA_FLAGS", ""):
        assert jax.device_count() == 8
        return
    # Without the checks of types, which the contract's tests make of the same methods.
    options = ["-q", "-o", "addopts=", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, __file__]
    run = subprocess.run(
        command,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "XLA_FLAGS": flag, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
