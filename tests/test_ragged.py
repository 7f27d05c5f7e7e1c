"""Clients in size classes: what they compute is what clients of one length do."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from fcjax import data, engine, ragged
from fcjax.algorithms.ccfc import ccfc
from fcjax.algorithms.kfed import kfed
from fcjax.data.augment import vector_view
from fcjax.federated import clients, server
from fcjax.methods import CCFC, KFed
from fcjax.nn import from_linen
from fcjax.parallel.mesh import SERVER, STATE, over_runs
from fcjax.ragged import Ragged
from fcjax.types import Grid, State
from tests.test_contract import assert_close, assert_same

NUM_CLIENTS = 69
"""Of eight groups of nine the last has six."""


@pytest.fixture(scope="module")
def dealt():
    """Whole numbers about three corners, which sums add up without rounding."""
    rng = np.random.default_rng(0)
    sizes = rng.permutation([40] * 8 + [4] * (NUM_CLIENTS - 8))
    owners = np.repeat(np.arange(NUM_CLIENTS), sizes)
    corners = np.array([[0, 0, 0], [64, 0, 32], [0, 64, 64]])
    labels = rng.integers(3, size=len(owners))
    pool = corners[labels] + rng.integers(-8, 9, (len(owners), 3))
    return pool.astype(np.float32), data.natural(owners)


def grid(dealt, *, in_classes, num_runs=1, absent=(1, 5)):
    pool, partition = dealt
    sizes = np.array(list(map(len, partition.clients)))
    present = ~np.isin(np.arange(NUM_CLIENTS), absent)
    federations = data.federate(
        pool,
        [partition] * num_runs,
        np.tile(present, (num_runs, 1, 1)),
        num_clusters=3,
        classes=data.size_classes(sizes, least=3) if in_classes else None,
    )
    assert ragged.is_ragged(federations.indices) == in_classes
    keys = jax.vmap(jax.random.key)(jnp.arange(num_runs))
    return Grid(jnp.zeros(num_runs), keys, federations)


def by_kfed(_, **options):
    settings = KFed(local_clusters=3, unit_length=False, **options).plain()
    return kfed(settings, num_clusters=3)


class Linear(nn.Module):
    """Without batch norm, which compiles in no time."""

    @nn.compact
    def __call__(self, x, *, train, mask):
        z = nn.Dense(4)(x)
        return z, nn.Dense(4)(z)


def by_ccfc(_, **options):
    network = from_linen(Linear())
    view = partial(vector_view, scale=0.01)
    rounds = {"pretrain_rounds": 0, "cluster_rounds": 1}
    settings = CCFC(**rounds, batch_size=8, num_init=1, **options).plain()
    return ccfc(settings, network, optax.sgd(1e-2), view, num_clusters=3)


def trained(build, runs, **options):
    metrics = []
    program = engine.Program(build, **options)
    state = program.run(runs, on_round=lambda round: metrics.append(round.metrics))
    found = (program.assign(runs, state), program.embed(runs, state))
    mask = ragged.rectangle(runs.federations.mask)
    clusters, z = (ragged.rectangle(x)[:, :, : mask.shape[2]][mask] for x in found)
    return state, metrics, clusters, z


@pytest.mark.parametrize("axis", ["map", "vmap"])
def test_every_client_is_asked_once_with_what_is_its_own(axis):
    x = Ragged((jnp.arange(12.0).reshape(3, 4), jnp.array([[7.0]] * 4)), (1, 2))
    # Two groups of a large and two small clients, and a large one alone.
    numbers = jnp.arange(7)

    def one(x, number):
        return x.sum(), number, x + number

    sums, same, moved = clients.for_each(one, x, numbers, axis=axis)
    np.testing.assert_array_equal(sums, [6, 7, 7, 22, 7, 7, 38])
    np.testing.assert_array_equal(same, numbers)
    assert [block.shape for block in moved.blocks] == [(3, 4), (4, 1)]
    np.testing.assert_array_equal(moved.blocks[0][:, 0], [0, 4 + 3, 8 + 6])
    np.testing.assert_array_equal(moved.blocks[1][:, 0], [7 + 1, 7 + 2, 7 + 4, 7 + 5])
    above = jax.tree.map(lambda block: block > 3, x)
    np.testing.assert_array_equal(ragged.sizes(above), [0, 1, 1, 4, 1, 1, 4])
    whole = ragged.rectangle(jax.tree.map(lambda block: block[None], moved))
    np.testing.assert_array_equal(whole[0, 1], [8, 0, 0, 0])
    np.testing.assert_array_equal(whole[0, 3], [7, 8, 9, 10])


@pytest.mark.parametrize("inherit", [True, False])
def test_k_fed_finds_the_same_bit_by_bit(dealt, inherit):
    """Its sums are of whole numbers; that of a mean's fractions is none."""
    build = partial(by_kfed, inherit=inherit)
    state, _, clusters, z = trained(build, grid(dealt, in_classes=True))
    alike, _, expected, rows = trained(build, grid(dealt, in_classes=False))
    np.testing.assert_array_equal(z, rows)
    np.testing.assert_array_equal(clusters, expected)
    assert_close(state, alike)


OPTIONS = [{}, {"cluster_by": "k-means"}, {"optimizer_state": "reset"}]


@pytest.mark.parametrize("few", [server.FEW, NUM_CLIENTS - 1])
@pytest.mark.parametrize("options", OPTIONS)
def test_ccfc_trains_the_same_but_for_rounding(dealt, options, few, monkeypatch):
    monkeypatch.setattr(server, "FEW", few)
    build = partial(by_ccfc, **options)
    state, metrics, clusters, z = trained(build, grid(dealt, in_classes=True))
    alike, others, expected, rows = trained(build, grid(dealt, in_classes=False))
    assert_close(state, alike, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(z, rows, atol=1e-4)
    np.testing.assert_array_equal(clusters, expected)
    for found, other in zip(metrics, others, strict=True):
        np.testing.assert_allclose(found["loss"], other["loss"], rtol=1e-4)
        np.testing.assert_array_equal(found["participants"], NUM_CLIENTS - 2)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="promised on a CPU alone")
@pytest.mark.parametrize("num_runs", [1, 2, 3])
@pytest.mark.parametrize("few", [server.FEW, NUM_CLIENTS - 1])
def test_a_seed_is_a_seed_on_any_number_of_devices(dealt, num_runs, few, monkeypatch):
    """Of one run the clients lie on four, of two on two each; nobody is there twice."""
    monkeypatch.setattr(server, "FEW", few)

    def start(hyper, key, federation):
        return State(jnp.zeros(3), {"own": jnp.zeros((len(federation.indices), 3))})

    def advance(hyper, key, federation, state):
        present = clients.on_this_device(federation.present[0], len(federation.indices))

        def one(key, own, rows, mask):
            x = federation.pool[rows] * jax.random.uniform(key)
            own += jnp.sum(x, axis=0, where=mask[:, None])
            return own, own

        each = (clients.keys(key, len(present)), state.clients["own"])
        sizes = ragged.sizes(federation.mask)
        mean, own = server.mean_of_each(
            *(one, present * sizes.astype(float), *each),
            *(federation.indices, federation.mask),
        )
        return State(state.server + mean, {"own": own}), server.gather(sizes)

    def rounds(runs, devices):
        spread = partial(over_runs, backend="shard_map", devices=devices)
        step = spread(advance, results=(STATE, SERVER))
        state = spread(start, results=STATE)(runs)
        for _ in range(2):
            state, sizes = step(runs, state)
        return (state, sizes), len(state.clients["own"].sharding.device_set)

    runs = grid(dealt, in_classes=True, num_runs=num_runs)
    alone, _ = rounds(runs, jax.devices()[:1])
    found, num_devices = rounds(runs, None)
    assert num_devices == {1: 4, 2: 4, 3: 3}[num_runs]
    assert_same(found, alone)
    # Eight groups do not come out even on three devices.
    assert_same(rounds(runs, jax.devices()[:3])[0], alone)
    held = list(map(len, dealt[1].clients))
    np.testing.assert_array_equal(found[1], [held] * num_runs)
