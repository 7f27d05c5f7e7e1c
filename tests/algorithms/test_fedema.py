"""FedEMA: what share of its own network a client goes on with."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax.algorithms.averaging import Local
from fcjax.algorithms.fedema import fedema
from fcjax.algorithms.two_stage import feature_kmeans
from tests.algorithms.federations import federate
from tests.algorithms.plain import matrix, noisy

PARTS = ("encoder", "projector", "predictor")


@pytest.fixture(scope="module")
def federation():
    """Client 2 is absent in the second of three rounds."""
    pool = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
    held = (np.arange(6), np.arange(6, 16), np.arange(16, 24))
    present = jnp.array([[True] * 3, [True, True, False], [True] * 3])
    return federate(pool, held)._replace(present=present)


@pytest.fixture(scope="module")
def run(federation):
    """(steps of three rounds, autoscale= or scale=) -> the states before and after."""

    def method(steps, options):
        local = Local(
            optax.sgd(0.2),
            noisy,
            num_epochs=1,
            batch_size=4,
            schedule=lambda number: steps[number],
        )
        return fedema(
            *(matrix(4, centre=True), matrix(3), matrix(3)),
            feature_kmeans(num_clusters=2),
            local,
            **options,
        )

    @jax.jit
    def round(steps, options, key, state):
        return method(steps, options).stages[0].round(key, state, federation)

    def run(steps, **options):
        steps = jnp.array(steps)
        options = {name: jnp.float32(value) for name, value in options.items()}
        states = [method(steps, options).init(jax.random.key(1), federation)]
        for number in range(3):
            state, _ = round(steps, options, jax.random.key(number), states[-1])
            states.append(state)
        return states

    return run


def kernels(parts, client=...):
    return {name: np.asarray(parts[name]["params"]["kernel"])[client] for name in PARTS}


def mixed(before, client, share):
    """A share of what a client ended with in a round, the rest of what the server sent
    after it."""
    own, ours = kernels(before.memory.online, client), kernels(before.online)
    return {name: share * own[name] + (1 - share) * ours[name] for name in PARTS}


def assert_began(after, client, expected):
    """Steps of size zero leave what a round began with."""
    found = kernels(after.memory.online, client)
    for name in PARTS:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)


def gone(before, after, client):
    """The divergence of an encoder of one kernel."""
    began = np.asarray(before.online["encoder"]["params"]["kernel"])
    return np.linalg.norm(kernels(after.memory.online, client)["encoder"] - began)


def test_a_second_round_begins_with_a_share_tau_of_a_clients_own(run):
    start, first, second, third = run([1.0, 0.0, 0.0], autoscale=0.7)
    for client in (0, 1):
        distance = gone(start, first, client)
        assert distance > 0.1
        assert float(first.memory.divergence[client]) == pytest.approx(
            distance, rel=1e-4
        )
        assert_began(second, client, mixed(first, client, 0.7))
        # It has not moved in the second round: all is the server's in the third.
        assert_began(third, client, kernels(second.online))
    # Client 2 was away: it keeps its memory, and then goes on from the server's.
    assert_began(second, 2, kernels(first.memory.online, 2))
    assert_began(third, 2, kernels(second.online))


def test_statistics_are_the_servers(run):
    """Two passes a step: 2, 3 and 2 steps make 4, 6 and 4 of clients of 6, 10 and 8."""
    _, first, second, _ = run([1.0, 0.0, 0.0], autoscale=0.7)
    calls = (6 * 4 + 10 * 6 + 8 * 4) / 24
    found = first.online["encoder"]["batch_stats"]["calls"]
    assert float(found) == pytest.approx(calls)
    own = second.memory.online["encoder"]["batch_stats"]["calls"]
    np.testing.assert_allclose(own, [calls + 4, calls + 6, 4], rtol=1e-6)


def test_later_shares_are_by_how_far_a_client_has_gone_since(run):
    """lambda stays tau over the first divergence; d is that of the round before."""
    start, first, second, third = run([1.0, 0.5, 0.0], autoscale=0.7)
    for client in (0, 1):
        began = mixed(first, client, 0.7)["encoder"]
        ended = kernels(second.memory.online, client)["encoder"]
        share = 0.7 / gone(start, first, client) * np.linalg.norm(ended - began)
        assert 0.02 < share < 0.65
        assert_began(third, client, mixed(second, client, share))


def test_a_constant_scale_is_the_same_for_all_and_the_share_at_most_one(run):
    start, first, *_ = run([1.0, 0.0, 0.0], scale=0.0)
    distances = [gone(start, first, client) for client in (0, 1)]
    near, far = np.argsort(distances)
    scale = 2 / (distances[near] + distances[far])
    _, first, second, _ = run([1.0, 0.0, 0.0], scale=float(scale))
    assert_began(second, int(far), kernels(first.memory.online, int(far)))
    share = scale * distances[near]
    assert share < 0.95
    assert_began(second, int(near), mixed(first, int(near), share))
