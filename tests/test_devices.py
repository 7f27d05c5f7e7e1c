"""Holds for any number of devices."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractDevice, AbstractMesh

from fcjax.data.federation import place
from fcjax.federated import clients, server
from fcjax.parallel.mesh import CLIENTS, over_runs, platform
from fcjax.types import Federation, Grid, State

BACKENDS = ("shard_map", "loop")


@pytest.mark.parametrize(("target", "loops"), [("cpu", 1), ("gpu", 0), ("tpu", 0)])
def test_a_program_is_what_is_good_where_it_will_run(target, loops):
    """Whatever the host is: clients one after another, or side by side."""
    device = AbstractDevice(target, None, target)
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        assert platform() == target
        each = jax.make_jaxpr(partial(clients.for_each, jnp.sin))(jnp.ones(3))
        mean = jax.make_jaxpr(server.weighted_mean)(jnp.ones(3), jnp.ones(3))
    assert str(each).count("while[") == str(mean).count("while[") == loops


SIZES = (1, 3, 6)
NUM_EXAMPLES, NUM_CLIENTS = 20, 2


def grid_of(count):
    """Runs that differ in everything but the pool; their pool is of a type of its
    own, float16, so that copies of it show in a program's text."""
    data = np.random.default_rng(count)
    indices = data.integers(0, NUM_EXAMPLES, (count, NUM_CLIENTS, 5))
    return Grid(
        hyper={"weight": jnp.arange(count) + 0.5},
        keys=jax.random.split(jax.random.key(3), count),
        federations=Federation(
            pool=jnp.asarray(data.normal(size=(NUM_EXAMPLES, 3)), jnp.float16),
            indices=jnp.asarray(indices, jnp.int32),
            mask=jnp.asarray(data.random(indices.shape) < 0.7),
            present=jnp.ones((count, 1, NUM_CLIENTS), bool),
            local_clusters=jnp.asarray(data.integers(2, 5, (count, NUM_CLIENTS))),
        ),
    )


def state_of(count):
    w = jnp.arange(count * 3.0).reshape(count, 3) / 7
    return State({"w": w, "n": jnp.arange(count)})


def advance(hyper, key, federation, state):
    """A made-up round that needs every input."""
    rows = federation.pool[federation.indices].astype(jnp.float32)
    sums = jnp.sum(rows * federation.mask[..., None], axis=1)
    sums, clusters, present = server.gather(
        (
            sums,
            federation.local_clusters,
            clients.on_this_device(federation.present[0], len(rows)),
        )
    )
    w = state.server["w"] * hyper["weight"] + sums.sum(axis=0)
    w += jax.random.normal(key, (3,))
    n = state.server["n"] + clusters.sum() * present.sum()
    return State({"w": w, "n": n}), {"loss": w @ w, "key": jax.random.fold_in(key, 1)}


def expected(grid, state):
    """The same round of every run in NumPy."""
    pool = np.asarray(grid.federations.pool, np.float64)
    for i, (indices, mask, present, clusters) in enumerate(
        zip(*map(np.asarray, grid.federations[1:-1]), strict=True)
    ):
        means = (pool[indices] * mask[..., None]).sum(axis=(0, 1))
        noise = np.asarray(jax.random.normal(grid.keys[i], (3,)))
        w = np.asarray(state.server["w"][i]) * (i + 0.5) + means + noise
        yield w, int(state.server["n"][i]) + clusters.sum() * present.sum()


def key_data(keys):
    return np.asarray(jax.random.key_data(keys))


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_gives_every_run_its_own_inputs(backend, count):
    """Two rounds, the second on the state that the first one left, donated."""
    grid, step = grid_of(count), over_runs(advance, backend, donate=True)
    state = state_of(count)
    for _ in range(2):
        reference = list(expected(grid, state))
        state, metrics = step(grid, state)
        assert state.server["w"].shape == (count, 3)
        for i, (w, n) in enumerate(reference):
            np.testing.assert_allclose(state.server["w"][i], w, rtol=1e-5, atol=1e-5)
            assert state.server["n"][i] == n
            np.testing.assert_allclose(metrics["loss"][i], w @ w, rtol=1e-5)
        own = jax.vmap(lambda key: jax.random.fold_in(key, 1))(grid.keys)
        np.testing.assert_array_equal(key_data(metrics["key"]), key_data(own))


def with_pool(grid, pool):
    return grid._replace(federations=grid.federations._replace(pool=pool))


def with_placed_pool(grid):
    """The pool as an experiment has it: a copy on every device."""
    examples = np.asarray(grid.federations.pool)
    pool, _ = place(examples, 0, where="device", devices=jax.local_devices())
    return with_pool(grid, pool)


@pytest.mark.parametrize("count", SIZES)
def test_a_pool_on_all_devices_is_not_copied(monkeypatch, count):
    """Whatever the mesh: of a part of the devices, with and without a client axis."""
    grid, moved = with_placed_pool(grid_of(count)), []
    device_put = jax.device_put

    def note(tree, *where):
        tree = device_put(tree, *where)
        moved.extend(x for x in jax.tree.leaves(tree) if x.dtype == jnp.float16)
        return tree

    monkeypatch.setattr(jax, "device_put", note)
    step = over_runs(
        lambda hyper, key, federation: federation.pool[federation.indices],
        "shard_map",
        results=CLIENTS,
    )
    pool, *_ = grid.federations
    expected = np.asarray(pool)[np.asarray(grid.federations.indices)]
    np.testing.assert_array_equal(step(grid), expected)
    assert [x.shape for x in moved] == [(NUM_EXAMPLES, 3)]
    assert buffers(moved[0]) <= buffers(pool)


def buffers(array):
    return {x.data.unsafe_buffer_pointer() for x in array.addressable_shards}


def convolve(hyper, key, federation, state):
    """Weights that differ from run to run: what sharding annotations all-gather."""
    images = federation.pool[federation.indices[0]].astype(jnp.float32)
    images = jnp.broadcast_to(images[:, None, :, None], (5, 3, 3, 2))
    y = lax.conv_general_dilated(
        images, state.server, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return State(state.server + hyper["weight"] * y.mean())


def test_devices_share_one_pool_and_do_not_communicate():
    """float16 is the pool's own type: there are pools, and none with a run axis."""
    grid, step = grid_of(8), over_runs(convolve, "shard_map")
    kernels = step(grid, State(jnp.ones((8, 3, 3, 2, 4))))
    text = jax.jit(step).lower(grid, kernels).compile().as_text()
    for collective in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert collective not in text
    assert f"f16[{NUM_EXAMPLES},3]" in text
    for count in {8, 8 // jax.device_count()}:
        assert f"f16[{count},{NUM_EXAMPLES},3]" not in text
