"""CCFC against its algorithm box, written out with plain loops and NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from sklearn.cluster import KMeans

from fcjax import clients, engine, evaluation
from fcjax.algorithms import ccfc as module
from fcjax.algorithms.ccfc_losses import cluster_contrast, sample_contrast
from fcjax.data import Partition, federate
from fcjax.models import from_linen
from fcjax.types import Grid, Network
from tests.methods import jitter


def cosine(a, b):
    a, b = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (a, b))
    return np.sum(a * b, axis=-1)


def linear(variables, x, *, train, mask=None):
    """z = x A, p = z B; counts the calls that train in its batch statistics."""
    z = x @ variables["params"]["a"]
    calls = variables["batch_stats"]["calls"] + train
    outputs = (z, z @ variables["params"]["b"])
    return outputs, {**variables, "batch_stats": {"calls": calls}}


def linear_network(size, latent_size) -> Network:
    def init(key, x):
        keys = jax.random.split(key)
        a = jax.random.normal(keys[0], (size, latent_size))
        b = jax.random.normal(keys[1], (latent_size, latent_size))
        return {"params": {"a": a, "b": b}, "batch_stats": {"calls": jnp.float32(0)}}

    return Network(init, linear)


@pytest.fixture
def problem():
    rng = np.random.default_rng(1)
    pool = rng.normal(size=(20, 4)).astype(np.float32)
    rows = (np.arange(8), np.arange(8, 20))  # 8 and 12 examples
    one = federate(
        jnp.asarray(pool),
        [Partition(rows, np.arange(0))],
        np.ones((1, 1, 2), bool),
        num_clusters=3,
    )
    federation = one._replace(
        indices=one.indices[0],
        mask=one.mask[0],
        present=one.present[0],
        local_clusters=one.local_clusters[0],
    )
    return pool, rows, federation


def build(**options):
    defaults = {"batch_size": 12, "model_weight": 0.5, "num_clusters": 3}
    augment = options.pop("augment", lambda key, x: x)
    optimizer = options.pop("optimizer", optax.sgd(0.1))
    network = options.pop("network", linear_network(4, 3))
    return module.ccfc(network, optimizer, augment, **{**defaults, **options})


def test_the_loss_of_two_views_by_hand(problem):
    pool, _, _ = problem
    network = linear_network(4, 3)
    variables = network.init(jax.random.key(0), pool[:1])
    anchor = network.init(jax.random.key(1), pool[:1])
    views = (jnp.asarray(pool[:5]), jnp.asarray(pool[5:10]))
    mask = np.array([True, True, False, True, True])
    loss, new = sample_contrast(
        network, variables, anchor, views, jnp.asarray(mask), model_weight=0.5
    )
    (z1, p1), (z2, p2) = (
        [np.asarray(y) for y in linear(variables, v, train=False)[0]] for v in views
    )
    (_, g1), (_, g2) = (
        [np.asarray(y) for y in linear(anchor, v, train=False)[0]] for v in views
    )
    contrast = -(cosine(p1, z2) + cosine(p2, z1)) / 2
    pull = -(cosine(p1, g1) + cosine(p2, g2)) / 2
    np.testing.assert_allclose(loss, (contrast + 0.5 * pull)[mask].mean(), rtol=1e-5)
    # Both views pass in training mode, one after the other; the anchor in none.
    assert new["batch_stats"]["calls"] == 2


@pytest.mark.parametrize("include_self", [True, False])
def test_the_loss_of_clusters_by_hand(problem, include_self):
    pool, _, _ = problem
    network = linear_network(4, 3)
    variables = network.init(jax.random.key(0), pool[:1])
    anchor = network.init(jax.random.key(1), pool[:1])
    x, labels = jnp.asarray(pool[:6]), np.array([0, 0, 0, 1, 1, 2])
    loss, _ = cluster_contrast(
        network,
        variables,
        anchor,
        x,
        jnp.asarray(labels),
        jnp.ones(6, bool),
        num_clusters=3,
        model_weight=0.5,
        include_self=include_self,
    )
    z, p = (np.asarray(y) for y in linear(variables, x, train=False)[0])
    _, g = (np.asarray(y) for y in linear(anchor, x, train=False)[0])
    means = []
    for cluster in (0, 1):  # cluster 2 has one member
        members = np.flatnonzero(labels == cluster)
        pairs = [
            -cosine(p[i], z[j])
            for i in members
            for j in members
            if include_self or i != j
        ]
        means.append(np.mean(pairs))
    expected = np.mean(means) - 0.5 * cosine(p, g).mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_a_round_averages_what_the_clients_trained_by_their_sizes(problem):
    """One full-batch step of gradient descent a client, then 8/20 and 12/20."""
    pool, rows, federation = problem
    method = build()
    state = method.init(jax.random.key(3), federation)
    new, metrics = jax.jit(method.stages[0].round)(jax.random.key(4), state, federation)

    def objective(params, x):
        variables = {**state.variables, "params": params}
        loss, _ = sample_contrast(
            linear_network(4, 3),
            variables,
            state.variables,
            (x, x),
            jnp.ones(len(x), bool),
            model_weight=0.5,
        )
        return loss

    expected = jax.tree.map(jnp.zeros_like, state.variables["params"])
    values = []
    for held in rows:
        value, g = jax.value_and_grad(objective)(
            state.variables["params"], jnp.asarray(pool[held])
        )
        values.append(value)
        share = len(held) / 20
        expected = jax.tree.map(
            lambda e, p, g, share=share: e + share * (p - 0.1 * g),
            expected,
            state.variables["params"],
            g,
        )
    for name in ("a", "b"):
        np.testing.assert_allclose(
            new.variables["params"][name], expected[name], rtol=1e-4, atol=1e-5
        )
    assert float(metrics["loss"]) == pytest.approx(np.mean(values), rel=1e-5)
    # Four bytes for each of 4 x 3 + 3 x 3 weights and a counter; 3 x 3 centroids.
    np.testing.assert_array_equal(metrics["up_network"], [2, 4 * 22])
    np.testing.assert_array_equal(metrics["down_centroids"], [2, 4 * 9])


def test_clusters_are_contrasted_under_the_labels_of_the_global_model(problem):
    """The loss that a round reports, from assignments made in NumPy."""
    pool, rows, federation = problem
    method = build(cluster_rounds=1)
    state = method.init(jax.random.key(3), federation)
    centroids = np.random.default_rng(5).normal(size=(3, 3)).astype(np.float32)
    state = state._replace(centroids=jnp.asarray(centroids))
    _, metrics = jax.jit(method.stages[1].round)(jax.random.key(4), state, federation)
    values = []
    for held in rows:
        x = pool[held]
        z, p = (np.asarray(y) for y in linear(state.variables, x, train=False)[0])
        labels = np.argmax([cosine(z, c) for c in centroids], axis=0)
        means = [
            -np.mean([cosine(p[i], z[j]) for i in members for j in members])
            for c in range(3)
            if len(members := np.flatnonzero(labels == c)) > 1
        ]
        values.append(np.mean(means) - 0.5)  # the anchor is the network itself
    assert float(metrics["loss"]) == pytest.approx(np.mean(values), rel=1e-4)


@pytest.mark.parametrize("euclidean", [True, False])
def test_assignment_is_by_cosine_or_by_distance(problem, euclidean):
    pool, rows, federation = problem
    method = build(euclidean=euclidean)
    state = method.init(jax.random.key(3), federation)
    centroids = np.array([[3.0, 0, 0], [0, 0.4, 0.1], [-0.3, 0, 0.5]], np.float32)
    state = state._replace(centroids=jnp.asarray(centroids))
    found = np.asarray(jax.jit(method.assign)(state, federation))
    z = pool @ np.asarray(state.variables["params"]["a"])
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    distance = np.linalg.norm(z[:, None] - centroids[None], axis=-1)
    angle = np.stack([-cosine(z, c) for c in centroids], axis=1)
    expected = np.argmin(distance if euclidean else angle, axis=1)
    for client, held in enumerate(rows):
        np.testing.assert_array_equal(found[client, : len(held)], expected[held])
    embedded = np.asarray(jax.jit(method.embed)(state, federation))
    np.testing.assert_allclose(embedded[1], z[rows[1]], rtol=1e-5, atol=1e-6)


def test_optimizers_outlive_a_round_and_start_anew_with_the_second_stage(problem):
    _, _, federation = problem
    method = build(optimizer=optax.adam(1e-3))
    state = method.init(jax.random.key(3), federation)
    pretrain = jax.jit(method.stages[0].round)
    for number in range(3):
        state, _ = pretrain(jax.random.key(number), state, federation)
    np.testing.assert_array_equal(state.opt_state[0].count, [3, 3])
    state = method.stages[1].begin(jax.random.key(9), state, federation)
    np.testing.assert_array_equal(state.opt_state[0].count, [0, 0])
    assert not np.any(state.opt_state[0].mu["a"])


def test_a_standalone_client_is_a_federation_of_one(problem):
    _, rows, federation = problem
    both = build(standalone=True)
    state = both.init(jax.random.key(3), federation)
    new, _ = jax.jit(both.stages[0].round)(jax.random.key(4), state, federation)
    held = rows[0]
    alone = federation._replace(
        indices=jnp.asarray(held)[None],
        mask=jnp.ones((1, len(held)), bool),
        present=jnp.ones((1, 1), bool),
    )
    single, _ = jax.jit(build().stages[0].round)(
        jax.random.key(4), build().init(jax.random.key(3), alone), alone
    )
    for name in ("a", "b"):
        np.testing.assert_allclose(
            new.variables["params"][name][0],
            single.variables["params"][name],
            rtol=1e-5,
        )


@pytest.mark.parametrize("sample_contrastive", [False, True])
def test_clients_that_leave_train_as_in_the_next_round(problem, sample_contrastive):
    """FedAvg in NumPy over the local models of a standalone round is the round."""
    _, _, federation = problem
    options = {"sample_contrastive": sample_contrastive, "optimizer": optax.adam(0.1)}
    together, alone = build(**options), build(standalone=True, **options)
    state = together.init(jax.random.key(3), federation)
    # A round, so that optimisers and centroids are not those of the beginning.
    together_round = jax.jit(together.stages[1].round)
    state, _ = together_round(jax.random.key(4), state, federation)
    new, _ = together_round(jax.random.key(5), state, federation)
    local, _ = jax.jit(alone.stages[1].round)(
        jax.random.key(5), module.leave(state, 2), federation
    )
    for name in ("a", "b"):
        one, two = np.asarray(local.variables["params"][name])
        assert np.abs(one - two).max() > 1e-3
        expected = 0.4 * one + 0.6 * two  # 8 and 12 of 20 examples
        np.testing.assert_allclose(new.variables["params"][name], expected, rtol=1e-5)
    assert local.num_rounds == new.num_rounds == 2


def test_own_init_needs_a_round_of_pre_training():
    with pytest.raises(ValueError, match="own_init is a round of pre-training"):
        build(own_init=True, pretrain_rounds=0)


def first_networks(key):
    """What two clients of a first round with this key begin with: each its own draw,
    from another key than the server's k-means has."""
    clients_key, server_key = jax.random.split(key)
    keys = [jax.random.split(k, 3)[2] for k in clients.fold_in(clients_key, 2)]
    taken = clients.fold_in(server_key, 10)
    assert not set(map(str, map(jax.random.key_data, keys))) & set(
        map(str, map(jax.random.key_data, taken))
    )
    return [linear_network(4, 3).init(key, None) for key in keys]


def test_unrelated_networks_are_averaged_after_a_first_round(problem):
    """With steps of size zero the round leaves the mean of what it started from."""
    _, _, federation = problem
    method = build(own_init=True, optimizer=optax.sgd(0.0), pretrain_rounds=5)
    assert [stage.num_rounds for stage in method.stages[:2]] == [1, 4]
    state = method.init(jax.random.key(3), federation)
    key = jax.random.key(4)
    new, _ = jax.jit(method.stages[0].round)(key, state, federation)
    one, two = (network["params"] for network in first_networks(key))
    for name in ("a", "b"):
        expected = 0.4 * one[name] + 0.6 * two[name]  # 8 and 12 of 20 examples
        np.testing.assert_allclose(new.variables["params"][name], expected, rtol=1e-5)


def test_unrelated_networks_are_drawn_to_the_servers_first_one(problem):
    """The loss that the first round reports, the pull being most of it."""
    pool, rows, federation = problem
    method = build(own_init=True, model_weight=3.0, pretrain_rounds=1)
    state = method.init(jax.random.key(3), federation)
    key = jax.random.key(4)
    _, metrics = jax.jit(method.stages[0].round)(key, state, federation)
    losses = []
    for network, held in zip(first_networks(key), rows, strict=True):
        (z, p), _ = linear(network, pool[held], train=True)
        (_, anchor), _ = linear(state.variables, pool[held], train=False)
        losses.append(-np.mean(cosine(p, z) + 3 * cosine(p, anchor)))
    np.testing.assert_allclose(metrics["loss"], np.mean(losses), rtol=1e-5)


# --- the beginning of the second stage


def best_centroids(x):
    """Three centroids by scikit-learn, in the order of their first feature."""
    found = KMeans(3, n_init=20, random_state=0).fit(x).cluster_centers_
    return found[np.argsort(found[:, 0])]


@pytest.fixture
def blobs(problem):
    """The same clients, of examples around three points."""
    _, rows, federation = problem
    rng = np.random.default_rng(2)
    pool = rng.normal(size=(3, 4))[np.arange(20) % 3] + 0.05 * rng.normal(size=(20, 4))
    pool = pool.astype(np.float32)
    return pool, rows, federation._replace(pool=jnp.asarray(pool))


@pytest.mark.parametrize("standalone", [False, True])
def test_the_second_stage_begins_with_what_the_averaged_network_finds(
    blobs, standalone
):
    """Algorithm 1 as printed: no round before it, and nobody's label is arbitrary."""
    pool, rows, federation = blobs
    method = build(pretrain_rounds=0, standalone=standalone)
    state = method.init(jax.random.key(3), federation)
    key = jax.random.key(5)
    for stage in method.stages:
        state = jax.jit(stage.begin)(key, state, federation)
    one = (
        jax.tree.map(lambda x: x[0], state.variables)
        if standalone
        else (state.variables)
    )
    z = pool @ np.asarray(one["params"]["a"])
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    mined = [best_centroids(z[held]) for held in rows]
    expected = mined if standalone else [best_centroids(np.concatenate(mined))]
    for found, wanted in zip(
        np.asarray(state.centroids).reshape(-1, 3, 3), expected, strict=True
    ):
        found = found[np.argsort(found[:, 0])]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assigned = np.asarray(jax.jit(method.assign)(state, federation))
    assert len(np.unique(assigned[federation.mask])) == 3


def test_the_second_stage_asks_who_answers_its_first_round(blobs):
    """The second client fails: the centroids are those of the first one's own."""
    pool, rows, federation = blobs
    federation = federation._replace(present=jnp.array([[True, False]]))
    method = build(pretrain_rounds=0)
    state = method.init(jax.random.key(3), federation)
    state = jax.jit(method.stages[1].begin)(jax.random.key(5), state, federation)
    z = pool[rows[0]] @ np.asarray(state.variables["params"]["a"])
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    found = np.asarray(state.centroids)
    found = found[np.argsort(found[:, 0])]
    np.testing.assert_allclose(found, best_centroids(z), rtol=1e-4, atol=1e-5)


def test_centroids_cross_once_more_before_the_second_stage(problem):
    _, _, federation = problem
    method = build(pretrain_rounds=0)
    state = method.init(jax.random.key(3), federation)
    state = method.stages[1].begin(jax.random.key(5), state, federation)
    sent = []
    for number in range(2):
        state, metrics = jax.jit(method.stages[1].round)(
            jax.random.key(number), state, federation
        )
        sent.append(np.asarray(metrics["up_centroids"]))
    np.testing.assert_array_equal(sent, [[4, 4 * 9], [2, 4 * 9]])  # two clients


class SmallSimSiam(nn.Module):
    @nn.compact
    def __call__(self, x, *, train, mask):
        norm = partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        mask = None if mask is None else mask[:, None]
        x = jax.nn.relu(norm()(nn.Dense(16)(x), mask=mask))
        z = norm(use_scale=False, use_bias=False)(nn.Dense(8)(x), mask=mask)
        return z, nn.Dense(8)(jax.nn.relu(norm()(nn.Dense(4)(z), mask=mask)))


def test_separable_blobs_are_found():
    rng = np.random.default_rng(0)
    labels = rng.integers(4, size=240)
    pool = (6 * np.eye(4)[labels] @ rng.normal(size=(4, 6))).astype(np.float32)
    pool += 0.3 * rng.normal(size=pool.shape).astype(np.float32)
    rows = tuple(np.split(np.arange(240), 4))
    federation = federate(
        jnp.asarray(pool),
        [Partition(rows, np.arange(0))],
        np.ones((1, 1, 4), bool),
        num_clusters=4,
    )
    grid = Grid(jnp.zeros(1), jax.random.split(jax.random.key(0), 1), federation)

    def build(_):
        return module.ccfc(
            from_linen(SmallSimSiam()),
            optax.adam(3e-3),
            jitter,
            num_clusters=4,
            pretrain_rounds=20,
            cluster_rounds=5,
            batch_size=30,
        )

    state = engine.run(build, grid)
    state = jax.tree.map(lambda x: x[0], state)
    one = jax.tree.map(lambda x: x[0], federation._replace(pool=None))
    found = jax.jit(build(0).assign)(state, one._replace(pool=federation.pool))
    assert evaluation.accuracy(labels, np.asarray(found).ravel()) > 0.95
