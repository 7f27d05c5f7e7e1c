"""A pool on the host gives what the same pool on the device gives."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from fcjax.data import placement
from fcjax.data.placement import HostPool, check_state, place, readable, runs_that_fit

EXAMPLES = np.arange(2 * 3 * 20, dtype=np.uint8).reshape(20, 3, 2)
DEVICES = jax.local_devices()[:1]
ROWS = np.array([[3, 1, 1], [19, 0, 7]])


def transforms():
    def scanned(pool, rows):
        return lax.map(lambda row: pool[row].astype(jnp.float32).sum(), rows)

    def sharded(pool, rows):
        mesh = jax.make_mesh((1,), ("run",), axis_types=(AxisType.Auto,))
        body = jax.vmap(lambda r: pool[r])
        specs = {"in_specs": P("run"), "out_specs": P("run")}
        return jax.shard_map(body, mesh=mesh, check_vma=False, **specs)(rows)

    return {
        "plain": lambda pool, rows: pool[rows],
        "jit": jax.jit(lambda pool, rows: pool[rows]),
        "vmap": jax.vmap(lambda pool, row: pool[row], in_axes=(None, 0)),
        "jit of vmap": jax.jit(jax.vmap(lambda p, r: p[r], in_axes=(None, 0))),
        "scan": jax.jit(scanned),
        "shard_map": jax.jit(sharded),
    }


@pytest.mark.parametrize("name", transforms())
def test_rows_are_those_of_the_array(name):
    fetch = transforms()[name]
    expected = EXAMPLES[ROWS]
    if name == "scan":
        expected = expected.sum((1, 2, 3), dtype=np.float32)
    got = fetch(HostPool(EXAMPLES), jnp.asarray(ROWS))
    np.testing.assert_array_equal(got, expected)
    assert isinstance(got, jax.Array)


def test_a_slice_is_an_array_of_the_first_rows():
    pool = HostPool(EXAMPLES)
    np.testing.assert_array_equal(pool[:2], EXAMPLES[:2])
    assert (pool.shape, pool.dtype) == ((20, 3, 2), np.uint8)


def test_vmap_asks_the_host_once():
    calls = []

    class Counting(np.ndarray):
        def __getitem__(self, rows):
            calls.append(np.shape(rows))
            return np.asarray(self)[rows]

    pool = HostPool(EXAMPLES.view(Counting))
    jax.block_until_ready(jax.jit(jax.vmap(lambda row: pool[row]))(jnp.asarray(ROWS)))
    assert calls == [(2, 3)]


def test_the_program_is_compiled_once_a_pool():
    traces = []

    @jax.jit
    def fetch(pool, rows):
        traces.append(pool)
        return pool[rows]

    first, second = HostPool(EXAMPLES), HostPool(EXAMPLES[::-1].copy())
    for pool in (first, first, second):
        fetch(pool, jnp.arange(2))
    assert traces == [first, second]


@pytest.mark.parametrize(
    ("limit", "state_bytes", "streams"),
    [
        (None, 10**12, False),  # the host's own memory: streaming saves nothing
        (1000, 0, False),
        (1000, 226, False),  # 120 + 3 * 226 = 798 of 800
        (1000, 227, True),
        (149, 0, True),
    ],
)
def test_the_estimate_decides(monkeypatch, limit, state_bytes, streams):
    monkeypatch.setattr(placement, "device_memory", lambda: limit)
    pool, _ = place(EXAMPLES, state_bytes, where="auto", devices=DEVICES)
    assert isinstance(pool, HostPool) == streams
    np.testing.assert_array_equal(pool[:], EXAMPLES)


def test_a_flag_wins_over_the_estimate(monkeypatch):
    monkeypatch.setattr(placement, "device_memory", lambda: 149)
    pool, line = place(EXAMPLES, 2048, where="device", devices=DEVICES)
    assert not isinstance(pool, HostPool)
    assert line == (
        "memory: examples 120 B, state of a run 3 x 2.0 KiB, of 149 B; "
        "the examples lie on the device"
    )
    pool, _ = place(EXAMPLES, 0, where="host", devices=DEVICES)
    assert isinstance(pool, HostPool)


@pytest.mark.parametrize("count", {1, jax.local_device_count()})
def test_every_device_gets_all_examples(count):
    devices = jax.local_devices()[:count]
    pool, _ = place(EXAMPLES, 0, where="device", devices=devices)
    assert isinstance(pool, jax.Array)
    assert pool.nbytes == EXAMPLES.nbytes
    assert {shard.device for shard in pool.addressable_shards} == set(devices)
    for shard in pool.addressable_shards:
        np.testing.assert_array_equal(shard.data, EXAMPLES)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")],
)
def test_readable(num_bytes, text):
    assert readable(num_bytes) == text


@pytest.mark.parametrize(
    ("limit", "state_bytes", "streams", "runs"),
    [
        # 0.8 of 10,000 bytes less 120 of examples: 7,880, and 3 x 500 a run.
        (10_000, 500, False, 5),
        (10_000, 500, True, 5),
        # Streamed examples take nothing: 8,000 = 5 x 1,600 - 0.
        (10_000, 533, True, 5),
        (10_000, 533, False, 4),
        (100, 500, False, 1),
        # A core.
        (None, 500, False, 1),
    ],
)
def test_runs_that_fit_by_hand(monkeypatch, limit, state_bytes, streams, runs):
    monkeypatch.setattr(placement, "device_memory", lambda: limit)
    where = "host" if streams else "device"
    pool, _ = place(EXAMPLES, state_bytes, where=where, devices=DEVICES)
    assert runs_that_fit(pool, state_bytes) == runs


@pytest.mark.parametrize(("num_devices", "limit"), [(1, 1500), (3, 500), (3, 700)])
def test_a_state_is_refused_that_exceeds_all_devices(monkeypatch, num_devices, limit):
    """Three times 500 bytes fit exactly; clients may be spread over the devices."""
    monkeypatch.setattr(placement, "device_memory", lambda: limit)
    devices = DEVICES * num_devices
    check_state(500, devices=devices)
    check_state(limit * num_devices // 3, devices=devices)
    with pytest.raises(ValueError, match="the state of one run takes 3 x "):
        check_state(limit * num_devices // 3 + 1, devices=devices)


def test_what_is_said_of_a_state_that_is_too_large(monkeypatch):
    flags = "give a smaller --client-size or --limit, or another number of --clients"
    monkeypatch.setattr(placement, "device_memory", lambda: 2**31)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        check_state(2**30, devices=DEVICES)
    assert str(error.value) == (
        "the state of one run takes 3 x 1.0 GiB, 2.0 GiB of memory are on the device: "
        + flags
    )
    with pytest.raises(ValueError, match=r"4.0 GiB of memory are on the devices"):
        check_state(2**31, devices=DEVICES * 2)


def test_the_host_has_some_of_its_memory_free():
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < placement.host_memory() <= pages


def test_where_the_device_is_the_host_its_free_memory_counts(monkeypatch):
    monkeypatch.setattr(placement, "device_memory", lambda: None)
    check_state(2**10, devices=DEVICES)
    with pytest.raises(ValueError, match="of memory are free on the host: give"):
        check_state(2**60, devices=DEVICES)
