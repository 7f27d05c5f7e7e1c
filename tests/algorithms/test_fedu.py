"""FedU and FedEMA: how far an encoder has gone, and what of its own a client then goes
on with. Their loss, BYOL's, is in `test_descent`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax import nn
from fcjax.algorithms.averaging import Local
from fcjax.algorithms.fedmcc import feature_kmeans
from fcjax.algorithms.fedu import divergence, fedema, fedu
from tests.algorithms import plain
from tests.algorithms.federations import federate, in_round
from tests.algorithms.plain import matrix, noisy


def at(*shape, value):
    return {"kernel": jnp.full(shape, value), "bias": jnp.full(shape[-1:], 9.0)}


CONVOLUTIONS = {
    "stem": at(1, 1, 2, 8, value=1.0),  # of norm 4
    "block": {
        "first": at(3, 3, 1, 1, value=2.0),  # of norm 6
        "shortcut": at(1, 1, 1, 4, value=50.0),
    },
    "dense": at(4, 4, value=50.0),
}
NO_CONVOLUTION = {"one": at(2, 2, value=1.0), "two": at(1, 9, value=-2.0)}  # 2, 6


@pytest.mark.parametrize(
    ("layers", "expected"), [(CONVOLUTIONS, 5), ({"layers": NO_CONVOLUTION}, 4)]
)
def test_divergence_is_the_mean_norm_over_convolutions_that_are_no_shortcut(
    layers, expected
):
    """Of all kernels where no convolution is."""
    ended = {"params": {"encoder": layers}}
    began = jax.tree.map(jnp.zeros_like, ended)
    assert float(divergence(began, ended)) == pytest.approx(expected)


@pytest.mark.parametrize(("block", "count"), [("basic", 2), ("bottleneck", 3)])
def test_shortcuts_of_a_resnet_are_left_out(block, count):
    """A stem and two blocks: convolutions move by 3, shortcuts by far more."""
    layers = nn.resnet.ResNet((1, 1), block=block, width=2)
    x = jnp.zeros((1, 8, 8, 3))
    shapes = jax.eval_shape(nn.encoder(layers).init, jax.random.key(0), x)
    body, seen = [f"Conv_{i}" for i in range(count)], []

    def move(path, leaf):
        *_, outer, conv, name = (entry.key for entry in path)
        if name != "kernel":
            return np.zeros(leaf.shape)
        is_body = outer == "layers" or conv in body
        seen.append(is_body)
        return np.full(leaf.shape, (3.0 if is_body else 100.0) / np.sqrt(leaf.size))

    ended = jax.tree_util.tree_map_with_path(move, shapes)
    assert sum(seen) == 1 + 2 * count
    assert len(seen) > sum(seen)  # there are shortcuts
    ended = {"params": {"encoder": ended["params"]}}
    began = jax.tree.map(np.zeros_like, ended)
    assert float(divergence(began, ended)) == pytest.approx(3)


def rounds_of(build, sizes, present):
    """(steps of the rounds, a scalar of the method) -> the states before and after."""
    pool = np.random.default_rng(0).normal(size=(sum(sizes), 4)).astype(np.float32)
    federation = federate(pool, np.split(np.arange(len(pool)), np.cumsum(sizes)[:-1]))
    federation = federation._replace(present=jnp.array(present) > 0)

    def method(steps, options):
        optimizer, schedule = optax.sgd(0.2), lambda number: steps[number]
        local = Local(optimizer, noisy, num_epochs=1, batch_size=4, schedule=schedule)
        heads = (matrix(4, centre=True), matrix(3), matrix(3))
        return build(*heads, feature_kmeans(num_clusters=2), local, **options)

    @jax.jit
    def round(steps, options, key, state, federation):
        return method(steps, options).stages[0].round(key, state, federation)[0]

    start = method([1.0], {}).init(jax.random.key(1), federation)

    def run(steps, **options):
        options = {name: jnp.float32(value) for name, value in options.items()}
        states = [start]
        for number in range(len(steps)):
            key = jax.random.key(number)
            now = in_round(federation, number)
            states.append(round(jnp.array(steps), options, key, states[-1], now))
        return states

    return run


def kernels(parts, client=...):
    return {k: np.asarray(w)[client] for k, w in plain.kernels(parts).items()}


# --- FedU


@pytest.fixture(scope="module")
def own_predictors():
    """Of the threshold: after a round, the server's predictor, the clients' own and
    their divergences; what they begin a second one with. Client 2 joins then."""
    run = rounds_of(fedu, (4, 8, 4), [[1, 1, 0], [1, 1, 1]])

    def of(threshold):
        # Steps of size zero leave what a round began with.
        _, first, second = run([1.0, 0.0], threshold=threshold)
        for name in ("encoder", "projector"):  # are the server's, whatever it is
            ours, new = (kernels(x.server.online)[name] for x in (first, second))
            np.testing.assert_allclose(new, ours, atol=1e-6)
        np.testing.assert_allclose(second.clients.memory.divergence, 0, atol=1e-6)
        own, began = (
            np.asarray(x.clients.memory.predictor["params"]["kernel"])
            for x in (first, second)
        )
        gone = np.asarray(first.clients.memory.divergence)
        return kernels(first.server.online)["predictor"], own, gone, began

    return of


def test_a_client_goes_on_with_its_own_predictor_from_the_threshold_on(own_predictors):
    server, own, gone, began = own_predictors(jnp.inf)
    assert np.abs(own[:2] - server).max() > 1e-2
    assert gone[2] < 0  # has not trained
    np.testing.assert_allclose(began, [server] * 3, atol=1e-6)
    near, far = np.argsort(gone[:2])
    assert gone[near] < gone[far] - 1e-2
    between = (gone[near] + gone[far]) / 2
    for threshold, keep in ((0, [0, 1]), (between, [far]), (gone[near], [0, 1])):
        expected = np.stack([server] * 3)
        expected[keep] = own[keep]
        *_, began = own_predictors(threshold)
        np.testing.assert_allclose(began, expected, atol=1e-6)


# --- FedEMA


@pytest.fixture(scope="module")
def run():
    """Three rounds; client 2 is absent in the second."""
    return rounds_of(fedema, (6, 10, 8), [[1, 1, 1], [1, 1, 0], [1, 1, 1]])


def mixed(before, client, share):
    """A share of what a client ended with in a round, the rest of what the server sent
    after it."""
    own = kernels(before.clients.memory.online, client)
    ours = kernels(before.server.online)
    return {name: share * own[name] + (1 - share) * ours[name] for name in own}


def assert_began(after, client, expected):
    """Steps of size zero leave what a round began with."""
    found = kernels(after.clients.memory.online, client)
    for name, w in expected.items():
        np.testing.assert_allclose(found[name], w, rtol=1e-5, atol=1e-6)


def gone(before, after, client):
    """The divergence of an encoder of one kernel."""
    began = kernels(before.server.online)
    ended = kernels(after.clients.memory.online, client)
    return np.linalg.norm(ended["encoder"] - began["encoder"])


def test_a_second_round_begins_with_a_share_tau_of_a_clients_own(run):
    start, first, second, third = run([1.0, 0.0, 0.0], autoscale=0.7)
    for client in (0, 1):
        distance = gone(start, first, client)
        assert distance > 0.1
        found = float(first.clients.memory.divergence[client])
        assert found == pytest.approx(distance, rel=1e-4)
        assert_began(second, client, mixed(first, client, 0.7))
        # It has not moved in the second round: all is the server's in the third.
        assert_began(third, client, kernels(second.server.online))
    # Client 2 was away: it keeps its memory, and then goes on from the server's.
    assert_began(second, 2, kernels(first.clients.memory.online, 2))
    assert_began(third, 2, kernels(second.server.online))

    # Statistics are the server's. Two passes a step: 2, 3 and 2 steps make 4, 6 and 4
    # of clients of 6, 10 and 8.
    calls = (6 * 4 + 10 * 6 + 8 * 4) / 24
    ours, own = (
        online["batch_stats"]["encoder"]["calls"]
        for online in (first.server.online, second.clients.memory.online)
    )
    assert float(ours) == pytest.approx(calls)
    np.testing.assert_allclose(own, [calls + 4, calls + 6, 4], rtol=1e-6)


def test_later_shares_are_by_how_far_a_client_has_gone_since(run):
    """lambda stays tau over the first divergence; d is that of the round before."""
    start, first, second, third = run([1.0, 0.5, 0.0], autoscale=0.7)
    for client in (0, 1):
        began = mixed(first, client, 0.7)["encoder"]
        ended = kernels(second.clients.memory.online, client)["encoder"]
        share = 0.7 / gone(start, first, client) * np.linalg.norm(ended - began)
        assert 0.02 < share < 0.65
        assert_began(third, client, mixed(second, client, share))


def test_a_constant_scale_is_the_same_for_all_and_the_share_at_most_one(run):
    start, first, *_ = run([1.0, 0.0, 0.0], scale=0.0)
    distances = [gone(start, first, client) for client in (0, 1)]
    near, far = map(int, np.argsort(distances))
    scale = 2 / (distances[near] + distances[far])
    _, first, second, _ = run([1.0, 0.0, 0.0], scale=float(scale))
    assert_began(second, far, kernels(first.clients.memory.online, far))
    share = scale * distances[near]
    assert share < 0.95
    assert_began(second, near, mixed(first, near, share))
