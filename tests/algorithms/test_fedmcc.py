"""FedMCC and MCC against their algorithm boxes, written out with plain loops."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax.algorithms import fedmcc as module
from fcjax.algorithms.averaging import AveragingState, Local
from fcjax.algorithms.parts import Networks, initialize
from fcjax.types import FederatedClustering, Federation
from tests.algorithms import plain
from tests.algorithms.federations import federate
from tests.algorithms.plain import matrix, noisy

SIZES = (6, 10)
TAU_I, TAU_C, MOMENTUM, NUM_CLUSTERED = 0.4, 0.9, 0.8, 12
ADAM = optax.adam(0.02)
LOCAL = Local(ADAM, noisy, num_epochs=2, batch_size=4)
KEYS = jax.random.split(jax.random.key(5), 3)
HEAD = matrix(3, soft=True)


class Trained(NamedTuple):
    pool: np.ndarray
    federation: Federation
    method: FederatedClustering
    states: list[AveragingState]  # before the first round and after each
    metrics: list[dict]
    round: Callable  # of the second stage


@pytest.fixture(scope="module")
def trained():
    """Two rounds of the first stage and one of the second."""
    pool = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    federation = federate(pool, (np.arange(6), np.arange(6, 16)))
    clustering = module.cluster_contrast(
        HEAD,
        LOCAL,
        num_rounds=1,
        cluster_temperature=TAU_C,
        momentum=MOMENTUM,
        num_clustered=NUM_CLUSTERED,
    )
    method = module.fedmcc(
        *(matrix(5, centre=True), matrix(3), clustering, LOCAL),
        num_rounds=2,
        instance_temperature=TAU_I,
        momentum=MOMENTUM,
    )
    first, second = method.stages
    states, metrics = [method.init(jax.random.key(1), federation)], []
    round = jax.jit(first.round)
    for key in KEYS[:2]:
        state, measured = round(key, states[-1], federation)
        states.append(state)
        metrics.append(measured)
    begun = second.begin(jax.random.key(2), states[-1], federation)
    round = jax.jit(second.round)
    state, measured = round(KEYS[2], begun, federation)
    states += [begun, state]
    return Trained(pool, federation, method, states, [*metrics, measured], round)


def forward(w, x):
    """Representations and the mean that the centred encoder subtracts."""
    h = x @ w["encoder"]
    mean = h.mean(axis=0)
    return (h - mean[None]) @ w["projector"], mean


def instance_loss(w, target, views, xp=jnp):
    """Eq. 8: half the contrast of each view with the other view of the target."""
    a, b = (forward(w, x)[0] for x in views)
    t_a, t_b = (forward(target, x)[0] for x in views)
    return (plain.nt_xent(a, t_b, TAU_I, xp) + plain.nt_xent(t_a, b, TAU_I, xp)) / 2


def cluster_loss(w, target, views, xp=jnp):
    """Eq. 9 with entropies subtracted, of features."""
    (a, b), (t_a, t_b) = (
        [jax.nn.softmax(h @ v["cluster_projector"]) for h in views] for v in (w, target)
    )
    contrast = plain.nt_xent(a.T, t_b.T, TAU_C, xp) + plain.nt_xent(
        t_a.T, b.T, TAU_C, xp
    )
    return contrast / 2 - sum(plain.entropy(c, xp) for c in (a, b, t_a, t_b))


@partial(jax.jit, static_argnums=0)
def step(loss, w, target, opt_state, views):
    value, gradient = jax.value_and_grad(loss)(w, target, views)
    updates, opt_state = ADAM.update(gradient, opt_state)
    w = optax.apply_updates(w, updates)
    target = jax.tree.map(lambda t, o: MOMENTUM * t + (1 - MOMENTUM) * o, target, w)
    return w, target, opt_state, value


def kernels(parts):
    return {k: v["params"]["kernel"] for k, v in parts.items()}


def mean_by_size(values, sizes):
    return jax.tree.map(
        lambda *xs: (
            sum(n * np.asarray(x) for n, x in zip(sizes, xs, strict=True)) / sum(sizes)
        ),
        *values,
    )


def assert_close(found, expected, **tolerances):
    tolerances = {"rtol": 1e-3, "atol": 1e-4} | tolerances
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, **tolerances), found, expected
    )


def test_two_rounds_of_algorithm_1(trained):
    """Every client begins with the server's network, its own target and a new Adam."""
    w = kernels(trained.states[0].online)
    running = np.zeros(5)
    targets = [w, w]  # copies in the beginning
    for number in range(2):
        ends, statistics, losses = [], [], []
        for client, (start, size) in enumerate(((0, 6), (6, 10))):
            own, target, opt_state = w, targets[client], ADAM.init(w)
            learnt, values = running, []
            for slots, key in plain.steps(
                KEYS[number],
                np.arange(10) < size,
                client=client,
                num_epochs=2,
                batch_size=4,
            ):
                views = plain.views(key, trained.pool[start + slots])
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
        w = mean_by_size(ends, SIZES)
        running = mean_by_size(statistics, SIZES)

        state, metrics = trained.states[number + 1], trained.metrics[number]
        assert_close(kernels(state.online), w)
        found = state.online["encoder"]["batch_stats"]
        assert_close(found["mean"], running)
        for client, target in enumerate(targets):
            own = {k: v["kernel"][client] for k, v in state.target.items()}
            assert_close(own, target)
        assert float(metrics["loss"]) == pytest.approx(np.mean(losses), rel=1e-4)
    apart = np.abs(np.subtract(*(t["encoder"] for t in targets))).max()
    assert apart > 1e-2  # what tells an own target from an averaged one


def test_a_round_of_algorithm_2(trained):
    """Features are those of the encoder in evaluation; rows from 12 on do not count."""
    begun, ended = trained.states[-2:]
    encoder = begun.online["encoder"]
    running = np.asarray(encoder["batch_stats"]["mean"])
    start = {"cluster_projector": kernels(begun.online)["cluster_projector"]}
    ends, losses = [], []
    for client, (row, held) in enumerate(((0, 6), (6, 6))):
        own, target, opt_state, values = start, start, ADAM.init(start), []
        for slots, key in plain.steps(
            KEYS[2], np.arange(10) < held, client=client, num_epochs=2, batch_size=4
        ):
            features = [
                view @ encoder["params"]["kernel"] - running[None]
                for view in plain.views(key, trained.pool[row + slots])
            ]
            own, target, opt_state, value = step(
                cluster_loss, own, target, opt_state, features
            )
            values.append(float(value))
        ends.append(own)
        losses.append(np.mean(values))
        found = ended.target["cluster_projector"]["kernel"][client]
        assert_close(found, target["cluster_projector"])
    expected = mean_by_size(ends, (6, 6))["cluster_projector"]
    assert_close(kernels(ended.online)["cluster_projector"], expected)
    assert float(trained.metrics[2]["loss"]) == pytest.approx(np.mean(losses), rel=1e-4)


def test_the_second_stage_goes_on_with_the_encoder_alone(trained):
    learnt, begun, ended = trained.states[-3:]
    for state in (begun, ended):
        assert set(state.online) == {"encoder", "cluster_projector"}
        assert set(state.target) == {"cluster_projector"}
        jax.tree.map(
            np.testing.assert_array_equal,
            state.online["encoder"],
            learnt.online["encoder"],
        )
    assert int(ended.num_rounds) == 3


def test_clusters_are_the_largest_soft_assignments_of_the_second_stage(trained):
    _, federation, method, (*_, learnt, begun, ended), *_ = trained
    assert set(np.unique(method.assign(learnt, federation))) == {-1}
    for state in (begun, ended):
        encoder = state.online["encoder"]
        h = trained.pool @ np.asarray(encoder["params"]["kernel"])
        h -= np.asarray(encoder["batch_stats"]["mean"])
        y = h @ np.asarray(kernels(state.online)["cluster_projector"])
        found = np.asarray(method.assign(state, federation))
        np.testing.assert_array_equal(found[0, :6], y[:6].argmax(axis=1))
        np.testing.assert_array_equal(found[1], y[6:].argmax(axis=1))
        embedded = np.asarray(method.embed(state, federation))
        np.testing.assert_allclose(embedded[1], h[6:], rtol=1e-4, atol=1e-5)


def test_no_target_crosses_and_the_encoder_is_sent_once(trained):
    sizes = {"encoder": 4 * 5 + 5 + 1, "projector": 5 * 3, "cluster_projector": 5 * 3}
    both = {"encoder", "projector"}
    ways = [(both, both), (both, both)]
    ways.append(({"encoder", "cluster_projector"}, {"cluster_projector"}))
    for metrics, (down, up) in zip(trained.metrics, ways, strict=True):
        expected = {f"down_{name}": [2, 4 * sizes[name]] for name in down}
        expected |= {f"up_{name}": [2, 4 * sizes[name]] for name in up}
        traffic = {k: list(v) for k, v in metrics.items() if k[:3] in ("up_", "dow")}
        assert traffic == expected


def test_rows_that_are_not_clustered_do_not_reach_the_second_stage(trained):
    federation, states = trained.federation, trained.states
    pool = federation.pool.at[NUM_CLUSTERED:].multiply(-100)
    spoilt = federation._replace(pool=pool)
    new, metrics = trained.round(KEYS[2], states[-2], spoilt)
    jax.tree.map(
        np.testing.assert_array_equal,
        (new.online, new.target),
        (states[-1].online, states[-1].target),
    )
    assert float(metrics["loss"]) == float(trained.metrics[2]["loss"])


def numpy_softmax(y):
    e = np.exp(y)
    return e / e.sum(axis=1, keepdims=True)


def test_the_losses_of_a_batch_are_equations_8_and_9():
    rng = np.random.default_rng(3)
    mask = np.array([True, True, False, True, True, True])
    z = rng.normal(size=(4, 6, 5))
    c = np.stack([numpy_softmax(y) for y in 2 * rng.normal(size=(4, 6, 3))])
    of_examples, of_clusters = (
        [jnp.asarray(x.astype(np.float32)).at[2].set(jnp.nan) for x in four]
        for four in (z, c)
    )
    by_examples = jax.jit(partial(module.instance_level, temperature=TAU_I))
    found = by_examples(tuple(of_examples[:2]), tuple(of_examples[2:]), mask)
    a, b, t_a, t_b = z[:, mask]
    expected = plain.nt_xent(a, t_b, TAU_I) + plain.nt_xent(t_a, b, TAU_I)
    assert float(found) == pytest.approx(expected / 2, rel=1e-5)

    by_clusters = jax.jit(partial(module.cluster_level, temperature=TAU_C))
    found = by_clusters(tuple(of_clusters[:2]), tuple(of_clusters[2:]), mask)
    a, b, t_a, t_b = c[:, mask]
    expected = plain.nt_xent(a.T, t_b.T, TAU_C) + plain.nt_xent(t_a.T, b.T, TAU_C)
    expected = expected / 2 - sum(map(plain.entropy, (a, b, t_a, t_b)))
    assert float(found) == pytest.approx(expected, rel=1e-5)


def central_differences(loss, x):
    """The gradient of a NumPy function of float64."""
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[index] = 1e-5
        gradient[index] = (loss(x + step) - loss(x - step)) / 2e-5
    return gradient


@pytest.mark.parametrize("weight", [1.0, 0.5], ids=["equation 9", "the ratio of CC"])
def test_the_contrast_weighs_half_of_ccs_where_the_target_is_the_online_network(weight):
    """As `cluster_level` derives it: half of the gradient of CC's contrast, less all or
    half of that of its entropies. Of logits whose clusters are far from even."""
    y = np.random.default_rng(6).normal(size=(2, 6, 3)) * [2.0, 1.0, 0.5] + [1, 0, 0]

    def contrast(y):
        a, b = map(numpy_softmax, y)
        return plain.nt_xent(a.T, b.T, TAU_C)

    def entropies(y):
        return sum(plain.entropy(numpy_softmax(view)) for view in y)

    of_contrast = central_differences(contrast, y)
    of_entropies = central_differences(entropies, y)
    assert min(np.abs(x).max() for x in (of_contrast, of_entropies)) > 1e-2

    @jax.jit
    @jax.grad
    def found(y):
        c = tuple(jax.nn.softmax(view) for view in y)
        return module.cluster_level(
            c,
            jax.lax.stop_gradient(c),
            jnp.ones(6, bool),
            temperature=TAU_C,
            entropy_weight=weight,
        )

    gradient = found(jnp.asarray(y, jnp.float32))
    expected = of_contrast / 2 - weight * of_entropies
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-6)
    of_cc = of_contrast - of_entropies
    is_half = np.allclose(gradient, of_cc / 2, rtol=1e-3, atol=1e-5)
    assert is_half == (weight == 0.5)


def test_the_second_stage_weighs_the_entropies():
    """One step of size 1 on a batch that holds all examples, at a weight of 0.3."""
    pool = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    federation = federate(pool, (np.arange(8),))
    local = Local(optax.sgd(1.0), noisy, num_epochs=1, batch_size=8)
    clustering = module.cluster_contrast(
        HEAD, local, num_rounds=1, cluster_temperature=TAU_C, entropy_weight=0.3
    )
    method = module.fedmcc(matrix(5), matrix(3), clustering, local, num_rounds=1)
    state, second = method.init(jax.random.key(1), federation), method.stages[1]
    begun = second.begin(jax.random.key(2), state, federation)
    ended, _ = jax.jit(second.round)(KEYS[0], begun, federation)

    ((slots, step_key),) = plain.steps(KEYS[0], np.ones(8, bool))
    kernel = begun.online["encoder"]["params"]["kernel"]
    features = [view @ kernel for view in plain.views(step_key, pool[slots])]
    start = {"cluster_projector": kernels(begun.online)["cluster_projector"]}

    def loss(w):
        c, t = (
            [jax.nn.softmax(h @ v["cluster_projector"]) for h in features]
            for v in (w, start)
        )
        pairs = ((c[0], t[1]), (t[0], c[1]))
        contrast = sum(plain.nt_xent(u.T, v.T, TAU_C, jnp) for u, v in pairs)
        return contrast / 2 - 0.3 * sum(plain.entropy(x, jnp) for x in c)

    gradient = jax.grad(loss)(start)
    expected = start["cluster_projector"] - gradient["cluster_projector"]
    assert_close(kernels(ended.online)["cluster_projector"], expected, rtol=1e-4)


def test_no_gradient_reaches_a_target():
    networks = {"encoder": matrix(5, centre=True), "projector": matrix(3)}
    rng = np.random.default_rng(4)
    views = tuple(jnp.asarray(rng.normal(size=(6, 4)), jnp.float32) for _ in range(2))
    online = initialize(jax.random.key(0), networks, views[0][:1])
    other = initialize(jax.random.key(1), networks, views[0][:1])
    target = {name: part["params"] for name, part in other.items()}
    contrast = module.instance_contrast(Networks(networks), temperature=TAU_I)

    @jax.jit
    @partial(jax.grad, argnums=(0, 1))
    def gradients(params, target):
        parts = {name: {**online[name], "params": params[name]} for name in params}
        return contrast(parts, target, views, jnp.ones(6, bool))[0]

    params = {name: part["params"] for name, part in online.items()}
    of_online, of_target = gradients(params, target)
    expected = jax.jit(jax.grad(instance_loss))(kernels(online), kernels(other), views)
    for name, gradient in expected.items():
        assert np.abs(gradient).max() > 1e-3
        np.testing.assert_allclose(
            of_online[name]["kernel"], gradient, rtol=1e-3, atol=1e-5
        )
    assert not any(map(np.any, jax.tree.leaves(of_target)))


@pytest.mark.parametrize(
    ("options", "weight"), [({}, 1), ({"entropy_weight": 0.5}, 0.5)]
)
def test_mcc_descends_the_sum_of_both_losses(trained, options, weight):
    """Equation 6 by one step of size 1 on a batch that holds all examples."""
    pool = trained.pool
    federation = federate(pool, (np.arange(16),))
    method = module.mcc(
        *(matrix(5), matrix(3), HEAD),
        Local(optax.sgd(1.0), noisy, num_epochs=1, batch_size=16),
        instance_temperature=TAU_I,
        cluster_temperature=TAU_C,
        momentum=MOMENTUM,
        **options,
    )
    state = method.init(jax.random.key(0), federation)
    rng = np.random.default_rng(0)
    target = jax.tree.map(
        lambda x: x + rng.normal(size=x.shape).astype(np.float32), state.target
    )
    state = state._replace(target=target)
    key = jax.random.key(1)
    new, metrics = jax.jit(method.stages[0].round)(key, state, federation)

    ((slots, step_key),) = plain.steps(key, np.ones(16, bool))
    views = plain.views(step_key, pool[slots])

    def loss(w, t):
        z, t_z = ([x @ v["encoder"] @ v["projector"] for x in views] for v in (w, t))
        c, t_c = (
            [jax.nn.softmax(x @ v["encoder"] @ v["cluster_projector"]) for x in views]
            for v in (w, t)
        )
        total = -weight * sum(plain.entropy(x, jnp) for x in (*c, *t_c))
        for (a, b), (t_a, t_b), tau in (
            (z, t_z, TAU_I),
            ([x.T for x in c], [x.T for x in t_c], TAU_C),
        ):
            total += plain.nt_xent(a, t_b, tau, jnp) / 2
            total += plain.nt_xent(t_a, b, tau, jnp) / 2
        return total

    w, t = kernels(state.online), {k: v["kernel"][0] for k, v in target.items()}
    value, gradient = jax.jit(jax.value_and_grad(loss))(w, t)
    assert float(metrics["loss"]) == pytest.approx(float(value), rel=1e-5)
    ended = jax.tree.map(lambda w, g: w - g, w, gradient)
    assert_close(kernels(new.online), ended, rtol=1e-4)
    for name, kernel in ended.items():
        expected = MOMENTUM * t[name] + (1 - MOMENTUM) * kernel
        assert_close(new.target[name]["kernel"][0], expected, rtol=1e-4)


def test_a_microbatch_changes_nothing_without_batch_norm(trained):
    federation = trained.federation
    found = []
    for microbatch in (None, 3):
        local = LOCAL._replace(optimizer=optax.sgd(0.1), microbatch=microbatch)
        method = module.fedmcc(
            *(matrix(5), matrix(3), module.cluster_contrast(HEAD, local), local),
        )
        state = method.init(jax.random.key(1), federation)
        round = jax.jit(method.stages[0].round)
        found.append(round(KEYS[0], state, federation))
    (whole, one), (parts, other) = found
    assert_close((parts.online, parts.target), (whole.online, whole.target), atol=1e-5)
    assert float(one["loss"]) == pytest.approx(float(other["loss"]), abs=1e-5)
