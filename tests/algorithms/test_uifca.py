from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fcjax.algorithms.kfed import kfed
from fcjax.algorithms.uifca import uifca
from fcjax.data import load
from fcjax.evaluation import accuracy
from fcjax.models import realnvp
from tests.algorithms.federations import federate

FLOW = realnvp((2,), num_couplings=2, hidden=(8, 8))


def build(flow=FLOW, optimizer=None, **options):
    options = {
        "num_clusters": 3,
        "cluster_rounds": 3,
        "communication_rounds": 2,
        "local_steps": 3,
        "batch_size": 64,
        "levels": None,
        "unit_length": False,
        **options,
    }
    return uifca(flow, optimizer or optax.sgd(1e-2), **options)


def blobs(seed, sizes=(40, 25, 60, 9)):
    """Ragged clients with examples of all blobs."""
    rng = np.random.default_rng(seed)
    centres = np.array([[-4.0, -3.0], [4.0, -3.0], [0.0, 5.0]])
    labels = rng.integers(3, size=sum(sizes))
    pool = centres[labels] + rng.normal(size=(len(labels), 2))
    return pool, labels, np.split(np.arange(len(labels)), np.cumsum(sizes)[:-1])


def own(federation, values):
    return np.asarray(values)[np.asarray(federation.mask)]


def test_blobs_are_recovered_though_a_client_begins_with_others_names():
    method = build(optimizer=optax.adam(1e-2), local_steps=20)
    start, train = (jax.jit(stage.round) for stage in method.stages)
    assign = jax.jit(method.assign)
    for seed in range(3):
        pool, labels, clients = blobs(seed)
        federation = federate(pool, clients)
        key = jax.random.key(seed)
        state, _ = start(key, method.init(key, federation), federation)
        names = state.start.local_clusters
        names = names.at[1].set((names[1] + 1) % 3)
        state = state._replace(start=state.start._replace(local_clusters=names))
        truth = own(federation, labels[np.asarray(federation.indices)])
        assert accuracy(truth, own(federation, assign(state, federation))) < 0.9
        for i in range(6):
            state, metrics = train(jax.random.fold_in(key, i), state, federation)
        assert accuracy(truth, own(federation, assign(state, federation))) >= 0.95
        # Of three unit normals: 1.42 nats a dimension.
        assert metrics["loss"] < 2.0


def log_likelihood(variables, x):
    z, log_det = FLOW.forward(variables, x)
    return log_det - (z**2).sum(axis=1) / 2 - jnp.log(2 * jnp.pi)


def settled(method, federation, key):
    """The beginning of the second cluster round: flows about two places, and one that
    is far from all examples."""
    state = method.init(key, federation)
    noise = iter(jax.random.split(key, 99))
    flows = jax.tree.map(
        lambda x: x + 0.1 * jax.random.normal(next(noise), x.shape), state.flows
    )
    shift = flows["params"]["shift"]
    shift["bias"] += jnp.array([1.0, -1.0, 50.0])[:, None, None]
    return state._replace(flows=flows, num_rounds=jnp.int32(2))


def row(state, k):
    return jax.tree.map(lambda x: x[k], state.flows)


def likeliest(state, pool):
    x = jnp.asarray(pool, jnp.float32)
    return np.argmax([log_likelihood(row(state, k), x) for k in range(3)], axis=0)


def test_a_round_is_a_loop_over_flows_and_clients(key):
    pool, _, clients = blobs(0, sizes=(12, 7, 5))
    federation = federate(0.5 * pool, clients, absent=(1,))
    method = build(start="random", weight_decay=0.05)
    (stage,) = method.stages
    before = settled(method, federation, key)
    after, metrics = jax.jit(stage.round)(key, before, federation)

    def objective(variables, x):
        squares = [
            (layer["kernel"] ** 2).sum()
            for name, layer in variables["params"].items()
            if name != "factor"
        ]
        fit = -log_likelihood(variables, x).mean()
        return fit + 0.05 * sum(squares), fit

    assigned = likeliest(before, 0.5 * pool)
    counts = np.bincount(np.delete(assigned, clients[1]), minlength=3)
    assert (counts[:2] > 1).all()
    assert counts[2] == 0
    total = 0.0
    for k in range(3):
        trained, weights = [], []
        for m in (0, 2):
            rows = clients[m][assigned[clients[m]] == k]
            if len(rows) == 0:
                continue
            x, variables, fits = federation.pool[rows], row(before, k), []
            for _ in range(3):
                gradients, fit = jax.grad(objective, has_aux=True)(variables, x)
                variables = jax.tree.map(
                    lambda w, g: w - 1e-2 * g, variables, gradients
                )
                fits.append(fit)
            trained.append(variables)
            weights.append(len(rows))
            total += len(rows) * np.mean(fits)
        expected = row(before, k)
        if weights:
            expected = jax.tree.map(
                lambda *xs, w=tuple(weights): np.average(xs, axis=0, weights=w),
                *trained,
            )
        jax.tree.map(
            partial(np.testing.assert_allclose, atol=2e-5), row(after, k), expected
        )
    # Two dimensions.
    np.testing.assert_allclose(metrics["loss"], total / counts.sum() / 2, rtol=1e-4)
    assert metrics["participants"] == 2
    assert metrics["occupied"] == 2
    size = 4 * sum(x.size for x in jax.tree.leaves(before.flows))
    np.testing.assert_array_equal(metrics["up_flows"], [2, size])
    np.testing.assert_array_equal(metrics["down_flows"], [2, size])


def test_a_client_assigns_when_it_first_answers_in_a_cluster_round(key):
    pool, _, clients = blobs(1, sizes=(12, 7, 5))
    federation = federate(0.5 * pool, clients)
    present = jnp.ones((5, 3), bool).at[2, 1].set(False)
    federation = federation._replace(present=present)
    method = build(start="random", optimizer=optax.sgd(0.05))
    round = jax.jit(method.stages[0].round)
    first = settled(method, federation, key)
    second, _ = round(key, first, federation)
    third, _ = round(key, second, federation)
    fourth, _ = round(key, third, federation)

    np.testing.assert_array_equal(second.assigned_in, [1, -1, 1])
    np.testing.assert_array_equal(second.assignments[1], np.full(12, -1))
    np.testing.assert_array_equal(third.assigned_in, [1, 1, 1])
    np.testing.assert_array_equal(fourth.assigned_in, [2, 2, 2])
    by_first, by_second, by_third = (
        likeliest(state, 0.5 * pool)[np.asarray(federation.indices)]
        for state in (first, second, third)
    )
    assert (by_first != by_third).any()
    np.testing.assert_array_equal(third.assignments[0], by_first[0])
    np.testing.assert_array_equal(third.assignments[1], by_second[1])
    np.testing.assert_array_equal(fourth.assignments, by_third)
    # What is reported is what the flows say now.
    np.testing.assert_array_equal(method.assign(third, federation), by_third)
    z = np.asarray(method.embed(third, federation))
    np.testing.assert_allclose(np.linalg.norm(z, axis=-1), 1, rtol=1e-5)
    np.testing.assert_array_equal(z.argmax(axis=-1), by_third)


def test_the_start_is_k_fed_and_who_missed_it_goes_to_the_nearest_centroid(key):
    pool, _, clients = blobs(2)
    federation = federate(pool, clients)
    present = jnp.ones((2, 4), bool).at[0, 3].set(False)
    federation = federation._replace(present=present)
    method = build()
    start, train = (stage.round for stage in method.stages)
    state, metrics = start(key, method.init(key, federation), federation)
    assert metrics["participants"] == 3

    reference = kfed(num_clusters=3, local_clusters=3, unit_length=False)
    found, _ = reference.stages[0].round(key, state.start, federation)
    expected = np.array(reference.assign(found, federation))
    np.testing.assert_array_equal(method.assign(state, federation), expected)
    state, metrics = jax.jit(train)(key, state, federation)
    np.testing.assert_array_equal(state.assignments, expected)
    np.testing.assert_array_equal(metrics["down_centroids"], [1, 4 * 3 * 2])
    centroids = np.asarray(found.centroids)
    distances = np.linalg.norm(pool[clients[3]][:, None] - centroids, axis=-1)
    np.testing.assert_array_equal(expected[3, :9], distances.argmin(axis=1))


def test_small_batches_visit_every_example_and_no_other(key):
    """Eight steps of three go over twelve examples twice."""
    visited = []
    flow = realnvp((2,), num_couplings=2, hidden=(4,))

    def forward(variables, x):
        jax.debug.callback(lambda x: visited.append(np.asarray(x)), x)
        return flow.forward(variables, x)

    pool = np.arange(40.0).reshape(20, 2)
    federation = federate(pool, [np.arange(12)])
    method = build(
        flow._replace(forward=forward),
        num_clusters=1,
        batch_size=3,
        local_steps=8,
        start="random",
        optimizer=optax.sgd(0.0),
    )
    state = method.init(key, federation)
    jax.block_until_ready(method.stages[0].round(key, state, federation))
    jax.effects_barrier()
    batches = [x[:, 0] for x in visited if len(x) == 3]
    assert len(batches) == 8
    rows, counts = np.unique(np.concatenate(batches), return_counts=True)
    np.testing.assert_array_equal(rows, pool[:12, 0])
    np.testing.assert_array_equal(counts, np.full(12, 2))


def test_digits_end_to_end(key):
    digits = load("digits")
    chosen = np.flatnonzero(digits.labels < 3)[:240]
    clients = np.split(chosen, [100, 180])
    federation = federate(np.zeros(1), clients)
    federation = federation._replace(pool=jnp.asarray(digits.examples))
    method = build(
        realnvp((8, 8, 1), num_couplings=4, hidden=(32, 32)),
        optax.adam(3e-3),
        levels=17,
        local_steps=20,
        unit_length=True,
        cluster_rounds=2,
    )
    losses = []
    state = method.init(key, federation)
    for stage in method.stages:
        round = jax.jit(stage.round)
        for i in range(stage.num_rounds):
            state, metrics = round(jax.random.fold_in(key, i), state, federation)
            losses.append(float(metrics["loss"]))
    assert losses[-1] < losses[1] - 0.3
    truth = own(federation, digits.labels[np.asarray(federation.indices)])
    assert accuracy(truth, own(federation, method.assign(state, federation))) > 0.75
    assert np.isfinite(method.embed(state, federation)).all()
