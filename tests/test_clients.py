"""The client axis: keys, axes, and who is taken and put back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax import clients

AXES = ("vmap", "map", "unroll", None)


def test_the_first_keys_do_not_depend_on_the_count(key):
    few, many = clients.fold_in(key, 3), clients.fold_in(key, 50)
    data = jax.random.key_data(many)
    np.testing.assert_array_equal(jax.random.key_data(few), data[:3])
    assert len(np.unique(np.asarray(data), axis=0)) == 50
    one = jax.random.key_data(jax.random.fold_in(key, 2))
    np.testing.assert_array_equal(data[2], one)


# --- for_each


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("compiled", [False, True])
def test_for_each_is_a_loop_over_clients(key, axis, compiled):
    keys = jax.random.split(key, 3)
    tree = {
        "w": jax.random.normal(key, (3, 4, 2)),
        "b": (jnp.arange(3), jnp.array([True, False, True])),
    }

    def one(key, tree):
        w, (number, flag) = tree["w"], tree["b"]
        noise = jax.random.normal(key, (2,))
        return {"sum": (w @ w.T).sum() + noise, "where": jnp.where(flag, number, -1)}

    run = lambda *a: clients.for_each(one, *a, axis=axis)  # noqa: E731
    results = (jax.jit(run) if compiled else run)(keys, tree)
    assert jax.tree.map(jnp.shape, results) == {"sum": (3, 2), "where": (3,)}
    np.testing.assert_array_equal(results["where"], [0, -1, 2])
    for i in range(3):
        w = np.asarray(tree["w"][i])
        expected = (w @ w.T).sum() + np.asarray(jax.random.normal(keys[i], (2,)))
        np.testing.assert_allclose(results["sum"][i], expected, rtol=1e-4)


@pytest.mark.parametrize("axis", AXES)
def test_for_each_takes_one_client(axis):
    results = clients.for_each(lambda x: (x + 1, x.sum()), jnp.ones((1, 2)), axis=axis)
    np.testing.assert_array_equal(results[0], [[2, 2]])
    np.testing.assert_array_equal(results[1], [2])


@pytest.mark.parametrize(("size", "loops"), [(131070, False), (131071, True)])
def test_for_each_takes_large_clients_of_a_cpu_one_by_one(size, loops):
    """Two clients of 4 size + 4 bytes, on either side of half a MiB, 524,288 bytes."""
    stacked = (
        jax.ShapeDtypeStruct((2, size), jnp.float32),
        jax.ShapeDtypeStruct((2,), jnp.int32),
    )
    program = jax.make_jaxpr(lambda *a: clients.for_each(lambda x, i: x[i], *a))
    on_cpu = jax.default_backend() == "cpu"
    assert ("scan" in str(program(*stacked))) == (loops and on_cpu)


# --- some of the clients, and their keys


def test_a_client_has_its_key_on_whatever_device():
    """Six clients on one device, and two on each of three (a mapped axis)."""
    key = jax.random.key(4)
    expected = [jax.random.key_data(jax.random.fold_in(key, i)) for i in range(6)]
    alone = jax.random.key_data(clients.keys(key, 6))
    np.testing.assert_array_equal(alone, expected)

    def on_a_device(_):
        return jax.random.key_data(clients.keys(key, 2)), clients.num_devices()

    spread, counts = jax.vmap(on_a_device, axis_name=clients.AXIS)(jnp.arange(3))
    np.testing.assert_array_equal(spread.reshape(6, -1), expected)
    np.testing.assert_array_equal(counts, [3, 3, 3])
    assert clients.num_devices() == 1


@pytest.mark.parametrize(
    ("count", "expected"),
    [(2, [1, 4]), (3, [1, 4, 0]), (4, [1, 4, 0, 2]), (9, [1, 4, 0, 2, 3])],
)
def test_slots_are_of_the_chosen_first(count, expected):
    chosen = jnp.array([False, True, False, False, True])
    slots = jax.jit(clients.slots_of, static_argnums=1)(chosen, count)
    np.testing.assert_array_equal(slots, expected)


def test_all_that_are_chosen_have_a_slot(key):
    """Each client once, whoever is chosen."""
    draws = jax.random.bernoulli(key, 0.4, (200, 7))
    slots = np.asarray(jax.vmap(lambda chosen: clients.slots_of(chosen, 5))(draws))
    assert slots.shape == (200, 5)
    for own, chosen in zip(slots, np.asarray(draws), strict=True):
        assert len(set(own)) == 5
        assert 0 <= own.min() <= own.max() < 7
        assert set(np.flatnonzero(chosen)[:5]) <= set(own)


def held():
    return {
        "w": jnp.arange(10.0).reshape(5, 2),
        "count": (jnp.array([7, 8, 9, 10, 11]), jnp.arange(5) > 2),
    }


def test_take_by_hand():
    found = clients.take(held(), jnp.array([4, 0]))
    np.testing.assert_array_equal(found["w"], [[8, 9], [0, 1]])
    np.testing.assert_array_equal(found["count"][0], [11, 7])
    np.testing.assert_array_equal(found["count"][1], [True, False])


def test_put_by_hand():
    """Three slots, one of them of a client that is not chosen: its NaN is not seen."""
    new = {
        "w": jnp.array([[50.0, 51.0], [60.0, 61.0], [jnp.nan, jnp.nan]]),
        "count": (jnp.array([0, 1, 2]), jnp.array([True, False, True])),
    }
    chosen = jnp.array([False, True, False, False, True])
    slots = jnp.array([1, 4, 0])
    found = jax.jit(clients.put)(held(), slots, new, where=chosen)
    np.testing.assert_array_equal(
        found["w"], [[0, 1], [50, 51], [4, 5], [6, 7], [60, 61]]
    )
    np.testing.assert_array_equal(found["count"][0], [7, 0, 9, 10, 1])
    np.testing.assert_array_equal(found["count"][1], [0, 1, 0, 1, 0])
    for one, other in zip(*map(jax.tree.leaves, (found, held())), strict=True):
        assert one.dtype == other.dtype


@pytest.mark.parametrize("count", [1, 3, 5, 8])
def test_what_is_taken_and_put_back_changes_the_chosen_alone(key, count):
    chosen = jax.random.permutation(key, jnp.arange(5) < min(count, 5) - 1)
    slots = clients.slots_of(chosen, count)
    same = clients.put(held(), slots, clients.take(held(), slots), where=chosen)
    jax.tree.map(np.testing.assert_array_equal, same, held())
    raised = jax.tree.map(lambda x: ~x if x.dtype == bool else x + 1, held())
    found = clients.put(held(), slots, clients.take(raised, slots), where=chosen)
    expected = clients.keep_absent(chosen, raised, held())
    jax.tree.map(np.testing.assert_array_equal, found, expected)
