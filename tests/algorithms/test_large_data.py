"""Statistics of large data: sums over chunks, from a memory map that is not copied."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fcjax
from fcjax.algorithms.baselines import nearest_of_rows
from fcjax.data import Dataset
from fcjax.data.augment import row_reader
from fcjax.data.federation import place
from fcjax.federated import clients
from fcjax.federated.kmeans import lloyd_step, seed_centroids
from fcjax.methods import KFed
from fcjax.ragged import Ragged
from fcjax.sweep import outcome
from fcjax.types import Federation

POOL = np.random.default_rng(0).normal(size=(400, 6)).astype(np.float32)
START = jnp.asarray(POOL[:5])
PRESENT = jnp.array([True, True, False])
SIZES = (90, 60, 20)


@pytest.fixture
def large(monkeypatch):
    """Makes all data large, in chunks of 16 examples."""
    monkeypatch.setattr(clients, "LARGE", 0)
    monkeypatch.setattr(clients, "CHUNK", 16)


def federation():
    """Three clients of 90, 60 and 20 examples of the pool, padded to 90."""
    indices = np.random.default_rng(1).permutation(400)[:270].reshape(3, 90)
    return Federation(
        pool=jnp.asarray(POOL),
        indices=jnp.asarray(indices),
        mask=jnp.asarray(np.arange(90) < np.array(SIZES)[:, None]),
        present=PRESENT[None],
        local_clusters=jnp.full(3, 5),
    )


def test_chunks_are_padded_with_zeros_and_false(large):
    rows, mask = jnp.arange(1.0, 38.0), jnp.ones(37, bool)
    total = clients.sum_chunks(lambda x, m: (x.sum(), m.sum()), rows, mask)
    assert [int(x) for x in total] == [37 * 38 // 2, 37]
    np.testing.assert_array_equal(clients.map_chunks(lambda x: 2 * x, rows), 2 * rows)


def test_a_step_in_chunks_is_the_step_by_hand(large):
    part = federation()
    step = lloyd_step(
        *(part.indices, part.mask, PRESENT, START),
        read=row_reader(part, unit_length=False),
    )
    members = [np.asarray(part.indices)[i, : SIZES[i]] for i in (0, 1)]
    distances = [((POOL[x][:, None] - POOL[:5]) ** 2).sum(axis=2) for x in members]
    nearest = [x.argmin(axis=1) for x in distances]
    counts = [np.bincount(x, minlength=5) for x in nearest]
    np.testing.assert_array_equal(step.counts, [*counts, np.zeros(5)])
    x, clusters = POOL[np.concatenate(members)], np.concatenate(nearest)
    means = [x[clusters == k].mean(axis=0) for k in range(5)]
    np.testing.assert_allclose(step.centroids, means, rtol=1e-5, atol=1e-6)
    inertia = np.concatenate([x.min(axis=1) for x in distances]).mean()
    np.testing.assert_allclose(step.inertia, inertia, rtol=1e-5)


@pytest.mark.parametrize("fuzzifier", [None, 1.5])
@pytest.mark.parametrize("ragged", [False, True])
def test_a_step_in_chunks_is_the_step_at_once(monkeypatch, fuzzifier, ragged):
    part = federation()
    z, mask = part.indices, part.mask
    if ragged:
        z, mask = (Ragged([x[::2], x[1:2, :60]], (1, 1)) for x in (z, mask))
    read = row_reader(part, unit_length=True)
    take = lambda: lloyd_step(  # noqa: E731
        *(z, mask, PRESENT, START), read=read, fuzzifier=fuzzifier
    )
    expected = take()
    monkeypatch.setattr(clients, "LARGE", 0)
    monkeypatch.setattr(clients, "CHUNK", 16)
    for one, other in zip(take(), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_assignments_in_chunks_are_those_at_once(monkeypatch):
    part = federation()
    read = lambda federation: row_reader(federation, unit_length=False)  # noqa: E731
    expected = nearest_of_rows(START, read, part)
    monkeypatch.setattr(clients, "LARGE", 0)
    monkeypatch.setattr(clients, "CHUNK", 16)
    np.testing.assert_array_equal(nearest_of_rows(START, read, part), expected)


def test_seeds_come_from_a_sample_of_each_client(large, monkeypatch):
    monkeypatch.setattr("fcjax.federated.kmeans.SEEDING", 30)  # ten of each client
    part = federation()
    read = row_reader(part, unit_length=False)
    args = (jax.random.key(0), part.indices, part.mask)
    seeds = seed_centroids(*args, jnp.ones(3, bool), 10, read=read, num_init=1)
    # Ten local clusters of ten examples are the examples. A seed is a mean of some.
    assert seeds.shape == (10, 6)
    assert np.isfinite(np.asarray(seeds)).all()
    alone = seed_centroids(*args, PRESENT ^ True, 10, read=read, num_init=1)
    own = POOL[np.asarray(part.indices)[2, :20]]
    distances = ((np.asarray(alone)[:, None] - own) ** 2).sum(axis=2)
    np.testing.assert_allclose(distances.min(axis=1), 0, atol=1e-10)


def test_a_memory_map_is_not_copied(tmp_path):
    np.save(tmp_path / "x.npy", POOL)
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    pool, _ = place(x, 0, where="device", devices=jax.local_devices())
    assert isinstance(pool, jax.Array)
    places = {part.data.unsafe_buffer_pointer() for part in pool.addressable_shards}
    if jax.default_backend() == "cpu":
        assert places == {x.ctypes.data}


def test_a_run_embeds_a_sample_of_large_data(large, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "fcjax")
    monkeypatch.setattr(outcome, "MOST_EMBEDDED", 0)
    monkeypatch.setattr(outcome, "SAMPLE", 600)  # 100 of 400 examples
    np.save(tmp_path / "x.npy", POOL)
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    labels, owners = np.arange(400) % 3, np.arange(400) // 40
    found = fcjax.run(KFed(), Dataset("x", x, labels), clients=owners, num_clusters=3)
    assert found.runs["status"].tolist() == ["ok"]
    assert np.isfinite(found.runs["silhouette"]).all()
    line = "scores of the embedding use 100 of 400 examples, drawn at random"
    assert sum(message.endswith(line) for message in caplog.messages) == 1
    caplog.clear()
    monkeypatch.setattr(outcome, "MOST_EMBEDDED", 2400)
    fcjax.run(KFed(), Dataset("x", x, labels), clients=owners, num_clusters=3)
    assert not any("drawn at random" in message for message in caplog.messages)
