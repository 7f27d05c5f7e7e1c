from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax import clients, server
from fcjax.types import Federation


def total(pair):
    """The bytes of one run, as the session takes them: for the grid at once."""
    return server.total_bytes(np.asarray(pair)[None]).item()


def on_each(num_devices, function, *clients_own):
    """What every device finds that has a part of the clients: a mapped axis stands for
    them. One has them all, without an axis."""
    if num_devices == 1:
        return [jax.jit(function)(*clients_own)]
    parts = jax.tree.map(
        lambda x: x.reshape(num_devices, -1, *x.shape[1:]), clients_own
    )
    found = jax.vmap(function, axis_name=clients.AXIS)(*parts)
    return [jax.tree.map(lambda x, i=i: x[i], found) for i in range(num_devices)]


def test_weighted_mean_by_hand():
    """(1 * 1 + 3 * 5) / 4 and so on, over leaves of any rank."""
    stacked = {
        "kernel": jnp.array([[[1.0, 2.0]], [[5.0, 6.0]]]),
        "scale": jnp.array([0.0, 4.0]),
    }
    mean = server.weighted_mean(stacked, jnp.array([1.0, 3.0]))
    np.testing.assert_allclose(mean["kernel"], [[4.0, 5.0]])
    np.testing.assert_allclose(mean["scale"], 3.0)
    assert mean["scale"].shape == ()
    other = server.weighted_mean(stacked, jnp.array([1000.0, 3000.0]))
    np.testing.assert_allclose(other["kernel"], mean["kernel"])


@pytest.mark.parametrize("held", [jnp.nan, jnp.inf, -jnp.inf, 1e38])
def test_a_client_of_weight_zero_changes_nothing_whatever_it_holds(held):
    stacked = jnp.array([[1.0, 2.0], [held, held], [3.0, 6.0]])
    mean = jax.jit(server.weighted_mean)(stacked, jnp.array([1.0, 0.0, 1.0]))
    np.testing.assert_array_equal(mean, [2.0, 4.0])


def test_a_nan_that_counts_is_not_hidden():
    mean = server.weighted_mean(jnp.array([1.0, jnp.nan]), jnp.array([1.0, 1.0]))
    assert np.isnan(mean)


def test_nobody_has_no_mean():
    assert np.isnan(server.weighted_mean(jnp.array([1.0, 2.0]), jnp.zeros(2)))


NETWORKS = {"w": jnp.array([[1.0, 2.0], [jnp.nan, jnp.inf], [4.0, 6.0], [4.0, 8.0]])}
WEIGHTS = jnp.array([1.0, 0.0, 3.0, 1.0])
EACH = (jnp.array([5.0, jnp.nan, 7.0, 8.0]), jnp.array([True, False, True, True]))


@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_every_device_receives_from_all_clients(num_devices):
    """(1 * 1 + 3 * 4 + 4) / 5 and (2 + 18 + 8) / 5; the second client is absent."""
    for mean, each in on_each(num_devices, server.receive, NETWORKS, WEIGHTS, EACH):
        np.testing.assert_allclose(mean["w"], [17 / 5, 28 / 5], rtol=1e-6)
        for found, sent in zip(each, EACH, strict=True):
            assert found.dtype == sent.dtype
            np.testing.assert_array_equal(found, sent)


# --- several models at once

GROUPS = jnp.array([2, 0, -7, 2, 99, 0, 2, 0])  # nobody is in 1 or 3
GROUP_WEIGHTS = jnp.array([3.0, 1.0, 0.0, 2.0, 0.0, 4.0, 0.0, 0.5])
NUM_GROUPS = 4


def grouped():
    """Eight models, of which those without a weight are not a number."""
    rng = np.random.default_rng(0)
    leaves = {"kernel": rng.normal(size=(8, 3, 2)), "scale": rng.normal(size=8)}
    for x in leaves.values():
        x[[2, 4]], x[6] = np.nan, np.inf
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), leaves)


@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_means_of_groups_are_over_the_members_on_all_devices(num_devices):
    def means(*own):
        return server.group_means(*own, NUM_GROUPS)

    for found in on_each(num_devices, means, grouped(), GROUP_WEIGHTS, GROUPS):
        for name, x in grouped().items():
            for group, members in {0: [1, 5, 7], 2: [0, 3]}.items():
                weights = np.asarray(GROUP_WEIGHTS)[members]
                expected = np.average(np.asarray(x)[members], axis=0, weights=weights)
                np.testing.assert_allclose(found[name][group], expected, rtol=1e-5)
            np.testing.assert_array_equal(found[name][jnp.array([1, 3])], 0)


def test_a_nan_that_counts_stays_in_its_group():
    x = jnp.array([1.0, jnp.nan, 3.0])
    means = server.group_means(x, jnp.ones(3), jnp.array([0, 1, 0]), 2)
    np.testing.assert_array_equal(means, [2.0, np.nan])


@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_own_rows_are_what_was_gathered_of_this_device(num_devices):
    sent = (jnp.arange(8.0).reshape(4, 2), jnp.array([True, False, False, True]))

    def there_and_back(*own):
        return server.own_rows(server.gather(own), len(own[0]))

    found = on_each(num_devices, there_and_back, *sent)
    joined = jax.tree.map(lambda *parts: jnp.concatenate(parts), *found)
    jax.tree.map(np.testing.assert_array_equal, joined, sent)


def test_the_last_row_of_present_stands_for_all_further_rounds():
    federation = Federation(
        pool=jnp.zeros((1, 1)),
        indices=jnp.zeros((2, 1), int),
        mask=jnp.ones((2, 1), bool),
        present=jnp.array([[True, True], [True, False], [False, True]]),
        local_clusters=jnp.array([2, 2]),
    )
    rows = [0, 1, 2, 2, 2]
    for num_rounds, row in zip([0, 1, 2, 3, 1000], rows, strict=True):
        found = server.participants(federation, jnp.int32(num_rounds))
        np.testing.assert_array_equal(found, federation.present[row])


def test_traffic_counts_senders_and_bytes_by_hand():
    """Up: 6 floats and 3 bytes; down: 5 halves. Two of three clients take part."""
    up = {"network": {"w": jnp.ones((2, 3)), "mask": jnp.ones(3, bool)}}
    down = {"network": jax.ShapeDtypeStruct((5,), jnp.bfloat16), "nothing": ()}
    found = server.traffic(jnp.array([True, False, True]), up=up, down=down)
    assert {name: pair.tolist() for name, pair in found.items()} == {
        "up_network": [2, 27],
        "down_network": [2, 10],
        "down_nothing": [2, 0],
    }
    totals = {name: total(pair) for name, pair in found.items()}
    assert totals == {"up_network": 54, "down_network": 20, "down_nothing": 0}
    nobody = server.traffic(jnp.zeros(3, bool), up={"x": jnp.ones(4)}, down={})
    assert total(nobody["up_x"]) == 0


def test_traffic_is_the_same_under_vmap():
    present = jnp.array([[True, True], [False, True]])
    found = jax.vmap(lambda p: server.traffic(p, up={"x": jnp.ones(3)}, down={}))(
        present
    )
    np.testing.assert_array_equal(found["up_x"], [[2, 12], [1, 12]])
    np.testing.assert_array_equal(
        server.total_bytes(np.asarray(found["up_x"])), [24, 12]
    )


def test_total_bytes_beyond_32_bits_are_exact():
    """Ten clients that send a network of 500,000,001 floats."""
    network = jax.ShapeDtypeStruct((500_000_001,), jnp.float32)
    found = server.traffic(jnp.ones(10, bool), up={"network": network}, down={})
    assert total(found["up_network"]) == 20_000_000_040
    pairs = np.array([[[3, 2**31 - 1], [0, 5]]], np.int32)
    totals = server.total_bytes(pairs)
    assert totals.tolist() == [[3 * (2**31 - 1), 0]]


# --- who is drawn

PRESENT = jnp.array([True, True, False, True, True, True, False, True])
COUNT, NUM_DRAWS = 3, 2000
draw = jax.jit(jax.vmap(server.choose, in_axes=(0, None, None)), static_argnums=2)


@pytest.fixture(scope="module")
def drawn():
    keys = jax.random.split(jax.random.key(5), NUM_DRAWS)
    return np.asarray(draw(keys, PRESENT, COUNT))


def test_so_many_are_drawn_of_those_that_are_present(drawn):
    np.testing.assert_array_equal(drawn.sum(axis=1), COUNT)
    assert not drawn[:, ~np.asarray(PRESENT)].any()


def test_every_client_is_drawn_as_often_as_any_other(drawn):
    """Alone and in pairs: 3 of 6 are each there in 1/2 of the draws, two in 1/5."""
    own = drawn[:, np.asarray(PRESENT)].astype(float)
    together = own.T @ own / NUM_DRAWS
    share = np.where(np.eye(6, dtype=bool), 1 / 2, 3 * 2 / (6 * 5))
    sigma = np.sqrt(share * (1 - share) / NUM_DRAWS)
    assert (np.abs(together - share) < 5 * sigma).all()
    # Of the 20 groups of three there are about as many, too.
    groups, counts = np.unique(own, axis=0, return_counts=True)
    assert len(groups) == 20
    assert (np.abs(counts / NUM_DRAWS - 1 / 20) < 5 * np.sqrt(0.0475 / NUM_DRAWS)).all()


@pytest.mark.parametrize("present", [PRESENT, jnp.zeros(8, bool)])
def test_fewer_than_asked_for_are_all_drawn(present):
    for count in (6, 7, 8, 100):
        found = server.choose(jax.random.key(0), present, count)
        np.testing.assert_array_equal(found, present)


def test_clients_that_fill_up_do_not_change_the_draw(drawn):
    """As where they are spread over devices: behind the others, and absent."""
    keys = jax.random.split(jax.random.key(5), NUM_DRAWS)[:50]
    filled = draw(keys, jnp.append(PRESENT, jnp.zeros(4, bool)), COUNT)
    np.testing.assert_array_equal(filled[:, :8], drawn[:50])
    assert not np.asarray(filled[:, 8:]).any()


def test_the_order_of_draws_stays_where_one_client_drops_out(drawn):
    """Whoever was drawn beside it is drawn still, and one other instead."""
    keys = jax.random.split(jax.random.key(5), NUM_DRAWS)[:50]
    fewer = np.asarray(draw(keys, PRESENT.at[0].set(False), COUNT))
    with_it = drawn[:50, 0]
    assert with_it.any()
    np.testing.assert_array_equal(fewer[~with_it], drawn[:50][~with_it])
    kept = drawn[:50].copy()
    kept[:, 0] = False
    assert (fewer >= kept).all()


@pytest.mark.parametrize("num_devices", [2, 4])
def test_the_draw_is_the_same_on_however_many_devices(num_devices, drawn):
    keys = jax.random.split(jax.random.key(5), NUM_DRAWS)
    for number in range(5):
        choose = partial(server.choose, keys[number], count=COUNT)
        found = on_each(num_devices, choose, PRESENT)
        np.testing.assert_array_equal(jnp.concatenate(found), drawn[number])
