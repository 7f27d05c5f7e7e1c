"""FedMCC's second stage against its algorithm box, written out with plain loops. Steps
of its first stage and of MCC are in `test_descent`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.cluster import KMeans

from fcjax.algorithms import fedmcc as module
from fcjax.algorithms.averaging import Local, part
from fcjax.algorithms.fedmcc import FeatureKMeans, by_heterogeneity, feature_kmeans
from fcjax.algorithms.fedu import fedsimclr
from fcjax.methods import FedMCC, FedSimCLR
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


SETTINGS = FedMCC(
    **{"num_rounds": 2, "cluster_rounds": 1, "momentum": MOMENTUM},
    **{"instance_temperature": TAU_I, "cluster_temperature": TAU_C},
)


def clustering(local=LOCAL, **options):
    return module.cluster_contrast(
        *(SETTINGS.plain(**options), matrix(3, soft=True), local),
        num_clustered=NUM_CLUSTERED,
    )


METHOD = module.fedmcc(SETTINGS.plain(), ENCODER, matrix(3), clustering(), LOCAL)


@pytest.fixture(scope="module")
def trained(federation):
    """The state after a round of the first stage."""
    first, now = METHOD.stages[0], in_round(federation, 0)
    state = METHOD.init(jax.random.key(1), federation)
    return jax.jit(first.round)(KEYS[0], state, now)[0]


@pytest.fixture(scope="module", params=["equation 9", "other weight, microbatch"])
def clustered(request, trained, federation):
    """The weight of entropies, the states that a round of the second stage begins and
    ends with, and its metrics."""
    weight, options = 1.0, {}
    if request.param != "equation 9":
        weight = 0.3
        options = {"local": LOCAL._replace(microbatch=3), "entropy_weight": weight}
    stage = clustering(**options).stages(ENCODER)[0]
    begun = stage.begin(jax.random.key(2), trained, federation)
    return weight, begun, *jax.jit(stage.round)(KEYS[2], begun, federation)


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
    _, *both, metrics = clustered
    for state in both:
        assert set(state.server.online["params"]) == {"encoder", "cluster_projector"}
        assert set(state.clients.target) == {"cluster_projector"}
        jax.tree.map(
            np.testing.assert_array_equal,
            part(state.server.online, "encoder"),
            part(trained.server.online, "encoder"),
        )
    head = both_ways(2, cluster_projector=15)
    assert traffic(metrics) == head | {"down_encoder": [2, 4 * 26]}


def test_clusters_are_the_largest_soft_assignments_of_the_second_stage(
    trained, clustered, federation
):
    before = METHOD.assign(trained, federation)
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


# --- k-means as the second stage

BLOBS = (np.arange(11), np.arange(11, 30), np.arange(30, 36))


def test_the_features_of_those_present_are_clustered_as_in_one_place():
    """Three blobs of six values; client 2 is absent and holds no numbers."""
    rng = np.random.default_rng(0)
    pool = 5 * rng.normal(size=(3, 6))[rng.integers(3, size=36)]
    pool += rng.normal(size=pool.shape)
    pool[BLOBS[2]] = np.nan
    federation = federate(pool, BLOBS, absent=(2,))
    method = fedsimclr(
        FedSimCLR().plain(),
        matrix(4, centre=True),
        matrix(2),
        feature_kmeans(FeatureKMeans(3, batch_size=7)),
        Local(optax.sgd(0.1), noisy, keep_optimizer=True),
    )
    state = method.init(jax.random.key(1), federation)
    first, stage = method.stages
    assert [first.name, stage.name] == ["representation", "k-means"]
    # There are no clusters before the second stage.
    assert set(np.unique(method.assign(state, federation))) == {-1}

    begun = stage.begin(jax.random.key(2), state, federation)
    new, metrics = jax.jit(stage.round)(jax.random.key(3), begun, federation)
    for kept in (begun, new):
        assert set(kept.server.online["params"]) == {"encoder"}
        assert len(kept.clients) == 2  # the features and which are clustered, no more
        jax.tree.map(
            np.testing.assert_array_equal,
            part(kept.server.online, "encoder"),
            part(state.server.online, "encoder"),
        )
    seeds = 4 * 3 * 4
    assert traffic(metrics) == {
        "up_sums": [2, 4 * 3 * 4],
        "up_counts": [2, 4 * 3],
        "up_seeds": [2, seeds + 4 * 3 + 4 * 10],  # centroids, counts, inertias
        "down_seeds": [2, 10 * seeds],
        "down_encoder": [2, 4 * (6 * 4 + 4 + 1)],  # kernel, mean, count
        "down_centroids": [2, 4 * 3 * 4],
    }
    assert int(metrics["participants"]) == 2
    # Client 2 answers for the first time in the second round.
    late = jnp.concatenate([federation.present, jnp.ones_like(federation.present)])
    then = in_round(federation._replace(present=late), 1)
    _, second = jax.jit(stage.round)(jax.random.key(3), new, then)
    assert second["down_encoder"].tolist() == [1, 4 * (6 * 4 + 4 + 1)]
    assert second["down_centroids"][0] == 3

    kernel = state.server.online["params"]["encoder"]["kernel"]
    features = pool[:30] @ np.asarray(kernel)
    start = np.asarray(begun.server.clusters.centroids)
    while not stage.done(new):
        new, metrics = jax.jit(stage.round)(jax.random.key(3), new, federation)
    expected = KMeans(3, init=start, n_init=1, tol=0).fit(features)
    best = KMeans(3, n_init=10, random_state=0).fit(features)
    assert expected.inertia_ == pytest.approx(best.inertia_, rel=1e-4)
    assert float(metrics["loss"]) == pytest.approx(expected.inertia_ / 30, rel=1e-4)
    found = np.asarray(new.server.clusters.centroids)
    np.testing.assert_allclose(found, expected.cluster_centers_, rtol=1e-3, atol=1e-3)
    clusters = np.asarray(method.assign(new, federation))
    for client, rows in enumerate(BLOBS[:2]):
        np.testing.assert_array_equal(
            clusters[client, : len(rows)], expected.labels_[rows]
        )


@pytest.mark.parametrize("unlike", [True, False])
def test_a_head_is_trained_and_used_for_alike_clients_alone(
    unlike, trained, federation
):
    kmeans = FeatureKMeans(3, max_heterogeneity=0.5)
    second = by_heterogeneity(kmeans, matrix(3, soft=True), clustering())
    first, last = second.stages(ENCODER)
    assert [first.name, last.name] == ["k-means", "cluster"]
    state = first.begin(jax.random.key(2), trained, federation)
    clusters = state.server.clusters._replace(
        heterogeneity=jnp.float32(0.6 if unlike else 0.4)
    )
    state = state._replace(server=state.server._replace(clusters=clusters))
    state = last.begin(jax.random.key(3), state, federation)
    assert bool(last.done(state)) == unlike
    h = jnp.asarray(
        np.random.default_rng(0).normal(size=(9, clusters.centroids.shape[1]))
    )
    h = h.astype(jnp.float32)
    centroids = np.asarray(clusters.centroids)
    if unlike:
        distances = np.linalg.norm(np.asarray(h)[:, None] - centroids, axis=-1)
        expected = distances.argmin(axis=1)
    else:
        expected = (h @ kernels(state.server.online)["cluster_projector"]).argmax(
            axis=1
        )
    np.testing.assert_array_equal(second.assign(state.server, h), expected)
