"""UIFCA as a loop over flows and clients, and who is assigned when."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax import losses
from fcjax.algorithms.kfed import kfed
from fcjax.algorithms.uifca import uifca
from fcjax.federated import training
from fcjax.methods import UIFCA, KFed
from fcjax.nn import realnvp
from fcjax.types import State
from tests.algorithms.federations import both_ways, federate, in_round, traffic

FLOW = realnvp((1, 2, 1), num_couplings=2, hidden=(8, 8))
RATE, DECAY, LEVELS, KEY = 0.05, 0.05, 17, jax.random.key(0)


K_FED = kfed(KFed(local_clusters=3, unit_length=False).plain(), num_clusters=3)
ROUNDS = {"cluster_rounds": 3, "communication_rounds": 2}
SETTINGS = UIFCA().plain(**ROUNDS, local_steps=3, batch_size=3)
OPTIONS = {"num_clusters": 3, "weight_decay": DECAY, "levels": LEVELS}
METHOD = uifca(SETTINGS, FLOW, optax.sgd(RATE), K_FED, **OPTIONS)


def blobs(seed, sizes):
    """Images of two pixels, of three blobs, and the rows of ragged clients."""
    rng = np.random.default_rng(seed)
    centres = np.array([[-4.0, -3.0], [4.0, -3.0], [0.0, 5.0]])
    pool = centres[rng.integers(3, size=sum(sizes))]
    pool = 0.5 + (pool + rng.normal(size=pool.shape)) / 16
    pool = np.round(pool * (LEVELS - 1)) / (LEVELS - 1)
    clients = np.split(np.arange(len(pool)), np.cumsum(sizes)[:-1])
    return pool.reshape(-1, 1, 2, 1).astype(np.float32), clients


def test_the_start_is_k_fed_and_who_missed_it_goes_to_the_nearest_centroid(key):
    pool, clients = blobs(2, (40, 25, 60, 9))
    federation = federate(pool, clients)
    present = jnp.ones((2, 4), bool).at[0, 3].set(False)
    federation = federation._replace(present=present)
    begun, (first, second) = METHOD.init(key, federation), METHOD.stages
    started, metrics = jax.jit(first.round)(key, begun, federation)
    assert metrics["participants"] == 3

    start = State(begun.server.start, begun.clients.start)
    found, _ = jax.jit(K_FED.stages[0].round)(key, start, federation)
    expected = np.array(K_FED.assign(found, federation))
    np.testing.assert_array_equal(METHOD.assign(started, federation), expected)
    centroids = np.asarray(found.server.centroids)
    x = pool[clients[3]].reshape(-1, 1, 2)
    distances = np.linalg.norm(x - centroids, axis=-1)
    np.testing.assert_array_equal(expected[3, :9], distances.argmin(axis=1))

    # As if k-FED had mistaken all clusters of client 1: flows will know better.
    expected[1] = (expected[1] + 1) % 3
    names = found.clients.clusters.at[1].set((found.clients.clusters[1] + 1) % 3)
    mistaken = found.clients._replace(clusters=names)
    state = started._replace(clients=started.clients._replace(start=mistaken))
    state = second.begin(key, state, federation)
    round, sent = jax.jit(second.round), []
    for number, cluster_round in enumerate((0, 0, 1)):  # of two rounds each
        now = in_round(federation, number, before=1)
        state, metrics = round(key, state, now)
        np.testing.assert_array_equal(state.clients.assigned_in, [cluster_round] * 4)
        if cluster_round == 0:
            np.testing.assert_array_equal(state.clients.assignments, expected)
        sent.append(np.asarray(metrics["down_centroids"]))
    np.testing.assert_array_equal(sent, [[1, 24], [0, 24], [0, 24]])
    by_flows = np.asarray(likeliest(state, pool))[federation.indices]
    assert (by_flows != expected).any()
    np.testing.assert_array_equal(METHOD.assign(state, federation), by_flows)


# --- from flows that have parted

POOL, CLIENTS = blobs(1, (12, 7, 5))


@pytest.fixture(scope="module")
def parted():
    """The states from the beginning of the second cluster round to that of the third,
    and the metrics. Flows are about two places, and one is far from all examples;
    client 1 does not answer the first round."""
    present = jnp.ones((6, 3), bool).at[3, 1].set(False)
    federation = federate(POOL, CLIENTS)._replace(present=present)
    state, noise = METHOD.init(KEY, federation), iter(jax.random.split(KEY, 99))
    flows = jax.tree.map(
        lambda x: x + 0.1 * jax.random.normal(next(noise), x.shape), state.server.flows
    )
    shift = flows["params"]["shift"]
    shift["bias"] += jnp.array([0.5, -0.5, 50.0])[:, None, None]
    stage, begun = METHOD.stages[1], state.server._replace(flows=flows)
    states = [stage.begin(KEY, state._replace(server=begun), federation)]
    round, metrics = jax.jit(stage.round), []
    for number in (2, 3, 4):
        now = in_round(federation, number, before=1)
        state, measured = round(KEY, states[-1], now)
        states.append(state)
        metrics.append(measured)
    return federation, states, metrics


def log_likelihood(variables, x, key=None):
    y, of_levels = losses.dequantize(key, x, levels=LEVELS)
    z, log_det = FLOW.forward(variables, y)
    return of_levels + log_det - (z**2).sum(axis=1) / 2 - jnp.log(2 * jnp.pi)


@jax.jit
def likeliest(state, pool):
    found = jax.vmap(log_likelihood, (0, None))(state.server.flows, pool)
    return found.argmax(axis=0)


@jax.jit
@partial(jax.grad, has_aux=True)
def gradient(variables, x, key, counted):
    """Of the mean over a batch, with the kernels' squares."""
    squares = [
        (layer["kernel"] ** 2).sum()
        for name, layer in variables["params"].items()
        if name != "factor"
    ]
    fit = -jnp.mean(log_likelihood(variables, x, key), where=counted)
    return fit + DECAY * sum(squares), fit


def batches(flow, client, rows):
    """Three of three, in an order of the round, which begins again at its end."""
    _, key = jax.random.split(KEY)
    key = jax.random.fold_in(jax.random.fold_in(key, flow), client)
    chosen = np.isin(CLIENTS[client], rows)
    chosen = np.pad(chosen, (0, len(CLIENTS[0]) - len(chosen)))
    order_key, step_key = jax.random.split(key)
    order = training.shuffle(order_key, jnp.asarray(chosen))
    order = CLIENTS[client][np.asarray(order)[: len(rows)]]
    for i in range(3):
        x = POOL[np.take(order, 3 * i + np.arange(3), mode="wrap")]
        yield x, jax.random.fold_in(step_key, i)


def test_a_round_is_a_loop_over_flows_and_clients(parted):
    _, (before, after, *_), (metrics, *_) = parted
    assigned = np.asarray(likeliest(before, POOL))
    counts = np.bincount(np.delete(assigned, CLIENTS[1]), minlength=3)
    assert (counts[:2] > 1).all()
    assert counts[2] == 0
    total, sizes = 0.0, set()
    for k in range(3):
        begun = expected = jax.tree.map(lambda x, k=k: x[k], before.server.flows)
        trained, weights = [], []
        for m in (0, 2):
            rows = CLIENTS[m][assigned[CLIENTS[m]] == k]
            if len(rows) == 0:
                continue
            variables, fits = begun, []
            for x, key in batches(k, m, rows):
                # Not one example twice.
                slope, fit = gradient(variables, x, key, np.arange(3) < len(rows))
                variables = jax.tree.map(lambda w, g: w - RATE * g, variables, slope)
                fits.append(fit)
            trained.append(variables)
            weights.append(len(rows))
            total += len(rows) * np.mean(fits)
        if weights:
            expected = jax.tree.map(
                lambda *xs, w=tuple(weights): np.average(xs, axis=0, weights=w),
                *trained,
            )
        sizes |= set(weights)
        jax.tree.map(
            lambda xs, x, k=k: np.testing.assert_allclose(xs[k], x, atol=2e-5),
            *(after.server.flows, expected),
        )
    assert min(sizes) < 3 < max(sizes) < 9  # a short batch, and orders that begin again
    # Two dimensions.
    np.testing.assert_allclose(metrics["loss"], total / counts.sum() / 2, rtol=1e-4)
    assert metrics["participants"] == 2
    assert metrics["occupied"] == 2
    size = sum(x.size for x in jax.tree.leaves(before.server.flows))
    assert traffic(metrics) == both_ways(2, flows=size) | {"down_centroids": [0, 24]}


def test_a_client_assigns_when_it_first_answers_in_a_cluster_round(parted):
    federation, states, _ = parted
    _, second, third, fourth = states
    np.testing.assert_array_equal(second.clients.assigned_in, [1, -1, 1])
    np.testing.assert_array_equal(second.clients.assignments[1], np.full(12, -1))
    np.testing.assert_array_equal(third.clients.assigned_in, [1, 1, 1])
    np.testing.assert_array_equal(fourth.clients.assigned_in, [2, 2, 2])
    by_first, by_second, by_third = (
        np.asarray(likeliest(state, POOL))[federation.indices] for state in states[:3]
    )
    assert (by_first != by_third).any()
    np.testing.assert_array_equal(third.clients.assignments[0], by_first[0])
    np.testing.assert_array_equal(third.clients.assignments[1], by_second[1])
    np.testing.assert_array_equal(fourth.clients.assignments, by_third)
    # What is reported is what the flows say now.
    found = jax.jit(METHOD.assign)(third, federation)
    np.testing.assert_array_equal(found, by_third)
    z = np.asarray(jax.jit(METHOD.embed)(third, federation))
    np.testing.assert_allclose(np.linalg.norm(z, axis=-1), 1, rtol=1e-5)
    np.testing.assert_array_equal(z.argmax(axis=-1), by_third)
