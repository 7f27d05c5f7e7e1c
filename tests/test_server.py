from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fcjax.federated import clients, server
from fcjax.parallel.mesh import AXIS
from fcjax.types import Federation, Now

DEVICES = pytest.mark.parametrize("num_devices", [1, 2])


def on_each(num_devices, function, *clients_own):
    """What every device finds that has a part of the clients: a mapped axis stands for
    them. One has them all, without an axis."""
    if num_devices == 1:
        return [jax.jit(function)(*clients_own)]
    parts = jax.tree.map(
        lambda x: x.reshape(num_devices, -1, *x.shape[1:]), clients_own
    )
    found = jax.vmap(function, axis_name=AXIS)(*parts)
    return [jax.tree.map(lambda x, i=i: x[i], found) for i in range(num_devices)]


@pytest.mark.parametrize(
    ("held", "weights", "expected"),
    [
        ([1.0, jnp.nan, 3.0], [1.0, 0.0, 1.0], 2.0),
        ([1.0, jnp.inf, 3.0], [1.0, 0.0, 1.0], 2.0),
        ([1.0, jnp.nan, 3.0], [1.0, 1.0, 0.0], jnp.nan),  # one that counts
        ([1.0, 2.0, 3.0], [0.0, 0.0, 0.0], jnp.nan),  # nobody has no mean
    ],
)
def test_what_a_client_holds_counts_where_its_weight_is_not_zero(
    held, weights, expected
):
    mean = jax.jit(server.weighted_mean)(jnp.array(held), jnp.array(weights))
    np.testing.assert_array_equal(mean, expected)


NETWORKS = {
    "w": jnp.array([[[1.0, 2.0]], [[jnp.nan, jnp.inf]], [[4.0, 6.0]], [[4.0, 8.0]]]),
    "scale": jnp.array([0.0, jnp.nan, 4.0, 8.0]),
}
WEIGHTS = jnp.array([1.0, 0.0, 3.0, 1.0])
EACH = (jnp.array([5.0, jnp.nan, 7.0, 8.0]), jnp.array([True, False, True, True]))


@DEVICES
def test_every_device_receives_from_all_clients(num_devices):
    """(1 * 1 + 3 * 4 + 4) / 5 and so on; the second client is absent."""
    for mean, each in on_each(num_devices, server.receive, NETWORKS, WEIGHTS, EACH):
        np.testing.assert_allclose(mean["w"], [[17 / 5, 28 / 5]], rtol=1e-6)
        np.testing.assert_allclose(mean["scale"], 20 / 5, rtol=1e-6)
        assert mean["scale"].shape == ()
        for found, sent in zip(each, EACH, strict=True):
            assert found.dtype == sent.dtype
            np.testing.assert_array_equal(found, sent)


def of_many():
    """Eight clients of weights that are no powers of two: every order of a sum has its
    own last bits. The third is absent, the fourth holds -0."""
    rng = np.random.default_rng(1)
    weights = rng.uniform(1, 9, 8).astype(np.float32)
    weights[2] = 0
    rows = rng.normal(size=(8, 50)).astype(np.float32)
    rows[3] = -0.0
    return {"w": rows, "scale": rows[:, 0].copy()}, weights


@pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="devices sum their own first"
)
@pytest.mark.parametrize("num_devices", [2, 4, 8])
def test_what_is_received_has_the_same_bits_on_however_many_devices(num_devices):
    networks, weights = of_many()
    expected = jax.jit(server.receive)(networks, weights, networks)
    found = on_each(num_devices, server.receive, networks, weights, networks)
    grouped = partial(server.group_means, count=2)
    groups = np.array([0, 1, 1, 0, 0, 1, 0, 1])
    means = jax.jit(grouped)(networks, weights, groups)
    means_found = on_each(num_devices, grouped, networks, weights, groups)
    for of_device in zip(found, means_found, strict=True):
        jax.tree.map(assert_bits, of_device, (expected, means))


def double(x):
    """Trains a network of two arrays from one number."""
    return {"w": 2 * x * jnp.arange(1.0, 4.0), "scale": -x}, {"loss": x + 1}


@pytest.mark.parametrize("num_devices", [1, 2, 4, 8])
@pytest.mark.parametrize("few", [3, 8])
def test_what_each_client_trains_is_averaged(monkeypatch, few, num_devices):
    """One after another with `few` 3, at once with 8. The third client is absent."""
    monkeypatch.setattr(server, "FEW", few)
    x = np.array([1, 2, np.nan, 4, 5, 6, 7, 8], np.float32)
    weights = np.array([3, 1, 0, 2, 2, 1, 1, 0], np.float32)
    mean = (3 + 2 + 8 + 10 + 6 + 7) / 10
    found = on_each(num_devices, partial(server.mean_of_each, double), weights, x)
    each = [values["loss"] for _, values in found]
    np.testing.assert_array_equal(np.concatenate(each), x + 1)
    for network, _ in found:
        np.testing.assert_allclose(network["w"], [2 * mean, 4 * mean, 6 * mean], 1e-6)
        np.testing.assert_allclose(network["scale"], -mean, 1e-6)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="promised on a CPU alone")
@pytest.mark.parametrize("num_devices", [2, 4, 8])
def test_the_mean_of_many_has_the_same_bits_on_however_many_devices(
    monkeypatch, num_devices
):
    monkeypatch.setattr(server, "FEW", 3)
    networks, weights = of_many()
    train = partial(server.mean_of_each, lambda x: (x, x["scale"]))
    expected, _ = jax.jit(train)(weights, networks)
    for mean, _ in on_each(num_devices, train, weights, networks):
        jax.tree.map(assert_bits, mean, expected)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="at once on other devices")
def test_the_networks_of_many_clients_are_never_in_memory_together():
    """A network of 4000 bytes. The sums of 22 groups of clients are."""
    x = jnp.arange(float(2 * server.FEW))

    def train(x):
        return x * jnp.arange(1000.0), x

    def temporary_bytes(count):
        program = jax.jit(partial(server.mean_of_each, train))
        memory = program.lower(x[:count], x[:count]).compile().memory_analysis()
        return memory.temp_size_in_bytes

    assert temporary_bytes(server.FEW) > 4000 * server.FEW
    assert temporary_bytes(len(x)) < 4000 * server.FEW


def assert_bits(found, expected):
    assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()


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


@DEVICES
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


@DEVICES
def test_own_rows_are_what_was_gathered_of_this_device(num_devices):
    sent = (jnp.arange(8.0).reshape(4, 2), jnp.array([True, False, False, True]))

    def there_and_back(*own):
        return server.rows_on_this_device(server.gather(own), len(own[0]))

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
        now = Now(jnp.int32(num_rounds), jnp.int32(0), jnp.array(True))
        found = server.participants(federation._replace(now=now))
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
    totals = server.total_bytes(np.array(list(found.values())))
    assert totals.tolist() == [54, 20, 0]


def test_total_bytes_beyond_32_bits_are_exact():
    """Ten clients that send a network of 500,000,001 floats."""
    network = jax.ShapeDtypeStruct((500_000_001,), jnp.float32)
    found = server.traffic(jnp.ones(10, bool), up={"network": network}, down={})
    pairs = np.array([[found["up_network"], [0, 5]]], np.int32)
    assert server.total_bytes(pairs).tolist() == [[20_000_000_040, 0]]


# --- who is drawn

PRESENT = jnp.array([True, True, False, True, True, True, False, True])
COUNT, NUM_DRAWS = 3, 2000
draw = jax.jit(jax.vmap(server.choose, in_axes=(0, None, None)), static_argnums=2)


@pytest.fixture(scope="module")
def keys():
    return jax.random.split(jax.random.key(5), NUM_DRAWS)


@pytest.fixture(scope="module")
def drawn(keys):
    return np.asarray(draw(keys, PRESENT, COUNT))


def test_every_client_that_is_present_is_drawn_as_often_as_any_other(drawn):
    """Alone and in pairs: 3 of 6 are each there in 1/2 of the draws, two in 1/5."""
    np.testing.assert_array_equal(drawn.sum(axis=1), COUNT)
    assert not drawn[:, ~np.asarray(PRESENT)].any()
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
    for count in (6, 100):
        found = server.choose(jax.random.key(0), present, count)
        np.testing.assert_array_equal(found, present)


def test_a_draw_stays_what_it_is_beside_clients_that_are_absent_or_drop_out(
    keys, drawn
):
    """Whoever is absent behind the others changes nothing. For one that drops out
    another is drawn: whoever was drawn beside it is drawn still."""
    filled = draw(keys, jnp.append(PRESENT, jnp.zeros(4, bool)), COUNT)
    np.testing.assert_array_equal(filled[:, :8], drawn)
    assert not np.asarray(filled[:, 8:]).any()
    fewer = np.asarray(draw(keys, PRESENT.at[0].set(False), COUNT))
    with_it = drawn[:, 0]
    assert with_it.any()
    np.testing.assert_array_equal(fewer[~with_it], drawn[~with_it])
    kept = drawn.copy()
    kept[:, 0] = False
    assert (fewer >= kept).all()


@pytest.mark.parametrize("num_devices", [2, 4])
def test_each_device_has_its_own_clients_of_a_draw(num_devices, keys, drawn):
    """The clients that fill up the last one are never drawn."""

    def own(numbers):
        everyone = server.choose(keys[0], PRESENT, COUNT)
        return clients.on_this_device(everyone[:7], len(numbers))

    found = on_each(num_devices, own, np.arange(8))
    np.testing.assert_array_equal(jnp.concatenate(found), [*drawn[0][:7], False])
