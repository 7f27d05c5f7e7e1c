"""A pool on the host gives what the same pool on the device gives."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from fcjax.data import federation
from fcjax.data.federation import HostPool, check_state, place, runs_that_fit

EXAMPLES = np.arange(2 * 3 * 20, dtype=np.uint8).reshape(20, 3, 2)
DEVICES = jax.local_devices()[:1]
ROWS = np.array([[3, 1, 1], [19, 0, 7]])


def sharded(pool, rows):
    mesh = jax.make_mesh((1,), ("run",), axis_types=(AxisType.Auto,))
    body = jax.vmap(lambda r: pool[r])
    specs = {"in_specs": P("run"), "out_specs": P("run")}
    return jax.shard_map(body, mesh=mesh, check_vma=False, **specs)(rows)


@pytest.mark.parametrize(
    "fetch",
    [
        lambda pool, rows: pool[rows],
        jax.jit(lambda pool, rows: pool[rows]),
        jax.jit(jax.vmap(lambda pool, row: pool[row], in_axes=(None, 0))),
        jax.jit(lambda pool, rows: lax.map(lambda row: pool[row], rows)),
        jax.jit(sharded),
    ],
    ids=["plain", "jit", "jit of vmap", "scan", "shard_map"],
)
def test_rows_are_those_of_the_array(fetch):
    got = fetch(HostPool(EXAMPLES), jnp.asarray(ROWS))
    np.testing.assert_array_equal(got, EXAMPLES[ROWS])


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
    ("limit", "state_bytes", "where", "streams", "runs"),
    [
        # On the host a core, and streaming saves nothing.
        (None, 10**12, "auto", False, 1),
        (1000, 226, "auto", False, 1),  # 120 + 3 * 226 = 798 of 800
        (1000, 227, "auto", True, 1),
        # 0.8 of 10,000 bytes less 120 of examples: 7,880, and 3 x 500 a run.
        (10_000, 500, "device", False, 5),
        # Streamed examples take nothing: 8,000 = 5 x 1,600 - 0.
        (10_000, 533, "host", True, 5),
        (10_000, 533, "device", False, 4),
        (100, 500, "device", False, 1),
    ],
)
def test_estimate_and_flag_decide(
    monkeypatch, limit, state_bytes, where, streams, runs
):
    monkeypatch.setattr(federation, "device_memory", lambda: limit)
    pool, _ = place(EXAMPLES, state_bytes, where=where, devices=DEVICES)
    assert isinstance(pool, HostPool) == streams
    assert runs_that_fit(pool, state_bytes) == runs
    np.testing.assert_array_equal(pool[:], EXAMPLES)


def test_a_state_is_refused_that_exceeds_all_devices(monkeypatch):
    """500 and 700 bytes fit exactly; clients may be spread over the devices."""
    flags = "reduce `client_size` or `limit`, or change `clients`$"
    for num_devices, limit, has in (
        (1, 1500, "1.5 KiB of memory is on the device; "),
        (3, 700, "2.1 KiB of memory is on the devices; "),
    ):
        monkeypatch.setattr(federation, "device_memory", lambda limit=limit: limit)
        devices, most = DEVICES * num_devices, limit * num_devices // 3
        check_state(most, devices=devices)
        told = f"^the state of one run needs .*, but {has}{flags}"
        with pytest.raises(ValueError, match=told):
            check_state(most + 1, devices=devices)


def test_where_the_device_is_the_host_its_free_memory_counts(monkeypatch):
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < federation.host_memory() <= pages
    monkeypatch.setattr(federation, "device_memory", lambda: None)
    check_state(2**10, devices=DEVICES)
    with pytest.raises(ValueError, match="of memory is free on the host; reduce"):
        check_state(2**60, devices=DEVICES)
