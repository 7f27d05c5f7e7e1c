"""Properties of partitions, server means, masks and file readers, for drawn inputs.

hypothesis draws the same inputs in every run.
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import safetensors.numpy
import scipy.io
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from fcjax import cluster, data, losses
from fcjax.data import partition as rules
from fcjax.federated import server

settings.register_profile("same", derandomize=True, deadline=None, database=None)
settings.load_profile("same")


# --- Partitions

LABELS = of_numpy.arrays(int, st.integers(4, 60), elements=st.integers(0, 6))
CLIENTS, SEEDS = st.integers(1, 12), st.integers(0, 2**32 - 1)
RULES = st.one_of(
    st.tuples(st.just(data.heterogeneous), st.floats(0, 1)),
    st.tuples(st.just(data.dirichlet), st.floats(1e-3, 1e3)),
    st.tuples(st.just(data.class_blocks), st.floats(1e-2, 1)),
    st.tuples(st.just(data.drawn_classes), st.integers(1, 7)),
)


def divided(labels, num_clients, rule, seed):
    """The partition; hypothesis draws again if the rule refuses the numbers."""
    divide, level = rule
    try:
        return divide(labels, num_clients, level, seed=seed)
    except ValueError:
        assume(False)
        raise


@settings(max_examples=300)
@given(LABELS, CLIENTS, RULES, SEEDS)
def test_a_partition_gives_every_example_to_one_client(labels, num_clients, rule, seed):
    partition = divided(labels, num_clients, rule, seed)
    assert len(partition.clients) == num_clients
    assert all(len(rows) for rows in partition.clients)
    given_to = np.concatenate([*partition.clients, partition.left_out])
    np.testing.assert_array_equal(np.sort(given_to), np.arange(len(labels)))


@settings(max_examples=200)
@given(LABELS, CLIENTS, RULES, SEEDS)
def test_a_partition_depends_on_the_order_of_the_classes_only(
    labels, num_clients, rule, seed
):
    first = divided(labels, num_clients, rule, seed)
    second = divided(5 * labels - 9, num_clients, rule, seed)
    for rows, same in zip(first.clients, second.clients, strict=True):
        np.testing.assert_array_equal(rows, same)


@settings(max_examples=200)
@given(LABELS, CLIENTS, st.integers(1, 20), SEEDS)
def test_a_subsample_is_small_and_keeps_every_class_that_it_can(
    labels, num_clients, size, seed
):
    assume(num_clients <= len(labels))
    full = data.dirichlet(labels, num_clients, 1.0, seed=seed)
    thin = rules.subsample_clients(full, labels, size, seed=seed)
    for rows, kept in zip(full.clients, thin.clients, strict=True):
        assert set(kept) <= set(rows)
        assert len(kept) == min(size, len(rows))
        num_classes = len(set(labels[rows]))
        if size >= num_classes:
            assert len(set(labels[kept])) == num_classes


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=9).filter(any),
    st.integers(0, 500),
)
def test_proportional_counts_are_the_shares_up_to_one(counts, size):
    quotas = rules.proportional_counts(np.array(counts), size)
    shares = size * np.array(counts) / sum(counts)
    assert quotas.sum() == size
    assert (abs(quotas - shares) < 1).all()


# --- Means on the server

VALUES = st.floats(-1e3, 1e3, width=32)
SIX_CLIENTS = of_numpy.arrays(np.float32, (6, 3), elements=VALUES)
# Examples are counted, so a client has none or at least one.
SIZES = of_numpy.arrays(np.float32, 6, elements=st.integers(0, 10_000))
ANYTHING = st.sampled_from([np.nan, np.inf, -np.inf, 3e38, 0.0])


@settings(max_examples=50)
@given(SIX_CLIENTS, SIZES.filter(np.any), ANYTHING)
def test_the_mean_is_numpys_average_of_the_clients_that_answered(x, weights, lost):
    expected = np.average(x.astype(float), axis=0, weights=weights.astype(float))
    x[weights == 0] = lost
    got = server.weighted_mean(jnp.array(x), jnp.array(weights))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-3)


@settings(max_examples=50)
@given(
    SIX_CLIENTS,
    SIZES,
    of_numpy.arrays(np.int32, 6, elements=st.integers(0, 3)),
    ANYTHING,
)
def test_the_mean_of_a_group_is_that_of_its_clients(x, weights, groups, lost):
    expected = np.zeros((4, 3))
    for group in range(4):
        counted = (groups == group) & (weights > 0)
        if counted.any():
            of_group = x[counted].astype(float)
            expected[group] = np.average(of_group, axis=0, weights=weights[counted])
    x[weights == 0] = lost
    got = server.group_means(jnp.array(x), jnp.array(weights), jnp.array(groups), 4)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-3)


@settings(max_examples=50)
@given(of_numpy.arrays(bool, 9), st.integers(1, 9), SEEDS)
def test_present_clients_are_chosen_and_as_many_as_asked_for(present, count, seed):
    chosen = server.choose(jax.random.key(seed), jnp.array(present), count)
    assert not (chosen & ~present).any()
    assert chosen.sum() == min(count, present.sum())


# --- Masks

ROWS = of_numpy.arrays(np.float32, (8, 3), elements=st.floats(-10, 10, width=32))
MASKS = of_numpy.arrays(bool, 8).filter(lambda mask: mask.sum() >= 2)


@settings(max_examples=20)
@given(ROWS, ROWS, MASKS, ANYTHING)
def test_masked_examples_do_not_count_in_a_loss(z, w, mask, padding):
    expected = losses.nt_xent(jnp.array(z[mask]), jnp.array(w[mask]), temperature=0.5)
    z[~mask], w[~mask] = padding, padding
    batch = jnp.array(z), jnp.array(w)
    got = losses.nt_xent(*batch, temperature=0.5, mask=jnp.array(mask))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=50)
@given(ROWS, MASKS, ANYTHING)
def test_centroids_are_the_means_of_the_unmasked_examples_nearest_to_them(
    x, mask, padding
):
    start = jnp.array(x[mask][:2])
    filled = np.where(mask[:, None], x, np.float32(padding))
    got = cluster.lloyd(jnp.array(filled), start, mask=jnp.array(mask))
    chosen = np.asarray(got.assignments)[mask]
    distances = ((x[mask][:, None] - np.asarray(got.centroids)) ** 2).sum(axis=-1)
    nearest = distances.min(axis=1)
    at_chosen = distances[np.arange(len(chosen)), chosen]
    np.testing.assert_allclose(at_chosen, nearest, rtol=1e-3, atol=1e-3)
    for number in set(chosen):
        mean = x[mask][chosen == number].mean(axis=0)
        np.testing.assert_allclose(got.centroids[number], mean, rtol=1e-4, atol=1e-4)


# --- File readers

IMAGES = of_numpy.arrays(
    np.uint8, st.tuples(st.integers(2, 6), st.integers(1, 5), st.integers(1, 5))
)
TABLES = of_numpy.arrays(
    np.float32,
    st.tuples(st.integers(2, 8), st.integers(2, 4)),
    elements=st.floats(-1e6, 1e6, width=32),
)


def idx(images: np.ndarray) -> bytes:
    """The MNIST files: two zeros, 8 for bytes, the number of axes, their lengths."""
    sizes = np.array(images.shape, ">u4").tobytes()
    return bytes([0, 0, 8, images.ndim]) + sizes + images.tobytes()


WRITERS = {
    "x.npy": lambda path, x: np.save(path, x),
    "x.npz": lambda path, x: np.savez_compressed(path, x=x),
    "x.safetensors": lambda path, x: safetensors.numpy.save_file({"x": x}, path),
    "x.mat": lambda path, x: scipy.io.savemat(path, {"fea": x}),
}


@pytest.mark.parametrize("name", [*WRITERS, "x-idx3-ubyte"])
@settings(max_examples=30)
@given(images=IMAGES)
def test_images_come_back_as_they_were_written(name, images):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        if name in WRITERS:
            WRITERS[name](path, images)
        else:
            path.write_bytes(idx(images))
        read = data.load(path)
    np.testing.assert_array_equal(read.examples[..., 0], images)


@settings(max_examples=100)
@given(TABLES)
def test_a_table_of_numbers_comes_back_as_it_was_written(table):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.csv"
        columns = [f"width {i}" for i in range(table.shape[1])]
        pd.DataFrame(table, columns=columns).to_csv(path, index=False)
        read = data.load(path, labels=False, scale_columns="none")
    np.testing.assert_array_equal(read.examples, table)


WHOLE = {
    **WRITERS,
    "x-idx3-ubyte": lambda path, x: path.write_bytes(idx(x)),
    "x.csv": lambda path, x: pd.DataFrame(x[:, 0]).to_csv(path, index=False),
    "x.parquet": lambda path, x: pd.DataFrame(
        x[:, 0], columns=[f"c{i}" for i in range(x.shape[2])]
    ).to_parquet(path),
}
DAMAGE = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)),
    min_size=1,
    max_size=8,
)


def error_of(call) -> str | None:
    """The message of a ValueError; other exceptions go on to the test."""
    try:
        call()
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", WHOLE)
@settings(max_examples=100)
@given(damage=DAMAGE, kept=st.floats(0.2, 1))
def test_a_damaged_file_is_read_or_refused_in_one_line(name, damage, kept):
    images = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        WHOLE[name](path, images)
        content = bytearray(path.read_bytes())
        for place, byte in damage:
            content[int(place * len(content))] = byte
        path.write_bytes(content[: max(1, int(kept * len(content)))])
        error = error_of(lambda: data.load(path))
    if error is not None:
        assert str(path) in error
        assert "\n" not in error
