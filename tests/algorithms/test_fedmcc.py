"""FedMCC against its algorithm boxes, written out with plain loops. A step of MCC is in
`test_descent`."""

from functools import partial

import jax
import numpy as np
import optax
import pytest

from fcjax.algorithms import fedmcc as module
from fcjax.algorithms.averaging import Local, part
from tests.algorithms import plain
from tests.algorithms.federations import both_ways, federate, in_round, traffic
from tests.algorithms.plain import kernels, matrix, noisy

SIZES = (6, 10)
TAU_I, TAU_C, MOMENTUM, NUM_CLUSTERED = 0.4, 0.9, 0.8, 12
ADAM = optax.adam(0.02)
LOCAL = Local(ADAM, noisy, num_epochs=2, batch_size=4)
KEYS = jax.random.split(jax.random.key(5), 3)
POOL = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
ENCODER = matrix(5, centre=True)  # 4 x 5 weights, their means, and a count


@pytest.fixture(scope="module")
def federation():
    return federate(POOL, (np.arange(6), np.arange(6, 16)))


def clustering(local=LOCAL, **options):
    return module.cluster_contrast(
        *(matrix(3, soft=True), local),
        num_rounds=1,
        cluster_temperature=TAU_C,
        momentum=MOMENTUM,
        num_clustered=NUM_CLUSTERED,
        **options,
    )


METHOD = module.fedmcc(
    *(ENCODER, matrix(3), clustering(), LOCAL),
    num_rounds=2,
    instance_temperature=TAU_I,
    momentum=MOMENTUM,
)


@pytest.fixture(scope="module")
def trained(federation):
    """The states before the first round and after the two of the first stage, and their
    metrics."""
    round = jax.jit(METHOD.stages[0].round)
    states, metrics = [METHOD.init(jax.random.key(1), federation)], []
    for number, key in enumerate(KEYS[:2]):
        state, measured = round(key, states[-1], in_round(federation, number))
        states.append(state)
        metrics.append(measured)
    return states, metrics


@pytest.fixture(scope="module", params=["equation 9", "other weight, microbatch"])
def clustered(request, trained, federation):
    """The weight of entropies, the states that a round of the second stage begins and
    ends with, and its metrics."""
    weight, options = 1.0, {}
    if request.param != "equation 9":
        weight = 0.3
        options = {"local": LOCAL._replace(microbatch=3), "entropy_weight": weight}
    stage = clustering(**options).stage(ENCODER)
    begun = stage.begin(jax.random.key(2), trained[0][-1], federation)
    return weight, begun, *jax.jit(stage.round)(KEYS[2], begun, federation)


def instance_loss(w, target, views):
    """Eq. 8."""

    def forward(w, x):
        h = x @ w["encoder"]
        return (h - h.mean(axis=0)[None]) @ w["projector"]

    z, t = ([forward(v, x) for x in views] for v in (w, target))
    return plain.crosswise(z, t, TAU_I)


def cluster_loss(w, target, views, weight):
    """Eq. 9 with entropies subtracted, of features."""
    c, t = (
        [jax.nn.softmax(h @ v["cluster_projector"]) for h in views] for v in (w, target)
    )
    contrast = plain.crosswise(plain.columns(c), plain.columns(t), TAU_C)
    return contrast - weight * plain.entropies((*c, *t))


@partial(jax.jit, static_argnums=0)
def step(loss, w, target, opt_state, views):
    value, gradient = jax.value_and_grad(loss)(w, target, views)
    updates, opt_state = ADAM.update(gradient, opt_state)
    w = optax.apply_updates(w, updates)
    target = jax.tree.map(lambda t, o: MOMENTUM * t + (1 - MOMENTUM) * o, target, w)
    return w, target, opt_state, value


def steps(key, client, size):
    return plain.steps(
        key, np.arange(10) < size, client=client, num_epochs=2, batch_size=4
    )


def mean_by_size(values, sizes):
    return jax.tree.map(lambda *xs: np.average(xs, axis=0, weights=sizes), *values)


def assert_close(found, expected):
    check = partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
    jax.tree.map(check, found, expected)


def test_two_rounds_of_algorithm_1(trained):
    """Every client begins with the server's network, its own target and a new Adam."""
    states, measured = trained
    w = kernels(states[0].server.online)
    running = np.zeros(5)
    targets = [w, w]  # copies in the beginning
    for number in range(2):
        ends, statistics, losses = [], [], []
        for client, (start, size) in enumerate(((0, 6), (6, 10))):
            own, target, opt_state = w, targets[client], ADAM.init(w)
            learnt, values = running, []
            for slots, key in steps(KEYS[number], client, size):
                views = plain.views(key, POOL[start + slots])
                for view in views:
                    learnt = 0.9 * learnt + 0.1 * np.mean(view @ own["encoder"], axis=0)
                own, target, opt_state, value = step(
                    instance_loss, own, target, opt_state, views
                )
                values.append(float(value))
            targets[client] = target
            ends.append(own)
            statistics.append(learnt)
            losses.append(np.mean(values))
        w, running = mean_by_size(ends, SIZES), mean_by_size(statistics, SIZES)

        state, metrics = states[number + 1], measured[number]
        assert_close(kernels(state.server.online), w)
        assert_close(state.server.online["batch_stats"]["encoder"]["mean"], running)
        for client, target in enumerate(targets):
            own = {k: v["kernel"][client] for k, v in state.clients.target.items()}
            assert_close(own, target)
        assert float(metrics["loss"]) == pytest.approx(np.mean(losses), rel=1e-4)
    apart = np.abs(np.subtract(*(t["encoder"] for t in targets))).max()
    assert apart > 1e-2  # what tells an own target from an averaged one


def test_a_round_of_algorithm_2(clustered):
    """Features are those of the encoder in evaluation; rows from 12 on do not count."""
    weight, begun, ended, metrics = clustered
    encoder = part(begun.server.online, "encoder")
    running = np.asarray(encoder["batch_stats"]["mean"])
    start = {"cluster_projector": kernels(begun.server.online)["cluster_projector"]}
    loss = partial(cluster_loss, weight=weight)
    ends, losses = [], []
    for client, (row, held) in enumerate(((0, 6), (6, 6))):
        own, target, opt_state, values = start, start, ADAM.init(start), []
        for slots, key in steps(KEYS[2], client, held):
            features = [
                view @ encoder["params"]["kernel"] - running[None]
                for view in plain.views(key, POOL[row + slots])
            ]
            own, target, opt_state, value = step(loss, own, target, opt_state, features)
            values.append(float(value))
        ends.append(own)
        losses.append(np.mean(values))
        found = ended.clients.target["cluster_projector"]["kernel"][client]
        assert_close(found, target["cluster_projector"])
    expected = mean_by_size(ends, (6, 6))["cluster_projector"]
    assert_close(kernels(ended.server.online)["cluster_projector"], expected)
    assert float(metrics["loss"]) == pytest.approx(np.mean(losses), rel=1e-4)


def test_the_second_stage_goes_on_with_the_encoder_alone(trained, clustered):
    """Which is sent once, as no target ever is."""
    states, first = trained
    _, *both, second = clustered
    for state in both:
        assert set(state.server.online["params"]) == {"encoder", "cluster_projector"}
        assert set(state.clients.target) == {"cluster_projector"}
        jax.tree.map(
            np.testing.assert_array_equal,
            part(state.server.online, "encoder"),
            part(states[-1].server.online, "encoder"),
        )
    for metrics in first:
        assert traffic(metrics) == both_ways(2, encoder=26, projector=15)
    head = both_ways(2, cluster_projector=15)
    assert traffic(second) == head | {"down_encoder": [2, 4 * 26]}


def test_clusters_are_the_largest_soft_assignments_of_the_second_stage(
    trained, clustered, federation
):
    before = METHOD.assign(trained[0][-1], federation)
    assert set(np.unique(before)) == {-1}
    state = clustered[2]
    h = POOL @ np.asarray(kernels(state.server.online)["encoder"])
    h -= np.asarray(state.server.online["batch_stats"]["encoder"]["mean"])
    y = h @ np.asarray(kernels(state.server.online)["cluster_projector"])
    found = np.asarray(METHOD.assign(state, federation))
    np.testing.assert_array_equal(found[0, :6], y[:6].argmax(axis=1))
    np.testing.assert_array_equal(found[1], y[6:].argmax(axis=1))
    embedded = np.asarray(METHOD.embed(state, federation))
    np.testing.assert_allclose(embedded[1], h[6:], rtol=1e-4, atol=1e-5)
