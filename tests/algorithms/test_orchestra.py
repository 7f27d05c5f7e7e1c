"""Orchestra's local step and its server's beside a plain transcription, the memory, the
target, and what crosses."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fcjax.algorithms import orchestra as module
from fcjax.algorithms.averaging import Local
from fcjax.algorithms.fedmcc import FeatureKMeans, feature_kmeans
from fcjax.algorithms.orchestra import Memory, orchestra
from fcjax.methods import Orchestra
from fcjax.types import Network
from tests.algorithms import plain
from tests.algorithms.federations import federate, follow, traffic
from tests.algorithms.plain import kernels, matrix, noisy, unit
from tests.cluster.test_sinkhorn import plainly

TAU, MOMENTUM, WEIGHT = 0.4, 0.8, 0.7
POOL = np.random.default_rng(0).normal(size=(14, 2, 2, 1)).astype(np.float32)
LOCAL = Local(optax.sgd(0.5), noisy, num_epochs=1, batch_size=8)
KMEANS = feature_kmeans(FeatureKMeans(2, num_init=1))


def louder(key, x):
    return x + 0.5 * jax.random.normal(key, x.shape)


def of_images(network: Network) -> Network:
    """Takes images row by row."""

    def flat(x):
        return x.reshape(len(x), -1)

    return Network(
        init=lambda key, x: network.init(key, flat(x)),
        apply=lambda variables, x, **options: network.apply(
            variables, flat(x), **options
        ),
    )


def built(rotation=True, server_rate=0.01, **options):
    """Of 2 x 2 images: four features, three projections, five global clusters."""
    rounds = {"num_rounds": 2, "server_steps": 3}
    sizes = {"num_global": 5, "num_local": 2, "memory_size": 6}
    weights = {"temperature": TAU, "momentum": MOMENTUM, "rotation_weight": WEIGHT}
    settings = Orchestra(**{**rounds, **sizes, **weights, **options}).plain()
    return orchestra(
        settings,
        of_images(matrix(4, centre=True)),
        matrix(3),
        matrix(4) if rotation else None,
        louder,
        KMEANS,
        LOCAL,
        server_rate=server_rate,
    )


def through(w, x, *heads):
    h = x.reshape(len(x), -1) @ w["encoder"]
    h = h - h.mean(axis=0, keepdims=True)
    return jnp.linalg.multi_dot([h, *(w[k] for k in heads)])


def drawn_views(step_key, x):
    """The target's view, the online network's, a turned one and its quarters."""
    seen, other, turned, quarters = [], [], [], []
    for i, row in enumerate(x):
        keys = jax.random.split(jax.random.fold_in(step_key, i), 4)
        seen.append(noisy(keys[0], row))
        other.append(louder(keys[1], row))
        quarters.append(int(jax.random.randint(keys[2], (), 0, 4)))
        turned.append(np.rot90(noisy(keys[3], row), quarters[-1]))
    return tuple(map(np.stack, (seen, other, turned))), np.array(quarters)


def loss(w, target, centroids, views, quarters):
    """The cross-entropy of both softmaxes, and of the turns, of a batch."""
    seen, other, turned = views
    q = jax.nn.softmax(unit(through(target, seen, "projector")) @ centroids.T / TAU)
    p = jax.nn.softmax(unit(through(w, other, "projector")) @ centroids.T / TAU)
    logits = through(w, turned, "projector", "rotation")
    right = jax.nn.log_softmax(logits)[np.arange(len(quarters)), quarters]
    return -(q * jnp.log(p)).sum(axis=1).mean() - WEIGHT * right.mean()


def test_a_local_step_is_that_of_the_facts():
    """One client of six examples answers: its only batch. The target has gone its own
    way, and takes a step towards the online network before it is asked."""
    method, rng = built(), np.random.default_rng(1)
    federation = federate(POOL, (np.arange(6), np.arange(6, 14)), absent=(1,))
    state = method.init(jax.random.key(2), federation)
    before = state.server
    centroids = unit(rng.normal(size=(5, 3))).astype(np.float32)
    moved = jax.tree.map(
        lambda x: x + rng.normal(size=x.shape).astype(np.float32),
        before.target["params"],
    )
    before = before._replace(
        target={**before.target, "params": moved}, centroids=jnp.array(centroids)
    )
    key = jax.random.key(1)
    round = jax.jit(method.stages[1].round)
    after, metrics = round(key, state._replace(server=before), federation)

    _, clients_key = jax.random.split(key)
    train_key, _ = jax.random.split(jax.random.fold_in(clients_key, 0))
    ((slots, step_key),) = plain.epochs(train_key, np.arange(8) < 6, batch_size=8)
    w, old = kernels(before.online), {k: x["kernel"] for k, x in moved.items()}
    target = {k: MOMENTUM * t + (1 - MOMENTUM) * w[k] for k, t in old.items()}
    views, quarters = drawn_views(step_key, POOL[slots])
    value, gradient = jax.value_and_grad(loss)(w, target, centroids, views, quarters)
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    close(metrics["loss"], value)
    for name in w:
        assert np.abs(gradient[name]).max() > 1e-3
        close(kernels(after.server.online)[name], w[name] - 0.5 * gradient[name])
    for name in old:
        close(after.server.target["params"][name]["kernel"], target[name])
    # Two forward passes of the online encoder, one of the target's.
    calls = [
        float(x["batch_stats"]["encoder"]["calls"])
        for x in (after.server.online, after.server.target)
    ]
    assert calls == [2, 1]


def test_the_server_descends_as_the_facts_have_it():
    """Three steps of plain gradient descent with momentum and decay, in which unit
    length comes after every one; a client that did not answer counts nothing."""
    rng = np.random.default_rng(3)
    found = unit(rng.normal(size=(4, 2, 3))).astype(np.float32)
    answered = jnp.array([True, True, False, True])
    start = rng.normal(size=(5, 3)).astype(np.float32)
    setup = setup_of(server_steps=3, server_rate=0.3)
    heard = jnp.where(answered[:, None, None], found, jnp.nan)
    ours, value = jax.jit(partial(module.cluster_globally, setup))(
        jnp.array(start), heard, answered
    )

    z = found[[0, 1, 3]].reshape(-1, 3)
    centroids, velocity, values = jnp.array(start), 0.0, []
    for _ in range(3):
        equal = plainly(np.asarray(z @ centroids.T, float))

        def objective(c, equal=equal):
            soft = jax.nn.softmax(z @ c.T / TAU, axis=1)
            return -plain.cosine(jnp.array(equal), soft).mean()

        value_here, gradient = jax.value_and_grad(objective)(centroids)
        values.append(float(value_here))
        velocity = 0.9 * velocity + gradient + 1e-4 * centroids
        centroids = unit(centroids - 0.3 * velocity)
    np.testing.assert_allclose(ours, centroids, rtol=1e-4, atol=1e-5)
    assert float(value) == pytest.approx(values[-1], rel=1e-4)
    assert -1 <= values[-1] <= 0
    order = np.array([3, 1, 0, 2])
    again, _ = module.cluster_globally(
        setup, jnp.array(start), jnp.array(found[order]), answered[order]
    )
    np.testing.assert_allclose(again, ours, atol=1e-5)


def setup_of(**options):
    """What a method's rounds share."""
    return built(**options).stages[0].round.args[0]


def test_the_memory_has_the_last_rows_that_were_put_in():
    memory = Memory(jnp.zeros((4, 1)), jnp.int32(0))
    fed = []
    for rows, counted in (([1, 2, 9], 2), ([3, 4, 5], 3), ([6, 7, 8, 9, 10, 11], 6)):
        mask = jnp.arange(len(rows)) < counted
        memory = module.remember(memory, jnp.array(rows, float)[:, None], mask)
        fed += rows[:counted]
        held = {*np.asarray(memory.z[: min(len(fed), 4), 0]).tolist()}
        assert held == {*fed[-4:]}
    assert int(memory.count) == 11


@pytest.fixture(scope="module")
def ended():
    """Three clients, of which one has a single example."""
    federation = federate(POOL, (np.arange(6), np.arange(6, 13), np.arange(13, 14)))
    return follow(built(num_participants=2), federation)


def test_the_first_round_changes_no_network(ended):
    _, before, after, metrics = ended[0]
    for name in ("online", "target"):
        networks = (getattr(x.server, name) for x in (before, after))
        jax.tree.map(np.testing.assert_array_equal, *networks)
    assert float(metrics["loss"]) == 0


def test_what_crosses(ended):
    """In floats of four bytes: encoder 16 weights and 5 numbers of its batch norm,
    projector 12, rotation 12; the target the first two; two local centroids and five
    global ones of three. Two of three clients take part."""
    first = ended[0]
    last = [x for x in ended if x.stage == "representation"][-1]
    sizes = {"encoder": 21, "projector": 12, "rotation": 12, "target": 33}
    down = {**sizes, "centroids": 15}
    expected = {f"down_{k}": [2, 4 * n] for k, n in down.items()}
    only = {"up_local_centroids": [2, 4 * 6]}
    assert traffic(first.metrics) == {**only, **expected}
    up = {f"up_{k}": [2, 4 * n] for k, n in sizes.items()}
    assert traffic(last.metrics) == {**only, **up, **expected}


def test_a_client_cannot_have_more_clusters_than_it_remembers():
    with pytest.raises(ValueError, match=r"`num_local` must be at most .* 6, got 7"):
        built(num_local=7)
