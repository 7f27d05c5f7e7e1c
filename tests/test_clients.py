"""The client axis: keys, axes, and who is taken and put back."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.federated import clients

AXES = ("vmap", "map", None)


def test_the_first_keys_do_not_depend_on_the_count(key):
    few, many = (jax.random.key_data(clients.fold_in(key, n)) for n in (3, 50))
    np.testing.assert_array_equal(few, many[:3])
    assert len(np.unique(np.asarray(many), axis=0)) == 50


# --- for_each


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("count", [1, 3])
def test_for_each_is_a_loop_over_clients(key, axis, count):
    keys = jax.random.split(key, count)
    tree = {
        "w": jax.random.normal(key, (count, 4, 2)),
        "b": (jnp.arange(count), jnp.arange(count) != 1),
    }

    def one(key, tree):
        w, (number, flag) = tree["w"], tree["b"]
        noise = jax.random.normal(key, (2,))
        return {"sum": (w @ w.T).sum() + noise, "where": jnp.where(flag, number, -1)}

    results = jax.jit(lambda *a: clients.for_each(one, *a, axis=axis))(keys, tree)
    np.testing.assert_array_equal(results["where"], [0, -1, 2][:count])
    for i in range(count):
        w = np.asarray(tree["w"][i])
        expected = (w @ w.T).sum() + np.asarray(jax.random.normal(keys[i], (2,)))
        np.testing.assert_allclose(results["sum"][i], expected, rtol=1e-4)


def normalized(w, x):
    """What is rounded otherwise where one client is alone in a batch of them."""
    y = x @ w
    y -= y.mean(axis=0, keepdims=True)
    return y / jnp.sqrt(jnp.mean(y**2, axis=0, keepdims=True) + 1e-5)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="they go side by side")
def test_a_client_has_the_same_bits_whoever_shares_its_device(key):
    each = (jax.random.normal(key, (5, 64, 64)), jax.random.normal(key, (5, 32, 64)))
    run = jax.jit(partial(clients.for_each, normalized))
    expected = run(*each)
    for count in (1, 2, 3):
        few = run(*(x[:count] for x in each))
        np.testing.assert_array_equal(few, expected[:count])


# --- some of the clients, and their keys


@pytest.mark.parametrize(
    ("count", "expected"),
    [(2, [1, 4]), (3, [1, 4, 0]), (4, [1, 4, 0, 2]), (9, [1, 4, 0, 2, 3])],
)
def test_slots_are_of_the_chosen_first(count, expected):
    chosen = jnp.array([False, True, False, False, True])
    slots = jax.jit(clients.sampled_indices, static_argnums=1)(chosen, count)
    np.testing.assert_array_equal(slots, expected)


def held():
    return {
        "w": jnp.arange(10.0).reshape(5, 2),
        "count": (jnp.array([7, 8, 9, 10, 11]), jnp.arange(5) > 2),
    }


def test_take_by_hand():
    found = clients.take(held(), jnp.array([4, 0]))
    np.testing.assert_array_equal(found["w"], [[8, 9], [0, 1]])
    np.testing.assert_array_equal(found["count"], [[11, 7], [1, 0]])


def test_put_by_hand():
    """Three slots, one of them of a client that is not chosen: its NaN is not seen."""
    new = {
        "w": jnp.array([[50.0, 51.0], [60.0, 61.0], [jnp.nan, jnp.nan]]),
        "count": (jnp.array([0, 1, 2]), jnp.array([True, False, True])),
    }
    chosen = jnp.array([False, True, False, False, True])
    slots = jnp.array([1, 4, 0])
    found = jax.jit(clients.put)(held(), slots, new, where=chosen)
    expected = [[0, 1], [50, 51], [4, 5], [6, 7], [60, 61]]
    np.testing.assert_array_equal(found["w"], expected)
    np.testing.assert_array_equal(found["count"], [[7, 0, 9, 10, 1], [0, 1, 0, 1, 0]])
    dtypes = jax.tree.map(lambda x: x.dtype, (found, held()))
    assert dtypes[0] == dtypes[1]
